//! The argument of every kernel, with the fields of `kernels/job.cuh`.

/// The most axes of a shape.
pub const MAX_RANK: usize = 8;

/// The location of an input's elements.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct JobInput {
    /// The address of the element at the origin.
    pub address: u64,
    /// The stride along each axis of the job's shape, in elements; 0 for broadcast axes.
    pub strides: [u64; MAX_RANK],
    /// Nonzero if the elements are contiguous: the strides are then unused.
    pub contiguous: u64,
    /// Nonzero if the elements are 32-bit floats in a half-precision kernel. Other kernels ignore it.
    pub wide: u64,
}

/// The location of an output's elements, contiguous.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct JobOutput {
    /// The address of the first element.
    pub address: u64,
    /// As in [`JobInput`].
    pub wide: u64,
}

/// The arguments of a kernel. Each source states which fields it reads.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[repr(C)]
pub struct Job {
    /// The number of elements, rows or outputs to compute.
    pub count: u64,
    /// The number of axes of the shape.
    pub rank: u64,
    /// The sizes of the axes, outermost first.
    pub dims: [u64; MAX_RANK],
    /// The number of axes of the second shape.
    pub inner_rank: u64,
    /// The sizes of the second shape.
    pub inner_dims: [u64; MAX_RANK],
    /// The inputs.
    pub inputs: [JobInput; 3],
    /// Addresses of further inputs, contiguous unless the kernel states otherwise.
    pub also: [u64; 4],
    /// The outputs.
    pub outputs: [JobOutput; 4],
    /// The function to compute, by its [name](named); or flags, as the kernel states.
    pub function: u64,
    /// Integer parameters.
    pub counts: [u64; 6],
    /// Constants for float elements.
    pub constants: [f64; 9],
    /// Constants for integer elements.
    pub integers: [i64; 2],
    /// Nonzero if kernels may access several elements at once: all inputs and outputs are aligned to
    /// [`PACK`](super::PACK) bytes, and inputs are contiguous or have whole packs or equal elements in their rows.
    pub packed: u64,
}

/// The elements of one chunk of a [`JobRow`]. A block processes a chunk at a time.
pub const TABLE_CHUNK: u64 = 4096;

/// The most rows of a [`JobTable`].
pub const TABLE_ROWS: usize = 60;

/// Contiguous tensors of one length.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct JobRow {
    /// The number of elements of each tensor.
    pub count: u64,
    /// The number of the row's first chunk. The chunks of all rows are numbered in order.
    pub chunk: u64,
    /// The address of the input.
    pub input: u64,
    /// The addresses of the outputs.
    pub outputs: [u64; 4],
}

/// Tensors that one launch processes together: the second argument of a kernel that is defined as `TABLE_KERNEL(name)`.
/// The job has the types and constants, and the number of rows in `counts[0]`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct JobTable {
    /// The rows.
    pub rows: [JobRow; TABLE_ROWS],
}

impl Default for JobTable {
    fn default() -> Self {
        Self { rows: [JobRow::default(); TABLE_ROWS] }
    }
}

/// The number by which kernels find a function: the FNV-1a hash of its name, as `NAMED` computes it in `kernels/job.cuh`.
#[must_use]
pub const fn named(name: &str) -> u64 {
    let (bytes, mut hash, mut n) = (name.as_bytes(), 2_166_136_261_u32, 0);
    while n < bytes.len() {
        hash = (hash ^ bytes[n] as u32).wrapping_mul(16_777_619);
        n += 1;
    }
    hash as u64
}

// As in `kernels/job.cuh`.
const _: () = assert!(named("softsign") == 0x0d0a_7674);

// CUDA allows 4 KiB of kernel arguments.
const _: () = assert!(size_of::<Job>() + size_of::<JobTable>() <= 4096);

impl Job {
    /// Creates a job for `count` elements of a shape.
    #[must_use]
    pub fn over(count: u64, dims: &[usize]) -> Self {
        let mut job = Self { count, rank: dims.len().min(MAX_RANK) as u64, ..Self::default() };
        job.dims.iter_mut().zip(dims).for_each(|(to, &size)| *to = size as u64);
        job
    }

    /// Returns the job with this first input.
    #[must_use]
    pub const fn with_input(mut self, input: JobInput) -> Self {
        self.inputs[0] = input;
        self
    }

    /// Returns the job with this address of the first output, of the kernel's element type.
    #[must_use]
    pub const fn with_output(mut self, address: u64) -> Self {
        self.outputs[0] = JobOutput::new(address);
        self
    }

    /// Returns the job with this first constant.
    #[must_use]
    pub const fn with_constant(mut self, constant: f64) -> Self {
        self.constants[0] = constant;
        self
    }

    /// Whether both jobs are identical bit by bit: 0.0 and -0.0 differ.
    #[must_use]
    pub fn is_identical(&self, other: &Self) -> bool {
        let bits = |job: &Self| job.constants.map(f64::to_bits);
        let others = |job: &Self| Self { constants: [0.0; 9], ..*job };
        bits(self) == bits(other) && others(self) == others(other)
    }

    /// Returns the job with a second shape.
    #[must_use]
    pub fn with_inner(mut self, dims: &[usize]) -> Self {
        self.inner_rank = dims.len().min(MAX_RANK) as u64;
        self.inner_dims.iter_mut().zip(dims).for_each(|(to, &size)| *to = size as u64);
        self
    }
}

impl JobInput {
    /// Contiguous elements.
    #[must_use]
    pub const fn contiguous(address: u64) -> Self {
        Self { address, strides: [0; MAX_RANK], contiguous: 1, wide: 0 }
    }

    /// Elements with these strides, in elements.
    #[must_use]
    pub fn strided(address: u64, strides: &[usize]) -> Self {
        let mut operand = Self { address, strides: [0; MAX_RANK], contiguous: 0, wide: 0 };
        operand.strides.iter_mut().zip(strides).for_each(|(to, &stride)| *to = stride as u64);
        operand
    }

    /// Returns the value with the flag for 32-bit floats.
    #[must_use]
    pub const fn of_floats(mut self, floats: bool) -> Self {
        self.wide = floats as u64;
        self
    }
}

impl JobOutput {
    /// An output of the kernel's element type.
    #[must_use]
    pub const fn new(address: u64) -> Self {
        Self { address, wide: 0 }
    }

    /// Returns the value with the flag for 32-bit floats.
    #[must_use]
    pub const fn of_floats(mut self, floats: bool) -> Self {
        self.wide = floats as u64;
        self
    }
}

//! The argument of every kernel, as `kernels/job.cuh` lays it out.

/// The most axes that a shape can have.
pub const MAX_RANK: usize = 8;

/// Where an operand's elements lie.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Operand {
    /// The address of the element at the origin.
    pub address: u64,
    /// How far apart elements are along each axis of the job's shape, in elements; 0 along axes that are repeated.
    pub strides: [u64; MAX_RANK],
    /// Not 0 if the elements lie in order without gaps, so that the strides need not be asked.
    pub contiguous: u64,
    /// Not 0 if they are 32-bit floats where the kernel is one for halves. For other kernels it means nothing.
    pub wide: u64,
}

/// Where elements are written to, in order without gaps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Output {
    /// The address of the first.
    pub address: u64,
    /// As of an [`Operand`].
    pub wide: u64,
}

/// What a kernel is to do. Which fields it reads, and how, stands beside its source.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[repr(C)]
pub struct Job {
    /// Elements, rows or outputs to compute.
    pub count: u64,
    /// Axes of the shape.
    pub rank: u64,
    /// Sizes of the axes, outermost first.
    pub dims: [u64; MAX_RANK],
    /// Axes of a second shape.
    pub inner_rank: u64,
    /// Their sizes.
    pub inner_dims: [u64; MAX_RANK],
    /// What is read.
    pub inputs: [Operand; 3],
    /// Addresses of what else is read, in order without gaps unless the kernel says how.
    pub also: [u64; 4],
    /// What is written.
    pub outputs: [Output; 3],
    /// Which of a family of functions.
    pub function: u64,
    /// Counts.
    pub counts: [u64; 6],
    /// Constants, where elements are floats.
    pub constants: [f64; 9],
    /// Constants, where elements are integers.
    pub integers: [i64; 2],
    /// Not 0 if all operands and outputs lie in order, each from a multiple of [`PACK`](super::PACK) bytes on, so that kernels may read
    /// and write neighbours in one go.
    pub packed: u64,
}

// Kernels may take 4 KiB of arguments.
const _: () = assert!(size_of::<Job>() <= 4096);

impl Job {
    /// A job for `count` elements of a shape.
    #[must_use]
    pub fn over(count: u64, dims: &[usize]) -> Self {
        let mut job = Self { count, rank: dims.len().min(MAX_RANK) as u64, ..Self::default() };
        job.dims.iter_mut().zip(dims).for_each(|(to, &size)| *to = size as u64);
        job
    }

    /// Whether a kernel is told the very same, bit by bit: of constants, 0.0 and -0.0 are not.
    #[must_use]
    pub fn is_identical(&self, other: &Self) -> bool {
        let bits = |job: &Self| job.constants.map(f64::to_bits);
        let others = |job: &Self| Self { constants: [0.0; 9], ..*job };
        bits(self) == bits(other) && others(self) == others(other)
    }

    /// The same job with the axes of a second shape.
    #[must_use]
    pub fn with_inner(mut self, dims: &[usize]) -> Self {
        self.inner_rank = dims.len().min(MAX_RANK) as u64;
        self.inner_dims.iter_mut().zip(dims).for_each(|(to, &size)| *to = size as u64);
        self
    }
}

impl Operand {
    /// Elements that lie in order without gaps.
    #[must_use]
    pub const fn contiguous(address: u64) -> Self {
        Self { address, strides: [0; MAX_RANK], contiguous: 1, wide: 0 }
    }

    /// Elements that lie as the strides say, in elements.
    #[must_use]
    pub fn strided(address: u64, strides: &[usize]) -> Self {
        let mut operand = Self { address, strides: [0; MAX_RANK], contiguous: 0, wide: 0 };
        operand.strides.iter_mut().zip(strides).for_each(|(to, &stride)| *to = stride as u64);
        operand
    }

    /// The same, of elements that are or are not 32-bit floats.
    #[must_use]
    pub const fn of_floats(mut self, floats: bool) -> Self {
        self.wide = floats as u64;
        self
    }
}

impl Output {
    /// Where elements of the kernel's type go.
    #[must_use]
    pub const fn new(address: u64) -> Self {
        Self { address, wide: 0 }
    }

    /// The same, of elements that are or are not 32-bit floats.
    #[must_use]
    pub const fn of_floats(mut self, floats: bool) -> Self {
        self.wide = floats as u64;
        self
    }
}

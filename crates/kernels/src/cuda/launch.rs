//! Conversion of views to kernel operands, and all calls to the device.

use std::sync::{Arc, Mutex, PoisonError};

use bfc_cuda::kernels::{
    BLOCK, ElementType, Job, JobInput, JobOutput, JobRow, JobTable, KernelId, PACK, TABLE_CHUNK,
};
use bfc_cuda::{Compute, ComputeError, Product};

use crate::cuda::Family;
use crate::error::{KernelError, Result};
use crate::layout::Layout;
use crate::shape::{DType, Scalar};
use crate::storage::{View, ViewMut};

/// The largest grid, in blocks. Threads loop over further elements, so that more blocks are not faster.
const MAX_BLOCKS: u64 = 1 << 16;

/// The number of blocks that fill a large GPU: about 130 multiprocessors with eight blocks each, twice.
const FULL_GRID: u64 = 1 << 11;

/// The number of elements that a thread of an elementwise kernel loads at a time (`kernels/element.cuh`). A vectorized
/// load has at least as many.
const ELEMENTS_PER_THREAD: u64 = 4;

/// The device, with methods that launch kernels and copy memory.
#[derive(Debug)]
pub(crate) struct Launcher {
    compute: Arc<dyn Compute>,
    /// Serializes the users of the device's scratch memory.
    scratch_lock: Mutex<()>,
}

impl Launcher {
    pub(crate) const fn new(compute: Arc<dyn Compute>) -> Self {
        Self { compute, scratch_lock: Mutex::new(()) }
    }

    pub(crate) fn compute(&self) -> &dyn Compute {
        self.compute.as_ref()
    }

    /// Launches a kernel with one thread per element.
    pub(crate) fn launch_threads(
        &self,
        op: &'static str,
        kernel: KernelId,
        threads: u64,
        job: &Job,
    ) -> Result<()> {
        self.launch_blocks(op, kernel, threads.div_ceil(BLOCK), job)
    }

    /// Launches an elementwise kernel whose threads process several elements. If all operands consist of aligned packs,
    /// the kernel uses vectorized loads. Otherwise threads process several elements once the grid fills a GPU.
    pub(crate) fn launch_elementwise(
        &self,
        op: &'static str,
        kernel: KernelId,
        elements: u64,
        job: &Job,
    ) -> Result<()> {
        if is_vectorizable(job) {
            return self.launch_blocks(
                op,
                kernel,
                elements.div_ceil(BLOCK * ELEMENTS_PER_THREAD),
                &Job { packed: 1, ..*job },
            );
        }
        let blocks = elements.div_ceil(BLOCK);
        self.launch_blocks(op, kernel, blocks.div_ceil(ELEMENTS_PER_THREAD).max(blocks.min(FULL_GRID)), job)
    }

    /// Launches a kernel that takes a table, with a block per chunk. Numbers the chunks of the rows, of which there are no more
    /// than a [`JobTable`] has; leaves out empty rows. `job` describes a row.
    pub(crate) fn launch_table(
        &self,
        op: &'static str,
        kernel: KernelId,
        mut job: Job,
        rows: impl Iterator<Item = JobRow>,
    ) -> Result<()> {
        let mut table = JobTable::default();
        let (mut used, mut chunks) = (0, 0);
        for (to, row) in table.rows.iter_mut().zip(rows.filter(|row| row.count > 0)) {
            *to = JobRow { chunk: chunks, ..row };
            (used, chunks) = (used + 1, chunks + row.count.div_ceil(TABLE_CHUNK));
        }
        if chunks == 0 {
            return Ok(());
        }
        (job.counts[0], job.counts[1], job.packed) = (used, chunks, u64::from(is_vectorizable(&job)));
        let blocks = chunks.min(MAX_BLOCKS) as u32;
        // SAFETY: as in `launch_blocks`; the addresses in the table come from views as well.
        let launched = unsafe { self.compute.launch_table(kernel, blocks, &job, &Arc::new(table)) };
        launched.map_err(|error| self.failed(op, &error))
    }

    /// Launches a kernel with this number of blocks; does nothing for 0 blocks.
    pub(crate) fn launch_blocks(
        &self,
        op: &'static str,
        kernel: KernelId,
        blocks: u64,
        job: &Job,
    ) -> Result<()> {
        if blocks == 0 || job.count == 0 {
            return Ok(());
        }
        // SAFETY: the addresses in the job come from views. The stream executes in order, so no later use of a freed buffer
        // overlaps the kernel. The views of outputs are exclusive. `backend::check` has checked shapes and types, and
        // `index::check` has checked indices.
        let launched = unsafe { self.compute.launch(kernel, blocks.min(MAX_BLOCKS) as u32, job) };
        launched.map_err(|error| self.failed(op, &error))
    }

    /// Whether the device has a library for matrix products (cuBLAS).
    pub(crate) fn has_products(&self) -> bool {
        self.compute.supports_products()
    }

    /// Multiplies matrices with cuBLAS. Returns false if it does not support the product.
    pub(crate) fn multiply(&self, op: &'static str, product: &Product) -> Result<bool> {
        // SAFETY: as in `launch_blocks`; the op owns the workspace, whose size is that of its buffer.
        let multiplied = unsafe { self.compute.multiply(product) };
        multiplied.map_err(|error| self.failed(op, &error))
    }

    /// Copies bytes to the start of a buffer.
    pub(crate) fn upload(&self, op: &'static str, bytes: &[u8], out: &ViewMut<'_>) -> Result<()> {
        debug_assert!(bytes.len() <= out.storage().bytes());
        // SAFETY: the view is exclusive, and the caller has checked the size of the buffer.
        let copied = unsafe { self.compute.upload(bytes, out.storage().address()) };
        copied.map_err(|error| self.failed(op, &error))
    }

    /// Copies bytes from a buffer to the host, starting at byte `start`.
    pub(crate) fn download(
        &self,
        op: &'static str,
        view: &View<'_>,
        start: usize,
        to: &mut [u8],
    ) -> Result<()> {
        let within = start.checked_add(to.len()).is_some_and(|end| end <= view.storage().bytes());
        if !within {
            return Err(crate::error::not_host(op));
        }
        // SAFETY: the buffer is live, and `within` checked its size.
        let copied = unsafe { self.compute.download(view.storage().address() + start as u64, to) };
        copied.map_err(|error| self.failed(op, &error))?;
        // The device is idle now. A dry run frees staging memory at the same point.
        self.compute.release_uploads();
        Ok(())
    }

    /// Launches a kernel that updates one integer in the device's scratch memory, waits for it, and returns the integer.
    /// Allocates nothing, so that a dry run need not imitate it.
    pub(crate) fn launch_and_read(
        &self,
        op: &'static str,
        kernel: KernelId,
        mut job: Job,
        initial: u64,
    ) -> Result<u64> {
        let _lock = self.scratch_lock.lock().unwrap_or_else(PoisonError::into_inner);
        let scratch = self.compute.scratch();
        job.outputs[0] = JobOutput::new(scratch);
        let mut first = Job::over(1, &[1]);
        first.outputs[0] = JobOutput::new(scratch);
        first.integers[0] = initial.cast_signed();
        self.launch_threads(op, Family::Elementwise.kernel("fill", ElementType::I64), 1, &first)?;
        let threads = job.count;
        self.launch_threads(op, kernel, threads, &job)?;
        let mut answer = [0; size_of::<u64>()];
        // SAFETY: the scratch has 256 bytes.
        unsafe { self.compute.download(scratch, &mut answer) }.map_err(|error| self.failed(op, &error))?;
        Ok(u64::from_ne_bytes(answer))
    }

    pub(crate) fn failed(&self, op: &'static str, error: &ComputeError) -> KernelError {
        KernelError::Device { op, device: self.compute.name().to_owned(), reason: error.clone().into() }
    }
}

/// The element type of kernels; they process booleans as bytes.
pub(crate) const fn element_type(dtype: DType) -> ElementType {
    match dtype {
        DType::F32 => ElementType::F32,
        DType::F64 => ElementType::F64,
        DType::F16 => ElementType::F16,
        DType::BF16 => ElementType::BF16,
        DType::I64 => ElementType::I64,
        DType::I32 => ElementType::I32,
        DType::U32 => ElementType::U32,
        DType::U8 | DType::Bool => ElementType::U8,
    }
}

pub(crate) const fn kernel(family: Family, name: &'static str, dtype: DType) -> KernelId {
    family.kernel(name, element_type(dtype))
}

/// The element type of the kernel for operands that may mix a 16-bit float type with f32: the 16-bit type, if any.
pub(crate) fn kernel_dtype<const N: usize>(dtypes: [DType; N]) -> DType {
    dtypes.into_iter().find(|dtype| dtype.is_half()).unwrap_or(dtypes[0])
}

/// Fails for booleans.
pub(crate) fn require_number(op: &'static str, dtype: DType) -> Result<()> {
    if dtype == DType::Bool { Err(KernelError::UnsupportedDType { op, dtype }) } else { Ok(()) }
}

/// Fails for all types but floats.
pub(crate) fn require_float(op: &'static str, dtype: DType) -> Result<()> {
    if dtype.is_float() { Ok(()) } else { Err(KernelError::UnsupportedDType { op, dtype }) }
}

/// The most elements that a kernel reads or writes at once.
const LARGEST_PACK: u64 = 16;

/// Whether kernels can access all operands of a job in packs (`kernels/pack.cuh`).
fn is_vectorizable(job: &Job) -> bool {
    job.inputs.iter().filter(|operand| operand.address != 0).all(|operand| is_packed(job, operand))
        && job.outputs.iter().all(|output| output.address.is_multiple_of(PACK))
}

/// Whether rows of the first inputs and of the first output consist of whole, aligned packs.
pub(crate) fn has_packed_rows(job: &Job, inputs: usize) -> bool {
    let mut operands = job.inputs.iter().take(inputs).filter(|operand| operand.address != 0);
    job.counts[0].is_multiple_of(LARGEST_PACK)
        && job.outputs[0].address.is_multiple_of(PACK)
        && operands.all(|operand| is_packed(job, operand))
}

/// Whether an operand is contiguous and aligned, or has whole, aligned packs or equal elements along its last axis.
fn is_packed(job: &Job, operand: &JobInput) -> bool {
    let is_aligned = operand.address.is_multiple_of(PACK);
    if operand.contiguous != 0 {
        return is_aligned;
    }
    let rank = job.rank as usize;
    let (Some(&width), Some((&stride, outer))) =
        (job.dims[..rank].last(), operand.strides[..rank].split_last())
    else {
        return false;
    };
    let starts_at_packs = || is_aligned && outer.iter().all(|stride| stride.is_multiple_of(LARGEST_PACK));
    width.is_multiple_of(LARGEST_PACK) && (stride == 0 || (stride == 1 && starts_at_packs()))
}

/// The address of the element at a layout's origin.
pub(crate) fn origin(view: &View<'_>) -> u64 {
    view.storage().address() + (view.layout().offset() * view.dtype().size()) as u64
}

/// The operand of a view that a kernel reads.
pub(crate) fn operand(view: &View<'_>) -> JobInput {
    if !view.layout().is_contiguous() {
        return strided(view);
    }
    JobInput::contiguous(origin(view)).of_floats(view.dtype() == DType::F32)
}

/// The operand of a view, described by strides even if it is contiguous.
pub(crate) fn strided(view: &View<'_>) -> JobInput {
    JobInput::strided(origin(view), view.layout().strides()).of_floats(view.dtype() == DType::F32)
}

/// The operand of a view that a kernel writes.
pub(crate) fn output(view: &ViewMut<'_>) -> JobOutput {
    JobOutput::new(view.storage().address()).of_floats(view.dtype() == DType::F32)
}

/// The operand of a workspace from which a kernel reads partial results, in the type of the computation.
pub(crate) fn workspace_operand(workspace: &ViewMut<'_>) -> JobInput {
    JobInput::contiguous(workspace.storage().address()).of_floats(true)
}

/// The output of a kernel that writes partial results to a workspace.
pub(crate) fn workspace_output(workspace: &ViewMut<'_>) -> JobOutput {
    JobOutput::new(workspace.storage().address()).of_floats(true)
}

/// Returns the workspace, or fails if it has fewer than `bytes` bytes.
pub(crate) fn required_workspace<'w, 'm>(
    op: &'static str,
    workspace: Option<&'w ViewMut<'m>>,
    bytes: usize,
) -> Result<&'w ViewMut<'m>> {
    workspace
        .filter(|workspace| workspace.storage().bytes() >= bytes)
        .ok_or_else(|| crate::error::not_host(op))
}

/// Creates a job over the elements of a layout's shape.
pub(crate) fn job_over(layout: &Layout) -> Job {
    Job::over(layout.shape().elements() as u64, layout.shape().dims())
}

/// Sets constant `n` of a job, as kernels for `dtype` read it.
pub(crate) fn set_constant(job: &mut Job, n: usize, dtype: DType, value: Scalar) {
    job.constants[n] = value.as_f64();
    job.integers[n] = match (dtype, value) {
        (DType::U8, Scalar::Float(value)) => i64::from(value as u8),
        (DType::U32, Scalar::Float(value)) => i64::from(value as u32),
        (DType::I32, Scalar::Float(value)) => i64::from(value as i32),
        (DType::Bool, value) => i64::from(value.as_f64() != 0.0),
        (_, value) => value.as_i64(),
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packs_require_alignment_and_whole_rows() {
        let mut job = Job { inputs: [JobInput::contiguous(4096); 3], ..Job::over(64, &[2, 32]) };
        job.outputs[0] = JobOutput::new(8192);
        let with = |operand, output| {
            let mut other = job;
            (other.inputs[1], other.outputs[1]) = (operand, JobOutput::new(output));
            is_vectorizable(&other)
        };
        assert!(is_vectorizable(&job));
        assert!(!with(JobInput::contiguous(4096 + 4), 8192), "an address between packs");
        assert!(!with(JobInput::contiguous(4096), 8192 + 8), "an output between packs");
        assert!(with(JobInput::strided(4096, &[48, 1]), 8192), "rows of whole packs");
        assert!(with(JobInput::strided(4096, &[0, 1]), 8192), "one row for all");
        assert!(with(JobInput::strided(4100, &[1, 0]), 8192), "one element for each row");
        assert!(!with(JobInput::strided(4096, &[33, 1]), 8192), "rows that start between packs");
        assert!(!with(JobInput::strided(4096, &[1, 2]), 8192), "a transposed matrix");
        job.dims[1] = 31;
        let mut odd = job;
        odd.inputs[1] = JobInput::strided(4096, &[0, 1]);
        assert!(!is_vectorizable(&odd), "rows that end between packs");
    }
}

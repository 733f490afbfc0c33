//! From views to what a kernel takes, and the one place where work is given to the device.

use std::sync::{Arc, Mutex, PoisonError};

use bfc_cuda::kernels::{BLOCK, ElementType, Family, Job, Kernel, Operand, Output, PACK};
use bfc_cuda::{Compute, ComputeError, Product};

use crate::error::{Error, Result};
use crate::layout::Layout;
use crate::shape::{DType, Scalar};
use crate::storage::{View, ViewMut};

/// The most blocks that a kernel is started with: threads go on to further elements, so more gain nothing.
const MOST_BLOCKS: u64 = 1 << 16;

/// Blocks that fill a large GPU with threads: some 130 processors with eight each, and as many to follow.
const FILLING: u64 = 1 << 11;

/// What a thread of a kernel for elements loads at a time, as `kernels/element.cuh` says; packs have as many at least.
const AHEAD: u64 = 4;

/// The device that work is given to.
#[derive(Debug)]
pub(super) struct Launcher {
    compute: Arc<dyn Compute>,
    /// One question at a time: there is one scratch for the answers, whichever thread asks.
    asking: Mutex<()>,
}

impl Launcher {
    pub(super) const fn new(compute: Arc<dyn Compute>) -> Self {
        Self { compute, asking: Mutex::new(()) }
    }

    pub(super) fn compute(&self) -> &dyn Compute {
        self.compute.as_ref()
    }

    /// Starts a kernel with a thread for each of `threads` elements.
    pub(super) fn each(&self, op: &'static str, kernel: Kernel, threads: u64, job: &Job) -> Result<()> {
        self.blocks(op, kernel, threads.div_ceil(BLOCK), job)
    }

    /// Starts a kernel whose threads load a few elements at a time: by packs where operands lie so, else once there are enough
    /// threads to fill a GPU.
    pub(super) fn ahead(&self, op: &'static str, kernel: Kernel, elements: u64, job: &Job) -> Result<()> {
        if lies_in_packs(job) {
            return self.blocks(op, kernel, elements.div_ceil(BLOCK * AHEAD), &Job { packed: 1, ..*job });
        }
        let blocks = elements.div_ceil(BLOCK);
        self.blocks(op, kernel, blocks.div_ceil(AHEAD).max(blocks.min(FILLING)), job)
    }

    /// Starts a kernel with so many blocks; nothing if there are none.
    pub(super) fn blocks(&self, op: &'static str, kernel: Kernel, blocks: u64, job: &Job) -> Result<()> {
        if blocks == 0 || job.count == 0 {
            return Ok(());
        }
        // SAFETY: jobs are made from views, whose buffers live until the device has done what it was given before they
        // are used again, as all work on them is given in order; the outputs are those of views to be written, which
        // have one user. `backend::check` has checked shapes and types, and indices are checked before they are followed.
        let started = unsafe { self.compute.launch(kernel, blocks.min(MOST_BLOCKS) as u32, job) };
        started.map_err(|error| self.failed(op, &error))
    }

    /// Whether to ask the device's library for products at all: not all devices have one.
    pub(super) fn has_products(&self) -> bool {
        self.compute.supports_products()
    }

    /// Has the device's library multiply matrices; false if it cannot.
    pub(super) fn multiply(&self, op: &'static str, product: &Product) -> Result<bool> {
        // SAFETY: as in `blocks`; the workspace is the op's own, and as large as its buffer.
        let multiplied = unsafe { self.compute.multiply(product) };
        multiplied.map_err(|error| self.failed(op, &error))
    }

    /// Copies bytes to the start of a buffer.
    pub(super) fn upload(&self, op: &'static str, bytes: &[u8], out: &ViewMut<'_>) -> Result<()> {
        debug_assert!(bytes.len() <= out.storage().bytes());
        // SAFETY: the buffer has one user and at least so many bytes, which the caller has checked.
        let copied = unsafe { self.compute.upload(bytes, out.storage().address()) };
        copied.map_err(|error| self.failed(op, &error))
    }

    /// Copies bytes of a buffer, from `start` on.
    pub(super) fn download(
        &self,
        op: &'static str,
        view: &View<'_>,
        start: usize,
        to: &mut [u8],
    ) -> Result<()> {
        let within = start.checked_add(to.len()).is_some_and(|end| end <= view.storage().bytes());
        if !within {
            return Err(crate::backend::not_host(op));
        }
        // SAFETY: the buffer is live and has so many bytes.
        let copied = unsafe { self.compute.download(view.storage().address() + start as u64, to) };
        copied.map_err(|error| self.failed(op, &error))?;
        // The device has done all before; a dry run knows of this wait too.
        self.compute.release_uploads();
        Ok(())
    }

    /// Starts a kernel that writes a number to the device's scratch, which holds `before` at first, and waits for it. It takes no
    /// memory: a dry run knows nothing of it.
    pub(super) fn ask(&self, op: &'static str, kernel: Kernel, mut job: Job, before: u64) -> Result<u64> {
        let _asking = self.asking.lock().unwrap_or_else(PoisonError::into_inner);
        let scratch = self.compute.scratch();
        job.outputs[0] = Output::new(scratch);
        let mut first = Job::over(1, &[1]);
        first.outputs[0] = Output::new(scratch);
        first.integers[0] = before.cast_signed();
        self.each(op, Kernel::new(Family::Elementwise, "fill", ElementType::I64), 1, &first)?;
        let threads = job.count;
        self.each(op, kernel, threads, &job)?;
        let mut answer = [0; size_of::<u64>()];
        // SAFETY: the scratch has 256 bytes.
        unsafe { self.compute.download(scratch, &mut answer) }.map_err(|error| self.failed(op, &error))?;
        Ok(u64::from_ne_bytes(answer))
    }

    pub(super) fn failed(&self, op: &'static str, error: &ComputeError) -> Error {
        Error::Device { op, device: self.compute.name().to_owned(), reason: error.clone().into() }
    }
}

/// What kernels call an element type; truth values are bytes.
pub(super) const fn element(dtype: DType) -> ElementType {
    match dtype {
        DType::F32 => ElementType::F32,
        DType::F64 => ElementType::F64,
        DType::F16 => ElementType::F16,
        DType::BF16 => ElementType::BF16,
        DType::I64 => ElementType::I64,
        DType::I32 => ElementType::I32,
        DType::U8 | DType::Bool => ElementType::U8,
    }
}

pub(super) const fn kernel(family: Family, name: &'static str, dtype: DType) -> Kernel {
    Kernel::new(family, name, element(dtype))
}

/// The type that a kernel is for which computes on operands of these: that of the halves, beside which there may be floats.
pub(super) fn narrowest<const N: usize>(dtypes: [DType; N]) -> DType {
    dtypes.into_iter().find(|dtype| dtype.is_half()).unwrap_or(dtypes[0])
}

/// An error for truth values: with them one cannot calculate.
pub(super) fn number(op: &'static str, dtype: DType) -> Result<()> {
    if dtype == DType::Bool { Err(Error::UnsupportedDType { op, dtype }) } else { Ok(()) }
}

/// An error for everything but floats.
pub(super) fn float(op: &'static str, dtype: DType) -> Result<()> {
    if dtype.is_float() { Ok(()) } else { Err(Error::UnsupportedDType { op, dtype }) }
}

/// Whether all that a kernel reads and writes element by element lies in order from where packs may begin.
fn lies_in_packs(job: &Job) -> bool {
    let inputs = job.inputs.iter().filter(|operand| operand.address != 0);
    let outputs = job.outputs.iter().map(|output| output.address);
    inputs.clone().all(|operand| operand.contiguous != 0)
        && inputs.map(|operand| operand.address).chain(outputs).all(|address| address.is_multiple_of(PACK))
}

/// The address of the element at a layout's origin.
pub(super) fn origin(view: &View<'_>) -> u64 {
    view.storage().address() + (view.layout().offset() * view.dtype().size()) as u64
}

/// A view as kernels read it.
pub(super) fn operand(view: &View<'_>) -> Operand {
    if !view.layout().is_contiguous() {
        return strided(view);
    }
    Operand::contiguous(origin(view)).of_floats(view.dtype() == DType::F32)
}

/// The same, always by its strides.
pub(super) fn strided(view: &View<'_>) -> Operand {
    Operand::strided(origin(view), view.layout().strides()).of_floats(view.dtype() == DType::F32)
}

/// A view as kernels write it.
pub(super) fn output(view: &ViewMut<'_>) -> Output {
    Output::new(view.storage().address()).of_floats(view.dtype() == DType::F32)
}

/// What kernels find in a workspace that they have written results to, of the type that is computed with.
pub(super) fn written(workspace: &ViewMut<'_>) -> Operand {
    Operand::contiguous(workspace.storage().address()).of_floats(true)
}

/// Where kernels write such results.
pub(super) fn room_for_results(workspace: &ViewMut<'_>) -> Output {
    Output::new(workspace.storage().address()).of_floats(true)
}

/// The workspace, which has to have so many bytes.
pub(super) fn room<'w, 'm>(
    op: &'static str,
    workspace: Option<&'w ViewMut<'m>>,
    bytes: usize,
) -> Result<&'w ViewMut<'m>> {
    workspace.filter(|room| room.storage().bytes() >= bytes).ok_or_else(|| crate::backend::not_host(op))
}

/// A job for every element of a layout's shape.
pub(super) fn over(layout: &Layout) -> Job {
    Job::over(layout.shape().elements() as u64, layout.shape().dims())
}

/// Puts a number where the kernels for `dtype` look for constant `n`.
pub(super) fn set_constant(job: &mut Job, n: usize, dtype: DType, value: Scalar) {
    job.constants[n] = value.as_f64();
    job.integers[n] = match (dtype, value) {
        (DType::U8, Scalar::Float(value)) => i64::from(value as u8),
        (DType::I32, Scalar::Float(value)) => i64::from(value as i32),
        (DType::Bool, value) => i64::from(value.as_f64() != 0.0),
        (_, value) => value.as_i64(),
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packs_require_aligned_contiguous_operands() {
        let mut job = Job {
            inputs: [Operand::contiguous(4096), Operand::default(), Operand::default()],
            ..Job::default()
        };
        job.outputs[0] = Output::new(8192);
        assert!(lies_in_packs(&job));
        for (input, output) in [
            (Operand::contiguous(4096 + 4), 8192),
            (Operand::contiguous(4096), 8192 + 8),
            (Operand::strided(4096, &[2, 1]), 8192),
        ] {
            let mut other = job;
            (other.inputs[1], other.outputs[1]) = (input, Output::new(output));
            assert!(!lies_in_packs(&other), "{input:?} {output}");
        }
    }
}

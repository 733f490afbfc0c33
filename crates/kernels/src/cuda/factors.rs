//! The factors of products and convolutions: the operands, or bf16 copies of them at the start of the workspace.

use bfc_cuda::kernels::{ElementType, Job, JobInput, JobOutput};

use super::launch::{Launcher, origin, required_workspace};
use crate::cuda::Family;
use crate::error::Result;
use crate::layout::Layout;
use crate::precision;
use crate::precision::Precision;
use crate::shape::DType;
use crate::storage::{View, ViewMut};

/// A factor in device memory.
#[derive(Clone, Copy)]
pub(crate) struct Factor {
    /// The address of the element at the layout's origin.
    pub(crate) address: u64,
    /// The shape and the strides.
    pub(crate) layout: Layout,
}

/// The factors of a kernel, and the part of its workspace that they leave.
pub(crate) struct Factors {
    /// The element type of both factors.
    pub(crate) dtype: DType,
    pub(crate) both: [Factor; 2],
    /// The address and the size in bytes.
    workspace: (u64, u64),
}

impl Factors {
    /// Copies the factors to bf16 if the precision requires it.
    ///
    /// # Errors
    /// If a launch fails, or the workspace is too small.
    pub(crate) fn new(
        device: &Launcher,
        op: &'static str,
        precision: Precision,
        factors: [View<'_>; 2],
        workspace: Option<&ViewMut<'_>>,
    ) -> Result<Self> {
        let room = workspace.map_or((0, 0), |room| (room.storage().address(), room.storage().bytes() as u64));
        if precision == Precision::Full {
            let both = factors.each_ref().map(Factor::of);
            return Ok(Self { dtype: factors[0].dtype(), both, workspace: room });
        }
        let elements = factors.map(|factor| factor.layout().distinct().shape().elements());
        let bytes = precision::bf16_copies(precision, elements);
        if bytes == 0 {
            let both = factors.each_ref().map(Factor::of);
            return Ok(Self { dtype: DType::BF16, both, workspace: room });
        }
        let start = required_workspace(op, workspace, bytes)?.storage().address();
        let second = start + precision::bf16_copy(elements[0]) as u64;
        let both = [
            Factor::bf16_copy(device, op, factors[0], start)?,
            Factor::bf16_copy(device, op, factors[1], second)?,
        ];
        Ok(Self { dtype: DType::BF16, both, workspace: (start + bytes as u64, room.1 - bytes as u64) })
    }

    /// The address and the size of the free part of the workspace.
    pub(crate) const fn workspace(&self) -> (u64, u64) {
        self.workspace
    }
}

impl Factor {
    fn of(view: &View<'_>) -> Self {
        Self { address: origin(view), layout: *view.layout() }
    }

    /// Copies an f32 factor to bf16 at an address.
    fn bf16_copy(device: &Launcher, op: &'static str, view: View<'_>, to: u64) -> Result<Self> {
        let (once, start) = (view.layout().distinct(), view.layout().offset());
        let (elements, from) = (once.shape().elements(), origin(&view));
        let span = once.reach().map_or(usize::MAX, |reach| reach.saturating_sub(start));
        // A transposed matrix is copied in the order of its memory and stays transposed.
        let is_dense = span <= elements;
        let (mut job, layout) = if is_dense {
            let job = Job::over(span as u64, &[span]).with_input(JobInput::contiguous(from));
            (job, view.layout().at_start())
        } else {
            let job = Job::over(elements as u64, once.shape().dims());
            let job = job.with_input(JobInput::strided(from, once.strides()));
            (job, Layout::row_major(once.shape()).broadcast_to(op, view.layout().shape())?)
        };
        job.outputs[0] = JobOutput::new(to);
        let kernel = Family::Convert.kernel("to_bf16", ElementType::F32);
        device.launch_elementwise(op, kernel, job.count, &job)?;
        Ok(Self { address: to, layout })
    }

    /// The operand with the strides of the first axes.
    pub(crate) fn strided(&self, axes: usize) -> JobInput {
        JobInput::strided(self.address, &self.layout.strides()[..axes])
    }
}

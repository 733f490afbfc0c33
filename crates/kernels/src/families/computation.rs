//! The facts of a kernel for the runtime, and its implementations.

use crate::cost::{Work, distinct};
use crate::cpu::parallel::Workers;
#[cfg(feature = "cuda")]
use crate::cuda::launch::Launcher;
use crate::error::Result;
use crate::operands::{Operand, Rules, Visit};
use crate::shape::DType;

/// The facts of a kernel: its operands, its rules and its work.
pub(crate) trait Computation<'a>: Sized {
    /// Whether every device runs the kernel on 16-bit floats without an upcast. It does if the kernel only copies elements,
    /// or computes each element from the elements at the same index; then it may also mix 16-bit floats with f32.
    const SUPPORTS_HALF: bool = false;

    /// Calls `visit` with the name and the access of each operand; stops at the first error. Inputs precede outputs. See
    /// [`operands!`](crate::operands::operands).
    fn operands<'k>(&'k mut self, visit: &mut impl Visit<'k, 'a>) -> Result<()>
    where
        'a: 'k;

    /// Checks shapes, element types and parameters of the kernel. All operands are on the device, in layouts that fit
    /// their access.
    fn check(&self, rules: &Rules<'_>) -> Result<()>;

    /// Returns the type of all operands if it is the same, the operands are on the device, and
    /// [`check`](Self::check) would find no fault. For common kernels, whose check should take little time.
    #[inline(always)]
    fn fast_check(&mut self, device: u32) -> Option<DType> {
        let _ = device;
        None
    }

    /// Whether the CPU runs this kernel on 16-bit floats without an upcast. GPUs run all kernels on them.
    fn supports_half_on_cpu(&self) -> bool {
        false
    }

    /// The work of the kernel, without the bytes of its operands.
    fn work(&self) -> Work;
}

/// The CPU implementation of a kernel whose operands passed the check.
pub(crate) trait RunCpu {
    /// Runs the kernel.
    fn run_cpu(&mut self, workers: &Workers, op: &'static str) -> Result<()>;
}

/// The launch of a kernel, whose operands passed the check, on a CUDA device.
#[cfg(feature = "cuda")]
pub(crate) trait RunCuda {
    /// Enqueues the kernel.
    fn run_cuda(&self, device: &Launcher, op: &'static str) -> Result<()>;
}

impl Work {
    /// Returns the work with the bytes of a kernel's operands.
    pub(crate) fn with_traffic<'a>(mut self, kernel: &mut impl Computation<'a>) -> Self {
        // Visitors return no error here.
        let _ = kernel.operands(&mut |_, operand: Operand<'_, 'a>| {
            let size = operand.dtype().size() as u64;
            let bytes = |count: u64| count.saturating_mul(size).min(operand.storage().bytes() as u64);
            let all = bytes(distinct(operand.layout()));
            let [reads, writes] = match operand {
                // Products rearrange their factors in the workspace, which `moved` counts.
                Operand::Scratch(_) if self.multiply_adds > 0 => [0, 0],
                Operand::Scratch(_) | Operand::Update(_) => [all, all],
                Operand::Read(_) | Operand::ReadContiguous(_) => [all, 0],
                Operand::ReadPart(_, part) => [bytes(part as u64), 0],
                Operand::Write(_) => [0, all],
                Operand::WritePart(_, part) => [0, bytes(part as u64)],
            };
            self.read = self.read.saturating_add(reads);
            self.written = self.written.saturating_add(writes);
            Ok(())
        });
        self
    }
}

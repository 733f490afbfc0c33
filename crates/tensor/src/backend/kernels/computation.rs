//! The facts of a kernel for the runtime, and its implementations.

use crate::backend::check::Rules;
use crate::backend::cost::Work;
use crate::backend::cpu::Workers;
#[cfg(feature = "cuda")]
use crate::backend::cuda::Launcher;
use crate::backend::operands::Visit;
use crate::error::Result;
use crate::shape::DType;

/// The facts of a kernel: its operands, its rules and its work.
pub(crate) trait Computation<'a>: Sized {
    /// Whether every device runs the kernel on 16-bit floats without an upcast. It does if the kernel only copies elements,
    /// or computes each element from the elements at the same index; then it may also mix 16-bit floats with f32.
    const SUPPORTS_HALF: bool = false;

    /// Calls `visit` with the name and the access of each operand; stops at the first error. Inputs precede outputs. See
    /// [`operands!`](crate::backend::operands::operands).
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

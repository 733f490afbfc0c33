//! CUDA devices have no kernel for batches: the op consists of other kernels.

use super::{NormalizeChannels, NormalizeChannelsGrad};
use crate::cuda::launch::Launcher;
use crate::error::{KernelError, Result};
use crate::families::RunCuda;

impl RunCuda for NormalizeChannels<'_> {
    fn run_cuda(&self, _: &Launcher, op: &'static str) -> Result<()> {
        Err(unsupported(op))
    }
}

impl RunCuda for NormalizeChannelsGrad<'_> {
    fn run_cuda(&self, _: &Launcher, op: &'static str) -> Result<()> {
        Err(unsupported(op))
    }
}

fn unsupported(op: &'static str) -> KernelError {
    let (expected, got) = ("one that the backend supports", "a fused batch normalization".to_owned());
    KernelError::BadArgument { op, argument: "kernel", expected, got }
}

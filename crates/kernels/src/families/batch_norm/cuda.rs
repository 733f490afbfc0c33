//! CUDA devices have no kernel for batches: the op consists of other kernels.

use super::{BatchNorm, BatchNormGrad};
use crate::cuda::launch::Launcher;
use crate::error::{Error, Result};
use crate::families::RunCuda;

impl RunCuda for BatchNorm<'_> {
    fn run_cuda(&self, _: &Launcher, op: &'static str) -> Result<()> {
        Err(unsupported(op))
    }
}

impl RunCuda for BatchNormGrad<'_> {
    fn run_cuda(&self, _: &Launcher, op: &'static str) -> Result<()> {
        Err(unsupported(op))
    }
}

fn unsupported(op: &'static str) -> Error {
    let (expected, got) = ("one that the backend supports", "a fused batch normalization".to_owned());
    Error::BadArgument { op, argument: "kernel", expected, got }
}

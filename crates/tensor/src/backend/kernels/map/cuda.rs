//! Elementwise functions of one argument on CUDA devices.

use super::{Map, MapGrad};
use crate::backend::cuda::{Launcher, elementwise};
use crate::backend::kernels::RunCuda;
use crate::error::Result;

impl RunCuda for Map<'_> {
    fn run_cuda(&self, device: &Launcher, op: &'static str) -> Result<()> {
        elementwise::unary(device, op, self.f, self.input, &self.out)
    }
}

impl RunCuda for MapGrad<'_> {
    fn run_cuda(&self, device: &Launcher, op: &'static str) -> Result<()> {
        elementwise::unary_grad(device, op, self.f, self.saved, self.grad, &self.out)
    }
}

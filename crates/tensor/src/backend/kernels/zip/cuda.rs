//! Elementwise functions of several arguments on CUDA devices.

use super::{Accumulate, Comparison, Select, Zip};
use crate::backend::cuda::{Launcher, elementwise};
use crate::backend::kernels::RunCuda;
use crate::error::Result;

impl RunCuda for Zip<'_> {
    fn run_cuda(&self, device: &Launcher, op: &'static str) -> Result<()> {
        elementwise::binary(device, op, self.f, self.lhs, self.rhs, &self.out)
    }
}

impl RunCuda for Accumulate<'_> {
    fn run_cuda(&self, device: &Launcher, op: &'static str) -> Result<()> {
        elementwise::accumulate(device, op, self.f, self.input, &self.acc)
    }
}

impl RunCuda for Comparison<'_> {
    fn run_cuda(&self, device: &Launcher, op: &'static str) -> Result<()> {
        elementwise::compare(device, op, self.f, self.lhs, self.rhs, &self.out)
    }
}

impl RunCuda for Select<'_> {
    fn run_cuda(&self, device: &Launcher, op: &'static str) -> Result<()> {
        elementwise::select(device, op, self.condition, self.lhs, self.rhs, &self.out)
    }
}

//! CUDA: each op as one or a few kernels, on memory that only the device follows.
//!
//! The kernels stand in `bfc-cuda`, with what they compute; here a call becomes the [`Job`](bfc_cuda::kernels::Job) that a
//! kernel takes: operands as addresses and strides, and which of its functions is wanted. Work is given to a
//! [`Compute`]: a device, or in tests the emulator, which runs the same sources on the host.
//!
//! Workspaces are those of the CPU, so that one dry run predicts both. Results do not depend on the number of blocks:
//! which elements a thread folds follows from the shape alone, and no two threads add to one place.
//!
//! Calls return before the device has done the work, except for downloads and for ops with indices that are data, which
//! are checked before anything is written, as everywhere.

mod elementwise;
mod index;
mod launch;
mod optim;
mod random;
mod reduce;
mod rows;
mod transfer;

use std::sync::Arc;

use bfc_cuda::Compute;

use crate::backend::cpu::reduce as cpu_reduce;
use crate::backend::{AdamStep, Backend, Binary, Compare, Distribution, RandomKey, Reduce, SgdStep, Unary};
use crate::dtype::{DType, Scalar};
use crate::error::Result;
use crate::shape::Shape;
use crate::storage::{View, ViewMut};

use self::launch::Launcher;

/// Computes on a CUDA device, on memory of that device.
#[derive(Debug)]
pub struct CudaBackend {
    device: Launcher,
}

impl CudaBackend {
    /// A backend that gives its work to `compute`.
    #[must_use]
    pub fn new(compute: Arc<dyn Compute>) -> Self {
        Self { device: Launcher::new(compute) }
    }
}

impl Backend for CudaBackend {
    fn name(&self) -> &'static str {
        "cuda"
    }

    fn upload(&self, op: &'static str, values: &[u8], out: ViewMut<'_>) -> Result<()> {
        transfer::upload(&self.device, op, values, &out)
    }

    fn download(&self, op: &'static str, input: View<'_>, values: &mut [u8]) -> Result<()> {
        transfer::download(&self.device, op, input, values)
    }

    fn fill(&self, op: &'static str, value: Scalar, out: ViewMut<'_>) -> Result<()> {
        elementwise::fill(&self.device, op, value, &out)
    }

    fn arange(&self, op: &'static str, start: Scalar, step: Scalar, out: ViewMut<'_>) -> Result<()> {
        elementwise::arange(&self.device, op, start, step, &out)
    }

    fn copy(&self, op: &'static str, input: View<'_>, out: ViewMut<'_>) -> Result<()> {
        elementwise::copy(&self.device, op, input, &out)
    }

    fn copy_into(
        &self,
        op: &'static str,
        input: View<'_>,
        axis: usize,
        start: usize,
        step: usize,
        out: &mut ViewMut<'_>,
    ) -> Result<()> {
        elementwise::copy_into(&self.device, op, input, axis, start, step, out)
    }

    fn unary(&self, op: &'static str, f: Unary, input: View<'_>, out: ViewMut<'_>) -> Result<()> {
        elementwise::unary(&self.device, op, f, input, &out)
    }

    fn unary_grad(
        &self,
        op: &'static str,
        f: Unary,
        saved: View<'_>,
        grad: View<'_>,
        out: ViewMut<'_>,
    ) -> Result<()> {
        elementwise::unary_grad(&self.device, op, f, saved, grad, &out)
    }

    fn binary(
        &self,
        op: &'static str,
        f: Binary,
        lhs: View<'_>,
        rhs: View<'_>,
        out: ViewMut<'_>,
    ) -> Result<()> {
        elementwise::binary(&self.device, op, f, lhs, rhs, &out)
    }

    fn accumulate(&self, op: &'static str, input: View<'_>, acc: ViewMut<'_>) -> Result<()> {
        elementwise::accumulate(&self.device, op, input, &acc)
    }

    fn compare(
        &self,
        op: &'static str,
        f: Compare,
        lhs: View<'_>,
        rhs: View<'_>,
        out: ViewMut<'_>,
    ) -> Result<()> {
        elementwise::compare(&self.device, op, f, lhs, rhs, &out)
    }

    fn select(
        &self,
        op: &'static str,
        condition: View<'_>,
        lhs: View<'_>,
        rhs: View<'_>,
        out: ViewMut<'_>,
    ) -> Result<()> {
        elementwise::select(&self.device, op, condition, lhs, rhs, &out)
    }

    fn reduce_workspace(&self, _: Reduce, shape: &Shape, axes: &[bool], dtype: DType) -> usize {
        cpu_reduce::workspace(shape, axes, dtype)
    }

    fn reduce(
        &self,
        op: &'static str,
        f: Reduce,
        input: View<'_>,
        axes: &[bool],
        workspace: ViewMut<'_>,
        out: ViewMut<'_>,
    ) -> Result<()> {
        reduce::reduce(&self.device, op, f, input, axes, &workspace, &out)
    }

    fn arg_reduce(
        &self,
        op: &'static str,
        largest: bool,
        input: View<'_>,
        axis: usize,
        out: ViewMut<'_>,
    ) -> Result<()> {
        reduce::arg_reduce(&self.device, op, largest, input, axis, &out)
    }

    fn matmul(&self, op: &'static str, lhs: View<'_>, rhs: View<'_>, out: ViewMut<'_>) -> Result<()> {
        rows::matmul(&self.device, op, lhs, rhs, &out)
    }

    fn softmax(&self, op: &'static str, log: bool, input: View<'_>, out: ViewMut<'_>) -> Result<()> {
        rows::softmax(&self.device, op, log, input, &out)
    }

    fn softmax_grad(
        &self,
        op: &'static str,
        log: bool,
        output: View<'_>,
        grad: View<'_>,
        out: ViewMut<'_>,
    ) -> Result<()> {
        rows::softmax_grad(&self.device, op, log, output, grad, &out)
    }

    fn cross_entropy(
        &self,
        op: &'static str,
        logits: View<'_>,
        targets: View<'_>,
        losses: ViewMut<'_>,
    ) -> Result<()> {
        rows::cross_entropy(&self.device, op, logits, targets, &losses)
    }

    fn cross_entropy_grad(
        &self,
        op: &'static str,
        logits: View<'_>,
        targets: View<'_>,
        grad: View<'_>,
        out: ViewMut<'_>,
    ) -> Result<()> {
        rows::cross_entropy_grad(&self.device, op, logits, targets, grad, &out)
    }

    fn gather(
        &self,
        op: &'static str,
        input: View<'_>,
        indices: View<'_>,
        axis: usize,
        out: ViewMut<'_>,
    ) -> Result<()> {
        index::gather(&self.device, op, input, indices, axis, &out)
    }

    fn scatter_add(
        &self,
        op: &'static str,
        input: View<'_>,
        indices: View<'_>,
        axis: usize,
        out: ViewMut<'_>,
    ) -> Result<()> {
        index::scatter_add(&self.device, op, input, indices, axis, &out)
    }

    fn one_hot(&self, op: &'static str, indices: View<'_>, out: ViewMut<'_>) -> Result<()> {
        index::one_hot(&self.device, op, indices, &out)
    }

    fn random(
        &self,
        op: &'static str,
        distribution: Distribution,
        key: RandomKey,
        out: ViewMut<'_>,
    ) -> Result<()> {
        random::random(&self.device, op, distribution, key, &out)
    }

    fn sgd(
        &self,
        op: &'static str,
        step: SgdStep,
        grad: View<'_>,
        momentum: Option<ViewMut<'_>>,
        param: ViewMut<'_>,
    ) -> Result<()> {
        optim::sgd(&self.device, op, step, grad, momentum.as_ref(), &param)
    }

    fn adam(
        &self,
        op: &'static str,
        step: AdamStep,
        grad: View<'_>,
        mean: ViewMut<'_>,
        variance: ViewMut<'_>,
        param: ViewMut<'_>,
    ) -> Result<()> {
        optim::adam(&self.device, op, step, grad, [&param, &mean, &variance])
    }
}

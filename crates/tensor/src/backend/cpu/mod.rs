//! The CPU: plain loops over slices, shared among the threads of a pool of the backend's own.
//!
//! One file per family of kernels. They are written once for all element types against the traits of `number`, and
//! chosen by the run-time type in `dispatch`. Strided operands go through `operands`, which finds the loops that run
//! along slices. Work is cut by its shape alone (`parallel`), so results are the same for any number of threads.

mod copy;
mod dispatch;
mod elementwise;
mod erf;
mod fold;
mod index;
mod matmul;
mod number;
mod operands;
mod optim;
mod parallel;
mod philox;
mod random;
pub(super) mod reduce;
mod softmax;
#[cfg(test)]
mod testing;
mod unary;
mod walk;

use self::parallel::Workers;
use crate::backend::{AdamStep, Backend, Binary, Compare, Distribution, RandomKey, Reduce, SgdStep, Unary};
use crate::dtype::{DType, Scalar};
use crate::error::Result;
use crate::shape::Shape;
use crate::storage::{View, ViewMut};

/// Computes on this machine's processor, on memory that the host can reach.
#[derive(Debug)]
pub struct CpuBackend {
    workers: Workers,
}

impl CpuBackend {
    /// A backend with `threads` threads. With one, all work is done on the calling thread.
    ///
    /// # Errors
    /// [`Error::BadArgument`](crate::Error::BadArgument) for no threads; [`Error::NoDevice`](crate::Error::NoDevice) if
    /// the system refuses so many.
    pub fn new(threads: usize) -> Result<Self> {
        Ok(Self { workers: Workers::new(threads)? })
    }

    /// How many threads share the work.
    #[must_use]
    pub const fn threads(&self) -> usize {
        self.workers.threads()
    }
}

impl Backend for CpuBackend {
    fn name(&self) -> &'static str {
        "cpu"
    }

    fn upload(&self, op: &'static str, values: &[u8], out: ViewMut<'_>) -> Result<()> {
        copy::upload(op, values, out)
    }

    fn download(&self, op: &'static str, input: View<'_>, values: &mut [u8]) -> Result<()> {
        copy::download(op, input, values)
    }

    fn fill(&self, op: &'static str, value: Scalar, out: ViewMut<'_>) -> Result<()> {
        copy::fill(&self.workers, op, value, out)
    }

    fn arange(&self, op: &'static str, start: Scalar, step: Scalar, out: ViewMut<'_>) -> Result<()> {
        copy::arange(&self.workers, op, start, step, out)
    }

    fn copy(&self, op: &'static str, input: View<'_>, out: ViewMut<'_>) -> Result<()> {
        copy::copy(&self.workers, op, input, out)
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
        copy::copy_into(op, input, axis, start, step, out)
    }

    fn unary(&self, op: &'static str, f: Unary, input: View<'_>, out: ViewMut<'_>) -> Result<()> {
        unary::unary(&self.workers, op, f, input, out)
    }

    fn unary_grad(
        &self,
        op: &'static str,
        f: Unary,
        saved: View<'_>,
        grad: View<'_>,
        out: ViewMut<'_>,
    ) -> Result<()> {
        unary::unary_grad(&self.workers, op, f, saved, grad, out)
    }

    fn binary(
        &self,
        op: &'static str,
        f: Binary,
        lhs: View<'_>,
        rhs: View<'_>,
        out: ViewMut<'_>,
    ) -> Result<()> {
        elementwise::binary(&self.workers, op, f, lhs, rhs, out)
    }

    fn accumulate(&self, op: &'static str, input: View<'_>, acc: ViewMut<'_>) -> Result<()> {
        elementwise::accumulate(&self.workers, op, input, acc)
    }

    fn compare(
        &self,
        op: &'static str,
        f: Compare,
        lhs: View<'_>,
        rhs: View<'_>,
        out: ViewMut<'_>,
    ) -> Result<()> {
        elementwise::compare(&self.workers, op, f, lhs, rhs, out)
    }

    fn select(
        &self,
        op: &'static str,
        condition: View<'_>,
        lhs: View<'_>,
        rhs: View<'_>,
        out: ViewMut<'_>,
    ) -> Result<()> {
        elementwise::select(&self.workers, op, condition, lhs, rhs, out)
    }

    fn reduce_workspace(&self, _: Reduce, shape: &Shape, axes: &[bool], dtype: DType) -> usize {
        reduce::workspace(shape, axes, dtype)
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
        reduce::reduce(&self.workers, op, f, input, axes, workspace, out)
    }

    fn arg_reduce(
        &self,
        op: &'static str,
        largest: bool,
        input: View<'_>,
        axis: usize,
        out: ViewMut<'_>,
    ) -> Result<()> {
        reduce::arg_reduce(&self.workers, op, largest, input, axis, out)
    }

    fn matmul(&self, op: &'static str, lhs: View<'_>, rhs: View<'_>, out: ViewMut<'_>) -> Result<()> {
        matmul::matmul(&self.workers, op, lhs, rhs, out)
    }

    fn softmax(&self, op: &'static str, log: bool, input: View<'_>, out: ViewMut<'_>) -> Result<()> {
        softmax::softmax(&self.workers, op, log, input, out)
    }

    fn softmax_grad(
        &self,
        op: &'static str,
        log: bool,
        output: View<'_>,
        grad: View<'_>,
        out: ViewMut<'_>,
    ) -> Result<()> {
        softmax::softmax_grad(&self.workers, op, log, output, grad, out)
    }

    fn cross_entropy(
        &self,
        op: &'static str,
        logits: View<'_>,
        targets: View<'_>,
        losses: ViewMut<'_>,
    ) -> Result<()> {
        softmax::cross_entropy(&self.workers, op, logits, targets, losses)
    }

    fn cross_entropy_grad(
        &self,
        op: &'static str,
        logits: View<'_>,
        targets: View<'_>,
        grad: View<'_>,
        out: ViewMut<'_>,
    ) -> Result<()> {
        softmax::cross_entropy_grad(&self.workers, op, logits, targets, grad, out)
    }

    fn gather(
        &self,
        op: &'static str,
        input: View<'_>,
        indices: View<'_>,
        axis: usize,
        out: ViewMut<'_>,
    ) -> Result<()> {
        index::gather(&self.workers, op, input, indices, axis, out)
    }

    fn scatter_add(
        &self,
        op: &'static str,
        input: View<'_>,
        indices: View<'_>,
        axis: usize,
        out: ViewMut<'_>,
    ) -> Result<()> {
        index::scatter_add(op, input, indices, axis, out)
    }

    fn one_hot(&self, op: &'static str, indices: View<'_>, out: ViewMut<'_>) -> Result<()> {
        index::one_hot(&self.workers, op, indices, out)
    }

    fn random(
        &self,
        op: &'static str,
        distribution: Distribution,
        key: RandomKey,
        out: ViewMut<'_>,
    ) -> Result<()> {
        random::random(&self.workers, op, distribution, key, out)
    }

    fn sgd(
        &self,
        op: &'static str,
        step: SgdStep,
        grad: View<'_>,
        momentum: Option<ViewMut<'_>>,
        param: ViewMut<'_>,
    ) -> Result<()> {
        optim::sgd(&self.workers, op, step, grad, momentum, param)
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
        optim::adam(&self.workers, op, step, grad, mean, variance, param)
    }
}

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

#[cfg(test)]
mod tests {
    use super::testing::Buffer;
    use super::*;
    use crate::backend::dry::DryBackend;
    use crate::error::Error;

    const DIMS: [usize; 2] = [2, 2];

    /// Every kernel, called with memory that has addresses only; with the name of each.
    fn results(backend: &dyn Backend) -> Vec<(&'static str, Result<()>)> {
        let buffer = |dtype| Buffer::unreachable(&DIMS, dtype);
        let (x, i, c) = (buffer(DType::F32), buffer(DType::I64), buffer(DType::Bool));
        let (target, row) = (Buffer::unreachable(&[2], DType::I64), Buffer::unreachable(&[2], DType::F32));
        let (mut y, mut a, mut b) = (buffer(DType::F32), buffer(DType::F32), buffer(DType::F32));
        let (mut whole, mut truth) = (buffer(DType::I64), buffer(DType::Bool));
        let mut losses = Buffer::unreachable(&[2], DType::F32);
        let mut cube = Buffer::unreachable(&[2, 2, 2], DType::F32);
        let mut none = Buffer::unreachable(&[0], DType::U8);
        let mut sum = Buffer::unreachable(&[1, 1], DType::F32);
        let mut best = Buffer::unreachable(&[2, 1], DType::I64);
        let (x, i, c, target, row) = (x.view(), i.view(), c.view(), target.view(), row.view());
        let sgd = SgdStep { lr: 0.1, momentum: 0.9, weight_decay: 0.0, nesterov: false };
        let adam = AdamStep {
            lr: 0.1,
            beta1: 0.9,
            beta2: 0.9,
            epsilon: 1e-8,
            weight_decay: 0.0,
            decoupled: false,
            step: 1,
        };
        let key = RandomKey { seed: 0, sequence: 0 };
        let coin = Distribution::Bernoulli { p: 0.5, value: 1.0 };
        let one = Scalar::Int(1);
        vec![
            ("upload", backend.upload("upload", &[0; 16], y.out())),
            ("fill", backend.fill("fill", one, y.out())),
            ("arange", backend.arange("arange", one, one, y.out())),
            ("copy", backend.copy("copy", x, y.out())),
            ("copy_into", backend.copy_into("copy_into", x, 0, 0, 1, &mut y.out())),
            ("unary", backend.unary("unary", Unary::Exp, x, y.out())),
            ("unary_grad", backend.unary_grad("unary_grad", Unary::Exp, x, x, y.out())),
            ("binary", backend.binary("binary", Binary::Add, x, x, y.out())),
            ("accumulate", backend.accumulate("accumulate", x, y.out())),
            ("compare", backend.compare("compare", Compare::Lt, x, x, truth.out())),
            ("select", backend.select("select", c, x, x, y.out())),
            ("reduce", backend.reduce("reduce", Reduce::Sum, x, &[true; 2], none.out(), sum.out())),
            ("arg_reduce", backend.arg_reduce("arg_reduce", true, x, 1, best.out())),
            ("matmul", backend.matmul("matmul", x, x, y.out())),
            ("softmax", backend.softmax("softmax", false, x, y.out())),
            ("softmax_grad", backend.softmax_grad("softmax_grad", false, x, x, y.out())),
            ("cross_entropy", backend.cross_entropy("cross_entropy", x, target, losses.out())),
            ("cross_grad", backend.cross_entropy_grad("cross_grad", x, target, row, y.out())),
            ("gather", backend.gather("gather", x, i, 0, y.out())),
            ("scatter_add", backend.scatter_add("scatter_add", x, i, 0, y.out())),
            ("one_hot", backend.one_hot("one_hot", i, cube.out())),
            ("random", backend.random("random", coin, key, whole.out())),
            ("sgd", backend.sgd("sgd", sgd, x, Some(a.out()), y.out())),
            ("adam", backend.adam("adam", adam, x, a.out(), b.out(), y.out())),
        ]
    }

    #[test]
    fn memory_that_the_host_cannot_reach_is_an_error_that_names_the_op() {
        for (name, result) in results(&CpuBackend::new(2).unwrap()) {
            assert!(matches!(result, Err(Error::NoData { op, .. }) if op == name), "{name}: {result:?}");
        }
    }

    #[test]
    fn a_dry_backend_touches_no_memory_and_has_no_values() {
        for (name, result) in results(&DryBackend::new()) {
            assert_eq!(result, Ok(()), "{name}");
        }
        let x = Buffer::unreachable(&DIMS, DType::F32);
        for backend in [&CpuBackend::new(1).unwrap() as &dyn Backend, &DryBackend::new()] {
            let refused = backend.download("to_vec", x.view(), &mut [0; 16]);
            assert!(matches!(refused, Err(Error::NoData { op: "to_vec", .. })), "{}", backend.name());
        }
    }

    #[test]
    fn a_backend_knows_how_many_threads_it_has() {
        for threads in [1, 3] {
            assert_eq!(CpuBackend::new(threads).unwrap().threads(), threads);
        }
        assert!(matches!(CpuBackend::new(0), Err(Error::BadArgument { .. })));
    }
}

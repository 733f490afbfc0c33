//! The CPU backend.

use bfc_core::{AddressSpace, MemoryKind};

use crate::backend::{Backend, Checked, sealed};
#[cfg(any(test, feature = "testing"))]
#[doc(hidden)]
pub use crate::cpu::gemm::GEMM_CALL;
use crate::cpu::parallel::Workers;
pub use crate::cpu::scalar::element_bytes;
use crate::cpu::{gemm, simd, transfer};
use crate::error::Result;
use crate::families::{self, Kernel};
use crate::rules::DeviceRules;
use crate::storage::{View, ViewMut};

/// The rows and columns of the tiles of a product that are computed in full: of a tile's rows, only those of the product.
#[doc(hidden)]
pub const TILE: [usize; 2] = [1, gemm::COLUMNS];

/// Returns the name of the instruction set that kernels use.
#[must_use]
pub fn instruction_set() -> String {
    format!("{:?}", simd::instructions())
}

/// A backend that computes on the CPU, in host memory.
#[derive(Debug)]
pub struct CpuBackend {
    workers: Workers,
}

impl CpuBackend {
    /// Creates a backend with `threads` threads, one of which is the calling thread.
    ///
    /// # Errors
    /// [`KernelError::BadArgument`](crate::error::KernelError::BadArgument) for 0 threads, or an invalid environment variable
    /// `HIGHWATER_CPU_INSTRUCTIONS`; [`KernelError::NoDevice`](crate::error::KernelError::NoDevice) if the
    /// system cannot start the threads.
    pub fn new(threads: usize) -> Result<Self> {
        simd::limit()?;
        Ok(Self { workers: Workers::new(threads)? })
    }

    /// The number of threads.
    #[must_use]
    pub const fn threads(&self) -> usize {
        self.workers.threads()
    }

    pub(super) const fn workers(&self) -> &Workers {
        &self.workers
    }
}

impl sealed::Sealed for CpuBackend {}

impl Backend for CpuBackend {
    fn name(&self) -> &'static str {
        "cpu"
    }

    fn addresses(&self, kind: MemoryKind, _: Option<AddressSpace>) -> bool {
        kind.is_host_accessible()
    }

    fn upload(&self, op: &'static str, values: &[u8], mut out: ViewMut<'_>, _: Checked) -> Result<()> {
        transfer::upload(op, values, &mut out)
    }

    fn download(&self, op: &'static str, input: View<'_>, values: &mut [u8], _: Checked) -> Result<()> {
        transfer::download(op, input, values)
    }

    fn rules(&self) -> DeviceRules {
        DeviceRules::Cpu
    }

    fn run(&self, op: &'static str, kernel: &mut Kernel<'_>, _: Checked) -> Result<()> {
        kernel.run_cpu(&self.workers, op)
    }

    fn run_together(&self, op: &'static str, kernels: &mut [Kernel<'_>], _: Checked) -> Result<()> {
        families::run_on_cpu(&self.workers, op, kernels)
    }
}

#[cfg(test)]
impl CpuBackend {
    /// Runs a kernel on the operands of a test, which have no device.
    pub(crate) fn run<'a>(&self, op: &'static str, kernel: impl Into<Kernel<'a>>) -> Result<()> {
        Backend::run(self, op, &mut kernel.into(), Checked::by_test())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::dry::DryBackend;
    use crate::error::KernelError;
    use crate::families::{Binary, Compare, Distribution, RandomKey, RecurrentCell, Reduce, Unary};
    use crate::shape::{DType, Scalar};
    use crate::testing::Buffer;
    use crate::window::{Convolution, PoolAxis, PoolReduction, Window};

    const DIMS: [usize; 2] = [2, 2];

    /// Runs every kernel on address-only memory. Returns the name and the result of each.
    fn results(backend: &dyn Backend) -> Vec<(&'static str, Result<()>)> {
        let buffer = |dtype| Buffer::unreachable(&DIMS, dtype);
        let floats = |dims: &[usize]| Buffer::unreachable(dims, DType::F32);
        let buffer_of_blocks = || Buffer::unreachable(&[2, 34], DType::U8);
        let (x, i, c) = (buffer(DType::F32), buffer(DType::I64), buffer(DType::Bool));
        let (target, row) = (Buffer::unreachable(&[2], DType::I64), Buffer::unreachable(&[2], DType::F32));
        let (mut y, mut a, mut b) = (buffer(DType::F32), buffer(DType::F32), buffer(DType::F32));
        let (mut whole, mut truth) = (buffer(DType::I64), buffer(DType::Bool));
        let (mut losses, mut other) = (floats(&[2]), floats(&[2]));
        let (plane, mut image, heads) = (floats(&[1; 4]), floats(&[1; 4]), floats(&[2; 3]));
        let mut grads = [(); 3].map(|()| floats(&[2; 3]));
        let mut cube = Buffer::unreachable(&[2, 2, 2], DType::F32);
        let mut sum = Buffer::unreachable(&[1, 1], DType::F32);
        let mut best = Buffer::unreachable(&[2, 1], DType::I64);
        let (x, i, c, target, row) = (x.view(), i.view(), c.view(), target.view(), row.view());
        let (plane, heads) = (plane.view(), heads.view());
        let key = RandomKey { seed: 0, sequence: 0 };
        let coin = Distribution::Bernoulli { p: 0.5, value: 1.0 };
        let one = Scalar::Int(1);
        let mut done = Vec::new();
        let mut run = |mut kernel: Kernel<'_>| {
            let name = kernel.name();
            done.push((name, backend.run(name, &mut kernel, Checked::by_test())))
        };
        run(families::Fill { value: one, out: y.out() }.into());
        run(families::Arange { start: one, step: one, out: y.out() }.into());
        run(families::Copy { input: x, out: y.out() }.into());
        run(families::CopyInto { input: x, axis: 0, start: 0, step: 1, out: y.out() }.into());
        run(families::Flip { input: x, axes: &[true; 2], out: y.out() }.into());
        run(families::Map { f: Unary::Exp, input: x, out: y.out() }.into());
        run(families::MapGrad { f: Unary::Exp, saved: x, grad: Some(x), out: y.out() }.into());
        run(families::Zip { f: Binary::Add, lhs: x, rhs: x, out: y.out() }.into());
        run(families::Accumulate { f: Binary::Add, input: x, acc: y.out() }.into());
        run(families::Comparison { f: Compare::Lt, lhs: x, rhs: x, out: truth.out() }.into());
        run(families::Select { condition: c, lhs: x, rhs: x, out: y.out() }.into());
        let (axes, workspace) = (&[true; 2], None);
        let (f, divisor) = (Reduce::Sum, 1.0);
        run(families::Fold { f, divisor, input: x, axes, workspace, out: sum.out() }.into());
        run(families::ArgReduce { largest: true, input: x, axis: 1, out: best.out() }.into());
        let workspace = None;
        run(families::ArgSort { descending: false, first: 4, input: x, workspace, out: whole.out() }.into());
        run(families::Scan { f: families::ScanFunction::Sum, axis: 0, reverse: false, out: y.out() }.into());
        let (bias, lhs, rhs, activation) = (None, x, x, None);
        run(families::MatMul { bias, lhs, rhs, activation, workspace: None, out: y.out() }.into());
        let (accumulate, workspace, out) = (true, None, y.out());
        run(families::MatMulSum { accumulate, lhs, rhs, workspace, out }.into());
        run(families::SoftmaxRows { log: false, input: x, out: y.out() }.into());
        run(families::SoftmaxRowsGrad { log: false, output: x, grad: x, out: y.out() }.into());
        run(families::CrossEntropy { logits: x, targets: target, losses: losses.out() }.into());
        run(families::CrossEntropyInPlace {
            smoothing: 0.0,
            targets: target,
            factors: row,
            losses: losses.out(),
            logits: y.out(),
        }
        .into());
        run(families::CrossEntropyGrad { logits: x, targets: target, grad: row, out: y.out() }.into());
        run(families::Gather { input: x, indices: i, axis: 0, out: y.out() }.into());
        let workspace = None;
        run(families::ScatterAdd { input: x, indices: i, axis: 0, workspace, out: y.out() }.into());
        run(families::OneHot { indices: i, out: cube.out() }.into());
        let (format, wide, bytes) = (families::BlockFormat::Q8_0, floats(&[2, 32]), buffer_of_blocks());
        let (mut product, mut rows, mut blocks) = (floats(&[2, 2]), floats(&[2, 32]), buffer_of_blocks());
        run(families::MatMulQuantized {
            format,
            transposed: true,
            bias: None,
            lhs: wide.view(),
            blocks: bytes.view(),
            workspace: None,
            out: product.out(),
        }
        .into());
        run(families::DequantizeRows { format, blocks: bytes.view(), indices: None, out: rows.out() }.into());
        run(families::QuantizeRows { format, input: wide.view(), out: blocks.out() }.into());
        run(families::Random { distribution: coin, key, out: whole.out() }.into());
        run(families::Scale { factor: 2.0, values: y.out() }.into());
        run(families::Clip { low: -1.0, high: 1.0, values: y.out() }.into());
        for rule in families::OptimizerRule::all() {
            let mut states = [Some(a.out()), Some(b.out()), None];
            let states = rule
                .states()
                .map(|state| state.initial.and_then(|_| states.iter_mut().find_map(Option::take)));
            run(families::OptimizerStep { rule, number: 1, grad: x, states, param: y.out() }.into());
        }
        let (centered, epsilon, weight, bias) = (true, 1e-5, Some(x), Some(x));
        let (out, statistics) = (y.out(), a.out());
        run(families::NormalizeRows { centered, epsilon, input: x, weight, bias, out, statistics }.into());
        let of = families::Normalized { centered, input: x, weight, statistics: x };
        run(families::NormalizeRowsGrad { of, grad: x, out: y.out() }.into());
        let (workspace, bias) = (None, None);
        let weight = losses.out();
        run(families::NormalizeRowsSums { of, grad: x, places: 1, workspace, weight, bias }.into());
        let (out, statistics, variance) = (y.out(), a.out(), Some(losses.out()));
        run(families::NormalizeChannels {
            epsilon,
            rectified: true,
            input: x,
            weight: row,
            bias: row,
            fixed_mean: None,
            fixed_variance: None,
            residual: Some(x),
            workspace: None,
            out,
            statistics,
            variance,
        }
        .into());
        let of = families::Normalized { weight: Some(row), ..of };
        let (weight, bias) = (losses.out(), other.out());
        run(families::NormalizeChannelsGrad {
            of_batch: true,
            of,
            grad: x,
            output: None,
            workspace: None,
            out: Some(y.out()),
            residual: None,
            weight,
            bias,
        }
        .into());
        let workspace = None;
        let conv = Convolution { windows: [Window::new(1); 2], groups: 1 };
        let out = image.out();
        run(families::Conv2d { conv, input: plane, weight: plane, workspace, out }.into());
        let (workspace, out) = (None, image.out());
        run(families::Conv2dInputGrad { conv, weight: plane, grad: plane, workspace, out }.into());
        let (workspace, out) = (None, image.out());
        run(families::Conv2dWeightGrad { conv, input: plane, grad: plane, workspace, out }.into());
        let (pool, axes) = (PoolReduction::Max, [PoolAxis::Adaptive { outputs: 1 }; 2]);
        run(families::Pool2d { pool, axes, input: plane, out: image.out() }.into());
        let (input, grad, out) = (Some(plane), plane, image.out());
        run(families::Pool2dGrad { pool, axes, input, grad, out }.into());
        let [query, key, value] = [heads; 3];
        let of = families::AttentionInputs { scale: 1.0, causal: false, query, key, value, mask: None };
        let (workspace, out, log_sums) = (None, cube.out(), y.out());
        run(families::Attention { of, workspace, out, log_sums }.into());
        let [query_grad, key_grad, value_grad] = grads.each_mut().map(Buffer::out);
        let (output, log_sums, grad, workspace) = (heads, x, heads, None);
        run(families::AttentionGrad {
            of,
            output,
            log_sums,
            grad,
            workspace,
            query_grad,
            key_grad,
            value_grad,
        }
        .into());
        let of = families::Recurrence {
            cell: RecurrentCell::Tanh,
            reverse: false,
            len: 1,
            weight: x,
            initial_state: None,
            initial_cell: None,
        };
        let (workspace, gates, extra, out) = (None, y.out(), None, a.out());
        run(families::Recurrent { of, bias: row, workspace, gates, extra, out }.into());
        run(families::RecurrentGrad {
            of,
            states: x,
            grad: x,
            cell_grad: None,
            workspace: None,
            gates: y.out(),
            extra: None,
            initial_state_grad: None,
            initial_cell_grad: None,
        }
        .into());
        let missing = Kernel::NAMES.iter().filter(|name| done.iter().all(|(ran, _)| ran != *name));
        assert_eq!(
            missing.collect::<Vec<_>>(),
            <[&&str; 0]>::default(),
            "kernels without a case in this test"
        );
        done.push(("upload", backend.upload("upload", &[0; 16], y.out(), Checked::by_test())));
        done
    }

    #[test]
    fn unreachable_memory_is_an_error_that_names_the_op() {
        for (name, result) in results(&CpuBackend::new(2).unwrap()) {
            assert!(
                matches!(result, Err(KernelError::NoData { op, .. }) if op == name),
                "{name}: {result:?}"
            );
        }
    }

    #[test]
    fn a_dry_backend_accesses_no_memory_and_has_no_values() {
        for (name, result) in results(&DryBackend::new()) {
            assert_eq!(result, Ok(()), "{name}");
        }
        let x = Buffer::unreachable(&DIMS, DType::F32);
        for backend in [&CpuBackend::new(1).unwrap() as &dyn Backend, &DryBackend::new()] {
            let refused = backend.download("to_vec", x.view(), &mut [0; 16], Checked::by_test());
            assert!(matches!(refused, Err(KernelError::NoData { op: "to_vec", .. })), "{}", backend.name());
        }
    }

    #[test]
    fn a_backend_has_the_requested_number_of_threads() {
        for threads in [1, 3] {
            assert_eq!(CpuBackend::new(threads).unwrap().threads(), threads);
        }
        assert!(matches!(CpuBackend::new(0), Err(KernelError::BadArgument { .. })));
    }
}

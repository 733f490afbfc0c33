//! The CPU backend: plain loops over slices, shared among the threads of the backend's own pool.
//!
//! There is one file per family of kernels. Kernels are generic over the traits of `number`; `dispatch` selects the element
//! type at run time. `operands` converts views of any layout to slices, so that elementwise functions process only slices.
//! `parallel` splits work by shape, so that results do not depend on the number of threads.

mod activation;
mod angle;
mod attention;
mod batch_norm;
mod clip;
mod conv;
mod convert;
mod copy;
mod depthwise;
mod dispatch;
mod elementwise;
mod erf;
mod exp;
mod fold;
mod gemm;
mod halves;
mod index;
mod loop_nest;
mod matmul;
mod norm;
mod number;
mod operands;
mod optim;
mod parallel;
mod philox;
mod pool;
mod pool2x2;
mod power;
mod random;
mod recurrent;
pub(super) mod reduce;
mod scalar;
mod scan;
mod short;
mod simd;
mod sliding;
mod softmax;
mod sort;
mod sums;
#[cfg(test)]
mod testing;
mod unary;
mod winograd;

#[cfg(test)]
pub(crate) use self::gemm::GEMM_CALL;
pub(crate) use self::scalar::element_bytes;

use bfc_core::{AddressSpace, MemoryKind};

use self::parallel::Workers;
use crate::backend::{Backend, Checked, DeviceRules, Kernel, Workspace, rules, sealed};
use crate::error::Result;
use crate::storage::{View, ViewMut};

/// The rows and columns of the tiles of a product that are computed in full: of a tile's rows, only those of the product.
pub(crate) const TILE: [usize; 2] = [1, gemm::COLUMNS];

/// Returns the name of the instruction set that kernels use.
pub(crate) fn instruction_set() -> String {
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
    /// [`Error::BadArgument`](crate::Error::BadArgument) for 0 threads, or an invalid environment variable
    /// `HIGHWATER_CPU_INSTRUCTIONS`; [`Error::NoDevice`](crate::Error::NoDevice) if the
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
}

/// The size of a kernel's workspace on the CPU, in bytes.
pub(super) fn workspace(of: Workspace<'_>) -> usize {
    match of {
        Workspace::Reduce { shape, axes, dtype } => reduce::workspace(shape, axes, dtype),
        Workspace::ArgSort { shape } => sort::workspace(shape),
        Workspace::MatMul { lhs, rhs, dtype, precision } => matmul::workspace(lhs, rhs, dtype, precision),
        Workspace::Conv2d { conv, input, out, dtype, precision } => {
            conv::workspace(conv, [input.dims(), out.dims()], (dtype, precision))
        }
        Workspace::Conv2dInputGrad { conv, input, out, dtype, precision } => {
            conv::input_grad_workspace(conv, [input.dims(), out.dims()], (dtype, precision))
        }
        Workspace::Conv2dWeightGrad { conv, input, out, dtype, precision } => {
            conv::weight_grad_workspace(conv, [input.dims(), out.dims()], (dtype, precision))
        }
        Workspace::LayerNormSums { sizes, sums, dtype } => norm::workspace(sizes, sums, dtype),
        Workspace::Attention { query, value, dtype } => {
            attention::workspace(query.dims(), value.dims(), dtype)
        }
        Workspace::Recurrent { cell, sizes, dtype } => recurrent::workspace(cell, sizes, dtype),
        // One thread adds the elements directly to the output.
        Workspace::ScatterAdd { .. } => 0,
    }
}

/// Whether a kernel accepts 16-bit floats: products that are packed.
pub(super) fn multiplies_half(kernel: &Kernel<'_>) -> bool {
    match kernel {
        Kernel::MatMul { activation: None, workspace: Some(_), .. } => true,
        Kernel::Conv2d { conv, input: large, out: small, workspace: Some(_), .. } => {
            conv::multiplies_half(conv, [large.layout(), small.layout()])
        }
        Kernel::Conv2dInputGrad { conv, out: large, grad: small, workspace: Some(_), .. } => {
            conv::multiplies_half(conv, [large.layout(), small.layout()])
        }
        Kernel::Conv2dWeightGrad { conv, input: large, grad: small, workspace: Some(_), .. } => {
            conv::multiplies_half(conv, [large.layout(), small.layout()])
        }
        _ => false,
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
        copy::upload(op, values, &mut out)
    }

    fn download(&self, op: &'static str, input: View<'_>, values: &mut [u8], _: Checked) -> Result<()> {
        copy::download(op, input, values)
    }

    fn workspace(&self, of: Workspace<'_>) -> usize {
        workspace(of)
    }

    fn chunk_elements(&self) -> usize {
        rules::chunk_elements(DeviceRules::Cpu)
    }

    fn multiplies_half(&self, kernel: &Kernel<'_>) -> bool {
        multiplies_half(kernel)
    }

    fn fuses_batch_norm(&self) -> bool {
        rules::fuses_batch_norm(DeviceRules::Cpu)
    }

    // Long kernels are `inline(never)`: otherwise this function would take very long to compile.
    fn run(&self, op: &'static str, kernel: &mut Kernel<'_>, _: Checked) -> Result<()> {
        let workers = &self.workers;
        match *kernel {
            Kernel::Fill { value, ref mut out } => copy::fill(workers, op, value, out),
            Kernel::Arange { start, step, ref mut out } => copy::arange(workers, op, start, step, out),
            Kernel::Copy { input, ref mut out } => copy::copy(workers, op, input, out),
            Kernel::Flip { input, axes, ref mut out } => copy::flip(workers, op, input, axes, out),
            Kernel::CopyInto { input, axis, start, step, ref mut out } => {
                copy::copy_into(op, input, axis, start, step, out)
            }
            Kernel::Unary { f, input, ref mut out } => unary::unary(workers, op, f, input, out),
            Kernel::UnaryGrad { f, saved, grad, ref mut out } => {
                unary::unary_grad(workers, op, f, saved, grad, out)
            }
            Kernel::Binary { f, lhs, rhs, ref mut out } => elementwise::binary(workers, op, f, lhs, rhs, out),
            Kernel::Accumulate { f, input, ref mut acc } => {
                elementwise::accumulate(workers, op, f, input, acc)
            }
            Kernel::Compare { f, lhs, rhs, ref mut out } => {
                elementwise::compare(workers, op, f, lhs, rhs, out)
            }
            Kernel::Select { condition, lhs, rhs, ref mut out } => {
                elementwise::select(workers, op, condition, lhs, rhs, out)
            }
            Kernel::Reduce { f, divisor, input, axes, ref mut workspace, ref mut out } => {
                reduce::reduce(workers, op, input, axes, (f, divisor), workspace, out)
            }
            Kernel::ArgReduce { largest, input, axis, ref mut out } => {
                reduce::arg_reduce(workers, op, largest, input, axis, out)
            }
            Kernel::ArgSort { descending, first, input, ref mut out, .. } => {
                sort::arg_sort(workers, op, (descending, first), input, out)
            }
            Kernel::RunningSum { axis, reverse, ref mut out } => {
                scan::running_sum(workers, op, axis, reverse, out)
            }
            Kernel::MatMul {
                precision,
                bias,
                lhs,
                rhs,
                ref mut activation,
                ref mut workspace,
                ref mut out,
            } => {
                let factors = [lhs, rhs];
                match activation {
                    None => match matmul::matmul_small(op, precision, bias, factors, out) {
                        Some(result) => result,
                        None => matmul::matmul(workers, op, precision, bias, factors, workspace, out),
                    },
                    Some(activated) => {
                        activation::matmul(workers, (op, precision), bias, factors, activated, workspace, out)
                    }
                }
            }
            Kernel::Softmax { log, input, ref mut out } => softmax::softmax(workers, op, log, input, out),
            Kernel::SoftmaxGrad { log, output, grad, ref mut out } => {
                softmax::softmax_grad(workers, op, log, output, grad, out)
            }
            Kernel::LayerNorm { centered, epsilon, input, affine, ref mut out, ref mut statistics } => {
                norm::layer_norm(workers, op, (centered, epsilon), input, affine, [out, statistics])
            }
            Kernel::LayerNormGrad { ref of, grad, ref mut out } => {
                norm::layer_norm_grad(workers, op, of, grad, out)
            }
            Kernel::LayerNormSums {
                ref of,
                grad,
                places,
                ref mut workspace,
                ref mut weight,
                ref mut bias,
            } => norm::layer_norm_sums(workers, op, of, (grad, places), workspace, (weight, bias)),
            Kernel::BatchNorm {
                epsilon,
                input,
                affine,
                ref mut out,
                ref mut statistics,
                ref mut variance,
            } => batch_norm::forward(workers, op, epsilon, (input, affine), [out, statistics, variance]),
            Kernel::BatchNormGrad { ref of, grad, ref mut out, ref mut weight, ref mut bias } => {
                batch_norm::backward(workers, op, (of, grad), out, [weight, bias])
            }
            Kernel::Conv2d { precision, conv, input, weight, ref mut workspace, ref mut out } => {
                conv::forward(workers, (op, precision), &conv, [input, weight], workspace, out)
            }
            Kernel::Conv2dInputGrad { precision, conv, weight, grad, ref mut workspace, ref mut out } => {
                conv::input_grad(workers, (op, precision), &conv, [weight, grad], workspace, out)
            }
            Kernel::Conv2dWeightGrad { precision, conv, input, grad, ref mut workspace, ref mut out } => {
                conv::weight_grad(workers, (op, precision), &conv, [input, grad], workspace, out)
            }
            Kernel::Pool2d { pool, axes, input, ref mut out } => {
                pool::forward(workers, op, (pool, axes), input, out)
            }
            Kernel::Pool2dGrad { pool, axes, input, grad, ref mut out } => {
                pool::backward(workers, op, (pool, axes), (input, grad), out)
            }
            Kernel::Attention { ref of, ref mut workspace, ref mut out, ref mut log_sums } => {
                attention::forward(workers, op, of, workspace, [out, log_sums])
            }
            Kernel::AttentionGrad {
                ref of,
                ref results,
                grad,
                ref mut workspace,
                out: [ref mut q, ref mut k, ref mut v],
            } => attention::backward(workers, op, of, (results, grad), workspace, [q, k, v]),
            Kernel::Recurrent {
                ref of,
                bias,
                ref mut workspace,
                ref mut gates,
                ref mut extra,
                ref mut out,
            } => recurrent::forward(workers, op, of, bias, workspace, (gates, extra, out)),
            Kernel::RecurrentGrad {
                ref of,
                states,
                grad,
                cell_grad,
                ref mut workspace,
                ref mut gates,
                ref mut extra,
                ref mut initial_grads,
            } => {
                let inputs = (states, grad, cell_grad);
                recurrent::backward(workers, op, of, inputs, workspace, (gates, extra, initial_grads))
            }
            Kernel::CrossEntropy { logits, targets, ref mut losses } => {
                softmax::cross_entropy(workers, op, logits, targets, losses)
            }
            Kernel::CrossEntropyGrad { logits, targets, grad, ref mut out } => {
                softmax::cross_entropy_grad(workers, op, logits, targets, grad, out)
            }
            Kernel::Gather { input, indices, axis, ref mut out } => {
                index::gather(workers, op, input, indices, axis, out)
            }
            Kernel::ScatterAdd { input, indices, axis, ref mut out, .. } => {
                index::scatter_add(op, input, indices, axis, out)
            }
            Kernel::OneHot { indices, ref mut out } => index::one_hot(workers, op, indices, out),
            Kernel::Random { distribution, key, ref mut out } => {
                random::random(workers, op, distribution, key, out)
            }
            Kernel::Scale { factor, ref mut values } => clip::scale(workers, op, factor, values),
            Kernel::Clip { low, high, ref mut values } => clip::clip(workers, op, [low, high], values),
            Kernel::Sgd { step, grad, ref mut momentum, ref mut param } => {
                optim::sgd(workers, op, step, grad, momentum, param)
            }
            Kernel::Adam {
                step,
                grad,
                ref mut mean,
                ref mut variance,
                ref mut max_variance,
                ref mut param,
            } => optim::adam(workers, op, step, grad, [mean, variance, param], max_variance),
            Kernel::RmsProp { step, grad, ref mut variance, ref mut momentum, ref mut param } => {
                optim::rms_prop(workers, op, step, grad, [variance, param], momentum)
            }
            Kernel::Lion { step, grad, ref mut mean, ref mut param } => {
                optim::lion(workers, op, step, grad, [mean, param])
            }
        }
    }
}

#[cfg(test)]
impl CpuBackend {
    /// Runs a kernel on the operands of a test, which have no device.
    pub(in crate::backend) fn run(&self, op: &'static str, mut kernel: Kernel<'_>) -> Result<()> {
        Backend::run(self, op, &mut kernel, Checked::by_test())
    }
}

#[cfg(test)]
mod tests {
    use super::testing::Buffer;
    use super::*;
    use crate::backend::dry::DryBackend;
    use crate::backend::{
        AdamStep, Binary, Compare, Distribution, LionStep, Precision, RandomKey, Reduce, RmsPropStep,
        SgdStep, Unary,
    };
    use crate::error::Error;
    use crate::shape::{DType, Scalar};

    const DIMS: [usize; 2] = [2, 2];

    /// Runs every kernel on address-only memory. Returns the name and the result of each.
    fn results(backend: &dyn Backend) -> Vec<(&'static str, Result<()>)> {
        let buffer = |dtype| Buffer::unreachable(&DIMS, dtype);
        let (x, i, c) = (buffer(DType::F32), buffer(DType::I64), buffer(DType::Bool));
        let (target, row) = (Buffer::unreachable(&[2], DType::I64), Buffer::unreachable(&[2], DType::F32));
        let (mut y, mut a, mut b) = (buffer(DType::F32), buffer(DType::F32), buffer(DType::F32));
        let (mut whole, mut truth) = (buffer(DType::I64), buffer(DType::Bool));
        let mut losses = Buffer::unreachable(&[2], DType::F32);
        let mut cube = Buffer::unreachable(&[2, 2, 2], DType::F32);
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
            amsgrad: false,
            step: 1,
        };
        let key = RandomKey { seed: 0, sequence: 0 };
        let coin = Distribution::Bernoulli { p: 0.5, value: 1.0 };
        let one = Scalar::Int(1);
        let mut done = Vec::new();
        let mut run = |name, mut kernel: Kernel<'_>| {
            done.push((name, backend.run(name, &mut kernel, Checked::by_test())))
        };
        run("fill", Kernel::Fill { value: one, out: y.out() });
        run("arange", Kernel::Arange { start: one, step: one, out: y.out() });
        run("copy", Kernel::Copy { input: x, out: y.out() });
        run("copy_into", Kernel::CopyInto { input: x, axis: 0, start: 0, step: 1, out: y.out() });
        run("flip", Kernel::Flip { input: x, axes: &[true; 2], out: y.out() });
        run("unary", Kernel::Unary { f: Unary::Exp, input: x, out: y.out() });
        run("unary_grad", Kernel::UnaryGrad { f: Unary::Exp, saved: x, grad: Some(x), out: y.out() });
        run("binary", Kernel::Binary { f: Binary::Add, lhs: x, rhs: x, out: y.out() });
        run("accumulate", Kernel::Accumulate { f: Binary::Add, input: x, acc: y.out() });
        run("compare", Kernel::Compare { f: Compare::Lt, lhs: x, rhs: x, out: truth.out() });
        run("select", Kernel::Select { condition: c, lhs: x, rhs: x, out: y.out() });
        let (axes, workspace) = (&[true; 2], None);
        let (f, divisor) = (Reduce::Sum, 1.0);
        run("reduce", Kernel::Reduce { f, divisor, input: x, axes, workspace, out: sum.out() });
        run("arg_reduce", Kernel::ArgReduce { largest: true, input: x, axis: 1, out: best.out() });
        let workspace = None;
        run(
            "arg_sort",
            Kernel::ArgSort { descending: false, first: 4, input: x, workspace, out: whole.out() },
        );
        run("running_sum", Kernel::RunningSum { axis: 0, reverse: false, out: y.out() });
        let (bias, lhs, rhs, activation) = (None, x, x, None);
        run(
            "matmul",
            Kernel::MatMul {
                precision: Precision::Full,
                bias,
                lhs,
                rhs,
                activation,
                workspace: None,
                out: y.out(),
            },
        );
        run("softmax", Kernel::Softmax { log: false, input: x, out: y.out() });
        run("softmax_grad", Kernel::SoftmaxGrad { log: false, output: x, grad: x, out: y.out() });
        run("cross_entropy", Kernel::CrossEntropy { logits: x, targets: target, losses: losses.out() });
        run("cross_grad", Kernel::CrossEntropyGrad { logits: x, targets: target, grad: row, out: y.out() });
        run("gather", Kernel::Gather { input: x, indices: i, axis: 0, out: y.out() });
        let workspace = None;
        run("scatter_add", Kernel::ScatterAdd { input: x, indices: i, axis: 0, workspace, out: y.out() });
        run("one_hot", Kernel::OneHot { indices: i, out: cube.out() });
        run("random", Kernel::Random { distribution: coin, key, out: whole.out() });
        run("scale", Kernel::Scale { factor: 2.0, values: y.out() });
        run("clip", Kernel::Clip { low: -1.0, high: 1.0, values: y.out() });
        run("sgd", Kernel::Sgd { step: sgd, grad: x, momentum: Some(a.out()), param: y.out() });
        let (mean, variance, param) = (a.out(), b.out(), y.out());
        run("adam", Kernel::Adam { step: adam, grad: x, mean, variance, max_variance: None, param });
        let rms = RmsPropStep { lr: 0.1, smoothing: 0.9, epsilon: 1e-8, momentum: 0.0, weight_decay: 0.0 };
        let (variance, momentum) = (a.out(), None);
        run("rms_prop", Kernel::RmsProp { step: rms, grad: x, variance, momentum, param: y.out() });
        let lion = LionStep { lr: 0.1, beta1: 0.9, beta2: 0.99, weight_decay: 0.0 };
        run("lion", Kernel::Lion { step: lion, grad: x, mean: a.out(), param: y.out() });
        done.push(("upload", backend.upload("upload", &[0; 16], y.out(), Checked::by_test())));
        done
    }

    #[test]
    fn unreachable_memory_is_an_error_that_names_the_op() {
        for (name, result) in results(&CpuBackend::new(2).unwrap()) {
            assert!(matches!(result, Err(Error::NoData { op, .. }) if op == name), "{name}: {result:?}");
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
            assert!(matches!(refused, Err(Error::NoData { op: "to_vec", .. })), "{}", backend.name());
        }
    }

    #[test]
    fn a_backend_has_the_requested_number_of_threads() {
        for threads in [1, 3] {
            assert_eq!(CpuBackend::new(threads).unwrap().threads(), threads);
        }
        assert!(matches!(CpuBackend::new(0), Err(Error::BadArgument { .. })));
    }
}

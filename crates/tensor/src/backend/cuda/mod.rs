//! The CUDA backend: launches one or a few GPU kernels per op.
//!
//! `bfc-cuda` contains the kernels. This module converts each call to the [`Job`](bfc_cuda::kernels::Job) of a kernel:
//! addresses, strides, sizes and the name of the function. A [`Compute`] runs it: a device, or in tests the emulator,
//! which runs the same sources on the host.
//!
//! Workspaces have the sizes of a dry run that imitates a GPU. Results do not depend on the number of blocks: the shape
//! decides which elements a thread reduces, and no two threads add to one element.
//!
//! Calls return before the device has finished. Downloads wait, and so do ops with indices, which check the indices first.
//! Within a [step](crate::StepGraph) the device may delay kernels and launch them as a graph.

mod attention;
mod elementwise;
mod factors;
mod index;
mod launch;
mod matmul;
mod optim;
mod random;
mod recurrent;
mod reduce;
mod rows;
mod scan;
mod sort;
mod step_graphs;
mod transfer;
mod windows;

use std::sync::Arc;

use bfc_core::{AddressSpace, MemoryKind, Stream};
use bfc_cuda::Compute;

use crate::backend::{Backend, Checked, DeviceRules, Kernel, StepGraphs, Workspace, rules, sealed};
use crate::error::{Error, Result};
use crate::storage::{View, ViewMut};

use self::factors::Factors;
use self::launch::Launcher;
use self::matmul::Epilogue;

/// The rules of workspaces, which are the same for all GPUs.
const RULES: DeviceRules = DeviceRules::Cuda { compute_capability: (0, 0) };

/// A backend that computes on a CUDA device, in memory of that device.
#[derive(Debug)]
pub struct CudaBackend {
    device: Launcher,
}

impl CudaBackend {
    /// Creates a backend that launches its kernels on `compute`.
    #[must_use]
    pub fn new(compute: Arc<dyn Compute>) -> Self {
        Self { device: Launcher::new(compute) }
    }
}

impl sealed::Sealed for CudaBackend {}

impl Backend for CudaBackend {
    fn name(&self) -> &'static str {
        "cuda"
    }

    fn addresses(&self, kind: MemoryKind, space: Option<AddressSpace>) -> bool {
        kind == MemoryKind::Device && space.is_some() && space == self.device.compute().address_space()
    }

    fn is_gpu(&self) -> bool {
        true
    }

    fn stream(&self) -> Option<Arc<Stream>> {
        self.device.compute().stream()
    }

    fn remark(&self) -> Option<String> {
        self.device.compute().performance_note()
    }

    fn upload(&self, op: &'static str, values: &[u8], out: ViewMut<'_>, _: Checked) -> Result<()> {
        transfer::upload(&self.device, op, values, &out)
    }

    fn download(&self, op: &'static str, input: View<'_>, values: &mut [u8], _: Checked) -> Result<()> {
        transfer::download(&self.device, op, input, values)
    }

    fn workspace(&self, of: Workspace<'_>) -> usize {
        rules::workspace(RULES, of)
    }

    fn chunk_elements(&self) -> usize {
        rules::chunk_elements(RULES)
    }

    fn supports_half(&self) -> bool {
        rules::supports_half(RULES)
    }

    fn step_graphs(&self) -> Option<&dyn StepGraphs> {
        Some(&self.device)
    }

    fn run(&self, op: &'static str, kernel: &mut Kernel<'_>, _: Checked) -> Result<()> {
        let device = &self.device;
        match *kernel {
            Kernel::Fill { value, ref out } => elementwise::fill(device, op, value, out),
            Kernel::Arange { start, step, ref out } => elementwise::arange(device, op, start, step, out),
            Kernel::Copy { input, ref out } => elementwise::copy(device, op, input, out),
            Kernel::Flip { input, axes, ref out } => elementwise::flip(device, op, input, axes, out),
            Kernel::CopyInto { input, axis, start, step, ref out } => {
                elementwise::copy_into(device, op, input, axis, start, step, out)
            }
            Kernel::Unary { f, input, ref out } => elementwise::unary(device, op, f, input, out),
            Kernel::UnaryGrad { f, saved, grad, ref out } => {
                elementwise::unary_grad(device, op, f, saved, grad, out)
            }
            Kernel::Binary { f, lhs, rhs, ref out } => elementwise::binary(device, op, f, lhs, rhs, out),
            Kernel::Accumulate { f, input, ref acc } => elementwise::accumulate(device, op, f, input, acc),
            Kernel::Compare { f, lhs, rhs, ref out } => elementwise::compare(device, op, f, lhs, rhs, out),
            Kernel::Select { condition, lhs, rhs, ref out } => {
                elementwise::select(device, op, condition, lhs, rhs, out)
            }
            Kernel::Reduce { f, divisor, input, axes, ref workspace, ref out } => {
                reduce::reduce(device, op, (f, divisor), input, axes, workspace.as_ref(), out)
            }
            Kernel::ArgReduce { largest, input, axis, ref out } => {
                reduce::arg_reduce(device, op, largest, input, axis, out)
            }
            Kernel::ArgSort { descending, input, ref workspace, ref out, .. } => {
                sort::arg_sort(device, op, descending, input, workspace.as_ref(), out)
            }
            Kernel::RunningSum { axis, reverse, ref out } => {
                scan::running_sum(device, op, axis, reverse, out)
            }
            Kernel::MatMul { precision, bias, lhs, rhs, ref activation, ref workspace, ref out } => {
                let epilogue = Epilogue { bias, activation: activation.as_ref() };
                matmul::matmul(device, op, epilogue, (precision, [lhs, rhs]), workspace.as_ref(), out)
            }
            Kernel::Softmax { log, input, ref out } => rows::softmax(device, op, log, input, out),
            Kernel::SoftmaxGrad { log, output, grad, ref out } => {
                rows::softmax_grad(device, op, log, output, grad, out)
            }
            Kernel::LayerNorm { centered, epsilon, input, affine, ref out, ref statistics } => {
                let outputs = [out, statistics];
                rows::layer_norm(device, op, (centered, epsilon), input, affine, outputs)
            }
            Kernel::LayerNormGrad { ref of, grad, ref out } => {
                rows::layer_norm_grad(device, op, of, grad, out)
            }
            Kernel::LayerNormSums { ref of, grad, places, ref workspace, ref weight, ref bias } => {
                let outs = (weight, bias.as_ref());
                rows::layer_norm_sums(device, op, of, (grad, places), workspace.as_ref(), outs)
            }
            // The op consists of other kernels on a GPU.
            Kernel::BatchNorm { .. } | Kernel::BatchNormGrad { .. } => Err(Error::BadArgument {
                op,
                argument: "kernel",
                expected: "one that the backend supports",
                got: "a fused batch normalization".to_owned(),
            }),
            Kernel::Conv2d { precision, conv, input, weight, ref workspace, ref out } => {
                let factors = Factors::new(device, op, precision, [input, weight], workspace.as_ref())?;
                windows::conv2d(device, op, &conv, &factors, out)
            }
            Kernel::Conv2dInputGrad { precision, conv, weight, grad, ref workspace, ref out } => {
                let factors = Factors::new(device, op, precision, [weight, grad], workspace.as_ref())?;
                windows::conv2d_input_grad(device, op, &conv, &factors, out)
            }
            Kernel::Conv2dWeightGrad { precision, conv, input, grad, ref workspace, ref out } => {
                let factors = Factors::new(device, op, precision, [input, grad], workspace.as_ref())?;
                windows::conv2d_weight_grad(device, op, &conv, &factors, out)
            }
            Kernel::Pool2d { pool, axes, input, ref out } => {
                windows::pool2d(device, op, (pool, axes), input, out)
            }
            Kernel::Pool2dGrad { pool, axes, input, grad, ref out } => {
                windows::pool2d_grad(device, op, (pool, axes), (input, grad), out)
            }
            Kernel::Attention { ref of, ref out, ref log_sums, .. } => {
                attention::forward(device, op, of, [out, log_sums])
            }
            Kernel::AttentionGrad { ref of, ref results, grad, ref out, .. } => {
                attention::backward(device, op, of, (results, grad), out)
            }
            Kernel::Recurrent { ref of, bias, ref workspace, ref gates, ref extra, ref out } => {
                let outputs = (gates, extra.as_ref(), out);
                recurrent::forward(device, op, of, bias, workspace.as_ref(), outputs)
            }
            Kernel::RecurrentGrad {
                ref of,
                states,
                grad,
                cell_grad,
                ref workspace,
                ref gates,
                ref extra,
                ref initial_grads,
            } => {
                let (inputs, outputs) = ((states, grad, cell_grad), (gates, extra.as_ref(), initial_grads));
                recurrent::backward(device, op, of, inputs, workspace.as_ref(), outputs)
            }
            Kernel::CrossEntropy { logits, targets, ref losses } => {
                rows::cross_entropy(device, op, logits, targets, losses)
            }
            Kernel::CrossEntropyGrad { logits, targets, grad, ref out } => {
                rows::cross_entropy_grad(device, op, logits, targets, grad, out)
            }
            Kernel::Gather { input, indices, axis, ref out } => {
                index::gather(device, op, input, indices, axis, out)
            }
            Kernel::ScatterAdd { input, indices, axis, ref workspace, ref out } => {
                index::scatter_add(device, op, input, indices, axis, workspace.as_ref(), out)
            }
            Kernel::OneHot { indices, ref out } => index::one_hot(device, op, indices, out),
            Kernel::Random { distribution, key, ref out } => {
                random::random(device, op, distribution, key, out)
            }
            Kernel::Scale { factor, ref values } => {
                optim::clip(device, op, [factor, f64::NEG_INFINITY, f64::INFINITY], values)
            }
            Kernel::Clip { low, high, ref values } => optim::clip(device, op, [1.0, low, high], values),
            Kernel::Sgd { step, grad, ref momentum, ref param } => {
                optim::sgd(device, op, step, grad, momentum.as_ref(), param)
            }
            Kernel::Adam { step, grad, ref mean, ref variance, ref max_variance, ref param } => {
                optim::adam(device, op, step, grad, ([param, mean, variance], max_variance.as_ref()))
            }
            Kernel::RmsProp { step, grad, ref variance, ref momentum, ref param } => {
                optim::rms_prop(device, op, step, grad, (param, variance, momentum.as_ref()))
            }
            Kernel::Lion { step, grad, ref mean, ref param } => {
                optim::lion(device, op, step, grad, [param, mean])
            }
        }
    }
}

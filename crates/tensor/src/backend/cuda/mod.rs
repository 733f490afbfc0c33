//! CUDA: each op as one or a few kernels, on memory that only the device follows.
//!
//! The kernels stand in `bfc-cuda`, with what they compute; here a call becomes the [`Job`](bfc_cuda::kernels::Job) that a
//! kernel takes: operands as addresses and strides, and which of its functions is wanted. Work is given to a
//! [`Compute`]: a device, or in tests the emulator, which runs the same sources on the host.
//!
//! Workspaces are those of a dry run that stands for a GPU. Results do not depend on the number of blocks:
//! which elements a thread folds follows from the shape alone, and no two threads add to one place.
//!
//! Within a [step](crate::StepGraph) kernels and products may be held back, and given as a graph.
//!
//! Calls return before the device has done the work, except for downloads and for ops with indices that are data, which
//! are checked before anything is written, as everywhere.

mod attention;
mod elementwise;
mod index;
mod launch;
mod matmul;
mod optim;
mod random;
mod reduce;
mod rows;
mod scan;
mod sort;
mod steps;
mod transfer;
mod windows;

use std::sync::Arc;

use bfc_core::{AddressSpace, MemoryKind};
use bfc_cuda::Compute;

use crate::backend::{Backend, Checked, DeviceRules, Kernel, Steps, Workspace, demand, sealed};
use crate::error::Result;
use crate::storage::{View, ViewMut};

use self::launch::Launcher;
use self::matmul::After;

/// What kernels take is the same on all of them.
const RULES: DeviceRules = DeviceRules::Cuda { compute_capability: (0, 0) };

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

impl sealed::Sealed for CudaBackend {}

impl Backend for CudaBackend {
    fn name(&self) -> &'static str {
        "cuda"
    }

    fn addresses(&self, kind: MemoryKind, space: Option<AddressSpace>) -> bool {
        kind == MemoryKind::Device && space.is_some() && space == self.device.compute().address_space()
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
        demand::workspace(RULES, of)
    }

    fn chunk_elements(&self) -> usize {
        demand::chunk_elements(RULES)
    }

    fn supports_half(&self) -> bool {
        demand::supports_half(RULES)
    }

    fn steps(&self) -> Option<&dyn Steps> {
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
            Kernel::MatMul { bias, lhs, rhs, ref activation, ref workspace, ref out } => {
                let after = After { bias, activation: activation.as_ref() };
                matmul::matmul(device, op, after, [lhs, rhs], workspace.as_ref(), out)
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
            Kernel::Conv2d { conv, input, weight, ref out, .. } => {
                windows::conv2d(device, op, &conv, [input, weight], out)
            }
            Kernel::Conv2dInputGrad { conv, weight, grad, ref out, .. } => {
                windows::conv2d_input_grad(device, op, &conv, [weight, grad], out)
            }
            Kernel::Conv2dWeightGrad { conv, input, grad, ref workspace, ref out } => {
                windows::conv2d_weight_grad(device, op, &conv, [input, grad], workspace.as_ref(), out)
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
            Kernel::Adam { step, grad, ref mean, ref variance, ref param } => {
                optim::adam(device, op, step, grad, [param, mean, variance])
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

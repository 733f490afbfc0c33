//! Launches optimizer steps on GPUs: the kernel in `optim.cu` with the name of the rule, for several parameters at a time.

use bfc_cuda::kernels::JobRow;

use super::OptimizerStep;
use crate::cuda::Family;
use crate::cuda::launch::{Launcher, job_over, kernel, kernel_dtype, operand, origin, output, require_float};
use crate::error::Result;
use crate::families::RunCuda;

impl RunCuda for OptimizerStep<'_> {
    fn run_cuda(&self, device: &Launcher, op: &'static str) -> Result<()> {
        launch(device, op, self, [self].into_iter())
    }
}

/// Launches steps that [share a launch](OptimizerStep::shares_launch), of which `first` is one. Bit n of the job's function
/// tells whether the parameters have state n.
pub(crate) fn launch<'s, 'a: 's>(
    device: &Launcher,
    op: &'static str,
    first: &OptimizerStep<'_>,
    steps: impl Iterator<Item = &'s OptimizerStep<'a>>,
) -> Result<()> {
    let OptimizerStep { rule, number, grad, states, param } = first;
    let dtype = kernel_dtype([param.dtype(), grad.dtype()]);
    require_float(op, dtype)?;
    let mut job = job_over(param.layout());
    job.inputs[0] = operand(grad);
    job.outputs[0] = output(param);
    for (index, state) in states.iter().enumerate() {
        if let Some(state) = state {
            job.outputs[1 + index] = output(state);
            job.function |= 1 << index;
        }
    }
    job.constants = rule.constants(*number);
    let rows = steps.map(|step| {
        let mut outputs = [output(&step.param).address, 0, 0, 0];
        for (to, state) in outputs[1..].iter_mut().zip(&step.states) {
            *to = state.as_ref().map_or(0, |state| output(state).address);
        }
        let count = step.param.layout().shape().elements() as u64;
        JobRow { count, chunk: 0, input: origin(&step.grad), outputs }
    });
    device.launch_table(op, kernel(Family::Optim, rule.name(), dtype), job, rows)
}

//! Launches optimizer steps on GPUs: the kernel in `optim.cu` with the name of the rule.

use super::OptimizerStep;
use crate::cuda::Family;
use crate::cuda::launch::{Launcher, job_over, kernel, kernel_dtype, operand, output, require_float};
use crate::error::Result;
use crate::families::RunCuda;

impl RunCuda for OptimizerStep<'_> {
    /// Launches a step. Bit n of the job's function tells whether the parameter has state n.
    fn run_cuda(&self, device: &Launcher, op: &'static str) -> Result<()> {
        let Self { rule, number, grad, states, param } = self;
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
        device.launch_elementwise(op, kernel(Family::Optim, rule.name(), dtype), job.count, &job)
    }
}

//! Batch normalization on CUDA devices: sums over slabs, the values of each channel, and one pass over the elements.

use bfc_cuda::kernels::{Job, JobInput, JobOutput};

use super::{NormalizeChannels, NormalizeChannelsGrad, Slabs, VALUES};
use crate::cuda::Family;
use crate::cuda::launch::{
    Launcher, job_over, kernel, kernel_dtype, operand, origin, output, require_float, required_workspace,
    workspace_output,
};
use crate::error::Result;
use crate::families::RunCuda;
use crate::layout::Layout;
use crate::shape::DType;
use crate::storage::ViewMut;

/// The flag of the kernels for a ReLU.
const RECTIFIED: u64 = 1;

/// The flag of the kernels for given statistics.
const FIXED: u64 = 2;

/// The jobs of one normalization: over elements, channels and slabs.
struct Jobs {
    elements: Job,
    channels: Job,
    slabs: Job,
    /// The output of the kernels that write the workspace.
    workspace: JobOutput,
}

impl Jobs {
    fn new(
        op: &'static str,
        input: &Layout,
        dtype: DType,
        workspace: Option<&ViewMut<'_>>,
        function: u64,
    ) -> Result<Self> {
        let Slabs { channels, places, elements, slabs, slab } = Slabs::new(input.shape());
        let bytes = channels * slabs * VALUES * dtype.computed_as().size();
        let workspace = match bytes {
            0 => JobOutput::default(),
            _ => workspace_output(required_workspace(op, workspace, bytes)?),
        };
        let mut over_elements = job_over(input);
        over_elements.function = function;
        over_elements.counts[..5]
            .copy_from_slice(&[channels, places, elements, slabs, slab].map(|count| count as u64));
        let (mut of_channels, mut of_slabs) = (over_elements, over_elements);
        (of_channels.count, of_channels.outputs[0]) = (channels as u64, workspace);
        (of_slabs.count, of_slabs.outputs[0]) = ((channels * slabs) as u64, workspace);
        Ok(Self { elements: over_elements, channels: of_channels, slabs: of_slabs, workspace })
    }
}

impl RunCuda for NormalizeChannels<'_> {
    fn run_cuda(&self, device: &Launcher, op: &'static str) -> Result<()> {
        let Self { epsilon, rectified, input, weight, bias, residual, ref out, ref statistics, .. } = *self;
        require_float(op, out.dtype())?;
        let given = self.fixed_mean.as_ref().zip(self.fixed_variance.as_ref());
        let function = if rectified { RECTIFIED } else { 0 } | if given.is_some() { FIXED } else { 0 };
        let dtype = kernel_dtype([input.dtype(), out.dtype()]);
        let jobs = Jobs::new(op, input.layout(), dtype, self.workspace.as_ref(), function)?;
        let of = |name| kernel(Family::BatchNorm, name, dtype);
        let mut job = jobs.channels;
        job.inputs = [operand(&input), JobInput::default(), operand(&weight)];
        job.outputs[1] = output(statistics);
        job.constants[0] = epsilon;
        if let Some((mean, variance)) = given {
            job.inputs = [operand(mean), operand(variance), operand(&weight)];
        } else {
            let mut sums = jobs.slabs;
            sums.inputs[0] = operand(&input);
            device.launch_blocks(op, of("channel_moments"), sums.count, &sums)?;
            job.outputs[2] = self.variance.as_ref().map_or_else(JobOutput::default, output);
        }
        device.launch_threads(op, of("channel_statistics"), job.count, &job)?;
        let mut job = jobs.elements;
        job.function |= if residual.is_some() { 4 } else { 0 };
        let added = residual.as_ref().map_or_else(JobInput::default, operand);
        job.inputs = [operand(&input), operand(&bias), added];
        job.also[0] = jobs.workspace.address;
        job.outputs[0] = output(out);
        device.launch_elementwise(op, of("batch_norm"), job.count, &job)
    }
}

impl RunCuda for NormalizeChannelsGrad<'_> {
    fn run_cuda(&self, device: &Launcher, op: &'static str) -> Result<()> {
        let Self { of_batch, ref of, grad, ref out, ref residual, .. } = *self;
        require_float(op, of.input.dtype())?;
        let function = if self.output.is_some() { RECTIFIED } else { 0 } | if of_batch { 0 } else { FIXED };
        let dtype = kernel_dtype([of.input.dtype(), grad.dtype()]);
        let jobs = Jobs::new(op, of.input.layout(), dtype, self.workspace.as_ref(), function)?;
        let named = |name| kernel(Family::BatchNorm, name, dtype);
        let masks = self.output.as_ref().map_or_else(JobInput::default, operand);
        let inputs = [operand(&of.input), operand(&grad), masks];
        let mut job = jobs.slabs;
        (job.inputs, job.also[0]) = (inputs, origin(&of.statistics));
        device.launch_blocks(op, named("channel_grad_sums"), job.count, &job)?;
        let mut job = jobs.channels;
        job.function |= if of.weight.is_some() { 4 } else { 0 };
        job.inputs[0] = of.weight.as_ref().map_or_else(JobInput::default, operand);
        job.also[0] = origin(&of.statistics);
        job.outputs[1] = output(&self.weight);
        job.outputs[2] = output(&self.bias);
        device.launch_threads(op, named("channel_grad_factors"), job.count, &job)?;
        if out.is_none() && residual.is_none() {
            return Ok(());
        }
        let mut job = jobs.elements;
        job.function |= if out.is_some() { 4 } else { 0 } | if residual.is_some() { 8 } else { 0 };
        job.inputs = inputs;
        [job.also[0], job.also[1]] = [origin(&of.statistics), jobs.workspace.address];
        for (to, view) in job.outputs.iter_mut().zip([out, residual]) {
            *to = view.as_ref().map_or_else(JobOutput::default, output);
        }
        device.launch_elementwise(op, named("batch_norm_grad"), job.count, &job)
    }
}

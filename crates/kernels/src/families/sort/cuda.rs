//! Merge sort of indices. Each pass merges pairs of sorted runs and alternates between the output and the workspace.

use bfc_cuda::kernels::{Job, JobInput, JobOutput};

use super::ArgSort;
use crate::cuda::Family;
use crate::cuda::launch::{Launcher, kernel, origin, output, required_workspace};
use crate::error::Result;
use crate::families::RunCuda;
use crate::shape::DType;

impl RunCuda for ArgSort<'_> {
    fn run_cuda(&self, device: &Launcher, op: &'static str) -> Result<()> {
        let Self { descending, input, ref out, .. } = *self;
        let workspace = self.workspace.as_ref();
        let layout = input.layout();
        let elements = layout.shape().elements();
        if elements == 0 {
            return Ok(());
        }
        let workspace = required_workspace(op, workspace, elements * size_of::<i64>())?;
        let lines = layout.shape().rank().saturating_sub(1);
        let (length, stride) = match (layout.shape().dims(), layout.strides()) {
            ([.., length], [.., stride]) => (*length, *stride),
            _ => (1, 1),
        };
        let mut job = Job::over(elements as u64, &layout.shape().dims()[..lines]);
        job.inputs[0] = JobInput::strided(origin(&input), &layout.strides()[..lines]);
        (job.counts[0], job.counts[2]) = (length as u64, stride as u64);
        job.function = u64::from(descending);
        merge(device, op, input.dtype(), job, [output(out), output(workspace)])
    }
}

/// Sorts lines of `counts[0]` elements with stride `counts[2]`. Writes the indices to `out`; `workspace` has the same size.
pub(crate) fn merge(
    device: &Launcher,
    op: &'static str,
    dtype: DType,
    mut job: Job,
    [out, workspace]: [JobOutput; 2],
) -> Result<()> {
    // At least one pass, because the first pass also writes the indices.
    let merges = job.counts[0].next_power_of_two().trailing_zeros().max(1);
    for merge in 0..merges {
        // The last merge goes to the output.
        let to_output = (merges - merge) % 2 == 1;
        let (from, to) = if to_output { (workspace, out) } else { (out, workspace) };
        (job.also[0], job.outputs[0]) = (from.address, to);
        job.counts[1] = 1 << merge;
        device.launch_threads(op, kernel(Family::Sort, "merge_runs", dtype), job.count, &job)?;
    }
    Ok(())
}

//! Reductions over axes. A long reduction of few outputs is split into slabs, whose partial results a second kernel reduces.

use bfc_cuda::kernels::{Job, JobInput, named};

use super::cpu::is_reduced;
use super::{ArgReduce, Fold};
use crate::cuda::Family;
use crate::cuda::launch::{
    Launcher, kernel, kernel_dtype, origin, output, required_workspace, workspace_operand, workspace_output,
};
use crate::error::{KernelError, Result};
use crate::families::fill::cuda::fill;
use crate::families::grid::{COLUMNS_PER_BLOCK, split_reduction};
use crate::families::{Identity, Reduce, ReduceDomain, RunCuda};
use crate::layout::Layout;
use crate::shape::{DType, Scalar};
use crate::storage::{View, ViewMut};

/// The largest number of elements that one thread reduces.
const SHORT: usize = 64;

/// The smallest number of outputs for which one thread per output keeps a GPU busy.
const MANY_OUTPUTS: u64 = 1 << 14;

impl RunCuda for Fold<'_> {
    fn run_cuda(&self, device: &Launcher, op: &'static str) -> Result<()> {
        let Self { f, divisor, input, axes, ref workspace, ref out } = *self;
        let dtype = input.dtype();
        let defined = match f.domain() {
            ReduceDomain::All => true,
            ReduceDomain::Sums => dtype.is_float() || dtype == DType::I64,
            ReduceDomain::Floats => dtype.is_float(),
        };
        if !defined {
            return Err(KernelError::UnsupportedDType { op, dtype });
        }
        if input.layout().shape().elements() == 0 {
            let value = empty_result(f, dtype);
            let value = if divisor == 1.0 { value } else { Scalar::Float(value.as_f64() / divisor) };
            return fill(device, op, value, out);
        }
        let split = split_reduction(input.layout().shape(), axes);
        let (slabs, slab) = (split.slabs(), split.slab);
        let mut job = reduction_job(&input, axes);
        job.function = named(f.name());
        (job.counts[0], job.counts[1], job.counts[2]) = (split.length as u64, slabs as u64, slab as u64);
        // Only the last kernel divides.
        let divides = |job: &mut Job| {
            if divisor != 1.0 {
                (job.counts[3], job.constants[0]) = (1, divisor);
            }
        };
        let bytes = slabs * split.outputs * dtype.computed_as().size();
        let partial = (slabs > 1).then(|| required_workspace(op, workspace.as_ref(), bytes)).transpose()?;
        job.outputs[0] = partial.map_or_else(|| output(out), workspace_output);
        if partial.is_none() {
            divides(&mut job);
        }
        let results = job.count * slabs as u64;
        let on = if partial.is_some() { dtype } else { kernel_dtype([dtype, out.dtype()]) };
        let kernel_of = |name| kernel(Family::Reduce, name, on);
        if slab <= SHORT {
            device.launch_threads(op, kernel_of("reduce_serial"), results, &job)?;
        } else if split.along_rows {
            device.launch_blocks(op, kernel_of("reduce_rows"), results, &job)?;
        } else {
            let blocks = job.count.div_ceil(COLUMNS_PER_BLOCK as u64) * slabs as u64;
            device.launch_blocks(op, kernel_of("reduce_columns"), blocks, &job)?;
        }
        let Some(partial) = partial else { return Ok(()) };
        // Reduces the partial results of the slabs in order.
        let mut joined = rows_of(workspace_operand(partial), [slabs, split.outputs], out);
        joined.function = named(f.of_parts().name());
        divides(&mut joined);
        fold_rows(device, op, &joined, out.dtype())
    }
}

impl RunCuda for ArgReduce<'_> {
    fn run_cuda(&self, device: &Launcher, op: &'static str) -> Result<()> {
        let Self { largest, input, axis, ref out } = *self;
        if out.layout().shape().elements() == 0 {
            // The product of the other sizes may overflow.
            return Ok(());
        }
        let mut axes = [false; crate::shape::MAX_RANK];
        axes.iter_mut().skip(axis).take(1).for_each(|reduced| *reduced = true);
        let mut job = reduction_job(&input, &axes);
        job.function = named(if largest { Reduce::Max.name() } else { Reduce::Min.name() });
        job.counts[0] = input.layout().shape().dims().get(axis).copied().unwrap_or(1) as u64;
        job.outputs[0] = output(out);
        // Neighboring threads read neighboring columns. For contiguous or few sequences, one block reduces each.
        let along_memory = input.layout().strides().get(axis) == Some(&1);
        if job.counts[0] > SHORT as u64 && (along_memory || job.count < MANY_OUTPUTS) {
            return device.launch_blocks(
                op,
                kernel(Family::Reduce, "arg_reduce_rows", input.dtype()),
                job.count,
                &job,
            );
        }
        device.launch_threads(op, kernel(Family::Reduce, "arg_reduce", input.dtype()), job.count, &job)
    }
}

/// Sums the columns of a `[rows, columns]` workspace, in an order that depends only on these sizes.
pub(crate) fn sum_rows(
    device: &Launcher,
    op: &'static str,
    input: JobInput,
    [rows, columns]: [usize; 2],
    out: &ViewMut<'_>,
) -> Result<()> {
    let job = Job { function: named(Reduce::Sum.name()), ..rows_of(input, [rows, columns], out) };
    fold_rows(device, op, &job, out.dtype())
}

/// Launches the reduction of the columns of a workspace.
fn fold_rows(device: &Launcher, op: &'static str, job: &Job, dtype: DType) -> Result<()> {
    if job.counts[0] <= SHORT as u64 {
        return device.launch_threads(op, kernel(Family::Reduce, "reduce_serial", dtype), job.count, job);
    }
    let blocks = job.count.div_ceil(COLUMNS_PER_BLOCK as u64);
    device.launch_blocks(op, kernel(Family::Reduce, "reduce_columns", dtype), blocks, job)
}

/// Creates a job that reduces the columns of a `[rows, columns]` workspace.
fn rows_of(input: JobInput, [rows, columns]: [usize; 2], out: &ViewMut<'_>) -> Job {
    let mut job = Job::over(columns as u64, &[columns]).with_inner(&[rows]);
    job.inputs[0] = input;
    job.inputs[1] = JobInput::strided(0, &[columns]);
    job.outputs[0] = output(out);
    (job.counts[0], job.counts[1], job.counts[2]) = (rows as u64, 1, rows as u64);
    job
}

/// Creates a job over the kept axes of a view, with the reduced axes as inner axes.
fn reduction_job(input: &View<'_>, axes: &[bool]) -> Job {
    let (outer, outer_strides) = merged_axes(input.layout(), axes, false);
    let (inner, inner_strides) = merged_axes(input.layout(), axes, true);
    let count = outer.iter().product::<usize>() as u64;
    let mut job = Job::over(count, &outer).with_inner(&inner);
    job.inputs[0] = JobInput::strided(origin(input), &outer_strides).of_floats(input.dtype() == DType::F32);
    job.inputs[1] = JobInput::strided(0, &inner_strides);
    job
}

/// The sizes and strides of the reduced axes, or of the kept axes. Merges adjacent axes with compatible strides,
/// because each axis costs one division per element.
fn merged_axes(layout: &Layout, axes: &[bool], reduced: bool) -> (Vec<usize>, Vec<usize>) {
    let (mut sizes, mut strides): (Vec<usize>, Vec<usize>) = (Vec::new(), Vec::new());
    for (axis, (&size, &stride)) in layout.shape().dims().iter().zip(layout.strides()).enumerate() {
        if is_reduced(axes, axis) != reduced || size == 1 {
            continue;
        }
        match (sizes.last_mut(), strides.last_mut()) {
            (Some(outer), Some(step)) if *step == stride * size => (*outer, *step) = (*outer * size, stride),
            _ => {
                sizes.push(size);
                strides.push(stride);
            }
        }
    }
    (sizes, strides)
}

/// The result of a reduction without elements.
fn empty_result(f: Reduce, dtype: DType) -> Scalar {
    let (lowest, highest) = match dtype {
        DType::I64 => (Scalar::Int(i64::MIN), Scalar::Int(i64::MAX)),
        DType::I32 => (Scalar::from(i32::MIN), Scalar::from(i32::MAX)),
        DType::U32 => (Scalar::Int(0), Scalar::from(u32::MAX)),
        DType::U8 | DType::Bool => (Scalar::Int(0), Scalar::Int(255)),
        DType::F32 | DType::F64 | DType::F16 | DType::BF16 => {
            (Scalar::Float(f64::NEG_INFINITY), Scalar::Float(f64::INFINITY))
        }
    };
    match f.empty() {
        Identity::Zero => Scalar::Int(0),
        Identity::One => Scalar::Int(1),
        Identity::Lowest => lowest,
        Identity::Highest => highest,
    }
}

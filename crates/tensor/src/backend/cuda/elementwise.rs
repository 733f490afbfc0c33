//! Elementwise kernels. They find a function by its name.

use bfc_cuda::kernels::{Family, Job, named};

use super::launch::{
    Launcher, job_over, kernel, kernel_dtype, operand, output, require_float, require_number, set_constant,
    strided,
};
use crate::backend::{Binary, Compare, Domain, Unary};
use crate::error::{Error, Result};
use crate::shape::{DType, Scalar};
use crate::storage::{View, ViewMut};

/// See [`Kernel::Fill`](crate::backend::Kernel::Fill).
pub(super) fn fill(device: &Launcher, op: &'static str, value: Scalar, out: &ViewMut<'_>) -> Result<()> {
    let mut job = job_over(out.layout());
    set_constant(&mut job, 0, out.dtype(), value);
    job.outputs[0] = output(out);
    device.launch_elementwise(op, kernel(Family::Elementwise, "fill", out.dtype()), job.count, &job)
}

/// See [`Kernel::Arange`](crate::backend::Kernel::Arange).
pub(super) fn arange(
    device: &Launcher,
    op: &'static str,
    start: Scalar,
    step: Scalar,
    out: &ViewMut<'_>,
) -> Result<()> {
    require_number(op, out.dtype())?;
    let mut job = job_over(out.layout());
    (job.constants[0], job.constants[1]) = (start.as_f64(), step.as_f64());
    job.integers = [start.as_i64(), step.as_i64()];
    job.outputs[0] = output(out);
    device.launch_threads(op, kernel(Family::Elementwise, "arange", out.dtype()), job.count, &job)
}

/// See [`Kernel::Copy`](crate::backend::Kernel::Copy).
pub(super) fn copy(device: &Launcher, op: &'static str, input: View<'_>, out: &ViewMut<'_>) -> Result<()> {
    let mut job = job_over(input.layout());
    job.inputs[0] = operand(&input);
    job.outputs[0] = output(out);
    let kernel = match (input.dtype(), out.dtype()) {
        (from, to) if from == to => kernel(Family::Elementwise, "copy", from),
        (from, DType::F32) => kernel(Family::Convert, "to_f32", from),
        (from, DType::F64) => kernel(Family::Convert, "to_f64", from),
        (from, DType::F16) => kernel(Family::Convert, "to_f16", from),
        (from, DType::BF16) => kernel(Family::Convert, "to_bf16", from),
        (from, DType::I64) => kernel(Family::Convert, "to_i64", from),
        (from, DType::I32) => kernel(Family::Convert, "to_i32", from),
        (from, DType::U32) => kernel(Family::Convert, "to_u32", from),
        (from, DType::U8) => kernel(Family::Convert, "to_u8", from),
        (from, DType::Bool) => kernel(Family::Convert, "to_bool", from),
    };
    device.launch_elementwise(op, kernel, job.count, &job)
}

/// See [`Kernel::Flip`](crate::backend::Kernel::Flip).
pub(super) fn flip(
    device: &Launcher,
    op: &'static str,
    input: View<'_>,
    axes: &[bool],
    out: &ViewMut<'_>,
) -> Result<()> {
    let mut job = job_over(input.layout());
    job.inputs[0] = strided(&input);
    job.outputs[0] = output(out);
    job.function = (0..).zip(axes).map(|(axis, &flipped)| u64::from(flipped) << axis).sum();
    device.launch_threads(op, kernel(Family::Elementwise, "flip", out.dtype()), job.count, &job)
}

/// See [`Kernel::CopyInto`](crate::backend::Kernel::CopyInto).
pub(super) fn copy_into(
    device: &Launcher,
    op: &'static str,
    input: View<'_>,
    axis: usize,
    start: usize,
    step: usize,
    out: &ViewMut<'_>,
) -> Result<()> {
    let part = out.layout().part(op, input.layout().shape(), axis, start, step)?;
    let mut job = job_over(input.layout());
    job.inputs = [operand(&input), strided(&out.as_view().with_layout(&part)), Default::default()];
    device.launch_elementwise(op, kernel(Family::Elementwise, "place", out.dtype()), job.count, &job)
}

/// See [`Kernel::Unary`](crate::backend::Kernel::Unary).
pub(super) fn unary(
    device: &Launcher,
    op: &'static str,
    f: Unary,
    input: View<'_>,
    out: &ViewMut<'_>,
) -> Result<()> {
    let dtype = kernel_dtype([out.dtype(), input.dtype()]);
    if f.supports_integers() {
        require_number(op, dtype)?
    } else {
        require_float(op, dtype)?
    }
    let mut job = job_over(out.layout());
    job.inputs[0] = operand(&input);
    job.outputs[0] = output(out);
    job.function = named(f.name());
    set_constants(&mut job, dtype, f);
    let kernel = match f.domain() {
        Domain::Numbers => kernel(Family::Elementwise, "arithmetic", dtype),
        Domain::FloatsAndCounts if !dtype.is_float() => kernel(Family::Elementwise, "arithmetic", dtype),
        Domain::Floats | Domain::FloatsAndCounts => kernel(Family::Float, "transcendental", dtype),
    };
    device.launch_elementwise(op, kernel, job.count, &job)
}

/// Writes the constants of a function to a job.
fn set_constants(job: &mut Job, dtype: DType, f: Unary) {
    let [first, second] = f.constants();
    match f.domain() {
        // The exponent may exceed the range of a narrow integer type.
        Domain::FloatsAndCounts if !dtype.is_float() => job.integers[0] = first.as_i64(),
        _ => {
            set_constant(job, 0, dtype, first);
            set_constant(job, 1, dtype, second);
        }
    }
}

/// See [`Kernel::UnaryGrad`](crate::backend::Kernel::UnaryGrad).
pub(super) fn unary_grad(
    device: &Launcher,
    op: &'static str,
    f: Unary,
    saved: View<'_>,
    grad: Option<View<'_>>,
    out: &ViewMut<'_>,
) -> Result<()> {
    // In place: each thread reads its element before it overwrites it.
    let grad = grad.unwrap_or_else(|| out.as_view());
    let dtype = kernel_dtype([out.dtype(), saved.dtype(), grad.dtype()]);
    require_float(op, dtype)?;
    let mut job = job_over(out.layout());
    job.inputs = [operand(&saved), operand(&grad), Default::default()];
    job.outputs[0] = output(out);
    job.function = named(f.name());
    set_constants(&mut job, dtype, f);
    device.launch_elementwise(op, kernel(Family::Float, "derivative", dtype), job.count, &job)
}

/// See [`Kernel::Binary`](crate::backend::Kernel::Binary).
pub(super) fn binary(
    device: &Launcher,
    op: &'static str,
    f: Binary,
    lhs: View<'_>,
    rhs: View<'_>,
    out: &ViewMut<'_>,
) -> Result<()> {
    let dtype = kernel_dtype([out.dtype(), lhs.dtype(), rhs.dtype()]);
    if dtype == DType::Bool && !f.supports_booleans() {
        return Err(Error::UnsupportedDType { op, dtype });
    }
    let mut job = job_over(out.layout());
    job.inputs = [operand(&lhs), operand(&rhs), Default::default()];
    job.outputs[0] = output(out);
    launch_binary(device, op, f, dtype, job)
}

/// See [`Kernel::Accumulate`](crate::backend::Kernel::Accumulate). One thread reads each element before it overwrites it.
pub(super) fn accumulate(
    device: &Launcher,
    op: &'static str,
    f: Binary,
    input: View<'_>,
    acc: &ViewMut<'_>,
) -> Result<()> {
    require_number(op, acc.dtype())?;
    let mut job = job_over(acc.layout());
    job.inputs = [operand(&acc.as_view()), operand(&input), Default::default()];
    job.outputs[0] = output(acc);
    launch_binary(device, op, f, kernel_dtype([acc.dtype(), input.dtype()]), job)
}

fn launch_binary(device: &Launcher, op: &'static str, f: Binary, dtype: DType, mut job: Job) -> Result<()> {
    job.function = named(f.name());
    device.launch_elementwise(op, kernel(Family::Elementwise, "binary", dtype), job.count, &job)
}

/// See [`Kernel::Compare`](crate::backend::Kernel::Compare).
pub(super) fn compare(
    device: &Launcher,
    op: &'static str,
    f: Compare,
    lhs: View<'_>,
    rhs: View<'_>,
    out: &ViewMut<'_>,
) -> Result<()> {
    let mut job = job_over(out.layout());
    job.inputs = [operand(&lhs), operand(&rhs), Default::default()];
    job.outputs[0] = output(out);
    job.function = named(f.name());
    device.launch_elementwise(
        op,
        kernel(Family::Elementwise, "compare", kernel_dtype([lhs.dtype(), rhs.dtype()])),
        job.count,
        &job,
    )
}

/// See [`Kernel::Select`](crate::backend::Kernel::Select).
pub(super) fn select(
    device: &Launcher,
    op: &'static str,
    condition: View<'_>,
    lhs: View<'_>,
    rhs: View<'_>,
    out: &ViewMut<'_>,
) -> Result<()> {
    let mut job = job_over(out.layout());
    job.inputs = [operand(&condition), operand(&lhs), operand(&rhs)];
    job.outputs[0] = output(out);
    device.launch_threads(op, kernel(Family::Elementwise, "choose", out.dtype()), job.count, &job)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::{Activation, Reduce};

    /// The part of a source from a text to the next kernel.
    fn part<'s>(source: &'s str, start: &str) -> &'s str {
        let (_, part) = source.split_once(start).unwrap();
        part.split("\nKERNEL(").next().unwrap_or(part)
    }

    /// The names without a case in a part of a source.
    fn missing(part: &str, names: impl IntoIterator<Item = &'static str>) -> Vec<&'static str> {
        names.into_iter().filter(|name| !part.contains(&format!("NAMED(\"{name}\")"))).collect()
    }

    #[test]
    fn kernels_have_a_case_for_every_function() {
        let (elementwise, float) = (Family::Elementwise.source(), Family::Float.source());
        let unary = |domain: fn(Domain) -> bool| {
            Unary::ALL.iter().filter(move |f| domain(f.domain())).map(|f| f.name())
        };
        let in_kernels = [
            (
                "elementwise.cu, arithmetic",
                missing(part(elementwise, "KERNEL(arithmetic)"), unary(|domain| domain != Domain::Floats)),
            ),
            (
                "float.cu, transcendental",
                missing(part(float, "KERNEL(transcendental)"), unary(|domain| domain != Domain::Numbers)),
            ),
            ("float.cu, derivative", missing(part(float, "KERNEL(derivative)"), unary(|_| true))),
            (
                "elementwise.cu, binary",
                missing(part(elementwise, "KERNEL(binary)"), Binary::ALL.iter().map(|f| f.name())),
            ),
            (
                "elementwise.cu, compare",
                missing(part(elementwise, "KERNEL(compare)"), Compare::ALL.iter().map(|f| f.name())),
            ),
            (
                "reduce.cu, fold",
                missing(part(Family::Reduce.source(), "E fold("), Reduce::ALL.iter().map(|f| f.name())),
            ),
            (
                "activation.cuh, activated",
                missing(part(float, "E activated("), Activation::ALL.iter().map(|f| f.name())),
            ),
        ];
        for (kernel, missing) in in_kernels {
            assert!(missing.is_empty(), "{kernel}: no case for {missing:?}");
        }
    }
}

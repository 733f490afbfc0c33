//! Elementwise kernels. They find a function by its name.

use bfc_cuda::kernels::{Family, Job, named};

use super::launch::{
    Launcher, job_over, kernel, kernel_dtype, operand, output, require_float, require_number, set_constant,
};
use crate::backend::{Binary, Compare, Domain, Unary};
use crate::error::{Error, Result};
use crate::shape::DType;
use crate::storage::{View, ViewMut};

/// See [`Map`](crate::backend::kernels::Map).
pub(crate) fn unary(
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

/// See [`MapGrad`](crate::backend::kernels::MapGrad).
pub(crate) fn unary_grad(
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

/// See [`Zip`](crate::backend::kernels::Zip).
pub(crate) fn binary(
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

/// See [`Accumulate`](crate::backend::kernels::Accumulate). One thread reads each element before it overwrites it.
pub(crate) fn accumulate(
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
    if f.domain() == Domain::Floats {
        require_float(op, dtype)?;
    }
    job.function = named(f.name());
    device.launch_elementwise(op, kernel(Family::Elementwise, "binary", dtype), job.count, &job)
}

/// See [`Comparison`](crate::backend::kernels::Comparison).
pub(crate) fn compare(
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

/// See [`Select`](crate::backend::kernels::Select).
pub(crate) fn select(
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

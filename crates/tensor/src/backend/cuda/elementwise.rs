//! Elementwise kernels. The numbers of functions must equal those in the `switch` statements of the kernels.

use bfc_cuda::kernels::{Family, Job};

use super::launch::{
    Launcher, job_over, kernel, kernel_dtype, operand, output, require_float, require_number, set_constant,
    strided,
};
use crate::backend::{Binary, Compare, Unary};
use crate::error::{Error, Result};
use crate::shape::{DType, Scalar};
use crate::storage::{View, ViewMut};

/// See [`Fill`](crate::backend::kernels::Fill).
pub(crate) fn fill(device: &Launcher, op: &'static str, value: Scalar, out: &ViewMut<'_>) -> Result<()> {
    let mut job = job_over(out.layout());
    set_constant(&mut job, 0, out.dtype(), value);
    job.outputs[0] = output(out);
    device.launch_elementwise(op, kernel(Family::Elementwise, "fill", out.dtype()), job.count, &job)
}

/// See [`Arange`](crate::backend::kernels::Arange).
pub(crate) fn arange(
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

/// See [`Copy`](crate::backend::kernels::Copy).
pub(crate) fn copy(device: &Launcher, op: &'static str, input: View<'_>, out: &ViewMut<'_>) -> Result<()> {
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

/// See [`Flip`](crate::backend::kernels::Flip).
pub(crate) fn flip(
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

/// See [`CopyInto`](crate::backend::kernels::CopyInto).
pub(crate) fn copy_into(
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
    let (family, name, function) = match f {
        Unary::Neg => (Family::Elementwise, "arithmetic", 0),
        Unary::Abs => (Family::Elementwise, "arithmetic", 1),
        Unary::Square => (Family::Elementwise, "arithmetic", 2),
        Unary::Relu => (Family::Elementwise, "arithmetic", 3),
        Unary::AddScalar(_) => (Family::Elementwise, "arithmetic", 4),
        Unary::MulScalar(_) => (Family::Elementwise, "arithmetic", 5),
        Unary::Exp => (Family::Float, "transcendental", 0),
        Unary::Log => (Family::Float, "transcendental", 1),
        Unary::Sqrt => (Family::Float, "transcendental", 2),
        Unary::Gelu => (Family::Float, "transcendental", 3),
        Unary::Tanh => (Family::Float, "transcendental", 4),
        Unary::Sigmoid => (Family::Float, "transcendental", 5),
        Unary::Recip => (Family::Float, "transcendental", 6),
        Unary::Rsqrt => (Family::Float, "transcendental", 7),
        Unary::Sin => (Family::Float, "transcendental", 8),
        Unary::Cos => (Family::Float, "transcendental", 9),
        Unary::Silu => (Family::Float, "transcendental", 10),
        Unary::Softplus => (Family::Float, "transcendental", 11),
        Unary::GeluTanh => (Family::Float, "transcendental", 12),
        Unary::LeakyRelu(_) => (Family::Float, "transcendental", 13),
        Unary::Powf(_) if !dtype.is_float() => (Family::Elementwise, "arithmetic", 9),
        Unary::Powf(_) => (Family::Float, "transcendental", 14),
        Unary::Floor => (Family::Float, "transcendental", 15),
        Unary::Ceil => (Family::Float, "transcendental", 16),
        Unary::Round => (Family::Float, "transcendental", 17),
        Unary::Elu(_) => (Family::Float, "transcendental", 18),
        Unary::Mish => (Family::Float, "transcendental", 19),
        Unary::Hardswish => (Family::Float, "transcendental", 20),
        Unary::Sign => (Family::Elementwise, "arithmetic", 6),
        Unary::Clamp(..) => (Family::Elementwise, "arithmetic", 7),
        Unary::DivScalar(_) => (Family::Elementwise, "arithmetic", 8),
    };
    job.function = function;
    set_parameters(&mut job, dtype, f);
    device.launch_elementwise(op, kernel(family, name, dtype), job.count, &job)
}

/// Writes the parameters of a function to the constants of a job.
fn set_parameters(job: &mut Job, dtype: DType, f: Unary) {
    match f {
        Unary::AddScalar(value) | Unary::MulScalar(value) | Unary::DivScalar(value) => {
            set_constant(job, 0, dtype, value);
        }
        // The exponent may exceed the range of a narrow integer type.
        Unary::Powf(value) if !dtype.is_float() => job.integers[0] = value as i64,
        Unary::LeakyRelu(value) | Unary::Elu(value) | Unary::Powf(value) => {
            set_constant(job, 0, dtype, Scalar::Float(value))
        }
        Unary::Clamp(low, high) => {
            set_constant(job, 0, dtype, low);
            set_constant(job, 1, dtype, high);
        }
        _ => {}
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
    job.function = match f {
        Unary::Neg => 0,
        Unary::Abs => 1,
        Unary::Square => 2,
        Unary::Exp => 3,
        Unary::Log => 4,
        Unary::Sqrt => 5,
        Unary::Relu => 6,
        Unary::Gelu => 7,
        Unary::Tanh => 8,
        Unary::Sigmoid => 9,
        Unary::AddScalar(_) => 10,
        Unary::MulScalar(_) => 11,
        Unary::Recip => 12,
        Unary::Rsqrt => 13,
        Unary::Sign | Unary::Floor | Unary::Ceil | Unary::Round => 14,
        Unary::Sin => 15,
        Unary::Cos => 16,
        Unary::Silu => 17,
        Unary::Softplus => 18,
        Unary::GeluTanh => 19,
        Unary::LeakyRelu(_) => 20,
        // x⁰ is constant, so its derivative is 0.
        Unary::Powf(0.0) => 14,
        Unary::Powf(_) => 21,
        Unary::Clamp(..) => 22,
        Unary::DivScalar(_) => 23,
        Unary::Elu(_) => 24,
        Unary::Mish => 25,
        Unary::Hardswish => 26,
    };
    set_parameters(&mut job, dtype, f);
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
    // These functions return booleans for booleans; sums would not.
    let closed_over_bool = matches!(f, Binary::Mul | Binary::Maximum | Binary::Minimum);
    if dtype == DType::Bool && !closed_over_bool {
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
    job.function = match f {
        Binary::Add => 0,
        Binary::Sub => 1,
        Binary::Mul => 2,
        Binary::Div => 3,
        Binary::Maximum => 4,
        Binary::Minimum => 5,
        Binary::Pow => 6,
    };
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
    job.function = match f {
        Compare::Eq => 0,
        Compare::Ne => 1,
        Compare::Lt => 2,
        Compare::Le => 3,
        Compare::Gt => 4,
        Compare::Ge => 5,
    };
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

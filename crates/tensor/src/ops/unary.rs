//! Elementwise functions of one tensor.
//!
//! The table of functions is `unary_functions` of [`backend`](crate::backend). Functions without constants get their
//! methods from it; this file has the methods that take constants.
//!
//! The shape does not change. The op allocates one output, and saves the tensor that the gradient reads. Division does not
//! multiply by the inverse: that would round twice and is undefined for integers.

use half::{bf16, f16};

use super::{is_numeric, supported, unsupported_types};
use crate::autograd;
use crate::autograd::apply;
use crate::backend::{Binary, GradReads, Unary, kernels, unary_functions};
use crate::device::PlacementReason;
use crate::error::{Error, Result};
use crate::op::Saved;
use crate::op::mode::should_record;
use crate::op::{Op, OpContext, Summation};
use crate::shape::{DType, Scalar, Shape};
use crate::tensor::Tensor;

#[derive(Debug)]
struct UnaryOp {
    /// The public name. The backend has no subtraction of scalars, only addition.
    op: &'static str,
    f: Unary,
}

impl Op for UnaryOp {
    fn name(&self) -> &'static str {
        self.op
    }

    fn forward(&self, ctx: &OpContext<'_>, inputs: &[&Tensor]) -> Result<Tensor> {
        let x = inputs[0];
        supported(self.op, x.dtype(), |dtype| {
            dtype.is_float() || self.f.supports_integers() && is_numeric(dtype)
        })?;
        let f = match self.f {
            Unary::AddScalar(scalar) => Unary::AddScalar(arithmetic_scalar(self.op, scalar, x.dtype())?),
            Unary::MulScalar(scalar) => Unary::MulScalar(arithmetic_scalar(self.op, scalar, x.dtype())?),
            Unary::DivScalar(scalar) => Unary::DivScalar(exact_scalar(self.op, scalar, x.dtype())?),
            Unary::Clamp(low, high) => {
                Unary::Clamp(exact_scalar(self.op, low, x.dtype())?, exact_scalar(self.op, high, x.dtype())?)
            }
            Unary::Powf(exponent) if !x.dtype().is_float() => {
                Unary::Powf(whole_exponent(self.op, exponent, x.dtype())?)
            }
            f => f,
        };
        let take = if self.f.grad_reads_output() { OpContext::output_saved } else { OpContext::output };
        let mut out = take(ctx, x.shape(), x.dtype())?;
        ctx.compute(kernels::Map { f, input: x.view(), out: out.view_mut() })?;
        if let Unary::Clamp(Scalar::Int(0..), Scalar::Int(high)) = f
            && !x.dtype().is_float()
        {
            // SAFETY: the kernel has clamped all elements to 0..=high.
            unsafe { out.view_mut().note_indices_up_to(high) };
        }
        let y = out.finish();
        match self.f.grad_reads() {
            GradReads::Argument => ctx.save(x),
            GradReads::Output => ctx.save(&y),
            GradReads::Nothing | GradReads::Flat => {}
        }
        Ok(y)
    }

    fn backward(&self, ctx: &OpContext<'_>, saved: &mut Saved, grad: Tensor) -> Result<Vec<Option<Tensor>>> {
        let gradient = match self.f {
            Unary::Neg => grad.neg()?,
            Unary::AddScalar(_) => grad,
            Unary::MulScalar(scalar) => grad.mul_scalar(scalar)?,
            Unary::DivScalar(scalar) => grad.div_scalar(scalar)?,
            f if f.grad_reads() == GradReads::Flat => return Ok(vec![None]),
            f => {
                let mut out = ctx.gradient(0, grad.shape(), grad.dtype())?;
                let saved = saved.tensor(0)?.view();
                ctx.compute(kernels::MapGrad { f, saved, grad: Some(grad.view()), out: out.view_mut() })?;
                out.finish()
            }
        };
        Ok(vec![Some(gradient)])
    }

    fn summation(&self, _: &[Shape]) -> Summation {
        let factor = match self.f {
            Unary::Neg => -1.0,
            Unary::AddScalar(_) => 1.0,
            Unary::MulScalar(scalar) => scalar.as_f64(),
            Unary::DivScalar(scalar) => 1.0 / scalar.as_f64(),
            _ => return Summation::Other,
        };
        Summation::Elementwise { factor }
    }
}

/// Computes a function of `x` and a number, in the buffer of `x` if no other handle shares it and `x` is large enough
/// to repay a scalar tensor. Otherwise allocates a result. 16-bit floats would round the number before they compute, so
/// they also allocate.
pub(super) fn replacing(op: &'static str, f: Unary, mut x: Tensor) -> Result<Tensor> {
    let (binary, scalar) = match f {
        Unary::Neg => (Binary::Mul, Scalar::Float(-1.0)),
        Unary::AddScalar(scalar) => (Binary::Add, scalar),
        Unary::MulScalar(scalar) => (Binary::Mul, scalar),
        Unary::DivScalar(scalar) => (Binary::Div, scalar),
        f => return apply(UnaryOp { op, f }, &[&x]),
    };
    let (device, dtype, elements) = (x.device().clone(), x.dtype(), x.elements());
    let worth_it =
        matches!(dtype, DType::F32 | DType::F64) && elements > device.backend().rules().chunk_elements();
    let recording = should_record(x.requires_grad());
    let Some(acc) = x.view_mut().filter(|_| worth_it) else { return apply(UnaryOp { op, f }, &[&x]) };
    device.placement().notify(op, &device, PlacementReason::Inputs);
    let mut ctx = OpContext::forward(op, &device, device.default_allocator()?, recording);
    let mut constant = ctx.temp(&Shape::SCALAR, dtype)?;
    ctx.compute(kernels::Fill { value: scalar, out: constant.view_mut() })?;
    let spread = constant.view().layout().broadcast_to(op, acc.layout().shape())?;
    ctx.compute(kernels::Accumulate { f: binary, input: constant.view().with_layout(&spread), acc })?;
    if !recording {
        return Ok(x.with_grad_edge(None));
    }
    let result = x.detach();
    Ok(autograd::record(Box::new(UnaryOp { op, f }), &[&x], ctx.take_saved(), result))
}

/// Converts the scalar for arithmetic with `dtype`. Integer types require a whole number, which may wrap as their
/// arithmetic does. Fractions are rejected, because they would be truncated silently.
pub(super) fn arithmetic_scalar(op: &'static str, scalar: Scalar, dtype: DType) -> Result<Scalar> {
    match scalar {
        Scalar::Float(value) if !dtype.is_float() => whole(value)
            .map(Scalar::Int)
            .ok_or_else(|| refused(op, scalar, dtype, "a whole number for a tensor of integers")),
        _ => Ok(scalar),
    }
}

/// Like [`arithmetic_scalar`], but the type must represent the number exactly. For division, wrapping would give wrong results.
pub(super) fn exact_scalar(op: &'static str, scalar: Scalar, dtype: DType) -> Result<Scalar> {
    match arithmetic_scalar(op, scalar, dtype)? {
        Scalar::Int(value)
            if dtype == DType::U8 && u8::try_from(value).is_err()
                || dtype == DType::I32 && i32::try_from(value).is_err()
                || dtype == DType::U32 && u32::try_from(value).is_err() =>
        {
            Err(refused(op, scalar, dtype, "a number that the element type can represent"))
        }
        scalar => Ok(scalar),
    }
}

/// Rounds a number to a 16-bit float type. The kernels compare in f32, where an element could lie between a bound and the
/// element that it rounds to.
fn rounded(scalar: Scalar, dtype: DType) -> Scalar {
    match dtype {
        DType::F16 => Scalar::Float(f16::from_f64(scalar.as_f64()).to_f64()),
        DType::BF16 => Scalar::Float(bf16::from_f64(scalar.as_f64()).to_f64()),
        _ => scalar,
    }
}

/// Checks the exponent for integers: a whole number of at least 0.
fn whole_exponent(op: &'static str, exponent: f64, dtype: DType) -> Result<f64> {
    if whole(exponent).is_some_and(|exponent| exponent >= 0) {
        return Ok(exponent);
    }
    let expected = "a whole number of at least 0 for a tensor of integers";
    let got = format!("{exponent} for a tensor of {dtype}");
    Err(Error::BadArgument { op, argument: "exponent", expected, got })
}

fn refused(op: &'static str, scalar: Scalar, dtype: DType, expected: &'static str) -> Error {
    Error::BadArgument { op, argument: "scalar", expected, got: format!("{scalar} for a tensor of {dtype}") }
}

/// Converts the number to an integer, if it is whole and in range.
fn whole(value: f64) -> Option<i64> {
    const LEAST: f64 = i64::MIN as f64;
    (value.fract() == 0.0 && (LEAST..-LEAST).contains(&value)).then_some(value as i64)
}

/// Returns -c, which wraps for integers.
pub(super) fn negated(scalar: Scalar, dtype: DType) -> Scalar {
    match scalar {
        Scalar::Float(value) => Scalar::Float(-value),
        // Floats do not wrap. The smallest integer has no positive counterpart.
        Scalar::Int(i64::MIN) if dtype.is_float() => Scalar::Float(-(i64::MIN as f64)),
        Scalar::Int(value) => Scalar::Int(value.wrapping_neg()),
    }
}

/// Defines the methods of the functions without constants.
macro_rules! methods {
    ($(
        $(#[$meta:meta])*
        $name:ident: $variant:ident $(($($constant:ident: $type:ty = $example:expr),+))? {
            domain: $domain:ident, grad_reads: $reads:ident, smooth: [$($smooth:expr),+],
            value: $cost:ident($value:expr),
            grad: $grad_cost:ident($grad:expr),
        }
    )*) => {
        /// # Elementwise math
        ///
        /// Functions and activations of each element.
        impl Tensor {
            $(method! { [$($($constant)+)?] $(#[$meta])* $name: $variant, $domain })*
        }
    };
}

/// Defines the method of a function, unless it has constants.
macro_rules! method {
    ([] $(#[$meta:meta])* $name:ident: $variant:ident, $domain:ident) => {
        $(#[$meta])*
        ///
        /// # Errors
        #[doc = unsupported_types!($domain)]
        /// [`Error::Allocation`] if there is no memory.
        pub fn $name(&self) -> Result<Self> {
            self.unary(Unary::$variant)
        }
    };
    ([$($constant:ident)+] $($function:tt)*) => {};
}

unary_functions!(methods);

impl Tensor {
    /// Applies a function of the table.
    #[doc(hidden)]
    pub fn unary(&self, f: Unary) -> Result<Self> {
        apply(UnaryOp { op: f.name(), f }, &[self])
    }

    /// ReLU6 activation min(max(x, 0), 6), as in MobileNet: [`clamp`](Self::clamp) to the range from 0 to 6.
    ///
    /// # Errors
    /// See [`Tensor::clamp`].
    pub fn relu6(&self) -> Result<Self> {
        self.clamp(0, 6)
    }
}

/// # Arithmetic with a number
impl Tensor {
    /// Adds a number to each element: x + c. Integers wrap.
    ///
    /// # Errors
    /// [`Error::UnsupportedDType`] for booleans; [`Error::BadArgument`] for integer elements and a number that is not
    /// whole; [`Error::Allocation`] if there is no memory.
    pub fn add_scalar(&self, scalar: impl Into<Scalar>) -> Result<Self> {
        self.unary(Unary::AddScalar(scalar.into()))
    }

    /// Subtracts a number from each element: x - c. Integers wrap.
    ///
    /// # Errors
    /// See [`Tensor::add_scalar`].
    pub fn sub_scalar(&self, scalar: impl Into<Scalar>) -> Result<Self> {
        apply(
            UnaryOp { op: "sub_scalar", f: Unary::AddScalar(negated(scalar.into(), self.dtype())) },
            &[self],
        )
    }

    /// Multiplies each element by a number: x c. Integers wrap.
    ///
    /// # Errors
    /// See [`Tensor::add_scalar`].
    pub fn mul_scalar(&self, scalar: impl Into<Scalar>) -> Result<Self> {
        self.unary(Unary::MulScalar(scalar.into()))
    }

    /// Leaky ReLU activation: x above 0, `slope` x below. The derivative at 0 is `slope`.
    ///
    /// # Errors
    /// [`Error::UnsupportedDType`] unless the elements are floats; [`Error::Allocation`] if there is no memory.
    #[doc(alias("LeakyReLU"))]
    pub fn leaky_relu(&self, slope: f64) -> Result<Self> {
        self.unary(Unary::LeakyRelu(slope))
    }

    /// ELU activation: x above 0, `alpha` (eˣ - 1) below. The derivative at 0 is `alpha`.
    ///
    /// # Errors
    /// [`Error::UnsupportedDType`] unless the elements are floats; [`Error::Allocation`] if there is no memory.
    pub fn elu(&self, alpha: f64) -> Result<Self> {
        self.unary(Unary::Elu(alpha))
    }

    /// Raises each element to a power. [`pow`](Self::pow) takes a tensor of exponents.
    ///
    /// The powers ½ and -½ use square roots, as PyTorch's: -∞ gives NaN, and -0 keeps its sign. Integers wrap.
    ///
    /// # Errors
    /// [`Error::UnsupportedDType`] for booleans; [`Error::BadArgument`] for integer elements and a power that is
    /// negative, as in NumPy, or not whole; [`Error::Allocation`] if there is no memory.
    #[doc(alias("pow", "power"))]
    pub fn powf(&self, exponent: f64) -> Result<Self> {
        self.unary(Unary::Powf(exponent))
    }

    /// Clamps each element to the range from `low` to `high`, as PyTorch's `clamp`. NaN stays NaN. The derivative is 1
    /// strictly between the bounds, and 0 elsewhere, also at the bounds. Bounds are rounded to the element type.
    ///
    /// Integers clamped to indices of an axis need no further check: ops that index with them do not wait for a GPU.
    ///
    /// For one bound, use [`maximum`](Self::maximum) or [`minimum`](Self::minimum), or an infinite other bound.
    ///
    /// ```
    /// use highwater::{Device, Tensor};
    /// let x = Tensor::from_slice(&Device::cpu()?, &[-3.0f32, 0.5, 7.0], [3])?;
    /// assert_eq!(x.clamp(-1.0, 1.0)?.to_vec::<f32>()?, [-1.0, 0.5, 1.0]);
    /// # Ok::<(), highwater::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::UnsupportedDType`] for booleans; [`Error::BadArgument`] unless `low` ≤ `high` and the element type can
    /// represent both; [`Error::Allocation`] if there is no memory.
    #[doc(alias("clip"))]
    pub fn clamp(&self, low: impl Into<Scalar>, high: impl Into<Scalar>) -> Result<Self> {
        let (op, low, high) = ("clamp", low.into(), high.into());
        let in_order = match (low, high) {
            (Scalar::Int(low), Scalar::Int(high)) => low <= high,
            _ => low.as_f64() <= high.as_f64(),
        };
        if in_order {
            let [low, high] = [low, high].map(|bound| rounded(bound, self.dtype()));
            return self.unary(Unary::Clamp(low, high));
        }
        let got = format!("{low} and {high}");
        Err(Error::BadArgument { op, argument: "bounds", expected: "numbers with low <= high", got })
    }

    /// Divides each element by a number: x / c. Integer division truncates towards zero, and division by 0 gives 0.
    ///
    /// # Errors
    /// See [`Tensor::add_scalar`]; [`Error::BadArgument`] also for a number that the element type cannot represent.
    pub fn div_scalar(&self, scalar: impl Into<Scalar>) -> Result<Self> {
        self.unary(Unary::DivScalar(scalar.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::{Device, Runtime};

    fn cpu() -> Device {
        Runtime::builder().threads(1).build().unwrap().cpu().unwrap()
    }

    #[test]
    fn integers_are_computed_with_where_that_has_a_meaning() {
        let x = Tensor::from_slice(&cpu(), &[-7i64, 0, 5], 3).unwrap();
        let ints = |result: Result<Tensor>| result.unwrap().to_vec::<i64>().unwrap();
        assert_eq!(ints(x.neg()), [7, 0, -5]);
        assert_eq!(ints(x.abs()), [7, 0, 5]);
        assert_eq!(ints(x.square()), [49, 0, 25]);
        assert_eq!(ints(x.relu()), [0, 0, 5]);
        assert_eq!(ints(x.sub_scalar(2)), [-9, -2, 3]);
        assert_eq!(ints(x.mul_scalar(2.0)), [-14, 0, 10]);
        assert_eq!(ints(x.div_scalar(2)), [-3, 0, 2]);
        assert_eq!(ints(x.div_scalar(0)), [0, 0, 0]);
        assert_eq!(x.exp().unwrap_err(), Error::UnsupportedDType { op: "exp", dtype: DType::I64 });
    }

    #[test]
    fn a_fraction_is_not_cut_silently_for_integers() {
        let error = Tensor::arange(&cpu(), 0, 3).unwrap().mul_scalar(0.5).unwrap_err();
        assert_eq!(
            error.to_string(),
            "mul_scalar: scalar must be a whole number for a tensor of integers, got 0.5 for a tensor of i64"
        );
        assert!(Tensor::arange(&cpu(), 0, 3).unwrap().add_scalar(f64::NAN).is_err());
    }

    #[test]
    fn division_by_a_scalar_rounds_once() {
        let x = Tensor::full_of(&cpu(), 1, 49.0, DType::F64).unwrap();
        // 49 · (1/49) is not 1 in binary.
        assert_eq!(x.div_scalar(49.0).unwrap().item::<f64>().unwrap(), 1.0);
    }

    #[test]
    fn ops_whose_derivative_is_constant_save_nothing() {
        let device = cpu();
        let in_use = || device.default_allocator().unwrap().stats().bytes_in_use;
        let x = Tensor::ones(&device, 1000).unwrap().requiring_grad().unwrap();
        let before = in_use();
        let y = x.neg().unwrap().add_scalar(1.0).unwrap().mul_scalar(3.0).unwrap().div_scalar(2.0).unwrap();
        assert_eq!(in_use() - before, 4096, "only the last output is left");
        let gradients = y.sum_all().unwrap().backward().unwrap();
        assert_eq!(gradients.get(&x).unwrap().to_vec::<f32>().unwrap(), [-1.5; 1000]);
    }
}

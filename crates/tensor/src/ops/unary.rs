//! Functions of one number, element by element.
//!
//! | op | y | ∂y/∂x | saved |
//! |---|---|---|---|
//! | `neg` | -x | -1 | |
//! | `abs` | \|x\| | sign x, 0 at 0 | x |
//! | `square` | x² | 2x | x |
//! | `exp` | eˣ | y | y |
//! | `log` | ln x | 1/x | x |
//! | `sqrt` | √x | 1/(2y) | y |
//! | `relu` | max(x, 0) | 1 for y > 0, else 0 | y |
//! | `gelu` | x Φ(x) | Φ(x) + x φ(x) | x |
//! | `tanh` | tanh x | 1 - y² | y |
//! | `sigmoid` | 1/(1 + e⁻ˣ) | y (1 - y) | y |
//! | `recip` | 1/x | -y² | y |
//! | `rsqrt` | 1/√x | -y³/2 | y |
//! | `sign` | 1, 0, -1 | 0 | |
//! | `floor`, `ceil`, `round` | a whole number near x | 0 | |
//! | `sin` | sin x | cos x | x |
//! | `cos` | cos x | -sin x | x |
//! | `silu` | x σ(x) | σ(x) (1 + x (1 - σ(x))) | x |
//! | `softplus` | ln(1 + eˣ) | σ(x) | x |
//! | `gelu_tanh` | x Φ(x), approximately | of the approximation | x |
//! | `leaky_relu` | x, c x below 0 | 1, c for x ≤ 0 | x |
//! | `powf` | xᶜ | c xᶜ⁻¹ | x |
//! | `clamp` | x between two numbers | 1 there, else 0 | x |
//! | `add_scalar`, `sub_scalar` | x ± c | 1 | |
//! | `mul_scalar` | x c | c | |
//! | `div_scalar` | x / c | 1/c | |
//!
//! The shape stays. One output is taken. Division is no multiplication by the inverse, which would round twice and has no
//! meaning for integers.

use super::{is_number, supported};
use crate::autograd;
use crate::autograd::apply;
use crate::backend::{Binary, Kernel, Unary};
use crate::device::PlacementReason;
use crate::error::{Error, Result};
use crate::op::Saved;
use crate::op::mode::records;
use crate::op::{HeldOp, Op, OpContext};
use crate::shape::{DType, Scalar, Shape};
use crate::tensor::Tensor;

#[derive(Debug)]
struct UnaryOp {
    /// A public name: subtraction is addition to the backend.
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
            dtype.is_float() || self.f.supports_integers() && is_number(dtype)
        })?;
        let f = match self.f {
            Unary::AddScalar(scalar) => Unary::AddScalar(fits(self.op, scalar, x.dtype())?),
            Unary::MulScalar(scalar) => Unary::MulScalar(fits(self.op, scalar, x.dtype())?),
            Unary::DivScalar(scalar) => Unary::DivScalar(holds(self.op, scalar, x.dtype())?),
            Unary::Clamp(low, high) => {
                Unary::Clamp(holds(self.op, low, x.dtype())?, holds(self.op, high, x.dtype())?)
            }
            Unary::Powf(exponent) if !x.dtype().is_float() => {
                Unary::Powf(whole_exponent(self.op, exponent, x.dtype())?)
            }
            f => f,
        };
        let saves_output = self.f.grad_reads_output() && !self.f.is_flat();
        let take = if saves_output { OpContext::output_saved } else { OpContext::output };
        let mut out = take(ctx, x.shape(), x.dtype())?;
        ctx.compute(Kernel::Unary { f, input: x.view(), out: out.view_mut() })?;
        let y = out.finish();
        match self.f {
            Unary::Neg | Unary::AddScalar(_) | Unary::MulScalar(_) | Unary::DivScalar(_) => {}
            f if f.is_flat() => {}
            f if f.grad_reads_output() => ctx.save(&y),
            _ => ctx.save(x),
        }
        Ok(y)
    }

    fn backward(&self, ctx: &OpContext<'_>, saved: &Saved, grad: &Tensor) -> Result<Vec<Option<Tensor>>> {
        let gradient = match self.f {
            Unary::Neg => grad.neg()?,
            Unary::AddScalar(_) => grad.clone(),
            Unary::MulScalar(scalar) => grad.mul_scalar(scalar)?,
            Unary::DivScalar(scalar) => grad.div_scalar(scalar)?,
            f if f.is_flat() => return Ok(vec![None]),
            f => {
                let mut out = ctx.output(grad.shape(), grad.dtype())?;
                let saved = saved.tensor(0)?.view();
                ctx.compute(Kernel::UnaryGrad { f, saved, grad: Some(grad.view()), out: out.view_mut() })?;
                out.finish()
            }
        };
        Ok(vec![Some(gradient)])
    }
}

/// A function of `x` and a number, in the buffer of `x` if nobody else looks into it and there are so many elements that this
/// is worth a constant of its own; else as a new tensor. Halves would round the constant before they are computed with.
pub(super) fn replacing(op: &'static str, f: Unary, mut x: Tensor) -> Result<Tensor> {
    let (binary, scalar) = match f {
        Unary::Neg => (Binary::Mul, Scalar::Float(-1.0)),
        Unary::AddScalar(scalar) => (Binary::Add, scalar),
        Unary::MulScalar(scalar) => (Binary::Mul, scalar),
        Unary::DivScalar(scalar) => (Binary::Div, scalar),
        f => return apply(UnaryOp { op, f }, &[&x]),
    };
    let (device, dtype, elements) = (x.device().clone(), x.dtype(), x.elements());
    let worth_it = matches!(dtype, DType::F32 | DType::F64) && elements > device.backend().chunk_elements();
    let recording = records(x.requires_grad());
    let Some(acc) = x.view_mut().filter(|_| worth_it) else { return apply(UnaryOp { op, f }, &[&x]) };
    device.placement().tell(op, &device, PlacementReason::Inputs);
    let mut ctx = OpContext::forward(op, &device, device.default_allocator()?, recording);
    let mut constant = ctx.temp(&Shape::SCALAR, dtype)?;
    ctx.compute(Kernel::Fill { value: scalar, out: constant.view_mut() })?;
    let spread = constant.view().layout().broadcast_to(op, acc.layout().shape())?;
    ctx.compute(Kernel::Accumulate { f: binary, input: constant.view().with_layout(&spread), acc })?;
    if !recording {
        return Ok(x.with_grad_edge(None));
    }
    let result = x.detach();
    Ok(autograd::record(HeldOp::Custom(Box::new(UnaryOp { op, f })), &[&x], ctx.take_saved(), result))
}

/// The scalar as a tensor of `dtype` computes with it. For integers that is a whole number, which may wrap as their
/// arithmetic does; a fraction would silently be cut, and is refused.
pub(super) fn fits(op: &'static str, scalar: Scalar, dtype: DType) -> Result<Scalar> {
    match scalar {
        Scalar::Float(value) if !dtype.is_float() => whole(value)
            .map(Scalar::Int)
            .ok_or_else(|| refused(op, scalar, dtype, "a whole number for a tensor of integers")),
        _ => Ok(scalar),
    }
}

/// As [`fits`], for division, with which wrapping does not agree: the number must be one of the type's.
pub(super) fn holds(op: &'static str, scalar: Scalar, dtype: DType) -> Result<Scalar> {
    match fits(op, scalar, dtype)? {
        Scalar::Int(value)
            if dtype == DType::U8 && u8::try_from(value).is_err()
                || dtype == DType::I32 && i32::try_from(value).is_err() =>
        {
            Err(refused(op, scalar, dtype, "a number that the element type holds"))
        }
        scalar => Ok(scalar),
    }
}

/// The power to which integers are raised: whole and not below 0, since others are no integers.
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

/// The number as an integer, if it is one that there is.
fn whole(value: f64) -> Option<i64> {
    const LEAST: f64 = i64::MIN as f64;
    (value.fract() == 0.0 && (LEAST..-LEAST).contains(&value)).then_some(value as i64)
}

/// -c, which for integers wraps.
pub(super) fn negated(scalar: Scalar, dtype: DType) -> Scalar {
    match scalar {
        Scalar::Float(value) => Scalar::Float(-value),
        // Floats do not wrap: there is no integer for the opposite of the least.
        Scalar::Int(i64::MIN) if dtype.is_float() => Scalar::Float(-(i64::MIN as f64)),
        Scalar::Int(value) => Scalar::Int(value.wrapping_neg()),
    }
}

macro_rules! unary_methods {
    ($($(#[$doc:meta])* $name:ident = $f:ident;)*) => {
        impl Tensor {$(
            $(#[$doc])*
            pub fn $name(&self) -> Result<Self> {
                apply(UnaryOp { op: Unary::$f.name(), f: Unary::$f }, &[self])
            }
        )*}
    };
}

unary_methods! {
    /// -x. Integers wrap.
    ///
    /// # Errors
    /// [`Error::UnsupportedDType`] for truth values; [`Error::Allocation`] if there is no memory.
    #[doc(alias("negative"))]
    neg = Neg;
    /// |x|. Integers wrap: the least one has no counterpart.
    ///
    /// # Errors
    /// [`Error::UnsupportedDType`] for truth values; [`Error::Allocation`] if there is no memory.
    abs = Abs;
    /// x². Integers wrap.
    ///
    /// # Errors
    /// [`Error::UnsupportedDType`] for truth values; [`Error::Allocation`] if there is no memory.
    square = Square;
    /// eˣ.
    ///
    /// # Errors
    /// [`Error::UnsupportedDType`] except for floats; [`Error::Allocation`] if there is no memory.
    exp = Exp;
    /// ln x: NaN below 0, -∞ at 0.
    ///
    /// # Errors
    /// [`Error::UnsupportedDType`] except for floats; [`Error::Allocation`] if there is no memory.
    #[doc(alias("ln"))]
    log = Log;
    /// √x: NaN below 0.
    ///
    /// # Errors
    /// [`Error::UnsupportedDType`] except for floats; [`Error::Allocation`] if there is no memory.
    sqrt = Sqrt;
    /// max(x, 0). The derivative at 0 is 0.
    ///
    /// # Errors
    /// [`Error::UnsupportedDType`] for truth values; [`Error::Allocation`] if there is no memory.
    relu = Relu;
    /// x Φ(x), where Φ is the normal distribution function, exactly (by erf) as PyTorch's default.
    ///
    /// # Errors
    /// [`Error::UnsupportedDType`] except for floats; [`Error::Allocation`] if there is no memory.
    gelu = Gelu;
    /// tanh x.
    ///
    /// # Errors
    /// [`Error::UnsupportedDType`] except for floats; [`Error::Allocation`] if there is no memory.
    tanh = Tanh;
    /// 1 / (1 + e⁻ˣ).
    ///
    /// # Errors
    /// [`Error::UnsupportedDType`] except for floats; [`Error::Allocation`] if there is no memory.
    sigmoid = Sigmoid;
    /// 1 / x.
    ///
    /// # Errors
    /// [`Error::UnsupportedDType`] except for floats; [`Error::Allocation`] if there is no memory.
    recip = Recip;
    /// 1 / √x: NaN below 0, ∞ at 0.
    ///
    /// # Errors
    /// [`Error::UnsupportedDType`] except for floats; [`Error::Allocation`] if there is no memory.
    rsqrt = Rsqrt;
    /// 1 above 0, -1 below, 0 at 0. No gradient flows through it.
    ///
    /// # Errors
    /// [`Error::UnsupportedDType`] for truth values; [`Error::Allocation`] if there is no memory.
    sign = Sign;
    /// The largest whole number that is not above x. No gradient flows through it.
    ///
    /// # Errors
    /// [`Error::UnsupportedDType`] except for floats; [`Error::Allocation`] if there is no memory.
    floor = Floor;
    /// The least whole number that is not below x. No gradient flows through it.
    ///
    /// # Errors
    /// [`Error::UnsupportedDType`] except for floats; [`Error::Allocation`] if there is no memory.
    ceil = Ceil;
    /// The whole number nearest to x; halfway between two the even one, as in NumPy and PyTorch. No gradient flows through it.
    ///
    /// # Errors
    /// [`Error::UnsupportedDType`] except for floats; [`Error::Allocation`] if there is no memory.
    round = Round;
    /// sin x, for x in radians.
    ///
    /// # Errors
    /// [`Error::UnsupportedDType`] except for floats; [`Error::Allocation`] if there is no memory.
    sin = Sin;
    /// cos x, for x in radians.
    ///
    /// # Errors
    /// [`Error::UnsupportedDType`] except for floats; [`Error::Allocation`] if there is no memory.
    cos = Cos;
    /// x / (1 + e⁻ˣ), also called swish.
    ///
    /// # Errors
    /// [`Error::UnsupportedDType`] except for floats; [`Error::Allocation`] if there is no memory.
    #[doc(alias("swish"))]
    silu = Silu;
    /// ln(1 + eˣ), which does not overflow.
    ///
    /// # Errors
    /// [`Error::UnsupportedDType`] except for floats; [`Error::Allocation`] if there is no memory.
    softplus = Softplus;
    /// ½ x (1 + tanh(√(2/π) (x + 0.044715 x³))): nearly [`gelu`](Self::gelu), as in GPT-2.
    ///
    /// # Errors
    /// [`Error::UnsupportedDType`] except for floats; [`Error::Allocation`] if there is no memory.
    gelu_tanh = GeluTanh;
}

impl Tensor {
    /// x + c. Integers wrap.
    ///
    /// # Errors
    /// [`Error::UnsupportedDType`] for truth values; [`Error::BadArgument`] for a tensor of integers and a number that
    /// is none; [`Error::Allocation`] if there is no memory.
    pub fn add_scalar(&self, scalar: impl Into<Scalar>) -> Result<Self> {
        apply(UnaryOp { op: "add_scalar", f: Unary::AddScalar(scalar.into()) }, &[self])
    }

    /// x - c. Integers wrap.
    ///
    /// # Errors
    /// As [`Tensor::add_scalar`].
    pub fn sub_scalar(&self, scalar: impl Into<Scalar>) -> Result<Self> {
        apply(
            UnaryOp { op: "sub_scalar", f: Unary::AddScalar(negated(scalar.into(), self.dtype())) },
            &[self],
        )
    }

    /// x c. Integers wrap.
    ///
    /// # Errors
    /// As [`Tensor::add_scalar`].
    pub fn mul_scalar(&self, scalar: impl Into<Scalar>) -> Result<Self> {
        apply(UnaryOp { op: "mul_scalar", f: Unary::MulScalar(scalar.into()) }, &[self])
    }

    /// x where it is above 0, `slope` x below. The derivative at 0 is `slope`.
    ///
    /// # Errors
    /// [`Error::UnsupportedDType`] except for floats; [`Error::Allocation`] if there is no memory.
    #[doc(alias("LeakyReLU"))]
    pub fn leaky_relu(&self, slope: f64) -> Result<Self> {
        apply(UnaryOp { op: "leaky_relu", f: Unary::LeakyRelu(slope) }, &[self])
    }

    /// x to a power. See [`pow`](Self::pow) for powers that are a tensor. Powers of ½ and -½ are by square roots, as
    /// PyTorch's: NaN for -∞, and the sign of -0 stays. Integers wrap.
    ///
    /// # Errors
    /// [`Error::UnsupportedDType`] for truth values; [`Error::BadArgument`] for a tensor of integers and a power that is below 0, as in
    /// NumPy, or not whole; [`Error::Allocation`] if there is no memory.
    #[doc(alias("pow", "power"))]
    pub fn powf(&self, exponent: f64) -> Result<Self> {
        apply(UnaryOp { op: "powf", f: Unary::Powf(exponent) }, &[self])
    }

    /// x, but at least `low` and at most `high`. NaN stays NaN. The derivative is 1 from `low` to `high` and 0 elsewhere.
    ///
    /// ```
    /// use highwater::{Device, Tensor};
    /// let x = Tensor::from_slice(&Device::cpu()?, &[-3.0f32, 0.5, 7.0], [3])?;
    /// assert_eq!(x.clamp(-1.0, 1.0)?.to_vec::<f32>()?, [-1.0, 0.5, 1.0]);
    /// # Ok::<(), highwater::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::UnsupportedDType`] for truth values; [`Error::BadArgument`] unless `low` ≤ `high` and both are numbers of
    /// the element type; [`Error::Allocation`] if there is no memory.
    #[doc(alias("clip"))]
    pub fn clamp(&self, low: impl Into<Scalar>, high: impl Into<Scalar>) -> Result<Self> {
        let (op, low, high) = ("clamp", low.into(), high.into());
        let in_order = match (low, high) {
            (Scalar::Int(low), Scalar::Int(high)) => low <= high,
            _ => low.as_f64() <= high.as_f64(),
        };
        if in_order {
            return apply(UnaryOp { op, f: Unary::Clamp(low, high) }, &[self]);
        }
        let got = format!("{low} and {high}");
        Err(Error::BadArgument { op, argument: "bounds", expected: "the lower first", got })
    }

    /// x / c. Integers are cut towards zero, and divided by 0 they are 0.
    ///
    /// # Errors
    /// As [`Tensor::add_scalar`]; [`Error::BadArgument`] also for a number that the element type does not hold.
    pub fn div_scalar(&self, scalar: impl Into<Scalar>) -> Result<Self> {
        apply(UnaryOp { op: "div_scalar", f: Unary::DivScalar(scalar.into()) }, &[self])
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
        let error = Tensor::arange(&cpu(), 3).unwrap().mul_scalar(0.5).unwrap_err();
        assert_eq!(
            error.to_string(),
            "mul_scalar: scalar must be a whole number for a tensor of integers, got 0.5 for a tensor of i64"
        );
        assert!(Tensor::arange(&cpu(), 3).unwrap().add_scalar(f64::NAN).is_err());
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

//! Elementwise arithmetic of two tensors, with NumPy broadcasting.
//!
//! | op | y | ∂y/∂a | ∂y/∂b | saved for ∂a | saved for ∂b |
//! |---|---|---|---|---|---|
//! | `add` | a + b | 1 | 1 | | |
//! | `sub` | a - b | 1 | -1 | | |
//! | `mul` | a b | b | a | b | a |
//! | `div` | a / b | 1/b | -a/b² | b | a, b |
//! | `maximum` | max(a, b) | 1 where a > b | 1 where b > a | a, b | a, b |
//! | `minimum` | min(a, b) | 1 where a < b | 1 where b < a | a, b | a, b |
//! | `pow` | aᵇ | b aᵇ⁻¹ | y ln a | a, b | a, b |
//! | `atan2` | the angle of (b, a) | b / (a² + b²) | -a / (a² + b²) | a, b | a, b |
//! | `silu_mul` | silu(a) b | silu'(a) b | silu(a) | a, b | a |
//!
//! Operands of different element types are promoted to one ([`DType::promote`](crate::DType::promote)).
//!
//! At a tie, `maximum` and `minimum` give each side half of the gradient, as in PyTorch. If a side is NaN, both sides
//! get the full gradient. The gradient of a broadcast operand is summed over the repeated axes. The gradients of
//! powers, angles, and of quotients by b, take several steps. 16-bit floats are upcast before the first step and rounded after
//! the last, because intermediate results may exceed their range.

use super::create::constant_like;
use super::{
    apply_promoted, broadcast_pair, if_needed, is_numeric, same_dtype, supported, unsupported_types,
};
use crate::autograd;
use crate::backend::{Binary, Domain, Unary, binary_functions, kernels};
use crate::device::PlacementReason;
use crate::error::Result;
use crate::op::Saved;
use crate::op::mode::should_record;
use crate::op::{Op, OpContext, Summation};
use crate::shape::{DType, Shape};
use crate::tensor::Tensor;

#[derive(Debug)]
struct BinaryOp(Binary);

/// Whether an op of tensors of this type computes the function.
fn supports(f: Binary, dtype: DType) -> bool {
    if f.domain() == Domain::Floats { dtype.is_float() } else { is_numeric(dtype) }
}

impl BinaryOp {
    /// Returns which operands backward reads, given which gradients are required.
    const fn reads(&self, needs_grad: [bool; 2]) -> [bool; 2] {
        match self.0 {
            Binary::Add | Binary::Sub => [false, false],
            Binary::Mul => [needs_grad[1], needs_grad[0]],
            Binary::SiluMul => [true, needs_grad[0]],
            Binary::Div => [needs_grad[1], true],
            Binary::Maximum | Binary::Minimum | Binary::Pow | Binary::Atan2 => [true, true],
        }
    }
}

impl Op for BinaryOp {
    fn name(&self) -> &'static str {
        self.0.name()
    }

    fn forward(&self, ctx: &OpContext<'_>, inputs: &[&Tensor]) -> Result<Tensor> {
        let (op, [lhs, rhs]) = (self.name(), [inputs[0], inputs[1]]);
        same_dtype(op, lhs, rhs)?;
        let f = self.0;
        supported(op, lhs.dtype(), |dtype| supports(f, dtype))?;
        let out = broadcast_pair(ctx, [lhs, rhs], lhs.dtype(), |[lhs, rhs], out| {
            kernels::Zip { f, lhs, rhs, out }.into()
        })?;
        let [read_lhs, read_rhs] = self.reads([lhs.requires_grad(), rhs.requires_grad()]);
        if read_lhs {
            ctx.save(lhs);
        }
        if read_rhs {
            ctx.save(rhs);
        }
        Ok(out)
    }

    fn backward(&self, ctx: &OpContext<'_>, saved: &mut Saved, grad: Tensor) -> Result<Vec<Option<Tensor>>> {
        let [lhs_was_saved, _] = self.reads([saved.needs_grad(0), saved.needs_grad(1)]);
        let lhs = || saved.tensor(0);
        let rhs = || saved.tensor(usize::from(lhs_was_saved));
        let rounded = |index, gradient: Tensor| {
            gradient.sum_to(saved.input_shape(index))?.to_dtype(saved.input_dtype(index))
        };
        let to_lhs = || {
            Ok(match self.0 {
                Binary::Add | Binary::Sub => grad.clone(),
                Binary::Mul => grad.mul(rhs()?)?,
                Binary::Div => grad.div(rhs()?)?,
                Binary::Maximum => grad.mul(&share_of_larger(lhs()?, rhs()?)?)?,
                Binary::Minimum => grad.mul(&share_of_larger(rhs()?, lhs()?)?)?,
                Binary::Pow => {
                    let (a, b) = (lhs()?.upcast()?, rhs()?.upcast()?);
                    let slope = a.pow(&b.add_scalar(-1.0)?)?.mul(&b)?;
                    // x⁰ is constant also at 0, where the formula is undefined.
                    let zero = b.clamp(0.0, 0.0)?;
                    rounded(0, grad.upcast()?.mul(&b.eq(&zero)?.where_(&zero, &slope)?)?)?
                }
                Binary::Atan2 => {
                    let [y, x] = [lhs()?.upcast()?, rhs()?.upcast()?];
                    rounded(0, grad.upcast()?.mul(&x.div(&squared_distance(&y, &x)?)?)?)?
                }
                Binary::SiluMul => {
                    let (a, through) = (lhs()?.upcast()?, grad.upcast()?.mul(&rhs()?.upcast()?)?);
                    let a = a.broadcast_to(*through.shape())?;
                    let mut out = ctx.gradient(0, through.shape(), through.dtype())?;
                    let (f, saved, grad) = (Unary::Silu, a.view(), Some(through.view()));
                    ctx.compute(kernels::MapGrad { f, saved, grad, out: out.view_mut() })?;
                    rounded(0, out.finish())?
                }
            })
        };
        let to_rhs = || {
            Ok(match self.0 {
                Binary::Add => grad.clone(),
                // The sum comes before the negation, because it may be smaller.
                Binary::Sub => grad.sum_to(saved.input_shape(1))?.neg()?,
                Binary::Mul => grad.mul(lhs()?)?,
                Binary::Div => {
                    let b = rhs()?.upcast()?;
                    // The product of a and the gradient may exceed the type's range where the quotient by b does not.
                    let quotient = lhs()?.upcast()?.div(&b)?;
                    let slope = replacing(Binary::Div, quotient, &b)?;
                    let product = replacing(Binary::Mul, slope, &grad.upcast()?)?;
                    rounded(1, product)?.neg()?
                }
                Binary::Maximum => grad.mul(&share_of_larger(rhs()?, lhs()?)?)?,
                Binary::Minimum => grad.mul(&share_of_larger(lhs()?, rhs()?)?)?,
                Binary::Pow => {
                    let (a, b) = (lhs()?.upcast()?, rhs()?.upcast()?);
                    let slope = a.pow(&b)?.mul(&a.log()?)?;
                    // 0ᵇ is 0 for all b ≥ 0, where ln 0 is not finite.
                    let zero = a.clamp(0.0, 0.0)?;
                    let of_zero = b.ge(&constant_like(&b, 0)?)?.where_(&zero, &slope)?;
                    rounded(1, grad.upcast()?.mul(&a.eq(&zero)?.where_(&of_zero, &slope)?)?)?
                }
                Binary::Atan2 => {
                    let [y, x] = [lhs()?.upcast()?, rhs()?.upcast()?];
                    rounded(1, grad.upcast()?.mul(&y.div(&squared_distance(&y, &x)?)?)?)?.neg()?
                }
                Binary::SiluMul => lhs()?.silu_mul(&grad)?,
            })
        };
        let summed = |index, gradient: Result<Tensor>| gradient?.sum_to(saved.input_shape(index));
        Ok(vec![if_needed(saved, 0, || summed(0, to_lhs()))?, if_needed(saved, 1, || summed(1, to_rhs()))?])
    }

    fn summation(&self, _: &[Shape]) -> Summation {
        match self.0 {
            Binary::Add | Binary::Sub => Summation::ELEMENTWISE,
            Binary::Mul => Summation::Product,
            _ => Summation::Other,
        }
    }
}

/// Computes a f b in the buffer of `a` if no other handle shares it; otherwise allocates a result.
///
/// Source: TensorFlow forwards an input with a single reference. Here, moving `a` states that the caller no longer uses
/// it. The buffer stays charged to the op that allocated it.
pub(super) fn replacing(f: Binary, mut lhs: Tensor, rhs: &Tensor) -> Result<Tensor> {
    let op = BinaryOp(f);
    let recording = should_record(lhs.requires_grad() || rhs.requires_grad());
    let [reads_lhs, reads_rhs] = op.reads([lhs.requires_grad(), rhs.requires_grad()]);
    let fits = lhs.dtype() == rhs.dtype()
        && supports(f, lhs.dtype())
        && lhs.device() == rhs.device()
        && !(recording && reads_lhs);
    let spread = rhs.layout().broadcast_to(op.name(), lhs.shape());
    let (true, Ok(spread)) = (fits, spread) else { return apply_promoted(op, &lhs, rhs) };
    let Some(acc) = lhs.view_mut() else { return apply_promoted(op, &lhs, rhs) };
    let device = rhs.device();
    device.placement().notify(op.name(), device, PlacementReason::Inputs);
    let mut ctx = OpContext::forward(op.name(), device, device.default_allocator()?, recording);
    ctx.compute(kernels::Accumulate { f, input: rhs.view().with_layout(&spread), acc })?;
    if !recording || !lhs.dtype().is_float() {
        return Ok(lhs.with_grad_edge(None));
    }
    if reads_rhs {
        ctx.save(rhs);
    }
    let result = lhs.detach();
    Ok(autograd::record(Box::new(op), &[&lhs, rhs], ctx.take_saved(), result))
}

/// Computes a f b, in the buffer of `b` if f is commutative and no other handle shares the buffer.
pub(super) fn replacing_either(f: Binary, lhs: &Tensor, rhs: Tensor) -> Result<Tensor> {
    let op = BinaryOp(f);
    let commutes = matches!(f, Binary::Add | Binary::Mul);
    if commutes && lhs.layout().broadcast_to(op.name(), rhs.shape()).is_ok() {
        replacing(f, rhs, lhs)
    } else {
        apply_promoted(op, lhs, &rhs)
    }
}

/// The square of the distance of points from the origin.
fn squared_distance(y: &Tensor, x: &Tensor) -> Result<Tensor> {
    replacing(Binary::Add, y.square()?, &x.square()?)
}

/// The share of a in the gradient of max(a, b): 1 where a is larger, ½ at ties, 0 where it is smaller.
fn share_of_larger(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    let smaller = a.lt(b)?.to_dtype(a.dtype())?;
    let not_larger = a.le(b)?.to_dtype(a.dtype())?;
    smaller.add(&not_larger)?.mul_scalar(-0.5)?.add_scalar(1.0)
}

/// Defines the methods.
macro_rules! methods {
    ($(
        $(#[$meta:meta])*
        $name:ident: $variant:ident {
            domain: $domain:ident, booleans: $booleans:literal, smooth: [$($a:expr),+] and [$($b:expr),+],
            value: $cost:ident($value:expr),
        }
    )*) => {
        /// # Elementwise arithmetic of two tensors
        ///
        /// The operators `+`, `-`, `*` and `/` call these methods. Operands broadcast as in NumPy.
        impl Tensor {$(
            $(#[$meta])*
            ///
            /// # Errors
            /// [`Error::ShapeMismatch`](crate::Error::ShapeMismatch) if the shapes do not broadcast,
            #[doc = unsupported_types!($domain)]
            /// [`Error::Allocation`](crate::Error::Allocation) if there is no memory.
            pub fn $name(&self, rhs: &Self) -> Result<Self> {
                self.binary(Binary::$variant, rhs)
            }
        )*}
    };
}

binary_functions!(methods);

impl Tensor {
    /// Applies a function of the table.
    #[doc(hidden)]
    pub fn binary(&self, f: Binary, rhs: &Self) -> Result<Self> {
        apply_promoted(BinaryOp(f), self, rhs)
    }

    /// Computes [`silu_mul`](Self::silu_mul) in the buffer of `self`, unless another tensor or a gradient needs it.
    #[doc(hidden)]
    pub fn replaced_by_silu_mul(self, rhs: &Self) -> Result<Self> {
        replacing(Binary::SiluMul, self, rhs)
    }
}

#[cfg(test)]
mod tests {
    use half::f16;

    use super::*;
    use crate::device::{Device, Runtime};

    fn cpu() -> Device {
        Runtime::builder().threads(1).build().unwrap().cpu().unwrap()
    }

    fn leaf(device: &Device, values: &[f32]) -> Tensor {
        Tensor::from_slice(device, values, values.len()).unwrap().requiring_grad().unwrap()
    }

    #[test]
    fn ties_of_maximum_and_minimum_share_the_gradient() {
        let device = cpu();
        for (name, f, to_a) in [
            ("maximum", Tensor::maximum as fn(&Tensor, &Tensor) -> Result<Tensor>, [0.0, 0.5, 1.0]),
            ("minimum", Tensor::minimum, [1.0, 0.5, 0.0]),
        ] {
            let (a, b) = (leaf(&device, &[1.0, 2.0, 3.0]), leaf(&device, &[2.0, 2.0, 2.0]));
            let gradients = f(&a, &b).unwrap().sum_all().unwrap().backward().unwrap();
            assert_eq!(gradients.get(&a).unwrap().to_vec::<f32>().unwrap(), to_a, "{name}");
            let to_b = to_a.map(|share| 1.0 - share);
            assert_eq!(gradients.get(&b).unwrap().to_vec::<f32>().unwrap(), to_b, "{name}");
        }
    }

    #[test]
    fn an_operand_is_saved_only_for_the_gradient_of_the_other() {
        let device = cpu();
        let in_use = || device.default_allocator().unwrap().stats().bytes_in_use;
        let x = leaf(&device, &[3.0]);
        let start = in_use();
        // A product of x with constants: x itself is not read, so its double is not kept.
        let doubled = x.mul_scalar(2.0).unwrap();
        let constant = Tensor::full(&device, 1, 5.0).unwrap();
        let y = doubled.mul(&constant).unwrap();
        drop((doubled, constant));
        assert_eq!(in_use() - start, 2 * 256, "the constant and the product are left");
        let gradients = y.backward().unwrap();
        assert_eq!(gradients.get(&x).unwrap().to_vec::<f32>().unwrap(), [10.0]);
    }

    #[test]
    fn a_tensor_may_stand_on_both_sides() {
        let device = cpu();
        let x = leaf(&device, &[3.0]);
        let gradients = x.mul(&x).unwrap().div(&x).unwrap().backward().unwrap();
        assert_eq!(gradients.get(&x).unwrap().to_vec::<f32>().unwrap(), [1.0]);
    }

    #[test]
    fn gradients_of_halves_do_not_pass_their_range_on_the_way() {
        let device = cpu();
        let half = |value: f64| {
            let x = Tensor::full_of(&device, 2, value, DType::F16).unwrap();
            x.requiring_grad().unwrap()
        };
        let gradients = |f: fn(&Tensor, &Tensor) -> Result<Tensor>, a: f64, b: f64, grad: f64| {
            let (a, b) = (half(a), half(b));
            let y = f(&a, &b).unwrap().mul_scalar(grad).unwrap().sum_all().unwrap();
            let gradients = y.backward().unwrap();
            [&a, &b].map(|x| f64::from(gradients.get(x).unwrap().to_vec::<f16>().unwrap()[0].to_f32()))
        };
        let near = |found: f64, expected: f64| {
            assert!((found - expected).abs() <= expected.abs() / 1000.0, "{found}, {expected}");
        };
        // 256 · 1000 is beyond f16.
        near(gradients(Tensor::div, 1000.0, 1000.0, 256.0)[1], -0.256);
        let (small, least) = (2f64.powi(-10), 2f64.powi(-20));
        // So is 1 / 2⁻²⁰, and so are the slopes of powers.
        near(gradients(Tensor::div, 1.0, small, 8.0 * small)[1], -8192.0);
        near(gradients(Tensor::pow, 256.0, 1.875, small)[1], 32.0 * 256f64.ln());
        near(gradients(Tensor::pow, least, 0.0625, small)[0], small / 16.0 * 2f64.powf(18.75));
    }

    #[test]
    fn integers_wrap_and_division_by_zero_gives_zero() {
        let device = cpu();
        let ints = |values: &[i64]| Tensor::from_slice(&device, values, values.len()).unwrap();
        let one = ints(&[1]);
        assert_eq!(ints(&[i64::MAX]).add(&one).unwrap().to_vec::<i64>().unwrap(), [i64::MIN]);
        assert_eq!(ints(&[7, -7, 7]).div(&ints(&[2, 2, 0])).unwrap().to_vec::<i64>().unwrap(), [3, -3, 0]);
        assert_eq!(ints(&[i64::MIN]).div(&ints(&[-1])).unwrap().to_vec::<i64>().unwrap(), [i64::MIN]);
    }
}

//! Operators: `&a + &b`, `a * 2.0`, `1.0 - &a`, `-&a`. Each returns a [`Result`].
//!
//! `a + &b` moves `a`: the result reuses its buffer if no other handle shares it and backward does not read it. `&a +
//! b` and `&a * b` can reuse the buffer of `b`, because they commute. `a * 2.0` and `-a` reuse the buffer of a large
//! `a`.

use std::ops::{Add, Div, Mul, Neg, Sub};

use bfc_core::Category;

use super::binary::{replacing, replacing_either};
use super::unary::{self, arithmetic_scalar, exact_scalar, negated};
use crate::backend::{Binary, Unary};
use crate::error::Result;
use crate::shape::{Scalar, Shape};
use crate::tensor::Tensor;

/// Converts a number to a tensor with the device and type of `like`.
fn constant(value: Scalar, like: &Tensor) -> Result<Tensor> {
    Tensor::full_for(like.device(), Shape::SCALAR, value, like.dtype(), Category::Temporary)
}

macro_rules! binary_operator {
    ($trait:ident, $method:ident, $with_scalar:ident, $unary:expr, $checked:ident) => {
        binary_operator!(@tensors $trait, $method: &Tensor, &Tensor, |lhs, rhs| Tensor::$method(lhs, rhs));
        binary_operator!(@tensors $trait, $method: &Tensor, Tensor, |lhs, rhs| {
            replacing_either(Binary::$trait, lhs, rhs)
        });
        binary_operator!(@tensors $trait, $method: Tensor, &Tensor, |lhs, rhs| {
            replacing(Binary::$trait, lhs, rhs)
        });
        binary_operator!(@tensors $trait, $method: Tensor, Tensor, |lhs, rhs| {
            if lhs.ref_count_is_one() {
                replacing(Binary::$trait, lhs, &rhs)
            } else {
                replacing_either(Binary::$trait, &lhs, rhs)
            }
        });
        binary_operator!(@scalar $trait, $method, $checked: &Tensor, |lhs, rhs| lhs.$with_scalar(rhs));
        binary_operator!(@scalar $trait, $method, $checked: Tensor, |lhs, rhs| {
            let (f, dtype) = ($unary, lhs.dtype());
            unary::replacing(stringify!($with_scalar), f(Scalar::Float(rhs), dtype), lhs)
        });
    };
    (@tensors $trait:ident, $method:ident: $lhs:ty, $rhs:ty, $result:expr) => {
        impl $trait<$rhs> for $lhs {
            type Output = Result<Tensor>;

            fn $method(self, rhs: $rhs) -> Result<Tensor> {
                let result: fn($lhs, $rhs) -> Result<Tensor> = $result;
                result(self, rhs)
            }
        }
    };
    (@scalar $trait:ident, $method:ident, $checked:ident: $tensor:ty, $result:expr) => {
        impl $trait<f64> for $tensor {
            type Output = Result<Tensor>;

            fn $method(self, rhs: f64) -> Result<Tensor> {
                let result: fn($tensor, f64) -> Result<Tensor> = $result;
                result(self, rhs)
            }
        }

        impl $trait<$tensor> for f64 {
            type Output = Result<Tensor>;

            fn $method(self, rhs: $tensor) -> Result<Tensor> {
                let lhs = $checked(stringify!($method), Scalar::Float(self), rhs.dtype())?;
                Tensor::$method(&constant(lhs, &rhs)?, &rhs)
            }
        }
    };
}

binary_operator!(Add, add, add_scalar, |scalar, _| Unary::AddScalar(scalar), arithmetic_scalar);
binary_operator!(
    Sub,
    sub,
    sub_scalar,
    |scalar, dtype| Unary::AddScalar(negated(scalar, dtype)),
    arithmetic_scalar
);
binary_operator!(Mul, mul, mul_scalar, |scalar, _| Unary::MulScalar(scalar), arithmetic_scalar);
binary_operator!(Div, div, div_scalar, |scalar, _| Unary::DivScalar(scalar), exact_scalar);

impl Neg for &Tensor {
    type Output = Result<Tensor>;

    fn neg(self) -> Result<Tensor> {
        Tensor::neg(self)
    }
}

impl Neg for Tensor {
    type Output = Result<Tensor>;

    fn neg(self) -> Result<Tensor> {
        unary::replacing(Unary::Neg.name(), Unary::Neg, self)
    }
}

#[cfg(test)]
mod tests {
    use crate::device::Runtime;
    use crate::error::Result;
    use crate::shape::DType;
    use crate::tensor::{Rng, Tensor};

    #[test]
    fn operators_mean_the_ops_of_the_same_name() {
        let device = Runtime::builder().threads(1).build().unwrap().cpu().unwrap();
        let a = Tensor::from_slice(&device, &[6.0f32, 8.0], 2).unwrap();
        let b = Tensor::from_slice(&device, &[2.0f32, 4.0], 2).unwrap();
        let values = |result: Result<Tensor>| result.unwrap().to_vec::<f32>().unwrap();
        assert_eq!(values(&a + &b), [8.0, 12.0]);
        assert_eq!(values(&a - b.clone()), [4.0, 4.0]);
        assert_eq!(values(a.clone() * &b), [12.0, 32.0]);
        assert_eq!(values(a.clone() / b.clone()), [3.0, 2.0]);
        assert_eq!(values(&a - 1.0), [5.0, 7.0]);
        assert_eq!(values(a.clone() / 2.0), [3.0, 4.0]);
        assert_eq!(values(1.0 - &a), [-5.0, -7.0]);
        assert_eq!(values(12.0 / b), [6.0, 3.0]);
        assert_eq!(values(-&a), [-6.0, -8.0]);
        assert_eq!(values(-a), [-6.0, -8.0]);
    }

    #[test]
    fn a_number_means_the_same_on_both_sides_of_integers() {
        let device = Runtime::builder().threads(1).build().unwrap().cpu().unwrap();
        let bytes = Tensor::from_slice(&device, &[5u8, 7], 2).unwrap();
        let values = |result: Result<Tensor>| result.unwrap().to_vec::<u8>().unwrap();
        assert_eq!(values(&bytes - 1.0), [4, 6]);
        assert_eq!(values(&bytes + -1.0), [4, 6]);
        assert_eq!(values(-1.0 + &bytes), [4, 6]);
        assert_eq!(values(&bytes * -1.0), values(-1.0 * &bytes));
        assert_eq!(values(&bytes * -1.0), values(-&bytes));
        let wide = bytes.to_dtype(DType::I64).unwrap();
        for refused in [0.5, f64::NAN, f64::INFINITY, 1e30] {
            for result in [&wide + refused, refused + &wide, &wide / refused, refused / &wide] {
                let message = result.unwrap_err().to_string();
                assert!(message.contains("scalar must be a whole number"), "{message}");
            }
        }
        for refused in [-1.0, 256.0] {
            assert!((&bytes / refused).is_err() && (refused / &bytes).is_err());
        }
        assert_eq!((&wide + i64::MIN as f64).unwrap().to_vec::<i64>().unwrap(), [i64::MIN + 5, i64::MIN + 7]);
    }

    /// How many buffers `work` takes.
    fn buffers_taken<R>(like: &Tensor, work: impl FnOnce() -> R) -> (u64, R) {
        let memory = like.device().default_allocator().unwrap();
        let before = memory.stats().num_allocs;
        let result = work();
        (memory.stats().num_allocs - before, result)
    }

    #[test]
    fn an_operand_that_is_given_away_lends_its_buffer_to_the_result() {
        let device = Runtime::builder().threads(1).build().unwrap().cpu().unwrap();
        for dtype in [DType::F32, DType::I64] {
            let ones = Tensor::ones_of(&device, [2, 3], dtype).unwrap();
            let row = Tensor::arange(&device, 0, 3).unwrap().to_dtype(dtype).unwrap();
            let fresh = || ones.add(&ones).unwrap();
            type Operator = fn(Tensor, &Tensor) -> Result<Tensor>;
            let results: [(Tensor, Operator, Tensor); 4] = [
                (fresh(), |a, b| a + b, fresh().add(&row).unwrap()),
                (fresh(), |a, b| a - b, fresh().sub(&row).unwrap()),
                (fresh(), |a, b| a * b, fresh().mul(&row).unwrap()),
                (fresh(), |a, b| a / b.clone(), fresh().div(&row).unwrap()),
            ];
            for (operand, operate, expected) in results {
                let (taken, result) = buffers_taken(&ones, || operate(operand, &row).unwrap());
                let values = |x: &Tensor| x.to_dtype(DType::F64).unwrap().to_vec::<f64>().unwrap();
                assert_eq!((taken, values(&result)), (0, values(&expected)), "{dtype}");
            }
        }
    }

    #[test]
    fn commutative_ops_reuse_the_second_operand() {
        let device = Runtime::builder().threads(1).build().unwrap().cpu().unwrap();
        let a = Tensor::from_slice(&device, &[1.0f32, 2.0, 3.0, 4.0], [2, 2]).unwrap();
        let row = Tensor::from_slice(&device, &[10.0f32, 20.0], 2).unwrap();
        let fresh = || a.mul_scalar(2.0).unwrap();
        let values =
            |(taken, result): (u64, Result<Tensor>)| (taken, result.unwrap().to_vec::<f32>().unwrap());
        let given = fresh();
        assert_eq!(values(buffers_taken(&a, || &row + given)), (0, vec![12.0, 24.0, 16.0, 28.0]));
        let given = fresh();
        assert_eq!(values(buffers_taken(&a, || &row * given)), (0, vec![20.0, 80.0, 60.0, 160.0]));
        // Where someone else looks into the first.
        let given = fresh();
        assert_eq!(values(buffers_taken(&a, || a.clone() + given)), (0, vec![3.0, 6.0, 9.0, 12.0]));
        // Differences and quotients are another matter, and so is a result that is larger.
        let given = fresh();
        assert_eq!(values(buffers_taken(&a, || &row - given)), (1, vec![8.0, 16.0, 4.0, 12.0]));
        let small = row.mul_scalar(1.0).unwrap();
        assert_eq!(values(buffers_taken(&a, || &a + small)), (1, vec![11.0, 22.0, 13.0, 24.0]));
        let error = (&Tensor::ones(&device, 3).unwrap() + fresh()).unwrap_err().to_string();
        assert_eq!(
            error,
            "add: shapes [3] and [2, 2] do not match: axis -1 has sizes 3 and 2, which must be equal, or one of them 1"
        );
    }

    #[test]
    fn scalar_ops_reuse_the_buffer_of_a_large_operand() {
        let device = Runtime::builder().threads(1).build().unwrap().cpu().unwrap();
        type Operator = fn(Tensor) -> Result<Tensor>;
        type Op = fn(&Tensor) -> Result<Tensor>;
        let operators: &[(Operator, Op)] = &[
            (|x| x + 0.1, |x| x.add_scalar(0.1)),
            (|x| x - 0.1, |x| x.sub_scalar(0.1)),
            (|x| x * 0.1, |x| x.mul_scalar(0.1)),
            (|x| x / 0.3, |x| x.div_scalar(0.3)),
            (|x| -x, Tensor::neg),
        ];
        let rng = Rng::new(0);
        let large = Tensor::normal(&device, 1 << 17, 0.0, 1.0, &rng).unwrap();
        let memory = device.default_allocator().unwrap();
        for dtype in [DType::F32, DType::F64, DType::F16, DType::I32] {
            // 16-bit floats and integers are not reused.
            let in_place = dtype == DType::F32 || dtype == DType::F64;
            let of = large.mul_scalar(100.0).unwrap().to_dtype(dtype).unwrap();
            for &(operate, op) in operators {
                let given = of.add(&of).unwrap();
                let values = |x: Tensor| x.to_dtype(DType::F64).unwrap().to_vec::<f64>().unwrap();
                // Integers have no tenths.
                let Ok(expected) = op(&given).map(values) else { continue };
                let size = of.elements() * dtype.size();
                memory.clear_stats();
                let before = memory.stats().bytes_in_use;
                let result = operate(given);
                let extra = (memory.stats().peak_bytes_in_use - before) as usize;
                assert_eq!(extra < size, in_place, "{extra} bytes in {dtype}");
                assert_eq!(values(result.unwrap()), expected, "{dtype}");
            }
        }
        // Gradients are those of the ops.
        let x = large.requiring_grad().unwrap();
        let loss = (-(((x.exp().unwrap() * 3.0).unwrap() + 1.0).unwrap() / 2.0).unwrap()).unwrap();
        let gradient = loss.sum_all().unwrap().backward().unwrap().get(&x).unwrap().to_vec::<f32>().unwrap();
        let expected = x.exp().unwrap().mul_scalar(3.0).unwrap().mul_scalar(-0.5).unwrap();
        assert_eq!(gradient, expected.to_vec::<f32>().unwrap());
    }

    #[test]
    fn halves_are_rounded_in_their_place_as_elsewhere() {
        let device = Runtime::builder().threads(1).build().unwrap().cpu().unwrap();
        let of = |value: f32| Tensor::full(&device, 5, value).unwrap().to_dtype(DType::BF16).unwrap();
        let (a, b) = (of(1.0), of(0.013));
        let expected = a.mul(&b).unwrap().to_dtype(DType::F32).unwrap().to_vec::<f32>().unwrap();
        let result = (a * &b).unwrap();
        assert_eq!(result.dtype(), DType::BF16);
        assert_eq!(result.to_dtype(DType::F32).unwrap().to_vec::<f32>().unwrap(), expected);
    }

    #[test]
    fn a_shared_or_too_small_buffer_is_not_reused() {
        let device = Runtime::builder().threads(1).build().unwrap().cpu().unwrap();
        let b = Tensor::ones(&device, [2, 2]).unwrap();
        let fresh = || b.mul_scalar(3.0).unwrap();
        let operand = fresh();
        let kept = operand.clone();
        let (taken, result) = buffers_taken(&b, || (operand + &b).unwrap());
        assert_eq!(
            (taken, result.to_vec::<f32>().unwrap(), kept.to_vec::<f32>().unwrap()),
            (1, vec![4.0; 4], vec![3.0; 4])
        );
        let turned = fresh().t().unwrap();
        assert_eq!(buffers_taken(&b, || (turned + &b).unwrap()).0, 1);
        let row = Tensor::ones(&device, 2).unwrap();
        let result = (row + &b).unwrap();
        assert_eq!((result.dims(), result.to_vec::<f32>().unwrap()), (&[2, 2][..], vec![2.0; 4]));
        let wide = b.to_dtype(DType::F64).unwrap();
        assert_eq!((fresh() + &wide).unwrap().dtype(), DType::F64);
        let long = Tensor::ones(&device, 3).unwrap();
        assert_eq!(
            (fresh() + &long).unwrap_err().to_string(),
            "add: shapes [2, 2] and [3] do not match: axis -1 has sizes 2 and 3, which must be equal, or one of them 1"
        );
    }

    #[test]
    fn gradients_are_those_of_operands_that_are_kept() {
        let device = Runtime::builder().threads(1).build().unwrap().cpu().unwrap();
        let x = Tensor::from_slice(&device, &[1.0f32, -2.0, 3.0], 3).unwrap().requiring_grad().unwrap();
        let w = Tensor::from_slice(&device, &[0.5f32, 4.0, -1.0], 3).unwrap().requiring_grad().unwrap();
        let two = Tensor::full(&device, 3, 2.0).unwrap();
        type Way = fn([Tensor; 3]) -> Result<Tensor>;
        // Exp and relu read their own value, w's gradient reads what w is multiplied with, and a sum reads nothing.
        let ways: &[(Way, Way)] = &[
            (|[x, w, _]| x.mul_scalar(2.0)?.add(&w), |[x, w, _]| x.mul_scalar(2.0)? + &w),
            (|[x, w, _]| x.exp()?.sub(&w), |[x, w, _]| x.exp()? - &w),
            (|[x, w, _]| x.relu()?.mul(&w), |[x, w, _]| x.relu()? * &w),
            (|[x, w, _]| x.mul_scalar(2.0)?.div(&w), |[x, w, _]| x.mul_scalar(2.0)? / &w),
            (|[x, _, two]| x.mul_scalar(2.0)?.mul(&two), |[x, _, two]| x.mul_scalar(2.0)? * two),
            (|[x, w, _]| w.add(&x.square()?)?.square(), |[x, w, _]| (w + x.square()?)?.square()),
        ];
        for (number, &(kept, given)) in ways.iter().enumerate() {
            let gradients = |way: Way| {
                let operands = [&x, &w, &two].map(Tensor::clone);
                let result = way(operands).unwrap();
                let gradients = result.sum_all().unwrap().backward().unwrap();
                let of = |leaf: &Tensor| gradients.get(leaf).map(|grad| grad.to_vec::<f32>().unwrap());
                (result.to_vec::<f32>().unwrap(), of(&x), of(&w))
            };
            assert_eq!(gradients(kept), gradients(given), "way {number}");
        }
    }
}

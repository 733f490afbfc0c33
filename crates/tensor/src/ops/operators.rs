//! The operators of the language: `&a + &b`, `a * 2.0`, `1.0 - &a`, `-&a`, each giving a [`Result`].

use std::ops::{Add, Div, Mul, Neg, Sub};

use bfc_core::Category;

use super::unary::{fits, holds};
use crate::dtype::Scalar;
use crate::error::Result;
use crate::shape::Shape;
use crate::tensor::Tensor;

/// A number as a tensor that computes with `like`.
fn constant(value: Scalar, like: &Tensor) -> Result<Tensor> {
    Tensor::full_for(like.device(), Shape::SCALAR, value, like.dtype(), Category::Temporary)
}

macro_rules! binary_operator {
    ($trait:ident, $method:ident, $with_scalar:ident, $checked:ident) => {
        binary_operator!(@tensors $trait, $method: &Tensor, &Tensor);
        binary_operator!(@tensors $trait, $method: &Tensor, Tensor);
        binary_operator!(@tensors $trait, $method: Tensor, &Tensor);
        binary_operator!(@tensors $trait, $method: Tensor, Tensor);
        binary_operator!(@scalar $trait, $method, $with_scalar, $checked: &Tensor);
        binary_operator!(@scalar $trait, $method, $with_scalar, $checked: Tensor);
    };
    (@tensors $trait:ident, $method:ident: $lhs:ty, $rhs:ty) => {
        impl $trait<$rhs> for $lhs {
            type Output = Result<Tensor>;

            fn $method(self, rhs: $rhs) -> Result<Tensor> {
                Tensor::$method(&self, &rhs)
            }
        }
    };
    (@scalar $trait:ident, $method:ident, $with_scalar:ident, $checked:ident: $tensor:ty) => {
        impl $trait<f64> for $tensor {
            type Output = Result<Tensor>;

            fn $method(self, rhs: f64) -> Result<Tensor> {
                self.$with_scalar(rhs)
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

binary_operator!(Add, add, add_scalar, fits);
binary_operator!(Sub, sub, sub_scalar, fits);
binary_operator!(Mul, mul, mul_scalar, fits);
binary_operator!(Div, div, div_scalar, holds);

impl Neg for &Tensor {
    type Output = Result<Tensor>;

    fn neg(self) -> Result<Tensor> {
        Tensor::neg(self)
    }
}

impl Neg for Tensor {
    type Output = Result<Tensor>;

    fn neg(self) -> Result<Tensor> {
        Tensor::neg(&self)
    }
}

#[cfg(test)]
mod tests {
    use crate::dtype::DType;
    use crate::error::Result;
    use crate::runtime::Runtime;
    use crate::tensor::Tensor;

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
}

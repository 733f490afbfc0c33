//! The memory representation of a scalar as an element of any type.

use super::dispatch::any;
use super::number::Stored;
use crate::shape::{DType, Scalar};

/// The bytes of `value` as an element of this type, converted as by [`Fill`](crate::families::Fill).
#[must_use]
pub fn element_bytes(value: Scalar, dtype: DType) -> Vec<u8> {
    match dtype {
        DType::Bool => vec![u8::from(value.as_f64() != 0.0)],
        dtype => any!(dtype, T => bytemuck::bytes_of(&T::from_scalar(value)).to_vec()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_becomes_an_element_of_each_type() {
        let half = Scalar::Float(1.5);
        assert_eq!(element_bytes(half, DType::F32), 1.5_f32.to_ne_bytes());
        assert_eq!(element_bytes(half, DType::F64), 1.5_f64.to_ne_bytes());
        assert_eq!(element_bytes(half, DType::F16), 0x3e00_u16.to_ne_bytes());
        assert_eq!(element_bytes(half, DType::BF16), 0x3fc0_u16.to_ne_bytes());
        assert_eq!(element_bytes(half, DType::I64), 1_i64.to_ne_bytes());
        assert_eq!(element_bytes(half, DType::I32), 1_i32.to_ne_bytes());
        assert_eq!(element_bytes(half, DType::U32), 1_u32.to_ne_bytes());
        assert_eq!(element_bytes(half, DType::U8), [1]);
        assert_eq!(element_bytes(Scalar::Float(0.5), DType::Bool), [1]);
        assert_eq!(element_bytes(Scalar::Int(0), DType::Bool), [0]);
    }
}

//! Element types: the run-time `DType` and the corresponding Rust types.

use std::fmt;

use half::{bf16, f16};

/// The type of a tensor's elements, known at run time.
///
/// **Promotion.** These ops accept tensors of different types and convert them to one type ([`promote`](Self::promote)):
///
/// - arithmetic, comparisons, `where_`, `concat` and `stack`;
/// - products: `matmul`, `linear`, `einsum` and convolutions;
/// - losses that compare element by element: `mse_loss`, `l1_loss`, `huber_loss`, `bce_with_logits` and `kl_div`.
///
/// Each operand's gradient has the operand's type. All other ops require equal types, for instance
/// `attention`, norms, recurrent layers, `scatter_add` and the class weights of `cross_entropy_with`. A
/// scalar argument never changes a tensor's type, and neither does a tensor without axes.
///
/// | | bool | u8 | u32 | i32 | i64 | f16 | bf16 | f32 | f64 |
/// |---|---|---|---|---|---|---|---|---|---|
/// | **bool** | bool | u8 | u32 | i32 | i64 | f16 | bf16 | f32 | f64 |
/// | **u8** | u8 | u8 | u32 | i32 | i64 | f16 | bf16 | f32 | f64 |
/// | **u32** | u32 | u32 | u32 | i64 | i64 | f16 | bf16 | f32 | f64 |
/// | **i32** | i32 | i32 | i64 | i32 | i64 | f16 | bf16 | f32 | f64 |
/// | **i64** | i64 | i64 | i64 | i64 | i64 | f16 | bf16 | f32 | f64 |
/// | **f16** | f16 | f16 | f16 | f16 | f16 | f16 | f32 | f32 | f64 |
/// | **bf16** | bf16 | bf16 | bf16 | bf16 | bf16 | f32 | bf16 | f32 | f64 |
/// | **f32** | f32 | f32 | f32 | f32 | f32 | f32 | f32 | f32 | f64 |
/// | **f64** | f64 | f64 | f64 | f64 | f64 | f64 | f64 | f64 | f64 |
///
/// **Booleans.** Comparisons, `where_`, `concat`, `stack` and logic such as `logical_and` accept two
/// boolean tensors. Arithmetic does not. Next to a number, booleans count as 0 and 1.
///
/// **Indices.** Ops with index tensors accept u8, i32, u32 and i64. They convert other types than i64 first, to a
/// temporary of 8 bytes per index.
///
/// **Arithmetic.** Integers wrap, also in conversions to a narrower type. Integer division by zero returns 0.
/// Ops on half precision compute and accumulate in `f32`, and round each result once: to nearest, ties to
/// even.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum DType {
    /// 32-bit floating point.
    F32,
    /// 64-bit floating point.
    F64,
    /// 16-bit IEEE 754 floating point: 11 significant bits, up to 65,504.
    F16,
    /// 16-bit brain floating point: the upper 16 bits of an [`F32`](Self::F32), with 8 significant bits and
    /// the same range.
    BF16,
    /// 64-bit signed integer; the type of indices that ops return.
    I64,
    /// 32-bit signed integer.
    I32,
    /// 32-bit unsigned integer.
    U32,
    /// 8-bit unsigned integer.
    U8,
    /// Boolean, stored as one byte, 0 or 1.
    Bool,
}

impl DType {
    /// All element types.
    pub const ALL: [Self; 9] =
        [Self::F32, Self::F64, Self::F16, Self::BF16, Self::I64, Self::I32, Self::U32, Self::U8, Self::Bool];

    /// Returns the bytes per element.
    #[must_use]
    #[inline]
    pub const fn size(self) -> usize {
        match self {
            Self::F64 | Self::I64 => 8,
            Self::F32 | Self::I32 | Self::U32 => 4,
            Self::F16 | Self::BF16 => 2,
            Self::U8 | Self::Bool => 1,
        }
    }

    /// Returns whether the type is a float. Only floats support gradients.
    #[must_use]
    #[inline]
    pub const fn is_float(self) -> bool {
        matches!(self, Self::F32 | Self::F64 | Self::F16 | Self::BF16)
    }

    /// Returns whether this is a 16-bit float. Ops compute with these as [`F32`](Self::F32).
    #[must_use]
    #[inline]
    pub const fn is_half(self) -> bool {
        matches!(self, Self::F16 | Self::BF16)
    }

    /// Returns the type of computation and accumulation: [`F32`](Self::F32) for 16-bit floats, else the type
    /// itself.
    ///
    /// ```
    /// use highwater_kernels::shape::DType;
    /// assert_eq!(DType::BF16.computed_as(), DType::F32);
    /// assert_eq!(DType::F64.computed_as(), DType::F64);
    /// ```
    #[must_use]
    #[inline]
    pub const fn computed_as(self) -> Self {
        if self.is_half() { Self::F32 } else { self }
    }

    /// Returns the common type of two tensors, from the table of [`DType`]. The table equals PyTorch's for
    /// tensors with axes, and NumPy's for u32 with other integers, which PyTorch does not promote. The order of the
    /// operands does not matter.
    ///
    /// ```
    /// use highwater_kernels::shape::DType::{BF16, F16, F32, F64, I32, I64, U8, U32};
    /// assert_eq!(U8.promote(I32), I32);
    /// assert_eq!(U32.promote(I32), I64); // the narrowest type that represents all values of both
    /// assert_eq!(I64.promote(F16), F16); // floats take precedence over integers
    /// assert_eq!(F16.promote(BF16), F32); // neither represents all values of the other
    /// assert_eq!(F32.promote(F64), F64);
    /// ```
    #[must_use]
    pub const fn promote(self, other: Self) -> Self {
        match (self, other) {
            (Self::F16, Self::BF16) | (Self::BF16, Self::F16) => Self::F32,
            (Self::I32, Self::U32) | (Self::U32, Self::I32) => Self::I64,
            _ if self.rank() >= other.rank() => self,
            _ => other,
        }
    }

    /// Returns the rank of the type in the order of promotion. Both 16-bit floats have one rank, and both 32-bit integers.
    const fn rank(self) -> u8 {
        match self {
            Self::Bool => 0,
            Self::U8 => 1,
            Self::I32 | Self::U32 => 2,
            Self::I64 => 3,
            Self::F16 | Self::BF16 => 4,
            Self::F32 => 5,
            Self::F64 => 6,
        }
    }

    /// Returns the type's short name.
    #[must_use]
    #[inline]
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F64 => "f64",
            Self::F16 => "f16",
            Self::BF16 => "bf16",
            Self::I64 => "i64",
            Self::I32 => "i32",
            Self::U32 => "u32",
            Self::U8 => "u8",
            Self::Bool => "bool",
        }
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

mod sealed {
    pub trait Sealed {}
    impl Sealed for f32 {}
    impl Sealed for f64 {}
    impl Sealed for half::f16 {}
    impl Sealed for half::bf16 {}
    impl Sealed for i64 {}
    impl Sealed for i32 {}
    impl Sealed for u32 {}
    impl Sealed for u8 {}
    impl Sealed for bool {}
}

/// A Rust type for the elements of a tensor. Sealed: the types are those of [`DType`].
pub trait Element: sealed::Sealed + Copy + Default + PartialEq + fmt::Debug + Send + Sync + 'static {
    /// The run-time type.
    const DTYPE: DType;

    /// The representation in memory: a plain number type, for which every bit pattern is valid.
    type Raw: RawElement;

    /// Converts from the representation in memory.
    fn from_raw(raw: Self::Raw) -> Self;

    /// Converts to the representation in memory.
    fn into_raw(self) -> Self::Raw;

    /// Returns the bytes of many elements, without a copy.
    fn bytes_of(values: &[Self]) -> &[u8];
}

/// A number type that buffers store. Sealed, as buffers are aligned for these types only.
pub trait RawElement:
    sealed::Sealed + bytemuck::Pod + PartialEq + PartialOrd + Default + fmt::Debug + Send + Sync
{
    /// Returns whether buffers store elements of type `dtype` as this type.
    fn is_raw_of(dtype: DType) -> bool;
}

macro_rules! raw_element {
    ($($type:ty => $dtype:pat),*) => {$(
        impl RawElement for $type {
            #[inline]
            fn is_raw_of(dtype: DType) -> bool {
                matches!(dtype, $dtype)
            }
        }
    )*};
}

raw_element!(
    f32 => DType::F32, f64 => DType::F64, f16 => DType::F16, bf16 => DType::BF16,
    i64 => DType::I64, i32 => DType::I32, u32 => DType::U32, u8 => DType::U8 | DType::Bool
);

macro_rules! plain_element {
    ($($type:ty => $dtype:ident),*) => {$(
        impl Element for $type {
            const DTYPE: DType = DType::$dtype;
            type Raw = $type;

            #[inline]
            fn from_raw(raw: $type) -> Self {
                raw
            }

            #[inline]
            fn into_raw(self) -> $type {
                self
            }

            #[inline]
            fn bytes_of(values: &[Self]) -> &[u8] {
                bytemuck::cast_slice(values)
            }
        }
    )*};
}

plain_element!(
    f32 => F32, f64 => F64, f16 => F16, bf16 => BF16, i64 => I64, i32 => I32, u32 => U32, u8 => U8
);

impl Element for bool {
    const DTYPE: DType = DType::Bool;
    type Raw = u8;

    #[inline]
    fn from_raw(raw: u8) -> Self {
        raw != 0
    }

    #[inline]
    fn into_raw(self) -> u8 {
        u8::from(self)
    }

    #[inline]
    fn bytes_of(values: &[Self]) -> &[u8] {
        bytemuck::cast_slice(values)
    }
}

/// A scalar argument of an op. It represents the values of every element type.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Scalar {
    /// A floating-point number.
    Float(f64),
    /// An integer.
    Int(i64),
}

impl Scalar {
    /// Converts to `f64`; rounds integers beyond 2^53.
    #[must_use]
    #[inline]
    pub const fn as_f64(self) -> f64 {
        match self {
            Self::Float(value) => value,
            Self::Int(value) => value as f64,
        }
    }

    /// Converts to `i64`; truncates floats toward zero and saturates.
    #[must_use]
    #[inline]
    pub const fn as_i64(self) -> i64 {
        match self {
            Self::Float(value) => value as i64,
            Self::Int(value) => value,
        }
    }
}

macro_rules! scalar_from {
    ($variant:ident($wide:ty): $($type:ty),*) => {$(
        impl From<$type> for Scalar {
            #[inline]
            fn from(value: $type) -> Self {
                Self::$variant(<$wide>::from(value))
            }
        }
    )*};
}

scalar_from!(Float(f64): f32, f64, f16, bf16);
scalar_from!(Int(i64): i64, i32, u32, u8, bool);

impl From<usize> for Scalar {
    /// Converts to an integer; beyond `i64::MAX` to a float, which no integer type represents.
    #[inline]
    fn from(value: usize) -> Self {
        i64::try_from(value).map_or(Self::Float(value as f64), Self::Int)
    }
}

impl fmt::Display for Scalar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Float(value) => value.fmt(f),
            Self::Int(value) => value.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn promotion_is_commutative_and_associative() {
        for a in DType::ALL {
            assert_eq!(a.promote(a), a);
            for b in DType::ALL {
                let both = a.promote(b);
                assert_eq!(both, b.promote(a), "{a} and {b}");
                assert_eq!(both.is_float(), a.is_float() || b.is_float(), "{a} and {b}");
                assert!(both.rank() >= a.rank().max(b.rank()), "{a} and {b}");
                for c in DType::ALL {
                    assert_eq!(both.promote(c), a.promote(b.promote(c)), "{a}, {b} and {c}");
                }
            }
        }
    }
}

//! Element types: the run-time `DType` and the Rust types that stand for it.

use std::fmt;

/// The type of a tensor's elements, known at run time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum DType {
    /// 32-bit floating point.
    F32,
    /// 64-bit floating point.
    F64,
    /// 64-bit signed integer; the type of indices.
    I64,
    /// 8-bit unsigned integer.
    U8,
    /// Truth value, kept as one byte, 0 or 1.
    Bool,
}

impl DType {
    /// All element types.
    pub const ALL: [Self; 5] = [Self::F32, Self::F64, Self::I64, Self::U8, Self::Bool];

    /// Bytes per element.
    #[must_use]
    pub const fn size(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F64 | Self::I64 => 8,
            Self::U8 | Self::Bool => 1,
        }
    }

    /// Whether gradients can flow through tensors of this type.
    #[must_use]
    pub const fn is_float(self) -> bool {
        matches!(self, Self::F32 | Self::F64)
    }

    /// The type's short name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F64 => "f64",
            Self::I64 => "i64",
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
    impl Sealed for i64 {}
    impl Sealed for u8 {}
    impl Sealed for bool {}
}

/// A Rust type that a tensor's elements can be read as. Sealed: the set is that of [`DType`].
pub trait Element: sealed::Sealed + Copy + Default + PartialEq + fmt::Debug + Send + Sync + 'static {
    /// The run-time type.
    const DTYPE: DType;

    /// How the element lies in memory: plain numbers, for which every bit pattern is valid.
    type Raw: RawElement;

    /// From memory.
    fn from_raw(raw: Self::Raw) -> Self;

    /// Into memory.
    fn into_raw(self) -> Self::Raw;
}

/// What lies in memory: the plain numbers among the element types. Sealed: buffers are aligned for these types only.
pub trait RawElement:
    sealed::Sealed + bytemuck::Pod + PartialEq + PartialOrd + Default + fmt::Debug + Send + Sync
{
    /// Whether elements of type `dtype` lie in memory as this type.
    fn is_raw_of(dtype: DType) -> bool;
}

macro_rules! raw_element {
    ($($type:ty => $dtype:pat),*) => {$(
        impl RawElement for $type {
            fn is_raw_of(dtype: DType) -> bool {
                matches!(dtype, $dtype)
            }
        }
    )*};
}

raw_element!(f32 => DType::F32, f64 => DType::F64, i64 => DType::I64, u8 => DType::U8 | DType::Bool);

macro_rules! plain_element {
    ($($type:ty => $dtype:ident),*) => {$(
        impl Element for $type {
            const DTYPE: DType = DType::$dtype;
            type Raw = $type;

            fn from_raw(raw: $type) -> Self {
                raw
            }

            fn into_raw(self) -> $type {
                self
            }
        }
    )*};
}

plain_element!(f32 => F32, f64 => F64, i64 => I64, u8 => U8);

impl Element for bool {
    const DTYPE: DType = DType::Bool;
    type Raw = u8;

    fn from_raw(raw: u8) -> Self {
        raw != 0
    }

    fn into_raw(self) -> u8 {
        u8::from(self)
    }
}

/// A single number given to an op, wide enough for every element type.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Scalar {
    /// A floating-point number.
    Float(f64),
    /// An integer.
    Int(i64),
}

impl Scalar {
    /// The number as `f64`; integers beyond 2^53 are rounded.
    #[must_use]
    pub const fn as_f64(self) -> f64 {
        match self {
            Self::Float(value) => value,
            Self::Int(value) => value as f64,
        }
    }

    /// The number as `i64`; floats are cut towards zero and saturate.
    #[must_use]
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
            fn from(value: $type) -> Self {
                Self::$variant(<$wide>::from(value))
            }
        }
    )*};
}

scalar_from!(Float(f64): f32, f64);
scalar_from!(Int(i64): i64, i32, u8, bool);

impl fmt::Display for Scalar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Float(value) => value.fmt(f),
            Self::Int(value) => value.fmt(f),
        }
    }
}

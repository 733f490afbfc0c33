//! The element types that kernels are compiled for.

/// The element type of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum ElementType {
    /// 32-bit floats.
    F32,
    /// 64-bit floats.
    F64,
    /// IEEE 754 half precision.
    F16,
    /// bfloat16: the upper 16 bits of a 32-bit float.
    BF16,
    /// 64-bit integers.
    I64,
    /// 32-bit integers.
    I32,
    /// Unsigned 32-bit integers.
    U32,
    /// Bytes, and booleans as 0 and 1.
    U8,
}

impl ElementType {
    /// All values.
    pub const ALL: [Self; 8] =
        [Self::F32, Self::F64, Self::F16, Self::BF16, Self::I64, Self::I32, Self::U32, Self::U8];

    /// The suffix of kernel names.
    #[must_use]
    pub const fn suffix(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F64 => "f64",
            Self::F16 => "f16",
            Self::BF16 => "bf16",
            Self::I64 => "i64",
            Self::I32 => "i32",
            Self::U32 => "u32",
            Self::U8 => "u8",
        }
    }

    /// The macros for this type: T is the type in memory, WIDE the type of computations.
    #[must_use]
    pub const fn defines(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Self::F32 => &[
                ("T", "float"),
                ("WIDE", "float"),
                ("SUFFIX", "f32"),
                ("T_IS_FLOAT", "1"),
                ("T_IS_NARROW", "1"),
            ],
            Self::F64 => &[("T", "double"), ("WIDE", "double"), ("SUFFIX", "f64"), ("T_IS_FLOAT", "1")],
            Self::F16 => &[
                ("T", "f16"),
                ("WIDE", "float"),
                ("SUFFIX", "f16"),
                ("T_IS_FLOAT", "1"),
                ("T_IS_NARROW", "1"),
                ("T_IS_HALF", "1"),
            ],
            Self::BF16 => &[
                ("T", "bf16"),
                ("WIDE", "float"),
                ("SUFFIX", "bf16"),
                ("T_IS_FLOAT", "1"),
                ("T_IS_NARROW", "1"),
                ("T_IS_HALF", "1"),
            ],
            Self::I64 => &[("T", "i64"), ("WIDE", "i64"), ("SUFFIX", "i64")],
            Self::I32 => &[("T", "i32"), ("WIDE", "i32"), ("SUFFIX", "i32"), ("T_IS_INT", "1")],
            Self::U32 => &[("T", "u32"), ("WIDE", "u32"), ("SUFFIX", "u32"), ("T_IS_UNSIGNED", "1")],
            Self::U8 => &[("T", "u8"), ("WIDE", "u8"), ("SUFFIX", "u8"), ("T_IS_BYTE", "1")],
        }
    }

    /// Whether the type is a 16-bit float.
    #[must_use]
    pub const fn is_half(self) -> bool {
        matches!(self, Self::F16 | Self::BF16)
    }

    /// Whether the type is a float.
    #[must_use]
    pub const fn is_float(self) -> bool {
        self.is_half() || matches!(self, Self::F32 | Self::F64)
    }
}

//! The kernel sources and the element types that they are compiled for.

use std::collections::BTreeSet;
use std::fmt;

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
    pub(crate) const fn defines(self) -> &'static [(&'static str, &'static str)] {
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

    const fn is_half(self) -> bool {
        matches!(self, Self::F16 | Self::BF16)
    }

    const fn is_float(self) -> bool {
        self.is_half() || matches!(self, Self::F32 | Self::F64)
    }
}

/// A source file with several kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Family {
    /// Elementwise functions of all types.
    Elementwise,
    /// Unary float functions and their derivatives.
    Float,
    /// Type conversions.
    Convert,
    /// Reductions over axes.
    Reduce,
    /// Cumulative sums and products.
    Scan,
    /// Sorting.
    Sort,
    /// Matrix products.
    Matmul,
    /// Softmax, cross-entropy and layer normalization.
    Rows,
    /// Convolutions.
    Conv,
    /// Max and mean pooling.
    Pool,
    /// Scaled dot-product attention.
    Attention,
    /// Steps of recurrent layers.
    Recurrent,
    /// Gather, scatter and one-hot.
    Index,
    /// Random fills.
    Random,
    /// Optimizer steps.
    Optim,
}

impl Family {
    /// All values.
    pub const ALL: [Self; 15] = [
        Self::Elementwise,
        Self::Float,
        Self::Convert,
        Self::Reduce,
        Self::Scan,
        Self::Sort,
        Self::Matmul,
        Self::Rows,
        Self::Conv,
        Self::Pool,
        Self::Attention,
        Self::Recurrent,
        Self::Index,
        Self::Random,
        Self::Optim,
    ];

    /// The name of the source file, without extension.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Elementwise => "elementwise",
            Self::Float => "float",
            Self::Convert => "convert",
            Self::Reduce => "reduce",
            Self::Scan => "scan",
            Self::Sort => "sort",
            Self::Matmul => "matmul",
            Self::Rows => "rows",
            Self::Conv => "conv",
            Self::Pool => "pool",
            Self::Attention => "attention",
            Self::Recurrent => "recurrent",
            Self::Index => "index",
            Self::Random => "random",
            Self::Optim => "optim",
        }
    }

    /// The source, which needs [`Family::PRELUDE`].
    #[must_use]
    pub const fn source(self) -> &'static str {
        match self {
            Self::Elementwise => include_str!("../../kernels/elementwise.cu"),
            Self::Float => {
                concat!(include_str!("../../kernels/activation.cuh"), include_str!("../../kernels/float.cu"))
            }
            Self::Convert => include_str!("../../kernels/convert.cu"),
            Self::Reduce => include_str!("../../kernels/reduce.cu"),
            Self::Scan => include_str!("../../kernels/scan.cu"),
            Self::Sort => include_str!("../../kernels/sort.cu"),
            Self::Matmul => concat!(
                include_str!("../../kernels/tile.cuh"),
                include_str!("../../kernels/activation.cuh"),
                include_str!("../../kernels/matmul.cu")
            ),
            Self::Rows => include_str!("../../kernels/rows.cu"),
            Self::Conv => concat!(
                include_str!("../../kernels/tile.cuh"),
                include_str!("../../kernels/conv.cu"),
                include_str!("../../kernels/conv_tiled.cu")
            ),
            Self::Pool => include_str!("../../kernels/pool.cu"),
            Self::Attention => concat!(
                include_str!("../../kernels/tile.cuh"),
                include_str!("../../kernels/mma.cuh"),
                include_str!("../../kernels/attention.cuh"),
                include_str!("../../kernels/attention.cu"),
                include_str!("../../kernels/attention_mma.cu")
            ),
            Self::Recurrent => {
                concat!(
                    include_str!("../../kernels/activation.cuh"),
                    include_str!("../../kernels/recurrent.cu")
                )
            }
            Self::Index => include_str!("../../kernels/index.cu"),
            Self::Random => include_str!("../../kernels/random.cu"),
            Self::Optim => include_str!("../../kernels/optim.cu"),
        }
    }

    /// The headers that all sources need.
    pub const PRELUDE: &'static str = concat!(
        include_str!("../../kernels/job.cuh"),
        include_str!("../../kernels/half.cuh"),
        include_str!("../../kernels/element.cuh"),
        include_str!("../../kernels/pack.cuh"),
        include_str!("../../kernels/number.cuh"),
        include_str!("../../kernels/team.cuh"),
    );

    /// Whether the family is compiled for an element type.
    #[must_use]
    pub const fn takes(self, element: ElementType) -> bool {
        match self {
            Self::Elementwise
            | Self::Convert
            | Self::Reduce
            | Self::Scan
            | Self::Sort
            | Self::Matmul
            | Self::Index
            | Self::Random => true,
            Self::Float
            | Self::Rows
            | Self::Conv
            | Self::Pool
            | Self::Attention
            | Self::Recurrent
            | Self::Optim => element.is_float(),
        }
    }

    /// The names of the kernels, without suffix: those that the source defines. It may define a kernel in several ways, of which
    /// the device's architecture selects one.
    pub fn kernels(self) -> impl Iterator<Item = &'static str> {
        let defined = self.source().lines().filter_map(|line| {
            let line = line.strip_prefix("BLOCK_").unwrap_or(line);
            line.strip_prefix("KERNEL(")?.split([')', ',']).next()
        });
        let names: BTreeSet<_> = defined.collect();
        names.into_iter()
    }

    /// The source for one element type, as passed to a device compiler.
    #[must_use]
    pub fn translation_unit(self, element: ElementType) -> String {
        let mut text = String::new();
        for (name, value) in element.defines() {
            // `T` may be a type of the prelude: macros expand where they are used.
            text.push_str(&format!("#define {name} {value}\n"));
        }
        text.push_str(Self::PRELUDE);
        text.push_str(self.source());
        text
    }
}

/// A kernel for one element type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KernelId {
    /// The source file.
    pub family: Family,
    /// The name without suffix.
    pub name: &'static str,
    /// The element type.
    pub element: ElementType,
}

impl KernelId {
    /// Names a kernel.
    #[must_use]
    pub const fn new(family: Family, name: &'static str, element: ElementType) -> Self {
        Self { family, name, element }
    }

    /// Lists all kernels for all element types.
    pub fn all() -> impl Iterator<Item = Self> {
        Family::ALL.into_iter().flat_map(|family| {
            let elements = ElementType::ALL.into_iter().filter(move |&element| family.takes(element));
            elements
                .flat_map(move |element| family.kernels().map(move |name| Self::new(family, name, element)))
        })
    }
}

/// The name in compiled code.
impl fmt::Display for KernelId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}_{}", self.name, self.element.suffix())
    }
}

//! The kernel sources and the element types that they are compiled for.
//!
//! The sources are CUDA C++ in this crate's folder `cuda`. NVRTC compiles them on a device, or a C++ compiler for the
//! emulator (feature `emulator`). A comment above each kernel says what it computes.

use bfc_cuda::kernels::{ElementType, KernelId, KernelSource};

/// The headers that all sources need.
const HEADERS: &str = concat!(
    include_str!("../../cuda/element.cuh"),
    include_str!("../../cuda/pack.cuh"),
    include_str!("../../cuda/number.cuh"),
    include_str!("../../cuda/team.cuh"),
);

/// Whether a family for `all` types or for `floats` is compiled for an element type.
macro_rules! takes {
    (all, $element:expr) => {
        true
    };
    (floats, $element:expr) => {
        $element.is_float()
    };
}

/// Declares [`Family`]: the name of each family, its element types, and its files in the folder `cuda`.
macro_rules! families {
    ($($(#[$doc:meta])* $family:ident = $name:literal, $types:ident, [$($file:literal),+];)+) => {
        /// A source file with several kernels.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[non_exhaustive]
        pub enum Family {
            $($(#[$doc])* $family,)+
        }

        impl Family {
            /// All values.
            pub const ALL: &'static [Self] = &[$(Self::$family),+];

            /// The source.
            #[must_use]
            pub const fn source(self) -> &'static KernelSource {
                match self {
                    $(Self::$family => {
                        const TEXT: &str = concat!($(include_str!(concat!("../../cuda/", $file))),+);
                        static SOURCE: KernelSource = KernelSource::new($name, HEADERS, TEXT);
                        &SOURCE
                    })+
                }
            }

            /// Whether the family is compiled for an element type.
            #[must_use]
            pub const fn takes(self, element: ElementType) -> bool {
                match self {
                    $(Self::$family => takes!($types, element),)+
                }
            }
        }
    };
}

families! {
    /// Elementwise functions of all types.
    Elementwise = "elementwise", all, ["activation.cuh", "elementwise.cu"];
    /// Unary float functions and their derivatives.
    Float = "float", floats, ["activation.cuh", "float.cu"];
    /// Type conversions.
    Convert = "convert", all, ["convert.cu"];
    /// Reductions over axes.
    Reduce = "reduce", all, ["reduce.cu"];
    /// Cumulative sums and products.
    Scan = "scan", all, ["scan.cu"];
    /// Sorting.
    Sort = "sort", all, ["sort.cu"];
    /// Matrix products.
    Matmul = "matmul", all, ["tile.cuh", "activation.cuh", "matmul.cu"];
    /// Softmax, cross-entropy and layer normalization.
    Rows = "rows", floats, ["rows.cu"];
    /// Batch normalization.
    BatchNorm = "batch_norm", floats, ["batch_norm.cu"];
    /// Convolutions.
    Conv = "conv", floats, ["tile.cuh", "conv.cu", "conv_tiled.cu"];
    /// Max and mean pooling.
    Pool = "pool", floats, ["pool.cu"];
    /// Scaled dot-product attention.
    Attention = "attention", floats, ["tile.cuh", "mma.cuh", "attention.cuh", "attention.cu", "attention_mma.cu"];
    /// Steps of recurrent layers.
    Recurrent = "recurrent", floats, ["activation.cuh", "recurrent.cu"];
    /// Products with quantized matrices, and the conversion of their blocks.
    Quantized = "quantized", floats, ["tile.cuh", "quantized.cu"];
    /// Gather, scatter and one-hot.
    Index = "index", all, ["index.cu"];
    /// Random fills.
    Random = "random", all, ["random.cu"];
    /// Optimizer steps.
    Optim = "optim", floats, ["optim.cu"];
}

impl Family {
    /// Names a kernel of the family.
    #[must_use]
    pub const fn kernel(self, name: &'static str, element: ElementType) -> KernelId {
        KernelId::new(self.source(), name, element)
    }

    /// The element types that the family is compiled for.
    pub fn elements(self) -> impl Iterator<Item = ElementType> {
        ElementType::ALL.into_iter().filter(move |&element| self.takes(element))
    }
}

//! What kernels need memory for while they run, as data.

use super::window::Convolution;
use crate::layout::Layout;
use crate::shape::{DType, Shape};

/// What a kernel needs memory for while it runs: all that its size may depend on.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Workspace<'a> {
    /// Of [`Kernel::Reduce`](super::Kernel::Reduce).
    Reduce {
        /// The input's shape.
        shape: &'a Shape,
        /// Which axes are folded.
        axes: &'a [bool],
        /// The element type.
        dtype: DType,
    },
    /// Of [`Kernel::ArgSort`](super::Kernel::ArgSort).
    ArgSort {
        /// The input's shape.
        shape: &'a Shape,
    },
    /// Of [`Kernel::MatMul`](super::Kernel::MatMul).
    MatMul {
        /// Where the rows lie.
        lhs: &'a Layout,
        /// Where the columns lie.
        rhs: &'a Layout,
        /// The element type.
        dtype: DType,
    },
    /// Of [`Kernel::Conv2d`](super::Kernel::Conv2d) and [`Kernel::Conv2dInputGrad`](super::Kernel::Conv2dInputGrad).
    Conv2d {
        /// The windows and groups.
        conv: &'a Convolution,
        /// The input's shape.
        input: &'a Shape,
        /// The output's shape.
        out: &'a Shape,
        /// The element type.
        dtype: DType,
    },
    /// Of [`Kernel::Conv2dWeightGrad`](super::Kernel::Conv2dWeightGrad).
    Conv2dWeightGrad {
        /// The windows and groups.
        conv: &'a Convolution,
        /// The input's shape.
        input: &'a Shape,
        /// The output's shape.
        out: &'a Shape,
        /// The element type.
        dtype: DType,
    },
    /// Of [`Kernel::LayerNormSums`](super::Kernel::LayerNormSums).
    LayerNormSums {
        /// Rows, parameters and places.
        sizes: [usize; 3],
        /// Two, or one where there is no bias.
        sums: usize,
        /// The element type.
        dtype: DType,
    },
    /// Of [`Kernel::ScatterAdd`](super::Kernel::ScatterAdd).
    ScatterAdd {
        /// Where the indices lie.
        indices: &'a Layout,
        /// Along which axis they choose.
        axis: usize,
    },
    /// Of [`Kernel::Attention`](super::Kernel::Attention) and its gradient.
    Attention {
        /// The query's shape.
        query: &'a Shape,
        /// The value's shape.
        value: &'a Shape,
        /// The element type.
        dtype: DType,
    },
}

impl Workspace<'_> {
    /// The same for the type that the kernel calculates with.
    pub(crate) const fn of_computed(mut self) -> Self {
        match &mut self {
            Self::Reduce { dtype, .. }
            | Self::MatMul { dtype, .. }
            | Self::Conv2d { dtype, .. }
            | Self::Conv2dWeightGrad { dtype, .. }
            | Self::LayerNormSums { dtype, .. }
            | Self::Attention { dtype, .. } => *dtype = dtype.computed_as(),
            Self::ArgSort { .. } | Self::ScatterAdd { .. } => {}
        }
        self
    }
}

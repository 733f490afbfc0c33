//! Workspace requests as data: each variant holds the values that the size of a kernel's workspace depends on.

use super::precision::Precision;
use super::recurrent::RecurrentCell;
use super::window::Convolution;
use crate::layout::Layout;
use crate::shape::{DType, Shape};

/// A request for the workspace of a kernel: all values that its size may depend on.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Workspace<'a> {
    /// The workspace of [`Kernel::Reduce`](super::Kernel::Reduce).
    Reduce {
        /// The input's shape.
        shape: &'a Shape,
        /// For each axis, whether it is reduced.
        axes: &'a [bool],
        /// The element type.
        dtype: DType,
    },
    /// The workspace of [`Kernel::ArgSort`](super::Kernel::ArgSort).
    ArgSort {
        /// The input's shape.
        shape: &'a Shape,
    },
    /// The workspace of [`Kernel::MatMul`](super::Kernel::MatMul).
    MatMul {
        /// The layout of the left factor.
        lhs: &'a Layout,
        /// The layout of the right factor.
        rhs: &'a Layout,
        /// The element type.
        dtype: DType,
        /// The precision of the products.
        precision: Precision,
    },
    /// The workspace of [`Kernel::Conv2d`](super::Kernel::Conv2d).
    Conv2d {
        /// The windows and groups.
        conv: &'a Convolution,
        /// The input's shape.
        input: &'a Shape,
        /// The output's shape.
        out: &'a Shape,
        /// The element type.
        dtype: DType,
        /// The precision of the products.
        precision: Precision,
    },
    /// The workspace of [`Kernel::Conv2dInputGrad`](super::Kernel::Conv2dInputGrad).
    Conv2dInputGrad {
        /// The windows and groups.
        conv: &'a Convolution,
        /// The input's shape.
        input: &'a Shape,
        /// The output's shape.
        out: &'a Shape,
        /// The element type.
        dtype: DType,
        /// The precision of the products.
        precision: Precision,
    },
    /// The workspace of [`Kernel::Conv2dWeightGrad`](super::Kernel::Conv2dWeightGrad).
    Conv2dWeightGrad {
        /// The windows and groups.
        conv: &'a Convolution,
        /// The input's shape.
        input: &'a Shape,
        /// The output's shape.
        out: &'a Shape,
        /// The element type.
        dtype: DType,
        /// The precision of the products.
        precision: Precision,
    },
    /// The workspace of [`Kernel::LayerNormSums`](super::Kernel::LayerNormSums).
    LayerNormSums {
        /// Rows, parameters, and elements per row and parameter.
        sizes: [usize; 3],
        /// The number of gradients: 2, or 1 without a bias.
        sums: usize,
        /// The element type.
        dtype: DType,
    },
    /// The workspace of [`Kernel::ScatterAdd`](super::Kernel::ScatterAdd).
    ScatterAdd {
        /// The layout of the indices.
        indices: &'a Layout,
        /// The axis of the output that the indices address.
        axis: usize,
    },
    /// The workspace of [`Kernel::Recurrent`](super::Kernel::Recurrent) and its gradient.
    Recurrent {
        /// The cell.
        cell: RecurrentCell,
        /// The numbers of sequences, of their steps, and of the elements of a state.
        sizes: [usize; 3],
        /// The element type.
        dtype: DType,
    },
    /// The workspace of [`Kernel::Attention`](super::Kernel::Attention) and its gradient.
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
    /// Replaces the element type with the type in which the kernel computes, unless the kernel may read 16-bit floats.
    pub(crate) const fn of_computed(mut self) -> Self {
        match &mut self {
            Self::Reduce { dtype, .. }
            | Self::LayerNormSums { dtype, .. }
            | Self::Recurrent { dtype, .. }
            | Self::Attention { dtype, .. } => {
                *dtype = dtype.computed_as();
            }
            Self::MatMul { .. }
            | Self::Conv2d { .. }
            | Self::Conv2dInputGrad { .. }
            | Self::Conv2dWeightGrad { .. }
            | Self::ArgSort { .. }
            | Self::ScatterAdd { .. } => {}
        }
        self
    }
}

//! Sorting along an axis, with the indices of the sorted elements.
//!
//! | op | y | ∂L/∂x | takes beside the output |
//! |---|---|---|---|
//! | `argsort` | the indices of the elements, in sorted order | | as much again |
//! | `sort` | the sorted elements, and their indices | ∂L/∂y, scattered back | as `argsort` |
//! | `top_k` | the first k of them | the same | as `argsort`, and all indices |
//!
//! Sorting is stable: equal elements keep their order, in descending order too. NaN is larger than every number, so it
//! comes last in ascending and first in descending order, as in PyTorch.

use super::index::Gather;
use super::{is_numeric, supported};
use crate::autograd::apply;
use crate::backend::kernels;
use crate::error::{Error, Result};
use crate::layout::Layout;
use crate::op::{Buffer, Op, OpContext};
use crate::shape::{DType, MAX_RANK};
use crate::tensor::Tensor;

/// Sort order: ascending or descending.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SortOrder {
    /// Smallest elements first; NaN comes last.
    #[default]
    Ascending,
    /// Largest elements first; NaN comes before all others.
    Descending,
}

#[derive(Debug)]
struct ArgSort {
    op: &'static str,
    axis: usize,
    order: SortOrder,
    /// The number of leading indices to return.
    first: usize,
}

impl Op for ArgSort {
    fn name(&self) -> &'static str {
        self.op
    }

    fn forward(&self, ctx: &OpContext<'_>, inputs: &[&Tensor]) -> Result<Tensor> {
        let x = inputs[0];
        supported(self.op, x.dtype(), is_numeric)?;
        // Backends sort along the last axis: the op swaps the axes before and after.
        let swapped = |layout: &Layout| {
            let mut axes: [usize; MAX_RANK] = std::array::from_fn(|axis| axis);
            axes.swap(self.axis, x.rank() - 1);
            layout.permuted(self.op, &axes[..x.rank()])
        };
        let input = x.with_layout(swapped(x.layout())?);
        let mut out = ctx.output(input.shape(), DType::I64)?;
        let mut workspace = ctx.workspace(kernels::ArgSortWorkspace { shape: input.shape() })?;
        ctx.compute(kernels::ArgSort {
            descending: self.order == SortOrder::Descending,
            first: self.first,
            input: input.view(),
            workspace: workspace.as_mut().map(Buffer::view_mut),
            out: out.view_mut(),
        })?;
        let mut indices = out.finish();
        if self.first < x.dims()[self.axis] {
            // A copy releases the indices of the other elements.
            let last = x.rank() - 1;
            let first = indices.layout().sliced(self.op, last, 0..self.first, 1)?;
            let mut out = ctx.output(first.shape(), DType::I64)?;
            ctx.compute(kernels::Copy { input: indices.with_layout(first).view(), out: out.view_mut() })?;
            indices = out.finish();
        }
        Ok(indices.with_layout(swapped(indices.layout())?))
    }
}

/// # Sort
impl Tensor {
    /// Gathers the elements of sorted indices, and returns both.
    fn picked(&self, op: &'static str, axis: usize, indices: Self) -> Result<(Self, Self)> {
        Ok((apply(Gather { op, axis, padding: None }, &[self, &indices])?, indices))
    }

    /// Returns the indices (i64) that sort the elements along an axis, as PyTorch's `argsort`. Stable.
    ///
    /// ```
    /// use highwater::{Device, SortOrder, Tensor};
    /// let x = Tensor::from_slice(&Device::cpu()?, &[2.0f32, 1.0, 2.0], [3])?;
    /// assert_eq!(x.argsort(0, SortOrder::Ascending)?.to_vec::<i64>()?, [1, 0, 2]);
    /// assert_eq!(x.argsort(0, SortOrder::Descending)?.to_vec::<i64>()?, [0, 2, 1]);
    /// # Ok::<(), highwater::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::AxisOutOfRange`]; [`Error::UnsupportedDType`] for booleans; [`Error::Allocation`] if there is no
    /// memory.
    pub fn argsort(&self, axis: isize, order: SortOrder) -> Result<Self> {
        let op = "argsort";
        let axis = self.shape().axis(op, axis)?;
        apply(ArgSort { op, axis, order, first: self.dims()[axis] }, &[self])
    }

    /// Sorts the elements along an axis; returns them and their previous indices (i64). Stable; [`SortOrder`] describes
    /// NaN.
    ///
    /// ```
    /// use highwater::{Device, SortOrder, Tensor};
    /// let x = Tensor::from_slice(&Device::cpu()?, &[2.0f32, 0.5, 1.0], [3])?;
    /// let (values, indices) = x.sort(0, SortOrder::Ascending)?;
    /// assert_eq!(values.to_vec::<f32>()?, [0.5, 1.0, 2.0]);
    /// assert_eq!(indices.to_vec::<i64>()?, [1, 2, 0]);
    /// # Ok::<(), highwater::Error>(())
    /// ```
    ///
    /// # Errors
    /// See [`Tensor::argsort`].
    pub fn sort(&self, axis: isize, order: SortOrder) -> Result<(Self, Self)> {
        let op = "sort";
        let axis = self.shape().axis(op, axis)?;
        let indices = apply(ArgSort { op, axis, order, first: self.dims()[axis] }, &[self])?;
        self.picked(op, axis, indices)
    }

    /// Returns the `k` largest (descending) or smallest (ascending) elements along an axis and their indices (i64), as
    /// PyTorch's `topk`.
    ///
    /// ```
    /// use highwater::{Device, SortOrder, Tensor};
    /// let x = Tensor::from_slice(&Device::cpu()?, &[2.0f32, 0.5, 1.0], [3])?;
    /// let (largest, places) = x.top_k(2, 0, SortOrder::Descending)?;
    /// assert_eq!(largest.to_vec::<f32>()?, [2.0, 1.0]);
    /// assert_eq!(places.to_vec::<i64>()?, [0, 2]);
    /// # Ok::<(), highwater::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::BadArgument`] if the axis has fewer than `k` elements; otherwise see [`Tensor::argsort`].
    #[doc(alias("topk"))]
    pub fn top_k(&self, k: usize, axis: isize, order: SortOrder) -> Result<(Self, Self)> {
        let op = "top_k";
        let indices = self.top_k_indices(op, k, axis, order)?;
        self.picked(op, self.shape().axis(op, axis)?, indices)
    }

    /// Returns the indices of [`top_k`](Self::top_k), on behalf of an op.
    pub(super) fn top_k_indices(
        &self,
        op: &'static str,
        k: usize,
        axis: isize,
        order: SortOrder,
    ) -> Result<Self> {
        let (given, axis) = (axis, self.shape().axis(op, axis)?);
        if k > self.dims()[axis] {
            let got = format!("{k} for axis {given} of shape {}", self.shape());
            return Err(Error::BadArgument { op, argument: "k", expected: "at most the axis's size", got });
        }
        apply(ArgSort { op, axis, order, first: k }, &[self])
    }
}

//! Changes of shape: reshaping, permuting, adding and removing axes of size 1.
//!
//! | op | y | ∂L/∂x | takes memory |
//! |---|---|---|---|
//! | `transpose`, `t`, `permute` | the axes in another order | the axes put back | never |
//! | `unsqueeze`, `squeeze` | with or without an axis of size 1 | without or with it | never |
//! | `reshape`, `flatten`, `flatten_from` | the elements in logical order, cut otherwise | cut as before | unless merged axes have one stride |
//! | `contiguous` | the same, without gaps | ∂L/∂y | unless contiguous |
//!
//! Nothing is saved.

use super::axes::{Axes, AxisSet};
use super::reduce::reshaped;
use crate::autograd::apply;
use crate::backend::kernels;
use crate::error::{Error, Result};
use crate::layout::IntoShape;
use crate::layout::Layout;
use crate::op::Saved;
use crate::op::{Op, OpContext, Summation};
use crate::shape::{MAX_RANK, Shape};
use crate::tensor::Tensor;

/// A change of the layout that shares the buffer.
#[derive(Clone, Copy, Debug)]
enum LayoutChange {
    /// Axis i of the result is axis `axes[i]` of the original.
    Permute { axes: [usize; MAX_RANK] },
    /// Inserts an axis of size 1 before `axis`.
    Unsqueeze { axis: usize },
    /// Removes `axis`, whose size is 1.
    Squeeze { axis: usize },
}

impl LayoutChange {
    fn at(&self, op: &'static str, layout: &Layout) -> Result<Layout> {
        Ok(match self {
            Self::Permute { axes } => layout.permuted(op, &axes[..layout.shape().rank()])?,
            Self::Unsqueeze { axis } => layout.with_axis(*axis)?,
            Self::Squeeze { axis } => layout.without_axis(*axis),
        })
    }

    /// Returns the inverse change.
    fn back(&self, rank: usize) -> Self {
        match *self {
            Self::Permute { axes } => {
                let mut back = [0; MAX_RANK];
                for (to, &from) in axes[..rank].iter().enumerate() {
                    back[from] = to;
                }
                Self::Permute { axes: back }
            }
            Self::Unsqueeze { axis } => Self::Squeeze { axis },
            Self::Squeeze { axis } => Self::Unsqueeze { axis },
        }
    }
}

#[derive(Debug)]
struct LookOp {
    op: &'static str,
    look: LayoutChange,
}

impl Op for LookOp {
    fn name(&self) -> &'static str {
        self.op
    }

    fn forward(&self, _: &OpContext<'_>, inputs: &[&Tensor]) -> Result<Tensor> {
        Ok(inputs[0].with_layout(self.look.at(self.op, inputs[0].layout())?))
    }

    fn backward(&self, _: &OpContext<'_>, saved: &mut Saved, grad: Tensor) -> Result<Vec<Option<Tensor>>> {
        let back = self.look.back(saved.input_shape(0).rank());
        Ok(vec![Some(grad.with_layout(back.at(self.op, grad.layout())?))])
    }

    fn passes_gradient(&self) -> bool {
        true
    }

    fn summation(&self, _: &[Shape]) -> Summation {
        Summation::ELEMENTWISE
    }
}

#[derive(Debug)]
struct Reshape(Shape);

impl Op for Reshape {
    fn name(&self) -> &'static str {
        "reshape"
    }

    fn forward(&self, _: &OpContext<'_>, inputs: &[&Tensor]) -> Result<Tensor> {
        match inputs[0].layout().reshaped(self.0) {
            Some(layout) => Ok(inputs[0].with_layout(layout)),
            None => reshaped(inputs[0].contiguous()?, self.0),
        }
    }

    fn backward(&self, _: &OpContext<'_>, saved: &mut Saved, grad: Tensor) -> Result<Vec<Option<Tensor>>> {
        Ok(vec![Some(grad.reshape(saved.input_shape(0))?)])
    }

    fn passes_gradient(&self) -> bool {
        true
    }

    fn summation(&self, _: &[Shape]) -> Summation {
        Summation::ELEMENTWISE
    }
}

#[derive(Debug)]
struct Contiguous;

impl Op for Contiguous {
    fn name(&self) -> &'static str {
        "contiguous"
    }

    fn forward(&self, ctx: &OpContext<'_>, inputs: &[&Tensor]) -> Result<Tensor> {
        let mut out = ctx.output(inputs[0].shape(), inputs[0].dtype())?;
        ctx.compute(kernels::Copy { input: inputs[0].view(), out: out.view_mut() })?;
        Ok(out.finish())
    }

    fn backward(&self, _: &OpContext<'_>, _: &mut Saved, grad: Tensor) -> Result<Vec<Option<Tensor>>> {
        Ok(vec![Some(grad)])
    }

    fn passes_gradient(&self) -> bool {
        true
    }

    fn summation(&self, _: &[Shape]) -> Summation {
        Summation::ELEMENTWISE
    }
}

/// Inserts axes of size 1, so that `axes` are the new ones.
pub(super) fn restored(tensor: &Tensor, axes: &AxisSet) -> Result<Tensor> {
    let layout = axes.iter().try_fold(*tensor.layout(), |layout, axis| layout.with_axis(axis))?;
    Ok(tensor.with_layout(layout))
}

/// # Shape
///
/// Views with another shape or another order of axes.
impl Tensor {
    fn change_layout(&self, op: &'static str, look: LayoutChange) -> Result<Self> {
        apply(LookOp { op, look }, &[self])
    }

    /// Changes the shape and keeps the logical order of the elements, as NumPy's `reshape`. Returns a view if each new
    /// axis has one stride, as for a contiguous tensor; otherwise copies.
    ///
    /// One size may be -1: it follows from the number of elements. Use a tuple for sizes of different types.
    ///
    /// ```
    /// use highwater::{Device, Tensor};
    /// let images = Tensor::zeros(&Device::cpu()?, [32, 8, 8])?;
    /// let n = images.dims()[0];
    /// assert_eq!(images.reshape([32, 64])?.dims(), [32, 64]);
    /// assert_eq!(images.reshape([-1, 64])?.dims(), [32, 64]);
    /// assert_eq!(images.reshape((n, -1))?.dims(), [32, 64]);
    /// # Ok::<(), highwater::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::ElementCount`] if the shape has another number of elements; [`Error::BadArgument`] if no size fits in
    /// place of -1, and for other negative sizes; [`Error::Allocation`] if a copy is needed and there is no memory.
    #[doc(alias("view"))]
    pub fn reshape(&self, shape: impl IntoShape) -> Result<Self> {
        let shape = shape.into_shape_of(self.elements()).map_err(|error| error.in_op("reshape"))?;
        if shape.checked_elements() != Some(self.elements()) {
            return Err(Error::ElementCount { op: "reshape", elements: self.elements(), shape });
        }
        if shape == *self.shape() {
            return Ok(self.unchanged());
        }
        apply(Reshape(shape), &[self])
    }

    /// Merges all axes from `axis` on into one.
    ///
    /// ```
    /// use highwater::{Device, Tensor};
    /// let images = Tensor::zeros(&Device::cpu()?, [64, 8, 8])?;
    /// assert_eq!(images.flatten_from(1)?.dims(), [64, 64]);
    /// # Ok::<(), highwater::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::AxisOutOfRange`]; otherwise see [`Tensor::reshape`].
    pub fn flatten_from(&self, axis: isize) -> Result<Self> {
        self.merge("flatten_from", axis, -1)
    }

    /// Merges the axes from `first` to `last` (inclusive) into one, as PyTorch's `flatten`. Negative axes count from
    /// the back.
    ///
    /// ```
    /// use highwater::{Device, Tensor};
    /// let scores = Tensor::zeros(&Device::cpu()?, [16, 32, 65])?;
    /// assert_eq!(scores.flatten(0, 1)?.dims(), [16 * 32, 65]);
    /// assert_eq!(scores.flatten(1, -1)?.dims(), [16, 32 * 65]);
    /// # Ok::<(), highwater::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::AxisOutOfRange`], [`Error::BadArgument`] if `last` is before `first`; otherwise see
    /// [`Tensor::reshape`].
    #[doc(alias("ravel"))]
    pub fn flatten(&self, first: isize, last: isize) -> Result<Self> {
        self.merge("flatten", first, last)
    }

    fn merge(&self, op: &'static str, first: isize, last: isize) -> Result<Self> {
        let [from, to] = [self.shape().axis(op, first)?, self.shape().axis(op, last)?];
        if to < from {
            let expected = "an axis that is not before the first";
            return Err(Error::BadArgument { op, argument: "last", expected, got: last.to_string() });
        }
        let dims = self.dims();
        let merged = Shape::new(&dims[from..=to])?
            .checked_elements()
            .ok_or_else(|| Error::TooManyElements { op, shape: *self.shape(), dtype: self.dtype() })?;
        self.reshape([&dims[..from], &[merged], &dims[to + 1..]].concat())
    }

    /// Swaps two axes, as PyTorch's `transpose`. Returns a view.
    ///
    /// # Errors
    /// [`Error::AxisOutOfRange`].
    pub fn transpose(&self, a: isize, b: isize) -> Result<Self> {
        let op = "transpose";
        let (a, b) = (self.shape().axis(op, a)?, self.shape().axis(op, b)?);
        let mut axes = std::array::from_fn(|axis| axis);
        axes.swap(a, b);
        self.change_layout(op, LayoutChange::Permute { axes })
    }

    /// Transposes a matrix, or each matrix of a stack: swaps the last two axes. Returns a view.
    ///
    /// # Errors
    /// [`Error::BadRank`] for fewer than two axes.
    #[doc(alias("T", "transpose"))]
    pub fn t(&self) -> Result<Self> {
        if self.rank() < 2 {
            return Err(Error::BadRank { op: "t", expected: "at least two axes", shape: *self.shape() });
        }
        self.transpose(-2, -1)
    }

    /// Reorders the axes: axis i of the result is axis `axes[i]` of this tensor. Returns a view.
    ///
    /// ```
    /// use highwater::{Device, Tensor};
    /// let images = Tensor::zeros(&Device::cpu()?, [8, 3, 32, 64])?;
    /// assert_eq!(images.permute([0, 2, 3, 1])?.dims(), [8, 32, 64, 3]);
    /// # Ok::<(), highwater::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::AxisOutOfRange`], and [`Error::BadPermutation`] unless each axis occurs exactly once.
    #[doc(alias("transpose"))]
    pub fn permute(&self, axes: impl Axes) -> Result<Self> {
        let op = "permute";
        let named =
            axes.axes().iter().map(|&axis| self.shape().axis(op, axis)).collect::<Result<Vec<_>, _>>()?;
        if named.len() != self.rank() {
            return Err(Error::BadPermutation { op, axes: named, shape: *self.shape() });
        }
        let mut axes = [0; MAX_RANK];
        axes[..named.len()].copy_from_slice(&named);
        self.change_layout(op, LayoutChange::Permute { axes })
    }

    /// Removes axes of size 1, as PyTorch's `squeeze`. Returns a view.
    ///
    /// ```
    /// use highwater::{Device, Tensor};
    /// let x = Tensor::zeros(&Device::cpu()?, [1, 3, 1])?;
    /// assert_eq!(x.squeeze(0)?.dims(), [3, 1]);
    /// assert_eq!(x.squeeze([0, -1])?.dims(), [3]);
    /// # Ok::<(), highwater::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::AxisOutOfRange`], and [`Error::BadArgument`] for a repeated axis or an axis of another size.
    pub fn squeeze(&self, axes: impl Axes) -> Result<Self> {
        let op = "squeeze";
        let set = AxisSet::of(op, self.shape(), &axes)?;
        for &axis in axes.axes() {
            if self.dims()[self.shape().axis(op, axis)?] != 1 {
                let got = format!("{axis} for shape {}", self.shape());
                return Err(Error::BadArgument { op, argument: "axis", expected: "one of size 1", got });
            }
        }
        // From the last axis to the first, so that the earlier axes keep their numbers.
        let mut squeezed = None;
        for axis in set.iter().rev() {
            squeezed =
                Some(squeezed.as_ref().unwrap_or(self).change_layout(op, LayoutChange::Squeeze { axis })?);
        }
        Ok(squeezed.unwrap_or_else(|| self.unchanged()))
    }

    /// Inserts an axis of size 1 at position `axis` of the result. Returns a view.
    ///
    /// # Errors
    /// [`Error::AxisOutOfRange`]; [`Error::RankTooLarge`] for more than [`MAX_RANK`] axes.
    #[doc(alias("expand_dims"))]
    pub fn unsqueeze(&self, axis: isize) -> Result<Self> {
        let op = "unsqueeze";
        let rank = self.rank() as isize;
        let index = if axis < 0 { axis + rank + 1 } else { axis };
        if !(0..=rank).contains(&index) {
            return Err(Error::AxisOutOfRange { op, axis, shape: *self.shape() });
        }
        self.change_layout(op, LayoutChange::Unsqueeze { axis: index as usize })
    }

    /// Returns the elements contiguously in row-major order: the tensor itself if it is contiguous, else a copy.
    ///
    /// # Errors
    /// [`Error::Allocation`] if there is no memory.
    pub fn contiguous(&self) -> Result<Self> {
        if self.layout().is_contiguous() {
            return Ok(self.unchanged());
        }
        apply(Contiguous, &[self])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Runtime;
    use crate::shape::DType;

    fn counting(dims: &[usize]) -> Tensor {
        let device = Runtime::builder().threads(1).build().unwrap().cpu().unwrap();
        let elements = dims.iter().product::<usize>();
        Tensor::arange(&device, 0, elements).unwrap().to_dtype(DType::F32).unwrap().reshape(dims).unwrap()
    }

    #[test]
    fn looks_share_the_buffer_and_lead_back() {
        let x = counting(&[2, 3, 4]);
        let there = x.permute([2, 0, 1]).unwrap().unsqueeze(-1).unwrap().unsqueeze(1).unwrap();
        assert_eq!(there.dims(), [4, 1, 2, 3, 1]);
        let back = there.squeeze(1).unwrap().squeeze(-1).unwrap().permute([1, 2, 0]).unwrap();
        assert!(back.shares_buffer_with(&x));
        assert_eq!(back.layout(), x.layout());
    }

    #[test]
    fn reshaping_copies_only_what_does_not_lie_in_order() {
        let x = counting(&[2, 3]);
        assert!(x.reshape([3, 2]).unwrap().shares_buffer_with(&x));
        let transposed = x.t().unwrap();
        let flat = transposed.reshape(6).unwrap();
        assert!(!flat.shares_buffer_with(&x));
        assert_eq!(flat.to_vec::<f32>().unwrap(), [0.0, 3.0, 1.0, 4.0, 2.0, 5.0]);
        // Axes that do not change may have any stride.
        let apart = counting(&[3, 4, 5]).permute([2, 0, 1]).unwrap();
        let cut = apart.reshape([5, 1, 12]).unwrap();
        assert!(cut.shares_buffer_with(&apart));
        assert_eq!(cut.to_vec::<f32>().unwrap(), apart.to_vec::<f32>().unwrap());
        assert!(x.contiguous().unwrap().shares_buffer_with(&x));
        assert!(transposed.contiguous().unwrap().layout().is_contiguous());
    }

    #[test]
    fn tensors_without_elements_take_any_empty_shape() {
        let x = counting(&[0, 3]);
        assert_eq!(x.reshape([5, 0, 2]).unwrap().dims(), [5, 0, 2]);
        assert_eq!(x.flatten_from(0).unwrap().dims(), [0]);
        let huge = x.reshape([0, 1usize << 40, 1 << 40]).unwrap();
        assert!(matches!(huge.flatten_from(1), Err(Error::TooManyElements { op: "flatten_from", .. })));
        let x = counting(&[2, 3, 4, 5]);
        assert_eq!(x.flatten(1, 2).unwrap().dims(), [2, 12, 5]);
        assert_eq!(x.flatten(-4, -1).unwrap().dims(), [120]);
        assert_eq!(x.flatten(2, 2).unwrap().dims(), x.dims());
        assert!(matches!(x.flatten(2, 1), Err(Error::BadArgument { op: "flatten", argument: "last", .. })));
        assert!(matches!(x.flatten(0, 4), Err(Error::AxisOutOfRange { op: "flatten", axis: 4, .. })));
    }

    #[test]
    fn axes_that_do_not_fit_are_named() {
        let x = counting(&[2, 3]);
        let message = |result: Result<Tensor>| result.unwrap_err().to_string();
        assert_eq!(message(x.transpose(0, 2)), "transpose: axis 2 is out of range for shape [2, 3]");
        assert_eq!(message(x.unsqueeze(3)), "unsqueeze: axis 3 is out of range for shape [2, 3]");
        assert_eq!(message(x.squeeze(-1)), "squeeze: axis must be one of size 1, got -1 for shape [2, 3]");
        assert_eq!(
            message(x.permute([0, 0])),
            "permute: axes [0, 0] are not a permutation of the axes of shape [2, 3]; name each axis exactly once"
        );
        assert!(matches!(x.permute([0]), Err(Error::BadPermutation { .. })));
        assert_eq!(
            message(x.reshape(7)),
            "reshape: shape [7] does not match 6 elements; the sizes must multiply to that number"
        );
        assert!(matches!(x.sum(0).unwrap().t(), Err(Error::BadRank { op: "t", .. })));
        assert!(matches!(counting(&[1; MAX_RANK]).unsqueeze(0), Err(Error::RankTooLarge { rank: 9, .. })));
    }
}

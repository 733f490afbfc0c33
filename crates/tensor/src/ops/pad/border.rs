//! Padding with the tensor's own elements: reflected, replicated or circular.
//!
//! The op copies x, then fills the borders axis by axis. Each axis copies from the axes before it, so corners follow
//! from edges. Along an axis of size n, with b elements before and c after,
//!
//! | mode | y before x, for i < b | y behind x, for i < c |
//! |---|---|---|
//! | reflect | `y[i] = x[b - i]` | `y[b + n + i] = x[n - 2 - i]` |
//! | replicate | `y[i] = x[0]` | `y[b + n + i] = x[n - 1]` |
//! | circular | `y[i] = x[n - b + i]` | `y[b + n + i] = x[i]` |
//!
//! ∂L/∂x sums ∂L/∂y over all copies of an element. Backward goes axis by axis from the last one: in a copy of ∂L/∂y it
//! adds each border to its source. Forward and backward each allocate one output, and temporaries of the size of a
//! border. Nothing is saved.

use std::ops::Range;

use super::{Widths, check_sizes, checked, inside, padded};
use crate::autograd::apply;
use crate::backend::{Binary, Reduce, kernels};
use crate::error::{Error, Result};
use crate::layout::Layout;
use crate::op::Saved;
use crate::op::{Buffer, Op, OpContext};
use crate::ops::axes::AxisSet;
use crate::ops::reduce::fold;
use crate::shape::Shape;
use crate::tensor::Tensor;

const OP: &str = "pad_with";

/// The elements that fill a border.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PadMode {
    /// Mirrors the tensor at its edge without repeating the edge: `c b | a b c | b a`. NumPy and ONNX call it
    /// `reflect`.
    Reflect,
    /// Repeats the edge: `a a | a b c | c c`. NumPy and ONNX call it `edge`.
    Replicate,
    /// Repeats the tensor: `b c | a b c | a b`. NumPy and ONNX call it `wrap`.
    Circular,
}

#[derive(Debug)]
struct Border {
    widths: Widths,
    mode: PadMode,
}

/// A border on one side of an axis and its source, as ranges of the padded axis.
struct Side {
    border: Range<usize>,
    of: Range<usize>,
}

impl Border {
    /// Returns the borders along an axis of `size`.
    fn sides(&self, axis: usize, size: usize) -> impl Iterator<Item = Side> + use<> {
        let (before, behind) = self.widths[axis];
        let end = before + size;
        // An empty border has no valid source range if the tensor is empty.
        let [first, last] = match self.mode {
            PadMode::Reflect => {
                [before + 1..before * 2 + 1, (end - behind).saturating_sub(1)..end.saturating_sub(1)]
            }
            PadMode::Replicate => [before..before + 1, end.saturating_sub(1)..end],
            PadMode::Circular => [end - before..end, before..before + behind],
        };
        [Side { border: 0..before, of: first }, Side { border: end..end + behind, of: last }]
            .into_iter()
            .filter(|side| !side.border.is_empty())
    }

    /// Returns a range of the padded tensor along an axis. Covers earlier axes completely, and only the interior of
    /// later axes.
    fn region(&self, of: &Shape, padded: &Layout, axis: usize, range: Range<usize>) -> Result<Layout> {
        Ok(inside(OP, &self.widths, of, padded, axis + 1)?.sliced(OP, axis, range, 1)?)
    }

    /// Returns the axes that the mode mirrors.
    fn mirrored(&self, axis: usize, rank: usize) -> AxisSet {
        let mut axes = AxisSet::none(rank);
        if self.mode == PadMode::Reflect {
            axes.insert(axis);
        }
        axes
    }

    /// Fills one border of `out` from the elements that are already there.
    fn fill(&self, ctx: &OpContext<'_>, of: &Shape, axis: usize, side: Side, out: &mut Buffer) -> Result<()> {
        let whole = *out.view().layout();
        let from = self.region(of, &whole, axis, side.of)?;
        let to = self.region(of, &whole, axis, side.border)?;
        let mut copy = ctx.temp(from.shape(), out.view().dtype())?;
        let (input, axes) = (out.view().with_layout(&from), self.mirrored(axis, of.rank()));
        ctx.compute(kernels::Flip { input, axes: axes.as_slice(), out: copy.view_mut() })?;
        // Replication broadcasts the edge.
        let spread = copy.view().layout().broadcast_to(OP, to.shape())?;
        write(ctx, &copy, &spread, out, &to)
    }

    /// Adds the gradient of one border to its source.
    fn add_border_gradient(
        &self,
        ctx: &OpContext<'_>,
        of: &Shape,
        axis: usize,
        side: Side,
        grad: &mut Buffer,
    ) -> Result<()> {
        let (whole, dtype) = (*grad.view().layout(), grad.view().dtype());
        let to = self.region(of, &whole, axis, side.of)?;
        let from = self.region(of, &whole, axis, side.border)?;
        let mut border_gradient = ctx.temp(to.shape(), dtype)?;
        let border = grad.view().with_layout(&from);
        if self.mode == PadMode::Replicate {
            let mut axes = AxisSet::none(of.rank());
            axes.insert(axis);
            fold(ctx, Reduce::Sum, border, &axes, &mut border_gradient)?;
        } else {
            let axes = self.mirrored(axis, of.rank());
            ctx.compute(kernels::Flip {
                input: border,
                axes: axes.as_slice(),
                out: border_gradient.view_mut(),
            })?;
        }
        let mut sum = ctx.temp(to.shape(), dtype)?;
        ctx.compute(kernels::Copy { input: grad.view().with_layout(&to), out: sum.view_mut() })?;
        ctx.compute(kernels::Accumulate {
            f: Binary::Add,
            input: border_gradient.view(),
            acc: sum.view_mut(),
        })?;
        let layout = *sum.view().layout();
        write(ctx, &sum, &layout, grad, &to)
    }
}

/// Copies the elements at layout `from` to the positions of layout `to`.
fn write(ctx: &OpContext<'_>, input: &Buffer, from: &Layout, out: &mut Buffer, to: &Layout) -> Result<()> {
    let (input, mut out) = (input.view().with_layout(from), out.view_mut());
    ctx.compute(kernels::CopyInto { input, axis: 0, start: 0, step: 1, out: out.with_layout(to) })
}

impl Op for Border {
    fn name(&self) -> &'static str {
        OP
    }

    fn forward(&self, ctx: &OpContext<'_>, inputs: &[&Tensor]) -> Result<Tensor> {
        let x = inputs[0];
        let of = x.shape();
        let mut out = ctx.output(&padded(of, &self.widths), x.dtype())?;
        let place = inside(OP, &self.widths, of, out.view().layout(), 0)?;
        let mut out_view = out.view_mut();
        let out_view = out_view.with_layout(&place);
        ctx.compute(kernels::CopyInto { input: x.view(), axis: 0, start: 0, step: 1, out: out_view })?;
        for axis in 0..of.rank() {
            for side in self.sides(axis, of[axis]) {
                self.fill(ctx, of, axis, side, &mut out)?;
            }
        }
        Ok(out.finish())
    }

    fn backward(&self, ctx: &OpContext<'_>, saved: &mut Saved, grad: Tensor) -> Result<Vec<Option<Tensor>>> {
        let of = saved.input_shape(0);
        let mut sums = ctx.output(grad.shape(), grad.dtype())?;
        ctx.compute(kernels::Copy { input: grad.view(), out: sums.view_mut() })?;
        for axis in (0..of.rank()).rev() {
            for side in self.sides(axis, of[axis]) {
                self.add_border_gradient(ctx, &of, axis, side, &mut sums)?;
            }
        }
        let sums = sums.finish();
        Ok(vec![Some(sums.with_layout(inside(OP, &self.widths, &of, sums.layout(), 0)?))])
    }
}

/// # Pad with own elements
impl Tensor {
    /// Pads with the tensor's own elements: reflected, replicated or circular. `widths` holds a pair for each axis,
    /// first axis first: the number of elements before and after.
    ///
    /// ```
    /// use highwater::{Device, PadMode, Tensor};
    /// let x = Tensor::arange(&Device::cpu()?, 0, 4)?;
    /// let padded = |mode| x.pad_with([(2, 3)], mode)?.to_vec::<i64>();
    /// assert_eq!(padded(PadMode::Reflect)?, [2, 1, 0, 1, 2, 3, 2, 1, 0]);
    /// assert_eq!(padded(PadMode::Replicate)?, [0, 0, 0, 1, 2, 3, 3, 3, 3]);
    /// assert_eq!(padded(PadMode::Circular)?, [2, 3, 0, 1, 2, 3, 0, 1, 2]);
    /// # Ok::<(), highwater::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::BadArgument`] unless there is one pair per axis, and for a border wider than its source: the axis
    /// without the edge (reflect), the axis (circular), or an empty axis (replicate); [`Error::TooManyElements`],
    /// [`Error::Allocation`] if there is no memory.
    pub fn pad_with(&self, widths: impl AsRef<[(usize, usize)]>, mode: PadMode) -> Result<Self> {
        let Some(widths) = checked(OP, self, widths.as_ref())? else { return Ok(self.unchanged()) };
        for ((axis, &size), &(before, behind)) in self.dims().iter().enumerate().zip(&widths) {
            let (most, expected) = match mode {
                PadMode::Reflect => (size.saturating_sub(1), "less than the size of the reflected axis"),
                PadMode::Replicate if size == 0 => (0, "0 along an axis without elements"),
                PadMode::Replicate => (usize::MAX, ""),
                PadMode::Circular => (size, "at most the size of the repeated axis"),
            };
            if before.max(behind) > most {
                let got = format!("({before}, {behind}) along axis {axis} of shape {}", self.shape());
                return Err(Error::BadArgument { op: OP, argument: "widths", expected, got });
            }
        }
        check_sizes(OP, self, &widths)?;
        apply(Border { widths, mode }, &[self])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Device;
    use crate::shape::DType;
    use PadMode::{Circular, Reflect, Replicate};

    #[test]
    fn padding_sums_the_gradients_of_copied_elements() {
        let x = Tensor::ones(&Device::cpu().unwrap(), [1, 4]).unwrap().requiring_grad().unwrap();
        for (mode, counts) in [
            (Reflect, [2.0, 3.0, 3.0, 1.0]),
            (Replicate, [3.0, 1.0, 1.0, 4.0]),
            (Circular, [2.0, 2.0, 3.0, 2.0]),
        ] {
            let loss = x.pad_with([(0, 0), (2, 3)], mode).unwrap().sum_all().unwrap();
            let gradients = loss.backward().unwrap();
            assert_eq!(gradients.get(&x).unwrap().to_vec::<f32>().unwrap(), counts, "{mode:?}");
        }
    }

    #[test]
    fn no_border_is_the_tensor_itself() {
        let x = Tensor::ones(&Device::cpu().unwrap(), [0, 3]).unwrap();
        assert!(x.pad_with([(0, 0), (0, 0)], Reflect).unwrap().shares_buffer_with(&x));
        let point = Tensor::scalar(x.device(), 1.0f32).unwrap();
        assert_eq!(point.pad_with([], Circular).unwrap().rank(), 0);
    }

    #[test]
    fn borders_wider_than_what_they_are_made_of_are_named() {
        let x = Tensor::ones(&Device::cpu().unwrap(), [2, 3]).unwrap();
        let error = |widths: &[(usize, usize)], mode| x.pad_with(widths, mode).unwrap_err().to_string();
        assert_eq!(
            error(&[(0, 0), (1, 3)], Reflect),
            "pad_with: widths must be less than the size of the reflected axis, got (1, 3) along axis 1 of shape [2, 3]"
        );
        assert_eq!(
            error(&[(3, 0), (0, 0)], Circular),
            "pad_with: widths must be at most the size of the repeated axis, got (3, 0) along axis 0 of shape [2, 3]"
        );
        assert_eq!(
            error(&[(1, 0)], Replicate),
            "pad_with: widths must be one pair per axis, got 1 for shape [2, 3]"
        );
        let empty = Tensor::zeros(x.device(), [2, 0]).unwrap();
        for mode in [Reflect, Replicate, Circular] {
            let refused = empty.pad_with([(0, 0), (0, 1)], mode).unwrap_err();
            assert!(matches!(refused, Error::BadArgument { argument: "widths", .. }), "{mode:?}: {refused}");
            assert_eq!(empty.pad_with([(1, 1), (0, 0)], mode).unwrap().dims(), [4, 0], "{mode:?}");
        }
    }

    #[test]
    fn sizes_that_cannot_be_counted_are_an_error() {
        for shape in [[2, 3], [0, 3]] {
            let x = Tensor::zeros_of(&Device::cpu().unwrap(), shape, DType::U8).unwrap();
            for widths in
                [(usize::MAX, 0), (0, usize::MAX), (usize::MAX / 2, usize::MAX / 2), (usize::MAX - 3, 1)]
            {
                let refused = x.pad_with([(0, 0), widths], Replicate);
                assert!(
                    matches!(refused, Err(Error::TooManyElements { .. })),
                    "{shape:?}, {widths:?}: {refused:?}"
                );
            }
        }
    }
}

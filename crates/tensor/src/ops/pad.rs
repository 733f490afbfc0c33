//! Padding with a constant value.
//!
//! y is x, surrounded by the value. ∂L/∂x is a view of the part of ∂L/∂y at the position of x. The op allocates one
//! output and saves nothing. `border` pads with the tensor's own elements.

mod border;

pub use border::PadMode;

use crate::autograd::apply;
use crate::backend::kernels;
use crate::error::{Error, Result};
use crate::layout::Layout;
use crate::op::Saved;
use crate::op::{Op, OpContext};
use crate::ops::unary::exact_scalar;
use crate::shape::{MAX_RANK, Scalar, Shape};
use crate::tensor::Tensor;

const OP: &str = "pad";

/// Elements before and after, for each axis.
type Widths = [(usize, usize); MAX_RANK];

/// Checks that there is one pair per axis. Returns `None` if all widths are 0.
fn checked(op: &'static str, x: &Tensor, widths: &[(usize, usize)]) -> Result<Option<Widths>> {
    if widths.len() != x.rank() {
        let got = format!("{} for shape {}", widths.len(), x.shape());
        return Err(Error::BadArgument { op, argument: "widths", expected: "one pair per axis", got });
    }
    if widths.iter().all(|&widths| widths == (0, 0)) {
        return Ok(None);
    }
    Ok(Some(std::array::from_fn(|axis| widths.get(axis).copied().unwrap_or_default())))
}

/// Returns the padded shape.
fn padded(of: &Shape, widths: &Widths) -> Shape {
    (0..of.rank()).zip(widths).fold(*of, |shape, (axis, &(before, behind))| {
        shape.with_dim(axis, shape[axis].saturating_add(before).saturating_add(behind))
    })
}

/// Fails if a padded size overflows, even if another axis is empty.
///
/// # Errors
/// [`Error::TooManyElements`].
fn check_sizes(op: &'static str, x: &Tensor, widths: &Widths) -> Result<()> {
    let is_countable = |(&size, &(before, behind)): (&usize, &(usize, usize))| {
        size.checked_add(before).and_then(|sum| sum.checked_add(behind)).is_some()
    };
    if x.dims().iter().zip(widths).all(is_countable) {
        return Ok(());
    }
    Err(Error::TooManyElements { op, shape: padded(x.shape(), widths), dtype: x.dtype() })
}

/// Returns the position of a tensor of shape `of` within the padded one, along the axes from `first` on. Covers earlier
/// axes completely.
fn inside(op: &'static str, widths: &Widths, of: &Shape, padded: &Layout, first: usize) -> Result<Layout> {
    (first..of.rank()).try_fold(*padded, |part, axis| {
        let before = widths[axis].0;
        Ok(part.sliced(op, axis, before..before.saturating_add(of[axis]), 1)?)
    })
}

#[derive(Debug)]
struct Pad {
    widths: Widths,
    value: Scalar,
}

impl Op for Pad {
    fn name(&self) -> &'static str {
        OP
    }

    fn forward(&self, ctx: &OpContext<'_>, inputs: &[&Tensor]) -> Result<Tensor> {
        let x = inputs[0];
        let mut out = ctx.output(&padded(x.shape(), &self.widths), x.dtype())?;
        ctx.compute(kernels::Fill { value: self.value, out: out.view_mut() })?;
        let inside = inside(OP, &self.widths, x.shape(), out.view().layout(), 0)?;
        let (input, mut out_view) = (x.view(), out.view_mut());
        let out_view = out_view.with_layout(&inside);
        ctx.compute(kernels::CopyInto { input, axis: 0, start: 0, step: 1, out: out_view })?;
        Ok(out.finish())
    }

    fn backward(&self, _: &OpContext<'_>, saved: &mut Saved, grad: Tensor) -> Result<Vec<Option<Tensor>>> {
        let place = inside(OP, &self.widths, &saved.input_shape(0), grad.layout(), 0)?;
        Ok(vec![Some(grad.with_layout(place))])
    }
}

/// # Pad with a value
impl Tensor {
    /// Pads with a constant `value`, as PyTorch's and NumPy's `pad`. `widths` holds a pair for each axis, first axis
    /// first: the number of elements before and after.
    ///
    /// To pad with the tensor's own elements, use [`pad_with`](Self::pad_with).
    ///
    /// ```
    /// use highwater::{Device, Tensor};
    /// let x = Tensor::ones(&Device::cpu()?, [1, 2])?;
    /// let padded = x.pad([(0, 1), (1, 0)], 7.0)?;
    /// assert_eq!(padded.dims(), [2, 3]);
    /// assert_eq!(padded.to_vec::<f32>()?, [7.0, 1.0, 1.0, 7.0, 7.0, 7.0]);
    /// # Ok::<(), highwater::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::BadArgument`] unless there is one pair per axis and the element type can represent the value;
    /// [`Error::TooManyElements`], [`Error::Allocation`] if there is no memory.
    pub fn pad(&self, widths: impl AsRef<[(usize, usize)]>, value: impl Into<Scalar>) -> Result<Self> {
        let widths = checked(OP, self, widths.as_ref())?;
        let value = exact_scalar(OP, value.into(), self.dtype())?;
        let Some(widths) = widths else { return Ok(self.unchanged()) };
        check_sizes(OP, self, &widths)?;
        apply(Pad { widths, value }, &[self])
    }
}

//! Max and average pooling of images and sequences.
//!
//! | op | y | ∂L/∂x |
//! |---|---|---|
//! | `max_pool2d` | the largest in each window | to the first of the largest |
//! | `avg_pool2d` | the sum of each window by its number of places | in equal parts |
//! | `adaptive_max_pool2d`, `adaptive_avg_pool2d` | the same with a given number of windows, which cover the image | as
//! above |
//! | `max_pool1d`, `avg_pool1d` | the same along the last axis | as above |
//!
//! x has shape `[.., h, w]`. Each op allocates one output. Max pooling saves x and finds the maxima again in backward,
//! because indices would need more memory. Average pooling saves nothing. The op copies x unless it is contiguous.

use super::supported;
use crate::autograd::apply;
use crate::backend::{PoolAxis, PoolReduction, PoolWindow, Window, kernels};
use crate::error::{Error, Result};
use crate::layout::Layout;
use crate::op::Saved;
use crate::op::{Op, OpContext};
use crate::shape::{DType, MAX_RANK, Shape};
use crate::tensor::Tensor;

/// Options of the windows of 2D pooling. Each pair is for height and width.
///
/// ```
/// use highwater::{Device, Pool2dOptions, Tensor};
/// let options = Pool2dOptions { ceil_mode: true, count_include_pad: false, ..Pool2dOptions::square(2) };
/// let x = Tensor::ones(&Device::cpu()?, [1, 1, 5, 5])?;
/// assert_eq!(x.avg_pool2d(options)?.dims(), [1, 1, 3, 3]);
/// # Ok::<(), highwater::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Pool2dOptions {
    /// Size of a window.
    pub size: [usize; 2],
    /// Distance from one window to the next.
    pub stride: [usize; 2],
    /// Positions before the first element and after the last; at most half of the size.
    pub padding: [usize; 2],
    /// Whether the number of windows is rounded up instead of down, as PyTorch's `ceil_mode`; false by default. The last
    /// window may then reach past the padding, but starts before it.
    pub ceil_mode: bool,
    /// Whether average pooling counts the padding as zeros, as PyTorch's `count_include_pad`; true by default. Otherwise
    /// it divides by the number of elements in the window. Max pooling ignores the option.
    pub count_include_pad: bool,
}

impl Pool2dOptions {
    /// Square windows without overlap and without padding.
    ///
    /// ```
    /// use highwater::Pool2dOptions;
    /// assert_eq!(Pool2dOptions::square(2).stride, [2, 2]);
    /// ```
    #[must_use]
    pub const fn square(size: usize) -> Self {
        Self {
            size: [size; 2],
            stride: [size; 2],
            padding: [0; 2],
            ceil_mode: false,
            count_include_pad: true,
        }
    }

    /// Returns the windows along both axes.
    ///
    /// # Errors
    /// [`Error::BadArgument`] for options out of range.
    pub fn axes(&self, op: &'static str) -> Result<[PoolAxis; 2]> {
        let axis = |axis: usize| Pool1dOptions {
            size: self.size[axis],
            stride: self.stride[axis],
            padding: self.padding[axis],
            ceil_mode: self.ceil_mode,
            count_include_pad: self.count_include_pad,
        };
        Ok([axis(0).axis(op)?, axis(1).axis(op)?])
    }
}

/// Converts a size to [square](Pool2dOptions::square) windows without overlap.
impl From<usize> for Pool2dOptions {
    fn from(size: usize) -> Self {
        Self::square(size)
    }
}

/// Options of the windows of 1D pooling.
///
/// ```
/// use highwater::{Device, Pool1dOptions, Tensor};
/// let options = Pool1dOptions { stride: 1, ..Pool1dOptions::new(3) };
/// let x = Tensor::ones(&Device::cpu()?, [1, 1, 5])?;
/// assert_eq!(x.avg_pool1d(options)?.dims(), [1, 1, 3]);
/// # Ok::<(), highwater::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Pool1dOptions {
    /// Size of a window.
    pub size: usize,
    /// Distance from one window to the next.
    pub stride: usize,
    /// Positions before the first element and after the last; at most half of the size.
    pub padding: usize,
    /// See [`Pool2dOptions::ceil_mode`].
    pub ceil_mode: bool,
    /// See [`Pool2dOptions::count_include_pad`].
    pub count_include_pad: bool,
}

impl Pool1dOptions {
    /// Windows without overlap and without padding.
    #[must_use]
    pub const fn new(size: usize) -> Self {
        Self { size, stride: size, padding: 0, ceil_mode: false, count_include_pad: true }
    }

    /// Returns the windows along the axis.
    ///
    /// # Errors
    /// [`Error::BadArgument`] for options out of range.
    pub fn axis(&self, op: &'static str) -> Result<PoolAxis> {
        let Self { size, stride, padding, ceil_mode, count_include_pad } = *self;
        if size == 0 || stride == 0 || padding > size / 2 {
            return Err(Error::BadArgument {
                op,
                argument: "options",
                expected: "sizes and strides of at least 1, and padding of at most half the size",
                got: format!("size {size}, stride {stride}, padding {padding}"),
            });
        }
        let window = Window { size, stride, padding, dilation: 1 };
        Ok(PoolAxis::Sliding(PoolWindow { window, ceil_mode, count_include_pad }))
    }
}

/// Converts a size to windows without overlap.
impl From<usize> for Pool1dOptions {
    fn from(size: usize) -> Self {
        Self::new(size)
    }
}

#[derive(Debug)]
struct Pool2d {
    op: &'static str,
    pool: PoolReduction,
    axes: [PoolAxis; 2],
    /// Whether the op pools only the last axis, and treats rows as images of one row.
    of_rows: bool,
}

impl Pool2d {
    /// Returns the layout of a tensor as images.
    fn images(&self, layout: &Layout) -> Result<Layout> {
        if self.of_rows { Ok(layout.with_axis(layout.shape().rank() - 1)?) } else { Ok(*layout) }
    }

    /// Checks the number of axes.
    fn check_rank(&self, x: &Tensor) -> Result<()> {
        let (fits, expected) = if self.of_rows {
            // The op adds one axis internally.
            ((1..MAX_RANK).contains(&x.rank()), "at least one axis, and one less than there can be")
        } else {
            (x.rank() >= 2, "at least two axes")
        };
        if fits { Ok(()) } else { Err(Error::BadRank { op: self.op, expected, shape: *x.shape() }) }
    }

    /// Describes the windows for an error.
    fn windows(&self) -> String {
        let [high, wide] = self.axes.map(|axis| match axis {
            PoolAxis::Sliding(PoolWindow { window: Window { size, stride, padding, .. }, .. }) => {
                format!("size {size}, stride {stride}, padding {padding}")
            }
            PoolAxis::Adaptive { outputs } => format!("{outputs} outputs"),
        });
        if self.of_rows || high == wide {
            wide
        } else {
            format!("{high} along the height and {wide} along the width")
        }
    }
}

impl Op for Pool2d {
    fn name(&self) -> &'static str {
        self.op
    }

    fn forward(&self, ctx: &OpContext<'_>, inputs: &[&Tensor]) -> Result<Tensor> {
        let x = inputs[0];
        supported(self.op, x.dtype(), DType::is_float)?;
        self.check_rank(x)?;
        let images = self.images(x.layout())?;
        let [leading @ .., height, width] = images.shape().dims() else {
            return Err(Error::BadRank { op: self.op, expected: "at least two axes", shape: *x.shape() });
        };
        let sizes = self.axes[0].outputs(*height).zip(self.axes[1].outputs(*width));
        // An image without rows or columns contains only padding.
        let Some((high, wide)) = sizes.filter(|_| *height > 0 && *width > 0) else {
            let is_too_many = |axis: &PoolAxis| matches!(axis, PoolAxis::Adaptive { outputs: 1.. });
            let expected = if *height > 0 && *width > 0 && self.axes.iter().all(is_too_many) {
                "outputs that can be counted"
            } else {
                "a window that fits at least once"
            };
            return Err(Error::BadArgument {
                op: self.op,
                argument: "options",
                expected,
                got: format!("{} for a tensor of shape {}", self.windows(), x.shape()),
            });
        };
        let places = if self.of_rows { &[wide][..] } else { &[high, wide] };
        let shape = Shape::new(&[leading, places].concat())?;
        let x = x.contiguous()?;
        let mut out = ctx.output(&shape, x.dtype())?;
        let (images, results) = (self.images(x.layout())?, self.images(out.view().layout())?);
        ctx.compute(kernels::Pool2d {
            pool: self.pool,
            axes: self.axes,
            input: x.view().with_layout(&images),
            out: out.view_mut().with_layout(&results),
        })?;
        if self.pool == PoolReduction::Max {
            ctx.save(&x);
        }
        Ok(out.finish())
    }

    fn backward(&self, ctx: &OpContext<'_>, saved: &mut Saved, grad: Tensor) -> Result<Vec<Option<Tensor>>> {
        let x = if self.pool == PoolReduction::Max { Some(saved.tensor(0)?) } else { None };
        let grad = grad.contiguous()?;
        let mut out = ctx.gradient(0, &saved.input_shape(0), saved.input_dtype(0))?;
        // Each operand has its own layout: the saved input may start anywhere in its buffer.
        let images = x.map(|x| self.images(x.layout())).transpose()?;
        let (results, gradients) = (self.images(grad.layout())?, self.images(out.view().layout())?);
        ctx.compute(kernels::Pool2dGrad {
            pool: self.pool,
            axes: self.axes,
            input: x.zip(images.as_ref()).map(|(x, images)| x.view().with_layout(images)),
            grad: grad.view().with_layout(&results),
            out: out.view_mut().with_layout(&gradients),
        })?;
        Ok(vec![Some(out.finish())])
    }
}

/// # Pooling
impl Tensor {
    /// 2D max pooling over the last two axes; NaN if a window contains NaN. Padding never wins.
    ///
    /// ```
    /// use highwater::{Device, Pool2dOptions, Tensor};
    /// let image = Tensor::from_slice(&Device::cpu()?, &[1.0f32, 5.0, 2.0, 3.0], [1, 1, 2, 2])?;
    /// assert_eq!(image.max_pool2d(2)?.to_vec::<f32>()?, [5.0]);
    /// let overlapping = Pool2dOptions { stride: [1, 1], ..Pool2dOptions::square(1) };
    /// assert_eq!(image.max_pool2d(overlapping)?.dims(), [1, 1, 2, 2]);
    /// # Ok::<(), highwater::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::BadRank`] below two axes, [`Error::BadArgument`] for windows that do not fit or options out of range,
    /// [`Error::UnsupportedDType`] unless the elements are floats, [`Error::Allocation`] if there is no memory.
    pub fn max_pool2d(&self, options: impl Into<Pool2dOptions>) -> Result<Self> {
        let op = "max_pool2d";
        apply(
            Pool2d { op, pool: PoolReduction::Max, axes: options.into().axes(op)?, of_rows: false },
            &[self],
        )
    }

    /// 2D average pooling over the last two axes. Padding counts as zeros, unless
    /// [`count_include_pad`](Pool2dOptions::count_include_pad) is false.
    ///
    /// # Errors
    /// See [`Tensor::max_pool2d`].
    pub fn avg_pool2d(&self, options: impl Into<Pool2dOptions>) -> Result<Self> {
        let op = "avg_pool2d";
        apply(
            Pool2d { op, pool: PoolReduction::Mean, axes: options.into().axes(op)?, of_rows: false },
            &[self],
        )
    }

    /// Adaptive 2D average pooling to the given output size. `[1, 1]` is global average pooling.
    ///
    /// # Errors
    /// See [`Tensor::max_pool2d`].
    pub fn adaptive_avg_pool2d(&self, outputs: [usize; 2]) -> Result<Self> {
        let axes = outputs.map(|outputs| PoolAxis::Adaptive { outputs });
        apply(Pool2d { op: "adaptive_avg_pool2d", pool: PoolReduction::Mean, axes, of_rows: false }, &[self])
    }

    /// Adaptive 2D max pooling to the given output size; NaN if a window contains NaN.
    ///
    /// # Errors
    /// See [`Tensor::max_pool2d`].
    pub fn adaptive_max_pool2d(&self, outputs: [usize; 2]) -> Result<Self> {
        let axes = outputs.map(|outputs| PoolAxis::Adaptive { outputs });
        apply(Pool2d { op: "adaptive_max_pool2d", pool: PoolReduction::Max, axes, of_rows: false }, &[self])
    }

    /// 1D max pooling over the last axis.
    ///
    /// ```
    /// use highwater::{Device, Tensor};
    /// let signal = Tensor::from_slice(&Device::cpu()?, &[1.0f32, 5.0, 2.0, 3.0], [1, 1, 4])?;
    /// assert_eq!(signal.max_pool1d(2)?.to_vec::<f32>()?, [5.0, 3.0]);
    /// # Ok::<(), highwater::Error>(())
    /// ```
    ///
    /// # Errors
    /// See [`Tensor::max_pool2d`]; [`Error::BadRank`] without an axis or with the maximum number of axes.
    pub fn max_pool1d(&self, options: impl Into<Pool1dOptions>) -> Result<Self> {
        self.pool1d("max_pool1d", PoolReduction::Max, options.into())
    }

    /// 1D average pooling over the last axis; see [`Tensor::avg_pool2d`].
    ///
    /// # Errors
    /// See [`Tensor::max_pool1d`].
    pub fn avg_pool1d(&self, options: impl Into<Pool1dOptions>) -> Result<Self> {
        self.pool1d("avg_pool1d", PoolReduction::Mean, options.into())
    }

    /// Pools rows as images of one row.
    fn pool1d(&self, op: &'static str, pool: PoolReduction, options: Pool1dOptions) -> Result<Self> {
        let axes = [Pool1dOptions::new(1).axis(op)?, options.axis(op)?];
        apply(Pool2d { op, pool, axes, of_rows: true }, &[self])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Runtime;

    #[test]
    fn means_keep_nothing_for_backward_and_the_largest_their_image() {
        let device = Runtime::builder().threads(1).build().unwrap().cpu().unwrap();
        let in_use = || device.default_allocator().unwrap().stats().bytes_in_use;
        let image = Tensor::ones(&device, [4, 9, 11]).unwrap().requiring_grad().unwrap();
        type Op = fn(&Tensor) -> Result<Tensor>;
        let pools: &[(Op, bool)] = &[
            (|x| x.avg_pool2d(2), false),
            (|x| x.avg_pool2d(Pool2dOptions { stride: [1, 2], ..Pool2dOptions::square(3) }), false),
            (|x| x.adaptive_avg_pool2d([1, 1]), false),
            (|x| x.adaptive_avg_pool2d([4, 3]), false),
            (|x| x.max_pool2d(2), true),
        ];
        for &(pool, keeps) in pools {
            let x = image.mul_scalar(2.0).unwrap();
            let size = (x.elements() * 4).next_multiple_of(256) as u64;
            let y = pool(&x).unwrap();
            let before = in_use();
            drop(x);
            assert_eq!(before - in_use(), if keeps { 0 } else { size });
            let gradients = y.sum_all().unwrap().backward().unwrap();
            // Each window gives away a gradient of 1 in all.
            let sum = gradients.get(&image).unwrap().sum_all().unwrap().item::<f32>().unwrap();
            assert!((sum - 2.0 * y.elements() as f32).abs() < 1e-3, "{sum}");
        }
    }
}

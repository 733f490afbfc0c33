//! Sliding windows: `unfold` along one axis, and `unfold2d` (im2col) of images.
//!
//! | op | x | y | ∂L/∂x |
//! |---|---|---|---|
//! | `unfold` | `[.., len, ..]` | `[.., windows, .., size]` | ∂L/∂y, summed over the windows of an element |
//! | `unfold2d` | `[n, c, h, w]` | `[n, c · kh · kw, windows]` | the same |
//!
//! `unfold` returns a view, whose windows may overlap. Forward allocates and saves nothing. Backward sums in f32 for 16-bit
//! floats. It needs a temporary with one element of each window, or with one window if windows are fewer than their
//! elements. `unfold2d` pads, unfolds both axes, and copies the windows into columns.

use super::Conv2dOptions;
use crate::autograd::apply;
use crate::backend::{Binary, Window, kernels};
use crate::error::{Error, Result};
use crate::op::Saved;
use crate::op::{Op, OpContext};
use crate::shape::{MAX_RANK, Scalar};
use crate::tensor::Tensor;

/// Windows along one axis, without padding. A new last axis has the elements of each window.
#[derive(Debug)]
struct Unfold {
    op: &'static str,
    axis: usize,
    window: Window,
}

impl Op for Unfold {
    fn name(&self) -> &'static str {
        self.op
    }

    fn forward(&self, ctx: &OpContext<'_>, inputs: &[&Tensor]) -> Result<Tensor> {
        let (x, Window { size, stride, dilation, .. }) = (inputs[0], self.window);
        let count = self.window.outputs(x.dims()[self.axis]).ok_or_else(|| Error::BadArgument {
            op: self.op,
            argument: "size",
            expected: "a window that fits into the axis",
            got: format!(
                "size {size} with dilation {dilation} for axis {} of shape {}",
                self.axis,
                x.shape()
            ),
        })?;
        let windows = x.layout().windows(self.axis, count, size, [stride, dilation])?;
        // Kernels rely on addressable element counts.
        windows.shape().checked_elements().ok_or_else(|| Error::TooManyElements {
            op: ctx.op(),
            shape: *windows.shape(),
            dtype: x.dtype(),
        })?;
        Ok(x.with_layout(windows))
    }

    fn backward(&self, ctx: &OpContext<'_>, saved: &mut Saved, grad: Tensor) -> Result<Vec<Option<Tensor>>> {
        let (op, axis, last) = (ctx.op(), self.axis, grad.rank() - 1);
        // Element j of all windows lies at distinct places, and so do all elements of window i: a copy can write them. The
        // loop runs over the shorter of both axes, which is the last one.
        let (mut parts, mut step, mut apart) = (*grad.layout(), self.window.stride, self.window.dilation);
        if grad.dims()[axis] < grad.dims()[last] {
            let mut axes: [usize; MAX_RANK] = std::array::from_fn(|axis| axis);
            axes.swap(axis, last);
            parts = parts.permuted(op, &axes[..=last])?;
            (step, apart) = (apart, step);
        }
        let computed = grad.dtype().computed_as();
        let mut out = ctx.gradient(0, &saved.input_shape(0), computed)?;
        let mut sum = ctx.temp(&parts.shape().without(last), computed)?;
        ctx.compute(kernels::Fill { value: Scalar::Int(0), out: out.view_mut() })?;
        for number in 0..parts.shape()[last] {
            let start = number * apart;
            let part = parts.sliced(op, last, number..number + 1, 1)?.without_axis(last);
            let place = out.view().layout().part(op, part.shape(), axis, start, step)?;
            ctx.compute(kernels::Zip {
                f: Binary::Add,
                lhs: out.view().with_layout(&place),
                rhs: grad.view().with_layout(&part),
                out: sum.view_mut(),
            })?;
            ctx.compute(kernels::CopyInto { input: sum.view(), axis, start, step, out: out.view_mut() })?;
        }
        Ok(vec![Some(out.finish().to_dtype(grad.dtype())?)])
    }
}

/// # Sliding windows
impl Tensor {
    /// Returns all windows of `size` elements along an axis, `step` apart, as PyTorch's `Tensor.unfold`. The axis counts
    /// the windows, and a new last axis has their elements: `y[.., i, .., j] = x[.., i · step + j, ..]`.
    ///
    /// The result is a view, even if windows overlap. The gradient of an element is the sum over its windows.
    ///
    /// ```
    /// use highwater::{Device, Tensor};
    /// let x = Tensor::arange(&Device::cpu()?, 0, 5)?;
    /// let windows = x.unfold(0, 3, 1)?;
    /// assert_eq!(windows.dims(), [3, 3]);
    /// assert_eq!(windows.to_vec::<i64>()?, [0, 1, 2, 1, 2, 3, 2, 3, 4]);
    /// # Ok::<(), highwater::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::AxisOutOfRange`]; [`Error::BadArgument`] for a size of 0 or above that of the axis, and for a step of 0;
    /// [`Error::RankTooLarge`] for more than [`MAX_RANK`](crate::MAX_RANK) axes; [`Error::TooManyElements`] if overlapping
    /// windows have more elements than can be addressed.
    pub fn unfold(&self, axis: isize, size: usize, step: usize) -> Result<Self> {
        let op = "unfold";
        let axis = self.shape().axis(op, axis)?;
        if step == 0 {
            let (argument, expected, got) = ("step", "at least 1", "0".to_owned());
            return Err(Error::BadArgument { op, argument, expected, got });
        }
        apply(Unfold { op, axis, window: Window { stride: step, ..Window::new(size) } }, &[self])
    }

    /// Copies the windows of a 2D convolution into columns (im2col), as PyTorch's `functional.unfold`.
    ///
    /// Shapes: images (`self`) `[n, channels, h, w]` to `[n, channels · height · width, windows]`, for windows of `size`
    /// (height and width). Columns are in row-major order of the windows, their elements in that of channel, row and column.
    ///
    /// [`Tensor::conv2d`] is the product of the filters, as `[out channels, channels · height · width]`, with the columns.
    ///
    /// ```
    /// use highwater::{Conv2dOptions, Device, Tensor};
    /// let image = Tensor::arange(&Device::cpu()?, 0, 9)?.reshape([1, 1, 3, 3])?;
    /// let columns = image.unfold2d([2, 2], Conv2dOptions::default())?;
    /// assert_eq!(columns.dims(), [1, 4, 4]);
    /// assert_eq!(columns.select(2, 0)?.to_vec::<i64>()?, [0, 1, 3, 4]); // the window at the top left
    /// # Ok::<(), highwater::Error>(())
    /// ```
    ///
    /// # Errors
    /// - [`Error::BadRank`] unless the images have four axes
    /// - [`Error::BadArgument`] for windows that do not fit, for strides, dilations or sizes of 0, for output padding, and
    ///   for more than one group
    /// - [`Error::TooManyElements`]; [`Error::Allocation`] if there is no memory
    #[doc(alias("im2col"))]
    pub fn unfold2d(&self, size: [usize; 2], options: Conv2dOptions) -> Result<Self> {
        let op = "unfold2d";
        let options = options.for_conv2d(op)?;
        if options.groups != 1 {
            let (argument, expected, got) = ("groups", "1", options.groups.to_string());
            return Err(Error::BadArgument { op, argument, expected, got });
        }
        let &[n, channels, _, _] = self.dims() else {
            return Err(Error::BadRank { op, expected: "four axes", shape: *self.shape() });
        };
        let (x, options) = options.padded_for(self, &size, 4)?;
        let [rows, columns] = options.padding.zeros().map(|zeros| (zeros, zeros));
        let x = x.pad([(0, 0), (0, 0), rows, columns], 0)?;
        let unfolded = (0..2).try_fold(x, |x, axis| {
            let (stride, dilation) = (options.stride[axis], options.dilation[axis]);
            let window = Window { size: size[axis], stride, dilation, padding: 0 };
            apply(Unfold { op, axis: 2 + axis, window }, &[&x])
        })?;
        let windows = unfolded.dims()[2].saturating_mul(unfolded.dims()[3]);
        let elements = channels.saturating_mul(size[0]).saturating_mul(size[1]);
        unfolded.permute([0, 1, 4, 5, 2, 3])?.reshape([n, elements, windows])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::{Device, Runtime};
    use crate::shape::DType;

    fn counting(device: &Device, dims: &[usize]) -> Tensor {
        let elements = dims.iter().product::<usize>();
        Tensor::arange(device, 0, elements).unwrap().to_dtype(DType::F32).unwrap().reshape(dims).unwrap()
    }

    fn cpu() -> Device {
        Runtime::builder().threads(1).build().unwrap().cpu().unwrap()
    }

    #[test]
    fn windows_are_a_view_of_any_layout() {
        let x = counting(&cpu(), &[5, 4]);
        let columns = x.slice(0, 1..).unwrap().t().unwrap();
        for (x, step) in [(&x, 1), (&x, 3), (&columns, 2)] {
            let windows = x.unfold(-1, 2, step).unwrap();
            assert!(windows.shares_buffer_with(x));
            let count = (x.dims()[1] - 2) / step + 1;
            assert_eq!(windows.dims(), [x.dims()[0], count, 2]);
            let parts: Vec<Tensor> = (0..count).map(|i| x.narrow(1, i * step, 2).unwrap()).collect();
            let expected = Tensor::stack(&parts.iter().collect::<Vec<_>>(), 1).unwrap();
            assert_eq!(windows.to_vec::<f32>().unwrap(), expected.to_vec::<f32>().unwrap());
        }
        // The windows of an inner axis, and one window of all.
        assert_eq!(x.unfold(0, 5, 1).unwrap().dims(), [1, 4, 5]);
        assert_eq!(counting(&cpu(), &[0, 3]).unfold(1, 2, 1).unwrap().dims(), [0, 2, 2]);
    }

    #[test]
    fn gradients_sum_over_windows_of_all_sizes_and_distances() {
        let device = cpu();
        let x = counting(&device, &[2, 9, 3]).requiring_grad().unwrap();
        // More windows than elements of a window, and fewer.
        for (size, step) in [(2, 1), (2, 3), (4, 2), (7, 1), (5, 3), (9, 1)] {
            let windows = x.unfold(1, size, step).unwrap();
            let weights = counting(&device, windows.dims());
            let loss = windows.mul(&weights).unwrap().sum_all().unwrap();
            let gradient = loss.backward().unwrap().take(&x).unwrap();
            let mut expected = vec![0.0; 2 * 9 * 3];
            let count = (9 - size) / step + 1;
            for (at, weight) in weights.to_vec::<f32>().unwrap().into_iter().enumerate() {
                let (element, column) = (at % size, at / size % 3);
                let (window, row) = (at / size / 3 % count, at / size / 3 / count);
                expected[(row * 9 + window * step + element) * 3 + column] += weight;
            }
            assert_eq!(gradient.to_vec::<f32>().unwrap(), expected, "{size} and {step}");
        }
    }

    #[test]
    fn windows_with_too_many_elements_are_an_error() {
        let device = cpu();
        let long = Tensor::zeros(&device, [1]).unwrap().broadcast_to([1_usize << 40]).unwrap();
        let refused = long.unfold(0, 1 << 39, 1);
        assert!(matches!(refused, Err(Error::TooManyElements { op: "unfold", .. })), "{refused:?}");
        let image = long.reshape([1, 1, 1 << 20, 1 << 20]).unwrap();
        let refused = image.unfold2d([1 << 19; 2], Conv2dOptions::default());
        assert!(matches!(refused, Err(Error::TooManyElements { op: "unfold2d", .. })), "{refused:?}");
    }

    #[test]
    fn no_op_writes_in_place_into_windows_that_overlap() {
        let device = cpu();
        let windows = counting(&device, &[4]).unfold(0, 2, 1).unwrap();
        let sums = (windows + &Tensor::full(&device, [3, 2], 10.0).unwrap()).unwrap();
        assert_eq!(sums.to_vec::<f32>().unwrap(), [10.0, 11.0, 11.0, 12.0, 12.0, 13.0]);
    }

    #[test]
    fn columns_times_filters_are_the_convolution() {
        let device = cpu();
        let rng = crate::Rng::new(3);
        let x = Tensor::randn(&device, [6, 2, 3, 5], &rng).unwrap().permute([1, 2, 3, 0]).unwrap(); // strided
        let cases = [
            ([2, 3], Conv2dOptions::default()),
            ([2, 3], Conv2dOptions { stride: [2, 1], dilation: [1, 2], ..Conv2dOptions::padded(2) }),
            ([4, 3], Conv2dOptions::same()),
            ([1, 1], Conv2dOptions { stride: [3, 3], ..Conv2dOptions::default() }),
        ];
        for (size, options) in cases {
            let w = Tensor::randn(&device, [4, 3, size[0], size[1]], &rng).unwrap();
            let expected = x.conv2d(&w, options).unwrap();
            let columns = x.unfold2d(size, options).unwrap();
            let product = w.reshape([4, -1]).unwrap().matmul(&columns).unwrap();
            let found = product.reshape(expected.shape()).unwrap().to_vec::<f32>().unwrap();
            let apart = |(a, b): (f32, f32)| (a - b).abs();
            let expected = expected.to_vec::<f32>().unwrap();
            assert!(found.into_iter().zip(expected).map(apart).all(|apart| apart < 1e-4), "{options:?}");
        }
    }

    #[test]
    fn windows_that_do_not_fit_are_named() {
        let device = cpu();
        let x = counting(&device, &[1, 2, 3, 4]);
        let message = |result: Result<Tensor>| result.unwrap_err().to_string();
        assert_eq!(
            message(x.unfold(3, 5, 1)),
            "unfold: size must be a window that fits into the axis, \
             got size 5 with dilation 1 for axis 3 of shape [1, 2, 3, 4]"
        );
        assert!(message(x.unfold(3, 0, 1)).starts_with("unfold: size must be"));
        assert_eq!(message(x.unfold(3, 1, 0)), "unfold: step must be at least 1, got 0");
        assert!(matches!(x.unfold(4, 1, 1), Err(Error::AxisOutOfRange { op: "unfold", .. })));
        let deepest = counting(&device, &[1; crate::MAX_RANK]);
        assert!(matches!(deepest.unfold(0, 1, 1), Err(Error::RankTooLarge { op: "unfold", .. })));

        let plain = Conv2dOptions::default();
        assert!(message(x.unfold2d([4, 1], plain)).starts_with("unfold2d: size must be"));
        assert!(message(x.unfold2d([0, 1], plain)).starts_with("unfold2d: size must be"));
        let grouped = Conv2dOptions { groups: 2, ..plain };
        assert_eq!(message(x.unfold2d([1, 1], grouped)), "unfold2d: groups must be 1, got 2");
        let still = Conv2dOptions { stride: [0, 1], ..plain };
        assert_eq!(message(x.unfold2d([1, 1], still)), "unfold2d: stride must be at least 1, got [0, 1]");
        let flat = x.reshape([6, 4]).unwrap().unfold2d([1, 1], plain);
        assert!(matches!(flat, Err(Error::BadRank { op: "unfold2d", .. })));
    }
}

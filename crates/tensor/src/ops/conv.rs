//! Convolutions over one or two axes, and transposed convolutions.
//!
//! | op | x | w | y |
//! |---|---|---|---|
//! | `conv2d` | `[n, c, h, w]` | `[o, c / groups, kh, kw]` | `[n, o, oh, ow]` |
//! | `conv1d` | `[n, c, l]` | `[o, c / groups, k]` | `[n, o, ol]` |
//! | `conv_transpose2d` | `[n, c, h, w]` | `[c, o / groups, kh, kw]` | `[n, o, oh, ow]` |
//!
//! With stride s, padding p and dilation d, oh = ⌊(h + 2p - d (kh - 1) - 1) / s⌋ + 1. Transposed, oh = (h - 1) s - 2p +
//! d (kh - 1) + 1 + output padding. Both ops are linear, and each is the gradient of the other.
//!
//! [`Padding::Same`] becomes a number of zeros before the op runs. If the zeros are uneven, a `pad` appends one to x.
//!
//! The op allocates one output, and a workspace while it computes. It saves x for the gradient of w, and w for the
//! gradient of x, if these are required. Operands that are not contiguous are copied.

mod options;
mod padding;

pub use self::options::{Conv1dOptions, Conv2dOptions};
pub use self::padding::Padding;
use super::{apply_to_factors, if_needed, same_dtype, supported};
use crate::backend::{Window, kernels};
use crate::error::{Error, Result, ShapeRule};
use crate::layout::Layout;
use crate::op::Saved;
use crate::op::{Buffer, Op, OpContext};
use crate::shape::{DType, Shape};
use crate::tensor::Tensor;

/// The axis of size 1 that turns a sequence into an image of one row.
const ROWS: usize = 2;

/// Returns the layout as images; sequences become images of one row.
fn image(layout: &Layout) -> Result<Layout> {
    if layout.shape().rank() > 3 { Ok(*layout) } else { Ok(layout.with_axis(ROWS)?) }
}

/// The convolution op. Forward, y is smaller than x; transposed, it is larger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Convolve {
    op: &'static str,
    options: Conv2dOptions,
    transposed: bool,
    /// Number of axes of the operands: four, or three for sequences.
    rank: usize,
}

impl Convolve {
    /// Checks element types and ranks.
    fn check_operands(&self, x: &Tensor, weight: &Tensor) -> Result<()> {
        let op = self.op;
        for operand in [x, weight] {
            if operand.rank() != self.rank {
                let expected = if self.rank == 3 { "three axes" } else { "four axes" };
                return Err(Error::BadRank { op, expected, shape: *operand.shape() });
            }
        }
        same_dtype(op, x, weight)?;
        supported(op, x.dtype(), DType::is_float)
    }

    /// Returns the shape of the output.
    fn output_shape(&self, x: &Tensor, weight: &Tensor) -> Result<Shape> {
        let rule = if self.transposed {
            &ShapeRule::Other("the channels must be those of the weight, and a multiple of the groups")
        } else {
            &ShapeRule::Other(
                "the channels must be groups times those of the weight, and the groups must divide its filters",
            )
        };
        let mismatch = Error::ShapeMismatch { op: self.op, lhs: *x.shape(), rhs: *weight.shape(), rule };
        let (images, filters) = (image(x.layout())?, image(weight.layout())?);
        let ([n, channels, height, width], [first, second, _, _]) =
            (images.shape().dims(), filters.shape().dims())
        else {
            return Err(mismatch);
        };
        let groups = self.options.groups;
        let conv = self.options.convolution(filters.shape());
        // The groups must divide these channels.
        let (channels_fit, outputs) = if self.transposed {
            (channels == first && channels % groups == 0, second.checked_mul(groups))
        } else {
            (Some(*channels) == second.checked_mul(groups) && first % groups == 0, Some(*first))
        };
        let size = |axis: usize, len: usize| {
            let window = conv.windows[axis];
            if self.transposed { self.larger(axis, &window, len) } else { window.outputs(len) }
        };
        let outputs = outputs.filter(|_| channels_fit).ok_or(mismatch)?;
        match (size(0, *height), size(1, *width)) {
            (Some(_), Some(long)) if self.rank == 3 => Ok(Shape::new(&[*n, outputs, long])?),
            (Some(high), Some(wide)) => Ok(Shape::new(&[*n, outputs, high, wide])?),
            _ => Err(self.no_place(x, weight)),
        }
    }

    /// Returns the error for windows that do not fit, in terms of the caller's axes.
    fn no_place(&self, x: &Tensor, weight: &Tensor) -> Error {
        let axes = 4 - self.rank;
        let Conv2dOptions { dilation, stride, .. } = self.options;
        let padding = self.options.padding.zeros();
        let [size, image] = [weight, x].map(|operand| &operand.dims()[2..]);
        let mut got = format!("a window of {size:?} on {image:?} with padding {:?}", &padding[axes..]);
        if dilation != [1, 1] {
            got += &format!(" and dilation {:?}", &dilation[axes..]);
        }
        if self.transposed {
            got += &format!(", moved by {:?}", &stride[axes..]);
        }
        got += &format!(" (shapes {} and {})", x.shape(), weight.shape());
        let expected = if self.transposed {
            "a window that gives an output"
        } else {
            "a window that fits into the padded image"
        };
        Error::BadArgument { op: self.op, argument: "weight", expected, got }
    }

    /// Returns the size along an axis from which a convolution computes `len` outputs.
    fn larger(&self, axis: usize, window: &Window, len: usize) -> Option<usize> {
        let reach = window.size.checked_sub(1)?.checked_mul(window.dilation)?.checked_add(1)?;
        let moved = len.checked_sub(1)?.checked_mul(window.stride)?;
        let whole = moved.checked_add(reach)?.checked_add(self.options.output_padding[axis])?;
        whole.checked_sub(window.padding.checked_mul(2)?).filter(|&size| size > 0)
    }

    /// Computes the cross-correlation of x with w, or its adjoint. `allocate` returns the memory of the result.
    fn compute(
        &self,
        ctx: &OpContext<'_>,
        adjoint: bool,
        x: &Tensor,
        weight: &Tensor,
        allocate: impl FnOnce() -> Result<Buffer>,
    ) -> Result<Tensor> {
        let (x, weight) = (x.contiguous()?, weight.contiguous()?);
        let mut out = allocate()?;
        let (images, filters, results) =
            (image(x.layout())?, image(weight.layout())?, image(out.view().layout())?);
        let conv = self.options.convolution(filters.shape());
        let (small, large) =
            if adjoint { (images.shape(), results.shape()) } else { (results.shape(), images.shape()) };
        let dtype = x.dtype();
        let mut workspace = if adjoint {
            let (conv, input, out) = (&conv, large, small);
            ctx.workspace(kernels::Conv2dInputGradWorkspace { conv, input, out, dtype })
        } else {
            let (conv, input, out) = (&conv, large, small);
            ctx.workspace(kernels::Conv2dWorkspace { conv, input, out, dtype })
        }?;
        let (x, weight) = (x.view().with_layout(&images), weight.view().with_layout(&filters));
        let workspace = workspace.as_mut().map(Buffer::view_mut);
        let (mut y, grad) = (out.view_mut(), x);
        let y = y.with_layout(&results);
        if adjoint {
            ctx.compute(kernels::Conv2dInputGrad { conv, weight, grad, workspace, out: y })
        } else {
            ctx.compute(kernels::Conv2d { conv, input: x, weight, workspace, out: y })
        }?;
        Ok(out.finish())
    }
}

impl Op for Convolve {
    fn name(&self) -> &'static str {
        self.op
    }

    fn forward(&self, ctx: &OpContext<'_>, inputs: &[&Tensor]) -> Result<Tensor> {
        let (x, weight) = (inputs[0], inputs[1]);
        self.check_operands(x, weight)?;
        let shape = self.output_shape(x, weight)?;
        let y = self.compute(ctx, self.transposed, x, weight, || ctx.output(&shape, x.dtype()))?;
        if weight.requires_grad() {
            ctx.save(x);
        }
        if x.requires_grad() {
            ctx.save(weight);
        }
        Ok(y)
    }

    fn backward(&self, ctx: &OpContext<'_>, saved: &mut Saved, grad: Tensor) -> Result<Vec<Option<Tensor>>> {
        let to_x = if_needed(saved, 0, || {
            let x_was_saved = saved.needs_grad(1);
            let weight = saved.tensor(usize::from(x_was_saved))?;
            let allocate = || ctx.gradient(0, &saved.input_shape(0), grad.dtype());
            self.compute(ctx, !self.transposed, &grad, weight, allocate)
        })?;
        let to_weight = if_needed(saved, 1, || {
            let (x, shape) = (saved.tensor(0)?, saved.input_shape(1));
            let (large, small) = if self.transposed { (&grad, x) } else { (x, &grad) };
            let (large, small) = (large.contiguous()?, small.contiguous()?);
            let mut out = ctx.gradient(1, &shape, saved.gradient_dtype(1))?;
            let (larger, smaller, filters) =
                (image(large.layout())?, image(small.layout())?, image(out.view().layout())?);
            let conv = self.options.convolution(filters.shape());
            let mut workspace = ctx.workspace(kernels::Conv2dWeightGradWorkspace {
                conv: &conv,
                input: larger.shape(),
                out: smaller.shape(),
                dtype: x.dtype(),
                weight_dtype: out.view().dtype(),
            })?;
            ctx.compute(kernels::Conv2dWeightGrad {
                conv,
                input: large.view().with_layout(&larger),
                grad: small.view().with_layout(&smaller),
                workspace: workspace.as_mut().map(Buffer::view_mut),
                out: out.view_mut().with_layout(&filters),
            })?;
            Ok(out.finish())
        })?;
        Ok(vec![to_x, to_weight])
    }
}

/// # Convolutions
impl Tensor {
    /// 2D convolution (cross-correlation) of images with filters, as PyTorch's `conv2d`.
    ///
    /// Shapes: images (`self`) `[n, channels, h, w]`, filters `[out channels, channels / groups, kh, kw]`. Operands of
    /// different types are promoted (see [`DType`]).
    ///
    /// ```
    /// use highwater::{Conv2dOptions, Device, Tensor};
    /// let device = Device::cpu()?;
    /// let image = Tensor::from_slice(&device, &[1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0], [1, 1, 3, 3])?;
    /// let filter = Tensor::from_slice(&device, &[1.0f32, 0.0, 0.0, -1.0], [1, 1, 2, 2])?;
    /// let y = image.conv2d(&filter, Conv2dOptions::default())?;
    /// assert_eq!(y.to_vec::<f32>()?, [-4.0, -4.0, -4.0, -4.0]);
    /// # Ok::<(), highwater::Error>(())
    /// ```
    ///
    /// # Errors
    /// - [`Error::BadRank`] unless both operands have four axes
    /// - [`Error::ShapeMismatch`] if the channels differ
    /// - [`Error::BadArgument`] for a window larger than the padded image
    /// - [`Error::BadArgument`] for strides, dilations or groups of 0, and for output padding
    /// - [`Error::UnsupportedDType`] unless the promoted type is a float
    /// - [`Error::Allocation`] if there is no memory
    pub fn conv2d(&self, weight: &Self, options: Conv2dOptions) -> Result<Self> {
        let op = "conv2d";
        let (x, options) = options.for_conv2d(op)?.padded_for(self, window(weight), 4)?;
        apply_to_factors(Convolve { op, options, transposed: false, rank: 4 }, &x, weight)
    }

    /// Transposed 2D convolution (deconvolution), as PyTorch's `conv_transpose2d`. The output is larger than the input.
    ///
    /// Shapes: images (`self`) `[n, channels, h, w]`, filters `[channels, out channels / groups, kh, kw]`.
    ///
    /// # Errors
    /// See [`Tensor::conv2d`]; also [`Error::BadArgument`] for output padding that is neither below the stride nor
    /// below the dilation.
    pub fn conv_transpose2d(&self, weight: &Self, options: Conv2dOptions) -> Result<Self> {
        let op = "conv_transpose2d";
        apply_to_factors(
            Convolve { op, options: options.for_conv_transpose2d(op)?, transposed: true, rank: 4 },
            self,
            weight,
        )
    }

    /// 1D convolution (cross-correlation) of sequences with filters, as PyTorch's `conv1d`.
    ///
    /// Shapes: sequences (`self`) `[n, channels, len]`, filters `[out channels, channels / groups, k]`.
    ///
    /// ```
    /// use highwater::{Conv1dOptions, Device, Tensor};
    /// let device = Device::cpu()?;
    /// let signal = Tensor::from_slice(&device, &[1.0f32, 2.0, 4.0, 8.0], [1, 1, 4])?;
    /// let difference = Tensor::from_slice(&device, &[-1.0f32, 1.0], [1, 1, 2])?;
    /// let options = Conv1dOptions { stride: 2, ..Conv1dOptions::default() };
    /// assert_eq!(signal.conv1d(&difference, options)?.to_vec::<f32>()?, [1.0, 4.0]);
    /// # Ok::<(), highwater::Error>(())
    /// ```
    ///
    /// # Errors
    /// See [`Tensor::conv2d`], with three axes.
    pub fn conv1d(&self, weight: &Self, options: Conv1dOptions) -> Result<Self> {
        let op = "conv1d";
        let (x, options) = options.for_conv1d(op)?.padded_for(self, window(weight), 3)?;
        apply_to_factors(Convolve { op, options, transposed: false, rank: 3 }, &x, weight)
    }
}

/// Returns the size of the filters; nothing for a weight with too few axes, which the op reports.
fn window(weight: &Tensor) -> &[usize] {
    weight.dims().get(2..).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::{Device, Runtime};

    fn cpu() -> Device {
        Runtime::builder().threads(1).build().unwrap().cpu().unwrap()
    }

    #[test]
    fn convolutions_save_only_what_gradients_need() {
        let device = cpu();
        let in_use = || device.default_allocator().unwrap().stats().bytes_in_use;
        // The operands' 4 KiB and 1 KiB that remain once they are dropped.
        let kept = |x_needs_grad: bool, weight_needs_grad: bool| {
            let leaf = |x: Tensor, needs_grad: bool| if needs_grad { x.requiring_grad().unwrap() } else { x };
            let x = leaf(Tensor::ones(&device, [1, 16, 8, 8]).unwrap(), x_needs_grad);
            let weight = leaf(Tensor::ones(&device, [16, 16, 1, 1]).unwrap(), weight_needs_grad);
            let y = x.conv2d(&weight, Conv2dOptions::default()).unwrap();
            let before = in_use();
            drop((x, weight));
            let kept = before - in_use();
            let gradients = y.sum_all().unwrap().backward().unwrap();
            (5120 - kept, gradients.len())
        };
        assert_eq!(kept(true, true), (5120, 2));
        assert_eq!(kept(true, false), (1024, 1));
        assert_eq!(kept(false, true), (4096, 1));
    }

    #[test]
    fn output_padding_is_limited_by_stride_or_dilation() {
        let device = cpu();
        // With windows of all and of single channels.
        for (groups, padding) in [(1, 0), (1, 2), (2, 0), (2, 2)] {
            let x = Tensor::arange(&device, 0, 2 * 4 * 5).unwrap().to_dtype(DType::F32).unwrap();
            let x = x.reshape([1, 2, 4, 5]).unwrap().requiring_grad().unwrap();
            let weight =
                Tensor::arange(&device, 0, 2 * (2 / groups) * 4).unwrap().to_dtype(DType::F32).unwrap();
            let weight = weight.reshape([2, 2 / groups, 2, 2]).unwrap().requiring_grad().unwrap();
            let run = |output_padding: usize| {
                let options = Conv2dOptions {
                    dilation: [3, 3],
                    groups,
                    output_padding: [output_padding; 2],
                    ..Conv2dOptions::padded(padding)
                };
                x.conv_transpose2d(&weight, options)
            };
            // The additional output with padding at the end equals the part that is cut off without it, or 0.
            let (least, most) = (run(0).unwrap(), run(2).unwrap());
            let [.., height, width] = *least.dims() else { panic!("four axes") };
            assert_eq!(most.dims()[2..], [height + 2, width + 2]);
            let part = most.at((.., .., ..height, ..width)).unwrap();
            assert_eq!(part.to_vec::<f32>().unwrap(), least.to_vec::<f32>().unwrap());
            let total = x.sum_all().unwrap().item::<f32>().unwrap();
            if padding == 0 {
                let rest = most.sum_all().unwrap().sub(&least.sum_all().unwrap()).unwrap();
                assert_eq!(rest.item::<f32>().unwrap(), 0.0);
            }
            // Each weight's gradient is the sum of its channel where nothing is cut off.
            let gradients = most.sum_all().unwrap().backward().unwrap();
            if padding == 0 {
                let of_weight = gradients.get(&weight).unwrap().sum_all().unwrap().item::<f32>().unwrap();
                assert_eq!(of_weight, total * (2 / groups) as f32 * 4.0);
            }
            assert!(matches!(run(3), Err(Error::BadArgument { argument: "output_padding", .. })));
        }
    }
}

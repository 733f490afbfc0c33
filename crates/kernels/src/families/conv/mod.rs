//! Convolutions and their gradients.

pub(super) mod cpu;
#[cfg(feature = "cuda")]
pub(super) mod cuda;
mod work;

use self::work::Sizes;
use super::{Computation, Workspace};
use crate::cost::Work;
use crate::error::Result;
use crate::families::grid::ConvGemm;
use crate::operands::{CheckedOperand, Rules, checked, operands};
use crate::shape::{DType, Shape};
use crate::storage::{View, ViewMut};
use crate::window::{Convolution, Window};

/// `out[n, o, y, x] = Σ weight[o, c, ky, kx] · input[n, group of o + c, y·stride + ky·dilation - padding, x…]`
/// (PyTorch's `conv2d`). The padding is 0. Inputs are contiguous.
#[derive(Debug)]
pub struct Conv2d<'a> {
    /// The windows and groups.
    pub conv: Convolution,
    /// Shape `[n, channels, h, w]`.
    pub input: View<'a>,
    /// Shape `[out channels, channels of a group, kh, kw]`.
    pub weight: View<'a>,
    /// At least as many bytes as [`Conv2dWorkspace`] requires; `None` if it requires none.
    pub workspace: Option<ViewMut<'a>>,
    /// Shape `[n, out channels, oh, ow]`.
    pub out: ViewMut<'a>,
}

impl<'a> Computation<'a> for Conv2d<'a> {
    operands!(ReadContiguous input, ReadContiguous weight, Scratch workspace, Write out);

    fn check(&self, rules: &Rules<'_>) -> Result<()> {
        let (input, weight, workspace, out) = checked!(self: input, weight, workspace, out);
        let conv = &self.conv;
        rules.same_type(input, weight)?;
        fits(rules, conv, [input, weight, out])?;
        let (input, out, dtype) = (input.shape(), out.shape(), out.dtype());
        rules.workspace(workspace, &Conv2dWorkspace { conv, input, out, dtype })
    }

    fn supports_half_on_cpu(&self) -> bool {
        true
    }

    fn work(&self) -> Work {
        let sizes =
            Sizes::new(self.conv.groups, self.input.layout(), self.weight.layout(), self.out.layout());
        sizes.forward(&self.conv.windows, self.input.dtype().is_half())
    }
}

/// The input gradient of [`Conv2d`]; also PyTorch's `conv_transpose2d`. Inputs are contiguous.
#[derive(Debug)]
pub struct Conv2dInputGrad<'a> {
    /// The windows and groups.
    pub conv: Convolution,
    /// The weight.
    pub weight: View<'a>,
    /// The gradient of the output.
    pub grad: View<'a>,
    /// At least as many bytes as [`Conv2dInputGradWorkspace`] requires;
    /// `None` if it requires none.
    pub workspace: Option<ViewMut<'a>>,
    /// The gradient of the input.
    pub out: ViewMut<'a>,
}

impl<'a> Computation<'a> for Conv2dInputGrad<'a> {
    operands!(ReadContiguous weight, ReadContiguous grad, Scratch workspace, Write out);

    fn check(&self, rules: &Rules<'_>) -> Result<()> {
        let (weight, grad, workspace, out) = checked!(self: weight, grad, workspace, out);
        let conv = &self.conv;
        rules.same_type(out, weight)?;
        fits(rules, conv, [out, weight, grad])?;
        let (input, out, dtype) = (out.shape(), grad.shape(), out.dtype());
        rules.workspace(workspace, &Conv2dInputGradWorkspace { conv, input, out, dtype })
    }

    fn supports_half_on_cpu(&self) -> bool {
        true
    }

    fn work(&self) -> Work {
        let sizes = Sizes::new(self.conv.groups, self.out.layout(), self.weight.layout(), self.grad.layout());
        sizes.input_grad(&self.conv.windows, self.grad.dtype().is_half())
    }
}

/// The weight gradient of [`Conv2d`]. Inputs are contiguous.
#[derive(Debug)]
pub struct Conv2dWeightGrad<'a> {
    /// The windows and groups.
    pub conv: Convolution,
    /// The input.
    pub input: View<'a>,
    /// The gradient of the output.
    pub grad: View<'a>,
    /// At least as many bytes as [`Conv2dWeightGradWorkspace`] requires;
    /// `None` if it requires none.
    pub workspace: Option<ViewMut<'a>>,
    /// The gradient of the weight: of the type of the images, or of f32 for 16-bit images.
    pub out: ViewMut<'a>,
}

impl<'a> Computation<'a> for Conv2dWeightGrad<'a> {
    operands!(ReadContiguous input, ReadContiguous grad, Scratch workspace, Write out);

    fn check(&self, rules: &Rules<'_>) -> Result<()> {
        let (input, grad, workspace, weight) = checked!(self: input, grad, workspace, out);
        let conv = &self.conv;
        rules.computed_like(weight, input)?;
        fits(rules, conv, [input, weight, grad])?;
        let (input, out, dtype) = (input.shape(), grad.shape(), input.dtype());
        let weight_dtype = weight.dtype();
        rules.workspace(workspace, &Conv2dWeightGradWorkspace { conv, input, out, dtype, weight_dtype })
    }

    fn supports_half_on_cpu(&self) -> bool {
        true
    }

    fn work(&self) -> Work {
        let sizes = Sizes::new(self.conv.groups, self.input.layout(), self.out.layout(), self.grad.layout());
        sizes.weight_grad(&self.conv.windows, self.grad.dtype().is_half())
    }
}

const IMAGES: &str =
    "images must be [n, channels, h, w], filters [out channels, channels of a group, kh, kw]";
const FILTERS: &str =
    "channels must be groups times those of a filter, and the window must have the filter's size";
const OUTPUTS: &str = "it must be [n, out channels, oh, ow], with at most as many places as the window has";

/// Checks a convolution from `large` images to `small` ones.
fn fits(
    rules: &Rules<'_>,
    conv: &Convolution,
    [large, filters, small]: [CheckedOperand<'_>; 3],
) -> Result<()> {
    rules.same_type(small, large)?;
    let (&[images, channels, height, width], &[outputs, of_group, high, wide]) =
        (large.dims(), filters.dims())
    else {
        return Err(rules.mismatch(&filters, &large, IMAGES));
    };
    let Convolution { windows: [down, across], groups } = *conv;
    let of_groups =
        groups > 0 && outputs.is_multiple_of(groups) && of_group.checked_mul(groups) == Some(channels);
    if !of_groups || [down.size, across.size] != [high, wide] {
        return Err(rules.mismatch(&filters, &large, FILTERS));
    }
    // A transposed convolution with output padding has fewer outputs than the window has places.
    let places = |window: &Window, len: usize, places: usize| {
        window.outputs(len).is_some_and(|outputs| places <= outputs)
    };
    match *small.dims() {
        [n, channels, high, wide]
            if [n, channels] == [images, outputs]
                && places(&down, height, high)
                && places(&across, width, wide) =>
        {
            Ok(())
        }
        _ => Err(rules.mismatch(&small, &large, OUTPUTS)),
    }
}

/// The workspace of a [`Conv2d`].
#[derive(Clone, Copy, Debug)]
pub struct Conv2dWorkspace<'a> {
    /// The windows and groups.
    pub conv: &'a Convolution,
    /// The input's shape.
    pub input: &'a Shape,
    /// The output's shape.
    pub out: &'a Shape,
    /// The element type.
    pub dtype: DType,
}

// The kernels of a GPU pack their tiles into shared memory.
impl Workspace for Conv2dWorkspace<'_> {
    fn cpu_bytes(&self) -> usize {
        let images = [self.input.dims(), self.out.dims()];
        cpu::workspace(self.conv, images, self.dtype)
    }

    fn gpu_bytes(&self) -> usize {
        0
    }
}

/// The workspace of a [`Conv2dInputGrad`].
#[derive(Clone, Copy, Debug)]
pub struct Conv2dInputGradWorkspace<'a> {
    /// The windows and groups.
    pub conv: &'a Convolution,
    /// The input's shape.
    pub input: &'a Shape,
    /// The output's shape.
    pub out: &'a Shape,
    /// The element type.
    pub dtype: DType,
}

impl Workspace for Conv2dInputGradWorkspace<'_> {
    fn cpu_bytes(&self) -> usize {
        let images = [self.input.dims(), self.out.dims()];
        cpu::input_grad_workspace(self.conv, images, self.dtype)
    }

    fn gpu_bytes(&self) -> usize {
        0
    }
}

/// The workspace of a [`Conv2dWeightGrad`].
#[derive(Clone, Copy, Debug)]
pub struct Conv2dWeightGradWorkspace<'a> {
    /// The windows and groups.
    pub conv: &'a Convolution,
    /// The input's shape.
    pub input: &'a Shape,
    /// The output's shape.
    pub out: &'a Shape,
    /// The element type of the images.
    pub dtype: DType,
    /// The element type of the weight's gradient.
    pub weight_dtype: DType,
}

impl Workspace for Conv2dWeightGradWorkspace<'_> {
    fn cpu_bytes(&self) -> usize {
        let images = [self.input.dims(), self.out.dims()];
        cpu::weight_grad_workspace(self.conv, images, [self.dtype, self.weight_dtype])
    }

    fn gpu_bytes(&self) -> usize {
        let gemm = ConvGemm::of_weight_grad(self.conv, self.input.dims(), self.out.dims());
        gemm.partial_elements().saturating_mul(self.dtype.computed_as().size())
    }
}

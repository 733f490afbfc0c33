//! The options of convolutions.

use super::padding::Padding;
use crate::backend::{Convolution, Window};
use crate::error::{Error, Result};
use crate::shape::Shape;

/// Options of a convolution of images. Each pair is for height and width.
///
/// ```
/// use highwater::Conv2dOptions;
/// let options = Conv2dOptions { stride: [2, 2], ..Conv2dOptions::padded(1) };
/// assert_eq!((options.padding, options.groups), ([1, 1].into(), 1));
/// let same = Conv2dOptions { dilation: [2, 2], ..Conv2dOptions::same() };
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Conv2dOptions {
    /// Distance from one window to the next.
    pub stride: [usize; 2],
    /// Zeros before the first element and after the last.
    pub padding: Padding,
    /// Distance between neighboring elements of a window.
    pub dilation: [usize; 2],
    /// Number of groups that the channels are divided into.
    pub groups: usize,
    /// Extra rows and columns at the end of a transposed convolution's output. They resolve the ambiguity between
    /// several output sizes for one input.
    pub output_padding: [usize; 2],
}

impl Default for Conv2dOptions {
    /// Stride 1, no padding, dilation 1, one group.
    fn default() -> Self {
        Self::padded(0)
    }
}

impl Conv2dOptions {
    /// Stride 1 with `padding` zeros on each side. Windows of size 2 · `padding` + 1 keep the image size.
    #[must_use]
    pub const fn padded(padding: usize) -> Self {
        Self {
            stride: [1, 1],
            padding: Padding::Zeros([padding; 2]),
            dilation: [1, 1],
            groups: 1,
            output_padding: [0, 0],
        }
    }

    /// Stride 1 with as many zeros as keep the image size: see [`Padding::Same`].
    #[must_use]
    pub const fn same() -> Self {
        Self { padding: Padding::Same, ..Self::padded(0) }
    }

    /// Checks the options of [`Tensor::conv2d`](crate::Tensor::conv2d).
    ///
    /// # Errors
    /// [`Error::BadArgument`] for strides, dilations or groups of 0, for options of transposed convolutions, and for
    /// [`Padding::Same`] with strides above 1.
    pub fn for_conv2d(self, op: &'static str) -> Result<Self> {
        self.check_positive(op)?;
        if self.padding == Padding::Same && self.stride != [1, 1] {
            return Err(not_same(op, format!("{:?}", self.stride)));
        }
        if self.output_padding == [0, 0] {
            return Ok(self);
        }
        let (argument, expected) = ("output_padding", "none, as the convolution is not transposed");
        Err(Error::BadArgument { op, argument, expected, got: format!("{:?}", self.output_padding) })
    }

    /// Checks the options of [`Tensor::conv_transpose2d`](crate::Tensor::conv_transpose2d).
    ///
    /// # Errors
    /// [`Error::BadArgument`] for strides, dilations or groups of 0, for output padding that is neither below the
    /// stride nor below the dilation, and for [`Padding::Same`].
    pub fn for_conv_transpose2d(self, op: &'static str) -> Result<Self> {
        self.check_positive(op)?;
        if self.padding == Padding::Same {
            let (argument, expected) = ("padding", "numbers of zeros, as the convolution is transposed");
            return Err(Error::BadArgument { op, argument, expected, got: "Padding::Same".to_owned() });
        }
        let Self { output_padding, stride, dilation, .. } = self;
        if (0..2).all(|axis| output_padding[axis] < stride[axis].max(dilation[axis])) {
            return Ok(self);
        }
        let (argument, expected) = ("output_padding", "less than the stride or the dilation");
        let got = format!("{output_padding:?} for {stride:?} and {dilation:?}");
        Err(Error::BadArgument { op, argument, expected, got })
    }

    /// Returns the windows of filters with this shape.
    pub(super) fn convolution(&self, weight: &Shape) -> Convolution {
        let zeros = self.padding.zeros();
        let window = |axis: usize| Window {
            size: weight[2 + axis],
            stride: self.stride[axis],
            padding: zeros[axis],
            dilation: self.dilation[axis],
        };
        Convolution { windows: [window(0), window(1)], groups: self.groups }
    }

    /// # Errors
    /// [`Error::BadArgument`] for strides, dilations or groups of 0.
    fn check_positive(&self, op: &'static str) -> Result<()> {
        let pairs = [("stride", self.stride), ("dilation", self.dilation)];
        match pairs.into_iter().find(|(_, pair)| pair.contains(&0)) {
            Some((argument, pair)) => Err(not_positive(op, argument, format!("{pair:?}"))),
            None if self.groups == 0 => Err(not_positive(op, "groups", "0".to_owned())),
            None => Ok(()),
        }
    }
}

/// Options of a convolution of sequences.
///
/// ```
/// use highwater::Conv1dOptions;
/// let options = Conv1dOptions { stride: 2, ..Conv1dOptions::padded(1) };
/// assert_eq!((options.padding, options.groups), (1.into(), 1));
/// let same = Conv1dOptions { dilation: 2, ..Conv1dOptions::same() };
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Conv1dOptions {
    /// Distance from one window to the next.
    pub stride: usize,
    /// Zeros before the first element and after the last.
    pub padding: Padding<usize>,
    /// Distance between neighboring elements of a window.
    pub dilation: usize,
    /// Number of groups that the channels are divided into.
    pub groups: usize,
}

impl Default for Conv1dOptions {
    /// Stride 1, no padding, dilation 1, one group.
    fn default() -> Self {
        Self::padded(0)
    }
}

impl Conv1dOptions {
    /// Stride 1 with `padding` zeros on each side. Windows of size 2 · `padding` + 1 keep the length.
    #[must_use]
    pub const fn padded(padding: usize) -> Self {
        Self { stride: 1, padding: Padding::Zeros(padding), dilation: 1, groups: 1 }
    }

    /// Stride 1 with as many zeros as keep the length: see [`Padding::Same`].
    #[must_use]
    pub const fn same() -> Self {
        Self { padding: Padding::Same, ..Self::padded(0) }
    }

    /// Checks the options of [`Tensor::conv1d`](crate::Tensor::conv1d), and returns them as options for images of one
    /// row.
    ///
    /// # Errors
    /// [`Error::BadArgument`] for strides, dilations or groups of 0, and for [`Padding::Same`] with strides above 1.
    pub fn for_conv1d(self, op: &'static str) -> Result<Conv2dOptions> {
        let numbers = [("stride", self.stride), ("dilation", self.dilation), ("groups", self.groups)];
        if let Some((argument, _)) = numbers.into_iter().find(|&(_, number)| number == 0) {
            return Err(not_positive(op, argument, "0".to_owned()));
        }
        if self.padding == Padding::Same && self.stride != 1 {
            return Err(not_same(op, self.stride.to_string()));
        }
        Ok(self.into())
    }
}

/// Converts options for sequences to options for images of one row.
impl From<Conv1dOptions> for Conv2dOptions {
    fn from(Conv1dOptions { stride, padding, dilation, groups }: Conv1dOptions) -> Self {
        let padding = match padding {
            Padding::Zeros(zeros) => Padding::Zeros([0, zeros]),
            Padding::Same => Padding::Same,
        };
        Self { stride: [1, stride], padding, dilation: [1, dilation], groups, output_padding: [0, 0] }
    }
}

fn not_positive(op: &'static str, argument: &'static str, got: String) -> Error {
    Error::BadArgument { op, argument, expected: "at least 1", got }
}

fn not_same(op: &'static str, got: String) -> Error {
    Error::BadArgument { op, argument: "stride", expected: "1, as Padding::Same keeps the size", got }
}

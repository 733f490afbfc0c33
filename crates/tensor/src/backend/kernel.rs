//! Kernels as data: what a backend may be asked to compute, and on which operands.

use super::function::{
    Activation, AdamStep, Binary, Compare, Distribution, LionStep, RandomKey, Reduce, RmsPropStep, SgdStep,
    Unary,
};
use super::window::{Convolution, Pool, PoolAxis};
use crate::shape::Scalar;
use crate::storage::{View, ViewMut};

/// What layer normalisation has worked on.
#[derive(Clone, Copy, Debug)]
pub struct Normalised<'a> {
    /// Whether the mean was subtracted.
    pub centred: bool,
    /// What was normalised.
    pub input: View<'a>,
    /// Broadcast to the input's shape.
    pub weight: Option<View<'a>>,
    /// Shape `[rows, 2]`: μ and s, contiguous from the buffer's start.
    pub statistics: View<'a>,
}

/// What becomes of the elements of a product.
#[derive(Debug)]
pub struct Activated<'a> {
    /// Of what is rounded to the element type, as if by a kernel of its own.
    pub function: Activation,
    /// Where its arguments go, if they are wanted too: of the product's shape.
    pub arguments: Option<ViewMut<'a>>,
}

/// The operands of attention. All but the mask are contiguous.
#[derive(Clone, Copy, Debug)]
pub struct Attention<'a> {
    /// What the products of queries and keys are multiplied with.
    pub scale: f64,
    /// Whether query i sees the keys 0 to i alone.
    pub causal: bool,
    /// Shape `[heads, queries, width]`.
    pub query: View<'a>,
    /// Shape `[heads, keys, width]`.
    pub key: View<'a>,
    /// Shape `[heads, keys, values]`.
    pub value: View<'a>,
    /// Of shape `[heads, queries, keys]`: truth values, which keys a query may see; or numbers of the query's type, which are
    /// added to the scores.
    pub mask: Option<View<'a>>,
}

/// One piece of work for a backend.
///
/// Inputs may have any layout (strided, broadcast, empty) unless said otherwise. Outputs are contiguous, have one owner
/// and hold arbitrary values before. Operands that belong together element by element have one shape, to which ops have
/// broadcast them. They have one element type, or are of one 16-bit float type and of f32.
///
/// [`OpContext::compute`](crate::OpContext::compute) checks shapes, element types, devices and parameters before a backend
/// computes: operands that do not fit are an [`Error::Operand`](crate::Error::Operand).
#[derive(Debug)]
#[non_exhaustive]
pub enum Kernel<'a> {
    /// Sets every element to one value.
    Fill {
        /// The value, which is one of `out`'s type.
        value: Scalar,
        /// Where to.
        out: ViewMut<'a>,
    },
    /// `out[i] = start + i·step`, for any number type.
    Arange {
        /// The first element.
        start: Scalar,
        /// From one element to the next.
        step: Scalar,
        /// Where to.
        out: ViewMut<'a>,
    },
    /// Copies elements in logical order, converting the element type: floats to integers cut towards zero and saturate,
    /// anything to bool is whether it is non-zero.
    Copy {
        /// What is copied.
        input: View<'a>,
        /// Where to.
        out: ViewMut<'a>,
    },
    /// Copies elements in reverse order along some axes; the element types agree.
    Flip {
        /// What is copied.
        input: View<'a>,
        /// Which axes are reversed: one entry for each.
        axes: &'a [bool],
        /// Where to.
        out: ViewMut<'a>,
    },
    /// Copies `input` into the part of `out` that starts at `start` along `axis` and takes every `step`-th place; other
    /// axes agree, and so do the element types.
    CopyInto {
        /// What is copied.
        input: View<'a>,
        /// The axis along which `input` is a part.
        axis: usize,
        /// Its first place there.
        start: usize,
        /// From one of its places to the next.
        step: usize,
        /// Where to, in any layout; other elements stay.
        out: ViewMut<'a>,
    },
    /// out = f(input).
    Unary {
        /// The function.
        f: Unary,
        /// Its argument.
        input: View<'a>,
        /// Its value.
        out: ViewMut<'a>,
    },
    /// out = grad · f'(·).
    UnaryGrad {
        /// The function.
        f: Unary,
        /// Its value or its argument, as [`Unary::grad_reads_output`] says.
        saved: View<'a>,
        /// The gradient of its value; `None` if it is in `out`.
        grad: Option<View<'a>>,
        /// The gradient of its argument.
        out: ViewMut<'a>,
    },
    /// out = f(lhs, rhs).
    Binary {
        /// The function.
        f: Binary,
        /// Its first argument.
        lhs: View<'a>,
        /// Its second argument.
        rhs: View<'a>,
        /// Its value.
        out: ViewMut<'a>,
    },
    /// acc = acc f input.
    Accumulate {
        /// The function.
        f: Binary,
        /// Its second argument.
        input: View<'a>,
        /// Its first argument, which its value replaces.
        acc: ViewMut<'a>,
    },
    /// out = whether lhs f rhs.
    Compare {
        /// The comparison.
        f: Compare,
        /// What is compared.
        lhs: View<'a>,
        /// With what.
        rhs: View<'a>,
        /// Truth values.
        out: ViewMut<'a>,
    },
    /// out = condition ? lhs : rhs.
    Select {
        /// Truth values.
        condition: View<'a>,
        /// What is taken where they are true.
        lhs: View<'a>,
        /// What is taken where they are false.
        rhs: View<'a>,
        /// Where to.
        out: ViewMut<'a>,
    },
    /// Folds the axes for which `axes` is true. Partial results are cut by the shape alone and combined in index order.
    Reduce {
        /// How two elements become one. Sums and products are of floats and i64.
        f: Reduce,
        /// What the results are divided by, as for means; other than 1 for floats alone.
        divisor: f64,
        /// What is folded.
        input: View<'a>,
        /// Which axes are folded.
        axes: &'a [bool],
        /// As many bytes as [`Workspace::Reduce`](super::Workspace::Reduce) says, if any.
        workspace: Option<ViewMut<'a>>,
        /// An element for each that is kept, in their order; its shape need not say which those are.
        out: ViewMut<'a>,
    },
    /// out = index (i64) of the first largest (or smallest) element along `axis`, which is not empty; NaN counts as both.
    ArgReduce {
        /// Whether the largest is looked for.
        largest: bool,
        /// Where it is looked for.
        input: View<'a>,
        /// Along which axis.
        axis: usize,
        /// Has size 1 there.
        out: ViewMut<'a>,
    },
    /// out = the indices (i64) along the last axis in the order of their elements, smallest first; equals keep their order, and
    /// NaN is larger than every number.
    ArgSort {
        /// Whether the largest come first.
        descending: bool,
        /// How many of the first are wanted: what stands behind them means nothing.
        first: usize,
        /// What is sorted.
        input: View<'a>,
        /// As many bytes as [`Workspace::ArgSort`](super::Workspace::ArgSort) says, if any.
        workspace: Option<ViewMut<'a>>,
        /// Has the shape of the input.
        out: ViewMut<'a>,
    },
    /// Each element of `out` becomes the sum of those up to it along `axis`, in that order.
    RunningSum {
        /// The axis.
        axis: usize,
        /// Whether the sums run from the last element to the first.
        reverse: bool,
        /// What is summed, and the sums.
        out: ViewMut<'a>,
    },
    /// `out[.., i, j] = f(bias[j] + Σₖ lhs[.., i, k] · rhs[.., k, j])`, f for floats alone; leading axes are those of the output.
    MatMul {
        /// What every row starts with, if not with zeros: of shape `[j]`.
        bias: Option<View<'a>>,
        /// The rows.
        lhs: View<'a>,
        /// The columns.
        rhs: View<'a>,
        /// The function f, if the sums are not the result.
        activation: Option<Activated<'a>>,
        /// As many bytes as [`Workspace::MatMul`](super::Workspace::MatMul) says, if any.
        workspace: Option<ViewMut<'a>>,
        /// The product.
        out: ViewMut<'a>,
    },
    /// out = softmax (or its logarithm) along the last axis.
    Softmax {
        /// Whether the logarithm is wanted.
        log: bool,
        /// The logits.
        input: View<'a>,
        /// Where to.
        out: ViewMut<'a>,
    },
    /// The gradient of [`Softmax`](Self::Softmax): s·(g - Σ g·s), or g - eˢ·Σ g for the logarithm.
    SoftmaxGrad {
        /// Whether it was the logarithm.
        log: bool,
        /// What softmax gave: s.
        output: View<'a>,
        /// The gradient of that: g.
        grad: View<'a>,
        /// Where to.
        out: ViewMut<'a>,
    },
    /// out = (input - μ) · s · weight + bias by rows, with the mean μ (0 unless centred), the variance σ² about it and s =
    /// 1/√(σ² + epsilon). A row is all of the last axis, or all of several: as many elements as are left for each row of
    /// `statistics`.
    LayerNorm {
        /// Whether the mean is subtracted.
        centred: bool,
        /// Added to the variance.
        epsilon: f64,
        /// What is normalised.
        input: View<'a>,
        /// Weight and bias, if there are any, broadcast to the input's shape.
        affine: &'a [Option<View<'a>>; 2],
        /// Where to.
        out: ViewMut<'a>,
        /// Shape `[rows, 2]`: μ and s.
        statistics: ViewMut<'a>,
    },
    /// With x̂ = (input - μ) · s and h = grad · weight: out = s · (h - mean(h) - x̂ · mean(h x̂)), without mean(h) unless
    /// centred.
    LayerNormGrad {
        /// What was normalised, and how.
        of: &'a Normalised<'a>,
        /// The gradient of what came out.
        grad: View<'a>,
        /// The gradient of the input.
        out: ViewMut<'a>,
    },
    /// The gradients of weight and bias: Σ x̂ · grad and Σ grad over all rows. Elements are counted as `[rows, parameters,
    /// places]`, of which a row of the normalisation is one row, or those of some of its parameters.
    LayerNormSums {
        /// What was normalised, and how; its weight is not read.
        of: &'a Normalised<'a>,
        /// The gradient of what came out.
        grad: View<'a>,
        /// How many neighbours one parameter belongs to.
        places: usize,
        /// As many bytes as [`Workspace::LayerNormSums`](super::Workspace::LayerNormSums) says, if any.
        workspace: Option<ViewMut<'a>>,
        /// The weight's gradient, of as many elements as there are parameters.
        weight: ViewMut<'a>,
        /// The bias's gradient, if there is a bias.
        bias: Option<ViewMut<'a>>,
    },
    /// `out[n, o, y, x] = Σ weight[o, c, ky, kx] · input[n, group of o + c, y·stride + ky·dilation - padding, x…]`: a
    /// cross-correlation, with zeros in the padding. Inputs are contiguous.
    Conv2d {
        /// The windows and groups.
        conv: Convolution,
        /// Shape `[n, channels, h, w]`.
        input: View<'a>,
        /// Shape `[out channels, channels of a group, kh, kw]`.
        weight: View<'a>,
        /// As many bytes as [`Workspace::Conv2d`](super::Workspace::Conv2d) says, if any.
        workspace: Option<ViewMut<'a>>,
        /// Shape `[n, out channels, oh, ow]`.
        out: ViewMut<'a>,
    },
    /// The gradient of [`Conv2d`](Self::Conv2d) by its input; also a transposed convolution. Inputs are contiguous.
    Conv2dInputGrad {
        /// The windows and groups.
        conv: Convolution,
        /// The weight.
        weight: View<'a>,
        /// The gradient of what came out.
        grad: View<'a>,
        /// As many bytes as [`Workspace::Conv2d`](super::Workspace::Conv2d) says, if any.
        workspace: Option<ViewMut<'a>>,
        /// The gradient of the input.
        out: ViewMut<'a>,
    },
    /// The gradient of [`Conv2d`](Self::Conv2d) by its weight. Inputs are contiguous.
    Conv2dWeightGrad {
        /// The windows and groups.
        conv: Convolution,
        /// The input.
        input: View<'a>,
        /// The gradient of what came out.
        grad: View<'a>,
        /// As many bytes as [`Workspace::Conv2dWeightGrad`](super::Workspace::Conv2dWeightGrad) says, if any.
        workspace: Option<ViewMut<'a>>,
        /// The gradient of the weight.
        out: ViewMut<'a>,
    },
    /// Over the last two axes, what each pair of windows sees as one number. The input is contiguous.
    Pool2d {
        /// Which number.
        pool: Pool,
        /// Along height and width.
        axes: [PoolAxis; 2],
        /// Shape `[.., h, w]`.
        input: View<'a>,
        /// Shape `[.., oh, ow]`.
        out: ViewMut<'a>,
    },
    /// The gradient of [`Pool2d`](Self::Pool2d). That of a maximum goes to the first of the largest elements. Inputs are
    /// contiguous.
    Pool2dGrad {
        /// Which number it was.
        pool: Pool,
        /// Along height and width.
        axes: [PoolAxis; 2],
        /// What was pooled, for the largest, which are looked for again.
        input: Option<View<'a>>,
        /// The gradient of what came out.
        grad: View<'a>,
        /// The gradient of the input.
        out: ViewMut<'a>,
    },
    /// out = softmax(scale · query · keyᵀ) · value for each head; a query that sees no key gives 0.
    Attention {
        /// Who looks at what, and how.
        of: &'a Attention<'a>,
        /// As many bytes as [`Workspace::Attention`](super::Workspace::Attention) says, if any.
        workspace: Option<ViewMut<'a>>,
        /// Shape `[heads, queries, values]`.
        out: ViewMut<'a>,
        /// Shape `[heads, queries]`: ln Σ exp of the scores that each query sees.
        log_sums: ViewMut<'a>,
    },
    /// The gradients of [`Attention`](Self::Attention). Inputs are contiguous.
    AttentionGrad {
        /// Who looked at what, and how.
        of: &'a Attention<'a>,
        /// What came out, and the logarithms that came out beside it.
        results: &'a [View<'a>; 2],
        /// The gradient of what came out.
        grad: View<'a>,
        /// As many bytes as [`Workspace::Attention`](super::Workspace::Attention) says, if any.
        workspace: Option<ViewMut<'a>>,
        /// The gradients of query, key and value.
        out: [ViewMut<'a>; 3],
    },
    /// `losses[i] = -log softmax(logits[i])[targets[i]]`. A target outside the classes is
    /// [`Error::IndexOutOfRange`](crate::Error::IndexOutOfRange), before anything is written.
    CrossEntropy {
        /// Shape `[n, classes]`.
        logits: View<'a>,
        /// Shape `[n]`, i64.
        targets: View<'a>,
        /// Shape `[n]`.
        losses: ViewMut<'a>,
    },
    /// `out = (softmax(logits) - one_hot(targets)) · grad`. A row whose gradient is 0 gets 0, also where its logits are no
    /// numbers: it does not count.
    CrossEntropyGrad {
        /// Shape `[n, classes]`.
        logits: View<'a>,
        /// Shape `[n]`, i64; were checked.
        targets: View<'a>,
        /// Shape `[n]`.
        grad: View<'a>,
        /// Shape `[n, classes]`.
        out: ViewMut<'a>,
    },
    /// out = `input` with index `indices[..]` along `axis`, element by element (PyTorch's `gather`). Indices out of range
    /// are [`Error::IndexOutOfRange`](crate::Error::IndexOutOfRange), before anything is written.
    Gather {
        /// Where elements are taken from.
        input: View<'a>,
        /// Which are, i64.
        indices: View<'a>,
        /// Along which axis.
        axis: usize,
        /// Has the shape of the indices.
        out: ViewMut<'a>,
    },
    /// The adjoint of [`Gather`](Self::Gather): out = 0, then `out[.., indices, ..]` += input, in index order. Errors as
    /// there.
    ScatterAdd {
        /// What is added.
        input: View<'a>,
        /// To which elements, i64.
        indices: View<'a>,
        /// Along which axis.
        axis: usize,
        /// As many bytes as [`Workspace::ScatterAdd`](super::Workspace::ScatterAdd) says, if any.
        workspace: Option<ViewMut<'a>>,
        /// The sums.
        out: ViewMut<'a>,
    },
    /// `out[.., c]` = 1 where `indices[..]` = c, else 0. Errors as for [`Gather`](Self::Gather).
    OneHot {
        /// The places of the ones, i64.
        indices: View<'a>,
        /// Has one axis more.
        out: ViewMut<'a>,
    },
    /// Random elements; element i depends only on the key and i.
    Random {
        /// How they are distributed.
        distribution: Distribution,
        /// Where in the stream of random bits they start.
        key: RandomKey,
        /// Where to.
        out: ViewMut<'a>,
    },
    /// values = clamp(values · scale, low, high), in place, for floats; NaN stays NaN.
    Clip {
        /// What each is multiplied with first.
        scale: f64,
        /// The least value.
        low: f64,
        /// The largest.
        high: f64,
        /// The values.
        values: ViewMut<'a>,
    },
    /// One optimiser step in place.
    Sgd {
        /// What the step is.
        step: SgdStep,
        /// The gradient.
        grad: View<'a>,
        /// There if and only if the step's momentum is not 0.
        momentum: Option<ViewMut<'a>>,
        /// The parameter.
        param: ViewMut<'a>,
    },
    /// One optimiser step in place.
    Adam {
        /// What the step is.
        step: AdamStep,
        /// The gradient.
        grad: View<'a>,
        /// The mean of gradients.
        mean: ViewMut<'a>,
        /// The mean of their squares.
        variance: ViewMut<'a>,
        /// The parameter.
        param: ViewMut<'a>,
    },
    /// One optimiser step in place.
    RmsProp {
        /// What the step is.
        step: RmsPropStep,
        /// The gradient.
        grad: View<'a>,
        /// The mean of squares of gradients.
        variance: ViewMut<'a>,
        /// There if and only if the step's momentum is not 0.
        momentum: Option<ViewMut<'a>>,
        /// The parameter.
        param: ViewMut<'a>,
    },
    /// One optimiser step in place.
    Lion {
        /// What the step is.
        step: LionStep,
        /// The gradient.
        grad: View<'a>,
        /// The mean of gradients.
        mean: ViewMut<'a>,
        /// The parameter.
        param: ViewMut<'a>,
    },
}

//! Kernels as data: the computations that backends support, with their operands.

use super::function::{
    Activation, AdamStep, Binary, Compare, Distribution, LionStep, RandomKey, Reduce, RmsPropStep, SgdStep,
    Unary,
};
use super::window::{Convolution, Pool, PoolAxis};
use crate::shape::Scalar;
use crate::storage::{View, ViewMut};

/// The operands that the gradients of a normalization share.
#[derive(Clone, Copy, Debug)]
pub struct Normalized<'a> {
    /// Whether the mean was subtracted.
    pub centered: bool,
    /// The input of the normalization.
    pub input: View<'a>,
    /// Broadcast to the input's shape.
    pub weight: Option<View<'a>>,
    /// Shape `[rows, 2]`: μ and s, contiguous from the buffer's start.
    pub statistics: View<'a>,
}

/// The activation of a product's elements.
#[derive(Debug)]
pub struct Activated<'a> {
    /// The function. It applies to the product rounded to the element type.
    pub function: Activation,
    /// Receives the function's arguments, if they are needed. Has the product's shape.
    pub arguments: Option<ViewMut<'a>>,
}

/// The operands of attention. All but the mask are contiguous.
#[derive(Clone, Copy, Debug)]
pub struct Attention<'a> {
    /// The factor of the products of queries and keys.
    pub scale: f64,
    /// Whether query i sees only the keys 0 to i.
    pub causal: bool,
    /// Shape `[heads, queries, width]`.
    pub query: View<'a>,
    /// Shape `[heads, keys, width]`.
    pub key: View<'a>,
    /// Shape `[heads, keys, values]`.
    pub value: View<'a>,
    /// Shape `[heads, queries, keys]`. Booleans say which keys a query sees; floats of the query's type are added to the scores.
    pub mask: Option<View<'a>>,
}

/// One computation of a backend, with its operands.
///
/// Inputs may have any layout (strided, broadcast, empty) unless the documentation says otherwise. Outputs are contiguous, have
/// one owner and hold arbitrary values before. The operands of elementwise kernels have one shape, to which ops have broadcast
/// them. They have one element type, or are of one 16-bit float type and of f32.
///
/// [`OpContext::compute`](crate::OpContext::compute) checks shapes, element types, devices and parameters before a backend
/// computes: operands that do not fit are an [`Error::Operand`](crate::Error::Operand).
#[derive(Debug)]
#[non_exhaustive]
pub enum Kernel<'a> {
    /// Sets every element to one value.
    Fill {
        /// The value, of `out`'s type.
        value: Scalar,
        /// The output.
        out: ViewMut<'a>,
    },
    /// `out[i] = start + i·step`, for any number type.
    Arange {
        /// The first element.
        start: Scalar,
        /// The difference between neighbors.
        step: Scalar,
        /// The output.
        out: ViewMut<'a>,
    },
    /// Copies elements in logical order and converts the element type. Floats become integers by truncation and saturate. Bool
    /// is whether an element is not 0.
    Copy {
        /// The elements to copy.
        input: View<'a>,
        /// The output.
        out: ViewMut<'a>,
    },
    /// Copies elements in reverse order along some axes; the element types agree.
    Flip {
        /// The elements to copy.
        input: View<'a>,
        /// For each axis, whether it is reversed.
        axes: &'a [bool],
        /// The output.
        out: ViewMut<'a>,
    },
    /// Copies `input` into the part of `out` that starts at `start` along `axis` and takes every `step`-th place; other
    /// axes agree, and so do the element types.
    CopyInto {
        /// The elements to copy.
        input: View<'a>,
        /// The axis along which `input` is a part.
        axis: usize,
        /// Its first place there.
        start: usize,
        /// The distance between its places.
        step: usize,
        /// The output, in any layout. Other elements stay.
        out: ViewMut<'a>,
    },
    /// out = f(input).
    Unary {
        /// The function.
        f: Unary,
        /// The argument.
        input: View<'a>,
        /// The result.
        out: ViewMut<'a>,
    },
    /// out = grad · f'(·).
    UnaryGrad {
        /// The function.
        f: Unary,
        /// The function's value or its argument, as [`Unary::grad_reads_output`] says.
        saved: View<'a>,
        /// The gradient of the function's value; `None` if `out` contains it.
        grad: Option<View<'a>>,
        /// The gradient of the function's argument.
        out: ViewMut<'a>,
    },
    /// out = f(lhs, rhs).
    Binary {
        /// The function.
        f: Binary,
        /// The first argument.
        lhs: View<'a>,
        /// The second argument.
        rhs: View<'a>,
        /// The result.
        out: ViewMut<'a>,
    },
    /// acc = acc f input.
    Accumulate {
        /// The function.
        f: Binary,
        /// The second argument.
        input: View<'a>,
        /// The first argument, which the result replaces.
        acc: ViewMut<'a>,
    },
    /// out = lhs f rhs, as booleans.
    Compare {
        /// The comparison.
        f: Compare,
        /// The first operand.
        lhs: View<'a>,
        /// The second operand.
        rhs: View<'a>,
        /// Booleans.
        out: ViewMut<'a>,
    },
    /// out = condition ? lhs : rhs.
    Select {
        /// Booleans.
        condition: View<'a>,
        /// The value where the condition is true.
        lhs: View<'a>,
        /// The value where the condition is false.
        rhs: View<'a>,
        /// The output.
        out: ViewMut<'a>,
    },
    /// Reduces the axes for which `axes` is true. The order of the additions depends on the shape alone.
    Reduce {
        /// The reduction. Sums and products support floats and i64.
        f: Reduce,
        /// The divisor of the results, for means. Integers require 1.
        divisor: f64,
        /// The input.
        input: View<'a>,
        /// For each axis, whether it is reduced.
        axes: &'a [bool],
        /// At least as many bytes as [`Workspace::Reduce`](super::Workspace::Reduce) requires; `None` if it requires none.
        workspace: Option<ViewMut<'a>>,
        /// Has one element for each combination of the kept axes, in their order.
        out: ViewMut<'a>,
    },
    /// out = index (i64) of the first largest (or smallest) element along `axis`, which is not empty; NaN counts as both.
    ArgReduce {
        /// Whether to find the largest element instead of the smallest.
        largest: bool,
        /// The elements.
        input: View<'a>,
        /// The axis.
        axis: usize,
        /// Has size 1 there.
        out: ViewMut<'a>,
    },
    /// out = the indices (i64) that sort the last axis, smallest element first. Equal elements keep their order, and NaN is larger
    /// than every number.
    ArgSort {
        /// Whether the largest elements come first.
        descending: bool,
        /// The number of indices that are needed; later ones are arbitrary.
        first: usize,
        /// The elements to sort.
        input: View<'a>,
        /// At least as many bytes as [`Workspace::ArgSort`](super::Workspace::ArgSort) requires; `None` if it requires none.
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
        /// The elements, which their sums replace.
        out: ViewMut<'a>,
    },
    /// `out[.., i, j] = f(bias[j] + Σₖ lhs[.., i, k] · rhs[.., k, j])`, f for floats alone; leading axes are those of the output.
    MatMul {
        /// The bias, of shape `[j]`.
        bias: Option<View<'a>>,
        /// The left matrices.
        lhs: View<'a>,
        /// The right matrices.
        rhs: View<'a>,
        /// The function f; `None` for the sums themselves.
        activation: Option<Activated<'a>>,
        /// At least as many bytes as [`Workspace::MatMul`](super::Workspace::MatMul) requires; `None` if it requires none.
        workspace: Option<ViewMut<'a>>,
        /// The product.
        out: ViewMut<'a>,
    },
    /// out = softmax (or its logarithm) along the last axis.
    Softmax {
        /// Whether to compute the logarithm.
        log: bool,
        /// The logits.
        input: View<'a>,
        /// The output.
        out: ViewMut<'a>,
    },
    /// The gradient of [`Softmax`](Self::Softmax): s·(g - Σ g·s), or g - eˢ·Σ g for the logarithm.
    SoftmaxGrad {
        /// Whether the output is the logarithm.
        log: bool,
        /// The output of softmax: s.
        output: View<'a>,
        /// The gradient of the output: g.
        grad: View<'a>,
        /// The output.
        out: ViewMut<'a>,
    },
    /// out = (input - μ) · s · weight + bias by rows, with the mean μ (0 unless centered), the variance σ² about it and s =
    /// 1/√(σ² + epsilon). A row is all of the last axis, or all of several: as many elements as are left for each row of
    /// `statistics`.
    LayerNorm {
        /// Whether the mean is subtracted.
        centered: bool,
        /// Added to the variance.
        epsilon: f64,
        /// The elements to normalize.
        input: View<'a>,
        /// Weight and bias, if any, broadcast to the input's shape.
        affine: [Option<View<'a>>; 2],
        /// The output.
        out: ViewMut<'a>,
        /// Shape `[rows, 2]`: μ and s.
        statistics: ViewMut<'a>,
    },
    /// With x̂ = (input - μ) · s and h = grad · weight: out = s · (h - mean(h) - x̂ · mean(h x̂)), without mean(h) unless
    /// centered.
    LayerNormGrad {
        /// The normalization.
        of: Normalized<'a>,
        /// The gradient of the output.
        grad: View<'a>,
        /// The gradient of the input.
        out: ViewMut<'a>,
    },
    /// The gradients of weight and bias: Σ x̂ · grad and Σ grad over all rows. Elements are counted as `[rows, parameters,
    /// places]`, of which a row of the normalization is one row, or those of some of its parameters.
    LayerNormSums {
        /// The normalization, whose weight is ignored.
        of: Normalized<'a>,
        /// The gradient of the output.
        grad: View<'a>,
        /// The number of neighbors that share one parameter.
        places: usize,
        /// At least as many bytes as [`Workspace::LayerNormSums`](super::Workspace::LayerNormSums) requires; `None` if it requires none.
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
        /// At least as many bytes as [`Workspace::Conv2d`](super::Workspace::Conv2d) requires; `None` if it requires none.
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
        /// The gradient of the output.
        grad: View<'a>,
        /// At least as many bytes as [`Workspace::Conv2d`](super::Workspace::Conv2d) requires; `None` if it requires none.
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
        /// The gradient of the output.
        grad: View<'a>,
        /// At least as many bytes as [`Workspace::Conv2dWeightGrad`](super::Workspace::Conv2dWeightGrad) requires; `None` if it requires none.
        workspace: Option<ViewMut<'a>>,
        /// The gradient of the weight.
        out: ViewMut<'a>,
    },
    /// Pools each window over the last two axes. The input is contiguous.
    Pool2d {
        /// The kind of pool.
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
        /// The kind of pool.
        pool: Pool,
        /// Along height and width.
        axes: [PoolAxis; 2],
        /// The input of the pool; only a maximum reads it.
        input: Option<View<'a>>,
        /// The gradient of the output.
        grad: View<'a>,
        /// The gradient of the input.
        out: ViewMut<'a>,
    },
    /// out = softmax(scale · query · keyᵀ) · value for each head; a query that sees no key gives 0.
    Attention {
        /// Queries, keys, values and options.
        of: Attention<'a>,
        /// At least as many bytes as [`Workspace::Attention`](super::Workspace::Attention) requires; `None` if it requires none.
        workspace: Option<ViewMut<'a>>,
        /// Shape `[heads, queries, values]`.
        out: ViewMut<'a>,
        /// Shape `[heads, queries]`: ln Σ exp of the scores that each query sees.
        log_sums: ViewMut<'a>,
    },
    /// The gradients of [`Attention`](Self::Attention). Inputs are contiguous.
    AttentionGrad {
        /// Queries, keys, values and options.
        of: Attention<'a>,
        /// The outputs `out` and `log_sums` of the forward kernel.
        results: [View<'a>; 2],
        /// The gradient of the output.
        grad: View<'a>,
        /// At least as many bytes as [`Workspace::Attention`](super::Workspace::Attention) requires; `None` if it requires none.
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
        /// Shape `[n]`, i64, checked before.
        targets: View<'a>,
        /// Shape `[n]`.
        grad: View<'a>,
        /// Shape `[n, classes]`.
        out: ViewMut<'a>,
    },
    /// out = `input` with index `indices[..]` along `axis`, element by element (PyTorch's `gather`). Indices out of range
    /// are [`Error::IndexOutOfRange`](crate::Error::IndexOutOfRange), before anything is written.
    Gather {
        /// The elements to choose from.
        input: View<'a>,
        /// The indices, i64.
        indices: View<'a>,
        /// The axis.
        axis: usize,
        /// Has the shape of the indices.
        out: ViewMut<'a>,
    },
    /// The adjoint of [`Gather`](Self::Gather): out = 0, then `out[.., indices, ..]` += input, in index order. Errors as
    /// there.
    ScatterAdd {
        /// The elements to add.
        input: View<'a>,
        /// The indices, i64.
        indices: View<'a>,
        /// The axis.
        axis: usize,
        /// At least as many bytes as [`Workspace::ScatterAdd`](super::Workspace::ScatterAdd) requires; `None` if it requires none.
        workspace: Option<ViewMut<'a>>,
        /// The sums.
        out: ViewMut<'a>,
    },
    /// `out[.., c]` = 1 where `indices[..]` = c, otherwise 0. Errors as for [`Gather`](Self::Gather).
    OneHot {
        /// The indices, i64.
        indices: View<'a>,
        /// Has one more axis.
        out: ViewMut<'a>,
    },
    /// Random elements; element i depends only on the key and i.
    Random {
        /// The distribution.
        distribution: Distribution,
        /// The position in the stream of random bits.
        key: RandomKey,
        /// The output.
        out: ViewMut<'a>,
    },
    /// values = values · factor, in place, for floats.
    Scale {
        /// The factor.
        factor: f64,
        /// The values.
        values: ViewMut<'a>,
    },
    /// values = clamp(values, low, high), in place, for floats; NaN stays NaN.
    Clip {
        /// The least value.
        low: f64,
        /// The largest.
        high: f64,
        /// The values.
        values: ViewMut<'a>,
    },
    /// One optimizer step in place.
    Sgd {
        /// The options of the step.
        step: SgdStep,
        /// The gradient.
        grad: View<'a>,
        /// Required if and only if the step's momentum is not 0.
        momentum: Option<ViewMut<'a>>,
        /// The parameter.
        param: ViewMut<'a>,
    },
    /// One optimizer step in place.
    Adam {
        /// The options of the step.
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
    /// One optimizer step in place.
    RmsProp {
        /// The options of the step.
        step: RmsPropStep,
        /// The gradient.
        grad: View<'a>,
        /// The mean of squares of gradients.
        variance: ViewMut<'a>,
        /// Required if and only if the step's momentum is not 0.
        momentum: Option<ViewMut<'a>>,
        /// The parameter.
        param: ViewMut<'a>,
    },
    /// One optimizer step in place.
    Lion {
        /// The options of the step.
        step: LionStep,
        /// The gradient.
        grad: View<'a>,
        /// The mean of gradients.
        mean: ViewMut<'a>,
        /// The parameter.
        param: ViewMut<'a>,
    },
}

//! Kernels as data: the computations that backends support, with their operands.

use super::function::{
    Activation, AdamStep, Binary, Compare, Distribution, LionStep, RandomKey, Reduce, RmsPropStep, SgdStep,
    Unary,
};
use super::precision::Precision;
use super::recurrent::Recurrence;
use super::window::{Convolution, PoolAxis, PoolReduction};
use crate::shape::Scalar;
use crate::storage::{View, ViewMut};

/// The operands that the gradients of a normalization share.
#[derive(Clone, Copy, Debug)]
pub struct Normalized<'a> {
    /// Whether the mean was subtracted.
    pub centered: bool,
    /// The input of the normalization.
    pub input: View<'a>,
    /// The weight, broadcast to the input's shape.
    pub weight: Option<View<'a>>,
    /// Shape `[rows, 2]`: μ and s, contiguous from the buffer's start.
    pub statistics: View<'a>,
}

/// The activation of a product's elements.
#[derive(Debug)]
pub struct Activated<'a> {
    /// The function. It applies to the product rounded to the element type.
    pub function: Activation,
    /// Receives the function's arguments for the backward pass, if requested. Has the product's shape.
    pub arguments: Option<ViewMut<'a>>,
}

/// The operands of attention. All but the mask are contiguous.
#[derive(Clone, Copy, Debug)]
pub struct Attention<'a> {
    /// The factor of the products of queries and keys.
    pub scale: f64,
    /// Whether query i attends only to the keys 0 to i.
    pub causal: bool,
    /// Shape `[heads, queries, width]`.
    pub query: View<'a>,
    /// Shape `[heads, keys, width]`.
    pub key: View<'a>,
    /// Shape `[heads, keys, values]`.
    pub value: View<'a>,
    /// Shape `[heads, queries, keys]`. Booleans select the keys that a query attends to. Floats of the query's type are
    /// added to the scores.
    pub mask: Option<View<'a>>,
}

/// One computation of a backend, with its operands.
///
/// Inputs may have any layout (strided, broadcast, empty) unless the documentation says otherwise. Outputs are contiguous
/// and uninitialized, and have one owner. The operands of elementwise kernels have one shape; ops broadcast them before.
/// They have one element type, or mix one 16-bit float type with f32.
///
/// [`OpContext::compute`](crate::OpContext::compute) checks shapes, element types, devices and parameters before a backend
/// computes. Operands that do not fit are an [`Error::Operand`](crate::Error::Operand).
#[derive(Debug)]
#[non_exhaustive]
pub enum Kernel<'a> {
    /// `out[i] = value` (PyTorch's `fill_`).
    Fill {
        /// The value, of `out`'s type.
        value: Scalar,
        /// The output.
        out: ViewMut<'a>,
    },
    /// `out[i] = start + i·step` (PyTorch's `arange`), for any number type.
    Arange {
        /// The first element.
        start: Scalar,
        /// The difference between neighbors.
        step: Scalar,
        /// The output.
        out: ViewMut<'a>,
    },
    /// `out[i] = input[i]`, converted to the output's element type (PyTorch's `copy_`). Floats become integers by truncation
    /// and saturate. A boolean is true if the element is not 0.
    Copy {
        /// The elements to copy.
        input: View<'a>,
        /// The output.
        out: ViewMut<'a>,
    },
    /// `out[.., i, ..] = input[.., n - 1 - i, ..]` along some axes (PyTorch's `flip`). The element types are equal.
    Flip {
        /// The elements to copy.
        input: View<'a>,
        /// For each axis, whether it is reversed.
        axes: &'a [bool],
        /// The output.
        out: ViewMut<'a>,
    },
    /// `out[.., start + i·step, ..] = input[.., i, ..]` along `axis` (PyTorch's `slice_scatter`, in place). The sizes of the
    /// other axes and the element types are equal.
    CopyInto {
        /// The elements to copy.
        input: View<'a>,
        /// The axis of the slice.
        axis: usize,
        /// The first index of the slice.
        start: usize,
        /// The distance between indices of the slice.
        step: usize,
        /// The output, in any layout. Elements outside of the slice do not change.
        out: ViewMut<'a>,
    },
    /// `out[i] = f(input[i])`.
    Unary {
        /// The function.
        f: Unary,
        /// The argument.
        input: View<'a>,
        /// The result.
        out: ViewMut<'a>,
    },
    /// `out[i] = grad[i] · f'(x[i])`, the backward pass of [`Unary`](Self::Unary).
    UnaryGrad {
        /// The function.
        f: Unary,
        /// The function's value f(x) if [`Unary::grad_reads_output`] is true, otherwise its argument x.
        saved: View<'a>,
        /// The gradient of the function's value; `None` if `out` contains it.
        grad: Option<View<'a>>,
        /// The gradient of the function's argument.
        out: ViewMut<'a>,
    },
    /// `out[i] = f(lhs[i], rhs[i])`.
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
    /// `acc[i] = f(acc[i], input[i])`, in place.
    Accumulate {
        /// The function.
        f: Binary,
        /// The second argument.
        input: View<'a>,
        /// The first argument, which the result replaces.
        acc: ViewMut<'a>,
    },
    /// `out[i] = f(lhs[i], rhs[i])`, as booleans (PyTorch's `eq`, `lt` and so on).
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
    /// `out[i] = condition[i] ? lhs[i] : rhs[i]` (PyTorch's `where`).
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
    /// `out[..] = f(input over the reduced axes) / divisor` (PyTorch's `sum`, `mean`, `amax` and so on). The order of the
    /// additions depends only on the shape.
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
    /// PyTorch's `argmax` or `argmin` along `axis`, which is not empty: the index (i64) of the first largest or smallest
    /// element. NaN counts as both.
    ArgReduce {
        /// Whether to find the largest element instead of the smallest.
        largest: bool,
        /// The elements.
        input: View<'a>,
        /// The axis.
        axis: usize,
        /// The indices; the size of `axis` is 1.
        out: ViewMut<'a>,
    },
    /// PyTorch's stable `argsort`: the indices (i64) that sort the last axis. Equal elements keep their order, and NaN is
    /// larger than every number.
    ArgSort {
        /// Whether the order is descending.
        descending: bool,
        /// The number of valid indices (k of a top-k); later ones are arbitrary.
        first: usize,
        /// The elements to sort.
        input: View<'a>,
        /// At least as many bytes as [`Workspace::ArgSort`](super::Workspace::ArgSort) requires; `None` if it requires none.
        workspace: Option<ViewMut<'a>>,
        /// Has the shape of the input.
        out: ViewMut<'a>,
    },
    /// `out[.., i, ..] = Σ out[.., j, ..]` over j ≤ i along `axis`, in place and in order (PyTorch's `cumsum_`). Floats are
    /// summed in f64.
    RunningSum {
        /// The axis.
        axis: usize,
        /// Whether the sums run from the last element to the first.
        reverse: bool,
        /// The elements, which their sums replace.
        out: ViewMut<'a>,
    },
    /// `out[.., i, j] = f(bias[j] + Σₖ lhs[.., i, k] · rhs[.., k, j])`; f requires floats. The factors have the leading
    /// axes of the output.
    MatMul {
        /// The precision of the products. [`Precision::BF16`] requires f32 operands.
        precision: Precision,
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
    /// PyTorch's `softmax` or `log_softmax` along the last axis: `out[i] = exp(input[i]) / Σⱼ exp(input[j])`.
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
    /// `out = (input - μ) · s · weight + bias` for each row (PyTorch's `layer_norm`, `group_norm` and `rms_norm`).
    ///
    /// μ is the mean (0 unless centered), σ² the mean of (input - μ)², and s = 1/√(σ² + epsilon). A row spans one or
    /// several of the last axes: its length is the number of elements divided by the number of rows of `statistics`.
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
    /// `out = s · (h - mean(h) - x̂ · mean(h x̂))` with x̂ = (input - μ) · s and h = grad · weight: the input gradient of
    /// [`LayerNorm`](Self::LayerNorm). Without mean(h) unless centered.
    LayerNormGrad {
        /// The normalization.
        of: Normalized<'a>,
        /// The gradient of the output.
        grad: View<'a>,
        /// The gradient of the input.
        out: ViewMut<'a>,
    },
    /// `weight = Σ x̂ · grad` and `bias = Σ grad` over all rows: the parameter gradients of [`LayerNorm`](Self::LayerNorm).
    ///
    /// The elements have the shape `[rows, parameters, places]`. A row of the normalization is a whole row of it, or
    /// the part of a row that belongs to some of the parameters (the channels of a group).
    LayerNormSums {
        /// The normalization, whose weight is ignored.
        of: Normalized<'a>,
        /// The gradient of the output.
        grad: View<'a>,
        /// The number of neighboring elements that share one parameter.
        places: usize,
        /// At least as many bytes as [`Workspace::LayerNormSums`](super::Workspace::LayerNormSums) requires; `None` if
        /// it requires none.
        workspace: Option<ViewMut<'a>>,
        /// The weight's gradient, with one element per parameter.
        weight: ViewMut<'a>,
        /// The bias's gradient, if there is a bias.
        bias: Option<ViewMut<'a>>,
    },
    /// `out = (input - μ) · s · weight + bias` for each channel of the batch (PyTorch's `batch_norm` in training).
    ///
    /// μ and σ² are the mean and the variance of a channel, and s = 1/√(σ² + epsilon). Only for backends that
    /// [fuse it](super::Backend::fuses_batch_norm).
    BatchNorm {
        /// Added to the variance.
        epsilon: f64,
        /// Contiguous, of shape `[n, channels, ..]`.
        input: View<'a>,
        /// Weight and bias, each of shape `[channels]`.
        affine: [View<'a>; 2],
        /// The output.
        out: ViewMut<'a>,
        /// Shape `[channels, 2]`: μ and s.
        statistics: ViewMut<'a>,
        /// Shape `[channels]`: σ².
        variance: ViewMut<'a>,
    },
    /// The gradients of [`BatchNorm`](Self::BatchNorm), with x̂ = (input - μ) · s:
    /// `out = s · weight · (grad - mean(grad) - x̂ · mean(x̂ · grad))`, `weight = Σ x̂ · grad` and `bias = Σ grad`.
    BatchNormGrad {
        /// The normalization, with the weight and the statistics of the forward pass. The input is contiguous.
        of: Normalized<'a>,
        /// The gradient of the output. Contiguous.
        grad: View<'a>,
        /// The gradient of the input, if required.
        out: Option<ViewMut<'a>>,
        /// The weight's gradient, of shape `[channels]`.
        weight: ViewMut<'a>,
        /// The bias's gradient, of shape `[channels]`.
        bias: ViewMut<'a>,
    },
    /// `out[n, o, y, x] = Σ weight[o, c, ky, kx] · input[n, group of o + c, y·stride + ky·dilation - padding, x…]`
    /// (PyTorch's `conv2d`). The padding is 0. Inputs are contiguous.
    Conv2d {
        /// The precision of the products. [`Precision::BF16`] requires f32 operands.
        precision: Precision,
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
    /// The input gradient of [`Conv2d`](Self::Conv2d); also PyTorch's `conv_transpose2d`. Inputs are contiguous.
    Conv2dInputGrad {
        /// The precision of the products. [`Precision::BF16`] requires f32 operands.
        precision: Precision,
        /// The windows and groups.
        conv: Convolution,
        /// The weight.
        weight: View<'a>,
        /// The gradient of the output.
        grad: View<'a>,
        /// At least as many bytes as [`Workspace::Conv2dInputGrad`](super::Workspace::Conv2dInputGrad) requires;
        /// `None` if it requires none.
        workspace: Option<ViewMut<'a>>,
        /// The gradient of the input.
        out: ViewMut<'a>,
    },
    /// The weight gradient of [`Conv2d`](Self::Conv2d). Inputs are contiguous.
    Conv2dWeightGrad {
        /// The precision of the products. [`Precision::BF16`] requires f32 operands.
        precision: Precision,
        /// The windows and groups.
        conv: Convolution,
        /// The input.
        input: View<'a>,
        /// The gradient of the output.
        grad: View<'a>,
        /// At least as many bytes as [`Workspace::Conv2dWeightGrad`](super::Workspace::Conv2dWeightGrad) requires;
        /// `None` if it requires none.
        workspace: Option<ViewMut<'a>>,
        /// The gradient of the weight.
        out: ViewMut<'a>,
    },
    /// PyTorch's `max_pool2d`, `avg_pool2d` and their adaptive forms over the last two axes. The input is contiguous.
    Pool2d {
        /// The kind of pool.
        pool: PoolReduction,
        /// The windows along height and width.
        axes: [PoolAxis; 2],
        /// Shape `[.., h, w]`.
        input: View<'a>,
        /// Shape `[.., oh, ow]`.
        out: ViewMut<'a>,
    },
    /// The gradient of [`Pool2d`](Self::Pool2d). The first of the largest elements receives the gradient of a maximum.
    /// Inputs are contiguous.
    Pool2dGrad {
        /// The kind of pool.
        pool: PoolReduction,
        /// The windows along height and width.
        axes: [PoolAxis; 2],
        /// The input of the pool; only a maximum reads it.
        input: Option<View<'a>>,
        /// The gradient of the output.
        grad: View<'a>,
        /// The gradient of the input.
        out: ViewMut<'a>,
    },
    /// `out = softmax(scale · query · keyᵀ + mask) · value` for each head (PyTorch's `scaled_dot_product_attention`). A
    /// query that attends to no key returns 0.
    Attention {
        /// Queries, keys, values and options.
        of: Attention<'a>,
        /// At least as many bytes as [`Workspace::Attention`](super::Workspace::Attention) requires; `None` if it
        /// requires none.
        workspace: Option<ViewMut<'a>>,
        /// Shape `[heads, queries, values]`.
        out: ViewMut<'a>,
        /// Shape `[heads, queries]`: ln Σ exp of the unmasked scores of each query.
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
        /// At least as many bytes as [`Workspace::Attention`](super::Workspace::Attention) requires; `None` if it
        /// requires none.
        workspace: Option<ViewMut<'a>>,
        /// The gradients of query, key and value.
        out: [ViewMut<'a>; 3],
    },
    /// All steps of a recurrent layer in one direction (PyTorch's `nn.LSTM`, `nn.GRU` and `nn.RNN`).
    /// [`RecurrentCell`](super::RecurrentCell) has the formulas.
    Recurrent {
        /// The cell and the operands that the backward pass shares.
        of: Recurrence<'a>,
        /// The bias of the previous state's product, of shape `[gates · hidden]`.
        bias: View<'a>,
        /// At least as many bytes as [`Workspace::Recurrent`](super::Workspace::Recurrent) requires; `None` if it
        /// requires none.
        workspace: Option<ViewMut<'a>>,
        /// Shape `[sequences · len, gates · hidden]`: the inputs' shares of the gates, which their values replace.
        gates: ViewMut<'a>,
        /// Required if and only if [`RecurrentCell::has_extra`](super::RecurrentCell::has_extra). Shape
        /// `[sequences · len, hidden]`.
        extra: Option<ViewMut<'a>>,
        /// Shape `[sequences · len, hidden]`: the state after each step.
        out: ViewMut<'a>,
    },
    /// The gradients of [`Recurrent`](Self::Recurrent).
    RecurrentGrad {
        /// As in the forward pass.
        of: Recurrence<'a>,
        /// The output `out` of the forward kernel.
        states: View<'a>,
        /// The gradient of `out`.
        grad: View<'a>,
        /// The gradient of the cell after the last step of an LSTM, of shape `[sequences, hidden]`.
        cell_grad: Option<View<'a>>,
        /// As in the forward pass.
        workspace: Option<ViewMut<'a>>,
        /// The output `gates` of the forward kernel, which the gradients of the inputs' shares replace.
        gates: ViewMut<'a>,
        /// The output `extra` of the forward kernel. The gradient of `u` replaces it in a GRU.
        extra: Option<ViewMut<'a>>,
        /// The gradients of the initial state and the initial cell, each of shape `[sequences, hidden]`, if required.
        initial_grads: [Option<ViewMut<'a>>; 2],
    },
    /// `losses[i] = -log softmax(logits[i])[targets[i]]` (PyTorch's `cross_entropy` without reduction). A target outside the
    /// classes is [`Error::IndexOutOfRange`](crate::Error::IndexOutOfRange), before the kernel writes anything.
    CrossEntropy {
        /// Shape `[n, classes]`.
        logits: View<'a>,
        /// Shape `[n]`, i64.
        targets: View<'a>,
        /// Shape `[n]`.
        losses: ViewMut<'a>,
    },
    /// `out = (softmax(logits) - one_hot(targets)) · grad`. A row whose gradient is 0 becomes 0, even if its logits are NaN:
    /// such rows are ignored.
    CrossEntropyGrad {
        /// Shape `[n, classes]`.
        logits: View<'a>,
        /// Shape `[n]`, i64. The backend checks them before it writes.
        targets: View<'a>,
        /// Shape `[n]`.
        grad: View<'a>,
        /// Shape `[n, classes]`.
        out: ViewMut<'a>,
    },
    /// `out[i, j] = input[indices[i, j], j]` for axis 0 (PyTorch's `gather`). An index out of range is
    /// [`Error::IndexOutOfRange`](crate::Error::IndexOutOfRange), before the kernel writes anything.
    Gather {
        /// The elements to select from.
        input: View<'a>,
        /// The indices, i64.
        indices: View<'a>,
        /// The axis.
        axis: usize,
        /// Has the shape of the indices.
        out: ViewMut<'a>,
    },
    /// `out = 0`, then `out[indices[i, j], j] += input[i, j]` in order, for axis 0 (PyTorch's `scatter_add`): the
    /// gradient of [`Gather`](Self::Gather), with the same errors.
    ScatterAdd {
        /// The elements to add.
        input: View<'a>,
        /// The indices, i64.
        indices: View<'a>,
        /// The axis.
        axis: usize,
        /// At least as many bytes as [`Workspace::ScatterAdd`](super::Workspace::ScatterAdd) requires; `None` if it
        /// requires none.
        workspace: Option<ViewMut<'a>>,
        /// The sums.
        out: ViewMut<'a>,
    },
    /// `out[.., c] = (indices[..] == c)` (PyTorch's `one_hot`). Errors as for [`Gather`](Self::Gather).
    OneHot {
        /// The indices, i64.
        indices: View<'a>,
        /// Has the axes of the indices and a last axis of classes.
        out: ViewMut<'a>,
    },
    /// `out[i] = random(key, i)`: random elements from the Philox generator. Element i depends only on the key and i.
    Random {
        /// The distribution.
        distribution: Distribution,
        /// The position in the stream of random bits.
        key: RandomKey,
        /// The output.
        out: ViewMut<'a>,
    },
    /// `values[i] = values[i] · factor`, in place, for floats (PyTorch's `mul_`).
    Scale {
        /// The factor.
        factor: f64,
        /// The values.
        values: ViewMut<'a>,
    },
    /// `values[i] = min(max(values[i], low), high)`, in place, for floats (PyTorch's `clamp_`). NaN stays NaN.
    Clip {
        /// The lower bound.
        low: f64,
        /// The upper bound.
        high: f64,
        /// The values.
        values: ViewMut<'a>,
    },
    /// PyTorch's `optim.SGD`: one step in place. [`SgdStep`] states the formula.
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
    /// PyTorch's `optim.Adam` or `optim.AdamW`: one step in place.
    Adam {
        /// The options of the step.
        step: AdamStep,
        /// The gradient.
        grad: View<'a>,
        /// The running mean of gradients.
        mean: ViewMut<'a>,
        /// The running mean of squared gradients.
        variance: ViewMut<'a>,
        /// The largest elements of `variance` so far. Required if and only if the step has `amsgrad`.
        max_variance: Option<ViewMut<'a>>,
        /// The parameter.
        param: ViewMut<'a>,
    },
    /// PyTorch's `optim.RMSprop`: one step in place. [`RmsPropStep`] states the formula.
    RmsProp {
        /// The options of the step.
        step: RmsPropStep,
        /// The gradient.
        grad: View<'a>,
        /// The running mean of squared gradients.
        variance: ViewMut<'a>,
        /// Required if and only if the step's momentum is not 0.
        momentum: Option<ViewMut<'a>>,
        /// The parameter.
        param: ViewMut<'a>,
    },
    /// The Lion optimizer: one step in place. [`LionStep`] states the formula.
    Lion {
        /// The options of the step.
        step: LionStep,
        /// The gradient.
        grad: View<'a>,
        /// The running mean of gradients.
        mean: ViewMut<'a>,
        /// The parameter.
        param: ViewMut<'a>,
    },
}

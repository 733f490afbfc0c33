//! Backends: the arithmetic of a device, on views of memory that ops have allocated.
//!
//! A backend never allocates tensor memory. Ops take every byte first (outputs, temporaries, and workspaces whose
//! sizes the backend states as pure functions of shapes) and then call it. So all memory is accounted for, and the
//! [`dry`] backend, which computes nothing, makes byte for byte the same requests.
//!
//! Rules for every kernel: inputs may have any layout (strided, broadcast, empty) unless said otherwise; outputs are
//! contiguous, uniquely owned and hold arbitrary values before the call; shapes and element types were checked by the
//! op; results do not depend on the number of threads.

pub mod cpu;
#[cfg(feature = "cuda")]
pub mod cuda;
pub mod dry;

use std::fmt;

use crate::dtype::{DType, Scalar};
use crate::error::{Error, Result};
use crate::shape::Shape;
use crate::storage::{View, ViewMut};

/// A function of one number, with what its backward reads.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Unary {
    /// -x
    Neg,
    /// |x|
    Abs,
    /// x²
    Square,
    /// eˣ
    Exp,
    /// ln x
    Log,
    /// √x
    Sqrt,
    /// max(x, 0)
    Relu,
    /// x Φ(x) with Φ the normal distribution function, by erf
    Gelu,
    /// tanh x
    Tanh,
    /// 1 / (1 + e⁻ˣ)
    Sigmoid,
    /// x + c
    AddScalar(Scalar),
    /// x c
    MulScalar(Scalar),
}

impl Unary {
    /// Whether the derivative is computed from the function's value (true) or from its argument (false).
    #[must_use]
    pub const fn grad_reads_output(self) -> bool {
        matches!(self, Self::Exp | Self::Sqrt | Self::Relu | Self::Tanh | Self::Sigmoid)
    }

    /// The op's name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Neg => "neg",
            Self::Abs => "abs",
            Self::Square => "square",
            Self::Exp => "exp",
            Self::Log => "log",
            Self::Sqrt => "sqrt",
            Self::Relu => "relu",
            Self::Gelu => "gelu",
            Self::Tanh => "tanh",
            Self::Sigmoid => "sigmoid",
            Self::AddScalar(_) => "add_scalar",
            Self::MulScalar(_) => "mul_scalar",
        }
    }

    /// Whether the function is defined for integers too.
    #[must_use]
    pub const fn takes_integers(self) -> bool {
        matches!(
            self,
            Self::Neg | Self::Abs | Self::Square | Self::Relu | Self::AddScalar(_) | Self::MulScalar(_)
        )
    }
}

/// A function of two numbers. Integer arithmetic wraps; integer division by zero gives zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Binary {
    /// a + b
    Add,
    /// a - b
    Sub,
    /// a b
    Mul,
    /// a / b
    Div,
    /// the larger; NaN if either is
    Maximum,
    /// the smaller; NaN if either is
    Minimum,
}

impl Binary {
    /// The op's name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Add => "add",
            Self::Sub => "sub",
            Self::Mul => "mul",
            Self::Div => "div",
            Self::Maximum => "maximum",
            Self::Minimum => "minimum",
        }
    }
}

/// A comparison; the result is [`DType::Bool`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compare {
    /// a = b
    Eq,
    /// a ≠ b
    Ne,
    /// a < b
    Lt,
    /// a ≤ b
    Le,
    /// a > b
    Gt,
    /// a ≥ b
    Ge,
}

impl Compare {
    /// The op's name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Eq => "eq",
            Self::Ne => "ne",
            Self::Lt => "lt",
            Self::Le => "le",
            Self::Gt => "gt",
            Self::Ge => "ge",
        }
    }
}

/// How to fold elements into one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reduce {
    /// Their sum; 0 for none.
    Sum,
    /// The largest; NaN if any is. Not for no elements.
    Max,
    /// The smallest; NaN if any is. Not for no elements.
    Min,
}

impl Reduce {
    /// The op's name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Sum => "sum",
            Self::Max => "max",
            Self::Min => "min",
        }
    }
}

/// How random elements are distributed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Distribution {
    /// Uniform in [low, high).
    Uniform {
        /// The least value.
        low: f64,
        /// One past the largest value.
        high: f64,
    },
    /// Normal, by the Box-Muller transform.
    Normal {
        /// The mean.
        mean: f64,
        /// The standard deviation.
        std: f64,
    },
    /// `value` with probability `p`, else 0.
    Bernoulli {
        /// The probability of `value`.
        p: f64,
        /// The value when it hits.
        value: f64,
    },
}

/// Where in the stream of random bits a fill starts. See [`crate::Rng`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RandomKey {
    /// The generator's seed.
    pub seed: u64,
    /// The number of this fill among those of the generator.
    pub sequence: u64,
}

/// One step of stochastic gradient descent with momentum:
/// g ← g + weight_decay·p; m ← momentum·m + g; p ← p - lr·m (or lr·(g + momentum·m) with Nesterov).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SgdStep {
    /// The learning rate.
    pub lr: f64,
    /// The share of the last step that is kept; without it no state is needed.
    pub momentum: f64,
    /// The pull of parameters towards zero.
    pub weight_decay: f64,
    /// Nesterov's variant.
    pub nesterov: bool,
}

/// One step of Adam (Kingma and Ba 2015), or AdamW (Loshchilov and Hutter 2019) with decoupled decay.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdamStep {
    /// The learning rate.
    pub lr: f64,
    /// The decay of the mean of gradients.
    pub beta1: f64,
    /// The decay of the mean of squared gradients.
    pub beta2: f64,
    /// Keeps the denominator from zero.
    pub epsilon: f64,
    /// The pull of parameters towards zero.
    pub weight_decay: f64,
    /// Whether the decay acts on the parameter directly (AdamW) or through the gradient (Adam).
    pub decoupled: bool,
    /// The number of this step, from 1: for the correction of the means' bias.
    pub step: u64,
}

/// The arithmetic of one device. See the module's text for the rules that hold for every method.
///
/// `op` is the name of the calling op, for errors.
pub trait Backend: Send + Sync + fmt::Debug {
    /// The backend's name.
    fn name(&self) -> &'static str;

    /// Whether nothing is computed, so that there are no values to read.
    fn is_dry(&self) -> bool {
        false
    }

    /// Copies values from the host, in logical order, given as raw bytes of `out`'s element type.
    ///
    /// # Errors
    /// If the transfer fails.
    fn upload(&self, op: &'static str, values: &[u8], out: ViewMut<'_>) -> Result<()>;

    /// Copies values to the host, in logical order, as raw bytes.
    ///
    /// # Errors
    /// [`Error::NoData`] where nothing is computed; else if the transfer fails.
    fn download(&self, op: &'static str, input: View<'_>, values: &mut [u8]) -> Result<()>;

    /// Sets every element to one value.
    ///
    /// # Errors
    /// If the device fails.
    fn fill(&self, op: &'static str, value: Scalar, out: ViewMut<'_>) -> Result<()>;

    /// `out[i] = start + i·step`, for any number type.
    ///
    /// # Errors
    /// If the device fails.
    fn arange(&self, op: &'static str, start: Scalar, step: Scalar, out: ViewMut<'_>) -> Result<()>;

    /// Copies elements of the same shape in logical order, converting the element type: floats to integers cut towards
    /// zero and saturate, anything to bool is whether it is non-zero.
    ///
    /// # Errors
    /// If the device fails.
    fn copy(&self, op: &'static str, input: View<'_>, out: ViewMut<'_>) -> Result<()>;

    /// Copies `input` into the part of `out` that starts at `start` along `axis` (for concatenation); other axes agree.
    ///
    /// # Errors
    /// If the device fails.
    fn copy_into(
        &self,
        op: &'static str,
        input: View<'_>,
        axis: usize,
        start: usize,
        step: usize,
        out: &mut ViewMut<'_>,
    ) -> Result<()>;

    /// out = f(input), element by element.
    ///
    /// # Errors
    /// If the device fails.
    fn unary(&self, op: &'static str, f: Unary, input: View<'_>, out: ViewMut<'_>) -> Result<()>;

    /// out = grad · f'(·), where `saved` is f's output or its input as [`Unary::grad_reads_output`] says.
    ///
    /// # Errors
    /// If the device fails.
    fn unary_grad(
        &self,
        op: &'static str,
        f: Unary,
        saved: View<'_>,
        grad: View<'_>,
        out: ViewMut<'_>,
    ) -> Result<()>;

    /// out = f(lhs, rhs), element by element; both inputs were broadcast to the output's shape.
    ///
    /// # Errors
    /// If the device fails.
    fn binary(
        &self,
        op: &'static str,
        f: Binary,
        lhs: View<'_>,
        rhs: View<'_>,
        out: ViewMut<'_>,
    ) -> Result<()>;

    /// acc = acc + input, element by element.
    ///
    /// # Errors
    /// If the device fails.
    fn accumulate(&self, op: &'static str, input: View<'_>, acc: ViewMut<'_>) -> Result<()>;

    /// out = whether lhs f rhs, element by element; both inputs were broadcast to the output's shape.
    ///
    /// # Errors
    /// If the device fails.
    fn compare(
        &self,
        op: &'static str,
        f: Compare,
        lhs: View<'_>,
        rhs: View<'_>,
        out: ViewMut<'_>,
    ) -> Result<()>;

    /// out = condition ? lhs : rhs, element by element; all were broadcast to the output's shape.
    ///
    /// # Errors
    /// If the device fails.
    fn select(
        &self,
        op: &'static str,
        condition: View<'_>,
        lhs: View<'_>,
        rhs: View<'_>,
        out: ViewMut<'_>,
    ) -> Result<()>;

    /// Bytes of workspace that [`reduce`](Self::reduce) needs: a pure function of the shape, type and axes.
    fn reduce_workspace(&self, f: Reduce, shape: &Shape, axes: &[bool], dtype: DType) -> usize;

    /// Folds the axes for which `axes` is true; `out` has size 1 there. Partial results are cut by the shape alone and
    /// combined in index order.
    ///
    /// # Errors
    /// If the device fails.
    fn reduce(
        &self,
        op: &'static str,
        f: Reduce,
        input: View<'_>,
        axes: &[bool],
        workspace: ViewMut<'_>,
        out: ViewMut<'_>,
    ) -> Result<()>;

    /// out = index (i64) of the first largest (or smallest) element along `axis`; NaN counts as both. `out` has size 1
    /// there. The axis is not empty.
    ///
    /// # Errors
    /// If the device fails.
    fn arg_reduce(
        &self,
        op: &'static str,
        largest: bool,
        input: View<'_>,
        axis: usize,
        out: ViewMut<'_>,
    ) -> Result<()>;

    /// out[.., i, j] = Σₖ lhs[.., i, k] · rhs[.., k, j] for floats; leading axes were broadcast to the output's.
    ///
    /// # Errors
    /// If the device fails.
    fn matmul(&self, op: &'static str, lhs: View<'_>, rhs: View<'_>, out: ViewMut<'_>) -> Result<()>;

    /// out = softmax (or its logarithm) along the last axis.
    ///
    /// # Errors
    /// If the device fails.
    fn softmax(&self, op: &'static str, log: bool, input: View<'_>, out: ViewMut<'_>) -> Result<()>;

    /// The gradient of [`softmax`](Self::softmax) from its output: s·(g - Σ g·s), or g - eˢ·Σ g for the logarithm.
    ///
    /// # Errors
    /// If the device fails.
    fn softmax_grad(
        &self,
        op: &'static str,
        log: bool,
        output: View<'_>,
        grad: View<'_>,
        out: ViewMut<'_>,
    ) -> Result<()>;

    /// From logits `[n, classes]` and i64 targets `[n]`: `losses[i] = -log softmax(logits[i])[targets[i]]`.
    ///
    /// # Errors
    /// [`Error::IndexOutOfRange`] for a target outside the classes, before anything is written.
    fn cross_entropy(
        &self,
        op: &'static str,
        logits: View<'_>,
        targets: View<'_>,
        losses: ViewMut<'_>,
    ) -> Result<()>;

    /// `out = (softmax(logits) - one_hot(targets)) · grad`, of shape `[n, classes]`, with `grad` broadcast to `[n]`.
    ///
    /// # Errors
    /// If the device fails.
    fn cross_entropy_grad(
        &self,
        op: &'static str,
        logits: View<'_>,
        targets: View<'_>,
        grad: View<'_>,
        out: ViewMut<'_>,
    ) -> Result<()>;

    /// out[i.., ..] = input with index `indices[..]` along `axis`, element by element (PyTorch's `gather`).
    ///
    /// # Errors
    /// [`Error::IndexOutOfRange`] before anything is written.
    fn gather(
        &self,
        op: &'static str,
        input: View<'_>,
        indices: View<'_>,
        axis: usize,
        out: ViewMut<'_>,
    ) -> Result<()>;

    /// The adjoint of [`gather`](Self::gather): `out` = 0, then out[.., indices, ..] += input, in index order.
    ///
    /// # Errors
    /// [`Error::IndexOutOfRange`] before anything is written.
    fn scatter_add(
        &self,
        op: &'static str,
        input: View<'_>,
        indices: View<'_>,
        axis: usize,
        out: ViewMut<'_>,
    ) -> Result<()>;

    /// out[.., c] = 1 where `indices[..]` = c, else 0.
    ///
    /// # Errors
    /// [`Error::IndexOutOfRange`] before anything is written.
    fn one_hot(&self, op: &'static str, indices: View<'_>, out: ViewMut<'_>) -> Result<()>;

    /// Random elements; element i depends only on the key and i.
    ///
    /// # Errors
    /// If the device fails.
    fn random(
        &self,
        op: &'static str,
        distribution: Distribution,
        key: RandomKey,
        out: ViewMut<'_>,
    ) -> Result<()>;

    /// One optimiser step in place; `momentum` is there iff the step's momentum is not 0.
    ///
    /// # Errors
    /// If the device fails.
    fn sgd(
        &self,
        op: &'static str,
        step: SgdStep,
        grad: View<'_>,
        momentum: Option<ViewMut<'_>>,
        param: ViewMut<'_>,
    ) -> Result<()>;

    /// One optimiser step in place.
    ///
    /// # Errors
    /// If the device fails.
    fn adam(
        &self,
        op: &'static str,
        step: AdamStep,
        grad: View<'_>,
        mean: ViewMut<'_>,
        variance: ViewMut<'_>,
        param: ViewMut<'_>,
    ) -> Result<()>;
}

/// The error for memory that the host cannot touch: an op was given a view of another device.
pub(crate) fn not_host(op: &'static str) -> Error {
    Error::NoData { op, device: "a device whose memory the host cannot reach".to_owned() }
}

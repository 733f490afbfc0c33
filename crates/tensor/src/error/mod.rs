//! Errors of tensor programs, as data.
//!
//! [`Error`] is the one error type of the framework. Each error names the op; errors about shapes name both
//! shapes and say what would fit. The other types hold the details of one area each: devices, kernels, files and data. They are
//! here, below the code that reports them, so `Error` depends on no other module.

mod data;
mod dlpack;
mod file;
mod gradients;
mod hook;
mod mismatch;
mod profile;

use std::fmt;
use std::ops::Range;

use bfc_core::{
    AllocError, EnvironmentError, MemoryKind, OwnerId, RegistryError, SourceError, printable,
    printable_lines, write_error,
};
use highwater_kernels::error::op_prefix;
pub use highwater_kernels::error::{DeviceFault, KernelError, OperandError, OperandFault, ShapeRule};
use highwater_tracking::here;

pub use self::data::DataError;
pub use self::dlpack::DlpackError;
pub use self::file::FileError;
pub use self::gradients::{UnknownGradient, UnknownGradients};
pub use self::hook::HookError;
pub use self::mismatch::{Difference, Mismatch, Skipped};
pub use self::profile::ParseProfileError;
use crate::shape::{DType, MAX_RANK, Shape};

/// The result of most functions of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

highwater_kernels::kernel_errors! {
    /// An op that failed. Every tensor, pool and optimizer state is unchanged.
    ///
    /// The message of an error includes its cause, so `source()` does not return that cause again.
    ///
    /// [`out_of_memory`](Self::out_of_memory) returns the report of an out-of-memory error.
    ///
    /// A `main` that returns an error prints it with `{:?}`: the message, and the complete report if memory ran out.
    #[derive(Clone, PartialEq, thiserror::Error)]
    #[non_exhaustive]
    pub enum Error {
        /// A tensor that DLPack cannot exchange.
        #[error(transparent)]
        Dlpack(#[from] DlpackError),
        // Shapes.
        /// The op needs exactly one element.
        #[error("{op}: needs one element, got shape {shape}; read several with `to_vec`")]
        NotOneElement {
            /// The op.
            op: &'static str,
            /// The given shape.
            shape: Shape,
        },
        /// An equation about axes is invalid.
        #[error("{op}: {reason} at position {position} of \"{equation}\"", equation = printable(equation))]
        BadEquation {
            /// The op.
            op: &'static str,
            /// The given equation.
            equation: String,
            /// The byte offset in the equation.
            position: usize,
            /// The violated rule.
            reason: &'static str,
        },

        // Element types.
        /// Two element types differ.
        #[error(
            "{op}: element types {lhs} and {rhs} differ (shapes {lhs_shape} and {rhs_shape}); convert one of them with `to_dtype`"
        )]
        DTypeMismatch {
            /// The op.
            op: &'static str,
            /// The left or first type.
            lhs: DType,
            /// The right or second type.
            rhs: DType,
            /// The left or first shape.
            lhs_shape: Shape,
            /// The right or second shape.
            rhs_shape: Shape,
        },

        // Memory and devices.
        /// The allocation of a tensor failed.
        #[error("{op}: cannot allocate shape {shape} of {dtype}: {error}")]
        Allocation {
            /// The op.
            op: &'static str,
            /// The shape of the tensor.
            shape: Shape,
            /// Its element type.
            dtype: DType,
            /// The cause; [`AllocError::OutOfMemory`] contains a report.
            error: AllocError,
        },
        /// The op received tensors of two devices.
        #[error("{op}: tensors are on {}; move one of them first with `to_device`", two_devices(lhs, rhs))]
        DeviceMismatch {
            /// The op.
            op: &'static str,
            /// The first tensor's device.
            lhs: String,
            /// The other tensor's device.
            rhs: String,
        },
        /// The device cannot compute on the memory of this allocator.
        #[error("{device} cannot compute on {kind} memory of the allocator {allocator}", device = printable(device), allocator = printable(allocator))]
        WrongMemory {
            /// The device.
            device: String,
            /// The kind of memory.
            kind: MemoryKind,
            /// The allocator's name.
            allocator: String,
        },
        /// A device's memory is unavailable.
        #[error(transparent)]
        Registry(#[from] RegistryError),
        /// A text does not describe a device profile.
        #[error(transparent)]
        Profile(#[from] ParseProfileError),
        /// The value of an environment variable is invalid.
        #[error(transparent)]
        Environment(#[from] EnvironmentError),

        // Gradients.
        /// The loss of a backward pass has more or fewer than one element.
        #[error(
            "backward: the loss must have one element, got shape {shape}; reduce it with `mean_all` or `sum_all`"
        )]
        NotScalar {
            /// The loss's shape.
            shape: Shape,
        },
        /// No input of the tensor requires a gradient, or it was computed under [`no_grad`](crate::no_grad).
        #[error(
            "backward: no input of this tensor requires a gradient; call `requiring_grad` on an input or use a \
             `Parameter`, and compute this tensor outside of `no_grad`"
        )]
        NoGraph,
        /// The program called `backward` under [`no_grad`](crate::no_grad), on a tensor without a graph.
        #[error(
            "backward: gradients are switched off by `no_grad`; compute this tensor and call `backward` outside of \
             `no_grad` and `no_grad_guard`"
        )]
        GradientsOff,
        /// An earlier backward pass freed the saved tensors of the graph.
        #[error("backward: an earlier backward pass freed the saved tensors of {op}; run the forward pass again")]
        GraphSpent {
            /// The op whose saved tensors are freed.
            op: &'static str,
        },
        /// A parameter changed after the forward pass, and the backward pass reads its old values.
        #[error(
            "backward: {op}{} saved a parameter of shape {shape} that has changed since; run the forward pass again, \
             or compute the gradients at the old values with `backward_stale`",
            in_module(module)
        )]
        StaleBackward {
            /// The op of the backward pass.
            op: &'static str,
            /// The module that contains the op; empty outside of modules.
            module: String,
            /// The shape of the parameter.
            shape: Shape,
        },
        /// A gradient precedes the [conversion](crate::autograd::Parameter::convert) of its parameter. If the
        /// optimizer ignored the gradient, the parameter would never change.
        #[error(
            "{op}: the gradient of {parameter} has element type {given}, but the parameter (shape {shape}) was \
             converted to {is}; run the forward and backward pass again", parameter = printable(parameter)
        )]
        StaleGradient {
            /// The optimizer.
            op: &'static str,
            /// The parameter's path.
            parameter: String,
            /// Its shape.
            shape: Shape,
            /// Its current element type.
            is: DType,
            /// The gradient's element type.
            given: DType,
        },
        /// The optimizer received gradients of parameters that it does not hold. For instance, a field is missing
        /// from a module's parts, or the loss depends on a second model.
        #[error(
            "{op}: {gradients}; create the optimizer with all parameters (a field may have #[module(skip)]), or \
             exclude these gradients with step_partial, split_off or freeze"
        )]
        UnknownParameters {
            /// The optimizer.
            op: &'static str,
            /// The gradients.
            gradients: Box<UnknownGradients>,
        },
        /// The second run of a [`checkpoint`](crate::checkpoint) differs from the first.
        #[error("checkpoint: the second run differs from the first: {what}; the closure must be deterministic", what = printable(what))]
        ReplayDiffers {
            /// The difference.
            what: String,
        },
        /// A parameter received a gradient after its [hook](crate::GradientHook).
        #[error(
            "backward: a parameter received a gradient after it was complete: a checkpointed part uses a tensor of a graph \
             outside of it; pass the tensor as the part's input"
        )]
        LateGradient,
        /// A [hook](crate::GradientHook) failed, for example in another process.
        #[error(transparent)]
        Hook(#[from] HookError),
        /// The norm of the gradients is infinite or NaN.
        #[error("{op}: the norm of the gradients is {norm}; expected a finite number")]
        NotFinite {
            /// The op.
            op: &'static str,
            /// The norm.
            norm: f64,
        },
        /// The op has no backward pass.
        #[error("{op}: the op is not differentiable; call `detach` on its input")]
        NotDifferentiable {
            /// The op.
            op: &'static str,
        },

        // Everything else.
        /// An op failed in a module of a model.
        #[error("in {module}: {error}", module = printable(module))]
        InModule {
            /// The module's path.
            module: String,
            /// The error of the op; see [`root`](Error::root).
            error: Box<Self>,
        },
        /// An external data file is unreadable or invalid.
        #[error(transparent)]
        Data(#[from] DataError),
        /// A tensor file is unreadable or invalid.
        #[error(transparent)]
        File(#[from] FileError),
        /// The loaded arrays belong to another model or optimizer.
        #[error(transparent)]
        Mismatch(#[from] Box<Mismatch>),
        /// A third-party op failed.
        #[error("{op}: {message}", message = printable_lines(message))]
        Custom {
            /// The op.
            op: &'static str,
            /// The op's error message.
            message: String,
        },
    }
}

/// The message, its causes, and the complete report if memory ran out.
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_error(self, f)?;
        self.out_of_memory().map_or(Ok(()), |report| write!(f, "\n\n{}", report.details()))
    }
}

impl From<KernelError> for Error {
    fn from(error: KernelError) -> Self {
        match error {
            KernelError::ShapeMismatch { op, lhs, rhs, rule } => Self::ShapeMismatch { op, lhs, rhs, rule },
            KernelError::BadRank { op, expected, shape } => Self::BadRank { op, expected, shape },
            KernelError::RankTooLarge { op, rank } => Self::RankTooLarge { op, rank },
            KernelError::TooManyElements { op, shape, dtype } => Self::TooManyElements { op, shape, dtype },
            KernelError::ElementCount { op, elements, shape } => Self::ElementCount { op, elements, shape },
            KernelError::AxisOutOfRange { op, axis, shape } => Self::AxisOutOfRange { op, axis, shape },
            KernelError::BadPermutation { op, axes, shape } => Self::BadPermutation { op, axes, shape },
            KernelError::RangeOutOfBounds { op, range, step, axis, shape } => {
                Self::RangeOutOfBounds { op, range, step, axis, shape }
            }
            KernelError::IndexOutOfRange { op, index, len } => Self::IndexOutOfRange { op, index, len },
            KernelError::EmptyReduction { op, shape } => Self::EmptyReduction { op, shape },
            KernelError::Operand(error) => Self::Operand(error),
            KernelError::UnsupportedDType { op, dtype } => Self::UnsupportedDType { op, dtype },
            KernelError::NoHostMemory { op, shape, dtype } => Self::NoHostMemory { op, shape, dtype },
            KernelError::NoData { op, device } => Self::NoData { op, device },
            KernelError::Device { op, device, reason } => Self::Device { op, device, reason },
            KernelError::NoDevice { device, reason } => Self::NoDevice { device, reason },
            KernelError::BadArgument { op, argument, expected, got } => {
                Self::BadArgument { op, argument, expected, got }
            }
        }
    }
}

/// Describes the devices of two tensors. Two runtimes may have devices of the same name.
fn two_devices(lhs: &str, rhs: &str) -> String {
    let (first, second) = (printable(lhs), printable(rhs));
    if lhs == rhs { format!("{first} of two runtimes") } else { format!("{first} and {second}") }
}

/// Formats the module as a suffix; empty outside of modules.
fn in_module(module: &str) -> String {
    if module.is_empty() { String::new() } else { format!(" in {}", printable(module)) }
}

impl Error {
    /// Adds the op's name to an error without one, such as an error of a [`Shape`] that is created outside of
    /// an op.
    #[must_use]
    pub fn in_op(self, name: &'static str) -> Self {
        match self {
            Self::RankTooLarge { op: "", rank } => Self::RankTooLarge { op: name, rank },
            Self::BadArgument { op: "", argument, expected, got } => {
                Self::BadArgument { op: name, argument, expected, got }
            }
            named => named,
        }
    }

    /// Adds the current module's path to an error about tensors or arguments. Errors about memory and devices have
    /// their own reports, which name the module.
    #[must_use]
    pub fn in_module(self) -> Self {
        let module = here().module;
        let has_its_own = matches!(
            self,
            Self::InModule { .. } | Self::Allocation { .. } | Self::NoHostMemory { .. } | Self::Device { .. }
        );
        if has_its_own || module == OwnerId::ROOT {
            return self;
        }
        Self::InModule { module: module.path(), error: Box::new(self) }
    }

    /// Returns the error of the op, without the module that the op ran in.
    ///
    /// ```
    /// use highwater::{Device, Error, Tensor, module};
    /// let x = Tensor::ones(&Device::cpu()?, [5, 7])?;
    /// let _scope = module("encoder");
    /// let error = x.matmul(&x).unwrap_err();
    /// assert!(error.to_string().starts_with("in encoder: matmul: shapes [5, 7] and [5, 7] do not match"));
    /// assert!(matches!(error.root(), Error::ShapeMismatch { op: "matmul", .. }));
    /// # Ok::<(), highwater::Error>(())
    /// ```
    #[must_use]
    pub fn root(&self) -> &Self {
        match self {
            Self::InModule { error, .. } => error.root(),
            root => root,
        }
    }

    /// Returns the out-of-memory report, if memory ran out. The report serializes with serde;
    /// [`highwater_tracking::oom_page`] formats it as HTML.
    ///
    /// ```
    /// use highwater::alloc::Bytes;
    /// use highwater::{Runtime, Tensor};
    /// let device = Runtime::builder().pool(Bytes::mib(1)).build()?.cpu()?;
    /// let error = Tensor::zeros(&device, [1024, 1024]).unwrap_err();
    /// let report = error.out_of_memory().expect("4 MiB do not fit into 1");
    /// assert_eq!(report.requested, 4 << 20);
    /// println!("{}", report.details()); // the holders of memory, and possible remedies
    /// # Ok::<(), highwater::Error>(())
    /// ```
    #[must_use]
    pub fn out_of_memory(&self) -> Option<&bfc_core::OomReport> {
        match self.root() {
            Self::Allocation { error, .. } => error.out_of_memory(),
            _ => None,
        }
    }

    /// Whether the program needs more memory than there is: it ran out of memory, a tensor exceeds the address space, or the
    /// limit of the pool is below one region.
    #[must_use]
    pub fn needs_more_memory(&self) -> bool {
        match self.root() {
            Self::TooManyElements { .. } => true,
            Self::Registry(RegistryError::Source { error, .. })
            | Self::Allocation { error: AllocError::Source { error, .. }, .. } => {
                matches!(error, SourceError::LimitTooSmall { .. })
            }
            _ => self.out_of_memory().is_some(),
        }
    }
}

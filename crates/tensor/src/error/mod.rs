//! What can go wrong in tensor programs, as data.
//!
//! [`Error`] is the one error type of the framework. Each error names the op; those about shapes name both. The types of
//! this folder hold the details of one area each: devices, kernels, files and data. They are here, below the code that
//! reports them, so that no other module has to know that code.

mod data;
mod device;
mod dlpack;
mod file;
mod gradients;
mod mismatch;
mod operand;
mod profile;

use std::ops::Range;

use bfc_core::{AllocError, EnvironmentError, MemoryKind, RegistryError};

pub use self::data::DataError;
pub use self::device::DeviceFault;
pub use self::dlpack::DlpackError;
pub use self::file::FileError;
pub use self::gradients::{UnknownGradient, UnknownGradients};
pub use self::mismatch::{Difference, Mismatch, Skipped};
pub use self::operand::{OperandError, OperandFault};
pub use self::profile::ParseProfileError;
use crate::shape::{DType, MAX_RANK, Shape};

/// The result of most functions of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An op that did not happen. Every tensor, pool and optimizer state is as it was before.
///
/// The text of an error includes its cause, so `source()` does not return that cause again.
///
/// Whether memory ran out, and where it all is, says [`out_of_memory`](Self::out_of_memory).
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Memory that cannot be exchanged with others.
    #[error(transparent)]
    Dlpack(#[from] DlpackError),
    // Shapes.
    /// Two shapes that had to fit together do not.
    #[error("{op}: shapes {lhs} and {rhs} do not match")]
    ShapeMismatch {
        /// The op.
        op: &'static str,
        /// The left or first shape.
        lhs: Shape,
        /// The right or second shape.
        rhs: Shape,
    },
    /// The op does not take tensors of so many axes.
    #[error("{op}: expected {expected}, got shape {shape}")]
    BadRank {
        /// The op.
        op: &'static str,
        /// What it takes.
        expected: &'static str,
        /// What it was given.
        shape: Shape,
    },
    /// More axes than a tensor can have.
    #[error("{}a shape has {rank} axes, more than the {MAX_RANK} that a tensor can have", before(op))]
    RankTooLarge {
        /// The op; empty where a shape was made outside of any.
        op: &'static str,
        /// The number of axes.
        rank: usize,
    },
    /// The elements or their bytes cannot be counted.
    #[error("{op}: shape {shape} of {dtype} has more bytes than can be addressed")]
    TooManyElements {
        /// The op.
        op: &'static str,
        /// The shape.
        shape: Shape,
        /// The element type.
        dtype: DType,
    },
    /// The number of elements given is not that of the shape.
    #[error("{op}: {elements} elements do not make shape {shape}")]
    ElementCount {
        /// The op.
        op: &'static str,
        /// Elements given.
        elements: usize,
        /// Shape asked for.
        shape: Shape,
    },
    /// There is no such axis.
    #[error("{op}: axis {axis} is out of range for shape {shape}")]
    AxisOutOfRange {
        /// The op.
        op: &'static str,
        /// The axis as given; negative ones count from the back.
        axis: isize,
        /// The shape.
        shape: Shape,
    },
    /// The axes given are not a permutation of the tensor's.
    #[error("{op}: axes {axes:?} are not a permutation of those of shape {shape}")]
    BadPermutation {
        /// The op.
        op: &'static str,
        /// The axes as given.
        axes: Vec<usize>,
        /// The shape.
        shape: Shape,
    },
    /// A range that leaves its axis, or a step of 0.
    #[error("{op}: range {range:?} with step {step} is out of bounds for axis {axis} of shape {shape}")]
    RangeOutOfBounds {
        /// The op.
        op: &'static str,
        /// The range as given.
        range: Range<usize>,
        /// The step as given.
        step: usize,
        /// The axis.
        axis: usize,
        /// The shape.
        shape: Shape,
    },
    /// An equation about axes that cannot be followed.
    #[error("{op}: {reason} at position {position} of \"{equation}\"")]
    BadEquation {
        /// The op.
        op: &'static str,
        /// The equation as given.
        equation: String,
        /// Where in it, in bytes from 0.
        position: usize,
        /// What is wrong there.
        reason: &'static str,
    },
    /// An index, given or read from a tensor, that points outside.
    #[error("{op}: index {index} is out of range for {len} entries")]
    IndexOutOfRange {
        /// The op.
        op: &'static str,
        /// The index.
        index: i64,
        /// The number of entries there are.
        len: usize,
    },
    /// A reduction that has no answer for no elements.
    #[error("{op}: no elements along the reduced axes of shape {shape}")]
    EmptyReduction {
        /// The op.
        op: &'static str,
        /// The shape.
        shape: Shape,
    },

    /// An operand of a kernel that does not fit the kernel's other operands, or its device; nothing was written.
    #[error(transparent)]
    Operand(#[from] Box<OperandError>),

    // Element types.
    /// Two element types that had to be the same are not.
    #[error("{op}: element types {lhs} and {rhs} differ (shapes {lhs_shape} and {rhs_shape})")]
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
    /// The op is not defined for this element type.
    #[error("{op}: not defined for {dtype}")]
    UnsupportedDType {
        /// The op.
        op: &'static str,
        /// The element type.
        dtype: DType,
    },

    // Memory and devices.
    /// No memory for a tensor.
    #[error("{op}: no memory for shape {shape} of {dtype}: {error}")]
    Allocation {
        /// The op.
        op: &'static str,
        /// The shape that was to be allocated.
        shape: Shape,
        /// Its element type.
        dtype: DType,
        /// Why not; [`AllocError::OutOfMemory`] carries a report.
        error: AllocError,
    },
    /// The host has no memory of its own, outside of all pools, for a copy of a tensor.
    #[error("{op}: the host has no memory for a copy of shape {shape} of {dtype}")]
    NoHostMemory {
        /// The op.
        op: &'static str,
        /// The tensor's shape.
        shape: Shape,
        /// Its element type.
        dtype: DType,
    },
    /// Tensors of two devices in one op.
    #[error("{op}: tensors are on {}; move one of them first", of_two_devices(lhs, rhs))]
    DeviceMismatch {
        /// The op.
        op: &'static str,
        /// The first tensor's device.
        lhs: String,
        /// The other tensor's device.
        rhs: String,
    },
    /// An allocator whose memory the device cannot compute on.
    #[error("{device} cannot compute on {kind} memory of allocator {allocator}")]
    WrongMemory {
        /// The device.
        device: String,
        /// The kind of memory.
        kind: MemoryKind,
        /// The allocator's name.
        allocator: String,
    },
    /// A value was to be read where nothing is computed.
    #[error(
        "{op}: {device} computes nothing, so there is no data to read; `item_or` and `Device::is_dry` are for programs that run dry too"
    )]
    NoData {
        /// What was tried.
        op: &'static str,
        /// The device.
        device: String,
    },
    /// A device did not take work, or did not finish it.
    #[error("{op}: {device} failed: {reason}")]
    Device {
        /// The op.
        op: &'static str,
        /// The device.
        device: String,
        /// What it said.
        reason: DeviceFault,
    },
    /// There is no such device, or it cannot be used.
    #[error("device {device} cannot be used: {reason}")]
    NoDevice {
        /// The device asked for.
        device: String,
        /// Why not.
        reason: DeviceFault,
    },
    /// A device's memory could not be had.
    #[error(transparent)]
    Registry(#[from] RegistryError),
    /// A text that names no device profile.
    #[error(transparent)]
    Profile(#[from] ParseProfileError),
    /// An environment variable cannot be followed.
    #[error(transparent)]
    Environment(#[from] EnvironmentError),

    // Gradients.
    /// Backward starts at a single number.
    #[error("backward: the loss must have one element, got shape {shape}")]
    NotScalar {
        /// The loss's shape.
        shape: Shape,
    },
    /// Nothing that the tensor depends on asks for a gradient.
    #[error("backward: nothing that this tensor was computed from requires a gradient")]
    NoGraph,
    /// The graph was already used up: its saved tensors are freed as backward passes.
    #[error("backward: {op} was already passed; its saved tensors are freed")]
    GraphSpent {
        /// The op whose saved tensors are gone.
        op: &'static str,
    },
    /// A parameter whose gradient is asked for has changed since the forward of this backward, which reads its former values.
    #[error(
        "backward: {op}{} reads a parameter of shape {shape} as it was before it was changed; run the forward again, or ask for the \
         gradients at the former values by backward_stale",
        in_module(module)
    )]
    StaleBackward {
        /// The op whose backward it is.
        op: &'static str,
        /// The module that the op ran in; empty outside of all.
        module: String,
        /// The shape of what it reads.
        shape: Shape,
    },
    /// A gradient that is of what a parameter was before it was [converted](crate::autograd::Parameter::convert): to pass it over would
    /// leave the parameter as it is, step after step.
    #[error(
        "{op}: a gradient of {given} is of {parameter} (shape {shape}, now {is}) as it was before it was converted; run forward and \
         backward again"
    )]
    StaleGradient {
        /// The optimiser whose step it is.
        op: &'static str,
        /// The parameter's path.
        parameter: String,
        /// Its shape.
        shape: Shape,
        /// Its element type now.
        is: DType,
        /// The gradient's element type.
        given: DType,
    },
    /// A step received gradients of parameters that the optimizer does not hold, for instance because a field is missing from
    /// `visit_parts!` or because the loss depends on a second model.
    #[error(
        "{op}: {gradients}; make the optimizer of all parameters (a field may be missing from visit_parts!), or ignore these \
         gradients by step_partial, split_off or freeze"
    )]
    UnknownParameters {
        /// The optimizer whose step it is.
        op: &'static str,
        /// Which gradients these are.
        gradients: Box<UnknownGradients>,
    },
    /// A part of a program that was to be run again, see [`checkpoint`](crate::checkpoint), did something else.
    #[error("checkpoint: the second run was not like the first: {what}")]
    ReplayDiffers {
        /// What was different.
        what: String,
    },
    /// The gradients are too large to be measured, or no numbers.
    #[error("{op}: the norm of the gradients is {norm}")]
    NotFinite {
        /// The op.
        op: &'static str,
        /// The norm.
        norm: f64,
    },
    /// The op has no backward.
    #[error("{op}: has no gradient")]
    NotDifferentiable {
        /// The op.
        op: &'static str,
    },

    // Everything else.
    /// An argument outside what the op takes.
    #[error("{op}: {argument} must be {expected}, got {got}")]
    BadArgument {
        /// The op.
        op: &'static str,
        /// The argument's name.
        argument: &'static str,
        /// What it must be.
        expected: &'static str,
        /// What it was.
        got: String,
    },
    /// Data read from outside is not as it should be.
    #[error(transparent)]
    Data(#[from] DataError),
    /// A file of numbers is not as it should be.
    #[error(transparent)]
    File(#[from] FileError),
    /// What was loaded is for another model or optimiser.
    #[error(transparent)]
    Mismatch(#[from] Box<Mismatch>),
    /// An op from outside this crate failed.
    #[error("{op}: {message}")]
    Custom {
        /// The op.
        op: &'static str,
        /// What it says.
        message: String,
    },
}

/// Where the tensors of two devices are; each runtime has devices of its own.
fn of_two_devices(lhs: &str, rhs: &str) -> String {
    if lhs == rhs { format!("{lhs} of two runtimes") } else { format!("{lhs} and {rhs}") }
}

/// What stands before the words of an error of an op, if it is one.
fn before(op: &str) -> String {
    if op.is_empty() { String::new() } else { format!("{op}: ") }
}

/// That something is in a module, unless it is outside of all.
fn in_module(module: &str) -> String {
    if module.is_empty() { String::new() } else { format!(" in {module}") }
}

impl Error {
    /// Adds the op's name to an error that has none, such as one of a [`Shape`] made outside of an op.
    #[must_use]
    pub fn in_op(self, name: &'static str) -> Self {
        match self {
            Self::RankTooLarge { op: "", rank } => Self::RankTooLarge { op: name, rank },
            named => named,
        }
    }

    /// The out-of-memory report, if the error is one. It serializes with serde; [`highwater_tracking::oom_page`] formats it
    /// as HTML.
    ///
    /// ```
    /// use highwater::alloc::Bytes;
    /// use highwater::{Runtime, Tensor};
    /// let device = Runtime::builder().pool(Bytes::mib(1)).build()?.cpu()?;
    /// let error = Tensor::zeros(&device, [1024, 1024]).unwrap_err();
    /// let report = error.out_of_memory().expect("4 MiB do not fit into 1");
    /// assert_eq!(report.requested, 4 << 20);
    /// println!("{}", report.details()); // who holds what, and what would have made room
    /// # Ok::<(), highwater::Error>(())
    /// ```
    #[must_use]
    pub fn out_of_memory(&self) -> Option<&bfc_core::OomReport> {
        match self {
            Self::Allocation { error, .. } => error.out_of_memory(),
            _ => None,
        }
    }
}

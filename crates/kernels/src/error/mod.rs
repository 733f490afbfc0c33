//! Errors of shapes, layouts and kernels, as data.
//!
//! The error of tensor programs has all variants of [`KernelError`], so that programs match on one type. The macro
//! [`kernel_errors!`](crate::kernel_errors) declares both, so that each variant and its message stand once.

mod device;
mod operand;
mod shapes;

use std::ops::Range;

use bfc_core::printable;

pub use self::device::DeviceFault;
pub use self::operand::{OperandError, OperandFault};
pub use self::shapes::ShapeRule;
use crate::shape::{DType, MAX_RANK, Shape};

/// The result of most functions of this crate.
pub type Result<T, E = KernelError> = std::result::Result<T, E>;

/// Declares an error enum with the variants that kernels raise, followed by the given variants. The caller imports the
/// names in the fields and messages.
#[doc(hidden)]
#[macro_export]
macro_rules! kernel_errors {
    ($(#[$attribute:meta])* pub enum $Error:ident { $($variants:tt)* }) => {
        $(#[$attribute])*
        pub enum $Error {
            /// Two shapes are incompatible.
            #[error("{op}: shapes {lhs} and {rhs} do not match: {}", rule.explain(lhs, rhs))]
            ShapeMismatch {
                /// The op.
                op: &'static str,
                /// The left or first shape.
                lhs: Shape,
                /// The right or second shape.
                rhs: Shape,
                /// The rule that the shapes break.
                rule: &'static ShapeRule,
            },
            /// The op does not support tensors of this rank.
            #[error("{op}: expected {expected}, got shape {shape}")]
            BadRank {
                /// The op.
                op: &'static str,
                /// The supported ranks.
                expected: &'static str,
                /// The given shape.
                shape: Shape,
            },
            /// A shape has more axes than tensors support.
            #[error("{}a shape has {rank} axes, but tensors support at most {MAX_RANK}", op_prefix(op))]
            RankTooLarge {
                /// The op; empty for a shape that is created outside of an op.
                op: &'static str,
                /// The number of axes.
                rank: usize,
            },
            /// The element count or the byte count overflows.
            #[error("{op}: shape {shape} of {dtype} exceeds the address space")]
            TooManyElements {
                /// The op.
                op: &'static str,
                /// The shape.
                shape: Shape,
                /// The element type.
                dtype: DType,
            },
            /// The number of given elements differs from that of the shape.
            #[error("{op}: shape {shape} does not match {elements} elements; the sizes must multiply to that number")]
            ElementCount {
                /// The op.
                op: &'static str,
                /// The number of given elements.
                elements: usize,
                /// The requested shape.
                shape: Shape,
            },
            /// The axis is out of range.
            #[error("{op}: axis {axis} is out of range for shape {shape}")]
            AxisOutOfRange {
                /// The op.
                op: &'static str,
                /// The given axis; a negative axis counts from the last one.
                axis: isize,
                /// The shape.
                shape: Shape,
            },
            /// The given axes are not a permutation of the tensor's axes.
            #[error(
                "{op}: axes {axes:?} are not a permutation of the axes of shape {shape}; name each axis exactly once"
            )]
            BadPermutation {
                /// The op.
                op: &'static str,
                /// The given axes.
                axes: Vec<usize>,
                /// The shape.
                shape: Shape,
            },
            /// A range exceeds its axis, or the step is 0.
            #[error("{op}: range {range:?} with step {step} is out of bounds for axis {axis} of shape {shape}")]
            RangeOutOfBounds {
                /// The op.
                op: &'static str,
                /// The given range.
                range: Range<usize>,
                /// The given step.
                step: usize,
                /// The axis.
                axis: usize,
                /// The shape.
                shape: Shape,
            },
            /// An index, given or read from a tensor, is out of range.
            #[error("{op}: index {index} is out of range for length {len}")]
            IndexOutOfRange {
                /// The op.
                op: &'static str,
                /// The index.
                index: i64,
                /// The number of entries.
                len: usize,
            },
            /// The reduction is undefined for zero elements.
            #[error("{op}: cannot reduce zero elements along an axis of shape {shape}")]
            EmptyReduction {
                /// The op.
                op: &'static str,
                /// The shape.
                shape: Shape,
            },
            /// A kernel's operand does not match the other operands or the device. The kernel wrote nothing.
            #[error("{0}")]
            Operand(Box<OperandError>),
            /// The op does not support this element type.
            #[error("{op}: does not support element type {dtype}; convert with `to_dtype`")]
            UnsupportedDType {
                /// The op.
                op: &'static str,
                /// The element type.
                dtype: DType,
            },
            /// The host has too little memory outside of all pools for a copy of a tensor.
            #[error("{op}: not enough host memory for a copy of shape {shape} of {dtype}")]
            NoHostMemory {
                /// The op.
                op: &'static str,
                /// The tensor's shape.
                shape: Shape,
                /// Its element type.
                dtype: DType,
            },
            /// The program read a value from a dry device, which stores no data.
            #[error(
                "{op}: {device} is a dry device, which has no data to read; check `Device::is_dry` first, or read losses with `item_or`", device = printable(device)
            )]
            NoData {
                /// The op that reads.
                op: &'static str,
                /// The device.
                device: String,
            },
            /// A device failed to start or to finish its work.
            #[error("{op}: {device} failed: {reason}", device = printable(device))]
            Device {
                /// The op.
                op: &'static str,
                /// The device.
                device: String,
                /// The cause.
                reason: DeviceFault,
            },
            /// The device does not exist or is unusable.
            #[error("device {device} cannot be used: {reason}", device = printable(device))]
            NoDevice {
                /// The requested device.
                device: String,
                /// The cause.
                reason: DeviceFault,
            },
            /// An argument is out of range.
            #[error("{op}: {argument} must be {expected}, got {got}", got = printable(got))]
            BadArgument {
                /// The op.
                op: &'static str,
                /// The argument's name.
                argument: &'static str,
                /// The accepted values.
                expected: &'static str,
                /// The given value.
                got: String,
            },
            $($variants)*
        }
    };
}

kernel_errors! {
    /// A shape, layout or kernel that failed. The kernel wrote nothing, unless the device failed.
    // Exhaustive, so that a larger error can convert each variant.
    #[derive(Clone, PartialEq, thiserror::Error)]
    pub enum KernelError {}
}

bfc_core::debug_as_message!(KernelError);

/// Formats the op as the prefix of a message; empty if there is no op.
#[doc(hidden)]
#[must_use]
pub fn op_prefix(op: &str) -> String {
    if op.is_empty() { String::new() } else { format!("{op}: ") }
}

/// The error for memory that the host cannot access: an op got a view of another device.
pub(crate) fn not_host(op: &'static str) -> KernelError {
    KernelError::NoData { op, device: "a device whose memory the host cannot reach".to_owned() }
}

//! Errors of kernel operands, as data.

use crate::shape::{DType, Shape};
use bfc_core::printable;

/// A kernel's operand that does not match the other operands or the device. The kernel did not run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{op}: operand `{operand}` of shape {shape} {fault}")]
pub struct OperandError {
    /// The op.
    pub op: &'static str,
    /// The operand, by the name of its field in [`Kernel`](crate::families::Kernel).
    pub operand: &'static str,
    /// The operand's shape.
    pub shape: Shape,
    /// The violated rule.
    pub fault: OperandFault,
}

/// The rule that a kernel's operand violates.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OperandFault {
    /// The shape does not match the shape of another operand.
    #[error("does not match `{other}` of shape {other_shape}: {rule}")]
    Shape {
        /// The other operand.
        other: &'static str,
        /// The other operand's shape.
        other_shape: Shape,
        /// The rule for the two shapes.
        rule: &'static str,
    },
    /// The element type differs from the required type.
    #[error("has element type {dtype}, expected {expected}: convert it with `to_dtype`")]
    DType {
        /// The operand's type.
        dtype: DType,
        /// The required type.
        expected: DType,
    },
    /// The memory belongs to another device.
    #[error("is not on {device}: move it there with `to_device`", device = printable(device))]
    Device {
        /// The device that runs the kernel.
        device: String,
    },
    /// The elements are not contiguous, or an output does not start at the start of its buffer.
    #[error("is not contiguous: copy it with `contiguous`")]
    Strided,
    /// A required operand is missing, or an unsupported operand is given.
    #[error("is {}", if *.required { "missing" } else { "given, but the kernel does not use it" })]
    Presence {
        /// Whether the kernel requires the operand.
        required: bool,
    },
    /// A workspace is smaller than the kernel's [`Workspace`](crate::workspace::Workspace) requires.
    #[error("has {bytes} bytes, but the kernel requires {required}: allocate it with `OpContext::workspace`")]
    Workspace {
        /// The workspace's bytes.
        bytes: usize,
        /// The required bytes.
        required: usize,
    },
}

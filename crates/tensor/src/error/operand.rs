//! Operands that do not fit their kernel, as data.

use crate::shape::{DType, Shape};

/// A kernel's operand that does not fit the kernel's other operands, or its device. The kernel did not run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{op}: operand `{operand}` of shape {shape} {fault}")]
pub struct OperandError {
    /// The op.
    pub op: &'static str,
    /// The operand, by the name of its field in [`Kernel`](crate::backend::Kernel).
    pub operand: &'static str,
    /// The operand's shape.
    pub shape: Shape,
    /// What does not fit.
    pub fault: OperandFault,
}

/// What does not fit about an operand.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OperandFault {
    /// Its shape does not fit another operand's.
    #[error("does not fit `{other}` of shape {other_shape}: {rule}")]
    Shape {
        /// The other operand.
        other: &'static str,
        /// The other operand's shape.
        other_shape: Shape,
        /// What the kernel requires of the two.
        rule: &'static str,
    },
    /// Its element type is not the one that the kernel requires.
    #[error("has element type {dtype}, and {expected} is required: convert it with `to_dtype`")]
    DType {
        /// The operand's type.
        dtype: DType,
        /// The type that is required.
        expected: DType,
    },
    /// Its memory belongs to another device.
    #[error("is not on {device}: move it there with `to_device`")]
    Device {
        /// The device that runs the kernel.
        device: String,
    },
    /// Its elements do not lie in row-major order without gaps; an output also starts where its buffer does.
    #[error("is not contiguous: copy it with `contiguous`")]
    Strided,
    /// It must be there and is not, or the other way round.
    #[error("is {}", if *.required { "missing" } else { "given, and the kernel does not use it" })]
    Presence {
        /// Whether the kernel requires the operand.
        required: bool,
    },
    /// A workspace is smaller than the backend's [`workspace`](crate::backend::Backend::workspace) says.
    #[error("has {bytes} bytes, and the kernel takes {required}: ask `OpContext::workspace` for it")]
    Workspace {
        /// The workspace's bytes.
        bytes: usize,
        /// The bytes that the kernel takes.
        required: usize,
    },
}

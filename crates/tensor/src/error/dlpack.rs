//! Errors of the exchange of tensors through DLPack.

use crate::shape::{DType, MAX_RANK};
use bfc_core::printable;

/// The reason why a DLPack import or export fails.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DlpackError {
    /// The imported elements are not in host memory.
    #[error(
        "dlpack: expected host memory, got memory of DLPack's device type {device_type}; copy the tensor to the host first"
    )]
    NotHost {
        /// DLPack's number of the device type.
        device_type: i32,
    },
    /// The exported tensor is not in host memory.
    #[error("dlpack: expected host memory, got memory of {device}; copy the tensor to the CPU first", device = printable(device))]
    NotHostDevice {
        /// The device.
        device: String,
    },
    /// Tensors do not support this element type.
    #[error("dlpack: no element type has code {code}, {bits} bits and {lanes} lanes")]
    DType {
        /// DLPack's code for the kind of value.
        code: u8,
        /// Bits of a value.
        bits: u8,
        /// Values per element.
        lanes: u16,
    },
    /// The number of axes is negative or above the maximum.
    #[error("dlpack: expected 0 to {MAX_RANK} axes, got {axes}")]
    Axes {
        /// The given number of axes.
        axes: i32,
    },
    /// An axis has a negative size or stride.
    #[error("dlpack: axis {axis} has size {size} and stride {stride}; neither may be negative")]
    Axis {
        /// The axis.
        axis: usize,
        /// Its size.
        size: i64,
        /// The distance between neighbors along the axis, in elements.
        stride: i64,
    },
    /// The elements exceed the address space.
    #[error("dlpack: the elements exceed the address space")]
    TooLarge,
    /// The tensor has elements, but the pointer to them or to the shape is null.
    #[error("dlpack: {what} is a null pointer")]
    Null {
        /// The name of the missing pointer.
        what: &'static str,
    },
    /// The elements violate the alignment of their type.
    #[error("dlpack: address {address:#x} is not aligned for elements of type {dtype}")]
    Unaligned {
        /// The address of the elements.
        address: u64,
        /// The element type.
        dtype: DType,
    },
    /// A boolean is neither 0 nor 1.
    #[error("dlpack: expected 0 or 1 for a boolean, got {value}")]
    InvalidBool {
        /// The byte.
        value: u8,
    },
}

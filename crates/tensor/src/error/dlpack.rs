//! Why a tensor cannot be exchanged through DLPack.

use crate::shape::{DType, MAX_RANK};

/// Why a managed tensor is not taken, or a tensor not given.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DlpackError {
    /// The elements lie in memory that is not the host's.
    #[error("dlpack: only memory of the host is exchanged, not that of DLPack's device type {device_type}")]
    NotHost {
        /// DLPack's number of it.
        device_type: i32,
    },
    /// A tensor's own device is not the host.
    #[error("dlpack: only memory of the host is exchanged, not that of {device}")]
    NotHostDevice {
        /// The device.
        device: String,
    },
    /// There is no such element type here.
    #[error("dlpack: no element type has code {code}, {bits} bits and {lanes} lanes")]
    DType {
        /// The kind of number, as DLPack numbers it.
        code: u8,
        /// Bits of a number.
        bits: u8,
        /// Numbers of an element.
        lanes: u16,
    },
    /// The number of axes is negative or more than a tensor can have.
    #[error("dlpack: a tensor has up to {MAX_RANK} axes, not {axes}")]
    Axes {
        /// The number as given.
        axes: i32,
    },
    /// An axis has a size or a stride below 0.
    #[error("dlpack: axis {axis} has size {size} and stride {stride}; neither may be negative")]
    Axis {
        /// The axis.
        axis: usize,
        /// Its size.
        size: i64,
        /// The distance of neighbours along it, in elements.
        stride: i64,
    },
    /// The elements reach beyond what can be addressed.
    #[error("dlpack: the elements reach beyond the address space")]
    TooLarge,
    /// There are elements, but a pointer to them or to their shape is null.
    #[error("dlpack: {what} is a null pointer")]
    Null {
        /// What is not there.
        what: &'static str,
    },
    /// The elements do not lie as their type must.
    #[error("dlpack: elements of type {dtype} cannot lie at {address:#x}")]
    Unaligned {
        /// Where they lie.
        address: u64,
        /// Their type.
        dtype: DType,
    },
    /// A truth value is neither 0 nor 1.
    #[error("dlpack: a truth value is {value}")]
    Truth {
        /// The byte.
        value: u8,
    },
}

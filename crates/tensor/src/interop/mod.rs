//! Exchange of tensors with other code: DLPack, `ndarray`, and memory that other code owns.
//!
//! Imports through DLPack and [`Tensor::from_owner`](crate::Tensor::from_owner) copy nothing. Their memory counts as external in the
//! accounts of the device.

pub mod dlpack;
mod external;
mod ndarray;

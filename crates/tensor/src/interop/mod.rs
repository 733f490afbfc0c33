//! Exchange of tensors with other code: DLPack, `ndarray`, memory that other code owns, and mapped files.
//!
//! Imports through DLPack, [`Tensor::from_owner`](crate::Tensor::from_owner) and [`Tensor::from_mapped`](crate::Tensor::from_mapped) copy
//! nothing. Their memory counts as external in the accounts of the device.

pub mod dlpack;
mod external;
mod mapped;
mod ndarray;

pub use mapped::MappedFile;

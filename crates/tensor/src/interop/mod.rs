//! Exchange of tensors with other libraries: DLPack and `ndarray`.
//!
//! Nothing is copied on the way in through DLPack. The memory counts as external in the accounts of the device.

pub mod dlpack;
mod ndarray;

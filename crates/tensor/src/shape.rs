//! Element types and shapes, from the crate `highwater-kernels`.

pub use highwater_kernels::shape::{DType, Element, MAX_RANK, RawElement, Scalar, Shape};

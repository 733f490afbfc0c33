//! CPU implementations: loops over slices, shared among the threads of the backend's own pool.
//!
//! Kernels are generic over the traits of `number`; `dispatch` selects the element type at run time. `operands` converts
//! views of any layout to slices, so that elementwise functions process only slices. `parallel` splits work by shape, so
//! that results do not depend on the number of threads. The implementation of each family of kernels is in its folder.

pub(crate) mod angle;
pub(crate) mod convert;
pub(crate) mod dispatch;
pub(crate) mod elements;
pub(crate) mod erf;
pub(crate) mod exp;
pub(crate) mod fold;
pub(crate) mod gemm;
pub(crate) mod halves;
pub(crate) mod loop_nest;
pub(crate) mod number;
pub(crate) mod operands;
pub(crate) mod parallel;
pub(crate) mod power;
pub(crate) mod scalar;
pub(crate) mod short;
pub(crate) mod simd;
pub(crate) mod sums;
pub(crate) mod tiles;
pub(crate) mod transfer;

//! Kernels and backends, from the crate `highwater-kernels`.
//!
//! A backend never allocates tensor memory. Ops first allocate outputs, temporaries and [workspaces](kernels::Workspace),
//! whose sizes are pure functions of shapes. Then they pass the backend a [`Kernel`] with its operands:
//! [`OpContext::compute`](crate::OpContext::compute) checks and runs it. So the accounts contain all memory, and the
//! [`dry`] backend, which computes nothing, makes exactly the same requests.

pub use highwater_kernels::backend::{Backend, Checked, dry};
pub use highwater_kernels::error::{OperandError, OperandFault};
pub use highwater_kernels::families::{
    self as kernels, Activation, Binary, BlockFormat, Compare, Distribution, Domain, GradReads, Identity,
    Kernel, RandomKey, RecurrentCell, Reduce, ReduceDomain, Unary,
};
pub use highwater_kernels::rules::DeviceRules;
pub use highwater_kernels::step_graphs::{StepCounts, StepGraphs};
pub use highwater_kernels::step_time::{Limit, StepTime};
pub use highwater_kernels::window::{Convolution, PoolAxis, PoolReduction, PoolWindow, Window};
pub(crate) use highwater_kernels::{
    backend::{DeviceRef, check},
    binary_functions, comparisons, operands, unary_functions,
};

pub use crate::speed::DeviceSpeed;

/// The CPU backend.
pub mod cpu {
    pub use highwater_kernels::backend::cpu::CpuBackend;
}

/// The CUDA backend.
#[cfg(feature = "cuda")]
pub mod cuda {
    pub use highwater_kernels::backend::cuda::CudaBackend;
}

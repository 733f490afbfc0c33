//! Launches of GPU kernels: jobs from views, and the calls to a device.

pub(crate) mod factors;
pub(crate) mod launch;
pub(crate) mod rows;
mod step_graphs;
pub(crate) mod transfer;

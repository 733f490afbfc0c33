//! GPU kernels: their sources, jobs from views, and the calls to a device.

pub(crate) mod launch;
pub(crate) mod rows;
mod sources;
mod step_graphs;
pub(crate) mod transfer;

pub use self::sources::Family;

//! Repeated steps as CUDA graphs.
//!
//! [`Held`] compares the work of a step with that of earlier runs and submits a whole stretch as one graph if nothing but
//! arguments changed. [`Work`] is one kernel or product as a value; [`Issue`] is a device that runs work and keeps graphs.
//! [`Draft`] and [`Graph`] wrap the graphs of the CUDA driver.

mod batcher;
mod cuda_graph;
mod record;
mod work;

pub(crate) use batcher::Held;
pub(crate) use cuda_graph::{Draft, Graph, Node};
pub(crate) use work::{Issue, Work};

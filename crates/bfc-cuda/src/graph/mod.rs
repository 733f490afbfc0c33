//! Repeated steps as CUDA graphs.
//!
//! [`GraphBatcher`] compares the commands of a step with those of earlier runs. It submits a whole segment as one graph if
//! only kernel arguments changed. A [`Command`] is one kernel or product as a value; an [`Executor`] is a device that runs
//! commands and builds graphs. [`GraphBuilder`] and [`CudaGraph`] wrap the graphs of the CUDA driver.

mod batcher;
mod command;
mod cuda_graph;
mod record;

pub(crate) use batcher::GraphBatcher;
pub(crate) use command::{Command, Executor};
pub(crate) use cuda_graph::{CudaGraph, GraphBuilder, GraphNode, arguments};

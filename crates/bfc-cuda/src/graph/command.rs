//! One command for a device, as a value that can be held back, and the devices that execute commands.

use std::sync::Arc;

use crate::compute::{ComputeError, Product};
use crate::kernels::{Job, JobTable, KernelId};

/// A kernel launch or a matrix product.
#[derive(Clone, Debug, PartialEq)]
#[expect(clippy::large_enum_variant, reason = "most commands are kernels")]
pub(crate) enum Command {
    /// A kernel with this number of blocks, and the table that it takes besides the job.
    Kernel { kernel: KernelId, blocks: u32, job: Job, table: Option<Arc<JobTable>> },
    /// A matrix product. It does nothing unless the library supports it.
    Product { product: Product, supported: bool },
}

impl Command {
    /// Whether a graph node of this command can be updated to the other one: only kernel arguments may differ.
    pub(crate) fn can_become(&self, other: &Self) -> bool {
        match (self, other) {
            (
                Self::Kernel { kernel, blocks, .. },
                Self::Kernel { kernel: other, blocks: other_blocks, .. },
            ) => kernel == other && blocks == other_blocks,
            (Self::Product { product, .. }, Self::Product { product: other, .. }) => product == other,
            _ => false,
        }
    }

    /// Whether both commands are identical bit by bit.
    pub(crate) fn is_identical(&self, other: &Self) -> bool {
        match (self, other) {
            (
                Self::Kernel { kernel, blocks, job, table },
                Self::Kernel { kernel: other, blocks: other_blocks, job: other_job, table: other_table },
            ) => {
                kernel == other
                    && blocks == other_blocks
                    && job.is_identical(other_job)
                    && table == other_table
            }
            _ => self == other,
        }
    }

    /// Whether the device executes the command: false for products that the library does not support.
    pub(crate) const fn is_supported(&self) -> bool {
        match self {
            Self::Kernel { .. } => true,
            Self::Product { supported, .. } => *supported,
        }
    }

    /// Returns the command with the device's answer to [`is_supported`](Self::is_supported).
    pub(crate) fn with_support(mut self, answer: bool) -> Self {
        if let Self::Product { supported, .. } = &mut self {
            *supported = answer;
        }
        self
    }
}

/// A device that executes commands in order and can keep several as a graph, which it launches in one call.
///
/// # Safety
/// As for [`Compute`](crate::Compute).
pub(crate) unsafe trait Executor: Send + Sync {
    /// A graph of commands.
    type Graph: Send;

    /// Submits one command. Returns false for a product that the library does not support.
    ///
    /// # Safety
    /// As [`Compute::launch`](crate::Compute::launch) and [`Compute::multiply`](crate::Compute::multiply).
    unsafe fn submit(&self, command: &Command) -> Result<bool, ComputeError>;

    /// Builds a graph of commands that were all submitted one by one before. Executes none of them.
    ///
    /// # Safety
    /// As [`submit`](Self::submit), until the graph is launched.
    unsafe fn build_graph(&self, commands: &[Command]) -> Result<Self::Graph, ComputeError>;

    /// Updates the arguments of the kernel at `index`. A graph must not be used after this failed.
    ///
    /// # Safety
    /// As [`build_graph`](Self::build_graph).
    unsafe fn update_kernel(
        &self,
        graph: &mut Self::Graph,
        index: usize,
        command: &Command,
    ) -> Result<(), ComputeError>;

    /// Submits all commands of a graph.
    ///
    /// # Safety
    /// As [`submit`](Self::submit), for the commands that the graph was built with or updated to.
    unsafe fn launch_graph(&self, graph: &Self::Graph) -> Result<(), ComputeError>;

    /// Releases unused device memory for calls outside of the pools. Returns whether there was some. The batcher calls this
    /// without its lock.
    fn release_memory(&self) -> bool {
        false
    }
}

//! The interface of devices that replay training steps as graphs.

use crate::error::Result;

/// A device that records the kernels of a repeated step and launches them as a graph. See `StepGraph` of `highwater-tensor`.
pub trait StepGraphs {
    /// Begins a run of a step. From now on the device may delay kernels until values are copied or the run ends. Returns
    /// false, and begins nothing, if another run has not ended.
    fn begin(&self, step: u64) -> bool;

    /// Submits the remaining kernels and ends the run.
    ///
    /// # Errors
    /// If the device fails.
    fn end(&self) -> Result<()>;

    /// Frees the graphs of a step that will not run again.
    fn forget(&self, step: u64);

    /// Counts how the kernels of a step were launched.
    fn counts(&self, step: u64) -> StepCounts;
}

/// Counts how the kernels of a `StepGraph` were launched, over all runs. All counts are 0 if the device
/// does not support graphs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct StepCounts {
    /// Runs that have ended.
    pub runs: u64,
    /// Kernels and matrix products that were launched directly.
    pub singly: u64,
    /// Kernels and matrix products that were launched in graphs.
    pub in_graphs: u64,
    /// Graph launches.
    pub graphs: u64,
    /// Graphs that were built and instantiated.
    pub prepared: u64,
    /// Kernel nodes whose parameters were updated before a launch, for instance because of other addresses.
    pub replaced: u64,
    /// The reason why the device could not build a graph, if that ever happened. Then kernels are launched directly.
    pub refused: Option<String>,
}

//! The interface of devices that run steps as graphs.

use crate::error::Result;

/// Work that comes again and again, which a device may be given all at once. See [`StepGraph`](crate::StepGraph).
pub trait Steps {
    /// Begins a run of the step of this number: what it computes may be held back from now on, until values are copied or the run
    /// ends. False if another run has not ended: then nothing has begun.
    fn begin(&self, step: u64) -> bool;

    /// Ends the run, once all of its work is given to the device.
    ///
    /// # Errors
    /// If the device fails.
    fn end(&self) -> Result<()>;

    /// Forgets a step that will not be run again.
    fn forget(&self, step: u64);

    /// How the work of a step was given.
    fn counts(&self, step: u64) -> StepCounts;
}

/// How the work of a [`StepGraph`](crate::StepGraph) was given to the device, over all runs. All is 0 where the device has no graphs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct StepCounts {
    /// Runs that have ended.
    pub runs: u64,
    /// Kernels and products given one by one.
    pub singly: u64,
    /// Kernels and products given as parts of graphs.
    pub in_graphs: u64,
    /// Graphs started.
    pub graphs: u64,
    /// Graphs prepared.
    pub prepared: u64,
    /// Kernels that had to be changed in a graph before it was started: other addresses, other numbers.
    pub replaced: u64,
    /// Why the device made no graph, if it ever refused. Then kernels are given one by one.
    pub refused: Option<String>,
}

//! Steps: work that comes again and again, and is given to the device as graphs.

/// A step that is run many times, by a number that the caller chooses: the same number is the same step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StepId(pub u64);

/// How the work of a step was given to the device, over all its runs.
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
    /// Kernels of graphs that got another job than in the run before.
    pub replaced: u64,
    /// Why the device made no graph, if it ever refused.
    pub refused: Option<String>,
}

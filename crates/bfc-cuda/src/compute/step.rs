//! Steps: repeated work that is submitted as graphs.

/// A repeated step, identified by a number that the caller chooses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StepId(pub u64);

/// How the work of a step was submitted, over all its runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct GraphCounts {
    /// Finished runs.
    pub runs: u64,
    /// Kernels and products submitted one by one.
    pub singly: u64,
    /// Kernels and products submitted in graphs.
    pub in_graphs: u64,
    /// Graphs launched.
    pub graphs: u64,
    /// Graphs built.
    pub prepared: u64,
    /// Kernels of graphs whose arguments changed.
    pub replaced: u64,
    /// Why the device refused a graph, if it ever did.
    pub refused: Option<String>,
}

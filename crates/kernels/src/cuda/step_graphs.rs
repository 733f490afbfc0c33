//! Step graphs as CUDA graphs, which `bfc-cuda` records and launches.

use bfc_cuda::StepId;

use super::launch::Launcher;
use crate::error::Result;
use crate::step_graphs::{StepCounts, StepGraphs};

impl StepGraphs for Launcher {
    fn begin(&self, step: u64) -> bool {
        self.compute().begin_step(StepId(step))
    }

    fn end(&self) -> Result<()> {
        self.compute().end_step().map_err(|error| self.failed("step", &error))
    }

    fn forget(&self, step: u64) {
        self.compute().forget_step(StepId(step));
    }

    fn counts(&self, step: u64) -> StepCounts {
        let counts = self.compute().step_counts(StepId(step));
        StepCounts {
            runs: counts.runs,
            singly: counts.singly,
            in_graphs: counts.in_graphs,
            graphs: counts.graphs,
            prepared: counts.prepared,
            replaced: counts.replaced,
            refused: counts.refused,
        }
    }
}

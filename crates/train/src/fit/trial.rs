//! One dry run of the program with a plan, on each rank.

use bfc_core::Category;
use highwater_distributed::World;
use highwater_nn::recompute::{Observed, observe};
use highwater_tensor::{Device, DryRun, DryRunOptions, Error, Result, StepTime, record_passes};

use super::error::FitError;
use super::plan::Plan;
use super::time::last_step;

/// A trial runs the first, the second and the last rank, which differ most: the first ones own at least as many parameters as
/// later ones. A rehearsal runs all ranks, if there are at most this many.
const ALL_RANKS: usize = 8;

/// A program, and the number of its runs.
pub(super) struct Trial<P> {
    program: P,
    pub(super) runs: u32,
}

/// The memory and the time of a plan that fits: the largest of all ranks.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Tried {
    pub(super) peak_bytes: u64,
    pub(super) work: StepTime,
}

pub(super) enum TrialResult {
    Fits(Tried),
    DoesNotFit(Error),
}

impl<P: FnMut(&Device, &Plan, &World) -> Result<()>> Trial<P> {
    pub(super) const fn new(program: P) -> Self {
        Self { program, runs: 0 }
    }

    /// Runs the program as rank 0, for few steps and micro-batches.
    pub(super) fn run_first(&mut self, options: &DryRunOptions, plan: &Plan) -> Result<Tried, FitError> {
        self.run_rank(options, (plan, &plan.for_trial()), 0)
    }

    /// Runs the program as the ranks of the plan, for few steps and micro-batches.
    pub(super) fn run(&mut self, options: &DryRunOptions, plan: &Plan) -> Result<TrialResult, FitError> {
        self.run_ranks(options, plan, &plan.for_trial())
    }

    /// Runs the program as the ranks of the plan, with all micro-batches, and with the epochs of a dry run.
    pub(super) fn rehearse(&mut self, options: &DryRunOptions, plan: &Plan) -> Result<TrialResult, FitError> {
        self.run_ranks(options, plan, &plan.for_rehearsal())
    }

    fn run_ranks(
        &mut self,
        options: &DryRunOptions,
        plan: &Plan,
        trial: &Plan,
    ) -> Result<TrialResult, FitError> {
        let mut most = Tried::default();
        let last = plan.ranks - 1;
        let runs_all = trial.is_rehearsal() && plan.ranks <= ALL_RANKS;
        for rank in (0..plan.ranks).filter(|rank| runs_all || *rank < 2 || *rank == last) {
            match self.run_rank(options, (plan, trial), rank) {
                Ok(tried) => {
                    most.peak_bytes = most.peak_bytes.max(tried.peak_bytes);
                    if tried.work.seconds > most.work.seconds {
                        most.work = tried.work;
                    }
                }
                Err(FitError::Highwater(error)) if error.needs_more_memory() => {
                    return Ok(TrialResult::DoesNotFit(error));
                }
                Err(error) => return Err(error),
            }
        }
        Ok(TrialResult::Fits(most))
    }

    fn run_rank(
        &mut self,
        options: &DryRunOptions,
        (plan, trial): (&Plan, &Plan),
        rank: usize,
    ) -> Result<Tried, FitError> {
        let (run, passes) = record_passes(|| options.run(|device| self.run_on(device, trial, rank)));
        let run = run?;
        let ends: Option<Vec<StepTime>> = passes.iter().map(|pass| pass.estimated).collect();
        let work = ends.and_then(|ends| last_step(&ends, trial.accumulate, plan.accumulate));
        let mut work = work.ok_or_else(|| FitError::NoStep { plan: Box::new(plan.clone()) })?;
        let seconds = exchange_seconds(&run, plan.ranks);
        work.seconds += seconds;
        work.memory_seconds += seconds;
        Ok(Tried { peak_bytes: run.peak.in_use, work })
    }

    /// Runs the program as rank 0, and measures the blocks of its chains at a level.
    pub(super) fn observe(&mut self, options: &DryRunOptions, plan: &Plan, level: usize) -> Result<Observed> {
        let plan = plan.for_trial();
        let run = options.run(|device| {
            let (result, observed) = observe(level, || self.run_on(device, &plan, 0));
            result.map(|()| observed)
        });
        Ok(run?.result)
    }

    /// Runs the program as one rank on any device, as it is told by a plan.
    pub(super) fn run_on(&mut self, device: &Device, plan: &Plan, rank: usize) -> Result<()> {
        self.runs += 1;
        let world = world(plan, rank)?;
        let _plan = plan.enter()?;
        (self.program)(device, plan, &world)
    }
}

/// Returns the estimated time in which the ranks add their gradients, or send reduced gradients and new parameters: in a ring, each
/// rank sends 2 (n - 1) / n times the bytes of the parameters over its link. No part of it is hidden behind the backward pass.
fn exchange_seconds(run: &DryRun<()>, ranks: usize) -> f64 {
    let Some(speed) = run.profile.speed().filter(|_| ranks > 1) else { return 0.0 };
    let parameters = run.report.categories.iter().filter(|row| row.category == Category::Parameter.name());
    let bytes: u64 = parameters.map(|row| row.high_water_bytes).sum();
    2.0 * (ranks - 1) as f64 / ranks as f64 * bytes as f64 / speed.link_bytes_per_second()
}

fn world(plan: &Plan, rank: usize) -> Result<World> {
    World::rehearsal(rank, plan.ranks)
        .map_err(|error| Error::Custom { op: "fit", message: error.to_string() })
}

//! One dry run of the program with a plan, on each rank.

use bfc_core::Category;
use highwater_distributed::World;
use highwater_nn::recompute::{Observed, observe};
use highwater_tensor::{
    Device, DeviceProfile, DryRun, DryRunOptions, Error, PassEnd, Result, StepTime, record_objectives,
    record_passes,
};
use highwater_tracking::Report;

use super::error::FitError;
use super::objective::TriedLosses;
use super::plan::Plan;
use super::time::{last_step, passes_per_micro_batch};

/// A trial runs the first, the second and the last rank, which differ most. The first ranks own at least as many parameters as
/// later ones. A rehearsal runs all ranks, if there are at most this many.
const ALL_RANKS: usize = 8;

/// The micro-batches and the steps of the first rehearsal. The third ones have what all later ones have, in most programs.
const REHEARSED: u64 = 3;

/// The most steps of a rehearsal.
const MOST_STEPS: u64 = 24;

/// A program, and the number of its runs.
pub(super) struct Trial<P> {
    program: P,
    pub(super) runs: u32,
    /// The backward passes per micro-batch, after the first short trial.
    passes_per_micro_batch: usize,
}

/// The memory and the time of a plan that fits: the largest of all ranks.
#[derive(Clone, Debug, Default)]
pub(super) struct Tried {
    pub(super) peak_bytes: u64,
    pub(super) work: StepTime,
    /// The losses of the first rank, if this is the first run of a plan.
    pub(super) losses: Option<TriedLosses>,
    /// Whether the memory of further micro-batches and steps repeats that of the last ones.
    repeats: Repeats,
}

/// Whether the memory of the last micro-batch and of the last step repeats that of the one before, and the number of passes.
#[derive(Clone, Copy, Debug, Default)]
struct Repeats {
    micro_batches: bool,
    steps: bool,
    passes: usize,
}

impl Repeats {
    /// Compares the pool at the ends of passes, of which each micro-batch has the same number.
    fn new(passes: &[PassEnd], per_micro_batch: usize, accumulate: u64) -> Self {
        let micro_batches = usize::try_from(accumulate).unwrap_or(usize::MAX);
        let size = micro_batches.saturating_mul(per_micro_batch);
        let is_same = |later: usize, back: usize| {
            let before = later.checked_sub(back).and_then(|at| passes[at].pool);
            before.is_some() && before == passes[later].pool
        };
        let has_steps = !passes.is_empty() && passes.len().is_multiple_of(size);
        let last = |count: usize| passes.len().saturating_sub(count)..passes.len();
        let steps = || (0..passes.len() / size).map(|step| step * size);
        // The passes of a micro-batch follow each other, or those of all micro-batches do.
        let is_interleaved = || {
            let mut ends = steps().flat_map(|start| start + size - per_micro_batch..start + size);
            ends.all(|end| is_same(end, per_micro_batch))
        };
        let is_in_phases = || {
            let mut ends = (micro_batches - 1..passes.len()).step_by(micro_batches);
            ends.all(|end| is_same(end, 1))
        };
        Self {
            micro_batches: has_steps && micro_batches > 2 && (is_interleaved() || is_in_phases()),
            steps: has_steps && last(per_micro_batch).all(|end| is_same(end, size)),
            passes: passes.len(),
        }
    }

    const fn and(self, other: Self) -> Self {
        let (micro_batches, steps) = (self.micro_batches && other.micro_batches, self.steps && other.steps);
        Self { micro_batches, steps, passes: other.passes }
    }
}

pub(super) enum TrialResult {
    Fits(Tried),
    DoesNotFit(Error),
}

impl<P: FnMut(&Device, &Plan, &World) -> Result<()>> Trial<P> {
    pub(super) const fn new(program: P) -> Self {
        Self { program, runs: 0, passes_per_micro_batch: 1 }
    }

    /// Runs the program as rank 0, for few steps and micro-batches.
    pub(super) fn run_first(&mut self, options: &DryRunOptions, plan: &Plan) -> Result<Tried, FitError> {
        let trial = plan.for_trial();
        let (run, passes) = record_objectives(|| options.run(|device| self.run_on(device, &trial, 0)));
        let mut tried = self.tried((plan, &trial), &run?, &passes)?;
        let accumulate = [trial.accumulate, plan.accumulate];
        tried.losses = TriedLosses::new(&passes, self.passes_per_micro_batch, plan.micro_batch, accumulate);
        Ok(tried)
    }

    /// Runs the program as the ranks of the plan, for few steps and micro-batches.
    pub(super) fn run(&mut self, options: &DryRunOptions, plan: &Plan) -> Result<TrialResult, FitError> {
        self.run_ranks(options, plan, &plan.for_trial())
    }

    /// Runs the program as the ranks of the plan, with the epochs of a dry run. Adds micro-batches and steps until the memory
    /// repeats, so that the peak is that of all steps. Also returns the plan of the last run.
    ///
    /// If the memory does not repeat within [`MOST_STEPS`], the peak is that of these steps.
    pub(super) fn rehearse(
        &mut self,
        options: &DryRunOptions,
        plan: &Plan,
    ) -> Result<(TrialResult, Plan), FitError> {
        let (mut micro_batches, mut steps, mut passes) = (REHEARSED, REHEARSED, None);
        loop {
            let trial = plan.for_rehearsal(micro_batches, steps);
            let result = self.run_ranks(options, plan, &trial)?;
            let TrialResult::Fits(Tried { repeats, .. }) = result else { return Ok((result, trial)) };
            let has_all = repeats.micro_batches || trial.accumulate == plan.accumulate;
            // A program with fewer steps runs no more of them.
            let has_steps = repeats.steps || steps >= MOST_STEPS || passes == Some(repeats.passes);
            if has_all && has_steps {
                return Ok((result, trial));
            }
            passes = has_all.then_some(repeats.passes);
            if has_all {
                steps *= 2;
            } else {
                micro_batches *= 2;
            }
        }
    }

    fn run_ranks(
        &mut self,
        options: &DryRunOptions,
        plan: &Plan,
        trial: &Plan,
    ) -> Result<TrialResult, FitError> {
        let mut most: Option<Tried> = None;
        for rank in tried_ranks(trial) {
            match self.run_rank(options, (plan, trial), rank) {
                Ok(tried) => {
                    let Some(most) = &mut most else {
                        most = Some(tried);
                        continue;
                    };
                    most.peak_bytes = most.peak_bytes.max(tried.peak_bytes);
                    most.repeats = most.repeats.and(tried.repeats);
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
        Ok(TrialResult::Fits(most.unwrap_or_default()))
    }

    fn run_rank(
        &mut self,
        options: &DryRunOptions,
        (plan, trial): (&Plan, &Plan),
        rank: usize,
    ) -> Result<Tried, FitError> {
        let (run, passes) = record_passes(|| options.run(|device| self.run_on(device, trial, rank)));
        self.tried((plan, trial), &run?, &passes)
    }

    /// Returns the memory and the time of a run.
    fn tried(
        &mut self,
        (plan, trial): (&Plan, &Plan),
        run: &DryRun<()>,
        passes: &[PassEnd],
    ) -> Result<Tried, FitError> {
        if !trial.is_rehearsal() {
            self.passes_per_micro_batch =
                passes_per_micro_batch(passes.len(), trial.steps(u64::MAX), trial.accumulate);
        }
        let per_micro_batch = self.passes_per_micro_batch;
        let ends: Option<Vec<StepTime>> = passes.iter().map(|pass| pass.estimated).collect();
        let work = ends.and_then(|ends| last_step(&ends, per_micro_batch, trial.accumulate, plan.accumulate));
        let mut work = work.ok_or_else(|| FitError::NoStep { plan: Box::new(plan.clone()) })?;
        let seconds = exchange_seconds(&run.profile, &run.report, plan.ranks, 1.0);
        work.seconds += seconds;
        work.memory_seconds += seconds;
        Ok(Tried {
            peak_bytes: run.peak.in_use,
            work,
            losses: None,
            repeats: Repeats::new(passes, per_micro_batch, trial.accumulate),
        })
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

/// Returns the ranks that a trial runs.
pub(super) fn tried_ranks(trial: &Plan) -> impl Iterator<Item = usize> + use<> {
    let (ranks, runs_all) = (trial.ranks, trial.is_rehearsal() && trial.ranks <= ALL_RANKS);
    (0..ranks).filter(move |rank| runs_all || *rank < 2 || *rank + 1 == ranks)
}

/// Returns the estimated time in which the ranks add their gradients, or send reduced gradients and new parameters. In a ring, each
/// rank sends 2 (n - 1) / n times the bytes of the parameters over its link, or `share` of this. No part of it is hidden behind the
/// backward pass.
pub(crate) fn exchange_seconds(profile: &DeviceProfile, report: &Report, ranks: usize, share: f64) -> f64 {
    let Some(speed) = profile.speed().filter(|_| ranks > 1) else { return 0.0 };
    let parameters = report.categories.iter().filter(|row| row.category == Category::Parameter.name());
    let all: u64 = parameters.map(|row| row.high_water_bytes).sum();
    // The 16-bit copies of mixed precision count as parameters, but stay on their rank.
    let copies = report.ops.iter().filter(|row| row.op == "cast_parameter" && row.scope.is_none());
    let bytes = all.saturating_sub(copies.map(|row| row.self_peak_bytes).sum());
    2.0 * share * (ranks - 1) as f64 / ranks as f64 * bytes as f64 / speed.link_bytes_per_second()
}

fn world(plan: &Plan, rank: usize) -> Result<World> {
    World::rehearsal(rank, plan.ranks)
        .map_err(|error| Error::Custom { op: "fit", message: error.to_string() })
}

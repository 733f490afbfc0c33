//! The search: dry runs of the program with the plans of a space.
//!
//! 1. The survey runs each plan without recomputation once without a limit, and measures the blocks of its chains. The optimal
//!    algorithm for chains then models the peak and the time of its recomputations.
//! 2. For each of these families, from the fastest on, dry runs with the limit find the fastest member that fits. Families that
//!    are much slower than a plan that fits are skipped.
//! 3. Further dry runs fill the front with plans that use less memory and take longer.
//! 4. Each plan that fits is rehearsed with so many micro-batches and steps that its memory repeats, so that its peak is exact.

use std::time::Instant;

use bfc_core::Bytes;
use highwater_distributed::{Shard, World};
use highwater_tensor::{Device, DryRunOptions, Result};

use super::error::{FitError, NothingFits};
use super::found::{Candidate, Fit};
use super::objective::Indivisible;
use super::plan::Plan;
use super::space::Space;
use super::survey::{Model, Survey};
use super::trial::{Trial, TrialResult};

/// A family is searched if its fastest member takes at most this many times as long as the fastest plan that fits. Estimates of
/// other micro-batches and precisions may be wrong by as much.
const UNCERTAINTY: f64 = 1.6;

/// The most plans that are run to fill the front.
const FRONT: usize = 12;

/// The most ranks that a program may be told to use.
const MOST_RANKS: usize = 1024;

/// A search in progress.
pub(super) struct Search<P> {
    trial: Trial<P>,
    limited: DryRunOptions,
    unlimited: DryRunOptions,
    /// The plans that were run with the limit.
    tried: Vec<Candidate>,
    /// The limit of the pool.
    limit_bytes: Option<u64>,
    /// Whether the program may run on several ranks.
    has_ranks: bool,
    /// Why the batch is not divided.
    indivisible: Option<Indivisible>,
}

impl<P: FnMut(&Device, &Plan, &World) -> Result<()>> Search<P> {
    pub(super) fn new(options: DryRunOptions, has_ranks: bool, program: P) -> Result<Self, FitError> {
        let profile = options.profile();
        if profile.speed().is_none() {
            return Err(FitError::NoSpeed { device: profile.name().to_owned() });
        }
        let unlimited = options.clone().unlimited();
        let limit_bytes = options.run(|_| Ok(()))?.peak.limit.or_else(|| profile.memory().map(Bytes::get));
        Ok(Self {
            trial: Trial::new(program),
            limited: options,
            unlimited,
            tried: Vec::new(),
            limit_bytes,
            has_ranks,
            indivisible: None,
        })
    }

    /// Returns the plans of the space that fit.
    pub(super) fn run(mut self, space: &Space) -> Result<Fit, FitError> {
        let start = Instant::now();
        space.check()?;
        let (mut families, indivisible) = Survey::new(&self.unlimited, &mut self.trial).families(space)?;
        self.indivisible = indivisible;
        families.sort_by(|one, other| fastest(one).total_cmp(&fastest(other)));
        for family in &families {
            self.find_fastest(family)?;
        }
        match self.best() {
            Some(_) => self.fill_front(&families)?,
            None => self.try_smallest(&families)?,
        }
        self.rehearse_all()?;
        if self.best().is_none() {
            self.try_smallest(&families)?;
            self.rehearse_all()?;
        }
        match self.best() {
            Some(_) => self.finish(start),
            None => Err(Box::new(self.nothing_fits(&families)?).into()),
        }
    }

    /// Rehearses the plans that fit. A rehearsal may use more memory than a trial: it has more micro-batches and steps, and
    /// evaluates with all data.
    fn rehearse_all(&mut self) -> Result<(), FitError> {
        for candidate in self.tried.iter_mut().filter(|candidate| candidate.fits) {
            match self.trial.rehearse(&self.limited, &candidate.plan)?.0 {
                TrialResult::Fits(tried) => candidate.peak_bytes = tried.peak_bytes,
                TrialResult::DoesNotFit(_) => candidate.fits = false,
            }
        }
        Ok(())
    }

    /// Returns the fastest plan so far that fits.
    fn best(&self) -> Option<usize> {
        let fitting = self.tried.iter().enumerate().filter(|(_, plan)| plan.fits);
        let by_time = |one: &Candidate, other: &Candidate| {
            one.seconds.total_cmp(&other.seconds).then(one.peak_bytes.cmp(&other.peak_bytes))
        };
        fitting.min_by(|(_, one), (_, other)| by_time(one, other)).map(|(at, _)| at)
    }

    /// Runs a plan with the limit. Returns whether it fits.
    fn try_plan(&mut self, model: &Model) -> Result<bool, FitError> {
        if let Some(known) = self.tried.iter().find(|tried| tried.plan == model.plan) {
            return Ok(known.fits);
        }
        let candidate = match self.trial.run(&self.limited, &model.plan)? {
            TrialResult::Fits(tried) => Candidate {
                plan: model.plan.clone(),
                peak_bytes: tried.peak_bytes,
                seconds: tried.work.seconds,
                work: tried.work,
                fits: true,
                is_measured: false,
                smallest_pool_bytes: None,
            },
            TrialResult::DoesNotFit(_) => Candidate {
                plan: model.plan.clone(),
                peak_bytes: model.bytes,
                seconds: model.work.seconds,
                work: model.work,
                fits: false,
                is_measured: false,
                smallest_pool_bytes: None,
            },
        };
        let fits = candidate.fits;
        self.tried.push(candidate);
        Ok(fits)
    }

    /// Finds the fastest member of a family that fits. The members use less memory the slower they are, so a bisection finds it.
    fn find_fastest(&mut self, family: &[Model]) -> Result<(), FitError> {
        let bound = self.best().map_or(f64::INFINITY, |best| self.tried[best].seconds * UNCERTAINTY);
        let faster = family.partition_point(|model| model.work.seconds < bound);
        let (mut low, mut high) = (0, faster);
        // The first probe is the member that fits by its model.
        let limit = self.limit_bytes.unwrap_or(u64::MAX);
        let mut probe = family.partition_point(|model| model.bytes > limit);
        while low < high {
            probe = probe.clamp(low, high - 1);
            let Some(model) = family.get(probe) else { break };
            if self.try_plan(model)? {
                high = probe;
                // Models are close: the member before is likely the last that does not fit.
                probe = probe.saturating_sub(1);
            } else {
                low = probe + 1;
                probe = low + (high - low) / 4;
            }
        }
        Ok(())
    }

    /// Runs plans that use less memory than the fastest one, spread over the modelled front.
    fn fill_front(&mut self, families: &[Vec<Model>]) -> Result<(), FitError> {
        let Some(best) = self.best().map(|best| self.tried[best].clone()) else { return Ok(()) };
        let mut slower: Vec<&Model> = families
            .iter()
            .flatten()
            .filter(|model| model.work.seconds > best.seconds && model.bytes < best.peak_bytes)
            .collect();
        slower.sort_by(|one, other| one.work.seconds.total_cmp(&other.work.seconds));
        let mut least = best.peak_bytes;
        slower.retain(|model| {
            let is_less = model.bytes < least;
            least = least.min(model.bytes);
            is_less
        });
        for at in spread(slower.len(), FRONT) {
            self.try_plan(slower[at])?;
        }
        Ok(())
    }

    /// Runs the plan of each family that uses the least memory.
    fn try_smallest(&mut self, families: &[Vec<Model>]) -> Result<(), FitError> {
        families
            .iter()
            .filter_map(|family| family.last())
            .try_for_each(|model| self.try_plan(model).map(drop))
    }

    fn finish(mut self, start: Instant) -> Result<Fit, FitError> {
        let mut fit = Fit::new(self.limited.profile().name(), self.limit_bytes, self.tried);
        let pool = self.trial.smallest_pool(&self.unlimited, &fit.chosen().plan)?;
        // The plan fits the limit, also if it fails in some smaller pool.
        fit.plans[0].smallest_pool_bytes = Some(self.limit_bytes.map_or(pool, |limit| pool.min(limit)));
        fit.runs = self.trial.runs;
        fit.indivisible = self.indivisible;
        fit.search_seconds = start.elapsed().as_secs_f64();
        Ok(fit)
    }

    /// Finds what would be necessary to train at all.
    fn nothing_fits(&mut self, families: &[Vec<Model>]) -> Result<NothingFits, FitError> {
        let smallest = families.iter().flatten().min_by_key(|model| model.bytes);
        let Some(plan) = smallest.map(|model| model.plan.clone()) else {
            return Err(FitError::NoPlan { batch: 0 });
        };
        let error = match self.trial.run(&self.limited, &plan)? {
            TrialResult::DoesNotFit(error) => error,
            TrialResult::Fits(_) => match self.trial.rehearse(&self.limited, &plan)?.0 {
                TrialResult::DoesNotFit(error) => error,
                TrialResult::Fits(_) => return Err(FitError::Varies { plan: Box::new(plan) }),
            },
        };
        let required_bytes = self.trial.smallest_pool(&self.unlimited, &plan)?;
        Ok(NothingFits {
            device: self.limited.profile().name().to_owned(),
            limit_bytes: self.limit_bytes,
            required_bytes,
            ranks: if self.has_ranks { self.enough_ranks(&plan)? } else { None },
            indivisible: self.indivisible.clone(),
            plan,
            error,
        })
    }

    /// Finds the smallest power of two of ranks with which a plan fits, if the ranks divide the optimizer's state and the
    /// gradients.
    fn enough_ranks(&mut self, plan: &Plan) -> Result<Option<usize>, FitError> {
        let mut ranks = plan.ranks.max(1) * 2;
        while ranks <= MOST_RANKS && plan.batch().is_multiple_of(ranks) {
            let own = plan.batch() / ranks;
            let micro_batch =
                (1..=own.min(plan.micro_batch)).rev().find(|size| own.is_multiple_of(*size)).unwrap_or(1);
            let mut more = plan.clone();
            (more.ranks, more.shard, more.micro_batch) = (ranks, Shard::Gradients, micro_batch);
            more.accumulate = (own / micro_batch) as u64;
            if let TrialResult::Fits(_) = self.trial.run(&self.limited, &more)? {
                return Ok(Some(ranks));
            }
            ranks *= 2;
        }
        Ok(None)
    }
}

fn fastest(family: &[Model]) -> f64 {
    family.first().map_or(f64::INFINITY, |model| model.work.seconds)
}

/// At most `most` of the numbers below `len`, spread evenly, with the first and the last.
fn spread(len: usize, most: usize) -> Vec<usize> {
    if len <= most {
        return (0..len).collect();
    }
    (0..most).map(|part| part * (len - 1) / (most - 1)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spread_numbers_include_both_ends() {
        assert_eq!(spread(3, 12), [0, 1, 2]);
        assert_eq!(spread(101, 3), [0, 50, 100]);
        assert!(spread(0, 12).is_empty());
    }
}

//! The survey: the memory and the time of plans without recomputation, and models of those with it.

use highwater_distributed::World;
use highwater_nn::recompute::{Observed, trade_offs};
use highwater_tensor::{Device, DryRunOptions, Result, StepTime};

use super::error::FitError;
use super::objective::{Indivisible, TriedLosses};
use super::plan::Plan;
use super::space::Space;
use super::trial::{Trial, Tried};

/// The deepest level of nested chains whose blocks may be recomputed.
const LEVELS: usize = 3;

/// The most blocks of a level. The optimal algorithm takes a second for more.
const MOST_BLOCKS: usize = 128;

/// A plan with its modelled peak and work.
#[derive(Clone, Debug)]
pub(super) struct Model {
    pub(super) plan: Plan,
    pub(super) bytes: u64,
    pub(super) work: StepTime,
}

/// Runs plans without a limit.
pub(super) struct Survey<'a, P> {
    unlimited: &'a DryRunOptions,
    trial: &'a mut Trial<P>,
}

impl<'a, P: FnMut(&Device, &Plan, &World) -> Result<()>> Survey<'a, P> {
    pub(super) const fn new(unlimited: &'a DryRunOptions, trial: &'a mut Trial<P>) -> Self {
        Self { unlimited, trial }
    }

    /// Returns a family for each plan of the space: the plan, and its variants that recompute blocks. The members are the
    /// faster the more memory they use, the fastest first. Also returns why plans that divide the batch are not among them.
    pub(super) fn families(
        mut self,
        space: &Space,
    ) -> Result<(Vec<Vec<Model>>, Option<Indivisible>), FitError> {
        let mut plans = space.plans();
        let Some(first) = plans.first() else { return Err(FitError::NoPlan { batch: space.batch() }) };
        let fewest = plans.iter().map(|plan| plan.ranks).min().unwrap_or(1);
        let is_whole = |plan: &Plan| plan.accumulate == 1 && plan.ranks == fewest;
        let mut whole = Plan::new(space.batch() / fewest);
        (whole.ranks, whole.shard) = (fewest, first.shard);
        // The space may lack a plan with the whole batch, which defines the loss.
        let whole = plans.iter().find(|plan| is_whole(plan)).unwrap_or(&whole).clone();
        let divides = !plans.iter().all(is_whole);
        let mut indivisible = None;
        if divides && self.trial.observe(self.unlimited, &whole, 0)?.has_batch_norm {
            plans.retain(is_whole);
            indivisible = Some(Indivisible::BatchNorm);
        }
        let of_whole = if divides && indivisible.is_none() {
            Some(self.trial.run_first(self.unlimited, &whole)?)
        } else {
            None
        };
        let mut tried = Vec::new();
        for plan in &plans {
            if indivisible.is_some() && !is_whole(plan) {
                continue;
            }
            let known = of_whole.as_ref().filter(|_| *plan == whole).cloned();
            let result = known.map_or_else(|| self.trial.run_first(self.unlimited, plan), Ok)?;
            let losses =
                of_whole.as_ref().and_then(|whole| whole.losses.as_ref()).zip(result.losses.as_ref());
            let difference = losses.and_then(|(whole, other): (&TriedLosses, _)| whole.difference(other));
            if difference.is_some() {
                indivisible = difference;
                tried.retain(|(plan, _)| is_whole(plan));
            } else {
                tried.push((plan.clone(), result));
            }
        }
        if let Some(reason) = indivisible.clone().filter(|_| tried.is_empty()) {
            return Err(FitError::NoWholeBatch { batch: space.batch(), reason });
        }
        let recomputes = space.recomputes();
        let families = tried.iter().map(|(plan, tried)| self.family(plan, tried, recomputes));
        Ok((families.collect::<Result<_, _>>()?, indivisible))
    }

    fn family(&mut self, plan: &Plan, tried: &Tried, recomputes: bool) -> Result<Vec<Model>, FitError> {
        let plain = Model { plan: plan.clone(), bytes: tried.peak_bytes, work: tried.work };
        let mut family = vec![plain.clone()];
        for level in (0..LEVELS).take_while(|_| recomputes) {
            let observed = self.trial.observe(self.unlimited, plan, level)?;
            let blocks: usize = observed.chains.iter().map(|chain| chain.blocks.len()).sum();
            if blocks <= MOST_BLOCKS {
                family.extend(recomputations(&plain, &observed));
            }
            if !observed.has_deeper_chains {
                break;
            }
        }
        Ok(front(family))
    }
}

/// The plan with each recomputation of the optimal algorithm. The differences to the plan without recomputation are modeled.
fn recomputations<'a>(plain: &'a Model, observed: &'a Observed) -> impl Iterator<Item = Model> + 'a {
    let found = trade_offs(&observed.chains);
    let plain_bytes = found.iter().find(|way| way.recompute.is_plain()).map_or(0, |way| way.bytes);
    let passes = observed.chains.iter().map(|chain| chain.passes).max().unwrap_or(1).max(1);
    found.into_iter().filter(|way| !way.recompute.is_plain()).map(move |way| {
        let mut model = plain.clone();
        model.bytes = (plain.bytes + way.bytes).saturating_sub(plain_bytes);
        model.work.seconds += way.seconds / passes as f64 * plain.plan.accumulate as f64;
        model.plan.recompute = way.recompute;
        model
    })
}

/// The models of which no other one is faster with as little memory, the fastest first.
fn front(mut models: Vec<Model>) -> Vec<Model> {
    models.sort_by(|one, other| {
        one.work.seconds.total_cmp(&other.work.seconds).then(one.bytes.cmp(&other.bytes))
    });
    let mut least = u64::MAX;
    models.retain(|model| {
        let is_less = model.bytes < least;
        least = least.min(model.bytes);
        is_less
    });
    models
}

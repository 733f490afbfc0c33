//! The schedules of a model.

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bfc_core::printable;
use serde::{Deserialize, Serialize};

use super::active::{Active, ActiveGuard};
use super::schedule::Schedule;

/// The schedules of a model, by the path of each chain. Other chains run plainly, as all chains do by default.
///
/// The path of a [`Sequential`](crate::modules::Sequential) is its own; the path of the model itself is empty. The path
/// of a `Vec` of blocks in [`chain`](crate::modules::chain) is the name of the field, such as `blocks`.
///
/// ```
/// use highwater::{Device, Rng, Tensor};
/// use highwater::nn::recompute::{Recompute, Schedule};
/// use highwater::nn::{Module, Sequential, TransformerBlock};
/// let (device, rng) = (Device::cpu()?, Rng::new(0));
/// let mut blocks = Sequential::new();
/// for layer in 0..4 {
///     blocks = blocks.with(&format!("block{layer}"), TransformerBlock::new(&device, 32, 4, &rng)?.causal());
/// }
/// let model = Sequential::new().with("blocks", blocks);
///
/// // The first three blocks run again in the backward pass.
/// let recompute = Recompute::new().with("blocks", Schedule::recompute(4, 0..3));
/// let guard = recompute.enter();
/// let loss = model.call(&Tensor::ones(&device, [2, 10, 32])?)?.square()?.mean_all()?;
/// assert_eq!(loss.backward()?.len(), model.parameters().len());
/// assert!(guard.unused().is_empty());
/// # Ok::<(), highwater::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Recompute {
    schedules: BTreeMap<String, Schedule>,
}

impl Recompute {
    /// Returns the plain plan: no block runs again.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the schedule of the chain at `path`.
    #[must_use]
    pub fn with(mut self, path: impl Into<String>, schedule: Schedule) -> Self {
        self.schedules.insert(path.into(), schedule);
        self
    }

    /// Whether no block runs again.
    #[must_use]
    pub fn is_plain(&self) -> bool {
        self.schedules.values().all(Schedule::is_plain)
    }

    /// Returns the schedules with their paths, by path.
    pub fn schedules(&self) -> impl Iterator<Item = (&str, &Schedule)> {
        self.schedules.iter().map(|(path, schedule)| (path.as_str(), schedule))
    }

    /// Applies the schedules to forward passes on this thread until the guard is dropped. The innermost guard counts, for
    /// all chains.
    ///
    /// The backward pass uses the schedules of its forward pass, with or without a guard.
    pub fn enter(&self) -> RecomputeGuard {
        let chains = self.schedules.iter().map(|(path, schedule)| {
            (path.clone(), Chain { schedule: schedule.clone(), used: AtomicBool::new(false) })
        });
        let plan = Arc::new(Plan { chains: chains.collect() });
        let active = Active::now().with_plan(Arc::clone(&plan));
        RecomputeGuard { plan, _active: active.enter(), of_thread: PhantomData }
    }
}

impl fmt::Display for Recompute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_plain() {
            return f.pad("no recomputation");
        }
        let chains = self.schedules.iter().filter(|(_, schedule)| !schedule.is_plain());
        for (number, (path, schedule)) in chains.enumerate() {
            let path = if path.is_empty() { "(model)" } else { path };
            write!(f, "{}{}: {schedule}", if number > 0 { "; " } else { "" }, printable(path))?;
        }
        Ok(())
    }
}

/// Ends a plan on this thread when it is dropped, also after a panic. See [`Recompute::enter`]. Drop nested guards in
/// reverse order.
#[must_use = "dropping the guard ends the plan"]
#[derive(Debug)]
pub struct RecomputeGuard {
    plan: Arc<Plan>,
    _active: ActiveGuard,
    /// The plan belongs to one thread, so the guard must not move to another.
    of_thread: PhantomData<*const ()>,
}

impl RecomputeGuard {
    /// Returns the paths with a schedule at which no chain has run so far. After a step, these are paths that the model
    /// does not have.
    #[must_use]
    pub fn unused(&self) -> Vec<String> {
        let unused = self.plan.chains.iter().filter(|(_, chain)| !chain.used.load(Ordering::Relaxed));
        unused.map(|(path, _)| path.clone()).collect()
    }
}

/// The schedules that a guard applies.
#[derive(Debug)]
pub(super) struct Plan {
    chains: BTreeMap<String, Chain>,
}

#[derive(Debug)]
struct Chain {
    schedule: Schedule,
    /// Whether a chain has run at this path.
    used: AtomicBool,
}

impl Plan {
    /// Returns the schedule of the chain at `path`, which runs now.
    pub(super) fn schedule(&self, path: &str) -> Option<&Schedule> {
        let chain = self.chains.get(path)?;
        chain.used.store(true, Ordering::Relaxed);
        Some(&chain.schedule)
    }
}

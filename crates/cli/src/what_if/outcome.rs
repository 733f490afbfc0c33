//! The outcome of a variation.

use std::sync::Arc;

use bfc_core::{Packing, PackingOptions};
use highwater_traces::{Replayer, Trace};
use serde::Serialize;

use super::variation::Variation;
use crate::progress::Progress;
use crate::replay::smallest::smallest_pool;

/// The memory of a variation; an object of `--json`.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(super) struct Outcome {
    pub(super) what: String,
    pub(super) policy: &'static str,
    /// The peak of live requested bytes: the lower bound of every pool.
    pub(super) peak_live_bytes: u64,
    /// The peak of bytes in use; `None` if the variation fails.
    pub(super) peak_in_use_bytes: Option<u64>,
    /// The peak of reserved bytes.
    pub(super) peak_reserved_bytes: Option<u64>,
    /// The bytes in use after the last event.
    pub(super) end_in_use_bytes: Option<u64>,
    /// The bytes reserved after the last event.
    pub(super) end_reserved_bytes: Option<u64>,
    /// The smallest single-region pool that serves the run; `None` if the size was given, if there is none, or for one of
    /// the usual settings of PyTorch's allocator.
    pub(super) smallest_pool_bytes: Option<u64>,
    /// The settings of PyTorch's allocator, as PyTorch writes them; `None` for other allocators.
    pub(super) alloc_conf: Option<String>,
    /// The share of the unused memory at the end that these settings save, compared with the first settings.
    pub(super) saved_at_end: Option<f64>,
    /// Whether these are the settings of PyTorch's allocator that reserve least.
    pub(super) is_best_alloc_conf: bool,
    /// The reason why the variation fails.
    pub(super) failure: Option<String>,
}

impl Outcome {
    /// Replays each trace through its own pool and adds the figures.
    pub(super) fn of(
        variation: &Variation,
        traces: &[Trace],
        packing: Option<&Arc<Packing>>,
        progress: &Progress,
    ) -> Self {
        let nothing = (variation.finds_smallest_pool && !traces.is_empty()).then_some(0);
        let mut sum = Self {
            what: variation.what.clone(),
            policy: variation.policy.name,
            peak_in_use_bytes: Some(0),
            peak_reserved_bytes: Some(0),
            end_in_use_bytes: Some(0),
            end_reserved_bytes: Some(0),
            alloc_conf: variation.alloc_conf.map(|settings| settings.to_string()),
            smallest_pool_bytes: nothing,
            ..Self::default()
        };
        for trace in traces {
            sum.peak_live_bytes = sum.peak_live_bytes.saturating_add(trace.peak_live_bytes());
            sum.add(variation, trace, packing, progress);
        }
        sum
    }

    fn add(
        &mut self,
        variation: &Variation,
        trace: &Trace,
        packing: Option<&Arc<Packing>>,
        progress: &Progress,
    ) {
        let mut replayer = Replayer::new(trace);
        let pool = match variation.policy.prepare(trace, packing, PackingOptions::default().granule) {
            Ok(pool) => pool,
            Err(error) => return self.fail(&error.to_string()),
        };
        match replayer.run(&*pool(variation.spec)) {
            Ok(summary) => {
                let add = |sum: Option<u64>, bytes: u64| sum.map(|sum| sum.saturating_add(bytes));
                self.peak_in_use_bytes = add(self.peak_in_use_bytes, summary.peak_in_use);
                self.peak_reserved_bytes = add(self.peak_reserved_bytes, summary.peak_reserved);
                self.end_in_use_bytes = add(self.end_in_use_bytes, summary.end_in_use);
                self.end_reserved_bytes = add(self.end_reserved_bytes, summary.end_reserved);
            }
            Err(error) => self.fail(&error.to_string()),
        }
        if let Some(sum) = self.smallest_pool_bytes {
            let say = |what: &str| progress.say(&format!("{}: {what}", variation.what));
            let smallest = smallest_pool(&mut replayer, &pool, variation.spec, &say).smallest_pool_bytes;
            self.smallest_pool_bytes = smallest.map(|bytes| sum.saturating_add(bytes));
        }
    }

    fn fail(&mut self, why: &str) {
        (self.peak_in_use_bytes, self.peak_reserved_bytes) = (None, None);
        (self.end_in_use_bytes, self.end_reserved_bytes) = (None, None);
        self.failure.get_or_insert_with(|| why.to_owned());
    }
}

/// The outcomes with settings of PyTorch's allocator that do not fail.
pub(super) fn with_settings(outcomes: &[Outcome]) -> impl Iterator<Item = &Outcome> {
    outcomes.iter().filter(|outcome| outcome.alloc_conf.is_some() && outcome.failure.is_none())
}

/// Compares the settings of PyTorch's allocator with the first ones, and marks those that reserve least: at the peak, then
/// at the end.
pub(super) fn compare_settings(outcomes: &mut [Outcome]) {
    let Some(base) = with_settings(outcomes).next().cloned() else { return };
    if with_settings(outcomes).nth(1).is_none() {
        return;
    }
    let least = with_settings(outcomes)
        .min_by_key(|outcome| (outcome.peak_reserved_bytes, outcome.end_reserved_bytes));
    let least = least.map(|outcome| outcome.what.clone());
    for outcome in outcomes {
        if outcome.alloc_conf.is_some() {
            outcome.is_best_alloc_conf = Some(&outcome.what) == least.as_ref();
            outcome.saved_at_end = saved_at_end(&base, outcome);
        }
    }
}

/// The share of the unused memory at the end that an outcome saves; negative if it reserves more.
fn saved_at_end(base: &Outcome, outcome: &Outcome) -> Option<f64> {
    let reserved = base.end_reserved_bytes?;
    let unused = reserved.checked_sub(base.end_in_use_bytes?).filter(|&bytes| bytes > 0)?;
    Some((reserved as f64 - outcome.end_reserved_bytes? as f64) / unused as f64)
}

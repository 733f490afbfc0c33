//! The outcome of a variation.

use std::sync::Arc;

use bfc_core::{Packing, PackingOptions};
use highwater_traces::{Replayer, Trace};
use serde::Serialize;

use super::variation::Variation;
use crate::progress::Progress;
use crate::replay::smallest::smallest_pool;

/// The memory of a variation; an object of `--json`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct Outcome {
    pub(super) what: String,
    pub(super) policy: &'static str,
    /// The peak of live requested bytes: the lower bound of every pool.
    pub(super) peak_live_bytes: u64,
    /// The peak of bytes in use; `None` if the variation fails.
    pub(super) peak_in_use_bytes: Option<u64>,
    /// The peak of reserved bytes.
    pub(super) peak_reserved_bytes: Option<u64>,
    /// The smallest single-region pool that serves the run; `None` if the size was given or there is none.
    pub(super) smallest_pool_bytes: Option<u64>,
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
        let nothing = (variation.limit.is_none() && !traces.is_empty()).then_some(0);
        let mut sum = Self {
            what: variation.what.clone(),
            policy: variation.policy.name,
            peak_in_use_bytes: Some(0),
            peak_reserved_bytes: Some(0),
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
        self.failure.get_or_insert_with(|| why.to_owned());
    }
}

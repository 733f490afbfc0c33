//! Who took how much, by pool and device stream.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::record::recording::{BlockLife, Recording};

/// What was taken from a pool for work on one stream.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct StreamUsage {
    /// The pool's name.
    pub pool: String,
    /// The stream, counted from 1; 0 on the host.
    pub stream: u32,
    /// Blocks taken.
    pub allocations: u64,
    /// Bytes asked for.
    pub requested_bytes: u64,
    /// Bytes granted.
    pub granted_bytes: u64,
    /// The most that was live of it at a time.
    pub high_water_bytes: u64,
    /// What was live of it at the peak of the whole run.
    pub peak_bytes: u64,
    /// What was live of it at the end.
    pub live_bytes: u64,
}

/// What is counted by pool and stream, of which there are few.
#[derive(Clone, Debug, Default)]
pub(super) struct Streams {
    rows: BTreeMap<(u32, u32), usize>,
    usages: Vec<((u32, u32), StreamUsage)>,
    last: usize,
}

impl Streams {
    fn row(&mut self, block: &BlockLife) -> &mut StreamUsage {
        let key = (block.pool, block.stream);
        if self.usages.get(self.last).is_none_or(|(last, _)| *last != key) {
            self.last = *self.rows.entry(key).or_insert_with(|| {
                self.usages.push((key, StreamUsage { stream: key.1, ..StreamUsage::default() }));
                self.usages.len() - 1
            });
        }
        &mut self.usages[self.last].1
    }

    pub(super) fn take(&mut self, block: &BlockLife) {
        let row = self.row(block);
        row.allocations += 1;
        row.requested_bytes = row.requested_bytes.saturating_add(block.requested);
        row.granted_bytes = row.granted_bytes.saturating_add(block.granted);
        row.live_bytes += block.granted;
        row.high_water_bytes = row.high_water_bytes.max(row.live_bytes);
    }

    pub(super) fn give_back(&mut self, block: &BlockLife) {
        self.row(block).live_bytes -= block.granted;
    }

    pub(super) fn note_peak(&mut self) {
        for (_, row) in &mut self.usages {
            row.peak_bytes = row.live_bytes;
        }
    }

    pub(super) fn finish(self, recording: &Recording) -> Vec<StreamUsage> {
        let named = |((pool, _), row): ((u32, u32), StreamUsage)| StreamUsage {
            pool: recording.pools()[pool as usize].name.clone(),
            ..row
        };
        self.usages.into_iter().map(named).collect()
    }
}

//! `garbage_collection_threshold`: idle regions of large blocks leave by age before the pool grows.

use super::options::PytorchOptions;
use super::sets::Sets;
use crate::base::memory::Span;
use crate::policy::chunk_table::ChunkTable;

/// The ages of idle regions, counted in requests for large blocks.
#[derive(Clone, Debug, Default)]
pub(super) struct Garbage {
    /// The served requests for large blocks.
    requests: u64,
    /// The value of `requests` when a chunk became idle, by slot.
    idle_since: Vec<u64>,
    /// The addresses of regions that the collection in progress has yet to release.
    chosen: Vec<u64>,
}

impl Garbage {
    /// Counts a served request.
    #[inline]
    pub(super) fn note_request(&mut self, set: u16) {
        self.requests += u64::from(!Sets::is_small(set));
    }

    /// Records that a region became idle.
    pub(super) fn note_idle(&mut self, slot: u32) {
        let slot = slot as usize;
        if self.idle_since.len() <= slot {
            self.idle_since.resize(slot + 1, 0);
        }
        self.idle_since[slot] = self.requests;
    }

    /// Releases the next region of a collection, and begins one if the pool holds too much.
    pub(super) fn collect(&mut self, options: &PytorchOptions, chunks: &mut ChunkTable) -> Option<Span> {
        if self.chosen.is_empty() {
            let excess = chunks.reserved_bytes().saturating_sub(options.collected_from());
            self.chosen = self.oldest(excess, chunks);
        }
        chunks.take_idle_at(self.chosen.pop()?)
    }

    /// Returns the addresses of idle regions of at least the average age, in rounds until they hold `excess` bytes.
    fn oldest(&self, excess: u64, chunks: &ChunkTable) -> Vec<u64> {
        let large = chunks.sets().filter(|&set| !Sets::is_small(set));
        let idle = large.flat_map(|set| chunks.free_in(set, 0)).filter(|chunk| chunks.is_region(chunk.slot));
        // The request that makes the pool grow counts too.
        let age = |slot: u32| self.requests + 1 - self.idle_since.get(slot as usize).copied().unwrap_or(0);
        let mut left: Vec<(u64, Span)> = idle
            .map(|chunk| (age(chunk.slot), Span { address: chunk.address, bytes: chunk.bytes }))
            .collect();
        let (mut chosen, mut bytes) = (Vec::new(), 0_u64);
        while bytes < excess && !left.is_empty() {
            let average = left.iter().map(|(age, _)| age).sum::<u64>() as f64 / left.len() as f64;
            left.retain(|&(age, region)| {
                let stays = (age as f64) < average;
                if !stays {
                    chosen.push(region.address);
                    bytes += region.bytes;
                }
                stays
            });
        }
        chosen
    }
}

//! Running a trace through an allocator.

use bfc_core::{AllocError, AllocationAttributes, Allocator, Block, BlockError, Request};

use crate::trace::{Trace, TraceEvent};

/// What a trace did to an allocator.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReplaySummary {
    /// Events replayed.
    pub events: usize,
    /// Allocations among them.
    pub allocations: u64,
    /// The most bytes granted at a time.
    pub peak_in_use: u64,
    /// The most bytes that the allocator ever held from its source, from its statistics.
    pub peak_reserved: u64,
}

/// A trace that an allocator could not follow. Everything was given back.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ReplayError {
    /// An allocation failed.
    #[error("event {event} ({label}, {bytes} bytes): {error}")]
    Alloc {
        /// The event's index in the trace.
        event: usize,
        /// The event's label.
        label: String,
        /// Bytes asked for.
        bytes: u64,
        /// What the allocator said.
        #[source]
        error: AllocError,
    },
    /// A free failed, which takes a faulty allocator.
    #[error("event {event}: {error}")]
    Free {
        /// The event's index in the trace; the number of events for those freed at the end.
        event: usize,
        /// What the allocator said.
        #[source]
        error: BlockError,
    },
}

/// Replays `trace` through `allocator`, and frees at the end what the trace leaves live. No request waits for memory:
/// nobody else would free any.
///
/// ```
/// use bfc_core::{AddressOnlyMemory, BfcAllocator, BfcConfig, Bytes};
/// use highwater_tracking::{Trace, TraceLimits, replay};
/// use std::sync::Arc;
///
/// let trace = Trace::parse("a 0 1000 x\na 1 300 y\nf 0\n".as_bytes(), &TraceLimits::default())?;
/// let config = BfcConfig::new(Bytes::mib(1));
/// let pool = BfcAllocator::new("what-if", Arc::new(AddressOnlyMemory::new()), config);
/// assert_eq!(replay(&trace, &pool)?.peak_in_use, 1024 + 512);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// A [`ReplayError`] for the first event that the allocator refuses.
pub fn replay(trace: &Trace, allocator: &dyn Allocator) -> Result<ReplaySummary, ReplayError> {
    let mut replay = Replay { allocator, blocks: Vec::new(), in_use: 0, summary: ReplaySummary::default() };
    let played =
        trace.events().iter().enumerate().try_for_each(|(index, event)| replay.play(index, event, trace));
    let freed = replay.free_all(trace.events().len());
    played.and(freed)?;
    replay.summary.peak_reserved = allocator.stats().peak_bytes_reserved;
    Ok(replay.summary)
}

struct Replay<'a> {
    allocator: &'a dyn Allocator,
    /// By number of allocation; the empty block once freed, which frees as nothing.
    blocks: Vec<Block>,
    in_use: u64,
    summary: ReplaySummary,
}

impl Replay<'_> {
    fn play(&mut self, index: usize, event: &TraceEvent, trace: &Trace) -> Result<(), ReplayError> {
        self.summary.events += 1;
        match *event {
            TraceEvent::Alloc { bytes, label, .. } => {
                let request = Request::new(bytes).with_attributes(AllocationAttributes::no_retry());
                let block = self.allocator.allocate(&request).map_err(|error| {
                    let label = trace.label(label).to_owned();
                    ReplayError::Alloc { event: index, label, bytes, error }
                })?;
                self.summary.allocations += 1;
                self.in_use = self.in_use.saturating_add(block.bytes);
                self.summary.peak_in_use = self.summary.peak_in_use.max(self.in_use);
                self.blocks.push(block);
                Ok(())
            }
            TraceEvent::Free { block } => self.free(block as usize, index),
        }
    }

    fn free(&mut self, number: usize, event: usize) -> Result<(), ReplayError> {
        let Some(slot) = self.blocks.get_mut(number) else { return Ok(()) };
        let block = std::mem::replace(slot, Block::EMPTY);
        self.in_use = self.in_use.saturating_sub(block.bytes);
        // SAFETY: the block's memory was never used.
        unsafe { self.allocator.deallocate(block) }.map_err(|error| ReplayError::Free { event, error })
    }

    /// Frees what is left, all of it, and returns the first failure.
    fn free_all(&mut self, event: usize) -> Result<(), ReplayError> {
        let mut result = Ok(());
        for number in 0..self.blocks.len() {
            result = result.and(self.free(number, event));
        }
        result
    }
}

#[cfg(test)]
mod tests;

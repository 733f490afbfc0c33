//! Replays a trace through an allocator.

use std::num::NonZero;

use bfc_core::{
    AllocError, AllocationAttributes, Allocator, Block, BlockError, DEFAULT_ALIGNMENT, Request, printable,
};

use crate::trace::{Trace, TraceEvent};

mod packing;

pub use packing::{NoPacking, Step, find_step, packing_of};

/// The result of a replay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReplaySummary {
    /// Events replayed.
    pub events: usize,
    /// Allocations among them.
    pub allocations: u64,
    /// The most granted bytes at a time.
    pub peak_in_use: u64,
    /// The most bytes that the allocator reserved, from its statistics.
    pub peak_reserved: u64,
}

/// A trace that an allocator could not replay. The replay freed all blocks.
#[derive(Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ReplayError {
    /// An allocation failed.
    #[error("event {event} ({label}, {bytes} bytes): {error}", label = printable(label))]
    Alloc {
        /// The event's index in the trace.
        event: usize,
        /// The event's label.
        label: String,
        /// Requested bytes.
        bytes: u64,
        /// The allocator's error.
        error: AllocError,
    },
    /// A free failed, which means that the allocator is faulty.
    #[error("event {event}: {error}")]
    Free {
        /// The event's index in the trace; the number of events for the frees at the end.
        event: usize,
        /// The allocator's error.
        error: BlockError,
    },
}

bfc_core::debug_as_message!(ReplayError);

impl ReplayError {
    /// Returns the event's index in the trace; the number of events for the frees at the end.
    #[must_use]
    pub const fn event(&self) -> usize {
        match self {
            Self::Alloc { event, .. } | Self::Free { event, .. } => *event,
        }
    }
}

/// Replays `trace` through `allocator`, then frees the remaining blocks. No request waits for memory, because no other
/// thread would free any.
///
/// ```
/// use bfc_core::{AddressOnlyMemory, BfcAllocator, BfcConfig, Bytes};
/// use highwater_traces::{Trace, TraceLimits, replay};
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
/// A [`ReplayError`] for the first event that fails.
pub fn replay(trace: &Trace, allocator: &dyn Allocator) -> Result<ReplaySummary, ReplayError> {
    Replayer::new(trace).run(allocator)
}

/// A trace prepared for repeated replays.
///
/// Every allocation has a slot in a table, computed once. A free releases the slot for later allocations, so the table
/// is as small as the most live blocks. A replay adds about two nanoseconds per event to the time of the allocator.
///
/// ```
/// use bfc_core::{AddressOnlyMemory, BfcAllocator, BfcConfig, Bytes};
/// use highwater_traces::{Replayer, Trace, TraceLimits};
/// use std::sync::Arc;
///
/// let trace = Trace::parse("a 0 1000 x\na 1 300 y\nf 0\n".as_bytes(), &TraceLimits::default())?;
/// let pool = BfcAllocator::new("pool", Arc::new(AddressOnlyMemory::new()), BfcConfig::new(Bytes::mib(1)));
/// let mut replayer = Replayer::new(&trace);
/// let cold = replayer.run(&pool)?;
/// let warm = replayer.run(&pool)?;
/// assert_eq!(cold, warm);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Replayer<'a> {
    trace: &'a Trace,
    /// The minimum alignment of a request.
    alignment: u64,
    steps: Vec<PreparedEvent>,
    /// The slots still live after the last event, in the order of their allocation.
    rest: Vec<u32>,
    blocks: Vec<Block>,
}

/// One event.
#[derive(Clone, Copy, Debug)]
struct PreparedEvent {
    bytes: u64,
    slot: u32,
    action: Action,
    /// The logarithm of the alignment in the trace.
    alignment: u8,
    /// The stream of an allocation. Streams beyond the largest number share it.
    stream: u16,
}

/// The effect of an event on its slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    Allocate,
    Free,
    /// No effect: a pool cannot lend bytes of a live block.
    Keep,
}

impl<'a> Replayer<'a> {
    /// Computes the slots of a trace's blocks.
    #[must_use]
    pub fn new(trace: &'a Trace) -> Self {
        let mut slots = Slots::default();
        let other = |slot, action| PreparedEvent { bytes: 0, slot, action, alignment: 0, stream: 0 };
        let step = |(index, event): (usize, &TraceEvent)| match *event {
            TraceEvent::Alloc { bytes, alignment, .. } => {
                let alignment = alignment.trailing_zeros() as u8;
                let stream = u16::try_from(trace.stream(index)).unwrap_or(u16::MAX);
                PreparedEvent { bytes, slot: slots.take(), action: Action::Allocate, alignment, stream }
            }
            TraceEvent::Free { block } => other(slots.give_back(block), Action::Free),
            TraceEvent::Occupy { block, .. } => other(slots.of(block), Action::Keep),
        };
        let steps = trace.events().iter().enumerate().map(step).collect();
        let blocks = vec![Block::EMPTY; slots.count as usize];
        Self { trace, alignment: DEFAULT_ALIGNMENT, steps, rest: slots.live(), blocks }
    }

    /// Sets the minimum alignment of requests, a power of two. Larger alignments in the trace stay.
    #[must_use]
    pub const fn with_alignment(mut self, bytes: u64) -> Self {
        self.alignment = bytes;
        self
    }

    /// Returns the trace.
    #[must_use]
    pub const fn trace(&self) -> &'a Trace {
        self.trace
    }

    /// Replays the trace through `allocator`, like [`replay`].
    ///
    /// # Errors
    /// A [`ReplayError`] for the first event that fails. The replay frees all blocks.
    pub fn run<A: Allocator + ?Sized>(&mut self, allocator: &A) -> Result<ReplaySummary, ReplayError> {
        self.run_watched(allocator, NonZero::<usize>::MAX, |_, _| {})
    }

    /// Like [`run`](Self::run), and calls `watch` after every `interval` events and after the last one, with the number
    /// of events done and the allocator.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub fn run_watched<A: Allocator + ?Sized>(
        &mut self,
        allocator: &A,
        interval: NonZero<usize>,
        mut watch: impl FnMut(usize, &A),
    ) -> Result<ReplaySummary, ReplayError> {
        let mut meter = Meter::default();
        let mut done = 0;
        for steps in self.steps.chunks(interval.get()) {
            let played = play(steps, &mut self.blocks, allocator, self.alignment, &mut meter);
            if let Err((index, failure)) = played {
                self.free_before(allocator, done + index);
                return Err(self.error(done + index, failure));
            }
            done += steps.len();
            watch(done, allocator);
        }
        // Frees all blocks, even if some frees fail.
        let freed = self.rest.iter().map(|&slot| free(allocator, self.blocks[slot as usize]));
        let freed = freed.fold(Ok(()), Result::and);
        freed.map_err(|error| ReplayError::Free { event: done, error })?;
        Ok(ReplaySummary {
            events: done,
            allocations: meter.allocations,
            peak_in_use: meter.peak_in_use,
            peak_reserved: allocator.stats().peak_bytes_reserved,
        })
    }

    /// Frees the blocks that are live before event number `end`.
    fn free_before<A: Allocator + ?Sized>(&self, allocator: &A, end: usize) {
        let mut live = vec![false; self.blocks.len()];
        for step in &self.steps[..end] {
            if step.action != Action::Keep {
                live[step.slot as usize] = step.action == Action::Allocate;
            }
        }
        for (&block, live) in self.blocks.iter().zip(live) {
            if live {
                // The replay has already failed, so a second error adds nothing.
                let _ = free(allocator, block);
            }
        }
    }

    fn error(&self, event: usize, failure: Failure) -> ReplayError {
        match failure {
            Failure::Free(error) => ReplayError::Free { event, error },
            Failure::Alloc(error) => {
                let (bytes, label) = match self.trace.events().get(event) {
                    Some(&TraceEvent::Alloc { bytes, label, .. }) => (bytes, self.trace.label(label)),
                    _ => (0, ""),
                };
                ReplayError::Alloc { event, label: label.to_owned(), bytes, error }
            }
        }
    }
}

/// Assigns slots to blocks. Reuses the last freed slot first, because its memory is most likely cached.
#[derive(Debug, Default)]
struct Slots {
    /// By block; `None` once freed.
    of_blocks: Vec<Option<u32>>,
    free: Vec<u32>,
    count: u32,
}

impl Slots {
    /// Returns a slot for the next block.
    fn take(&mut self) -> u32 {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.count += 1;
            self.count - 1
        });
        self.of_blocks.push(Some(slot));
        slot
    }

    fn give_back(&mut self, block: u32) -> u32 {
        // A trace is consistent, so the block is live.
        let slot = self.of_blocks.get_mut(block as usize).and_then(Option::take).unwrap_or(0);
        self.free.push(slot);
        slot
    }

    fn of(&self, block: u32) -> u32 {
        self.of_blocks.get(block as usize).copied().flatten().unwrap_or(0)
    }

    /// Returns the slots of the live blocks, in the order of the blocks.
    fn live(self) -> Vec<u32> {
        self.of_blocks.into_iter().flatten().collect()
    }
}

/// Counters of a replay.
#[derive(Clone, Copy, Debug, Default)]
struct Meter {
    allocations: u64,
    in_use: u64,
    peak_in_use: u64,
}

enum Failure {
    Alloc(AllocError),
    Free(BlockError),
}

/// The hot loop of a replay. Freed blocks stay in the table. The error path reads the steps again to find the live
/// ones.
fn play<A: Allocator + ?Sized>(
    steps: &[PreparedEvent],
    blocks: &mut [Block],
    allocator: &A,
    alignment: u64,
    total: &mut Meter,
) -> Result<(), (usize, Failure)> {
    let mut request = Request::new(0).with_attributes(AllocationAttributes::no_retry());
    // A local copy stays in registers.
    let mut meter = *total;
    for (index, step) in steps.iter().enumerate() {
        let slot = &mut blocks[step.slot as usize];
        if step.action == Action::Free {
            meter.in_use = meter.in_use.wrapping_sub(slot.bytes);
            free(allocator, *slot).map_err(|error| (index, Failure::Free(error)))?;
        } else if step.action == Action::Allocate {
            request.bytes = step.bytes;
            request.alignment = alignment.max(1 << step.alignment);
            request.stream = step.stream.into();
            let block = allocator.allocate(&request).map_err(|error| (index, Failure::Alloc(error)))?;
            meter.allocations += 1;
            meter.in_use = meter.in_use.wrapping_add(block.bytes);
            meter.peak_in_use = meter.peak_in_use.max(meter.in_use);
            *slot = block;
        }
    }
    *total = meter;
    Ok(())
}

#[inline]
fn free<A: Allocator + ?Sized>(allocator: &A, block: Block) -> Result<(), BlockError> {
    // SAFETY: this allocator returned the block in this replay, and nothing has used its memory.
    unsafe { allocator.deallocate(block) }
}

#[cfg(test)]
mod tests;

//! The arena behind a lock, with a source of memory below it.

mod inspect;
mod slow_path;

use std::fmt;
use std::sync::Arc;

use super::arena::{Arena, Need, NotAdded};
use super::chunk::GRANULE;
use super::config::BfcConfig;
use super::frontier::SafeFrontier;
use super::growth::{Growth, available};
use crate::allocator::{Allocator, Request};
use crate::error::{AllocError, BlockError, SourceError};
use crate::ledger::{Ledger, Tag};
use crate::memory::{Block, MemoryKind, PoolId, Span};
use crate::retry::AllocatorRetry;
use crate::stats::Stats;
use crate::sub_allocator::SubAllocator;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::{Mutex, lock, thread_number};

/// A pool over one source of memory: best fit with coalescing.
///
/// Nothing is taken from the source before the first request. What is taken goes back when the pool is dropped, and
/// before that when it is idle: on demand by [`release_idle_regions`](Self::release_idle_regions), or, with garbage
/// collection, when a larger region is needed in its place.
///
/// The source is called under the pool's lock. A source or visitor that calls back into the pool gets an error, or for
/// [`stats`](Allocator::stats) the figures as they were before the call; other look-ups come back empty.
pub struct BfcAllocator {
    name: String,
    source: Arc<dyn SubAllocator>,
    config: BfcConfig,
    state: Mutex<State>,
    frontier: SafeFrontier,
    retry: AllocatorRetry,
    call_out: CallOut,
}

/// What the lock protects.
#[derive(Debug)]
struct State {
    arena: Arena,
    growth: Growth,
    users: Users,
    /// Whether the source ever delivered more than it was asked for: only then may the limit be exceeded.
    over_delivered: bool,
}

/// Which threads have allocated or freed. As long as it is one, nobody else can free while it waits.
#[derive(Clone, Copy, Debug, Default)]
struct Users {
    latest: u64,
    several: bool,
}

impl Users {
    #[inline]
    fn note(&mut self, thread: u64) {
        if self.latest != thread {
            self.several = self.latest != 0;
            self.latest = thread;
        }
    }
}

/// The call into the source that is under way.
#[derive(Debug, Default)]
struct CallOut {
    /// The thread that makes it, or 0. A thread that finds its own number here has come back from its own call; it
    /// cannot find it stale, for it wrote it itself.
    thread: AtomicU64,
    /// The figures before the call, for those who ask from within it.
    stats: Mutex<Stats>,
}

/// Ends a call into the source, also if the source panics.
struct EndCallOut<'a>(&'a CallOut);

impl Drop for EndCallOut<'_> {
    fn drop(&mut self) {
        self.0.thread.store(0, Ordering::Relaxed);
    }
}

/// Why the pool did not grow.
#[derive(Clone, Debug)]
enum Shortfall {
    /// The limit leaves too little.
    Limit,
    /// The source did not deliver.
    Source(SourceError),
}

impl BfcAllocator {
    /// A pool called `name` that takes its memory from `source`.
    #[must_use]
    pub fn new(name: impl Into<String>, source: Arc<dyn SubAllocator>, config: BfcConfig) -> Self {
        let state = State {
            arena: Arena::new(PoolId::next(), config.split),
            growth: Growth::new(&config),
            users: Users::default(),
            over_delivered: false,
        };
        Self {
            name: name.into(),
            source,
            config,
            state: Mutex::new(state),
            frontier: SafeFrontier::default(),
            retry: AllocatorRetry::new(),
            call_out: CallOut::default(),
        }
    }

    /// How the pool behaves.
    #[must_use]
    pub const fn config(&self) -> &BfcConfig {
        &self.config
    }

    /// The calling thread's number, unless it comes from a call into the source that this pool is making.
    #[inline]
    fn enter(&self) -> Option<u64> {
        let thread = thread_number();
        (self.call_out.thread.load(Ordering::Relaxed) != thread).then_some(thread)
    }

    /// Calls the source, marked so that a call back is recognised. The lock is held.
    fn call_source<R>(&self, arena: &Arena, call: impl FnOnce(&dyn SubAllocator) -> R) -> R {
        *lock(&self.call_out.stats) = self.stats_of(arena);
        self.call_out.thread.store(thread_number(), Ordering::Relaxed);
        let _end = EndCallOut(&self.call_out);
        call(&*self.source)
    }

    /// Takes a region that holds `need`: doubling, or as much less as the source gives.
    fn extend(&self, state: &mut State, need: &Need) -> Result<(), Shortfall> {
        // A source that honours the alignment leaves no padding before the block. One that does not is asked a second
        // time, for a region that suffices wherever it starts (upstream takes the first and then finds no room in it).
        let mut needed = need.rounded;
        let mut alignment = need.alignment;
        loop {
            let available = available(self.config.limit, state.arena.reserved());
            let wish = state.growth.wish(needed, available).ok_or(Shortfall::Limit)?;
            let span = match self.take_region(state, alignment, wish.bytes, needed) {
                // So does a source that has to refuse the alignment, as a driver's memory must.
                Err(Shortfall::Source(SourceError::BadRegion { .. })) if alignment > GRANULE => {
                    (alignment, needed) = (GRANULE, need.with_most_padding());
                    continue;
                }
                taken => taken?,
            };
            if !need.fits(span.address, span.bytes) && needed < need.with_most_padding() {
                // SAFETY: the region has just come from the source, and no arena knows of it.
                unsafe { self.give_back(&state.arena, span) };
                needed = need.with_most_padding();
                continue;
            }
            return match state.arena.add_region(span, self.source.supports_coalescing()) {
                Ok(()) => {
                    state.growth.met(wish);
                    state.over_delivered |= span.bytes > wish.bytes;
                    Ok(())
                }
                Err(NotAdded::Full) => {
                    // SAFETY: the region has just come from the source, and the arena did not take it.
                    unsafe { self.give_back(&state.arena, span) };
                    Err(Shortfall::Limit)
                }
                // It overlaps a region that is held already, so it must not be given back on top of that.
                Err(NotAdded::Bad) => Err(bad_region(span)),
            };
        }
    }

    /// A region of `bytes` bytes or, if the source has no such, of fewer but at least `needed`.
    fn take_region(&self, state: &State, alignment: u64, bytes: u64, needed: u64) -> Result<Span, Shortfall> {
        let mut bytes = bytes;
        loop {
            match self.call_source(&state.arena, |source| source.allocate(alignment, bytes)) {
                Ok(span) => {
                    let sound = span.address.is_multiple_of(GRANULE) && span.bytes >= bytes;
                    if sound && span.end().is_some() {
                        return Ok(span);
                    }
                    // SAFETY: the region has just come from the source, and no arena knows of it.
                    unsafe { self.give_back(&state.arena, span) };
                    return Err(bad_region(span));
                }
                Err(error @ SourceError::Exhausted { .. }) => {
                    bytes = Growth::smaller(bytes, needed).ok_or(Shortfall::Source(error))?;
                }
                Err(error) => return Err(Shortfall::Source(error)),
            }
        }
    }

    /// Gives back every region that nobody uses; how many bytes that were.
    fn release_idle(&self, state: &mut State) -> u64 {
        let mut bytes = 0;
        while let Some(span) = state.arena.take_idle_region() {
            bytes += span.bytes;
            // SAFETY: the arena has just forgotten the region, in which no block was live.
            unsafe { self.give_back(&state.arena, span) };
        }
        bytes
    }

    /// Gives a region back to the source.
    ///
    /// # Safety
    /// The region came from the source, the arena does not know of it (any more), and nothing uses it.
    unsafe fn give_back(&self, arena: &Arena, span: Span) {
        self.call_source(arena, |source| {
            // SAFETY: as this function's caller promises.
            unsafe { source.free(span) }
        });
    }

    fn stats_of(&self, arena: &Arena) -> Stats {
        Stats { bytes_limit: Some(self.config.limit), ..arena.stats() }
    }
}

fn bad_region(span: Span) -> Shortfall {
    Shortfall::Source(SourceError::BadRegion { address: span.address, bytes: span.bytes })
}

impl fmt::Debug for BfcAllocator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, source, config) = (&self.name, &self.source, &self.config);
        let mut debug = f.debug_struct("BfcAllocator");
        debug.field("name", name).field("source", source).field("config", config).finish_non_exhaustive()
    }
}

impl Drop for BfcAllocator {
    fn drop(&mut self) {
        let state = lock(&self.state);
        for span in state.arena.region_spans() {
            // SAFETY: the arena goes with the pool. Blocks are promised to be valid no longer than the pool lives.
            unsafe { self.give_back(&state.arena, span) };
        }
    }
}

// SAFETY: blocks are chunks of regions that the source promised to be valid memory of its kind, and initialised if the
// host can read it; `extend` checks that regions do not overlap and stay within the address space. The arena hands a
// chunk to one allocation at a time, cut at the alignment asked for (rules 1 to 4 and 7 of `INVARIANTS`).
unsafe impl Allocator for BfcAllocator {
    fn name(&self) -> &str {
        &self.name
    }

    fn memory_kind(&self) -> MemoryKind {
        self.source.memory_kind()
    }

    #[inline]
    fn allocate(&self, request: &Request<'_>) -> Result<Block, AllocError> {
        if request.bytes == 0 {
            return Ok(Block::EMPTY);
        }
        let rounded = self.rounded(request)?;
        let thread = self.enter().ok_or_else(|| AllocError::Reentrant { allocator: self.name.clone() })?;
        let retry = self.config.retry && request.attributes.retry_on_failure;
        let refusal = match self.attempt(request, rounded, thread, !retry) {
            Ok(block) => return Ok(block),
            Err(refusal) => refusal,
        };
        if !(retry && refusal.wait) {
            return Err(refusal.error);
        }
        let attempt = |last| self.attempt(request, rounded, thread, last);
        self.retry.allocate(request.bytes, self.config.retry_timeout, attempt)
    }

    unsafe fn deallocate(&self, block: Block) -> Result<(), BlockError> {
        if block != Block::EMPTY {
            let thread = self.enter().ok_or(BlockError::Reentrant)?;
            let state = &mut *lock(&self.state);
            let chunk = state.arena.live(&block)?;
            state.users.note(thread);
            let freed_at = self.config.timing_counter.as_ref().map_or(0, |counter| counter.next());
            state.arena.free(chunk, freed_at);
        }
        self.retry.notify();
        Ok(())
    }

    fn stats(&self) -> Stats {
        let stats = match self.enter() {
            Some(_) => self.stats_of(&lock(&self.state).arena),
            None => lock(&self.call_out.stats).clone(),
        };
        Stats { retry: self.retry.stats(), ..stats }
    }

    fn clear_stats(&self) -> bool {
        let cleared = self.write(|arena| arena.clear_stats()).is_some();
        if cleared {
            self.retry.clear_stats();
        }
        cleared
    }

    fn requested_bytes(&self, block: &Block) -> Result<u64, BlockError> {
        self.of_block(block, 0, |arena, chunk| arena.chunk(chunk).requested)
    }

    fn block_at(&self, address: u64) -> Result<Block, BlockError> {
        self.write(|arena| arena.block_at(address)).unwrap_or(Err(BlockError::Reentrant))
    }

    fn tag(&self, block: &Block) -> Result<Tag, BlockError> {
        self.of_block(block, Tag::default(), |arena, chunk| arena.chunk(chunk).tag)
    }

    fn retag(&self, block: &Block, tag: Tag) -> Result<(), BlockError> {
        self.of_block(block, (), |arena, chunk| arena.retag(chunk, tag))
    }

    fn ledger(&self) -> Ledger {
        self.write(|arena| arena.ledger().clone()).unwrap_or_default()
    }

    fn set_safe_frontier(&self, count: u64) {
        if self.frontier.advance(count) {
            self.retry.notify();
        }
    }
}

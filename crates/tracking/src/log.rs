//! The event log: every allocation and free that passes through a tracker's ops, in order, while it is on.

use std::collections::HashMap;

use bfc_core::sync::atomic::{AtomicBool, Ordering};
use bfc_core::sync::{Mutex, lock};
use bfc_core::{Block, Category, OwnerId, PoolId, Tag};

/// Something that happened to a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A block was handed out.
    Alloc {
        /// The allocation's number in the log, from 0 upward.
        id: u64,
        /// Bytes asked for.
        requested: u64,
        /// Bytes granted.
        granted: u64,
        /// Where the block lies.
        address: u64,
        /// Whom it is charged to.
        owner: OwnerId,
        /// What it is for.
        category: Category,
    },
    /// A block was given back.
    Free {
        /// The number of its allocation.
        id: u64,
    },
}

/// A recorded log. Frees of blocks that were taken before the log began are not in it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EventLog {
    /// What happened, in order. Frees stand before, and allocations after the moment at which the pool had the
    /// memory back or handed it out, so no address is live twice.
    pub events: Vec<Event>,
    /// How many events were lost because the log was full: allocations, and frees of those in the log. If it is not 0,
    /// `events` is an exact beginning, no more.
    pub dropped: u64,
}

impl EventLog {
    /// Whether events were lost because the log was full.
    #[must_use]
    pub const fn overflowed(&self) -> bool {
        self.dropped > 0
    }
}

/// A tracker's log, off at first.
#[derive(Debug, Default)]
pub(crate) struct Log {
    /// Read on every event: the only cost of a log that is off.
    on: AtomicBool,
    recording: Mutex<Recording>,
}

/// A block's identity. The address alone would let a stale block pass for the one that now lives there.
type Key = (PoolId, u64, u64);

const fn key(block: &Block) -> Key {
    (block.pool, block.address, block.id)
}

#[derive(Debug, Default)]
struct Recording {
    capacity: usize,
    log: EventLog,
    allocations: u64,
    live: HashMap<Key, u64>,
}

impl Recording {
    fn push(&mut self, event: Event) {
        if self.log.events.len() < self.capacity {
            self.log.events.push(event);
        } else {
            self.log.dropped += 1;
        }
    }
}

impl Log {
    pub(crate) fn start(&self, capacity: usize) {
        *lock(&self.recording) = Recording { capacity, ..Recording::default() };
        self.on.store(true, Ordering::Release);
    }

    pub(crate) fn take(&self) -> EventLog {
        let mut recording = lock(&self.recording);
        self.on.store(false, Ordering::Release);
        std::mem::take(&mut *recording).log
    }

    /// To be called after the allocation.
    pub(crate) fn post_alloc(&self, block: &Block, requested: u64, tag: Tag) {
        if self.on.load(Ordering::Relaxed) {
            self.record_alloc(block, requested, tag);
        }
    }

    /// To be called before the free.
    pub(crate) fn post_free(&self, block: &Block) {
        if self.on.load(Ordering::Relaxed) {
            self.record_free(block);
        }
    }

    #[cold]
    fn record_alloc(&self, block: &Block, requested: u64, tag: Tag) {
        let mut recording = lock(&self.recording);
        if !self.on.load(Ordering::Relaxed) {
            return;
        }
        let id = recording.allocations;
        recording.allocations += 1;
        if recording.log.events.len() < recording.capacity {
            recording.live.insert(key(block), id);
        }
        let Tag { owner, category } = tag;
        let (granted, address) = (block.bytes, block.address);
        recording.push(Event::Alloc { id, requested, granted, address, owner, category });
    }

    #[cold]
    fn record_free(&self, block: &Block) {
        let mut recording = lock(&self.recording);
        if let Some(id) = recording.live.remove(&key(block)) {
            recording.push(Event::Free { id });
        }
    }
}

//! Where tracking allocators wait for their next op.
//!
//! Every op execution has a tracking allocator of its own, and it lives as long as the op's last allocation. Taking
//! them from here, and putting them back, keeps the heap out of the path of every op.

use std::sync::Arc;

use bfc_core::{Allocator, LastResort, OwnerId};
use crossbeam::queue::ArrayQueue;

use crate::allocator::TrackingAllocator;
use crate::record::Recorder;
use crate::saved::Saves;

/// How many idle allocators are kept. All ops of a forward pass whose results wait for the backward pass come back in
/// one step, so this is about the number of ops in a large model; 8 bytes each while empty.
const CAPACITY: usize = 4096;

/// Idle tracking allocators of one tracker.
#[derive(Debug)]
pub(crate) struct Bin {
    /// Whom all of them ask before a request fails.
    pub(crate) last_resort: Arc<LastResort>,
    idle: ArrayQueue<Arc<TrackingAllocator>>,
}

impl Bin {
    pub(crate) fn new() -> Self {
        Self { last_resort: Arc::default(), idle: ArrayQueue::new(CAPACITY) }
    }

    /// A tracking allocator over `inner` with all figures at zero: a recycled one if there is one.
    pub(crate) fn take(
        self: &Arc<Self>,
        inner: &Arc<dyn Allocator>,
        owner: OwnerId,
        recorder: &Arc<Recorder>,
        saves: &Arc<Saves>,
    ) -> Arc<TrackingAllocator> {
        // What lies here has no other handle: only the last one is put here.
        if let Some(mut idle) = self.idle.pop()
            && let Some(allocator) = Arc::get_mut(&mut idle)
        {
            allocator.restart(Arc::clone(inner), owner);
            return idle;
        }
        Arc::new(TrackingAllocator::for_op(
            Arc::clone(inner),
            owner,
            Arc::downgrade(self),
            Arc::clone(recorder),
            Arc::clone(saves),
        ))
    }

    /// Keeps an allocator for later; one too many is dropped.
    pub(crate) fn put(&self, allocator: Arc<TrackingAllocator>) {
        drop(self.idle.push(allocator));
    }

    /// How many allocators wait.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.idle.len()
    }
}

//! Prefetching of batches in a separate thread.

use std::sync::mpsc::{Receiver, Sender, channel, sync_channel};
use std::thread::Scope;

use highwater_tensor::{Place, Result, Tensor};

use super::batches::{HostBatch, Rows};

/// An iterator over prefetched [`Batches`](super::Batches). Created by
/// [`Batches::prefetched`](super::Batches::prefetched).
#[derive(Debug)]
pub struct Prefetched<'scope, P> {
    ready: Receiver<HostBatch>,
    /// Returns host memory to the thread for reuse.
    used: Sender<HostBatch>,
    /// A batch whose tensors could not be created yet.
    waiting: Option<HostBatch>,
    left: usize,
    width: usize,
    /// Ends with the scope, as the thread does, so that no value can keep the thread waiting.
    place: &'scope P,
}

impl<'scope, P: Place> Prefetched<'scope, P> {
    pub(super) fn new(
        scope: &'scope Scope<'scope, '_>,
        mut rows: Rows<'scope>,
        width: usize,
        place: &'scope P,
        ahead: usize,
    ) -> Self {
        let left = rows.left();
        // With a capacity of 0, the thread holds one finished batch. A channel allocates memory for its whole capacity
        // at once.
        let (to_ready, ready) = sync_channel(ahead.min(left).saturating_sub(1));
        let (used, from_used) = channel::<HostBatch>();
        scope.spawn(move || {
            loop {
                let mut batch = from_used.try_recv().unwrap_or_default();
                // The send fails once the receiver was dropped.
                if !rows.take(&mut batch) || to_ready.send(batch).is_err() {
                    break;
                }
            }
        });
        Self { ready, used, waiting: None, left, width, place }
    }
}

impl<P: Place> Iterator for Prefetched<'_, P> {
    type Item = Result<(Tensor, Tensor)>;

    /// If a batch fails for lack of memory, the next call retries it.
    fn next(&mut self) -> Option<Self::Item> {
        let batch = self.waiting.take().or_else(|| self.ready.recv().ok())?;
        let made = batch.to_tensors(self.place, self.width);
        if made.is_ok() {
            self.left -= 1;
            // The thread may have finished all batches and ended.
            let _ = self.used.send(batch);
        } else {
            self.waiting = Some(batch);
        }
        Some(made)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl<P: Place> ExactSizeIterator for Prefetched<'_, P> {}

//! Batches put together by a thread of their own, before they are asked for.

use std::sync::mpsc::{Receiver, Sender, channel, sync_channel};
use std::thread::Scope;

use highwater_tensor::{Place, Result, Tensor};

use super::batches::{HostBatch, Rows};

/// [`Batches`](super::Batches) that are ready when they are asked for: made by
/// [`Batches::prefetched`](super::Batches::prefetched).
#[derive(Debug)]
pub struct Prefetched<'scope, P> {
    ready: Receiver<HostBatch>,
    /// Where room goes back to, to be used again.
    used: Sender<HostBatch>,
    /// A batch that could not be made into tensors yet.
    waiting: Option<HostBatch>,
    left: usize,
    width: usize,
    /// Ends with the scope, as the thread does: nobody can keep it waiting.
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
        // With no room in the channel, one batch is ready in the thread's hands. A channel takes memory for all its room at once.
        let (to_ready, ready) = sync_channel(ahead.min(left).saturating_sub(1));
        let (used, from_used) = channel::<HostBatch>();
        scope.spawn(move || {
            loop {
                let mut batch = from_used.try_recv().unwrap_or_default();
                // An error says that nobody listens any more.
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

    /// A batch that could not be made, for lack of memory, is tried again by the next call.
    fn next(&mut self) -> Option<Self::Item> {
        let batch = self.waiting.take().or_else(|| self.ready.recv().ok())?;
        let made = batch.to_tensors(self.place, self.width);
        if made.is_ok() {
            self.left -= 1;
            // The thread may have put everything together and ended.
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

//! Threads that read batches in advance.
//!
//! Worker `i` of `n` reads the batches `i`, `i + n`, `i + 2n`, … and sends them through a channel of its own. The
//! caller receives from the channels in turn, so the order of the batches does not depend on the threads' speed.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{Builder, JoinHandle};

use highwater_tensor::Result;
use highwater_tensor::error::DataError;

use super::loading::OrderedPass;
use super::sample::Sample;

/// The running workers of a pass. Dropping them ends their threads after the batches that they are reading.
#[derive(Debug)]
pub(super) struct Workers {
    channels: Vec<Receiver<Result<Sample>>>,
    threads: Vec<JoinHandle<()>>,
    first: usize,
}

impl Workers {
    /// Starts `count` workers, at least one, for the batches `first..end`. Each worker holds at most `prefetch` finished
    /// batches, at least one.
    pub(super) fn start(
        pass: &Arc<OrderedPass>,
        (first, end): (usize, usize),
        count: usize,
        prefetch: usize,
    ) -> Result<Self> {
        let count = count.min(end.saturating_sub(first)).max(1);
        let mut workers = Self { channels: Vec::new(), threads: Vec::new(), first };
        // A worker that waits in `send` holds one finished batch. A channel allocates its whole capacity at once.
        let capacity = prefetch.min(end.saturating_sub(first)).saturating_sub(1);
        for worker in 0..count {
            let (sender, receiver) = sync_channel(capacity);
            let (pass, batches) = (Arc::clone(pass), (first + worker..end).step_by(count));
            let spawned = Builder::new()
                .name(format!("data worker {worker}"))
                .spawn(move || send_all(&pass, batches, &sender));
            let thread =
                spawned.map_err(|error| DataError::NoWorker { worker, count, message: error.to_string() })?;
            workers.channels.push(receiver);
            workers.threads.push(thread);
        }
        Ok(workers)
    }

    /// Waits for a batch. The caller takes all batches in order.
    pub(super) fn take(&self, batch: usize) -> Result<Sample> {
        let received = self.channels[(batch - self.first) % self.channels.len()].recv();
        let ended = || DataError::Panicked { batch, message: "the worker has ended".to_owned() };
        received.unwrap_or_else(|_| Err(ended().into()))
    }
}

/// Reads and sends batches until all are sent or the receiver is dropped.
fn send_all(pass: &OrderedPass, batches: impl Iterator<Item = usize>, sender: &SyncSender<Result<Sample>>) {
    for batch in batches {
        if sender.send(pass.load(batch)).is_err() {
            break;
        }
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        // Wakes the workers that wait for room in a channel.
        self.channels.clear();
        for thread in self.threads.drain(..) {
            // Panics of the data set were caught.
            let _ = thread.join();
        }
    }
}

//! Ranks as threads of one process, for tests. They share all algorithms with MPI, except for the messages.

use std::ops::Range;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use crate::collective::{
    Collective, SliceMut, SumOrder, check_parts, check_reduction, check_root, check_scatter,
};
use crate::error::CollectiveError;
use crate::operation::CollectiveOperation;
use crate::ordered::{self, Messages};
use crate::world::World;

/// The time limit of an operation.
const LIMIT: Duration = Duration::from_secs(60);

/// Runs a function on each rank and returns the results in rank order.
pub(crate) fn run_ranks<T: Send>(size: usize, run: impl Fn(World) -> T + Sync) -> Vec<T> {
    let mut channels: Vec<Vec<_>> = (0..size).map(|_| (0..size).map(|_| mpsc::channel()).collect()).collect();
    let outboxes: Vec<Vec<_>> =
        channels.iter().map(|row| row.iter().map(|(sender, _)| sender.clone()).collect()).collect();
    let ranks = outboxes.into_iter().enumerate().map(|(rank, outboxes)| {
        let inboxes = channels.iter_mut().map(|row| row.remove(0).1).collect();
        World::new(Arc::new(Threads(Mutex::new(Mailboxes::new(rank, outboxes, inboxes)))), size)
    });
    let (ranks, run) = (ranks.collect::<Vec<_>>(), &run);
    thread::scope(|scope| {
        let threads: Vec<_> = ranks.into_iter().map(|world| scope.spawn(move || run(world))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

#[derive(Debug)]
struct Threads(Mutex<Mailboxes>);

#[derive(Debug)]
struct Mailboxes {
    rank: usize,
    /// To each rank.
    outboxes: Vec<Sender<Vec<u8>>>,
    /// From each rank.
    inboxes: Vec<Receiver<Vec<u8>>>,
    /// The operation that runs.
    operation: CollectiveOperation,
    /// The message of the first error.
    failure: Option<String>,
}

impl Mailboxes {
    fn new(rank: usize, outboxes: Vec<Sender<Vec<u8>>>, inboxes: Vec<Receiver<Vec<u8>>>) -> Self {
        Self { rank, outboxes, inboxes, operation: CollectiveOperation::Barrier, failure: None }
    }
}

impl Messages for Mailboxes {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.outboxes.len()
    }

    fn exchange(
        &mut self,
        sends: &[(usize, &[u8])],
        receives: &mut [(usize, &mut [u8])],
    ) -> Result<(), CollectiveError> {
        let (operation, rank) = (self.operation, self.rank);
        for (to, bytes) in sends {
            let sent = self.outboxes[*to].send(bytes.to_vec());
            sent.map_err(|_| CollectiveError::Left { operation, rank, peer: *to })?;
        }
        for (from, bytes) in receives {
            let peer = *from;
            let message = self.inboxes[peer].recv_timeout(LIMIT).map_err(|error| match error {
                RecvTimeoutError::Disconnected => CollectiveError::Left { operation, rank, peer },
                RecvTimeoutError::Timeout => {
                    CollectiveError::TimedOut { operation, rank, peers: vec![peer], limit: LIMIT }
                }
            })?;
            let (expected, received) = (bytes.len(), Some(message.len()));
            if expected != message.len() {
                return Err(CollectiveError::Length { operation, rank, peer, expected, received });
            }
            bytes.copy_from_slice(&message);
        }
        Ok(())
    }
}

impl Threads {
    fn lock(&self) -> MutexGuard<'_, Mailboxes> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs an operation, unless an earlier one failed.
    fn run(
        &self,
        operation: CollectiveOperation,
        work: impl FnOnce(&mut Mailboxes) -> Result<(), CollectiveError>,
    ) -> Result<(), CollectiveError> {
        let mailboxes = &mut *self.lock();
        if let Some(cause) = mailboxes.failure.clone() {
            return Err(CollectiveError::Ended { operation, rank: mailboxes.rank, cause });
        }
        mailboxes.operation = operation;
        work(mailboxes).inspect_err(|error| mailboxes.failure = Some(error.to_string()))
    }
}

impl Collective for Threads {
    fn rank(&self) -> usize {
        self.lock().rank
    }

    fn size(&self) -> usize {
        self.lock().size()
    }

    fn all_reduce(
        &self,
        data: SliceMut<'_>,
        reduce: SumOrder,
        workspace: &mut [u8],
    ) -> Result<(), CollectiveError> {
        check_reduction(CollectiveOperation::AllReduce, &data, reduce, self.size(), workspace)?;
        self.run(CollectiveOperation::AllReduce, |mailboxes| ordered::all_reduce(mailboxes, data, workspace))
    }

    fn reduce_scatter(
        &self,
        mut data: SliceMut<'_>,
        parts: &[Range<usize>],
        workspace: &mut [u8],
    ) -> Result<(), CollectiveError> {
        check_scatter(&data, parts, self.rank(), self.size(), workspace)?;
        self.run(CollectiveOperation::ReduceScatter, |mailboxes| {
            ordered::reduce_scatter(mailboxes, &mut data, parts, workspace)
        })
    }

    fn all_gather(&self, data: SliceMut<'_>, parts: &[Range<usize>]) -> Result<(), CollectiveError> {
        check_parts(CollectiveOperation::AllGather, data.len(), parts, self.size())?;
        self.run(CollectiveOperation::AllGather, |mailboxes| ordered::all_gather(mailboxes, data, parts))
    }

    fn broadcast(&self, data: SliceMut<'_>, root: usize) -> Result<(), CollectiveError> {
        check_root(root, self.size())?;
        self.run(CollectiveOperation::Broadcast, |mailboxes| {
            ordered::broadcast(mailboxes, data.into_bytes(), root)
        })
    }

    fn barrier(&self) -> Result<(), CollectiveError> {
        self.run(CollectiveOperation::Barrier, ordered::barrier)
    }

    fn abort(&self, code: i32) -> ! {
        panic!("abort with code {code}")
    }
}

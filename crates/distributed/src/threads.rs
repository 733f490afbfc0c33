//! Ranks as threads of one process, for tests. They share all algorithms with MPI, except for the messages.

use std::ops::Range;
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use crate::collective::{
    Collective, Reduce, SliceMut, check_parts, check_reduction, check_root, check_scatter,
};
use crate::error::CollectiveError;
use crate::operation::Operation;
use crate::ordered::{self, Messages};
use crate::world::World;

/// Runs a function on each rank and returns the results in rank order.
pub(crate) fn run_ranks<T: Send>(size: usize, run: impl Fn(World) -> T + Sync) -> Vec<T> {
    let mut channels: Vec<Vec<_>> = (0..size).map(|_| (0..size).map(|_| mpsc::channel()).collect()).collect();
    let outboxes: Vec<Vec<_>> =
        channels.iter().map(|row| row.iter().map(|(sender, _)| sender.clone()).collect()).collect();
    let ranks = outboxes.into_iter().enumerate().map(|(rank, outboxes)| {
        let inboxes = channels.iter_mut().map(|row| row.remove(0).1).collect();
        World::new(Arc::new(Threads(Mutex::new(Mailboxes { rank, outboxes, inboxes }))), size)
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
        for (to, bytes) in sends {
            self.outboxes[*to].send(bytes.to_vec()).unwrap();
        }
        for (from, bytes) in receives {
            bytes.copy_from_slice(&self.inboxes[*from].recv_timeout(Duration::from_secs(60)).unwrap());
        }
        Ok(())
    }
}

impl Threads {
    fn run<T>(&self, operation: impl FnOnce(&mut Mailboxes) -> T) -> T {
        operation(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Collective for Threads {
    fn rank(&self) -> usize {
        self.run(|mailboxes| mailboxes.rank)
    }

    fn size(&self) -> usize {
        self.run(|mailboxes| mailboxes.size())
    }

    fn all_reduce(
        &self,
        data: SliceMut<'_>,
        reduce: Reduce,
        workspace: &mut [u8],
    ) -> Result<(), CollectiveError> {
        check_reduction(Operation::AllReduce, &data, reduce, self.size(), workspace)?;
        self.run(|mailboxes| ordered::all_reduce(mailboxes, data, workspace))
    }

    fn reduce_scatter(
        &self,
        mut data: SliceMut<'_>,
        parts: &[Range<usize>],
        workspace: &mut [u8],
    ) -> Result<(), CollectiveError> {
        check_scatter(&data, parts, self.rank(), self.size(), workspace)?;
        self.run(|mailboxes| ordered::reduce_scatter(mailboxes, &mut data, parts, workspace))
    }

    fn all_gather(&self, data: SliceMut<'_>, parts: &[Range<usize>]) -> Result<(), CollectiveError> {
        check_parts(Operation::AllGather, data.len(), parts, self.size())?;
        self.run(|mailboxes| ordered::all_gather(mailboxes, data, parts))
    }

    fn broadcast(&self, data: SliceMut<'_>, root: usize) -> Result<(), CollectiveError> {
        check_root(root, self.size())?;
        self.run(|mailboxes| ordered::broadcast(mailboxes, data.into_bytes(), root))
    }

    fn barrier(&self) -> Result<(), CollectiveError> {
        self.run(ordered::barrier)
    }

    fn abort(&self, code: i32) -> ! {
        panic!("abort with code {code}")
    }
}

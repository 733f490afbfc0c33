//! The calls of MPI: messages with a time limit, cancellation, and the end of the job.

use std::ffi::c_int;
use std::mem::{self, MaybeUninit};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use mpi::Threading;
use mpi::collective::SystemOperation;
use mpi::datatype::Equivalence;
use mpi::environment::Universe;
use mpi::ffi;
use mpi::raw::AsRaw;

use super::{exit, status};
use crate::error::{CollectiveError, WorldError};
use crate::operation::CollectiveOperation;
use crate::ordered::{self, Messages};

/// The most elements of one MPI call, whose counts have 32 bits.
const MOST: usize = 1 << 30;

/// The time that MPI gets to cancel a receive.
const CANCEL_LIMIT: Duration = Duration::from_secs(1);

/// The interval at which an operation looks for ranks that have disconnected.
const LOOK_INTERVAL: Duration = Duration::from_millis(200);

/// The time that the launcher gets to forward the last messages of this process.
const OUTPUT_TIME: Duration = Duration::from_millis(200);

/// This rank's end of the connections to all ranks. It belongs to the communication thread.
pub(super) struct Endpoint {
    /// Finalizes MPI when dropped.
    universe: Universe,
    comm: ffi::MPI_Comm,
    rank: usize,
    size: usize,
    limit: Duration,
    abort: Arc<OnceLock<i32>>,
    /// The operation that runs.
    operation: CollectiveOperation,
    /// `None` if the time limit exceeds the clock.
    deadline: Option<Instant>,
    /// The message of the first error. Ranks are out of step from then on.
    failure: Option<String>,
}

/// A send or a receive that MPI has not completed.
struct Pending {
    request: ffi::MPI_Request,
    /// `None` for an operation of all ranks.
    peer: Option<usize>,
    /// The bytes to receive; `None` for a send.
    receives: Option<usize>,
}

impl Endpoint {
    pub(super) fn connect(limit: Duration, abort: Arc<OnceLock<i32>>) -> Result<Self, WorldError> {
        let (universe, threading) =
            mpi::initialize_with_threading(Threading::Funneled).ok_or(WorldError::Initialized)?;
        if threading < Threading::Funneled {
            return Err(WorldError::Threads);
        }
        let world = universe.world();
        let (rank, size) = {
            use mpi::topology::Communicator;
            (world.rank().unsigned_abs() as usize, world.size().unsigned_abs() as usize)
        };
        let comm = world.as_raw();
        // SAFETY: reads a constant of the MPI library.
        let errors_return = unsafe { ffi::RSMPI_ERRORS_RETURN };
        // SAFETY: the communicator is valid until `universe` is dropped. From here on, calls return error codes.
        unsafe { ffi::MPI_Comm_set_errhandler(comm, errors_return) };
        let operation = CollectiveOperation::Barrier;
        Ok(Self { universe, comm, rank, size, limit, abort, operation, deadline: None, failure: None })
    }

    /// Returns the rank and the number of ranks.
    pub(super) const fn places(&self) -> (usize, usize) {
        (self.rank, self.size)
    }

    /// Runs an operation, unless an earlier one failed.
    pub(super) fn perform(
        &mut self,
        operation: CollectiveOperation,
        work: impl FnOnce(&mut Self) -> Result<(), CollectiveError>,
    ) -> Result<(), CollectiveError> {
        self.end_if_aborted();
        if let Some(cause) = self.failure.clone() {
            return Err(CollectiveError::Ended { operation, rank: self.rank, cause });
        }
        self.operation = operation;
        self.deadline = Instant::now().checked_add(self.limit);
        let result = work(self);
        if let Err(error) = &result {
            self.failure = Some(error.to_string());
        }
        result
    }

    /// Sums over all ranks in an order that MPI chooses.
    pub(super) fn library_all_reduce<T: Equivalence + bytemuck::Pod>(
        &mut self,
        values: &mut [T],
        workspace: &mut [u8],
    ) -> Result<(), CollectiveError>
    where
        T::Out: AsRaw<Raw = ffi::MPI_Datatype>,
    {
        let copy: &mut [T] = bytemuck::cast_slice_mut(&mut workspace[..size_of_val(values)]);
        copy.copy_from_slice(values);
        let (datatype, sum) = (T::equivalent_datatype(), SystemOperation::sum());
        for (from, to) in copy.chunks(MOST).zip(values.chunks_mut(MOST)) {
            let mut request = MaybeUninit::uninit();
            // SAFETY: both slices have this many elements of this type. They stay borrowed until `finish` returns,
            // which returns only when MPI no longer uses them.
            let code = unsafe {
                ffi::MPI_Iallreduce(
                    from.as_ptr().cast(),
                    to.as_mut_ptr().cast(),
                    count(from.len()),
                    datatype.as_raw(),
                    sum.as_raw(),
                    self.comm,
                    request.as_mut_ptr(),
                )
            };
            self.check(code, None)?;
            // SAFETY: the successful call has set the request.
            let request = unsafe { request.assume_init() };
            self.finish(vec![Pending { request, peer: None, receives: None }], Ok(()))?;
        }
        Ok(())
    }

    /// Waits for all ranks and finalizes MPI. After a failure it does neither, since other ranks may not answer. The
    /// process then exits with a code other than 0, whereupon the launcher ends the other ranks.
    pub(super) fn disconnect(mut self) {
        if self.failure.is_none()
            && let Err(error) = self.perform(CollectiveOperation::Disconnect, ordered::barrier)
        {
            eprintln!("{error}");
        }
        if self.failure.is_some() {
            exit::set_failed();
            mem::forget(self.universe);
        }
    }

    fn send(&self, to: usize, bytes: &[u8]) -> Result<Pending, CollectiveError> {
        let mut request = MaybeUninit::uninit();
        // SAFETY: the slice has this many bytes. It stays borrowed until `finish` returns.
        let code = unsafe {
            ffi::MPI_Isend(
                bytes.as_ptr().cast(),
                count(bytes.len()),
                u8::equivalent_datatype().as_raw(),
                count(to),
                tag(self.operation),
                self.comm,
                request.as_mut_ptr(),
            )
        };
        self.check(code, Some(to))?;
        // SAFETY: the successful call has set the request.
        let request = unsafe { request.assume_init() };
        Ok(Pending { request, peer: Some(to), receives: None })
    }

    fn receive(&self, from: usize, bytes: &mut [u8]) -> Result<Pending, CollectiveError> {
        let mut request = MaybeUninit::uninit();
        // SAFETY: the slice has this many bytes. It stays borrowed until `finish` returns, which returns only when MPI
        // no longer uses it.
        let code = unsafe {
            ffi::MPI_Irecv(
                bytes.as_mut_ptr().cast(),
                count(bytes.len()),
                u8::equivalent_datatype().as_raw(),
                count(from),
                tag(self.operation),
                self.comm,
                request.as_mut_ptr(),
            )
        };
        self.check(code, Some(from))?;
        // SAFETY: the successful call has set the request.
        let request = unsafe { request.assume_init() };
        Ok(Pending { request, peer: Some(from), receives: Some(bytes.len()) })
    }

    /// Waits until all requests are complete. On an error, of this function or in `started`, it takes back the memory of
    /// the incomplete requests.
    fn finish(
        &self,
        mut pending: Vec<Pending>,
        started: Result<(), CollectiveError>,
    ) -> Result<(), CollectiveError> {
        let result = started.and_then(|()| self.wait(&mut pending));
        if let Err(error) = &result {
            self.cancel(pending, error);
        }
        result
    }

    /// Polls the requests until all are complete, and drops the complete ones.
    fn wait(&self, pending: &mut Vec<Pending>) -> Result<(), CollectiveError> {
        let (mut next_look, mut gone) = (Instant::now() + LOOK_INTERVAL, None);
        loop {
            let mut at = 0;
            while at < pending.len() {
                match self.test(&mut pending[at]) {
                    Ok(false) => at += 1,
                    Ok(true) => drop(pending.swap_remove(at)),
                    Err(error) => {
                        pending.swap_remove(at);
                        return Err(error);
                    }
                }
            }
            if pending.is_empty() {
                return Ok(());
            }
            self.end_if_aborted();
            let (operation, rank) = (self.operation, self.rank);
            if operation == CollectiveOperation::Disconnect
                && let Some(peer) = self.other_message()
            {
                return Err(CollectiveError::Early { operation, rank, peer });
            }
            let now = Instant::now();
            if self.deadline.is_some_and(|deadline| now >= deadline) {
                return Err(self.timed_out(pending));
            }
            if now >= next_look {
                // The data of a rank that has disconnected may still be on its way. So the rank counts as gone if its data is
                // missing at two looks.
                let found = self.disconnected(pending);
                if let (Some(peer), true) = (found, found == gone) {
                    return Err(CollectiveError::Left { operation, rank, peer });
                }
                (next_look, gone) = (now + LOOK_INTERVAL, found);
            }
            // Other threads of this machine may compute meanwhile. Sleeping would slow large messages, which progress
            // only during calls.
            thread::yield_now();
        }
    }

    /// Returns whether a request is complete. After an error it is complete too.
    fn test(&self, pending: &mut Pending) -> Result<bool, CollectiveError> {
        let (mut is_complete, mut result) = (0, MaybeUninit::<ffi::MPI_Status>::zeroed());
        // SAFETY: the request is incomplete, so it is valid.
        let code =
            unsafe { ffi::MPI_Test(&raw mut pending.request, &raw mut is_complete, result.as_mut_ptr()) };
        let received = if status::is_truncation(code) {
            None
        } else {
            self.check(code, pending.peer)?;
            if is_complete == 0 {
                return Ok(false);
            }
            Some(status::received_bytes(&result))
        };
        let (operation, rank) = (self.operation, self.rank);
        match (pending.receives, pending.peer) {
            (Some(expected), Some(peer)) if received != Some(expected) => {
                Err(CollectiveError::Length { operation, rank, peer, expected, received })
            }
            _ => Ok(true),
        }
    }

    /// Cancels receives. Sends only read, and nothing makes an MPI call after a failure that could read later.
    fn cancel(&self, pending: Vec<Pending>, error: &CollectiveError) {
        let is_shared = pending.iter().any(|pending| pending.peer.is_none());
        let mut receives: Vec<Pending> =
            pending.into_iter().filter(|pending| pending.receives.is_some()).collect();
        for pending in &mut receives {
            // SAFETY: the request is incomplete, so it is valid.
            unsafe { ffi::MPI_Cancel(&raw mut pending.request) };
            pending.receives = None; // a cancelled receive has no length
        }
        let deadline = Instant::now() + CANCEL_LIMIT;
        while !receives.is_empty() && Instant::now() < deadline {
            receives.retain_mut(|pending| matches!(self.test(pending), Ok(false)));
            thread::yield_now();
        }
        if is_shared || !receives.is_empty() {
            eprintln!("{error}");
            self.end(1);
        }
    }

    /// Returns a rank that runs another operation while this rank disconnects.
    fn other_message(&self) -> Option<usize> {
        // SAFETY: reads a constant of the MPI library.
        let any_source = unsafe { ffi::RSMPI_ANY_SOURCE };
        // SAFETY: reads a constant of the MPI library.
        let any_tag = unsafe { ffi::RSMPI_ANY_TAG };
        let status = self.probe(any_source, any_tag)?;
        let is_other = status.MPI_TAG != tag(CollectiveOperation::Disconnect);
        is_other.then_some(status.MPI_SOURCE.unsigned_abs() as usize)
    }

    /// Returns a rank that has disconnected although this rank expects data from it.
    fn disconnected(&self, pending: &[Pending]) -> Option<usize> {
        if self.operation == CollectiveOperation::Disconnect {
            return None;
        }
        let expected = pending.iter().filter(|pending| pending.receives.is_some());
        let mut peers = expected.filter_map(|pending| pending.peer);
        peers.find(|peer| self.probe(count(*peer), tag(CollectiveOperation::Disconnect)).is_some())
    }

    /// Returns the status of a message that has arrived and that no receive has taken.
    fn probe(&self, source: c_int, tag: c_int) -> Option<ffi::MPI_Status> {
        let (mut found, mut status) = (0, MaybeUninit::<ffi::MPI_Status>::zeroed());
        // SAFETY: the communicator is valid.
        unsafe { ffi::MPI_Iprobe(source, tag, self.comm, &raw mut found, status.as_mut_ptr()) };
        // SAFETY: all bit patterns are valid for these integers.
        let status = unsafe { status.assume_init() };
        (found != 0).then_some(status)
    }

    fn timed_out(&self, pending: &[Pending]) -> CollectiveError {
        let mut peers: Vec<usize> = pending.iter().filter_map(|pending| pending.peer).collect();
        peers.sort_unstable();
        peers.dedup();
        CollectiveError::TimedOut { operation: self.operation, rank: self.rank, peers, limit: self.limit }
    }

    /// Converts a return code of MPI.
    fn check(&self, code: c_int, peer: Option<usize>) -> Result<(), CollectiveError> {
        if code == 0 {
            return Ok(());
        }
        let message = status::error_text(code);
        let (operation, rank) = (self.operation, self.rank);
        Err(CollectiveError::Library { operation, rank, peers: peer.into_iter().collect(), message })
    }

    /// Ends the job if a thread of this process asked for it.
    fn end_if_aborted(&self) {
        if let Some(code) = self.abort.get() {
            self.end(*code);
        }
    }

    /// Ends the processes of all ranks.
    fn end(&self, code: i32) -> ! {
        // The launcher forwards output in the background, and drops the rest when the job ends.
        thread::sleep(OUTPUT_TIME);
        // SAFETY: the communicator is valid.
        unsafe { ffi::MPI_Abort(self.comm, code) };
        // Without the functions that run at exit, which wait for this thread.
        exit::terminate(code)
    }
}

impl Messages for Endpoint {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.size
    }

    fn exchange(
        &mut self,
        sends: &[(usize, &[u8])],
        receives: &mut [(usize, &mut [u8])],
    ) -> Result<(), CollectiveError> {
        let mut pending = Vec::with_capacity(sends.len() + receives.len());
        let started = (|| {
            for (from, bytes) in receives {
                for part in bytes.chunks_mut(MOST) {
                    pending.push(self.receive(*from, part)?);
                }
            }
            for (to, bytes) in sends {
                for part in bytes.chunks(MOST) {
                    pending.push(self.send(*to, part)?);
                }
            }
            Ok(())
        })();
        self.finish(pending, started)
    }
}

/// Messages of one operation match no receive of another.
const fn tag(operation: CollectiveOperation) -> c_int {
    operation as c_int + 1
}

/// The caller passes ranks and lengths up to [`MOST`].
#[expect(clippy::cast_possible_truncation, clippy::cast_possible_wrap, reason = "see above")]
const fn count(number: usize) -> c_int {
    number as c_int
}

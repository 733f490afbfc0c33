//! Collective operations over MPI.
//!
//! One communication thread makes all MPI calls (`MPI_THREAD_FUNNELED`). Callers send it requests and wait:
//!
//! ```text
//! caller   ── request: borrows data and workspace ──▶  communication thread ── MPI_Isend, MPI_Irecv
//!          ◀── result ───────────────────────────────  polls until done or until the time limit
//! ```
//!
//! A request borrows memory of the caller, so it ends before its caller continues. On a time-out the thread therefore
//! cancels the receives. If MPI does not return the memory, the thread prints the error and ends the job.

use std::fmt;
use std::ops::Range;
use std::sync::mpsc::{self, Sender, SyncSender};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crate::collective::{
    Collective, SliceMut, SumOrder, check_parts, check_reduction, check_root, check_scatter,
};
use crate::error::{CollectiveError, WorldError};
use crate::operation::CollectiveOperation;
use crate::ordered;

mod endpoint;
mod exit;
mod status;

use endpoint::Endpoint;

/// The exit code of a process that panics.
const PANIC: i32 = 101;

/// A request to the communication thread.
type Request = Box<dyn FnOnce(&mut Endpoint) + Send>;

enum Message {
    Run(Request),
    /// Disconnects and ends the thread.
    Close,
}

/// The ranks that MPI connects.
///
/// Dropping it waits until all ranks have dropped theirs, at most for the time limit, and disconnects. So does the exit of
/// the process, which waits 2 seconds at most for an operation of another thread. If a panic drops it, the processes of all
/// ranks end with exit code 101. If another rank still runs operations, or an operation has failed, the process exits with a
/// code other than 0. The launcher then ends the others.
pub struct Mpi {
    rank: usize,
    size: usize,
    /// `None` once this rank disconnects.
    messages: Mutex<Option<Sender<Message>>>,
    thread: Option<JoinHandle<()>>,
    /// The exit code, once a thread of this process ends the job.
    abort: Arc<OnceLock<i32>>,
}

impl fmt::Debug for Mpi {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mpi").field("rank", &self.rank).field("size", &self.size).finish_non_exhaustive()
    }
}

impl Mpi {
    /// Starts the communication thread and initializes MPI. Each later operation has the time limit.
    ///
    /// # Errors
    ///
    /// MPI is already initialized, or does not support threads, or the thread does not start.
    pub fn connect(limit: Duration) -> Result<Self, WorldError> {
        let abort = Arc::new(OnceLock::new());
        let (messages, inbox) = mpsc::channel();
        let (started, places) = mpsc::sync_channel(1);
        let shared = Arc::clone(&abort);
        let thread = thread::Builder::new()
            .name("communication".into())
            .spawn(move || communicate(limit, shared, &started, &inbox))
            .map_err(WorldError::Spawn)?;
        let (rank, size) = places.recv().unwrap_or(Err(WorldError::Initialized))?;
        let at_exit = messages.clone();
        exit::disconnect_at_exit(move || drop(at_exit.send(Message::Close)));
        Ok(Self { rank, size, messages: Mutex::new(Some(messages)), thread: Some(thread), abort })
    }

    /// Runs an operation on the communication thread and waits for its end.
    fn run<'a>(
        &self,
        operation: CollectiveOperation,
        work: impl FnOnce(&mut Endpoint) -> Result<(), CollectiveError> + Send + 'a,
    ) -> Result<(), CollectiveError> {
        let (reply, result) = mpsc::sync_channel(1);
        let request: Box<dyn FnOnce(&mut Endpoint) + Send + 'a> = Box::new(move |endpoint| {
            let _ = reply.send(endpoint.perform(operation, work));
        });
        // SAFETY: the request outlives nothing that it borrows: this function waits below until the request has either
        // run, and has consumed `work` before it replied, or was dropped without running. A panic in it ends the process.
        let request =
            unsafe { std::mem::transmute::<Box<dyn FnOnce(&mut Endpoint) + Send + 'a>, Request>(request) };
        if let Some(messages) = &*self.messages.lock().unwrap_or_else(PoisonError::into_inner) {
            let _ = messages.send(Message::Run(request));
        }
        result.recv().unwrap_or_else(|_| {
            let cause = "the communication thread has ended".into();
            Err(CollectiveError::Ended { operation, rank: self.rank, cause })
        })
    }
}

/// The main function of the communication thread.
fn communicate(
    limit: Duration,
    abort: Arc<OnceLock<i32>>,
    started: &SyncSender<Result<(usize, usize), WorldError>>,
    inbox: &mpsc::Receiver<Message>,
) {
    // A panic would leave callers waiting whose memory MPI still uses.
    let _bomb = AbortOnPanic;
    let mut endpoint = match Endpoint::connect(limit, abort) {
        Ok(endpoint) => endpoint,
        Err(error) => {
            let _ = started.send(Err(error));
            return;
        }
    };
    let _ = started.send(Ok(endpoint.places()));
    while let Ok(Message::Run(request)) = inbox.recv() {
        exit::set_running(true);
        request(&mut endpoint);
        exit::set_running(false);
    }
    endpoint.disconnect();
    exit::set_ended();
}

struct AbortOnPanic;

impl Drop for AbortOnPanic {
    fn drop(&mut self) {
        if thread::panicking() {
            std::process::abort();
        }
    }
}

impl Collective for Mpi {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.size
    }

    fn all_reduce(
        &self,
        data: SliceMut<'_>,
        reduce: SumOrder,
        workspace: &mut [u8],
    ) -> Result<(), CollectiveError> {
        check_reduction(CollectiveOperation::AllReduce, &data, reduce, self.size, workspace)?;
        self.run(CollectiveOperation::AllReduce, |endpoint| match (reduce, data) {
            _ if endpoint.places().1 == 1 => Ok(()),
            (SumOrder::Library, SliceMut::F32(values)) => endpoint.library_all_reduce(values, workspace),
            (SumOrder::Library, SliceMut::F64(values)) => endpoint.library_all_reduce(values, workspace),
            (_, data) => ordered::all_reduce(endpoint, data, workspace),
        })
    }

    fn reduce_scatter(
        &self,
        mut data: SliceMut<'_>,
        parts: &[Range<usize>],
        workspace: &mut [u8],
    ) -> Result<(), CollectiveError> {
        check_scatter(&data, parts, self.rank, self.size, workspace)?;
        self.run(CollectiveOperation::ReduceScatter, |endpoint| {
            ordered::reduce_scatter(endpoint, &mut data, parts, workspace)
        })
    }

    fn all_gather(&self, data: SliceMut<'_>, parts: &[Range<usize>]) -> Result<(), CollectiveError> {
        check_parts(CollectiveOperation::AllGather, data.len(), parts, self.size)?;
        self.run(CollectiveOperation::AllGather, |endpoint| ordered::all_gather(endpoint, data, parts))
    }

    fn broadcast(&self, data: SliceMut<'_>, root: usize) -> Result<(), CollectiveError> {
        check_root(root, self.size)?;
        self.run(CollectiveOperation::Broadcast, |endpoint| {
            ordered::broadcast(endpoint, data.into_bytes(), root)
        })
    }

    fn barrier(&self) -> Result<(), CollectiveError> {
        self.run(CollectiveOperation::Barrier, ordered::barrier)
    }

    fn abort(&self, code: i32) -> ! {
        let _ = self.abort.set(code);
        // Wakes the thread. A thread that already runs a request looks at the code itself.
        let _ = self.run(CollectiveOperation::Disconnect, |_| Ok(()));
        std::process::exit(code)
    }
}

impl Drop for Mpi {
    fn drop(&mut self) {
        if exit::is_child() {
            // A child of `fork` has no communication thread to wait for.
            return;
        }
        if thread::panicking() {
            self.abort(PANIC);
        }
        if let Some(messages) = self.messages.get_mut().unwrap_or_else(PoisonError::into_inner).take() {
            let _ = messages.send(Message::Close);
        }
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

//! One rank's connection to all ranks: calls, waiting with a time limit, and the end.

use std::ffi::{c_int, c_void};
use std::fmt;
use std::ptr::{null_mut, with_exposed_provenance, with_exposed_provenance_mut};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use bfc_core::{Stream, StreamEvent};

use super::abi::{self, Config, Handle};
use super::call::{CollectiveCall, CollectiveKind};
use super::error::NcclError;
use super::library::{NcclLibrary, UniqueId};
use crate::compute::{ComputeError, call_device};
use crate::driver::CudaDriver;

/// How often to poll without a pause: most calls are complete by then.
const BUSY_POLLS: u32 = 200;

/// The pause between later polls.
const PAUSE: Duration = Duration::from_micros(50);

/// How long the end of a communicator waits for other ranks. A rank that ends early because of an error must not wait as
/// long as an operation, since its launcher ends the others only after it.
const END_LIMIT: Duration = Duration::from_secs(10);

/// This rank's connection to all ranks of a communicator.
///
/// Operations run on streams, in the order of the calls, which must be the same on all ranks. After an error the
/// communicator is aborted: kernels that wait for other ranks end, and their results are unspecified. Other ranks do not
/// notice; their time limits end them.
///
/// Dropping it waits until all ranks drop theirs, at most for ten seconds or the time limit. While a thread panics, it
/// aborts instead.
pub struct Communicator {
    library: Arc<NcclLibrary>,
    driver: Arc<CudaDriver>,
    rank: usize,
    size: usize,
    limit: Duration,
    /// Held from a call until NCCL accepts the next one.
    turn: Mutex<()>,
    state: Mutex<SharedHandle>,
}

/// The state that calls share with an abort by another thread.
struct SharedHandle {
    /// The address of NCCL's communicator; 0 once it is destroyed or aborted.
    handle: usize,
    /// The message of the first error.
    failure: Option<String>,
}

impl Communicator {
    /// Connects all `size` ranks that pass the same id. `driver` is this rank's device, which no other rank uses. Each
    /// operation, including this one, has the time limit.
    ///
    /// # Errors
    /// [`NcclError::TimedOut`] if not all ranks connect in time; [`NcclError::Rank`] if `rank` is not below `size`;
    /// [`NcclError::Call`], for example if two ranks use one device.
    pub fn connect(
        library: &Arc<NcclLibrary>,
        driver: &Arc<CudaDriver>,
        id: &UniqueId,
        rank: usize,
        size: usize,
        limit: Duration,
    ) -> Result<Self, NcclError> {
        const CALL: &str = "ncclCommInitRankConfig";
        let invalid = NcclError::Rank { rank, size };
        let (Ok(ranks), Ok(own)) = (c_int::try_from(size), c_int::try_from(rank)) else {
            return Err(invalid);
        };
        if rank >= size {
            return Err(invalid);
        }
        let (library, driver) = (Arc::clone(library), Arc::clone(driver));
        let state = Mutex::new(SharedHandle { handle: 0, failure: None });
        // From here on, dropping it ends the communicator.
        let communicator = Self { library, driver, rank, size, limit, turn: Mutex::new(()), state };
        let (mut handle, mut config): (Handle, _) = (null_mut(), Config::NON_BLOCKING);
        let init = communicator.library.init_rank;
        let deadline = communicator.deadline();
        let code = call_device(&communicator.driver, CALL, || {
            // SAFETY: the library writes a handle and reads the configuration before it returns.
            Ok(unsafe { init(&raw mut handle, ranks, id.raw(), own, &raw mut config) })
        })?;
        communicator.state().handle = handle.expose_provenance();
        let connected = communicator.settle(CALL, code, deadline);
        connected.inspect_err(|error| communicator.fail(error))?;
        Ok(communicator)
    }

    /// The number of this rank, from 0.
    #[must_use]
    pub const fn rank(&self) -> usize {
        self.rank
    }

    /// The number of ranks.
    #[must_use]
    pub const fn size(&self) -> usize {
        self.size
    }

    /// The time limit of an operation.
    #[must_use]
    pub const fn time_limit(&self) -> Duration {
        self.limit
    }

    /// Submits operations to a stream and returns before they have ended. NCCL runs several calls as one group, which is
    /// faster than one by one.
    ///
    /// # Safety
    /// The addresses are live memory of the communicator's device with as many elements as the
    /// [kind](CollectiveKind) of the call says. They stay live until the stream's work has ended, and no other work uses
    /// what is written, or writes what is read. The stream belongs to the same device.
    ///
    /// # Errors
    /// [`NcclError::Rank`] if a call names a rank that does not exist: nothing happens then. Otherwise see [`NcclError`].
    pub unsafe fn submit(&self, calls: &[CollectiveCall], stream: &Stream) -> Result<(), NcclError> {
        if let Some(rank) =
            calls.iter().filter_map(CollectiveCall::named_rank).find(|&rank| rank >= self.size)
        {
            return Err(NcclError::Rank { rank, size: self.size });
        }
        // Held commands come first.
        self.driver.flush_deferred();
        let stream: *mut c_void = with_exposed_provenance_mut(stream.handle().0 as usize);
        match calls {
            [] => Ok(()),
            [call] => self.perform(call.function(), |handle| {
                // SAFETY: as the caller says; the handle is live.
                unsafe { self.issue(call, handle, stream) }
            }),
            calls => self.perform("ncclGroupEnd", |handle| {
                // SAFETY: as the caller says; the handle is live.
                unsafe { self.issue_group(calls, handle, stream) }
            }),
        }
    }

    /// Waits until the event has passed, and checks that no operation has failed. The caller records the event after the
    /// operations. Unlike [`StreamEvent::synchronize`], this returns if another rank has died.
    ///
    /// # Errors
    /// [`NcclError::TimedOut`] after the time limit, or the error of an operation.
    pub fn wait(&self, event: &StreamEvent) -> Result<(), NcclError> {
        const CALL: &str = "waiting for an operation";
        let result = self.until(CALL, self.deadline(), || {
            // The event first: an operation that fails sets the status before the stream passes the event.
            let is_complete = event.is_complete();
            let status = self.async_status(CALL)?;
            if !matches!(status, abi::SUCCESS | abi::IN_PROGRESS) {
                return self.library.done(CALL, Some(self.rank), status).map(|()| true);
            }
            is_complete.map_err(|error| ComputeError::of_driver("cuEventQuery", &error).into())
        });
        result.inspect_err(|error| self.fail(error))
    }

    /// Returns the device memory that NCCL holds for this communicator, in bytes; `None` before NCCL 2.32, which does
    /// not tell. Pools do not know this memory.
    ///
    /// # Errors
    /// As for [`submit`](Self::submit).
    pub fn memory_bytes(&self) -> Result<Option<u64>, NcclError> {
        let Some(get_memory) = self.library.get_memory else { return Ok(None) };
        let mut bytes = 0;
        self.perform("ncclCommMemStats", |handle| {
            // SAFETY: the handle is live, and the library writes one number.
            unsafe { get_memory(handle, abi::MEMORY_TOTAL, &raw mut bytes) }
        })?;
        Ok(Some(bytes))
    }

    /// Ends all operations of this rank at once. Threads that wait get an error. Other ranks do not notice.
    pub fn abort(&self) {
        self.end("this rank aborted it");
    }

    /// Calls NCCL and waits until it accepts the next call.
    fn perform(&self, call: &'static str, issue: impl FnOnce(Handle) -> c_int) -> Result<(), NcclError> {
        self.perform_within(self.limit, call, issue)
    }

    fn perform_within(
        &self,
        limit: Duration,
        call: &'static str,
        issue: impl FnOnce(Handle) -> c_int,
    ) -> Result<(), NcclError> {
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let deadline = Instant::now().checked_add(limit);
        let issued = self.with_handle(call, issue);
        if matches!(issued, Err(NcclError::Ended { .. })) {
            return issued.map(drop);
        }
        let settled = issued.and_then(|code| self.settle(call, code, deadline));
        settled.inspect_err(|error| self.fail(error))
    }

    /// Waits until NCCL has processed a call that returned `code`.
    fn settle(&self, call: &'static str, code: c_int, deadline: Option<Instant>) -> Result<(), NcclError> {
        if code != abi::IN_PROGRESS {
            return self.library.done(call, Some(self.rank), code);
        }
        self.until(call, deadline, || match self.async_status(call)? {
            abi::IN_PROGRESS => Ok(false),
            status => self.library.done(call, Some(self.rank), status).map(|()| true),
        })
    }

    /// Polls until `is_done`, or until the deadline.
    fn until(
        &self,
        call: &'static str,
        deadline: Option<Instant>,
        is_done: impl Fn() -> Result<bool, NcclError>,
    ) -> Result<(), NcclError> {
        let mut polls = 0;
        while !is_done()? {
            if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                let Self { rank, size, limit, .. } = *self;
                return Err(NcclError::TimedOut { call, rank, size, limit });
            }
            if polls < BUSY_POLLS {
                polls += 1;
                thread::yield_now();
            } else {
                thread::sleep(PAUSE);
            }
        }
        Ok(())
    }

    /// The state of the communicator: success, in progress, or the error of an operation.
    fn async_status(&self, call: &'static str) -> Result<c_int, NcclError> {
        let mut status = abi::SUCCESS;
        let code = self.with_handle(call, |handle| {
            // SAFETY: the handle is live, and the library writes one number.
            unsafe { (self.library.get_async_error)(handle, &raw mut status) }
        })?;
        self.library.done("ncclCommGetAsyncError", Some(self.rank), code)?;
        Ok(status)
    }

    /// Calls NCCL with the device current on this thread. No other thread can abort the communicator meanwhile.
    fn with_handle(
        &self,
        call: &'static str,
        issue: impl FnOnce(Handle) -> c_int,
    ) -> Result<c_int, NcclError> {
        let state = self.state();
        if state.handle == 0 {
            let cause = state.failure.clone().unwrap_or_default();
            return Err(NcclError::Ended { call, rank: self.rank, cause });
        }
        let handle = with_exposed_provenance_mut(state.handle);
        Ok(call_device(&self.driver, call, || Ok(issue(handle)))?)
    }

    /// # Safety
    /// As for [`submit`](Self::submit); the handle and the stream are live.
    unsafe fn issue_group(&self, calls: &[CollectiveCall], handle: Handle, stream: *mut c_void) -> c_int {
        // SAFETY: the group ends below, on the same thread.
        let mut result = unsafe { (self.library.group_start)() };
        if result != abi::SUCCESS {
            return result;
        }
        for call in calls {
            // SAFETY: as the caller says.
            result = unsafe { self.issue(call, handle, stream) };
            if !matches!(result, abi::SUCCESS | abi::IN_PROGRESS) {
                break;
            }
        }
        // SAFETY: this thread has started the group.
        let ended = unsafe { (self.library.group_end)() };
        if matches!(result, abi::SUCCESS | abi::IN_PROGRESS) { ended } else { result }
    }

    /// # Safety
    /// As for [`submit`](Self::submit); the handle and the stream are live.
    unsafe fn issue(&self, call: &CollectiveCall, handle: Handle, stream: *mut c_void) -> c_int {
        let library = &self.library;
        let from: *const c_void = with_exposed_provenance(call.from as usize);
        let to: *mut c_void = with_exposed_provenance_mut(call.to as usize);
        let (elements, datatype) = (call.elements, call.datatype());
        // All are below the number of ranks, which fits.
        let number = |rank: usize| c_int::try_from(rank).unwrap_or(c_int::MAX);
        match call.kind {
            CollectiveKind::AllReduce => {
                // SAFETY: as the caller says.
                unsafe { (library.all_reduce)(from, to, elements, datatype, abi::SUM, handle, stream) }
            }
            CollectiveKind::ReduceScatter => {
                // SAFETY: as the caller says.
                unsafe { (library.reduce_scatter)(from, to, elements, datatype, abi::SUM, handle, stream) }
            }
            CollectiveKind::AllGather => {
                // SAFETY: as the caller says.
                unsafe { (library.all_gather)(from, to, elements, datatype, handle, stream) }
            }
            CollectiveKind::Broadcast { root } => {
                // SAFETY: as the caller says.
                unsafe { (library.broadcast)(from, to, elements, datatype, number(root), handle, stream) }
            }
            CollectiveKind::Reduce { root } => {
                // SAFETY: as the caller says.
                unsafe {
                    (library.reduce)(from, to, elements, datatype, abi::SUM, number(root), handle, stream)
                }
            }
            CollectiveKind::Send { peer } => {
                // SAFETY: as the caller says.
                unsafe { (library.send)(from, elements, datatype, number(peer), handle, stream) }
            }
            CollectiveKind::Receive { peer } => {
                // SAFETY: as the caller says.
                unsafe { (library.receive)(to, elements, datatype, number(peer), handle, stream) }
            }
        }
    }

    /// Aborts the communicator after an error.
    fn fail(&self, error: &NcclError) {
        self.end(&error.to_string());
    }

    fn end(&self, cause: &str) {
        let mut state = self.state();
        state.failure.get_or_insert_with(|| cause.to_owned());
        self.release(&mut state, "ncclCommAbort", self.library.abort);
    }

    /// Destroys or aborts NCCL's communicator. An error changes nothing: the communicator is not used again.
    fn release(&self, state: &mut SharedHandle, call: &'static str, release: abi::End) {
        let handle = std::mem::take(&mut state.handle);
        if handle != 0 {
            let handle: Handle = with_exposed_provenance_mut(handle);
            let _: Result<c_int, ComputeError> = call_device(&self.driver, call, || {
                // SAFETY: the handle was live, and it is not used again.
                Ok(unsafe { release(handle) })
            });
        }
    }

    /// `None` if the time limit exceeds the clock.
    fn deadline(&self) -> Option<Instant> {
        Instant::now().checked_add(self.limit)
    }

    fn state(&self) -> MutexGuard<'_, SharedHandle> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Communicator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rank, size, .. } = self;
        f.debug_struct("Communicator").field("rank", rank).field("size", size).finish_non_exhaustive()
    }
}

impl Drop for Communicator {
    fn drop(&mut self) {
        if thread::panicking() {
            self.abort();
        }
        // A failure aborts it.
        let finalized = self.perform_within(self.limit.min(END_LIMIT), "ncclCommFinalize", |handle| {
            // SAFETY: the handle is live, and only released after this.
            unsafe { (self.library.finalize)(handle) }
        });
        if finalized.is_ok() {
            self.release(&mut self.state(), "ncclCommDestroy", self.library.destroy);
        }
    }
}

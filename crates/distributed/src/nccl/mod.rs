//! Collective operations between GPUs over NCCL, with the feature `cuda`.
//!
//! ```text
//! rank 0   makes the communicator's id ── Collective::broadcast, or TCP at MASTER_ADDR (Rendezvous) ──▶  all ranks
//! each     Nccl::connect ─▶ all_reduce(address, …, stream) ─▶ wait ─▶ drop
//! ```
//!
//! Operations take device addresses and run on a stream, in the order of the calls. NCCL chooses the order of additions,
//! so that sums can differ in the last bits from those of [`SumOrder::Ordered`](crate::SumOrder::Ordered).

mod host;
mod message;
mod rendezvous;
mod staging;

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bfc_core::{SourceError, Stream, StreamEvent};
use bfc_cuda::kernels::ElementType;
use bfc_cuda::{CollectiveCall, CollectiveKind, Communicator, CudaDriver, NcclError, NcclLibrary, UniqueId};
use highwater_tensor::DType;

use crate::collective::{Collective, SliceMut, check_parts, check_root};
use crate::error::{CollectiveError, NcclConnectError};
use crate::operation::CollectiveOperation;

pub(crate) use host::HostCollective;
pub use rendezvous::Rendezvous;

/// Operations that only copy have no element type.
const BYTE: ElementType = ElementType::U8;

/// The ranks that NCCL connects, each with its own GPU.
///
/// After an error, the operations of this rank are aborted and all later ones fail with [`CollectiveError::Ended`].
/// Other ranks do not notice; their time limits end them. Dropping it waits until all ranks have dropped theirs, at most
/// for ten seconds or the time limit.
#[derive(Debug)]
pub struct Nccl {
    communicator: Communicator,
    /// The stream of [`Nccl::after`].
    stream: Arc<Stream>,
    /// The memory of this GPU through which host memory travels.
    staging_bytes: AtomicU64,
}

impl Nccl {
    /// Connects ranks that have a connection, such as MPI: [`World::collective`](crate::World::collective). Rank 0 makes the
    /// id of the communicator and broadcasts it. `driver` is this rank's GPU, usually the one with the rank's number on its
    /// machine. Each operation has the time limit, as has this function after the broadcast.
    ///
    /// # Errors
    ///
    /// NCCL is not installed, the ranks do not answer in time, or two ranks use one GPU.
    pub fn connect(
        ranks: &dyn Collective,
        driver: &Arc<CudaDriver>,
        time_limit: Duration,
    ) -> Result<Self, NcclConnectError> {
        // All ranks take part in the broadcast, whatever they lack.
        let library = NcclLibrary::find();
        let made = (ranks.rank() == 0).then(|| library.clone().and_then(|library| library.unique_id()));
        let mut bytes = [0; 1 + UniqueId::BYTES];
        if let Some(Ok(id)) = &made {
            bytes[0] = 1;
            bytes[1..].copy_from_slice(&id.to_bytes());
        }
        ranks.broadcast(SliceMut::Bytes(&mut bytes), 0)?;
        let library = library?;
        made.transpose()?;
        let [1, id @ ..] = bytes else { return Err(NcclConnectError::NoId { rank: ranks.rank() }) };
        let (rank, size) = (ranks.rank(), ranks.size());
        let id = UniqueId::from_bytes(id);
        Self::with(Communicator::connect(&library, driver, &id, rank, size, time_limit)?, driver)
    }

    /// Connects ranks that have no other connection, such as those of `torchrun`. Rank 0 makes the id of the
    /// communicator and sends it to all ranks. See [`connect`](Self::connect).
    ///
    /// # Errors
    ///
    /// As for [`connect`](Self::connect), and if the ranks cannot reach rank 0.
    pub fn connect_at(
        rendezvous: &Rendezvous,
        driver: &Arc<CudaDriver>,
        time_limit: Duration,
    ) -> Result<Self, NcclConnectError> {
        let library = NcclLibrary::find()?;
        let id = match rendezvous.rank() {
            0 => rendezvous.send(library.unique_id()?, time_limit)?,
            _ => rendezvous.receive(time_limit)?,
        };
        let (rank, size) = (rendezvous.rank(), rendezvous.size());
        Self::with(Communicator::connect(&library, driver, &id, rank, size, time_limit)?, driver)
    }

    fn with(communicator: Communicator, driver: &Arc<CudaDriver>) -> Result<Self, NcclConnectError> {
        let stream = Stream::new(driver.clone()).map_err(NcclConnectError::Driver)?;
        Ok(Self { communicator, stream, staging_bytes: AtomicU64::new(0) })
    }

    /// Returns the number of this rank, from 0.
    #[must_use]
    pub const fn rank(&self) -> usize {
        self.communicator.rank()
    }

    /// Returns the number of ranks.
    #[must_use]
    pub const fn size(&self) -> usize {
        self.communicator.size()
    }

    /// Submits: replaces the elements of each rank with the sum over all ranks.
    ///
    /// # Safety
    ///
    /// The elements are live memory of this rank's GPU, until the stream's work has ended. No other work uses them. The
    /// stream belongs to the same GPU. All ranks call the same operations in the same order, with as many elements.
    ///
    /// # Errors
    ///
    /// Bytes and integers have no sum here. Otherwise NCCL or the device fails.
    pub unsafe fn all_reduce(
        &self,
        address: u64,
        elements: usize,
        dtype: DType,
        stream: &Stream,
    ) -> Result<(), CollectiveError> {
        let element = summable(CollectiveOperation::AllReduce, dtype)?;
        let kind = CollectiveKind::AllReduce;
        let call = CollectiveCall { kind, from: address, to: address, elements, element };
        // SAFETY: as the caller says.
        unsafe { self.submit(CollectiveOperation::AllReduce, &[call], stream) }
    }

    /// Submits: replaces this rank's part of the elements with the sum over all ranks. The contents of the rest are
    /// unspecified. `parts` has one range of elements per rank, the same on all ranks; see [`spans`](crate::spans). Parts
    /// of equal length that cover all elements are faster.
    ///
    /// # Safety
    ///
    /// As for [`all_reduce`](Self::all_reduce).
    ///
    /// # Errors
    ///
    /// The parts are invalid; otherwise as for [`all_reduce`](Self::all_reduce).
    pub unsafe fn reduce_scatter(
        &self,
        address: u64,
        elements: usize,
        dtype: DType,
        parts: &[Range<usize>],
        stream: &Stream,
    ) -> Result<(), CollectiveError> {
        let element = summable(CollectiveOperation::ReduceScatter, dtype)?;
        check_parts(CollectiveOperation::ReduceScatter, elements, parts, self.size())?;
        let calls = self.part_calls(address, parts, dtype, |root, from, to, elements| {
            let kind = root.map_or(CollectiveKind::ReduceScatter, |root| CollectiveKind::Reduce { root });
            CollectiveCall { kind, from, to, elements, element }
        });
        // SAFETY: as the caller says.
        unsafe { self.submit(CollectiveOperation::ReduceScatter, &calls, stream) }
    }

    /// Submits: copies the part of each rank to all ranks, in place. See [`reduce_scatter`](Self::reduce_scatter) for
    /// `parts`.
    ///
    /// # Safety
    ///
    /// As for [`all_reduce`](Self::all_reduce).
    ///
    /// # Errors
    ///
    /// The parts are invalid, or NCCL or the device fails.
    pub unsafe fn all_gather(
        &self,
        address: u64,
        elements: usize,
        dtype: DType,
        parts: &[Range<usize>],
        stream: &Stream,
    ) -> Result<(), CollectiveError> {
        check_parts(CollectiveOperation::AllGather, elements, parts, self.size())?;
        let calls = self.part_calls(address, parts, dtype, |root, all, part, elements| {
            let kind = root.map_or(CollectiveKind::AllGather, |root| CollectiveKind::Broadcast { root });
            CollectiveCall { kind, from: part, to: all, elements: elements * dtype.size(), element: BYTE }
        });
        // SAFETY: as the caller says.
        unsafe { self.submit(CollectiveOperation::AllGather, &calls, stream) }
    }

    /// Submits: copies the elements of rank `root` to all ranks.
    ///
    /// # Safety
    ///
    /// As for [`all_reduce`](Self::all_reduce).
    ///
    /// # Errors
    ///
    /// There is no rank `root`, or NCCL or the device fails.
    pub unsafe fn broadcast(
        &self,
        address: u64,
        elements: usize,
        dtype: DType,
        root: usize,
        stream: &Stream,
    ) -> Result<(), CollectiveError> {
        check_root(root, self.size())?;
        let (kind, elements) = (CollectiveKind::Broadcast { root }, elements * dtype.size());
        let call = CollectiveCall { kind, from: address, to: address, elements, element: BYTE };
        // SAFETY: as the caller says.
        unsafe { self.submit(CollectiveOperation::Broadcast, &[call], stream) }
    }

    /// Runs an operation beside the later work of `compute`, and waits for its end: it begins after the work that `compute`
    /// has so far. `submit` gets the stream for the operation.
    ///
    /// ```no_run
    /// # use highwater_distributed::{CollectiveError, Nccl, CollectiveOperation};
    /// # fn sum(nccl: &Nccl, compute: &bfc_core::Stream, address: u64) -> Result<(), CollectiveError> {
    /// nccl.after(CollectiveOperation::AllReduce, compute, |stream| {
    ///     // SAFETY: kernels of `compute` have written the elements, and no later ones use them before the end.
    ///     unsafe { nccl.all_reduce(address, 1000, highwater_tensor::DType::F32, stream) }
    /// })
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Those of `submit`; the time limit has passed, or the device fails.
    pub fn after(
        &self,
        operation: CollectiveOperation,
        compute: &Stream,
        submit: impl FnOnce(&Stream) -> Result<(), CollectiveError>,
    ) -> Result<(), CollectiveError> {
        let event = |stream| StreamEvent::new(stream).map_err(|error| self.device_error(operation, &error));
        let waited = self.stream.wait(&event(compute)?);
        waited.map_err(|error| self.device_error(operation, &error))?;
        submit(&self.stream)?;
        self.wait(operation, &event(&self.stream)?)
    }

    /// Waits until the event has passed, which the caller has recorded after the operation. Unlike
    /// [`StreamEvent::synchronize`], this ends after the time limit if another rank has died. `operation` is for errors.
    ///
    /// # Errors
    ///
    /// The time limit has passed, or an operation failed.
    pub fn wait(&self, operation: CollectiveOperation, event: &StreamEvent) -> Result<(), CollectiveError> {
        self.communicator.wait(event).map_err(|error| self.convert(operation, error))
    }

    /// Ends all operations of this rank at once. Threads that wait get an error. Other ranks do not notice.
    pub fn abort(&self) {
        self.communicator.abort();
    }

    /// Returns the device memory outside of the pools, in bytes: that of NCCL, and 4 MiB or more if host memory travels over
    /// NCCL ([`World::nccl_from_env`](crate::World::nccl_from_env)). `None` if NCCL is older than 2.32.
    ///
    /// # Errors
    ///
    /// An earlier operation failed.
    pub fn outside_bytes(&self) -> Result<Option<u64>, CollectiveError> {
        // Only a connection that has ended has no answer.
        let bytes = self.communicator.memory_bytes();
        let bytes = bytes.map_err(|error| self.convert(CollectiveOperation::Barrier, error))?;
        Ok(bytes.map(|bytes| bytes + self.staging_bytes.load(Ordering::Relaxed)))
    }

    /// The calls of an operation on all parts. If the parts are equal, as NCCL requires, `call` gets the address of all
    /// elements, the address of this rank's part and the elements of a part. Otherwise it gets the rank of each part, and
    /// the part's address twice.
    fn part_calls(
        &self,
        address: u64,
        parts: &[Range<usize>],
        dtype: DType,
        call: impl Fn(Option<usize>, u64, u64, usize) -> CollectiveCall,
    ) -> Vec<CollectiveCall> {
        let at = |element: usize| address + (element * dtype.size()) as u64;
        let own = parts[self.rank()].clone();
        let length = own.len();
        if parts.iter().enumerate().all(|(rank, part)| *part == (rank * length..(rank + 1) * length)) {
            return vec![call(None, address, at(own.start), length)];
        }
        let parts = parts.iter().enumerate().filter(|(_, part)| !part.is_empty());
        parts.map(|(rank, part)| call(Some(rank), at(part.start), at(part.start), part.len())).collect()
    }

    /// # Safety
    ///
    /// As for [`Communicator::submit`].
    unsafe fn submit(
        &self,
        operation: CollectiveOperation,
        calls: &[CollectiveCall],
        stream: &Stream,
    ) -> Result<(), CollectiveError> {
        // SAFETY: as the caller says.
        unsafe { self.communicator.submit(calls, stream) }.map_err(|error| self.convert(operation, error))
    }

    fn device_error(&self, operation: CollectiveOperation, error: &SourceError) -> CollectiveError {
        let (rank, peers) = (self.rank(), Vec::new());
        CollectiveError::Library { operation, rank, peers, message: error.to_string() }
    }

    /// NCCL does not tell which ranks are missing.
    fn convert(&self, operation: CollectiveOperation, error: NcclError) -> CollectiveError {
        let (rank, peers) = (self.rank(), Vec::new());
        match error {
            NcclError::TimedOut { limit, .. } => CollectiveError::TimedOut { operation, rank, peers, limit },
            NcclError::Ended { cause, .. } => CollectiveError::Ended { operation, rank, cause },
            error => CollectiveError::Library { operation, rank, peers, message: error.to_string() },
        }
    }
}

/// Only floats have sums, as in the other implementations of collective operations.
const fn summable(operation: CollectiveOperation, dtype: DType) -> Result<ElementType, CollectiveError> {
    match dtype {
        DType::F32 => Ok(ElementType::F32),
        DType::F64 => Ok(ElementType::F64),
        DType::F16 => Ok(ElementType::F16),
        DType::BF16 => Ok(ElementType::BF16),
        _ => Err(CollectiveError::Bytes { operation }),
    }
}

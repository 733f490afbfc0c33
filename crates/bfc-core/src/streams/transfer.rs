//! Asynchronous copies between the host and a device.
//!
//! The host passes a page-locked buffer to a copy and gets it back when the copy has ended. Meanwhile no code can
//! access the buffer. Dropping the transfer keeps the buffer allocated until the copy has ended. For device memory only
//! the order matters, which [`record_stream`](crate::PoolView::record_stream) enforces.

use std::ptr::{with_exposed_provenance, with_exposed_provenance_mut};
use std::sync::Arc;

use super::deferred::{Deferred, Mark};
use crate::allocator::attributes::AllocationAttributes;
use crate::allocator::error::{AllocError, RecordError};
use crate::allocator::{Allocation, Allocator, Request};
use crate::base::memory::MemoryKind;
use crate::base::printable::printable;
use crate::source::driver::MemoryCopy;
use crate::source::error::SourceError;
use crate::source::stream::Stream;

/// An error of starting a transfer.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum TransferError {
    /// The allocation of the buffer failed.
    #[error(transparent)]
    Alloc(#[from] AllocError),
    /// The copy requires another kind of memory.
    #[error("{allocator} is {found} memory, but the copy needs {needed} memory", allocator = printable(allocator))]
    WrongKind {
        /// The allocator's name.
        allocator: String,
        /// The kind of its memory.
        found: MemoryKind,
        /// The required kind.
        needed: MemoryKind,
    },
    /// The copy exceeds the device's block.
    #[error("a copy of {bytes} bytes at byte {at} leaves a block of {block} bytes")]
    OutOfRange {
        /// The offset in the block.
        at: u64,
        /// The bytes to copy.
        bytes: u64,
        /// The bytes of the block.
        block: u64,
    },
    /// The order with other work cannot be established.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// The driver failed.
    #[error(transparent)]
    Source(#[from] SourceError),
}

/// Page-locked host memory, which copies use without staging.
#[derive(Debug)]
pub struct PinnedBuffer {
    allocation: Allocation,
    bytes: usize,
}

impl PinnedBuffer {
    /// Allocates `bytes` bytes of arbitrary values from an allocator of page-locked memory.
    ///
    /// # Errors
    /// [`TransferError::WrongKind`], [`TransferError::Alloc`].
    pub fn new(allocator: &Arc<dyn Allocator>, bytes: usize) -> Result<Self, TransferError> {
        Self::with_attributes(allocator, bytes, AllocationAttributes::default())
    }

    /// As [`new`](Self::new), with allocation attributes.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn with_attributes(
        allocator: &Arc<dyn Allocator>,
        bytes: usize,
        attributes: AllocationAttributes<'_>,
    ) -> Result<Self, TransferError> {
        needs(&**allocator, MemoryKind::PinnedHost)?;
        let request = Request::new(bytes as u64).with_attributes(attributes);
        Ok(Self { allocation: Allocation::new(allocator, &request)?, bytes })
    }

    /// Returns the bytes.
    #[must_use]
    pub fn as_slice(&self) -> &[u8] {
        match self.bytes {
            0 => &[],
            bytes => {
                let first: *const u8 = with_exposed_provenance(self.allocation.block().address as usize);
                // SAFETY: the block is initialized host memory of at least `bytes` bytes. The buffer owns it
                // exclusively: during a copy, the transfer owns the buffer.
                unsafe { std::slice::from_raw_parts(first, bytes) }
            }
        }
    }

    /// Returns the bytes for writing.
    #[must_use]
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        match self.bytes {
            0 => &mut [],
            bytes => {
                let first: *mut u8 = with_exposed_provenance_mut(self.allocation.block().address as usize);
                // SAFETY: as above, and the buffer is mutably borrowed.
                unsafe { std::slice::from_raw_parts_mut(first, bytes) }
            }
        }
    }
}

/// Asynchronous copies on one stream.
///
/// ```
/// use std::sync::Arc;
/// use bfc_core::sim::SimDevice;
/// use bfc_core::{
///     Allocation, Allocator, BfcAllocator, BfcConfig, Bytes, DeviceMemory, PinnedBuffer, PinnedMemory, Request, Stream,
///     StreamAllocator, Transfers,
/// };
///
/// let device = Arc::new(SimDevice::new(Bytes::mib(64)));
/// let (compute, copies) = (Stream::new(device.clone())?, Stream::new(device.clone())?);
/// let config = BfcConfig::new(Bytes::mib(32));
/// let pool = BfcAllocator::new("device", Arc::new(DeviceMemory::new(device.clone())), config.clone());
/// let pool: Arc<dyn Allocator> = Arc::new(StreamAllocator::new(Arc::new(pool), compute.clone()));
/// let pinned: Arc<dyn Allocator> = Arc::new(BfcAllocator::new("pinned", Arc::new(PinnedMemory::new(device)), config));
///
/// let transfers = Transfers::new(copies);
/// let mut buffer = PinnedBuffer::new(&pinned, 4)?;
/// buffer.as_mut_slice().copy_from_slice(b"data");
/// let tensor = Allocation::new(&pool, &Request::new(4))?;
/// let upload = transfers.to_device(buffer, &tensor, 0)?;
/// upload.come_before(&compute)?; // what `compute` is given from now on sees the data
/// let buffer = upload.wait()?;
/// assert_eq!(transfers.to_host(&tensor, 0, buffer)?.wait()?.as_slice(), b"data");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Transfers {
    stream: Arc<Stream>,
    abandoned: Arc<AbandonedBuffers>,
}

/// Buffers of transfers that were dropped before their end.
#[derive(Debug)]
struct AbandonedBuffers(Deferred<PinnedBuffer>);

impl Drop for AbandonedBuffers {
    fn drop(&mut self) {
        drop(self.0.finish());
        if self.0.len() > 0 {
            // The end of the copies is unknown: leak their memory, so that it is never reused.
            self.0.leak();
        }
    }
}

impl Transfers {
    /// Creates transfers that run on this stream in order.
    #[must_use]
    pub fn new(stream: Arc<Stream>) -> Self {
        Self { stream, abandoned: Arc::new(AbandonedBuffers(Deferred::new())) }
    }

    /// Returns the stream.
    #[must_use]
    pub const fn stream(&self) -> &Arc<Stream> {
        &self.stream
    }

    /// Copies all of `from` into a device block, from byte `at` on, after the work submitted to the block's compute
    /// stream so far.
    ///
    /// # Errors
    /// See [`TransferError`]; nothing is copied then.
    pub fn to_device(&self, from: PinnedBuffer, to: &Allocation, at: u64) -> Result<Transfer, TransferError> {
        let address = self.place(&from, to, at)?;
        let copy = MemoryCopy::ToDevice { from: from.address(), to: address, bytes: from.bytes as u64 };
        self.begin(copy, from)
    }

    /// Copies all of `from` to a device address, after the work submitted to this stream so far. For memory that this
    /// stream uses anyway.
    ///
    /// # Errors
    /// See [`TransferError`]; nothing is copied then.
    ///
    /// # Safety
    /// The address starts enough bytes of live memory of the stream's device. They stay live, and no other work uses
    /// them, until the copy has ended.
    pub unsafe fn to_address(&self, from: PinnedBuffer, to: u64) -> Result<Transfer, TransferError> {
        self.poll();
        let copy = MemoryCopy::ToDevice { from: from.address(), to, bytes: from.bytes as u64 };
        self.begin(copy, from)
    }

    /// Fills `to` from a device block, from byte `at` on, after the work submitted to the block's compute stream so
    /// far.
    ///
    /// # Errors
    /// See [`TransferError`]; nothing is copied then.
    pub fn to_host(&self, from: &Allocation, at: u64, to: PinnedBuffer) -> Result<Transfer, TransferError> {
        let address = self.place(&to, from, at)?;
        let copy = MemoryCopy::ToHost { from: address, to: to.address(), bytes: to.bytes as u64 };
        self.begin(copy, to)
    }

    /// Releases the buffers of ended copies, without waiting. Each transfer does so by itself.
    pub fn poll(&self) {
        drop(self.abandoned.0.passed());
    }

    /// Returns the device address, after recording the use on this stream.
    fn place(&self, buffer: &PinnedBuffer, device: &Allocation, at: u64) -> Result<u64, TransferError> {
        self.poll();
        needs(&**device.allocator(), MemoryKind::Device)?;
        let (block, bytes) = (device.block(), buffer.bytes as u64);
        if at.checked_add(bytes).is_none_or(|end| end > block.bytes) {
            return Err(TransferError::OutOfRange { at, bytes, block: block.bytes });
        }
        device.allocator().record_stream(&block, &self.stream)?;
        Ok(block.address + at)
    }

    fn begin(&self, copy: MemoryCopy, buffer: PinnedBuffer) -> Result<Transfer, TransferError> {
        if buffer.bytes > 0 {
            // SAFETY: the buffer is page-locked memory that no code accesses before the copy has ended. The device's
            // block is live, and is not reused before this stream has done the copy. Only its owner allows other
            // streams to use it.
            unsafe { self.stream.copy(copy) }?;
        }
        match self.abandoned.0.events.record(&self.stream) {
            Ok(event) => {
                let mark = Mark { stream: Arc::clone(&self.stream), event };
                Ok(Transfer {
                    in_flight: Some(InFlight { buffer, mark }),
                    abandoned: Arc::clone(&self.abandoned),
                })
            }
            Err(error) => {
                // The copy runs, and only its end would report its end.
                if self.stream.driver().synchronize().is_err() && !error.is_poisoned() {
                    std::mem::forget(buffer);
                }
                Err(error.into())
            }
        }
    }
}

impl PinnedBuffer {
    fn address(&self) -> u64 {
        self.allocation.block().address
    }
}

fn needs(allocator: &dyn Allocator, needed: MemoryKind) -> Result<(), TransferError> {
    let found = allocator.memory_kind();
    if found == needed {
        return Ok(());
    }
    Err(TransferError::WrongKind { allocator: allocator.name().to_owned(), found, needed })
}

/// A copy in progress, and its host buffer. If dropped early, the copy continues, and the buffer is freed after it.
#[derive(Debug)]
pub struct Transfer {
    /// Taken once: by `wait` or by `drop`.
    in_flight: Option<InFlight>,
    abandoned: Arc<AbandonedBuffers>,
}

/// A buffer, and the mark at the end of its copy.
#[derive(Debug)]
struct InFlight {
    buffer: PinnedBuffer,
    mark: Mark,
}

impl Transfer {
    /// Whether the copy has ended. Does not wait.
    ///
    /// # Errors
    /// Fails with the driver's error.
    pub fn is_complete(&self) -> Result<bool, SourceError> {
        self.in_flight().mark.event.is_complete()
    }

    /// Makes work submitted to `stream` from now on wait for the copy. The host does not wait.
    ///
    /// # Errors
    /// Fails with the driver's error.
    pub fn come_before(&self, stream: &Stream) -> Result<(), SourceError> {
        stream.wait(&self.in_flight().mark.event)
    }

    /// Waits for the copy and returns the buffer.
    ///
    /// # Errors
    /// Fails with the driver's error; the buffer then stays allocated until the copy has ended.
    pub fn wait(mut self) -> Result<PinnedBuffer, SourceError> {
        self.in_flight().mark.event.synchronize()?;
        let in_flight = self.in_flight.take();
        let InFlight { buffer, mark } =
            in_flight.unwrap_or_else(|| unreachable!("taken out here and in `drop` alone"));
        self.abandoned.0.events.put(mark.event);
        Ok(buffer)
    }

    fn in_flight(&self) -> &InFlight {
        self.in_flight.as_ref().unwrap_or_else(|| unreachable!("taken out at the end alone"))
    }
}

impl Drop for Transfer {
    fn drop(&mut self) {
        if let Some(InFlight { buffer, mark }) = self.in_flight.take() {
            // If this is the last owner of the dropped buffers, its drop waits for the copy.
            self.abandoned.0.push(buffer, vec![mark]);
            drop(self.abandoned.0.passed());
        }
    }
}

//! Copies between the host and a device that the host does not wait for.
//!
//! The host lends a page-locked buffer to a copy and gets it back when the copy has ended. Meanwhile nobody can read or
//! write it, and whoever loses interest drops the transfer: the buffer is kept until then. Of the device's memory only the
//! order matters, which [`record_stream`](crate::StreamOrder::record_stream) sees to.

use std::ptr::{with_exposed_provenance, with_exposed_provenance_mut};
use std::sync::Arc;

use super::deferred::{Deferred, Mark};
use crate::allocator::attributes::AllocationAttributes;
use crate::allocator::error::{AllocError, RecordError};
use crate::allocator::{Allocation, Allocator, Request};
use crate::base::memory::MemoryKind;
use crate::source::driver::MemoryCopy;
use crate::source::error::SourceError;
use crate::source::stream::Stream;

/// A transfer that was not begun.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum TransferError {
    /// There is no memory for the buffer.
    #[error(transparent)]
    Alloc(#[from] AllocError),
    /// The memory is of another kind than the copy needs.
    #[error("{allocator} is {found} memory, but the copy needs {needed} memory")]
    WrongKind {
        /// The allocator's name.
        allocator: String,
        /// What it hands out.
        found: MemoryKind,
        /// What is needed.
        needed: MemoryKind,
    },
    /// The copy would leave the device's block.
    #[error("a copy of {bytes} bytes at byte {at} leaves a block of {block} bytes")]
    OutOfRange {
        /// Where in the block.
        at: u64,
        /// How many bytes.
        bytes: u64,
        /// The block's bytes.
        block: u64,
    },
    /// The order with other work could not be made.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// The driver refused.
    #[error(transparent)]
    Source(#[from] SourceError),
}

/// Page-locked host memory: what copies go to and come from without staging.
#[derive(Debug)]
pub struct PinnedBuffer {
    allocation: Allocation,
    bytes: usize,
}

impl PinnedBuffer {
    /// `bytes` bytes, of any values, from an allocator of page-locked memory.
    ///
    /// # Errors
    /// [`TransferError::WrongKind`], [`TransferError::Alloc`].
    pub fn new(allocator: &Arc<dyn Allocator>, bytes: usize) -> Result<Self, TransferError> {
        Self::with_attributes(allocator, bytes, AllocationAttributes::default())
    }

    /// The same, tried for as `attributes` say.
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

    /// The bytes.
    #[must_use]
    pub fn as_slice(&self) -> &[u8] {
        match self.bytes {
            0 => &[],
            bytes => {
                let first: *const u8 = with_exposed_provenance(self.allocation.block().address as usize);
                // SAFETY: the block is initialised host memory of at least so many bytes, ours alone as long as we live:
                // copies have it only while they have us.
                unsafe { std::slice::from_raw_parts(first, bytes) }
            }
        }
    }

    /// The bytes, to be written.
    #[must_use]
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        match self.bytes {
            0 => &mut [],
            bytes => {
                let first: *mut u8 = with_exposed_provenance_mut(self.allocation.block().address as usize);
                // SAFETY: as above, and we are borrowed for writing.
                unsafe { std::slice::from_raw_parts_mut(first, bytes) }
            }
        }
    }
}

/// Copies on one stream.
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
    kept: Arc<Kept>,
}

/// Buffers whose transfers were dropped before their end.
#[derive(Debug)]
struct Kept(Deferred<PinnedBuffer>);

impl Drop for Kept {
    fn drop(&mut self) {
        drop(self.0.finish());
        if self.0.len() > 0 {
            // Nobody knows whether the copies have ended: their memory is lost, but not reused.
            self.0.leak();
        }
    }
}

impl Transfers {
    /// Copies on this stream, in the order given.
    #[must_use]
    pub fn new(stream: Arc<Stream>) -> Self {
        Self { stream, kept: Arc::new(Kept(Deferred::new())) }
    }

    /// The stream.
    #[must_use]
    pub const fn stream(&self) -> &Arc<Stream> {
        &self.stream
    }

    /// Copies all of `from` into a block of the device, from byte `at` on, after the work that the block's compute stream
    /// was given so far.
    ///
    /// # Errors
    /// See [`TransferError`]; then nothing is copied.
    pub fn to_device(&self, from: PinnedBuffer, to: &Allocation, at: u64) -> Result<Transfer, TransferError> {
        let address = self.place(&from, to, at)?;
        let copy = MemoryCopy::ToDevice { from: from.address(), to: address, bytes: from.bytes as u64 };
        self.begin(copy, from)
    }

    /// Copies all of `from` to an address of the device's, after the work that our stream was given so far: for memory that is
    /// used on our stream anyway.
    ///
    /// # Errors
    /// See [`TransferError`]; then nothing is copied.
    ///
    /// # Safety
    /// The address starts as many bytes of live memory of the stream's device, which stay so, and which nobody else uses,
    /// until the stream has done the copy.
    pub unsafe fn to_address(&self, from: PinnedBuffer, to: u64) -> Result<Transfer, TransferError> {
        self.poll();
        let copy = MemoryCopy::ToDevice { from: from.address(), to, bytes: from.bytes as u64 };
        self.begin(copy, from)
    }

    /// Copies as many bytes as `to` has out of a block of the device, from byte `at` on, after the work that the block's
    /// compute stream was given so far.
    ///
    /// # Errors
    /// See [`TransferError`]; then nothing is copied.
    pub fn to_host(&self, from: &Allocation, at: u64, to: PinnedBuffer) -> Result<Transfer, TransferError> {
        let address = self.place(&to, from, at)?;
        let copy = MemoryCopy::ToHost { from: address, to: to.address(), bytes: to.bytes as u64 };
        self.begin(copy, to)
    }

    /// Lets go of buffers whose copies have ended, without waiting. Every transfer does so by itself.
    pub fn poll(&self) {
        drop(self.kept.0.passed());
    }

    /// The device's address, of memory that may be used on our stream from now on.
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
            // SAFETY: the buffer is page-locked memory that nobody reaches before the copy has ended. The device's block
            // is alive, is not free for other work before our stream has done this copy, and is used on other streams by
            // the owner's leave alone.
            unsafe { self.stream.copy(copy) }?;
        }
        match self.kept.0.events.record(&self.stream) {
            Ok(event) => {
                let mark = Mark { stream: Arc::clone(&self.stream), event };
                Ok(Transfer { lent: Some(Lent { buffer, mark }), kept: Arc::clone(&self.kept) })
            }
            Err(error) => {
                // The copy was given, and nothing tells when it ends but its end.
                if self.stream.driver().synchronise().is_err() && !error.is_poisoned() {
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

/// A copy under way, and the host's buffer that it has until its end. Dropped before, the copy goes on, and the buffer is
/// given back after it.
#[derive(Debug)]
pub struct Transfer {
    /// Taken out once: by `wait`, or by `drop`.
    lent: Option<Lent>,
    kept: Arc<Kept>,
}

/// A buffer, and the end of the copy that has it.
#[derive(Debug)]
struct Lent {
    buffer: PinnedBuffer,
    mark: Mark,
}

impl Transfer {
    /// Whether the copy has ended. Does not wait.
    ///
    /// # Errors
    /// What the driver says.
    pub fn is_complete(&self) -> Result<bool, SourceError> {
        self.lent().mark.event.is_complete()
    }

    /// Makes what `stream` is given from now on wait for the copy. The host does not wait.
    ///
    /// # Errors
    /// What the driver says.
    pub fn come_before(&self, stream: &Stream) -> Result<(), SourceError> {
        stream.wait(&self.lent().mark.event)
    }

    /// The buffer, once the copy has ended.
    ///
    /// # Errors
    /// What the driver says; then the buffer is kept until the copy's end is seen.
    pub fn wait(mut self) -> Result<PinnedBuffer, SourceError> {
        self.lent().mark.event.synchronise()?;
        let lent = self.lent.take();
        let Lent { buffer, mark } =
            lent.unwrap_or_else(|| unreachable!("taken out here and in `drop` alone"));
        self.kept.0.events.put(mark.event);
        Ok(buffer)
    }

    fn lent(&self) -> &Lent {
        self.lent.as_ref().unwrap_or_else(|| unreachable!("taken out at the end alone"))
    }
}

impl Drop for Transfer {
    fn drop(&mut self) {
        if let Some(Lent { buffer, mark }) = self.lent.take() {
            // If this is the last to know of it, the wait for the copy follows now.
            self.kept.0.push(buffer, vec![mark]);
            drop(self.kept.0.passed());
        }
    }
}

//! Page-locked memory and memory of the GPU, through which host memory travels to other ranks.

use std::ptr::{with_exposed_provenance, with_exposed_provenance_mut};
use std::sync::Arc;

use bfc_core::{Driver, MemoryCopy, SourceError, Stream, StreamEvent};
use bfc_cuda::CudaDriver;

/// Equal slots in page-locked memory and on the GPU.
#[derive(Debug)]
pub(super) struct Staging {
    driver: Arc<CudaDriver>,
    stream: Arc<Stream>,
    slot_bytes: usize,
    slots: usize,
    host: u64,
    device: u64,
}

impl Staging {
    pub(super) fn new(
        driver: &Arc<CudaDriver>,
        slots: usize,
        slot_bytes: usize,
    ) -> Result<Self, SourceError> {
        let bytes = (slots * slot_bytes) as u64;
        let stream = Stream::new(driver.clone())?;
        let device = driver.allocate_device(bytes)?;
        let host = driver.allocate_pinned(bytes).inspect_err(|_| {
            // SAFETY: it was allocated just now, and nothing uses it.
            unsafe { driver.free_device(device) };
        })?;
        Ok(Self { driver: Arc::clone(driver), stream, slot_bytes, slots, host, device })
    }

    pub(super) const fn slot_bytes(&self) -> usize {
        self.slot_bytes
    }

    /// The bytes on the GPU.
    pub(super) const fn device_bytes(&self) -> u64 {
        (self.slots * self.slot_bytes) as u64
    }

    pub(super) const fn stream(&self) -> &Arc<Stream> {
        &self.stream
    }

    /// The address of a slot on the GPU.
    pub(super) fn address(&self, slot: usize) -> u64 {
        assert!(slot < self.slots, "each message has a slot");
        self.device + (slot * self.slot_bytes) as u64
    }

    /// Submits a copy of the bytes to a slot on the GPU. The caller waits for the stream before it writes to the slot again.
    pub(super) fn upload(&mut self, slot: usize, bytes: &[u8]) -> Result<(), SourceError> {
        let (from, to) = (self.host_address(slot, bytes.len()), self.address(slot));
        let start: *mut u8 = with_exposed_provenance_mut(from as usize);
        // SAFETY: the slot is at least as long, and no copy uses it: the caller has waited.
        unsafe { start.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        // SAFETY: both slots live as long as `self`, which waits for the stream, and are at least as long.
        unsafe { self.stream.copy(MemoryCopy::ToDevice { from, to, bytes: bytes.len() as u64 }) }
    }

    /// Submits a copy of a slot from the GPU, for [`read`](Self::read).
    pub(super) fn download(&mut self, slot: usize, bytes: usize) -> Result<(), SourceError> {
        let (from, to) = (self.address(slot), self.host_address(slot, bytes));
        // SAFETY: both slots live as long as `self`, which waits for the stream, and are at least as long.
        unsafe { self.stream.copy(MemoryCopy::ToHost { from, to, bytes: bytes as u64 }) }
    }

    /// Reads what a download has copied. The caller has waited for the stream.
    pub(super) fn read(&self, slot: usize, bytes: &mut [u8]) {
        let start: *const u8 = with_exposed_provenance(self.host_address(slot, bytes.len()) as usize);
        // SAFETY: the slot is at least as long, page-locked memory is initialized, and no copy writes to it anymore.
        unsafe { start.copy_to_nonoverlapping(bytes.as_mut_ptr(), bytes.len()) };
    }

    /// An event after all submitted work.
    pub(super) fn event(&self) -> Result<StreamEvent, SourceError> {
        StreamEvent::new(&self.stream)
    }

    fn host_address(&self, slot: usize, bytes: usize) -> u64 {
        assert!(slot < self.slots && bytes <= self.slot_bytes, "each piece fits a slot");
        self.host + (slot * self.slot_bytes) as u64
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        // An error means that the device is lost. Operations that hang were aborted.
        let _ = self.stream.synchronize();
        // SAFETY: `new` allocated it, and all work has ended.
        unsafe { self.driver.free_pinned(self.host) };
        // SAFETY: as above.
        unsafe { self.driver.free_device(self.device) };
    }
}

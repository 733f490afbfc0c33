//! Stages uploads in pinned memory.
//!
//! A copy from the caller's memory may continue after the call returns, although the caller may overwrite that memory
//! at once. Uploads therefore copy the bytes to a private buffer, from which the device reads later.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bfc_core::{
    AllocationAttributes, Allocator, PinnedBuffer, STAGED_PIECE, StagedPieces, Transfer, TransferError,
    Transfers,
};

use crate::compute::ComputeError;
use crate::driver;

/// The staged pieces and the source of their memory.
pub(super) struct Staging {
    pinned: Arc<dyn Allocator>,
    transfers: Transfers,
    staged: Mutex<StagedPieces<Transfer>>,
}

impl Staging {
    pub(super) fn new(pinned: Arc<dyn Allocator>, transfers: Transfers) -> Self {
        Self { pinned, transfers, staged: Mutex::default() }
    }

    fn staged(&self) -> MutexGuard<'_, StagedPieces<Transfer>> {
        self.staged.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts an upload; returns how many leading bytes were staged. Those are not read again.
    ///
    /// # Safety
    /// As [`Compute::upload`](crate::Compute::upload).
    pub(super) unsafe fn upload(&self, bytes: &[u8], to: u64) -> Result<usize, ComputeError> {
        let mut taken = 0;
        for piece in bytes.chunks(STAGED_PIECE) {
            let Some(mut buffer) = self.buffer(piece.len())? else { break };
            buffer.as_mut_slice().copy_from_slice(piece);
            // Held commands cannot use memory that is filled only now.
            // SAFETY: as the caller says; earlier users of the memory are on the same stream.
            let copied =
                driver::without_flush(|| unsafe { self.transfers.to_address(buffer, to + taken as u64) });
            self.staged().push(piece.len(), copied.map_err(failed)?);
            taken += piece.len();
        }
        Ok(taken)
    }

    /// Allocates a buffer, after waiting for earlier pieces if necessary. Returns `None` if there is no memory.
    fn buffer(&self, bytes: usize) -> Result<Option<PinnedBuffer>, ComputeError> {
        loop {
            let crowded_out = self.staged().crowded_out(bytes);
            let Some(piece) = crowded_out else { break };
            finish(piece)?;
        }
        loop {
            // Staging is optional, so do not wait for other owners.
            let attributes = AllocationAttributes::no_retry();
            if let Ok(buffer) = PinnedBuffer::with_attributes(&self.pinned, bytes, attributes) {
                return Ok(Some(buffer));
            }
            let oldest = self.staged().oldest();
            let Some(piece) = oldest else { return Ok(None) };
            finish(piece)?;
        }
    }

    /// Frees all pieces once the device has read them.
    pub(super) fn release(&self) {
        loop {
            let oldest = self.staged().oldest();
            let Some(piece) = oldest else { break };
            // After an error the buffer is kept until the driver confirms the copy.
            let _ = finish(piece);
        }
    }
}

/// Waits for a piece and frees its buffer.
fn finish(piece: Transfer) -> Result<(), ComputeError> {
    let waited = driver::without_flush(|| piece.wait()).map(drop);
    waited.map_err(|error| ComputeError::of_driver("cuEventSynchronize", &error))
}

fn failed(error: TransferError) -> ComputeError {
    match error {
        TransferError::Source(error) => ComputeError::of_driver("cuMemcpyHtoDAsync", &error),
        error => ComputeError::Device { call: "cuMemcpyHtoDAsync", reason: error.to_string() },
    }
}

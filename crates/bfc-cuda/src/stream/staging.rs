//! Bytes on their way to a device, in page-locked memory of our own.
//!
//! A copy from memory of the caller's may end after the call: from page-locked memory always, and on some machines from any.
//! The caller may write there as soon as the call has returned. So it copies its bytes to where nobody else writes, from where
//! the device fetches them when it comes to that.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bfc_core::{
    AllocationAttributes, Allocator, PinnedBuffer, STAGED_PIECE, StagedPieces, Transfer, TransferError,
    Transfers,
};

use crate::compute::ComputeError;
use crate::driver;

/// Where bytes wait until the device has fetched them.
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

    /// Has the device fetch bytes: how many of them, from the first on, found such memory. None of those are read any more.
    ///
    /// # Safety
    /// As [`Compute::upload`](crate::Compute::upload).
    pub(super) unsafe fn upload(&self, bytes: &[u8], to: u64) -> Result<usize, ComputeError> {
        let mut taken = 0;
        for piece in bytes.chunks(STAGED_PIECE) {
            let Some(mut buffer) = self.buffer(piece.len())? else { break };
            buffer.as_mut_slice().copy_from_slice(piece);
            // What is held back by now has nothing to do with memory that is filled only now.
            // SAFETY: as the caller says; all that may have used the memory before was given to the same stream.
            let copied = driver::apart(|| unsafe { self.transfers.to_address(buffer, to + taken as u64) });
            self.staged().push(piece.len(), copied.map_err(failed)?);
            taken += piece.len();
        }
        Ok(taken)
    }

    /// Memory for a piece, which earlier ones may have to leave first. None if there is none.
    fn buffer(&self, bytes: usize) -> Result<Option<PinnedBuffer>, ComputeError> {
        loop {
            let crowded_out = self.staged().crowded_out(bytes);
            let Some(piece) = crowded_out else { break };
            finish(piece)?;
        }
        loop {
            // It can be done without, so nobody else is waited for.
            let attributes = AllocationAttributes::no_retry();
            if let Ok(buffer) = PinnedBuffer::with_attributes(&self.pinned, bytes, attributes) {
                return Ok(Some(buffer));
            }
            let oldest = self.staged().oldest();
            let Some(piece) = oldest else { return Ok(None) };
            finish(piece)?;
        }
    }

    /// Gives back the memory of all pieces: the device has fetched them.
    pub(super) fn let_go(&self) {
        loop {
            let oldest = self.staged().oldest();
            let Some(piece) = oldest else { break };
            // Should the driver not say so, the buffer is kept until it does.
            let _ = finish(piece);
        }
    }
}

/// Waits for a piece, whose memory is free then.
fn finish(piece: Transfer) -> Result<(), ComputeError> {
    let waited = driver::apart(|| piece.wait()).map(drop);
    waited.map_err(|error| ComputeError::of_driver("cuEventSynchronize", &error))
}

fn failed(error: TransferError) -> ComputeError {
    match error {
        TransferError::Source(error) => ComputeError::of_driver("cuMemcpyHtoDAsync", &error),
        error => ComputeError::Device { call: "cuMemcpyHtoDAsync", reason: error.to_string() },
    }
}

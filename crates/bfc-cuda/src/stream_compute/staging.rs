//! Bytes on their way to a device, in page-locked memory of our own.
//!
//! A copy from memory of the caller's may end after the call: from page-locked memory always, and on some machines from any.
//! The caller may write there as soon as the call has returned. So it copies its bytes to where nobody else writes, from where
//! the device fetches them when it comes to that.

use std::collections::VecDeque;
use std::sync::Arc;

use bfc_core::{AllocationAttributes, Allocator, PinnedBuffer, Transfer, TransferError, Transfers};

use crate::compute::ComputeError;
use crate::driver;

/// The most bytes of a piece, and the most pieces that wait for the device: what an upload keeps page-locked, however large it is.
const PIECE: usize = 32 << 20;
const PIECES: usize = 3;

/// Where bytes wait until the device has fetched them.
pub(super) struct Staging {
    pub(super) pinned: Arc<dyn Allocator>,
    pub(super) transfers: Transfers,
}

impl Staging {
    /// Has the device fetch bytes: how many of them, from the first on, found such memory. None of those are read any more.
    ///
    /// # Safety
    /// As [`Compute::upload`](crate::Compute::upload).
    pub(super) unsafe fn upload(&self, bytes: &[u8], to: u64) -> Result<usize, ComputeError> {
        let mut under_way: VecDeque<Transfer> = VecDeque::new();
        let mut taken = 0;
        for piece in bytes.chunks(PIECE) {
            if under_way.len() == PIECES {
                finish_first(&mut under_way)?;
            }
            let Some(mut buffer) = self.buffer(piece.len(), &mut under_way)? else { break };
            buffer.as_mut_slice().copy_from_slice(piece);
            // What is held back by now has nothing to do with memory that is filled only now.
            // SAFETY: as the caller says; all that may have used the memory before was given to the same stream.
            let copied = driver::apart(|| unsafe { self.transfers.to_address(buffer, to + taken as u64) });
            under_way.push_back(copied.map_err(failed)?);
            taken += piece.len();
        }
        // Those buffers go back to their pool after the copies.
        Ok(taken)
    }

    /// Memory for a piece, which earlier ones may have to leave first. None if there is none.
    fn buffer(
        &self,
        bytes: usize,
        under_way: &mut VecDeque<Transfer>,
    ) -> Result<Option<PinnedBuffer>, ComputeError> {
        loop {
            self.transfers.poll();
            // It can be done without, so nobody else is waited for.
            let attributes = AllocationAttributes::no_retry();
            if let Ok(buffer) = PinnedBuffer::with_attributes(&self.pinned, bytes, attributes) {
                return Ok(Some(buffer));
            }
            if under_way.is_empty() {
                return Ok(None);
            }
            finish_first(under_way)?;
        }
    }
}

/// Waits for the piece given first, whose memory is free then.
fn finish_first(under_way: &mut VecDeque<Transfer>) -> Result<(), ComputeError> {
    let Some(first) = under_way.pop_front() else { return Ok(()) };
    let waited = first.wait().map(drop);
    waited.map_err(|error| ComputeError::of_driver("cuEventSynchronize", &error))
}

fn failed(error: TransferError) -> ComputeError {
    match error {
        TransferError::Source(error) => ComputeError::of_driver("cuMemcpyHtoDAsync", &error),
        error => ComputeError::Device { call: "cuMemcpyHtoDAsync", reason: error.to_string() },
    }
}

//! The order of work on a device, and what memory has to do with it.
//!
//! A device does the work of one [`Stream`] in the order given, and that of two streams in none. Memory that is freed
//! while work on it is still to be done may therefore be handed out again at once for work on the same stream, and only
//! after that work has ended for anyone else. So a device has one compute stream, whose memory is reused at once;
//! [`StreamAllocator`] gives memory that other streams use back when their [`Event`]s have passed, and [`Transfers`] keeps
//! memory that the host lends to copies until these have ended, of which [`StagedPieces`] says how many there are at a time.

mod allocator;
mod cheapest;
mod deferred;
mod staged;
mod transfer;

pub use allocator::StreamAllocator;
pub use staged::{STAGED_PIECE, StagedPieces};
pub use transfer::{PinnedBuffer, Transfer, TransferError, Transfers};

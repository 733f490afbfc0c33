//! Memory that several streams of a device use.
//!
//! A device runs the work of one [`Stream`](crate::Stream) in order and the work of two streams in any order. A pool
//! therefore belongs to one compute stream, and reuses freed memory at once. [`StreamAllocator`] delays the free of a
//! block that another stream uses until an [`StreamEvent`](crate::StreamEvent) has passed. [`Transfers`] keeps pinned memory until
//! copies end, and [`StagedPieces`] bounds how much of it uploads hold at a time.

mod allocator;
mod cheapest;
mod deferred;
mod staged;
mod transfer;

pub use allocator::StreamAllocator;
pub use staged::{STAGED_PIECE, StagedPieces};
pub use transfer::{PinnedBuffer, Transfer, TransferError, Transfers};

//! The rules of memory use by streams, checked independently of the actual order.
//!
//! The check finds a race even if the run happens to order it correctly. Two pieces of work are ordered if one precedes
//! the other in its stream, or precedes an event that the other's stream waited for: Lamport's relation, in vector
//! clocks. Work that uses bytes of pending work is either ordered after it in every run, or a violation in this run.

use crate::base::memory::{Block, Span};
use crate::source::driver::StreamHandle;

/// Bytes of device memory or page-locked memory that a piece of work reads or writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryUse {
    /// The bytes.
    pub span: Span,
    /// The owner. Work for one owner may share bytes freely; a block's [id](crate::Block::id) is a good owner. Work
    /// without an owner may share bytes only for reading.
    pub owner: Option<u64>,
    /// Whether the bytes are written.
    pub writes: bool,
}

impl MemoryUse {
    /// Creates a use of a block's bytes by its owner, which may write them.
    #[must_use]
    pub const fn of(block: &Block) -> Self {
        Self { span: block.span(), owner: Some(block.id), writes: true }
    }

    pub(super) const fn touches(&self, span: Span) -> bool {
        self.span.address < span.address + span.bytes && span.address < self.span.address + self.span.bytes
    }

    const fn allows(&self, other: &Self) -> bool {
        match (self.owner, other.owner) {
            (Some(owner), Some(other)) => owner == other,
            _ => !self.writes && !other.writes,
        }
    }
}

/// An invalid use of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Violation {
    /// Submitted work uses bytes of pending work without an order between the two.
    Unordered {
        /// The bytes of the later work.
        span: Span,
        /// The stream of the earlier work.
        first: StreamHandle,
        /// The stream of the later work.
        second: StreamHandle,
    },
    /// Work uses bytes that are neither device memory nor page-locked memory.
    NoMemory {
        /// The bytes.
        span: Span,
        /// The stream of the work.
        stream: StreamHandle,
    },
    /// Memory was freed while work used it.
    InUse {
        /// The freed bytes.
        span: Span,
        /// The stream of the work.
        stream: StreamHandle,
    },
}

/// Returns the bytes in conflict between both uses, if any.
pub(super) fn conflict(earlier: &[MemoryUse], later: &[MemoryUse]) -> Option<Span> {
    let clash =
        |used: &&MemoryUse| earlier.iter().any(|other| other.touches(used.span) && !other.allows(used));
    later.iter().find(clash).map(|used| used.span)
}

/// A vector clock: the ordered prefix of each stream.
#[derive(Clone, Debug, Default)]
pub(super) struct Clock {
    /// The number of the last ordered item, by stream. There are few streams.
    up_to: Vec<(u64, u64)>,
}

impl Clock {
    pub(super) fn of(&self, stream: u64) -> u64 {
        self.up_to.iter().find(|(of, _)| *of == stream).map_or(0, |(_, index)| *index)
    }

    pub(super) fn raise(&mut self, stream: u64, to: u64) {
        match self.up_to.iter_mut().find(|(of, _)| *of == stream) {
            Some((_, index)) => *index = to.max(*index),
            None => self.up_to.push((stream, to)),
        }
    }

    pub(super) fn join(&mut self, other: &Self) {
        for &(stream, index) in &other.up_to {
            self.raise(stream, index);
        }
    }
}

//! The rules of memory use: who may use a byte when.
//!
//! The check does not wait for a bad order to happen. Two pieces of work are in order if one comes before the other in
//! its stream, or before an event that the other's stream waited for: Lamport's relation, kept in vector clocks. Work
//! that uses bytes in use by work that has not ended is therefore either in order with it, whatever the order in which
//! the device ends things, or a violation in this very run.

use crate::base::memory::{Block, Span};
use crate::source::driver::StreamHandle;

/// Bytes of device memory or page-locked memory that a piece of work reads or writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryUse {
    /// Which bytes.
    pub span: Span,
    /// For whom: work for one owner may share bytes as it likes, that is a matter of its program. A block's
    /// [id](crate::Block::id) is a good owner. Without an owner, work may share bytes only to read them.
    pub owner: Option<u64>,
    /// Whether the bytes are written.
    pub writes: bool,
}

impl MemoryUse {
    /// A use of a block's bytes for that block, which may write them.
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

/// A use of memory against the rules, as a simulated device has seen it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Violation {
    /// Work was given that uses bytes which work before it still uses, and nothing says that it comes after that.
    Unordered {
        /// Bytes that the later work uses.
        span: Span,
        /// The stream of the earlier work.
        first: StreamHandle,
        /// The stream of the later work.
        second: StreamHandle,
    },
    /// Work uses bytes that are not memory of the device, or of page-locked memory.
    NoMemory {
        /// The bytes.
        span: Span,
        /// The stream of the work.
        stream: StreamHandle,
    },
    /// Memory was given back while work used it.
    InUse {
        /// What was given back.
        span: Span,
        /// The stream of the work.
        stream: StreamHandle,
    },
}

/// Bytes that both use, if they may not.
pub(super) fn conflict(earlier: &[MemoryUse], later: &[MemoryUse]) -> Option<Span> {
    let clash =
        |used: &&MemoryUse| earlier.iter().any(|other| other.touches(used.span) && !other.allows(used));
    later.iter().find(clash).map(|used| used.span)
}

/// Up to where the work of each stream comes before something: a vector clock.
#[derive(Clone, Debug, Default)]
pub(super) struct Clock {
    /// Number of the last such piece of work, by stream. Streams are few.
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

//! The source of block sizes of a tracking allocator.

use bfc_core::Allocator;
use bfc_core::sync::Mutex;

use crate::account::local::LocalBlocks;

/// The source of block sizes.
#[derive(Debug)]
pub(super) enum Sizing {
    /// The inner allocator's blocks carry their true size.
    Inner,
    /// They carry no size, so this allocator stores each block.
    Local(Box<Mutex<LocalBlocks>>),
    /// Sizes are unknown: requested bytes are counted, and frees are not.
    Untracked,
}

impl Sizing {
    pub(super) fn of(inner: &dyn Allocator, track_sizes: bool) -> Self {
        match (inner.tracks_sizes(), track_sizes) {
            (true, _) => Self::Inner,
            (false, true) => Self::Local(Box::default()),
            (false, false) => Self::Untracked,
        }
    }

    pub(super) const fn is_tracked(&self) -> bool {
        !matches!(self, Self::Untracked)
    }

    /// Forgets all blocks. Their numbers start again.
    pub(super) fn reset(&mut self) {
        if let Self::Local(blocks) = self {
            **blocks = Mutex::default();
        }
    }
}

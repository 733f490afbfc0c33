//! The configuration of a guard.

use std::fmt;
use std::sync::Arc;

use crate::allocator::damage::Damage;
use crate::base::units::{Bytes, MIB};

/// A byte of all ones: it makes NaN in every floating-point format.
const NAN: u8 = 0xff;

/// The initial contents of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fill {
    /// Unchanged from the inner allocator.
    Keep,
    /// All bytes have this value.
    Byte(u8),
}

/// A callback for each damage.
pub(super) type Listener = Arc<dyn Fn(&Damage) + Send + Sync>;

/// The configuration of a [`GuardAllocator`](super::GuardAllocator).
///
/// ```
/// use bfc_core::{Bytes, Fill, GuardConfig};
/// let config = GuardConfig::default().with_zone(Bytes(256)).with_fresh(Fill::Byte(0));
/// ```
#[derive(Clone)]
pub struct GuardConfig {
    pub(super) zone: u64,
    pub(super) fresh: Fill,
    pub(super) poison: u8,
    pub(super) quarantine_bytes: u64,
    pub(super) quarantine_blocks: usize,
    pub(super) listener: Option<Listener>,
}

impl Default for GuardConfig {
    /// Creates the default: 64 bytes of canaries on each side, at most 64 MiB or 65,536 blocks in quarantine, and bytes
    /// of all ones (NaN) in new and freed blocks.
    fn default() -> Self {
        Self {
            zone: 64,
            fresh: Fill::Byte(NAN),
            poison: NAN,
            quarantine_bytes: 64 * MIB,
            quarantine_blocks: 1 << 16,
            listener: None,
        }
    }
}

impl GuardConfig {
    /// Sets the minimum number of canary bytes on each side of a block.
    #[must_use]
    pub const fn with_zone(mut self, bytes: Bytes) -> Self {
        self.zone = bytes.0;
        self
    }

    /// Sets the initial contents of a block.
    #[must_use]
    pub const fn with_fresh(mut self, fill: Fill) -> Self {
        self.fresh = fill;
        self
    }

    /// Sets the byte value that fills a freed block.
    #[must_use]
    pub const fn with_poison(mut self, value: u8) -> Self {
        self.poison = value;
        self
    }

    /// Sets the capacity of the quarantine in bytes, including canaries, and in blocks. The oldest blocks return to the
    /// inner allocator beyond it. 0 of either disables the quarantine.
    #[must_use]
    pub const fn with_quarantine(mut self, bytes: Bytes, blocks: usize) -> Self {
        self.quarantine_bytes = bytes.0;
        self.quarantine_blocks = blocks;
        self
    }

    /// Calls `listener` for each damage when it is found: on a free, when a block leaves the quarantine, by a check,
    /// and when the guard is dropped. It may use the guard.
    #[must_use]
    pub fn with_listener(mut self, listener: impl Fn(&Damage) + Send + Sync + 'static) -> Self {
        self.listener = Some(Arc::new(listener));
        self
    }
}

impl fmt::Debug for GuardConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GuardConfig")
            .field("zone", &self.zone)
            .field("fresh", &self.fresh)
            .field("poison", &self.poison)
            .field("quarantine_bytes", &self.quarantine_bytes)
            .field("quarantine_blocks", &self.quarantine_blocks)
            .finish_non_exhaustive()
    }
}

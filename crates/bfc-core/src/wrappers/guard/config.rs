//! How a guard behaves.

use std::fmt;
use std::sync::Arc;

use crate::allocator::damage::Damage;
use crate::base::units::{Bytes, MIB};

/// Bytes that are all ones are not a number in every format of floating point.
const NAN: u8 = 0xff;

/// What a block's bytes are when it is handed out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fill {
    /// As the inner allocator delivers them.
    Keep,
    /// All bytes have this value.
    Byte(u8),
}

/// Who is told of damage.
pub(super) type Listener = Arc<dyn Fn(&Damage) + Send + Sync>;

/// How a [`GuardAllocator`](super::GuardAllocator) behaves.
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
    /// 64 bytes of canaries on each side, at most 64 MiB or 65,536 blocks in quarantine, and bytes that are all ones,
    /// which read as not a number, in blocks just handed out and just given back.
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
    /// The least number of canary bytes on each side of a block.
    #[must_use]
    pub const fn with_zone(mut self, bytes: Bytes) -> Self {
        self.zone = bytes.0;
        self
    }

    /// What a block's bytes are when it is handed out.
    #[must_use]
    pub const fn with_fresh(mut self, fill: Fill) -> Self {
        self.fresh = fill;
        self
    }

    /// What a block's bytes are set to when it comes back.
    #[must_use]
    pub const fn with_poison(mut self, value: u8) -> Self {
        self.poison = value;
        self
    }

    /// The most that blocks given back may hold before the oldest go back to the inner allocator: this many bytes,
    /// canaries included, and this many blocks. With 0 of either there is no quarantine.
    #[must_use]
    pub const fn with_quarantine(mut self, bytes: Bytes, blocks: usize) -> Self {
        self.quarantine_bytes = bytes.0;
        self.quarantine_blocks = blocks;
        self
    }

    /// Tells `listener` of each damage when it is found: on a free, when a block leaves the quarantine, by a check, and
    /// when the guard is dropped, where nobody else could be told. It may use the guard.
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

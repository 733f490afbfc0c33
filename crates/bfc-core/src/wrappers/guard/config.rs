//! The configuration of a guard.

use std::fmt;
use std::sync::Arc;

use crate::allocator::damage::Damage;
use crate::base::units::{Bytes, MIB};

/// A callback for each damage.
pub(super) type Listener = Arc<dyn Fn(&Damage) + Send + Sync>;

/// The configuration of a [`GuardAllocator`](super::GuardAllocator).
///
/// ```
/// use bfc_core::{Bytes, GuardConfig};
/// let config = GuardConfig::default().with_quarantine(Bytes::mib(256), 1 << 20);
/// ```
#[derive(Clone)]
pub struct GuardConfig {
    pub(super) quarantine_bytes: u64,
    pub(super) quarantine_blocks: usize,
    pub(super) listener: Option<Listener>,
}

impl Default for GuardConfig {
    /// Creates the default: at most 64 MiB or 65,536 blocks in quarantine.
    fn default() -> Self {
        Self { quarantine_bytes: 64 * MIB, quarantine_blocks: 1 << 16, listener: None }
    }
}

impl GuardConfig {
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
            .field("quarantine_bytes", &self.quarantine_bytes)
            .field("quarantine_blocks", &self.quarantine_blocks)
            .finish_non_exhaustive()
    }
}

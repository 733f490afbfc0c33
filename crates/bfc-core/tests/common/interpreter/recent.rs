//! Model of the recently freed small blocks that a pool with `JoinRule::Deferred` reuses first.

use std::collections::VecDeque;

use bfc_core::{BfcConfig, Block, JoinRule};

/// The number of small blocks that stay unjoined, and the size of the largest.
const COUNT: usize = 4;
const LARGEST: u64 = 64 << 10;

/// The small blocks freed last.
#[derive(Debug, Default)]
pub(super) struct RecentFrees {
    /// Whether the pool keeps any.
    deferred: bool,
    /// Addresses and sizes, the oldest first.
    blocks: VecDeque<(u64, u64)>,
}

impl RecentFrees {
    /// Creates the model for a pool of this kind; `safe` says whether its frees are safe at once.
    pub(super) fn of(config: &BfcConfig, safe: bool) -> Self {
        let deferred = config.options.join == JoinRule::Deferred && safe;
        Self { deferred, blocks: VecDeque::new() }
    }

    pub(super) fn add(&mut self, block: &Block) {
        if self.deferred && block.bytes <= LARGEST {
            self.blocks.push_back((block.address, block.bytes));
        }
        if self.blocks.len() > COUNT {
            self.blocks.pop_front();
        }
    }

    /// Joins all blocks.
    pub(super) fn clear(&mut self) {
        self.blocks.clear();
    }

    /// Returns whether a `plain` request of this many bytes reuses a recent block of this size at `address`.
    /// Otherwise the pool joins all recent blocks.
    pub(super) fn serve(&mut self, rounded: u64, plain: bool, address: u64) -> bool {
        if !plain || self.blocks.iter().all(|(_, bytes)| *bytes != rounded) {
            self.clear();
            return false;
        }
        let place = self.blocks.iter().position(|&block| block == (address, rounded));
        let place =
            place.unwrap_or_else(|| panic!("{rounded} bytes at {address:#x}, not in {:x?}", self.blocks));
        self.blocks.remove(place);
        true
    }
}

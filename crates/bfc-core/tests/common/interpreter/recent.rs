//! What a pool that joins small blocks later hands out before anything else, by the rule as `JoinRule::Deferred` tells it.

use std::collections::VecDeque;

use bfc_core::{BfcConfig, Block, JoinRule};

/// How many blocks stay as they are, and the largest that does.
const COUNT: usize = 4;
const LARGEST: u64 = 64 << 10;

/// The small blocks freed last.
#[derive(Debug, Default)]
pub(super) struct RecentFrees {
    /// Whether the pool has any.
    deferred: bool,
    /// Addresses and sizes, the oldest first.
    blocks: VecDeque<(u64, u64)>,
}

impl RecentFrees {
    /// Those of a pool of this kind, whose frees are `safe` at once or not.
    pub(super) fn of(config: &BfcConfig, safe: bool) -> Self {
        let deferred = config.options().join == JoinRule::Deferred && safe;
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

    /// All are joined.
    pub(super) fn clear(&mut self) {
        self.blocks.clear();
    }

    /// Whether a request for so many bytes, if it is a `plain` one, gets one of them: then `address` is where one of this
    /// size lies. Otherwise all are joined.
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

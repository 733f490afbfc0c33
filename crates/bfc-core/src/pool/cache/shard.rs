//! One cache: its leased blocks, in use or free, and their accounts.

use std::collections::HashSet;

use crate::accounting::accounts::Accounts;
use crate::accounting::callers::ThreadRegistry;
use crate::allocator::error::BlockError;
use crate::base::ledger::Tag;
use crate::base::memory::{Block, PoolId};
use crate::base::placement::Placement;
use crate::policy::{GRANULE, Policy};

/// No slot: the end of a stack.
const NONE: u32 = u32::MAX;

/// A cache: leased blocks by slot, and stacks of free ones by size.
#[derive(Debug)]
pub(in crate::pool) struct Shard {
    /// The accounts of blocks in use, by the cache's slots.
    pub(in crate::pool) accounts: Accounts,
    pub(in crate::pool) users: ThreadRegistry,
    /// The leased blocks, by slot; `None` for empty slots.
    leases: Vec<Option<Lease>>,
    /// The empty slots.
    unused: Vec<u32>,
    /// The slot freed last, by size in granules.
    stacks: Vec<u32>,
    /// The size from which the next block returns to the pool.
    hand: usize,
    cached_bytes: u64,
    cached_blocks: usize,
}

/// A leased block.
#[derive(Clone, Copy, Debug)]
struct Lease {
    /// Its placement in the policy.
    place: Placement,
    /// The slot below in the stack, while free.
    below: u32,
}

/// The use of a leased block.
#[derive(Clone, Copy, Debug)]
pub(in crate::pool) struct Leased {
    /// Its placement in the policy.
    pub(in crate::pool) place: Placement,
    /// The cache's slot.
    pub(in crate::pool) slot: u32,
    pub(in crate::pool) in_use: bool,
}

impl Shard {
    /// Creates a cache whose allocation numbers begin after `before`.
    pub(super) fn new(pool: PoolId, before: u64) -> Self {
        Self {
            accounts: Accounts::numbered_after(pool, before),
            users: ThreadRegistry::default(),
            leases: Vec::new(),
            unused: Vec::new(),
            stacks: Vec::new(),
            hand: 0,
            cached_bytes: 0,
            cached_blocks: 0,
        }
    }

    /// Returns the free bytes.
    #[inline]
    pub(in crate::pool) const fn cached_bytes(&self) -> u64 {
        self.cached_bytes
    }

    /// Returns the number of free blocks.
    #[inline]
    pub(in crate::pool) const fn cached_blocks(&self) -> usize {
        self.cached_blocks
    }

    /// Allocates a free block of the size class, if there is one, for `requested` bytes.
    #[inline]
    pub(in crate::pool) fn take(
        &mut self,
        class: usize,
        alignment: u64,
        requested: u64,
        tag: Tag,
    ) -> Option<Block> {
        let top = self.stacks.get_mut(class)?;
        let slot = *top;
        let lease = (*self.leases.get(slot as usize)?)?;
        if lease.place.address & (alignment - 1) != 0 {
            return None;
        }
        *top = lease.below;
        self.cached_bytes -= lease.place.bytes;
        self.cached_blocks -= 1;
        Some(self.accounts.open(Placement { slot, ..lease.place }, requested, tag))
    }

    /// Leases a block that the policy has just placed.
    pub(in crate::pool) fn lease(&mut self, place: Placement, requested: u64, tag: Tag) -> Block {
        let lease = Some(Lease { place, below: NONE });
        let slot = match self.unused.pop() {
            Some(slot) => {
                self.leases[slot as usize] = lease;
                slot
            }
            None => {
                self.leases.push(lease);
                (self.leases.len() - 1) as u32
            }
        };
        self.accounts.open(Placement { slot, ..place }, requested, tag)
    }

    /// Returns the placement of a live block, with the cache's slot.
    #[inline]
    pub(in crate::pool) fn live(&self, block: &Block) -> Result<Placement, BlockError> {
        self.accounts.live(block)?;
        let same = |place: &Placement| place.address == block.address && place.bytes == block.bytes;
        self.place(block.chunk).filter(same).ok_or(BlockError::Unknown { block: *block })
    }

    /// Returns the policy's slot of a live block.
    pub(in crate::pool) fn leased_slot(&self, block: &Block) -> Option<u32> {
        let place = self.live(block).ok()?;
        let lease = (*self.leases.get(place.slot as usize)?)?;
        Some(lease.place.slot)
    }

    /// Returns the live block that starts at `address`.
    pub(in crate::pool) fn block_at(&mut self, address: u64) -> Result<Block, BlockError> {
        let leases = &self.leases;
        let address_of = |slot: u32| Some((*leases.get(slot as usize)?)?.place.address);
        let slot = self.accounts.slot_at(address, address_of)?;
        let place = self.place(slot).ok_or(BlockError::NoBlockAt { address })?;
        Ok(self.accounts.block(place))
    }

    /// Frees the block at `place` into the cache.
    #[inline]
    pub(in crate::pool) fn keep(&mut self, place: Placement) {
        self.accounts.close(place);
        let class = (place.bytes / GRANULE) as usize;
        if class >= self.stacks.len() {
            self.stacks.resize(class + 1, NONE);
        }
        let below = std::mem::replace(&mut self.stacks[class], place.slot);
        if let Some(lease) = &mut self.leases[place.slot as usize] {
            lease.below = below;
        }
        self.cached_bytes += place.bytes;
        self.cached_blocks += 1;
    }

    /// Removes one free block, which then belongs to the pool. Cycles through the sizes.
    pub(in crate::pool) fn give_up(&mut self) -> Option<Placement> {
        if self.cached_blocks == 0 {
            return None;
        }
        while self.stacks.get(self.hand).is_none_or(|&top| top == NONE) {
            self.hand = if self.hand < self.stacks.len() { self.hand + 1 } else { 0 };
        }
        let slot = self.stacks[self.hand];
        let lease = self.leases[slot as usize].take()?;
        self.stacks[self.hand] = lease.below;
        self.unused.push(slot);
        self.cached_bytes -= lease.place.bytes;
        self.cached_blocks -= 1;
        Some(lease.place)
    }

    /// Iterates over all leased blocks.
    pub(in crate::pool) fn leased(&self) -> impl Iterator<Item = Leased> + '_ {
        let numbered = self.leases.iter().enumerate();
        numbered.filter_map(|(slot, lease)| {
            let Lease { place, .. } = (*lease)?;
            let in_use = self.accounts.by_slot.get(slot).is_some_and(|account| account.allocation != 0);
            Some(Leased { place, slot: slot as u32, in_use })
        })
    }

    /// Checks the cache. Each block must be in use or exactly once in the stack of its size, be live in the policy at
    /// its placement, and have an allocation number of this cache. Returns the first violation.
    pub(in crate::pool) fn fault(&self, policy: &dyn Policy) -> Option<String> {
        let mut kept = HashSet::new();
        for (class, &top) in self.stacks.iter().enumerate() {
            let mut slot = top;
            while slot != NONE {
                let Some(Some(lease)) = self.leases.get(slot as usize) else {
                    return Some(format!("slot {slot} is in a stack and has no block"));
                };
                if lease.place.bytes / GRANULE != class as u64 || !kept.insert(slot) {
                    return Some(format!("slot {slot} is in stack {class}: {lease:?}"));
                }
                slot = lease.below;
            }
        }
        let (mut bytes, mut used) = (0, 0);
        for Leased { place, slot, in_use } in self.leased() {
            if policy.placed(place.slot) != Some(place) {
                return Some(format!("the policy knows nothing of {place:?}"));
            }
            if in_use == kept.contains(&slot) {
                return Some(format!("slot {slot} is in use: {in_use}, in a stack: {}", !in_use));
            }
            if in_use && !self.accounts.has_issued(self.accounts.by_slot[slot as usize].allocation) {
                return Some(format!("slot {slot} has a number of another"));
            }
            bytes += if in_use { 0 } else { place.bytes };
            used += usize::from(in_use);
        }
        let sums = (bytes, kept.len(), self.leases.len());
        let said = (self.cached_bytes, self.cached_blocks, kept.len() + used + self.unused.len());
        let indexed = self.accounts.index.as_ref().map_or(used, std::collections::HashMap::len);
        (sums != said || indexed != used)
            .then(|| format!("{sums:?} by sum, {said:?} by figure, {indexed} of {used} indexed"))
    }

    #[inline]
    fn place(&self, slot: u32) -> Option<Placement> {
        let lease = (*self.leases.get(slot as usize)?)?;
        Some(Placement { slot, ..lease.place })
    }
}

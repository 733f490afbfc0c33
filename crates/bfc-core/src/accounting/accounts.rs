//! The accounts of a pool: what each live block is charged to, the ledger by owner, and the figures.
//!
//! A policy numbers its live blocks by slots, which are used again. The accounts give each allocation a number of its
//! own that never is: by it a stale block is recognised without a search, whatever the policy. The
//! [number] also says which thread took the block.

use std::collections::{HashMap, HashSet};
use std::hint::cold_path;

use super::account::Account;
use super::number;
use crate::allocator::error::BlockError;
use crate::allocator::stats::Stats;
use crate::base::ledger::{Ledger, Tag};
use crate::base::memory::{Block, PoolId};
use crate::base::placement::Placement;

/// See the module's text.
#[derive(Clone, Debug)]
pub(crate) struct Accounts {
    /// By slot.
    pub(crate) by_slot: Vec<Account>,
    pub(crate) ledger: Ledger,
    /// Slots by address: made by the first look-up, kept up from then on.
    pub(crate) index: Option<HashMap<u64, u32>>,
    /// The figures that change with every event; those that can be worked out are filled in by the pool.
    pub(crate) figures: Stats,
    /// The allocation number given out last, with the index of the thread that takes what is taken next.
    pub(crate) last_allocation: u64,
    /// The number before the first.
    before: u64,
    pool: PoolId,
}

impl Accounts {
    pub(crate) fn new(pool: PoolId) -> Self {
        Self::numbered_after(pool, 0)
    }

    /// Accounts whose allocations are numbered from `before` + 1 on, which is where some accounts' numbers
    /// [begin](number::before).
    pub(crate) fn numbered_after(pool: PoolId, before: u64) -> Self {
        Self {
            by_slot: Vec::new(),
            ledger: Ledger::new(),
            index: None,
            figures: Stats::default(),
            last_allocation: before,
            before,
            pool,
        }
    }

    /// Opens the account of a block that was just placed.
    // Inlined, and the account written field by field: what is written in words and read back in pairs of words, to be
    // copied, is waited for.
    #[inline(always)]
    pub(crate) fn open(&mut self, place: Placement, requested: u64, tag: Tag) -> Block {
        self.last_allocation += 1;
        let allocation = self.last_allocation;
        let account = match self.by_slot.get_mut(place.slot as usize) {
            Some(account) => account,
            None => made_slot(&mut self.by_slot, place.slot),
        };
        account.allocation = allocation;
        account.requested = requested;
        account.tag = tag;
        self.charge(tag, place.bytes, requested);
        if let Some(index) = &mut self.index {
            index.insert(place.address, place.slot);
        }
        Block {
            address: place.address,
            bytes: place.bytes,
            id: allocation,
            chunk: place.slot,
            pool: self.pool,
        }
    }

    /// Closes the account of a live slot, which lies at `place`.
    #[inline(always)]
    pub(crate) fn close(&mut self, place: Placement) {
        let account = std::mem::take(&mut self.by_slot[place.slot as usize]);
        let requested = account.requested;
        self.ledger.remove(account.tag, place.bytes);
        self.figures.live_allocs -= 1;
        self.figures.bytes_in_use -= place.bytes;
        self.figures.bytes_requested -= requested;
        if let Some(index) = &mut self.index {
            index.remove(&place.address);
        }
    }

    /// The account of a block, which bears the slot's present number.
    #[inline]
    pub(crate) fn live(&self, block: &Block) -> Result<&Account, BlockError> {
        if block.pool != self.pool {
            return Err(BlockError::Foreign { block: *block });
        }
        self.find(block).ok_or_else(|| self.not_live(block))
    }

    /// The same without the reason why there is none.
    #[inline]
    pub(crate) fn find(&self, block: &Block) -> Option<&Account> {
        match self.by_slot.get(block.chunk as usize) {
            Some(account) if account.allocation == block.id && block.id != 0 && block.pool == self.pool => {
                Some(account)
            }
            _ => None,
        }
    }

    /// Why a block is not live: its allocation has ended, or it never was as the block says.
    #[cold]
    fn not_live(&self, block: &Block) -> BlockError {
        let elsewhere = || self.by_slot.iter().any(|account| account.allocation == block.id);
        if self.gave(block.id) && !elsewhere() {
            BlockError::Stale { block: *block }
        } else {
            BlockError::Unknown { block: *block }
        }
    }

    /// Whether this was ever the number of an allocation, as far as its serial says.
    pub(crate) const fn gave(&self, allocation: u64) -> bool {
        let (here, serial) = (number::accounts(self.before), number::serial(allocation));
        number::accounts(allocation) == here && 0 < serial && serial <= number::serial(self.last_allocation)
    }

    /// From now on the thread of this index takes what is taken.
    pub(crate) const fn set_taker(&mut self, taker: u32) {
        self.last_allocation = number::with_taker(self.last_allocation, taker);
    }

    /// The threads that took the blocks that are live, but for those with one of these numbers: a bit for each index.
    /// Takes time in proportion to the slots.
    pub(crate) fn takers(&self, but: &HashSet<u64>) -> u64 {
        let live = self.by_slot.iter().map(|account| account.allocation);
        let counted = live.filter(|allocation| *allocation != 0 && !but.contains(allocation));
        counted.fold(0, |takers, allocation| takers | 1 << number::taker(allocation))
    }

    /// Counts `bytes` as in use that a cache takes for an allocation with this tag, and has the account of.
    pub(crate) fn lease(&mut self, bytes: u64, tag: Tag) {
        let figures = &mut self.figures;
        figures.bytes_in_use += bytes;
        if figures.bytes_in_use > figures.peak_bytes_in_use {
            figures.peak_bytes_in_use = figures.bytes_in_use;
            figures.peak_bytes_requested = figures.bytes_requested;
            figures.peak_tag = tag;
        }
    }

    /// Ends the lease of so many bytes.
    pub(crate) const fn end_lease(&mut self, bytes: u64) {
        self.figures.bytes_in_use -= bytes;
    }

    /// The slot of the live block that starts at `address`. `address_of` tells where the block of a live slot lies.
    pub(crate) fn slot_at(
        &mut self,
        address: u64,
        address_of: impl Fn(u32) -> Option<u64>,
    ) -> Result<u32, BlockError> {
        let by_slot = &self.by_slot;
        let index = self.index.get_or_insert_with(|| {
            let live = by_slot.iter().enumerate().filter(|(_, account)| account.allocation != 0);
            live.filter_map(|(slot, _)| Some((address_of(slot as u32)?, slot as u32))).collect()
        });
        index.get(&address).copied().ok_or(BlockError::NoBlockAt { address })
    }

    /// The block of a live slot, which lies at `place`.
    pub(crate) fn block(&self, place: Placement) -> Block {
        let id = self.of(place).allocation;
        Block { address: place.address, bytes: place.bytes, id, chunk: place.slot, pool: self.pool }
    }

    /// The account of the live block at `place`.
    pub(crate) fn of(&self, place: Placement) -> Account {
        self.by_slot.get(place.slot as usize).copied().unwrap_or_default()
    }

    /// Shows the account of a block that is in other accounts, at the policy's slot. Figures and ledger stay as they are.
    pub(crate) fn overlay(&mut self, place: Placement, account: Account) {
        let slot = place.slot as usize;
        if slot >= self.by_slot.len() {
            self.by_slot.resize(slot + 1, Account::default());
        }
        self.by_slot[slot] = account;
        if let Some(index) = &mut self.index {
            index.insert(place.address, place.slot);
        }
    }

    /// Charges the live block at `place` to another tag.
    pub(crate) fn retag(&mut self, place: Placement, tag: Tag) {
        if let Some(account) = self.by_slot.get_mut(place.slot as usize) {
            let from = account.tag;
            account.tag = tag;
            self.ledger.retag(from, tag, place.bytes);
        }
    }

    pub(crate) const fn pool(&self) -> PoolId {
        self.pool
    }

    /// Notes how many bytes are held from the source.
    pub(crate) fn note_reserved(&mut self, bytes: u64) {
        self.figures.bytes_reserved = bytes;
        self.figures.peak_bytes_reserved = self.figures.peak_bytes_reserved.max(bytes);
    }

    /// Counts at zero, peaks at what is in use now.
    pub(crate) fn clear_figures(&mut self) {
        let figures = &mut self.figures;
        if figures.bytes_in_use < figures.peak_bytes_in_use {
            // The request that raised the pool to where it stands now is not known any more.
            figures.peak_tag = Tag::default();
        }
        figures.num_allocs = 0;
        figures.peak_bytes_in_use = figures.bytes_in_use;
        figures.peak_bytes_requested = figures.bytes_requested;
        figures.largest_alloc_bytes = 0;
        figures.peak_bytes_reserved = figures.bytes_reserved;
        self.ledger.reset_peaks();
    }

    #[inline(always)]
    fn charge(&mut self, tag: Tag, bytes: u64, requested: u64) {
        self.ledger.add(tag, bytes);
        let figures = &mut self.figures;
        figures.num_allocs += 1;
        figures.live_allocs += 1;
        figures.bytes_in_use += bytes;
        figures.bytes_requested += requested;
        // Seldom, so it is asked before it is written.
        if bytes > figures.largest_alloc_bytes {
            cold_path();
            figures.largest_alloc_bytes = bytes;
        }
        if figures.bytes_in_use > figures.peak_bytes_in_use {
            cold_path();
            figures.peak_bytes_in_use = figures.bytes_in_use;
            figures.peak_bytes_requested = figures.bytes_requested;
            figures.peak_tag = tag;
        }
    }
}

/// The account made for a slot that is used for the first time.
#[cold]
#[inline(never)]
fn made_slot(by_slot: &mut Vec<Account>, slot: u32) -> &mut Account {
    by_slot.resize(slot as usize + 1, Account::default());
    &mut by_slot[slot as usize]
}

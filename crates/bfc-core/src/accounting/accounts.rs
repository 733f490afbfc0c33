//! The accounts of a pool: the record of each live block, the ledger by owner, and the figures.
//!
//! Policies number live blocks by slots and reuse them. The accounts give each allocation a unique number that is never
//! reused. It detects a stale block without a search, for every policy. The [number] also identifies the allocating
//! thread.

use std::collections::{HashMap, HashSet};

use super::account::Account;
use super::number;
use crate::allocator::LiveAllocation;
use crate::allocator::error::BlockError;
use crate::allocator::stats::Stats;
use crate::base::hint::cold_path;
use crate::base::ledger::{Ledger, Tag};
use crate::base::memory::{Block, PoolId};
use crate::base::placement::Placement;

/// The account of each live block, the ledger and the figures.
#[derive(Clone, Debug)]
pub(crate) struct Accounts {
    /// The accounts, by slot.
    pub(crate) by_slot: Vec<Account>,
    pub(crate) ledger: Ledger,
    /// Slots by address. The first lookup creates the index; later events update it.
    pub(crate) index: Option<HashMap<u64, u32>>,
    /// The figures that each event changes. The pool computes the others on demand.
    pub(crate) figures: Stats,
    /// The last allocation number, with the index of the thread that allocates next.
    pub(crate) last_allocation: u64,
    /// The number before the first allocation.
    before: u64,
    pool: PoolId,
}

impl Accounts {
    pub(crate) fn new(pool: PoolId) -> Self {
        Self::numbered_after(pool, 0)
    }

    /// Creates accounts that number their allocations from `before` + 1 on. See [`number::before`].
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

    /// Opens the account of a new block.
    // Inlined, and written field by field: a copy of the whole account would read pairs of words right after
    // single-word stores and stall on store forwarding.
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

    /// Closes the account of the live slot at `place`.
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

    /// Returns the account of a live block.
    #[inline]
    pub(crate) fn live(&self, block: &Block) -> Result<&Account, BlockError> {
        if block.pool != self.pool {
            return Err(BlockError::Foreign { block: *block });
        }
        self.find(block).ok_or_else(|| self.not_live(block))
    }

    /// Returns the account of a live block, or `None` without a reason.
    #[inline]
    pub(crate) fn find(&self, block: &Block) -> Option<&Account> {
        match self.by_slot.get(block.chunk as usize) {
            Some(account) if account.allocation == block.id && block.id != 0 && block.pool == self.pool => {
                Some(account)
            }
            _ => None,
        }
    }

    /// Returns the error for a block that is not live.
    #[cold]
    fn not_live(&self, block: &Block) -> BlockError {
        let elsewhere = || self.by_slot.iter().any(|account| account.allocation == block.id);
        if self.has_issued(block.id) && !elsewhere() {
            BlockError::Stale { block: *block }
        } else {
            BlockError::Unknown { block: *block }
        }
    }

    /// Whether the accounts have issued this allocation number, according to its serial.
    pub(crate) const fn has_issued(&self, allocation: u64) -> bool {
        let (here, serial) = (number::accounts(self.before), number::serial(allocation));
        number::accounts(allocation) == here && 0 < serial && serial <= number::serial(self.last_allocation)
    }

    /// Sets the index of the thread that makes the next allocations.
    pub(crate) const fn set_thread_index(&mut self, thread_index: u32) {
        self.last_allocation = number::with_thread_index(self.last_allocation, thread_index);
    }

    /// Returns a bit for each thread index that allocated a live block, except the blocks with these numbers. Takes
    /// time proportional to the slots.
    pub(crate) fn thread_indices(&self, but: &HashSet<u64>) -> u64 {
        let live = self.by_slot.iter().map(|account| account.allocation);
        let counted = live.filter(|allocation| *allocation != 0 && !but.contains(allocation));
        counted.fold(0, |thread_indices, allocation| thread_indices | 1 << number::thread_index(allocation))
    }

    /// Counts `bytes` of a cache's allocation with this tag as in use. The cache keeps the account.
    pub(crate) fn lease(&mut self, bytes: u64, tag: Tag) {
        let figures = &mut self.figures;
        figures.bytes_in_use += bytes;
        if figures.bytes_in_use > figures.peak_bytes_in_use {
            figures.peak_bytes_in_use = figures.bytes_in_use;
            figures.peak_bytes_requested = figures.bytes_requested;
            figures.peak_tag = tag;
        }
    }

    /// Ends the lease of `bytes`.
    pub(crate) const fn end_lease(&mut self, bytes: u64) {
        self.figures.bytes_in_use -= bytes;
    }

    /// Returns the slot of the live block at `address`. `address_of` returns the address of a live slot's block.
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

    /// Returns the block of the live slot at `place`.
    pub(crate) fn block(&self, place: Placement) -> Block {
        let id = self.of(place).allocation;
        Block { address: place.address, bytes: place.bytes, id, chunk: place.slot, pool: self.pool }
    }

    /// Returns the account of the live block at `place`.
    pub(crate) fn of(&self, place: Placement) -> Account {
        self.by_slot.get(place.slot as usize).copied().unwrap_or_default()
    }

    /// Shows an account from other accounts at the policy's slot. Figures and ledger stay unchanged.
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

    /// Returns the live allocation in a slot, whose block has `bytes` bytes.
    pub(crate) fn live_allocation(&self, slot: u32, bytes: u64) -> Option<LiveAllocation> {
        let account = self.by_slot.get(slot as usize).filter(|account| account.allocation != 0)?;
        let (id, tag) = (account.allocation, account.tag);
        Some(LiveAllocation { pool: self.pool, serial: Block { id, ..Block::EMPTY }.serial(), bytes, tag })
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

    /// Records the bytes held from the source.
    pub(crate) fn note_reserved(&mut self, bytes: u64) {
        self.figures.bytes_reserved = bytes;
        self.figures.peak_bytes_reserved = self.figures.peak_bytes_reserved.max(bytes);
    }

    /// Resets counts to zero and peaks to the current values.
    pub(crate) fn clear_figures(&mut self) {
        let figures = &mut self.figures;
        if figures.bytes_in_use < figures.peak_bytes_in_use {
            // The tag of the request that reached the current bytes is unknown.
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
        // A larger allocation is rare, so the code compares before it writes.
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

/// Grows the accounts for a slot that is used for the first time.
#[cold]
#[inline(never)]
fn made_slot(by_slot: &mut Vec<Account>, slot: u32) -> &mut Account {
    by_slot.resize(slot as usize + 1, Account::default());
    &mut by_slot[slot as usize]
}

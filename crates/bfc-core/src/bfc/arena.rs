//! The pure algorithm: best fit with coalescing over addresses that are plain numbers.
//!
//! The arena knows no lock, no pointer and no source of memory. It is told which regions there are, cuts them into
//! chunks, finds the best fit for a need, joins free neighbours, and keeps the accounts. Its rules stand in
//! [`INVARIANTS`](super::invariants::INVARIANTS), each as a sentence.

mod coalesce;
mod search;
mod supply;

use std::collections::HashMap;

use super::bins::Bins;
use super::chunk::{Chunk, ChunkId, Slab};
use super::config::SplitRule;
use super::frontier::{PendingFree, PendingFrees};
use super::region::Regions;
use crate::error::BlockError;
use crate::ledger::{Ledger, Tag};
use crate::memory::{Block, PoolId};
use crate::stats::Stats;

pub(crate) use search::Need;
pub(crate) use supply::NotAdded;

/// See the module's text.
#[derive(Clone, Debug)]
pub(crate) struct Arena {
    pub(super) chunks: Slab,
    pub(super) bins: Bins,
    pub(super) regions: Regions,
    /// Chunks freed at a count that the frontier had not passed.
    pub(super) pending: PendingFrees,
    pub(super) ledger: Ledger,
    /// Live chunks by address: made by the first look-up, kept up from then on.
    pub(super) index: Option<HashMap<u64, ChunkId>>,
    /// The figures that change with every event; those that can be worked out are filled in by [`Arena::stats`].
    pub(super) figures: Stats,
    /// The allocation number given out last.
    pub(super) last_allocation: u64,
    split: SplitRule,
    pool: PoolId,
}

impl Arena {
    pub(crate) fn new(pool: PoolId, split: SplitRule) -> Self {
        Self {
            chunks: Slab::new(),
            bins: Bins::default(),
            regions: Regions::default(),
            pending: PendingFrees::new(),
            ledger: Ledger::new(),
            index: None,
            figures: Stats::default(),
            last_allocation: 0,
            split,
            pool,
        }
    }

    /// Hands out the best fit for `need`, or nothing if no free chunk fits.
    #[inline]
    pub(crate) fn allocate(&mut self, need: &Need) -> Option<Block> {
        let id = self.take(need)?;
        Some(self.block(id))
    }

    /// Takes the best fit into use. The number of a chunk travels in a register where a block would be copied.
    fn take(&mut self, need: &Need) -> Option<ChunkId> {
        let best = self.find(need)?;
        let id = self.carve(best, need);
        self.last_allocation += 1;
        let chunk = &mut self.chunks[id];
        chunk.requested = need.requested;
        chunk.allocation = self.last_allocation;
        chunk.freed_at = 0;
        chunk.tag = need.tag;
        let (address, bytes) = (chunk.address, chunk.bytes);
        self.charge(need.tag, bytes, need.requested);
        if let Some(index) = &mut self.index {
            index.insert(address, id);
        }
        Some(id)
    }

    /// Takes a live chunk back. With a `freed_at` above 0 it stays apart until the frontier has passed that count.
    #[inline]
    pub(crate) fn free(&mut self, id: ChunkId, freed_at: u64) {
        let chunk = &mut self.chunks[id];
        let (address, bytes, requested, tag) = (chunk.address, chunk.bytes, chunk.requested, chunk.tag);
        chunk.requested = 0;
        chunk.allocation = 0;
        chunk.freed_at = freed_at;
        chunk.tag = Tag::default();
        self.discharge(tag, bytes, requested);
        if let Some(index) = &mut self.index {
            index.remove(&address);
        }
        if freed_at == 0 {
            self.coalesce_and_bin(id);
        } else {
            self.bin(id);
            self.pending.push(PendingFree { chunk: id, freed_at });
        }
    }

    /// The live chunk behind a block.
    #[inline]
    pub(crate) fn live(&self, block: &Block) -> Result<ChunkId, BlockError> {
        if block.pool != self.pool {
            return Err(BlockError::Foreign { block: *block });
        }
        let id = ChunkId(block.chunk);
        match self.chunks.get(id) {
            Some(chunk) if block.id != 0 && chunk.allocation == block.id => {
                if chunk.address == block.address && chunk.bytes == block.bytes {
                    return Ok(id);
                }
                Err(BlockError::Unknown { block: *block })
            }
            _ => Err(self.not_live(block)),
        }
    }

    /// Why a block is not live: its allocation has ended, or it never was as the block says.
    #[cold]
    fn not_live(&self, block: &Block) -> BlockError {
        let ever = (1..=self.last_allocation).contains(&block.id);
        let elsewhere = || self.chunks.iter().any(|(_, chunk)| chunk.allocation == block.id);
        if ever && !elsewhere() {
            BlockError::Stale { block: *block }
        } else {
            BlockError::Unknown { block: *block }
        }
    }

    /// The live block that starts at `address`.
    pub(crate) fn block_at(&mut self, address: u64) -> Result<Block, BlockError> {
        let chunks = &self.chunks;
        let index = self.index.get_or_insert_with(|| {
            chunks
                .iter()
                .filter(|(_, chunk)| !chunk.is_free())
                .map(|(id, chunk)| (chunk.address, id))
                .collect()
        });
        let id = index.get(&address).copied();
        id.map(|id| self.block(id)).ok_or(BlockError::NoBlockAt { address })
    }

    pub(crate) fn chunk(&self, id: ChunkId) -> &Chunk {
        &self.chunks[id]
    }

    /// Charges a live chunk to another tag.
    pub(crate) fn retag(&mut self, id: ChunkId, tag: Tag) {
        let chunk = &mut self.chunks[id];
        let (from, bytes) = (std::mem::replace(&mut chunk.tag, tag), chunk.bytes);
        self.ledger.retag(from, tag, bytes);
    }

    pub(crate) const fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    pub(crate) const fn pool(&self) -> PoolId {
        self.pool
    }

    /// The figures now, without a limit and without waits, which the arena does not know.
    pub(crate) fn stats(&self) -> Stats {
        Stats {
            largest_free_block_bytes: self.bins.largest(&self.chunks),
            regions: self.regions.as_slice().len() as u64,
            ..self.figures.clone()
        }
    }

    /// Bytes held from the source.
    pub(crate) const fn reserved(&self) -> u64 {
        self.figures.bytes_reserved
    }

    pub(crate) const fn live_allocs(&self) -> u64 {
        self.figures.live_allocs
    }

    /// Free bytes that a need with this `freed_before` may have, in however many pieces.
    pub(crate) fn free_bytes(&self, freed_before: Option<u64>) -> u64 {
        let Some(before) = freed_before else {
            return self.figures.bytes_reserved.saturating_sub(self.figures.bytes_in_use);
        };
        let free = self.chunks.iter().map(|(_, chunk)| chunk).filter(|chunk| chunk.is_free());
        free.filter(|chunk| chunk.freed_at <= before).map(|chunk| chunk.bytes).sum()
    }

    /// Counts at zero, peaks at what is in use now.
    pub(crate) fn clear_stats(&mut self) {
        let figures = &mut self.figures;
        if figures.bytes_in_use < figures.peak_bytes_in_use {
            // The request that raised the pool to where it stands now is not known any more.
            figures.peak_tag = Tag::default();
        }
        figures.num_allocs = 0;
        figures.peak_bytes_in_use = figures.bytes_in_use;
        figures.largest_alloc_bytes = 0;
        figures.peak_bytes_reserved = figures.bytes_reserved;
        self.ledger.reset_peaks();
    }

    #[inline]
    fn charge(&mut self, tag: Tag, bytes: u64, requested: u64) {
        self.ledger.add(tag, bytes);
        let figures = &mut self.figures;
        figures.num_allocs += 1;
        figures.live_allocs += 1;
        figures.bytes_in_use += bytes;
        figures.bytes_requested += requested;
        figures.largest_alloc_bytes = figures.largest_alloc_bytes.max(bytes);
        if figures.bytes_in_use > figures.peak_bytes_in_use {
            figures.peak_bytes_in_use = figures.bytes_in_use;
            figures.peak_tag = tag;
        }
    }

    #[inline]
    fn discharge(&mut self, tag: Tag, bytes: u64, requested: u64) {
        self.ledger.remove(tag, bytes);
        self.figures.live_allocs -= 1;
        self.figures.bytes_in_use -= bytes;
        self.figures.bytes_requested -= requested;
    }

    #[inline]
    fn block(&self, id: ChunkId) -> Block {
        let chunk = &self.chunks[id];
        let (address, bytes) = (chunk.address, chunk.bytes);
        Block { address, bytes, id: chunk.allocation, chunk: id.0, pool: self.pool }
    }

    #[inline]
    fn bin(&mut self, id: ChunkId) {
        self.bins.insert(&mut self.chunks, id);
    }

    #[inline]
    fn unbin(&mut self, id: ChunkId) {
        self.bins.remove(&mut self.chunks, id);
    }
}

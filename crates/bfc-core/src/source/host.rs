//! System memory: as a source of regions for pools, and as an allocator that does without a pool.
//!
//! One of the few files of this crate with `unsafe` in it: here numbers become memory.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::collections::HashMap;
use std::ptr::with_exposed_provenance_mut;

use crate::allocator::error::{AllocError, BlockError, SourceError};
use crate::allocator::oom::{OomReport, Verdict};
use crate::allocator::stats::Stats;
use crate::allocator::{Allocator, Request};
use crate::base::memory::{Block, MemoryKind, PoolId, Span};
use crate::base::sync::{Mutex, lock};
use crate::base::units::{Bytes, round_up};
use crate::source::sub_allocator::SubAllocator;

/// The largest alignment for which the system hands out zeroed pages without touching them.
const LAZY_ALIGNMENT: u64 = 16;

/// System memory in regions, zeroed, at any alignment.
///
/// Zeroed memory is taken lazily: a region costs address space at once, but physical pages only where it is used. So a
/// pool with a generous limit costs no more than it hands out. The system keeps that promise for small alignments
/// only (for large ones it would write the zeros itself), so a region is taken with room to align its start by hand.
///
/// Regions not given back when the source is dropped stay allocated.
#[derive(Debug, Default)]
pub struct HostMemory {
    total: Option<u64>,
    /// What the system gave, by the address of the region cut from it.
    held: Mutex<HashMap<u64, Held>>,
}

/// What must go back to the system for one region.
#[derive(Clone, Copy, Debug)]
struct Held {
    base: u64,
    layout: Layout,
}

impl HostMemory {
    /// The memory of this machine.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The same source, of a machine with so much memory: for limits that are shares of it. Nothing is limited by it.
    #[must_use]
    pub const fn with_total(mut self, total: Bytes) -> Self {
        self.total = Some(total.0);
        self
    }

    /// How many regions are out.
    #[must_use]
    pub fn live_regions(&self) -> usize {
        lock(&self.held).len()
    }
}

// SAFETY: each region lies within one allocation of the system's, which is valid, zeroed, and given back in `free` only.
unsafe impl SubAllocator for HostMemory {
    fn memory_kind(&self) -> MemoryKind {
        MemoryKind::Host
    }

    fn total_bytes(&self) -> Option<u64> {
        self.total
    }

    /// # Errors
    /// [`SourceError::Exhausted`] if the system refuses, and for sizes and alignments that no region can have: zero
    /// bytes, more than half the address space, an alignment that is not a power of two.
    fn allocate(&self, alignment: u64, bytes: u64) -> Result<Span, SourceError> {
        let exhausted = SourceError::Exhausted { bytes };
        if bytes == 0 || !alignment.is_power_of_two() {
            return Err(exhausted);
        }
        let room = alignment.saturating_sub(LAZY_ALIGNMENT);
        let padded = bytes.checked_add(room).ok_or(exhausted.clone())?;
        let layout = layout(padded, alignment.min(LAZY_ALIGNMENT)).ok_or(exhausted.clone())?;
        let base = system_allocate(layout).ok_or(exhausted.clone())?;
        let address = round_up(base, alignment).ok_or(exhausted)?;
        lock(&self.held).insert(address, Held { base, layout });
        Ok(Span { address, bytes })
    }

    unsafe fn free(&self, region: Span) {
        let held = lock(&self.held).remove(&region.address);
        if let Some(Held { base, layout }) = held {
            // SAFETY: `base` came from `system_allocate` with this layout, and its record was taken out just now.
            unsafe { system_free(base, layout) };
        }
    }
}

/// Passes each request straight to the system: no pool, no rounding, no reuse.
///
/// The reference that pools are measured against, and the way to tell a pool's fault from the program's. It keeps
/// figures, but no record of single blocks: [`tracks_sizes`](Allocator::tracks_sizes) is `false`, blocks bear no id,
/// and a block given back twice is not recognised.
#[derive(Debug)]
pub struct HostAllocator {
    name: String,
    pool: PoolId,
    stats: Mutex<Stats>,
}

impl HostAllocator {
    /// System memory under the given name.
    #[must_use]
    pub fn new(name: impl Into<String>) -> Self {
        Self { name: name.into(), pool: PoolId::next(), stats: Mutex::new(Stats::default()) }
    }

    fn out_of_memory(&self, request: &Request<'_>) -> AllocError {
        let stats = self.stats();
        AllocError::OutOfMemory(Box::new(OomReport {
            reserved: stats.bytes_reserved,
            in_use: stats.bytes_in_use,
            ..OomReport::new(self.name.clone(), request, Verdict::Exhausted)
        }))
    }
}

// SAFETY: every block is an allocation of the system's own, zeroed, of the size and alignment asked for.
unsafe impl Allocator for HostAllocator {
    fn name(&self) -> &str {
        &self.name
    }

    fn memory_kind(&self) -> MemoryKind {
        MemoryKind::Host
    }

    fn allocate(&self, request: &Request<'_>) -> Result<Block, AllocError> {
        let Request { bytes, alignment, tag, .. } = *request;
        if bytes == 0 {
            return Ok(Block::EMPTY);
        }
        if !alignment.is_power_of_two() {
            return Err(AllocError::BadAlignment { allocator: self.name.clone(), alignment });
        }
        let too_large = || AllocError::TooLarge { allocator: self.name.clone(), bytes, alignment };
        let layout = layout(bytes, alignment).ok_or_else(too_large)?;
        let address = system_allocate(layout).ok_or_else(|| self.out_of_memory(request))?;

        let mut stats = lock(&self.stats);
        stats.num_allocs += 1;
        stats.live_allocs += 1;
        stats.bytes_in_use += bytes;
        stats.largest_alloc_bytes = stats.largest_alloc_bytes.max(bytes);
        if stats.bytes_in_use > stats.peak_bytes_in_use {
            stats.peak_bytes_in_use = stats.bytes_in_use;
            stats.peak_tag = tag;
        }
        // The system takes the size and the alignment back with the address: the handle keeps the alignment.
        Ok(Block { address, bytes, id: 0, chunk: alignment.trailing_zeros(), pool: self.pool })
    }

    unsafe fn deallocate(&self, block: Block) -> Result<(), BlockError> {
        if block.is_empty() {
            return Ok(());
        }
        if block.pool != self.pool {
            return Err(BlockError::Foreign { block });
        }
        let alignment = 1_u64.checked_shl(block.chunk).ok_or(BlockError::Unknown { block })?;
        let layout = layout(block.bytes, alignment).ok_or(BlockError::Unknown { block })?;
        {
            let mut stats = lock(&self.stats);
            stats.live_allocs = stats.live_allocs.saturating_sub(1);
            stats.bytes_in_use = stats.bytes_in_use.saturating_sub(block.bytes);
        }
        // SAFETY: the caller gives back a live block of this allocator, whose handle and size are those of its layout.
        unsafe { system_free(block.address, layout) };
        Ok(())
    }

    fn stats(&self) -> Stats {
        let stats = lock(&self.stats).clone();
        // Nothing is rounded and nothing kept back, so what is asked for, in use and reserved is one figure.
        Stats {
            bytes_requested: stats.bytes_in_use,
            peak_bytes_requested: stats.peak_bytes_in_use,
            bytes_reserved: stats.bytes_in_use,
            peak_bytes_reserved: stats.peak_bytes_in_use,
            regions: stats.live_allocs,
            ..stats
        }
    }

    fn clear_stats(&self) -> bool {
        let mut stats = lock(&self.stats);
        stats.num_allocs = 0;
        stats.largest_alloc_bytes = 0;
        stats.peak_bytes_in_use = stats.bytes_in_use;
        true
    }

    fn tracks_sizes(&self) -> bool {
        false
    }
}

/// The system's description of a piece of memory, or `None` if there can be no such piece.
fn layout(bytes: u64, alignment: u64) -> Option<Layout> {
    let (bytes, alignment) = (usize::try_from(bytes).ok()?, usize::try_from(alignment).ok()?);
    Layout::from_size_align(bytes, alignment).ok().filter(|layout| layout.size() > 0)
}

/// Zeroed memory of the system, or `None` if it has none. The layout is not empty: see [`layout`].
fn system_allocate(layout: Layout) -> Option<u64> {
    // SAFETY: no layout made in this file has size zero.
    let pointer = unsafe { alloc_zeroed(layout) };
    if pointer.is_null() { None } else { Some(pointer.expose_provenance() as u64) }
}

/// Gives memory back to the system.
///
/// # Safety
/// `address` came from [`system_allocate`] with the same layout, was not given back since, and nothing uses it.
unsafe fn system_free(address: u64, layout: Layout) {
    let pointer = with_exposed_provenance_mut(address as usize);
    // SAFETY: the caller promises what `dealloc` asks for; the pointer's provenance was exposed when it was handed out.
    unsafe { dealloc(pointer, layout) };
}

#[cfg(test)]
mod tests;

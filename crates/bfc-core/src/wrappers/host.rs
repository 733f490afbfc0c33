//! Blocks directly from the system, without a pool.

use crate::allocator::error::{AllocError, BlockError};
use crate::allocator::oom::{OomReport, Verdict};
use crate::allocator::stats::Stats;
use crate::allocator::{Accounting, Allocator, Inspection, Request, StreamOrder, Upkeep, WaitHints};
use crate::base::memory::{AddressSpace, Block, MemoryKind, PoolId};
use crate::base::sync::{Mutex, lock};
use crate::base::units::Bytes;
use crate::source::host::{layout, system_allocate, system_free};

/// Passes each request directly to the system: no pool, no rounding, no reuse.
///
/// The baseline for measurements of pools, and a way to separate faults of a pool from faults of the program. It keeps
/// figures but no records of blocks: [`tracks_sizes`](Allocator::tracks_sizes) is `false`, blocks have no id, and a
/// double free is not detected.
#[derive(Debug)]
pub struct HostAllocator {
    name: String,
    pool: PoolId,
    stats: Mutex<Stats>,
}

impl HostAllocator {
    /// Creates an allocator of system memory with this name.
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

// SAFETY: every block is one zeroed allocation of the system, with the requested size and alignment.
unsafe impl Allocator for HostAllocator {
    fn name(&self) -> &str {
        &self.name
    }

    fn memory_kind(&self) -> MemoryKind {
        MemoryKind::Host
    }

    fn address_space(&self) -> Option<AddressSpace> {
        None
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
        // The system requires size and alignment at the free: the handle stores the alignment.
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
        // SAFETY: the caller frees a live block of this allocator, whose handle and size are those of its layout.
        unsafe { system_free(block.address, layout) };
        Ok(())
    }

    fn stats(&self) -> Stats {
        let stats = lock(&self.stats).clone();
        // There is no rounding and no cache, so requested, in-use and reserved bytes are equal.
        Stats {
            bytes_requested: stats.bytes_in_use,
            peak_bytes_requested: stats.peak_bytes_in_use,
            bytes_reserved: stats.bytes_in_use,
            peak_bytes_reserved: stats.peak_bytes_in_use,
            regions: stats.live_allocs,
            ..stats
        }
    }

    fn tracks_sizes(&self) -> bool {
        false
    }

    fn as_accounting(&self) -> Option<&dyn Accounting> {
        None
    }

    fn as_inspection(&self) -> Option<&dyn Inspection> {
        None
    }

    fn as_wait_hints(&self) -> Option<&dyn WaitHints> {
        None
    }

    fn as_stream_order(&self) -> Option<&dyn StreamOrder> {
        None
    }

    fn as_upkeep(&self) -> Option<&dyn Upkeep> {
        Some(self)
    }
}

impl Upkeep for HostAllocator {
    fn trim(&self, _keep: Bytes) -> u64 {
        0
    }

    fn clear_stats(&self) -> bool {
        let mut stats = lock(&self.stats);
        stats.num_allocs = 0;
        stats.largest_alloc_bytes = 0;
        stats.peak_bytes_in_use = stats.bytes_in_use;
        true
    }

    fn begin_step(&self) {}

    fn set_safe_frontier(&self, _count: u64) {}
}

#[cfg(test)]
mod tests;

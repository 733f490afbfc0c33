//! System memory, as a source of regions.

use std::alloc::{GlobalAlloc, Layout, System};
use std::collections::HashMap;
use std::ptr::with_exposed_provenance_mut;

use crate::base::memory::{MemoryKind, Span};
use crate::base::sync::{Mutex, lock};
use crate::base::units::{Bytes, round_up};
use crate::source::error::SourceError;
use crate::source::sub_allocator::SubAllocator;

/// The largest alignment for which the system returns zeroed pages without touching them.
const LAZY_ALIGNMENT: u64 = 16;

/// Zeroed system memory in regions of any alignment.
///
/// Memory is committed lazily: a region takes address space immediately, and physical pages only where they are used. A
/// pool with a generous limit therefore costs no more than its blocks. The system zeroes lazily only for small
/// alignments, so the source allocates extra bytes and aligns the start itself.
///
/// The memory comes from the system and not from the program's global allocator. A global allocator that counts, such as
/// `TrackedSystem` of highwater-tracking, therefore does not count the regions of pools.
///
/// Regions that are live when the source is dropped stay allocated.
#[derive(Debug, Default)]
pub struct HostMemory {
    total: Option<u64>,
    /// The system's allocation of each region, by the address of the region.
    regions: Mutex<HashMap<u64, SystemAllocation>>,
}

/// The system's allocation of one region.
#[derive(Clone, Copy, Debug)]
struct SystemAllocation {
    base: u64,
    layout: Layout,
}

impl HostMemory {
    /// Creates a source of this machine's memory.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the total memory that the source reports, for limits that are shares of it. Does not limit allocations.
    #[must_use]
    pub const fn with_total(mut self, total: Bytes) -> Self {
        self.total = Some(total.0);
        self
    }

    /// Returns the number of live regions.
    #[must_use]
    pub fn live_regions(&self) -> usize {
        lock(&self.regions).len()
    }
}

// SAFETY: each region lies within one allocation of the system, which is valid, zeroed, and freed only in `free`.
unsafe impl SubAllocator for HostMemory {
    fn memory_kind(&self) -> MemoryKind {
        MemoryKind::Host
    }

    fn total_bytes(&self) -> Option<u64> {
        self.total
    }

    /// # Errors
    /// [`SourceError::Exhausted`] if the system has no memory, or if no region can have the size or alignment: zero
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
        lock(&self.regions).insert(address, SystemAllocation { base, layout });
        Ok(Span { address, bytes })
    }

    unsafe fn free(&self, region: Span) {
        let allocation = lock(&self.regions).remove(&region.address);
        if let Some(SystemAllocation { base, layout }) = allocation {
            // SAFETY: `base` came from `system_allocate` with this layout, and its record was removed just now.
            unsafe { system_free(base, layout) };
        }
    }
}

/// Returns the system's layout of an allocation, or `None` if it is invalid.
fn layout(bytes: u64, alignment: u64) -> Option<Layout> {
    let (bytes, alignment) = (usize::try_from(bytes).ok()?, usize::try_from(alignment).ok()?);
    Layout::from_size_align(bytes, alignment).ok().filter(|layout| layout.size() > 0)
}

/// Allocates zeroed system memory; `None` if there is none. The layout is not empty: see [`layout`].
fn system_allocate(layout: Layout) -> Option<u64> {
    // SAFETY: no layout made in this file has size zero.
    let pointer = unsafe { System.alloc_zeroed(layout) };
    if pointer.is_null() { None } else { Some(pointer.expose_provenance() as u64) }
}

/// Frees system memory.
///
/// # Safety
/// `address` came from [`system_allocate`] with the same layout, was not freed since, and nothing uses it.
unsafe fn system_free(address: u64, layout: Layout) {
    let pointer = with_exposed_provenance_mut(address as usize);
    // SAFETY: the caller guarantees the contract of `dealloc`. The pointer's provenance was exposed by the allocation.
    unsafe { System.dealloc(pointer, layout) };
}

#[cfg(test)]
mod tests;

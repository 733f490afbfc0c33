//! System memory: as a source of regions for pools, and as an allocator that does without a pool.
//!
//! One of the few files of this crate with `unsafe` in it: here numbers become memory.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::collections::HashMap;
use std::ptr::with_exposed_provenance_mut;

use crate::base::memory::{MemoryKind, Span};
use crate::base::sync::{Mutex, lock};
use crate::base::units::{Bytes, round_up};
use crate::source::error::SourceError;
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

/// The system's description of a piece of memory, or `None` if there can be no such piece.
pub(crate) fn layout(bytes: u64, alignment: u64) -> Option<Layout> {
    let (bytes, alignment) = (usize::try_from(bytes).ok()?, usize::try_from(alignment).ok()?);
    Layout::from_size_align(bytes, alignment).ok().filter(|layout| layout.size() > 0)
}

/// Zeroed memory of the system, or `None` if it has none. The layout is not empty: see [`layout`].
pub(crate) fn system_allocate(layout: Layout) -> Option<u64> {
    // SAFETY: no layout made in this file has size zero.
    let pointer = unsafe { alloc_zeroed(layout) };
    if pointer.is_null() { None } else { Some(pointer.expose_provenance() as u64) }
}

/// Gives memory back to the system.
///
/// # Safety
/// `address` came from [`system_allocate`] with the same layout, was not given back since, and nothing uses it.
pub(crate) unsafe fn system_free(address: u64, layout: Layout) {
    let pointer = with_exposed_provenance_mut(address as usize);
    // SAFETY: the caller promises what `dealloc` asks for; the pointer's provenance was exposed when it was handed out.
    unsafe { dealloc(pointer, layout) };
}

#[cfg(test)]
mod tests;

//! Callbacks for every region that a pool takes from its source and returns.
//!
//! Use them to register memory with a network card, to fill it with a pattern, or to log. Source of the rules:
//! TensorFlow's `SubAllocator` visitors.

use std::collections::BTreeMap;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;

use crate::base::memory::{AddressSpace, MemoryKind, Span};
use crate::base::sync::{Mutex, lock};
use crate::source::error::SourceError;
use crate::source::sub_allocator::SubAllocator;

/// A callback with a region and its index: the NUMA node of host memory, or the ordinal of a device.
///
/// It runs inside an allocation, so it must not call back into the pool. It may call another pool, unless that pool's
/// visitors call this one: two threads could then deadlock. If it panics, the region returns to the source, and the
/// panic propagates to the caller of the pool.
pub type Visitor = Arc<dyn Fn(Span, usize) + Send + Sync>;

/// The visitors of one source of memory, in order of registration.
#[derive(Clone, Default)]
pub struct Visitors {
    alloc: Vec<Visitor>,
    free: Vec<Visitor>,
}

impl Visitors {
    /// Creates an empty list.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a visitor that runs right after a region is taken, after the visitors added before it.
    pub fn on_alloc(&mut self, visitor: impl Fn(Span, usize) + Send + Sync + 'static) {
        self.alloc.push(Arc::new(visitor));
    }

    /// Adds a visitor that runs right before a region is returned, before the visitors added before it.
    pub fn on_free(&mut self, visitor: impl Fn(Span, usize) + Send + Sync + 'static) {
        self.free.push(Arc::new(visitor));
    }
}

impl fmt::Debug for Visitors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Visitors").field("alloc", &self.alloc.len()).field("free", &self.free.len()).finish()
    }
}

/// A source of memory that calls visitors for each region, once when it is taken and once when it is returned.
///
/// Visitors see regions, never the blocks within them. A pool over a [coalescing](SubAllocator::supports_coalescing)
/// source may return several regions in one call; visitors still see each region separately.
///
/// ```
/// use std::sync::Arc;
/// use bfc_core::{AddressOnlyMemory, SubAllocator, VisitedMemory, Visitors};
/// let mut visitors = Visitors::new();
/// visitors.on_alloc(|region, node| println!("took {} bytes on node {node}", region.bytes));
/// let memory = VisitedMemory::new(Arc::new(AddressOnlyMemory::new()), 0, visitors);
/// let region = memory.allocate(256, 4096)?;
/// # Ok::<(), bfc_core::SourceError>(())
/// ```
#[derive(Debug)]
pub struct VisitedMemory {
    source: Arc<dyn SubAllocator>,
    index: usize,
    visitors: Visitors,
    /// Sizes of the live regions, by address.
    regions: Mutex<BTreeMap<u64, u64>>,
}

impl VisitedMemory {
    /// Wraps `source`. The visitors receive `index`.
    #[must_use]
    pub fn new(source: Arc<dyn SubAllocator>, index: usize, visitors: Visitors) -> Self {
        Self { source, index, visitors, regions: Mutex::default() }
    }

    /// Calls the visitors for memory that has just come from the source, in pieces of `piece` bytes.
    fn visit_new(&self, span: Span, piece: u64) {
        let pieces = (0..span.bytes).step_by(usize::try_from(piece.max(1)).unwrap_or(usize::MAX));
        let pieces = pieces.map(|offset| {
            let bytes = piece.min(span.bytes - offset);
            Span { address: span.address + offset, bytes }
        });
        lock(&self.regions).extend(pieces.clone().map(|piece| (piece.address, piece.bytes)));
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            for region in pieces {
                for visit in &self.visitors.alloc {
                    visit(region, self.index);
                }
            }
        }));
        if let Err(panic) = outcome {
            // All visitors are told that the memory goes, including those that did not see it come.
            // SAFETY: the memory has just come from the source, and only visitors know it.
            unsafe { self.free(span) };
            resume_unwind(panic);
        }
    }
}

/// Frees a region on drop.
struct FreeOnDrop<'a> {
    source: &'a dyn SubAllocator,
    region: Span,
}

impl Drop for FreeOnDrop<'_> {
    fn drop(&mut self) {
        // SAFETY: the creator of this value holds the guarantees of `SubAllocator::free` for the region.
        unsafe { self.source.free(self.region) };
    }
}

// SAFETY: every region comes unchanged from `source`, which makes the same guarantees.
unsafe impl SubAllocator for VisitedMemory {
    fn memory_kind(&self) -> MemoryKind {
        self.source.memory_kind()
    }

    fn address_space(&self) -> Option<AddressSpace> {
        self.source.address_space()
    }

    fn granularity(&self) -> u64 {
        self.source.granularity()
    }

    fn total_bytes(&self) -> Option<u64> {
        self.source.total_bytes()
    }

    fn allocate(&self, alignment: u64, bytes: u64) -> Result<Span, SourceError> {
        let region = self.source.allocate(alignment, bytes)?;
        self.visit_new(region, region.bytes);
        Ok(region)
    }

    unsafe fn free(&self, region: Span) {
        let freed = {
            let regions = &mut *lock(&self.regions);
            let end = region.end().unwrap_or(u64::MAX);
            let freed: Vec<Span> = regions
                .range(region.address..end)
                .map(|(&address, &bytes)| Span { address, bytes })
                .collect();
            for region in &freed {
                regions.remove(&region.address);
            }
            // Only the end of a region goes; visitors are not called.
            if let Some((&start, bytes)) = regions.range_mut(..region.address).next_back() {
                *bytes = (*bytes).min(region.address - start);
            }
            freed
        };
        // Frees the region also if a visitor panics: no other code knows it.
        let _free = FreeOnDrop { source: &*self.source, region };
        for region in freed {
            for visit in self.visitors.free.iter().rev() {
                visit(region, self.index);
            }
        }
    }

    fn supports_coalescing(&self) -> bool {
        self.source.supports_coalescing()
    }

    fn supports_segments(&self) -> bool {
        self.source.supports_segments()
    }

    fn reserve(&self, bytes: u64) -> Result<Span, SourceError> {
        self.source.reserve(bytes)
    }

    unsafe fn release_range(&self, range: Span) {
        // SAFETY: guaranteed by the caller.
        unsafe { self.source.release_range(range) };
    }

    /// Visitors see each handle as a region.
    unsafe fn map(&self, span: Span, handle: u64) -> Result<(), SourceError> {
        // SAFETY: guaranteed by the caller.
        unsafe { self.source.map(span, handle)? };
        self.visit_new(span, handle);
        Ok(())
    }

    fn available_bytes(&self) -> Option<u64> {
        self.source.available_bytes()
    }

    fn boundary_in(&self, tail: Span) -> Option<u64> {
        if self.visitors.free.is_empty() {
            return self.source.boundary_in(tail);
        }
        // Visitors see regions go exactly as they came.
        let address = *lock(&self.regions).range(tail.address..tail.end()?).next()?.0;
        let bytes = tail.end()? - address;
        self.source.boundary_in(Span { address, bytes }).filter(|&found| found == address)
    }
}

//! Callbacks for every region that a pool takes from its source and returns.
//!
//! Use them to register memory with a network card, to fill it with a pattern, or to log. Source of the rules:
//! TensorFlow's `SubAllocator` visitors. Upstream fixes the lists at construction; here they are fixed with the first
//! region.

use std::collections::BTreeMap;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;

use crate::base::memory::{AddressSpace, MemoryKind, Span};
use crate::base::sync::{Mutex, lock};
use crate::source::error::{SourceError, VisitorError};
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
/// use bfc_core::{AddressOnlyMemory, SubAllocator, Visited};
/// let memory = Visited::new(Arc::new(AddressOnlyMemory::new()), 0);
/// memory.on_alloc(|region, node| println!("took {} bytes on node {node}", region.bytes))?;
/// let region = memory.allocate(256, 4096);
/// assert!(memory.on_alloc(|_, _| ()).is_err()); // too late: this visitor would have missed a region
/// # Ok::<(), bfc_core::VisitorError>(())
/// ```
#[derive(Debug)]
pub struct Visited {
    source: Arc<dyn SubAllocator>,
    index: usize,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// In an `Arc`, so that visitors run without the lock.
    visitors: Arc<Visitors>,
    /// Whether a region was ever taken.
    sealed: bool,
    /// Sizes of the live regions, by address.
    regions: BTreeMap<u64, u64>,
}

impl Visited {
    /// Wraps `source` without visitors. Visitors receive `index`.
    #[must_use]
    pub fn new(source: Arc<dyn SubAllocator>, index: usize) -> Self {
        Self { source, index, state: Mutex::new(State::default()) }
    }

    /// Replaces the visitors.
    #[must_use]
    pub fn with_visitors(self, visitors: Visitors) -> Self {
        lock(&self.state).visitors = Arc::new(visitors);
        self
    }

    /// Adds a visitor that runs right after a region is taken, after the visitors added before it.
    ///
    /// # Errors
    /// [`VisitorError`] after the first region: the visitor would have missed it.
    pub fn on_alloc(
        &self,
        visitor: impl Fn(Span, usize) + Send + Sync + 'static,
    ) -> Result<(), VisitorError> {
        self.change(|visitors| visitors.on_alloc(visitor))
    }

    /// Adds a visitor that runs right before a region is returned, before the visitors added before it.
    ///
    /// # Errors
    /// [`VisitorError`] after the first region.
    pub fn on_free(&self, visitor: impl Fn(Span, usize) + Send + Sync + 'static) -> Result<(), VisitorError> {
        self.change(|visitors| visitors.on_free(visitor))
    }

    fn change(&self, change: impl FnOnce(&mut Visitors)) -> Result<(), VisitorError> {
        let mut state = lock(&self.state);
        if state.sealed {
            return Err(VisitorError);
        }
        change(Arc::make_mut(&mut state.visitors));
        Ok(())
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
unsafe impl SubAllocator for Visited {
    fn memory_kind(&self) -> MemoryKind {
        self.source.memory_kind()
    }

    fn address_space(&self) -> Option<AddressSpace> {
        self.source.address_space()
    }

    fn total_bytes(&self) -> Option<u64> {
        self.source.total_bytes()
    }

    fn allocate(&self, alignment: u64, bytes: u64) -> Result<Span, SourceError> {
        let region = self.source.allocate(alignment, bytes)?;
        let visitors = {
            let mut state = lock(&self.state);
            state.sealed = true;
            state.regions.insert(region.address, region.bytes);
            Arc::clone(&state.visitors)
        };
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            for visit in &visitors.alloc {
                visit(region, self.index);
            }
        }));
        if let Err(panic) = outcome {
            // All visitors are told that the region goes, including those that did not see it come.
            // SAFETY: the region has just come from the source, and only visitors know it.
            unsafe { self.free(region) };
            resume_unwind(panic);
        }
        Ok(region)
    }

    unsafe fn free(&self, region: Span) {
        let (visitors, regions) = {
            let mut state = lock(&self.state);
            let end = region.end().unwrap_or(u64::MAX);
            let regions: Vec<Span> = state
                .regions
                .range(region.address..end)
                .map(|(&address, &bytes)| Span { address, bytes })
                .collect();
            for region in &regions {
                state.regions.remove(&region.address);
            }
            // Only the end of a region goes; visitors are not called.
            if let Some((&start, bytes)) = state.regions.range_mut(..region.address).next_back() {
                *bytes = (*bytes).min(region.address - start);
            }
            (Arc::clone(&state.visitors), regions)
        };
        // Frees the region also if a visitor panics: no other code knows it.
        let _free = FreeOnDrop { source: &*self.source, region };
        for region in regions {
            for visit in visitors.free.iter().rev() {
                visit(region, self.index);
            }
        }
    }

    fn supports_coalescing(&self) -> bool {
        self.source.supports_coalescing()
    }

    fn available_bytes(&self) -> Option<u64> {
        self.source.available_bytes()
    }

    fn boundary_in(&self, tail: Span) -> Option<u64> {
        let first = {
            let state = lock(&self.state);
            if state.visitors.free.is_empty() {
                None
            } else {
                // Visitors see regions go exactly as they came.
                Some(*state.regions.range(tail.address..tail.end()?).next()?.0)
            }
        };
        let Some(address) = first else { return self.source.boundary_in(tail) };
        let bytes = tail.end()? - address;
        self.source.boundary_in(Span { address, bytes }).filter(|&found| found == address)
    }
}

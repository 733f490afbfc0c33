//! Code that is called with every region a pool takes from its source and gives back.
//!
//! For registering memory with a network card, for filling it with a pattern, for a log. Source of the rules:
//! TensorFlow's `SubAllocator` visitors; there the lists are fixed at construction, here until the first region.

use std::collections::BTreeMap;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;

use crate::base::memory::{AddressSpace, MemoryKind, Span};
use crate::base::sync::{Mutex, lock};
use crate::source::error::{SourceError, VisitorError};
use crate::source::sub_allocator::SubAllocator;

/// Is called with a region and the index of its place: the NUMA node of host memory, the ordinal of a device.
///
/// It runs inside the allocation that took the region, so it must not call back into the pool. It may call another pool,
/// as long as that one's visitors do not call this one in turn: two threads could then wait for each other. If it panics,
/// the region goes back to the source, and the panic to whoever asked for memory or gave it back.
pub type Visitor = Arc<dyn Fn(Span, usize) + Send + Sync>;

/// The visitors of one source of memory, in the order in which they were added.
#[derive(Clone, Default)]
pub struct Visitors {
    alloc: Vec<Visitor>,
    free: Vec<Visitor>,
}

impl Visitors {
    /// No visitors.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a visitor that runs right after a region was taken, after those added before it.
    pub fn on_alloc(&mut self, visitor: impl Fn(Span, usize) + Send + Sync + 'static) {
        self.alloc.push(Arc::new(visitor));
    }

    /// Adds a visitor that runs right before a region is given back, before those added before it.
    pub fn on_free(&mut self, visitor: impl Fn(Span, usize) + Send + Sync + 'static) {
        self.free.push(Arc::new(visitor));
    }
}

impl fmt::Debug for Visitors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Visitors").field("alloc", &self.alloc.len()).field("free", &self.free.len()).finish()
    }
}

/// A source of memory whose regions are shown to visitors, each exactly once when taken and once when given back.
///
/// Only regions are shown, never the blocks that a pool cuts from them. When a pool gives back several regions in one
/// piece, which a [coalescing](SubAllocator::supports_coalescing) source allows, the visitors still see each region as
/// it was taken.
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
    /// Shared, so that visitors run without the lock.
    visitors: Arc<Visitors>,
    /// Whether a region was ever taken.
    sealed: bool,
    /// Sizes of the regions that are out, by address.
    regions: BTreeMap<u64, u64>,
}

impl Visited {
    /// `source` without visitors yet; `index` is what visitors are told of its place.
    #[must_use]
    pub fn new(source: Arc<dyn SubAllocator>, index: usize) -> Self {
        Self { source, index, state: Mutex::new(State::default()) }
    }

    /// The same source with these visitors and no others.
    #[must_use]
    pub fn with_visitors(self, visitors: Visitors) -> Self {
        lock(&self.state).visitors = Arc::new(visitors);
        self
    }

    /// Adds a visitor that runs right after a region was taken, after those added before it.
    ///
    /// # Errors
    /// [`VisitorError`] once a region was taken: the visitor would have missed it.
    pub fn on_alloc(
        &self,
        visitor: impl Fn(Span, usize) + Send + Sync + 'static,
    ) -> Result<(), VisitorError> {
        self.change(|visitors| visitors.on_alloc(visitor))
    }

    /// Adds a visitor that runs right before a region is given back, before those added before it.
    ///
    /// # Errors
    /// [`VisitorError`] once a region was taken.
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

/// A region that goes back to its source when this is dropped: its owner has given it up.
struct GoesBack<'a> {
    source: &'a dyn SubAllocator,
    region: Span,
}

impl Drop for GoesBack<'_> {
    fn drop(&mut self) {
        // SAFETY: whoever made this was promised for `region` what `source` asks for.
        unsafe { self.source.free(self.region) };
    }
}

// SAFETY: every region is one of `source`, which makes the same promise, passed on unchanged.
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
        let told = catch_unwind(AssertUnwindSafe(|| {
            for visit in &visitors.alloc {
                visit(region, self.index);
            }
        }));
        if let Err(panic) = told {
            // Those who were told of the region, and those who were not, are told that it goes.
            // SAFETY: the region has just come from the source, and nobody but the visitors has heard of it.
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
            // The end of a region alone, of which nobody is told.
            if let Some((&start, bytes)) = state.regions.range_mut(..region.address).next_back() {
                *bytes = (*bytes).min(region.address - start);
            }
            (Arc::clone(&state.visitors), regions)
        };
        // Gone also if a visitor panics: nobody else knows of it any more.
        let _gone = GoesBack { source: &*self.source, region };
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
                // Visitors see regions go as they saw them come.
                Some(*state.regions.range(tail.address..tail.end()?).next()?.0)
            }
        };
        let Some(address) = first else { return self.source.boundary_in(tail) };
        let bytes = tail.end()? - address;
        self.source.boundary_in(Span { address, bytes }).filter(|&found| found == address)
    }
}

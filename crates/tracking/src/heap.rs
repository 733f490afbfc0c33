//! The program's heap by scope: a global allocator that counts.
//!
//! [`TrackedSystem`] charges each allocation to the module that is current on the thread. The scope's index follows the
//! allocation in memory, so that a free in any scope or thread credits the scope that allocated:
//!
//! ```text
//! | bytes of the program | scope, 4 bytes |
//! ```
//!
//! Counting takes no lock and makes no allocation. Reports list the scopes under "outside the pools".

mod rows;

use std::alloc::{GlobalAlloc, Layout, System};
use std::ptr;

use bfc_core::OwnerId;

use self::rows::{charge, credit};
use crate::report::OutsideRow;
use crate::scope::here;

pub use rows::HeapFigures;

/// The bytes of the scope's index behind each allocation.
const TRAILER: usize = size_of::<u32>();

/// The most scopes in a report. The others are one row.
const MAX_ROWS: usize = 64;

/// A global allocator that counts live bytes, their peak and calls by scope. Wraps the system's allocator, or another one.
///
/// - **Scopes:** memory belongs to the module in which it was allocated, wherever it is freed or reallocated. A module's
///   figures exclude the modules below it.
/// - **Pools:** regions of [`HostMemory`](bfc_core::HostMemory) come from the system directly. Only the rows of their pools
///   count them. The tables of pools and trackers are part of the heap.
/// - **Cost:** four bytes per allocation, a cache line of counters per scope, and the time in `docs/benchmarks.md`.
/// - **Limits:** the figures belong to the process: all values of this type share them. Targets without native thread-local
///   storage are not supported.
///
/// ```standalone_crate
/// use highwater_tracking::{Report, TrackedSystem, Tracker, module};
///
/// #[global_allocator]
/// static HEAP: TrackedSystem = TrackedSystem::new();
///
/// let vocabulary: Vec<u8> = {
///     let _scope = module("tokenizer");
///     Vec::with_capacity(10_000)
/// };
/// let rows = TrackedSystem::by_scope();
/// let (_, figures) = rows.iter().find(|(scope, _)| scope.path() == "tokenizer").expect("it holds memory");
/// assert_eq!((figures.live_bytes, figures.peak_bytes, figures.calls), (10_000, 10_000, 1));
/// println!("{}", Report::new(&Tracker::new(), &[]));
/// # drop(vocabulary);
/// ```
#[derive(Debug, Default)]
pub struct TrackedSystem<A = System> {
    inner: A,
}

impl TrackedSystem {
    /// Counts the allocations of the system's allocator.
    #[must_use]
    pub const fn new() -> Self {
        Self { inner: System }
    }

    /// Returns the figures of all scopes that ever allocated, in the order in which the scopes were made; empty if this type
    /// is not the global allocator. The root stands for memory that was allocated outside of all scopes.
    #[must_use]
    pub fn by_scope() -> Vec<(OwnerId, HeapFigures)> {
        rows::by_scope()
    }
}

impl<A> TrackedSystem<A> {
    /// Counts the allocations of another allocator.
    #[must_use]
    pub const fn over(inner: A) -> Self {
        Self { inner }
    }
}

/// Returns the layout with the trailer; `None` beyond the address space.
fn with_trailer(layout: Layout) -> Option<Layout> {
    Layout::from_size_align(layout.size().checked_add(TRAILER)?, layout.align()).ok()
}

/// Writes the scope's index behind the bytes of an allocation.
///
/// # Safety
/// `pointer` is valid for `bytes` bytes and the trailer.
unsafe fn write_scope(pointer: *mut u8, bytes: usize, scope: u32) {
    // SAFETY: the caller guarantees that the trailer is part of the allocation.
    let trailer = unsafe { pointer.add(bytes) };
    // SAFETY: as above; the address may have any alignment.
    unsafe { trailer.cast::<u32>().write_unaligned(scope) };
}

/// Reads the scope's index behind the bytes of an allocation.
///
/// # Safety
/// `pointer` is a live allocation of this module of `bytes` bytes.
unsafe fn read_scope(pointer: *mut u8, bytes: usize) -> u32 {
    // SAFETY: the caller guarantees that the trailer is part of the allocation.
    let trailer = unsafe { pointer.add(bytes) };
    // SAFETY: the allocation wrote the trailer.
    unsafe { trailer.cast::<u32>().read_unaligned() }
}

/// Counts a new allocation, unless it failed.
///
/// # Safety
/// `pointer` is null or valid for the layout's bytes and the trailer.
#[inline]
unsafe fn count(pointer: *mut u8, layout: Layout) -> *mut u8 {
    if !pointer.is_null() {
        let scope = charge(here().module, layout.size());
        // SAFETY: the caller guarantees it.
        unsafe { write_scope(pointer, layout.size(), scope) };
    }
    pointer
}

// SAFETY: allocations come from the inner allocator with the same alignment and with four more bytes, and return to it with
// the same layout. No method unwinds: counting uses atomics and a thread-local without a destructor.
unsafe impl<A: GlobalAlloc> GlobalAlloc for TrackedSystem<A> {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let Some(padded) = with_trailer(layout) else { return ptr::null_mut() };
        // SAFETY: the layout is not empty.
        let pointer = unsafe { self.inner.alloc(padded) };
        // SAFETY: the allocation has room for the trailer.
        unsafe { count(pointer, layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        let Some(padded) = with_trailer(layout) else { return ptr::null_mut() };
        // SAFETY: the layout is not empty.
        let pointer = unsafe { self.inner.alloc_zeroed(padded) };
        // SAFETY: the allocation has room for the trailer.
        unsafe { count(pointer, layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // The layout was accepted when it was allocated.
        let Some(padded) = with_trailer(layout) else { return };
        // SAFETY: the caller passes a live allocation with its layout.
        let scope = unsafe { read_scope(pointer, layout.size()) };
        // Before the free, so that the figures never exceed the memory in use.
        credit(scope, layout.size());
        // SAFETY: the allocation was made with this layout.
        unsafe { self.inner.dealloc(pointer, padded) };
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        let Some(padded) = with_trailer(layout) else { return ptr::null_mut() };
        let new_layout = Layout::from_size_align(new_size, layout.align()).ok();
        let Some(new_padded) = new_layout.and_then(with_trailer) else { return ptr::null_mut() };
        // SAFETY: the caller passes a live allocation with its layout.
        let scope = unsafe { read_scope(pointer, layout.size()) };
        // SAFETY: the allocation was made with this layout, and the new size forms a layout.
        let moved = unsafe { self.inner.realloc(pointer, padded, new_padded.size()) };
        if !moved.is_null() {
            rows::change(scope, layout.size(), new_size);
            // SAFETY: the new allocation has room for the trailer.
            unsafe { write_scope(moved, new_size, scope) };
        }
        moved
    }
}

/// Returns the heap by scope for reports, the most live bytes first; empty without a [`TrackedSystem`].
pub(crate) fn outside_rows() -> Vec<OutsideRow> {
    let mut scopes = rows::by_scope();
    scopes.sort_by_key(|(scope, figures)| {
        (std::cmp::Reverse((figures.live_bytes, figures.peak_bytes)), *scope)
    });
    let others = scopes.split_off(scopes.len().min(MAX_ROWS));
    let mut rows: Vec<OutsideRow> = scopes.iter().map(|(scope, figures)| row(*scope, figures)).collect();
    if !others.is_empty() {
        let bytes = others.iter().map(|(_, figures)| figures.live_bytes).sum();
        rows.push(OutsideRow { name: "heap (other scopes)".to_owned(), bytes, ..OutsideRow::default() });
    }
    rows
}

fn row(scope: OwnerId, figures: &HeapFigures) -> OutsideRow {
    let name = match scope {
        OwnerId::ROOT => "heap (outside of modules)".to_owned(),
        scope => format!("heap {}", scope.path()),
    };
    let HeapFigures { live_bytes: bytes, peak_bytes, calls } = *figures;
    OutsideRow { name, bytes, peak_bytes: Some(peak_bytes), calls: Some(calls) }
}

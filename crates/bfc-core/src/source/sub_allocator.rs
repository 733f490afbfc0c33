//! The source of a pool's memory: large regions, allocated and freed rarely.

use std::fmt;

use crate::base::memory::{AddressSpace, MemoryKind, Span};
use crate::source::error::SourceError;

/// A source of regions: system memory, device memory, or addresses without memory.
///
/// # Safety
/// For each region that [`allocate`](Self::allocate) returns, until [`free`](Self::free):
///
/// - The region lies in memory of the kind [`memory_kind`](Self::memory_kind) and overlaps no other live region.
/// - It is valid and, for host memory, initialized for its `bytes`.
/// - It is valid in the [`address_space`](Self::address_space), if that is `Some`.
pub unsafe trait SubAllocator: Send + Sync + fmt::Debug {
    /// The kind of memory of the regions.
    fn memory_kind(&self) -> MemoryKind;

    /// The address space of the device in which the regions are valid. `None`, the default, for host memory and
    /// addresses without memory. Device memory without one is never computed on.
    fn address_space(&self) -> Option<AddressSpace> {
        None
    }

    /// The granularity of regions in bytes, a power of two: [`allocate`](Self::allocate) rounds sizes up to multiples of
    /// it. A pool therefore rounds its limit down. 1, the default, for sources that deliver the requested bytes.
    fn granularity(&self) -> u64 {
        1
    }

    /// Allocates a region of at least `bytes` bytes at a multiple of `alignment`. The caller may use all of it.
    ///
    /// # Errors
    /// [`SourceError::Exhausted`] if there is no such region, other variants if the source is broken.
    fn allocate(&self, alignment: u64, bytes: u64) -> Result<Span, SourceError>;

    /// Frees a region. With [`supports_coalescing`](Self::supports_coalescing), the span may cover several adjacent
    /// regions, or their end from [`boundary_in`](Self::boundary_in) on. In a reserved range, it covers whole pieces that
    /// were [mapped](Self::map).
    ///
    /// # Safety
    /// The span is a region that `allocate` returned, a run of adjacent regions, the end of such a run, or a run of mapped
    /// pieces. It was not freed before, and nothing uses it. Previously submitted work may still use device memory.
    unsafe fn free(&self, region: Span);

    /// The total memory behind the source, in bytes, used or not; `None` if unknown. Limits may be shares of it.
    fn total_bytes(&self) -> Option<u64> {
        None
    }

    /// The bytes that no process uses; `None` if unknown. Limits may leave a part of them to other processes.
    fn available_bytes(&self) -> Option<u64> {
        None
    }

    /// The lowest address in `tail` from which the end of a run of regions can be freed. `tail` ends where the run
    /// ends. `None` if only whole regions can be freed.
    fn boundary_in(&self, tail: Span) -> Option<u64> {
        let _ = tail;
        None
    }

    /// Whether adjacent regions may be merged.
    fn supports_coalescing(&self) -> bool {
        false
    }

    /// Whether the source [reserves](Self::reserve) addresses and [maps](Self::map) memory into them.
    fn supports_segments(&self) -> bool {
        false
    }

    /// Reserves a range of `bytes` addresses without memory. It stays reserved until
    /// [`release_range`](Self::release_range) or the end of the source.
    ///
    /// # Errors
    /// [`SourceError::Exhausted`] if there are too few addresses, [`SourceError::Unsupported`] without
    /// [segments](Self::supports_segments).
    fn reserve(&self, bytes: u64) -> Result<Span, SourceError> {
        let _ = bytes;
        Err(no_segments())
    }

    /// Releases a reserved range.
    ///
    /// # Safety
    /// The range came from [`reserve`](Self::reserve), was not released before, and nothing is mapped in it.
    unsafe fn release_range(&self, range: Span) {
        let _ = range;
    }

    /// Maps memory into a span of a reserved range, in pieces of `handle` bytes. The span is then a region.
    /// [`free`](Self::free) unmaps any run of whole pieces.
    ///
    /// # Errors
    /// [`SourceError::Exhausted`] if there is too little memory; nothing is mapped. Other variants if the source is
    /// broken.
    ///
    /// # Safety
    /// The span consists of whole pieces, counted from the start of a reserved range, in which nothing is mapped.
    unsafe fn map(&self, span: Span, handle: u64) -> Result<(), SourceError> {
        let _ = (span, handle);
        Err(no_segments())
    }
}

/// Returns the error of a source that reserves no addresses.
pub(super) fn no_segments() -> SourceError {
    SourceError::Unsupported { device: "the source of memory".to_owned(), feature: "segments" }
}

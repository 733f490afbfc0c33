//! Addresses without memory: pools of any size for dry runs, replays and tests.

use crate::base::memory::{MemoryKind, Span};
use crate::base::sync::{Mutex, lock};
use crate::base::units::{Bytes, round_up};
use crate::source::error::SourceError;
use crate::source::sub_allocator::{SubAllocator, no_segments};

/// The first address: recognizable, and unlikely to equal the low bits of a real pointer.
const BASE: u64 = 1 << 40;

/// The end of the highest reserved range: far above all regions.
const RANGES_END: u64 = 1 << 60;

/// The alignment of reserved ranges, in bytes.
const RANGE_ALIGNMENT: u64 = 2 << 20;

/// A source of addresses without memory. A pool on top makes the same decisions as over real memory.
///
/// The same calls in the same order return the same addresses, which rise from 2⁴⁰. The source reuses the last region
/// once it is freed, but not holes before it. It starts over when no region is live. Reserved
/// ranges descend from 2⁶⁰, as those of `mmap` do.
///
/// ```
/// use bfc_core::{AddressOnlyMemory, Bytes, SubAllocator};
/// let memory = AddressOnlyMemory::new().with_limit(Bytes::gib(80));
/// assert!(memory.allocate(256, 80 << 30).is_ok());
/// assert!(memory.allocate(256, 1).is_err());
/// ```
#[derive(Debug)]
pub struct AddressOnlyMemory {
    limit: Option<u64>,
    total: Option<u64>,
    coalescing: bool,
    segments: bool,
    state: Mutex<AddressCursor>,
}

#[derive(Debug)]
struct AddressCursor {
    /// The first address that was never used, or that is free up to the end of the address space.
    next: u64,
    /// Bytes of live regions.
    live: u64,
    /// The start of the last reserved range, if there is one. Regions end below it.
    lowest_range: Option<u64>,
}

impl Default for AddressOnlyMemory {
    fn default() -> Self {
        Self {
            limit: None,
            total: None,
            coalescing: false,
            segments: true,
            state: Mutex::new(AddressCursor { next: BASE, live: 0, lowest_range: None }),
        }
    }
}

impl AddressOnlyMemory {
    /// Creates a source that only the address space limits, without coalescing of regions.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Limits the bytes of live regions.
    #[must_use]
    pub const fn with_limit(mut self, limit: Bytes) -> Self {
        self.limit = Some(limit.get());
        self
    }

    /// Sets the total memory that the source reports, for limits that are shares of it. Does not limit allocations.
    #[must_use]
    pub const fn with_total(mut self, total: Bytes) -> Self {
        self.total = Some(total.get());
        self
    }

    /// Sets whether adjacent regions may be merged.
    #[must_use]
    pub const fn with_coalescing(mut self, coalescing: bool) -> Self {
        self.coalescing = coalescing;
        self
    }

    /// Sets whether ranges of addresses can be reserved, as by default. Host memory, for which a dry run stands, has none.
    #[must_use]
    pub const fn with_segments(mut self, segments: bool) -> Self {
        self.segments = segments;
        self
    }

    /// Returns the bytes of live regions.
    #[must_use]
    pub fn live_bytes(&self) -> u64 {
        lock(&self.state).live
    }
}

impl AddressCursor {
    /// Returns the next region and the live bytes with it, or `None` if it exceeds the limit or the address space.
    fn place(&self, limit: Option<u64>, alignment: u64, bytes: u64) -> Option<(Span, u64)> {
        if bytes == 0 || !alignment.is_power_of_two() {
            return None;
        }
        let live = self.live_with(limit, bytes)?;
        let region = Span { address: round_up(self.next, alignment)?, bytes };
        region.end().filter(|&end| end <= self.lowest_range.unwrap_or(u64::MAX)).map(|_| (region, live))
    }

    /// Returns the live bytes with `bytes` more, or `None` if they exceed the limit.
    fn live_with(&self, limit: Option<u64>, bytes: u64) -> Option<u64> {
        self.live.checked_add(bytes).filter(|&live| limit.is_none_or(|limit| live <= limit))
    }

    /// Returns the next range of addresses, or `None` if too few are left.
    fn reserve(&self, bytes: u64) -> Option<Span> {
        let end = self.lowest_range.unwrap_or(RANGES_END);
        let address = end.checked_sub(bytes)? & !(RANGE_ALIGNMENT - 1);
        (bytes > 0 && self.next <= address).then_some(Span { address, bytes })
    }
}

// SAFETY: addresses of this kind are never dereferenced. Regions do not overlap: each starts at or after the end of all
// live ones.
unsafe impl SubAllocator for AddressOnlyMemory {
    fn memory_kind(&self) -> MemoryKind {
        MemoryKind::AddressOnly
    }

    fn total_bytes(&self) -> Option<u64> {
        self.total.or(self.limit)
    }

    fn allocate(&self, alignment: u64, bytes: u64) -> Result<Span, SourceError> {
        let mut state = lock(&self.state);
        let (region, live) =
            state.place(self.limit, alignment, bytes).ok_or(SourceError::Exhausted { bytes })?;
        *state = AddressCursor { next: region.address + bytes, live, ..*state };
        Ok(region)
    }

    fn supports_segments(&self) -> bool {
        self.segments
    }

    fn reserve(&self, bytes: u64) -> Result<Span, SourceError> {
        if !self.segments {
            return Err(no_segments());
        }
        let mut state = lock(&self.state);
        let range = state.reserve(bytes).ok_or(SourceError::Exhausted { bytes })?;
        state.lowest_range = Some(range.address);
        Ok(range)
    }

    unsafe fn map(&self, span: Span, _handle: u64) -> Result<(), SourceError> {
        let mut state = lock(&self.state);
        let exhausted = SourceError::Exhausted { bytes: span.bytes };
        state.live = state.live_with(self.limit, span.bytes).ok_or(exhausted)?;
        Ok(())
    }

    unsafe fn free(&self, region: Span) {
        let mut state = lock(&self.state);
        state.live = state.live.saturating_sub(region.bytes);
        if state.live == 0 {
            state.next = BASE;
        } else if region.end() == Some(state.next) {
            state.next = region.address;
        }
    }

    fn supports_coalescing(&self) -> bool {
        self.coalescing
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn free(memory: &AddressOnlyMemory, region: Span) {
        // SAFETY: the tests free their own regions once; there is no memory at the addresses.
        unsafe { memory.free(region) };
    }

    #[test]
    fn regions_follow_each_other_from_the_base_aligned_as_asked() {
        let memory = AddressOnlyMemory::new();
        assert_eq!(memory.allocate(256, 100), Ok(Span { address: BASE, bytes: 100 }));
        assert_eq!(memory.allocate(4096, 8192), Ok(Span { address: BASE + 4096, bytes: 8192 }));
        assert_eq!(memory.allocate(1, 1), Ok(Span { address: BASE + 4096 + 8192, bytes: 1 }));
        assert_eq!(memory.live_bytes(), 8293);
    }

    #[test]
    fn the_last_region_given_back_is_used_anew_and_a_hole_is_not() {
        let memory = AddressOnlyMemory::new();
        let [first, second, third] = [(); 3].map(|()| memory.allocate(256, 256).unwrap());
        free(&memory, third);
        assert_eq!(memory.allocate(256, 512).unwrap().address, third.address);
        free(&memory, second);
        assert_eq!(memory.allocate(256, 256).unwrap().address, third.address + 512);
        assert_eq!(first.address, BASE);
    }

    #[test]
    fn adjacent_regions_may_be_returned_as_one() {
        let memory = AddressOnlyMemory::new().with_coalescing(true);
        assert!(memory.supports_coalescing());
        let first = memory.allocate(256, 256).unwrap();
        let _second = memory.allocate(256, 768).unwrap();
        free(&memory, Span { address: first.address, bytes: 1024 });
        assert_eq!(memory.live_bytes(), 0);
        assert_eq!(memory.allocate(256, 256), Ok(first));
    }

    #[test]
    fn ranges_lie_apart_from_regions_and_count_what_is_mapped() {
        let memory = AddressOnlyMemory::new().with_limit(Bytes::mib(8));
        let [first, second] = [(); 2].map(|()| memory.reserve(100 << 20).unwrap());
        assert_eq!((first.end(), second.end()), (Some(RANGES_END), Some(first.address)));
        let part = Span { address: first.address, bytes: 6 << 20 };
        // SAFETY: nothing is mapped in the range.
        let map = |span| unsafe { memory.map(span, 2 << 20) };
        assert_eq!((map(part), map(part)), (Ok(()), Err(SourceError::Exhausted { bytes: 6 << 20 })));
        assert_eq!(memory.allocate(256, 2 << 20), Ok(Span { address: BASE, bytes: 2 << 20 }));
        free(&memory, part);
        assert_eq!(memory.live_bytes(), 2 << 20);
        assert!(memory.reserve(u64::MAX).is_err() && memory.reserve(0).is_err());
    }

    #[test]
    fn the_limit_counts_what_is_out_and_a_refusal_changes_nothing() {
        let memory = AddressOnlyMemory::new().with_limit(Bytes(1000));
        let region = memory.allocate(1, 600).unwrap();
        assert_eq!(memory.allocate(1, 401), Err(SourceError::Exhausted { bytes: 401 }));
        assert_eq!(memory.allocate(1, 400).unwrap().address, BASE + 600);
        free(&memory, region);
        assert!(memory.allocate(1, 600).is_ok());
    }

    #[test]
    fn sizes_beyond_the_address_space_are_refused() {
        let memory = AddressOnlyMemory::new();
        for (alignment, bytes) in [(1, u64::MAX), (1, 0), (0, 1), (3, 1), (1, u64::MAX - BASE + 1)] {
            assert_eq!(memory.allocate(alignment, bytes), Err(SourceError::Exhausted { bytes }));
        }
        assert_eq!(memory.allocate(1, u64::MAX - BASE), Ok(Span { address: BASE, bytes: u64::MAX - BASE }));
        assert_eq!(memory.allocate(1, 1), Err(SourceError::Exhausted { bytes: 1 }));
    }
}

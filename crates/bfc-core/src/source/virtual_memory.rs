//! Device memory as one growing region: a reserved address range, mapped as needed.
//!
//! Source of the rules: TensorFlow's `GpuVirtualMemAllocator`, on CUDA's virtual memory management. Growths are
//! adjacent, so a pool merges them, and no region border splits free memory. A pool may also reserve ranges of its own
//! and map memory anywhere in them, as PyTorch's expandable segments do.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::base::memory::{AddressSpace, MemoryKind, Span};
use crate::base::sync::{Mutex, lock};
use crate::base::units::{Bytes, MIB, round_up};
use crate::source::driver::Driver;
use crate::source::error::SourceError;
use crate::source::sub_allocator::SubAllocator;

/// The largest piece of memory that is mapped at once, in bytes. The source frees whole pieces; growing costs several
/// calls for each.
const PIECE: u64 = 32 * MIB;

/// Device memory mapped into one address range.
///
/// Regions are multiples of the device's granularity (2 MiB on NVIDIA's), each directly behind the previous one. Memory
/// freed at the end is reused at the same addresses. A hole is reused only after everything behind it is freed. A
/// growth that fails midway is undone in reverse.
///
/// ```
/// use std::sync::Arc;
/// use bfc_core::sim::SimDevice;
/// use bfc_core::{BfcAllocator, BfcConfig, Bytes, VirtualMemory};
///
/// let memory = VirtualMemory::new(Arc::new(SimDevice::new(Bytes::gib(1))))?;
/// let _pool = BfcAllocator::new("sim_0_bfc", Arc::new(memory), BfcConfig::new(Bytes::mib(512)));
/// # Ok::<(), bfc_core::SourceError>(())
/// ```
#[derive(Debug)]
pub struct VirtualMemory {
    driver: Arc<dyn Driver>,
    granularity: u64,
    range: Span,
    pieces: Mutex<Pieces>,
    /// Ranges that pools have reserved.
    segments: Mutex<Vec<Span>>,
}

/// The mapped pieces, by address.
type Pieces = BTreeMap<u64, Piece>;

/// A piece of memory that was mapped in one step.
#[derive(Clone, Copy, Debug)]
struct Piece {
    bytes: u64,
    /// Whether unmapping failed. The piece is then never reused.
    stuck: bool,
}

impl VirtualMemory {
    /// Creates a source over the device behind `driver`, with an address range of twice the device's memory, as
    /// upstream.
    ///
    /// # Errors
    /// [`SourceError::Unsupported`] if the device has no virtual memory management; other errors if it reserves no
    /// addresses.
    pub fn new(driver: Arc<dyn Driver>) -> Result<Self, SourceError> {
        let total = driver.memory_info()?.total;
        Self::with_range(driver, Bytes(total.saturating_mul(2)))
    }

    /// As [`new`](Self::new), with an address range of this size, rounded up to the granularity.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn with_range(driver: Arc<dyn Driver>, addresses: Bytes) -> Result<Self, SourceError> {
        let granularity = driver.granularity()?;
        if !granularity.is_power_of_two() {
            return Err(SourceError::BadRegion { address: 0, bytes: granularity });
        }
        let exhausted = SourceError::Exhausted { bytes: addresses.0 };
        let bytes = round_up(addresses.0.max(1), granularity).ok_or(exhausted)?;
        let range = Span { address: driver.reserve(bytes)?, bytes };
        Ok(Self { driver, granularity, range, pieces: Mutex::default(), segments: Mutex::default() })
    }

    /// Returns the reserved address range.
    #[must_use]
    pub const fn range(&self) -> Span {
        self.range
    }

    /// Returns the span of the next region; `None` if the range is too small.
    fn place(&self, pieces: &Pieces, alignment: u64, bytes: u64) -> Option<Span> {
        let of_range = pieces.range(self.range.address..self.range.end()?);
        let next = of_range.last().map_or(self.range.address, |(start, piece)| start + piece.bytes);
        let address = round_up(next, alignment.max(self.granularity))?;
        let region = Span { address, bytes: round_up(bytes, self.granularity)? };
        (region.end()? <= self.range.end()?).then_some(region)
    }

    /// Maps memory into a region, in pieces of at most `largest` bytes.
    fn back(&self, region: Span, largest: u64, growth: &mut Growth<'_>) -> Result<(), SourceError> {
        let end = region.address + region.bytes;
        let mut address = region.address;
        while address < end {
            let piece = Span { address, bytes: largest.min(end - address) };
            self.back_piece(piece)?;
            growth.mapped.push(piece);
            address += piece.bytes;
        }
        // SAFETY: the pieces just mapped cover the region.
        unsafe { self.driver.set_access(region) }
    }

    fn back_piece(&self, piece: Span) -> Result<(), SourceError> {
        let handle = self.driver.create(piece.bytes)?;
        // SAFETY: the piece lies in the reserved range behind everything mapped, and the handle is as large.
        let mapped = unsafe { self.driver.map(piece, handle) };
        // The mapping keeps the memory alive; without one, the driver frees it now. The driver records a failure; the
        // memory is usable nonetheless.
        // SAFETY: the handle came from the driver just now, and this is its only release.
        let _ = unsafe { self.driver.release(handle) };
        mapped
    }
}

/// A growth in progress. Unless it is finished, its drop unmaps the new pieces, the last first.
struct Growth<'a> {
    driver: &'a dyn Driver,
    pieces: &'a mut Pieces,
    mapped: Vec<Span>,
}

impl Growth<'_> {
    fn finish(mut self) {
        let mapped = std::mem::take(&mut self.mapped);
        self.pieces
            .extend(mapped.into_iter().map(|span| (span.address, Piece { bytes: span.bytes, stuck: false })));
    }
}

impl Drop for Growth<'_> {
    fn drop(&mut self) {
        for &span in self.mapped.iter().rev() {
            // SAFETY: this growth mapped the span, and no other code uses it.
            if unsafe { self.driver.unmap(span) }.is_err() {
                self.pieces.insert(span.address, Piece { bytes: span.bytes, stuck: true });
            }
        }
    }
}

// SAFETY: memory is mapped and accessible throughout a region until its free. Regions start behind everything mapped,
// so they overlap no live ones.
unsafe impl SubAllocator for VirtualMemory {
    fn memory_kind(&self) -> MemoryKind {
        MemoryKind::Device
    }

    fn address_space(&self) -> Option<AddressSpace> {
        self.driver.address_space()
    }

    fn granularity(&self) -> u64 {
        self.granularity
    }

    fn total_bytes(&self) -> Option<u64> {
        self.driver.memory_info().ok().map(|memory| memory.total)
    }

    fn available_bytes(&self) -> Option<u64> {
        self.driver.memory_info().ok().map(|memory| memory.free)
    }

    fn allocate(&self, alignment: u64, bytes: u64) -> Result<Span, SourceError> {
        let exhausted = SourceError::Exhausted { bytes };
        if bytes == 0 || !alignment.is_power_of_two() {
            return Err(exhausted);
        }
        let pieces = &mut *lock(&self.pieces);
        let region = self.place(pieces, alignment, bytes).ok_or(exhausted)?;
        let mut growth = Growth { driver: &*self.driver, pieces, mapped: Vec::new() };
        let largest = (PIECE / self.granularity).max(1) * self.granularity;
        self.back(region, largest, &mut growth)?;
        growth.finish();
        Ok(region)
    }

    fn supports_segments(&self) -> bool {
        true
    }

    fn reserve(&self, bytes: u64) -> Result<Span, SourceError> {
        let bytes = round_up(bytes.max(1), self.granularity).ok_or(SourceError::Exhausted { bytes })?;
        let range = Span { address: self.driver.reserve(bytes)?, bytes };
        lock(&self.segments).push(range);
        Ok(range)
    }

    unsafe fn release_range(&self, range: Span) {
        let segments = &mut *lock(&self.segments);
        let is_unmapped =
            lock(&self.pieces).range(range.address..range.end().unwrap_or(u64::MAX)).next().is_none();
        // A range with memory that the driver failed to unmap stays reserved.
        if let Some(index) =
            segments.iter().position(|&segment| segment.address == range.address && is_unmapped)
        {
            let range = segments.swap_remove(index);
            // The driver records a failure.
            // SAFETY: the range came from the driver, is released once, and nothing is mapped in it.
            let _ = unsafe { self.driver.release_range(range) };
        }
    }

    unsafe fn map(&self, span: Span, handle: u64) -> Result<(), SourceError> {
        if handle == 0 || handle % self.granularity != 0 || span.bytes % handle != 0 {
            return Err(SourceError::BadRegion { address: span.address, bytes: span.bytes });
        }
        let pieces = &mut *lock(&self.pieces);
        let mut growth = Growth { driver: &*self.driver, pieces, mapped: Vec::new() };
        self.back(span, handle, &mut growth)?;
        growth.finish();
        Ok(())
    }

    unsafe fn free(&self, region: Span) {
        // Blocks may be freed before the work that uses them has ended.
        let ended = self.driver.synchronize();
        let pieces = &mut *lock(&self.pieces);
        let inside: Vec<Span> = pieces
            .range(region.address..region.end().unwrap_or(u64::MAX))
            .map(|(&address, piece)| Span { address, bytes: piece.bytes })
            .collect();
        for span in inside.into_iter().rev() {
            // SAFETY: the piece was mapped exactly so, its region is freed, and all work has ended.
            if ended.is_ok() && unsafe { self.driver.unmap(span) }.is_ok() {
                pieces.remove(&span.address);
            } else if let Some(piece) = pieces.get_mut(&span.address) {
                piece.stuck = true;
            }
        }
    }

    fn supports_coalescing(&self) -> bool {
        true
    }

    fn boundary_in(&self, tail: Span) -> Option<u64> {
        let pieces = lock(&self.pieces);
        let (&first, _) = pieces.range(tail.address..tail.end()?).next()?;
        let (&last, piece) = pieces.range(first..tail.end()?).next_back()?;
        (Some(last + piece.bytes) == tail.end()).then_some(first)
    }
}

impl Drop for VirtualMemory {
    /// Keeps the addresses reserved if regions are live or unmapping failed.
    fn drop(&mut self) {
        if lock(&self.pieces).is_empty() {
            for range in lock(&self.segments).drain(..).chain([self.range]) {
                // The driver records a failure.
                // SAFETY: this value owns the range, frees it once, and nothing is mapped in it.
                let _ = unsafe { self.driver.release_range(range) };
            }
        }
    }
}

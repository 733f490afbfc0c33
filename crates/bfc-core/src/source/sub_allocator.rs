//! Where pools get their memory from: large regions, taken and given back rarely.

use std::fmt;

use crate::base::memory::{AddressSpace, MemoryKind, Span};
use crate::source::error::SourceError;

/// A source of regions: system memory, a device's memory, bare addresses.
///
/// # Safety
/// Each region returned by [`allocate`](Self::allocate) lies in memory of the kind that
/// [`memory_kind`](Self::memory_kind) says, is valid and, for host memory, initialised for its `bytes` until it is
/// given to [`free`](Self::free), and overlaps no other region alive. It is valid in the address space that
/// [`address_space`](Self::address_space) says, if that says one.
pub unsafe trait SubAllocator: Send + Sync + fmt::Debug {
    /// What kind of memory the regions lie in.
    fn memory_kind(&self) -> MemoryKind;

    /// The address space of the device that the regions are valid on. `None`, the default, for host memory, for addresses with
    /// nothing behind them, and where nobody vouches for them: no device computes on such device memory.
    fn address_space(&self) -> Option<AddressSpace> {
        None
    }

    /// A region of at least `bytes` bytes at a multiple of `alignment`. It may be larger; the caller may use all of it.
    ///
    /// # Errors
    /// [`SourceError::Exhausted`] if there is no such region, other variants if the source is broken.
    fn allocate(&self, alignment: u64, bytes: u64) -> Result<Span, SourceError>;

    /// Takes a region back. With [`supports_coalescing`](Self::supports_coalescing) the span may cover several
    /// adjacent regions at once, or their end from [`boundary_in`](Self::boundary_in) on.
    ///
    /// # Safety
    /// The span is one that `allocate` returned (or a run of them, or the end of such a run), it was not given back
    /// before, and nothing uses it. Of a device's memory, work that was given before may still use it.
    unsafe fn free(&self, region: Span);

    /// All the memory that the source draws on, in bytes, used or not; `None` where nobody knows. Limits may be shares of it.
    fn total_bytes(&self) -> Option<u64> {
        None
    }

    /// The bytes of those that nobody uses now, this process or another; `None` where nobody knows. Limits may leave some
    /// of it to others.
    fn available_bytes(&self) -> Option<u64> {
        None
    }

    /// From where on the end of a run of regions can be given back alone: the lowest such address in `tail`, which ends
    /// where the run ends. `None` if only whole regions can.
    fn boundary_in(&self, tail: Span) -> Option<u64> {
        let _ = tail;
        None
    }

    /// Whether adjacent regions may be treated as one.
    fn supports_coalescing(&self) -> bool {
        false
    }
}

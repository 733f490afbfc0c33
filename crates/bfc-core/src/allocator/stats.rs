//! The figures of an allocator.

use std::fmt;
use std::time::Duration;

use crate::base::ledger::Tag;
use crate::base::units::Bytes;

/// The figures of an allocator. All sizes are in bytes. Updated as TensorFlow's `AllocatorStats`, which calls
/// `bytes_reserved` `pool_bytes`.
// Fields that each event updates are not adjacent: compilers pair adjacent stores, and a load of another pair would stall.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Allocations since the start or the last reset.
    pub num_allocs: u64,
    /// Regions held from the source.
    pub regions: u64,
    /// Live allocations.
    pub live_allocs: u64,
    /// The most bytes that the pool may reserve; `None` if unlimited.
    pub bytes_limit: Option<u64>,
    /// Bytes of live blocks.
    pub bytes_in_use: u64,
    /// The highest `bytes_in_use` since the start or the last reset.
    pub peak_bytes_in_use: u64,
    /// Requested bytes of the live blocks. The rest of `bytes_in_use` is rounding.
    pub bytes_requested: u64,
    /// `bytes_requested` when `bytes_in_use` reached its peak. Excludes allocations from thread caches.
    pub peak_bytes_requested: u64,
    /// The largest block since the start or the last reset.
    pub largest_alloc_bytes: u64,
    /// Bytes that the pool holds from its source, used or not.
    pub bytes_reserved: u64,
    /// The highest `bytes_reserved`.
    pub peak_bytes_reserved: u64,
    /// The largest block that can be allocated without growing.
    pub largest_free_block_bytes: u64,
    /// The tag of the request that raised `bytes_in_use` to its peak; the default tag if a reset made it unknown.
    pub peak_tag: Tag,
    /// The figures of waiting requests.
    pub retry: RetryStats,
}

/// The figures of requests that wait for frees.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RetryStats {
    /// Requests that had to wait.
    pub waits: u64,
    /// Requests that wait now.
    pub waiting: u64,
    /// The total time of all finished waits.
    pub waited: Duration,
    /// Waits that ended without memory.
    pub timeouts: u64,
    /// Times that a waiting request was woken to retry.
    pub wakeups: u64,
}

impl Stats {
    /// Returns the reserved bytes outside of live blocks.
    #[must_use]
    pub const fn free_bytes(&self) -> u64 {
        self.bytes_reserved.saturating_sub(self.bytes_in_use)
    }

    /// Returns the share of free bytes outside the largest free block. 0 if nothing is free, where upstream divides by
    /// zero.
    #[must_use]
    pub fn fragmentation(&self) -> f64 {
        let free = self.free_bytes();
        if free == 0 {
            return 0.0;
        }
        free.saturating_sub(self.largest_free_block_bytes) as f64 / free as f64
    }
}

impl fmt::Display for Stats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let limit = self.bytes_limit.map_or_else(|| "none".to_owned(), |bytes| Bytes(bytes).to_string());
        let rows = [
            ("limit", limit),
            ("reserved", Bytes(self.bytes_reserved).to_string()),
            ("in use", Bytes(self.bytes_in_use).to_string()),
            ("requested", Bytes(self.bytes_requested).to_string()),
            ("peak in use", Bytes(self.peak_bytes_in_use).to_string()),
            ("peak reserved", Bytes(self.peak_bytes_reserved).to_string()),
            ("largest free block", Bytes(self.largest_free_block_bytes).to_string()),
            ("largest allocation", Bytes(self.largest_alloc_bytes).to_string()),
            ("fragmentation", format!("{:.1} %", self.fragmentation() * 100.0)),
            ("allocations", self.num_allocs.to_string()),
            ("live allocations", self.live_allocs.to_string()),
        ];
        for (index, (name, value)) in rows.iter().enumerate() {
            if index > 0 {
                writeln!(f)?;
            }
            write!(f, "{name:<18}  {value:>12}")?;
        }
        if self.retry.waits > 0 {
            write!(f, "\n{:<18}  {:>12}", "waits for memory", self.retry.waits)?;
            write!(f, "\n{:<18}  {:>9} ms", "time waited", self.retry.waited.as_millis())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fragmentation_of_empty_and_full_pools_is_zero() {
        assert_eq!(Stats::default().fragmentation(), 0.0);
        let full = Stats { bytes_reserved: 512, bytes_in_use: 512, ..Stats::default() };
        assert_eq!(full.fragmentation(), 0.0);
    }

    #[test]
    fn fragmentation_is_the_share_outside_the_largest_free_block() {
        let stats = Stats {
            bytes_reserved: 1024,
            bytes_in_use: 0,
            largest_free_block_bytes: 256,
            ..Stats::default()
        };
        assert_eq!(stats.fragmentation(), 0.75);
    }
}

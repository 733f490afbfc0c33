//! The sizes of a buddy allocator, derived from the memory of a machine or device.
//!
//! Source: Paddle's `CpuMinChunkSize` and related functions.

use crate::base::units::{Bytes, KIB, MIB};

/// The smallest chunks.
const CPU_MIN_CHUNK: u64 = 4 * KIB;
const PINNED_MIN_CHUNK: u64 = 64 * KIB;
const GPU_MIN_CHUNK: u64 = 256;

/// The largest region of a host pool.
const CPU_REFILL: u64 = 500 * MIB;

/// The share of a device's memory in a region.
const GPU_FRACTION: f64 = 0.92;

/// The bytes that upstream adds to each request for the descriptor in front of it.
const PADDLE_DESCRIPTOR: u64 = 64;

/// The size of regions after the first.
#[derive(Clone, Copy, Debug, PartialEq)]
enum LaterRefill {
    Bytes(u64),
    /// A share of the remaining device memory.
    Share {
        available: u64,
        fraction: f64,
    },
}

/// The sizes of a [`Buddy`](super::Buddy) allocator.
///
/// ```
/// use bfc_core::{BuddyOptions, Bytes};
/// let options = BuddyOptions::gpu_refills(Bytes::mib(100), Bytes::mib(50));
/// assert_eq!((options.min_chunk(), options.max_chunk()), (Bytes(256), Bytes::mib(100)));
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BuddyOptions {
    min_chunk: u64,
    max_chunk: u64,
    first_refill: u64,
    later_refill: LaterRefill,
    overhead: u64,
}

impl Default for BuddyOptions {
    /// The same as [`BuddyOptions::cpu`] for a machine with at least 16 GiB.
    fn default() -> Self {
        Self::cpu(Bytes::gib(16))
    }
}

impl BuddyOptions {
    /// Rounds requests up to multiples of `min_chunk`. Requests above `max_chunk` get their own regions; shared regions
    /// have `max_chunk` bytes.
    ///
    /// # Errors
    /// Fails if `min_chunk` is not a power of two of at least 256 bytes, or `max_chunk` is smaller.
    pub const fn new(min_chunk: Bytes, max_chunk: Bytes) -> Result<Self, BuddyOptionsError> {
        let (min, max) = (min_chunk.0, max_chunk.0);
        if !min.is_power_of_two() || min < GPU_MIN_CHUNK {
            return Err(BuddyOptionsError::MinChunk { bytes: min });
        }
        if max < min {
            return Err(BuddyOptionsError::MaxChunk { min, max });
        }
        Ok(Self::sized(min, max))
    }

    /// As [`new`](Self::new), with `max_chunk` raised to `min_chunk`, which is a power of two.
    const fn sized(min_chunk: u64, max_chunk: u64) -> Self {
        let max_chunk = if max_chunk < min_chunk { min_chunk } else { max_chunk };
        let later_refill = LaterRefill::Bytes(max_chunk);
        Self { min_chunk, max_chunk, first_refill: max_chunk, later_refill, overhead: 0 }
    }

    /// Upstream's sizes for the memory of a machine with `physical` bytes: multiples of 4 KiB, and regions of a 32nd of
    /// the memory, at most 500 MiB.
    #[must_use]
    pub const fn cpu(physical: Bytes) -> Self {
        let share = physical.0 / 32;
        Self::sized(CPU_MIN_CHUNK, if share < CPU_REFILL { share } else { CPU_REFILL })
    }

    /// Upstream's sizes for page-locked memory of a machine with `physical` bytes, half of which may be locked:
    /// multiples of 64 KiB, and regions of a 256th of that half.
    #[must_use]
    pub const fn pinned(physical: Bytes) -> Self {
        Self::sized(PINNED_MIN_CHUNK, physical.0 / 2 / 256)
    }

    /// Upstream's sizes for a device with `available` free bytes: multiples of 256 bytes. The first region is 92 % of
    /// 95 % of the free bytes, each later one the same share of the rest.
    #[must_use]
    pub fn gpu(available: Bytes) -> Self {
        Self::gpu_share(available.0, GPU_FRACTION)
    }

    /// As [`gpu`](Self::gpu) with another share than 92 %.
    ///
    /// # Errors
    /// Fails if the fraction is not above 0 and at most 1.
    pub fn gpu_fraction(available: Bytes, fraction: f64) -> Result<Self, BuddyOptionsError> {
        if fraction > 0.0 && fraction <= 1.0 {
            Ok(Self::gpu_share(available.0, fraction))
        } else {
            Err(BuddyOptionsError::Fraction { fraction })
        }
    }

    fn gpu_share(available: u64, fraction: f64) -> Self {
        let later_refill = LaterRefill::Share { available, fraction };
        Self { later_refill, ..Self::sized(GPU_MIN_CHUNK, share_of(available, fraction)) }
    }

    /// Upstream's sizes for a device with given first and later regions. The larger one is the largest chunk.
    #[must_use]
    pub const fn gpu_refills(first: Bytes, later: Bytes) -> Self {
        let max = if first.0 > later.0 { first.0 } else { later.0 };
        let mut options = Self::sized(GPU_MIN_CHUNK, max);
        options.first_refill = first.0;
        options.later_refill = LaterRefill::Bytes(later.0);
        options
    }

    /// Adds `padding` more bytes to every request before it is rounded up.
    #[must_use]
    pub const fn with_padding(mut self, padding: Bytes) -> Self {
        self.overhead = self.overhead.saturating_add(padding.0);
        self
    }

    /// Adds the 64 bytes of upstream's descriptors to every request, so that all sizes equal upstream's. The default
    /// adds none, because descriptors here take no pool memory. In both cases a block starts where its chunk does;
    /// upstream's starts 64 bytes later.
    #[must_use]
    pub const fn with_paddle_sizes(self) -> Self {
        self.with_padding(Bytes(PADDLE_DESCRIPTOR))
    }

    /// Returns the multiple to which requests are rounded up.
    #[must_use]
    pub const fn min_chunk(&self) -> Bytes {
        Bytes(self.min_chunk)
    }

    /// Returns the largest rounded request in a shared region.
    #[must_use]
    pub const fn max_chunk(&self) -> Bytes {
        Bytes(self.max_chunk)
    }

    /// Returns the bytes added to each request. A rest of at most this size does not become a separate chunk.
    pub(super) const fn overhead(&self) -> u64 {
        self.overhead
    }

    /// Returns the region to request when `rounded` bytes fit nowhere in `reserved` bytes, of which `huge` bytes are
    /// own regions.
    pub(super) fn refill(&self, rounded: u64, reserved: u64, huge: u64) -> u64 {
        if rounded > self.max_chunk {
            return rounded;
        }
        let usual = match self.later_refill {
            _ if reserved == huge => self.first_refill,
            LaterRefill::Bytes(bytes) => bytes,
            LaterRefill::Share { available, fraction } => {
                share_of(available.saturating_sub(reserved), fraction).min(self.max_chunk)
            }
        };
        usual.max(rounded)
    }
}

/// Returns `fraction` of the usable part of `available` bytes: a twentieth is left to others, and less than a chunk
/// counts as nothing.
fn share_of(available: u64, fraction: f64) -> u64 {
    let allocatable = available - available / 20;
    if allocatable < GPU_MIN_CHUNK { 0 } else { (allocatable as f64 * fraction) as u64 }
}

/// Invalid sizes of a buddy allocator.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum BuddyOptionsError {
    /// An invalid smallest chunk.
    #[error("a smallest chunk of {bytes} bytes: expected a power of two of at least 256")]
    MinChunk {
        /// The invalid size.
        bytes: u64,
    },
    /// An invalid largest chunk.
    #[error("a largest chunk of {max} bytes: expected at least the smallest chunk's {min}")]
    MaxChunk {
        /// The smallest chunk.
        min: u64,
        /// The invalid size.
        max: u64,
    },
    /// An invalid share of a device's memory.
    #[error("{fraction} is not a share of a device's memory: expected a number above 0 and at most 1")]
    Fraction {
        /// The invalid fraction.
        fraction: f64,
    },
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::units::GIB;

    #[test]
    fn the_sizes_of_each_kind_of_memory_are_upstreams() {
        let sizes = |options: BuddyOptions| (options.min_chunk().0, options.max_chunk().0);
        assert_eq!(sizes(BuddyOptions::cpu(Bytes::gib(8))), (4 * KIB, 256 * MIB));
        assert_eq!(sizes(BuddyOptions::cpu(Bytes::gib(64))), (4 * KIB, 500 * MIB));
        assert_eq!(sizes(BuddyOptions::default()), (4 * KIB, 500 * MIB));
        assert_eq!(sizes(BuddyOptions::pinned(Bytes::gib(64))), (64 * KIB, 128 * MIB));
        let allocatable = 80 * GIB - 4 * GIB;
        assert_eq!(sizes(BuddyOptions::gpu(Bytes::gib(80))), (256, (allocatable as f64 * 0.92) as u64));
    }

    #[test]
    fn refill_sizes_follow_the_options_and_the_request() {
        let options = BuddyOptions::gpu_refills(Bytes::mib(5), Bytes::mib(10));
        assert_eq!(options.refill(256, 0, 0), 5 * MIB);
        assert_eq!(options.refill(6 * MIB, 0, 0), 6 * MIB);
        assert_eq!(options.refill(256, 5 * MIB, 0), 10 * MIB);
        assert_eq!(options.refill(10 * MIB, 5 * MIB, 0), 10 * MIB);
        assert_eq!(options.refill(11 * MIB, 5 * MIB, 0), 11 * MIB);
        assert_eq!(options.refill(256, 20 * MIB, 20 * MIB), 5 * MIB, "huge regions are not the pool's");
    }

    #[test]
    fn a_share_is_of_what_is_left() {
        let options = BuddyOptions::gpu_fraction(Bytes(1000 * MIB), 0.6).unwrap();
        assert_eq!(options.max_chunk(), Bytes(570 * MIB));
        assert_eq!(options.refill(256, 0, 0), 570 * MIB);
        assert_eq!(options.refill(256, 600 * MIB, 0), 228 * MIB);
        assert_eq!(options.refill(512, 1000 * MIB, 0), 512);
        assert_eq!(options.refill(512, u64::MAX, 0), 512);
    }

    #[test]
    fn impossible_sizes_are_refused() {
        for min in [0, 1, 128, 257, 4095, u64::MAX] {
            let error = BuddyOptionsError::MinChunk { bytes: min };
            assert_eq!(BuddyOptions::new(Bytes(min), Bytes(u64::MAX)), Err(error));
        }
        let error = BuddyOptionsError::MaxChunk { min: 512, max: 511 };
        assert_eq!(BuddyOptions::new(Bytes(512), Bytes(511)), Err(error));
        for fraction in [0.0, -0.1, 1.01, f64::NAN, f64::INFINITY] {
            assert!(BuddyOptions::gpu_fraction(Bytes::gib(1), fraction).is_err(), "{fraction}");
        }
        for bytes in [0, 1, 255, 300, u64::MAX] {
            let bytes = Bytes(bytes);
            for options in [BuddyOptions::cpu(bytes), BuddyOptions::pinned(bytes), BuddyOptions::gpu(bytes)] {
                assert!(options.max_chunk() >= options.min_chunk());
                assert!(options.refill(options.min_chunk, 0, 0) >= options.min_chunk);
            }
        }
    }
}

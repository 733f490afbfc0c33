//! The sizes of an auto-growth allocator.

use crate::base::units::{Bytes, KIB, round_up};

/// The options of an [`AutoGrowth`](super::AutoGrowth) allocator.
///
/// ```
/// use bfc_core::{AutoGrowthOptions, Bytes};
/// let options = AutoGrowthOptions::gpu().with_chunk_size(Bytes::mib(64));
/// assert_eq!(options.alignment(), Bytes(256));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AutoGrowthOptions {
    alignment: u64,
    chunk_size: u64,
    padding: u64,
    pub(super) free_idle_chunks: bool,
    pub(super) free_before_growth: bool,
}

/// An invalid alignment: not a power of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an alignment of {bytes} bytes: expected a power of two")]
#[non_exhaustive]
pub struct AutoGrowthOptionsError {
    /// The invalid alignment.
    pub bytes: u64,
}

impl Default for AutoGrowthOptions {
    /// The same as [`AutoGrowthOptions::gpu`].
    fn default() -> Self {
        Self::gpu()
    }
}

impl AutoGrowthOptions {
    /// Rounds requests up to multiples of `alignment`; each region has the size of its request. Addresses are multiples
    /// of `alignment` if those of the regions are. A request states further alignment itself.
    ///
    /// # Errors
    /// Fails if the alignment is not a power of two.
    pub const fn new(alignment: Bytes) -> Result<Self, AutoGrowthOptionsError> {
        if alignment.0.is_power_of_two() {
            Ok(Self::aligned(alignment.0))
        } else {
            Err(AutoGrowthOptionsError { bytes: alignment.0 })
        }
    }

    const fn aligned(alignment: u64) -> Self {
        Self { alignment, chunk_size: 0, padding: 0, free_idle_chunks: false, free_before_growth: false }
    }

    /// Options for device memory: multiples of 256 bytes, the smallest chunk of [`BuddyOptions`](crate::BuddyOptions)
    /// for devices.
    #[must_use]
    pub const fn gpu() -> Self {
        Self::aligned(256)
    }

    /// Options for host memory: multiples of 4 KiB.
    #[must_use]
    pub const fn cpu() -> Self {
        Self::aligned(4 * KIB)
    }

    /// Options for page-locked memory: multiples of 64 KiB.
    #[must_use]
    pub const fn pinned() -> Self {
        Self::aligned(64 * KIB)
    }

    /// Sets the minimum size of a region, rounded up to the alignment.
    #[must_use]
    pub const fn with_chunk_size(mut self, bytes: Bytes) -> Self {
        self.chunk_size = match round_up(bytes.0, self.alignment) {
            Some(bytes) => bytes,
            None => bytes.0,
        };
        self
    }

    /// Adds `padding` bytes to every request before it is rounded up.
    #[must_use]
    pub const fn with_padding(mut self, padding: Bytes) -> Self {
        self.padding = padding.0;
        self
    }

    /// Sets whether idle regions return to the source at every free.
    #[must_use]
    pub const fn with_free_idle_chunks(mut self, free: bool) -> Self {
        self.free_idle_chunks = free;
        self
    }

    /// Sets whether idle regions return to the source before each growth. This reserves less and makes more calls.
    #[must_use]
    pub const fn with_free_before_growth(mut self, free: bool) -> Self {
        self.free_before_growth = free;
        self
    }

    /// Returns the multiple to which requests are rounded up.
    #[must_use]
    pub const fn alignment(&self) -> Bytes {
        Bytes(self.alignment)
    }

    /// Returns the minimum size of a region.
    #[must_use]
    pub const fn chunk_size(&self) -> Bytes {
        Bytes(self.chunk_size)
    }

    /// Returns the bytes added to each request.
    pub(super) const fn padding(&self) -> u64 {
        self.padding
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunk_sizes_are_multiples_of_power_of_two_alignments() {
        for bytes in [0, 3, 257, u64::MAX] {
            assert_eq!(AutoGrowthOptions::new(Bytes(bytes)), Err(AutoGrowthOptionsError { bytes }));
        }
        let chunk = |bytes| AutoGrowthOptions::cpu().with_chunk_size(Bytes(bytes)).chunk_size().0;
        assert_eq!([0, 1, 4096, 4097, u64::MAX].map(chunk), [0, 4096, 4096, 8192, u64::MAX]);
        let alignments = [AutoGrowthOptions::gpu(), AutoGrowthOptions::cpu(), AutoGrowthOptions::pinned()];
        assert_eq!(alignments.map(|options| options.alignment().0), [256, 4 * KIB, 64 * KIB]);
        assert_eq!(AutoGrowthOptions::default(), AutoGrowthOptions::new(Bytes(256)).unwrap());
    }
}

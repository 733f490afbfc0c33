//! The rule for limits: a pool reserves whole regions of its source, and never more bytes than its limit.
//!
//! A source with a [granularity](SubAllocator::granularity) delivers multiples of it, so the limit is rounded down. The
//! pool returns a region that exceeds the limit, which only a source without a stated granularity delivers.

use std::sync::Arc;

use crate::base::units::Bytes;
use crate::source::error::SourceError;
use crate::source::sub_allocator::SubAllocator;

/// A limit in whole regions of a source.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RegionLimit {
    /// The most bytes to reserve.
    pub(crate) bytes: u64,
    /// The limit before rounding, as in figures.
    pub(crate) configured: u64,
    granularity: u64,
}

impl RegionLimit {
    pub(crate) fn new(limit: Bytes, source: &dyn SubAllocator) -> Self {
        let granularity = source.granularity().max(1);
        Self { bytes: limit.0 - limit.0 % granularity, configured: limit.0, granularity }
    }

    /// Returns the origin of the limit for out-of-memory reports, with a note on the rounding.
    pub(crate) fn origin(&self, configured: Option<&Arc<str>>) -> Option<Arc<str>> {
        if self.bytes == self.configured {
            return configured.cloned();
        }
        let configured = configured.map_or_else(|| Bytes(self.configured).to_string(), ToString::to_string);
        Some(format!("{configured}, in whole regions of {}", Bytes(self.granularity)).into())
    }

    /// Returns the error of a limit below one region, if rounding has left nothing.
    pub(crate) fn too_small(&self) -> Option<SourceError> {
        if self.bytes == 0 && self.configured > 0 { self.check(1).err() } else { None }
    }

    /// Fails if the limit is below one region of the source, or below `smallest` bytes.
    pub(crate) fn check(&self, smallest: u64) -> Result<(), SourceError> {
        let (limit, region) = (self.configured, self.granularity.max(smallest));
        if limit < region { Err(SourceError::LimitTooSmall { limit, region }) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::units::MIB;
    use crate::sim::SimDevice;
    use crate::source::address_only::AddressOnlyMemory;
    use crate::source::virtual_memory::VirtualMemory;

    #[test]
    fn a_limit_is_rounded_down_to_whole_regions_and_says_so() {
        let memory = VirtualMemory::new(Arc::new(SimDevice::new(Bytes::mib(8)))).unwrap();
        let limit = |bytes, origin: Option<&str>| {
            let limit = RegionLimit::new(Bytes(bytes), &memory);
            (limit.bytes, limit.origin(origin.map(Arc::from).as_ref()).as_deref().map(str::to_owned))
        };
        assert_eq!(limit(4 * MIB, None), (4 * MIB, None));
        let rounded = "3.00 MiB, in whole regions of 2.00 MiB";
        assert_eq!(limit(3 * MIB, None), (2 * MIB, Some(rounded.to_owned())));
        let rounded = "half, in whole regions of 2.00 MiB";
        assert_eq!(limit(5 * MIB + 1, Some("half")), (4 * MIB, Some(rounded.to_owned())));
        let exact = RegionLimit::new(Bytes(1001), &AddressOnlyMemory::new());
        assert_eq!((exact.bytes, exact.origin(None)), (1001, None));
    }

    #[test]
    fn a_limit_below_one_region_is_an_error_with_both_sizes() {
        let memory = VirtualMemory::new(Arc::new(SimDevice::new(Bytes::mib(8)))).unwrap();
        let error = RegionLimit::new(Bytes(2 * MIB - 1), &memory).check(256).unwrap_err();
        assert_eq!(error, SourceError::LimitTooSmall { limit: 2 * MIB - 1, region: 2 * MIB });
        assert_eq!(
            error.to_string(),
            "the limit of 2097151 bytes is below one region of 2097152 bytes: set a limit of at least 2.00 MiB"
        );
        assert_eq!(RegionLimit::new(Bytes::mib(2), &memory).check(256), Ok(()));
        let bare = |limit| RegionLimit::new(Bytes(limit), &AddressOnlyMemory::new());
        assert_eq!(bare(255).check(256), Err(SourceError::LimitTooSmall { limit: 255, region: 256 }));
        assert_eq!((bare(255).too_small(), bare(0).too_small()), (None, None));
    }
}

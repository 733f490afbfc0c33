//! The sets of pools: for each stream one for small blocks and one for large ones.

use std::collections::BTreeMap;

use super::options::PytorchOptions;
use crate::base::units::MIB;
use crate::policy::chunk_table::ChunkTable;

/// The largest rounded request in a small set.
pub(super) const MAX_SMALL: u64 = MIB;

/// The set of regions that were added without a request.
pub(super) const ANY_SET: u16 = 0;

/// The numbers of the sets in the table of chunks: small sets are odd, and the large set of a stream follows its small
/// one.
#[derive(Clone, Debug, Default)]
pub(super) struct Sets {
    /// The small set of each stream.
    by_stream: BTreeMap<u32, u16>,
}

impl Sets {
    /// Returns the set of a rounded request, and adds the sets of a new stream. `None` if no numbers are left.
    #[inline]
    pub(super) fn of(
        &mut self,
        stream: u32,
        rounded: u64,
        options: &PytorchOptions,
        chunks: &mut ChunkTable,
    ) -> Option<u16> {
        if let Some(set) = self.known(stream, rounded) {
            return Some(set);
        }
        let small = chunks.add_set(options.shared_region(true))?;
        chunks.add_set(options.shared_region(false))?;
        self.by_stream.insert(stream, small);
        self.known(stream, rounded)
    }

    /// Returns the set of a rounded request, if the stream has sets.
    #[inline]
    pub(super) fn known(&self, stream: u32, rounded: u64) -> Option<u16> {
        self.by_stream.get(&stream).map(|small| small + u16::from(rounded > MAX_SMALL))
    }

    /// Whether a set holds small blocks.
    pub(super) const fn is_small(set: u16) -> bool {
        set % 2 == 1
    }
}

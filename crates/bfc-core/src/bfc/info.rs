//! What a pool says of its inside: its chunks in the order of their addresses, and its bins.

use super::arena::Arena;
use super::bins::{BIN_COUNT, bin_floor, bin_of};
use super::chunk::{Chunk, ChunkId};
use super::region::AllocationRegion;
use crate::ledger::Tag;

/// One chunk of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ChunkInfo {
    /// Which region it lies in, counted in the order of addresses.
    pub region: usize,
    /// Where it starts.
    pub address: u64,
    /// How long it is, in bytes.
    pub bytes: u64,
    /// Bytes asked for; 0 while free.
    pub requested: u64,
    /// The allocation that holds it; 0 while free.
    pub id: u64,
    /// What it is charged to; the default while free.
    pub tag: Tag,
    /// The timing counter when it was freed; 0 if anyone may use its memory, and while in use.
    pub freed_at: u64,
    /// The bin of its size.
    pub bin: usize,
}

impl ChunkInfo {
    /// Whether an allocation holds it.
    #[must_use]
    pub const fn in_use(&self) -> bool {
        self.id != 0
    }
}

/// One size class of a pool, over all chunks, in use and free: upstream's `get_bin_debug_info`. All sizes in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct BinInfo {
    /// The smallest size of the class.
    pub lower_bound: u64,
    /// Bytes of all chunks of the class.
    pub bytes: u64,
    /// Bytes of those in use.
    pub bytes_in_use: u64,
    /// Bytes asked for by those in use.
    pub requested_in_use: u64,
    /// How many chunks there are of the class.
    pub chunks: u64,
    /// How many of them are in use.
    pub chunks_in_use: u64,
}

impl Arena {
    /// The chunks of a region in the order of their addresses.
    pub(super) fn chunks_of<'a>(
        &'a self,
        region: &AllocationRegion,
    ) -> impl Iterator<Item = (ChunkId, &'a Chunk)> + 'a {
        let some = |id: ChunkId| (!id.is_none()).then_some(id);
        let ids = std::iter::successors(some(region.first), move |id| some(self.chunk(*id).next));
        ids.map(|id| (id, self.chunk(id)))
    }

    /// All chunks by region and address.
    pub(crate) fn chunk_infos(&self) -> impl Iterator<Item = ChunkInfo> + '_ {
        self.regions.as_slice().iter().enumerate().flat_map(|(region, at)| {
            self.chunks_of(at).map(move |(_, chunk)| ChunkInfo {
                region,
                address: chunk.address,
                bytes: chunk.bytes,
                requested: chunk.requested,
                id: chunk.allocation,
                tag: chunk.tag,
                freed_at: chunk.freed_at,
                bin: bin_of(chunk.bytes),
            })
        })
    }

    /// The size classes, from the smallest up.
    pub(crate) fn bin_infos(&self) -> [BinInfo; BIN_COUNT] {
        let mut bins = [BinInfo::default(); BIN_COUNT];
        for (index, bin) in bins.iter_mut().enumerate() {
            bin.lower_bound = bin_floor(index);
        }
        for (_, chunk) in self.chunks.iter() {
            let bin = &mut bins[bin_of(chunk.bytes)];
            bin.chunks += 1;
            bin.bytes += chunk.bytes;
            if !chunk.is_free() {
                bin.chunks_in_use += 1;
                bin.bytes_in_use += chunk.bytes;
                bin.requested_in_use += chunk.requested;
            }
        }
        bins
    }
}

//! The contents of a pool: its chunks in order of address, and its bins.

use crate::accounting::accounts::Accounts;
use crate::base::ledger::Tag;
use crate::policy::Policy;
use crate::policy::bfc::{BIN_COUNT, bin_floor, bin_of};

/// One chunk of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ChunkInfo {
    /// The index of its region, in order of address.
    pub region: usize,
    /// Its address.
    pub address: u64,
    /// Its size in bytes.
    pub bytes: u64,
    /// The requested bytes; 0 while free.
    pub requested: u64,
    /// The number of its allocation; 0 while free.
    pub id: u64,
    /// The owner and category to charge; the default while free.
    pub tag: Tag,
    /// The count of its free while it is [pending](Self::is_pending); 0 if the memory is reusable or in use.
    pub freed_at: u64,
    /// The bin of its size.
    pub bin: usize,
}

impl ChunkInfo {
    /// Whether the chunk is in use.
    #[inline]
    #[must_use]
    pub const fn in_use(&self) -> bool {
        self.id != 0
    }

    /// Whether the chunk is free, but not yet reusable by every request.
    #[inline]
    #[must_use]
    pub const fn is_pending(&self) -> bool {
        self.freed_at > 0
    }
}

/// One size class of a pool, over all chunks: upstream's `get_bin_debug_info`. All sizes are in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct BinInfo {
    /// The smallest size of the class.
    pub lower_bound: u64,
    /// Bytes of all chunks of the class.
    pub bytes: u64,
    /// Bytes of the chunks in use.
    pub bytes_in_use: u64,
    /// Requested bytes of the chunks in use.
    pub requested_in_use: u64,
    /// The number of chunks.
    pub chunks: u64,
    /// The number of chunks in use.
    pub chunks_in_use: u64,
}

/// Lists the chunks of a policy, with their accounts.
pub(super) fn chunk_infos(policy: &dyn Policy, accounts: &Accounts) -> Vec<ChunkInfo> {
    // Reserve space for a free chunk per live one, plus one for each of a few regions.
    let mut chunks = Vec::with_capacity(2 * accounts.figures.live_allocs as usize + 4);
    policy.visit(&mut |piece| {
        let account = piece.slot.and_then(|slot| accounts.by_slot.get(slot as usize)).copied();
        let account = account.unwrap_or_default();
        chunks.push(ChunkInfo {
            region: piece.region,
            address: piece.span.address,
            bytes: piece.span.bytes,
            requested: account.requested,
            id: account.allocation,
            tag: account.tag,
            freed_at: piece.freed_at,
            bin: bin_of(piece.span.bytes),
        });
    });
    chunks
}

/// Computes the size classes of these chunks, in ascending order.
pub(super) fn bin_infos(chunks: &[ChunkInfo]) -> [BinInfo; BIN_COUNT] {
    let mut bins = [BinInfo::default(); BIN_COUNT];
    for (index, bin) in bins.iter_mut().enumerate() {
        bin.lower_bound = bin_floor(index);
    }
    for chunk in chunks {
        let bin = &mut bins[chunk.bin];
        bin.chunks += 1;
        bin.bytes += chunk.bytes;
        if chunk.in_use() {
            bin.chunks_in_use += 1;
            bin.bytes_in_use += chunk.bytes;
            bin.requested_in_use += chunk.requested;
        }
    }
    bins
}

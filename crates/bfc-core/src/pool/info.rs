//! What a pool says of its inside: its chunks in the order of their addresses, and its bins.

use crate::accounting::accounts::Accounts;
use crate::base::ledger::Tag;
use crate::policy::Policy;
use crate::policy::bfc::{BIN_COUNT, bin_floor, bin_of};

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
    #[inline]
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

/// The chunks of a policy, with their accounts.
pub(super) fn chunk_infos(policy: &dyn Policy, accounts: &Accounts) -> Vec<ChunkInfo> {
    // A free chunk for each live one, and one more for each of a few regions.
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

/// The size classes of these chunks, from the smallest up.
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

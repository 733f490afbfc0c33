//! The invariants of a pool between calls, and their checker.

use std::collections::HashSet;

use super::cache::is_of_cache;
use super::info::{ChunkInfo, chunk_infos};
use crate::accounting::accounts::Accounts;
use crate::base::ledger::{Category, Tag};
use crate::base::placement::Inconsistent;
use crate::policy::Policy;

/// The rules that hold for every pool between calls.
const RULES: &[&str] = &[
    "the chunks of each region lie in it, in order, without gap or overlap",
    "a live block has a unique issued number, and between one and all of its bytes are requested; a slot without a \
     live block has no account",
    "the figures for bytes in use, bytes requested and live allocations are the sums over the live blocks",
    "the ledger holds, by owner and by category, exactly the bytes of the live blocks",
    "the bytes reserved are the sum over the regions",
    "no peak is below its figure, and the largest allocation is within the peak of the bytes in use",
    "the index by address, once made, holds exactly the live blocks",
    "the pool reserves at most its limit",
    "the blocks of a cache are live in the policy and in no other account; each is in use or free once, by its size",
];

/// Fails unless `holds`. Formats the detail only on failure.
#[inline]
pub(super) fn ensure(rule: usize, holds: bool, detail: impl FnOnce() -> String) -> Result<(), Inconsistent> {
    Inconsistent::unless(holds, "pool", RULES[rule], detail)
}

/// Checks every rule but the last on accounts that include those of the caches. `cached` are the slots that caches keep
/// free; `limit` is the most that the pool may reserve.
pub(super) fn check(
    policy: &dyn Policy,
    accounts: &Accounts,
    cached: &HashSet<u32>,
    limit: u64,
) -> Result<(), Inconsistent> {
    policy.check()?;
    let chunks = chunk_infos(policy, accounts);
    check_cover(policy, &chunks)?;
    check_accounts(policy, accounts, cached, &chunks)?;
    check_figures(policy, accounts, &chunks)?;
    check_ledger(accounts, &chunks)?;
    check_index(accounts, &chunks)?;
    let reserved = policy.status().reserved_bytes;
    ensure(7, reserved <= limit, || format!("{reserved} bytes of {limit}"))
}

fn check_cover(policy: &dyn Policy, chunks: &[ChunkInfo]) -> Result<(), Inconsistent> {
    let regions = policy.regions();
    let mut left = chunks.iter().peekable();
    for (index, region) in regions.iter().enumerate() {
        let mut at = region.address;
        while let Some(chunk) = left.next_if(|chunk| chunk.region == index) {
            ensure(0, chunk.address == at, || {
                format!("a chunk starts at {:#x}, not {at:#x}", chunk.address)
            })?;
            at = at.saturating_add(chunk.bytes);
        }
        // A tail shorter than a granule stays unused.
        let end = region.end().unwrap_or(u64::MAX);
        let covered = at <= end && end - at < crate::policy::GRANULE;
        ensure(0, covered, || format!("the chunks of a region end at {at:#x}, not {end:#x}"))?;
    }
    ensure(0, left.next().is_none(), || "a chunk lies in no region".to_owned())?;
    let sum: u64 = regions.iter().map(|region| region.bytes).sum();
    let reserved = policy.status().reserved_bytes;
    ensure(4, sum == reserved, || format!("regions hold {sum} bytes, {reserved} are accounted for"))
}

/// Checks the accounts by slot.
fn check_accounts(
    policy: &dyn Policy,
    accounts: &Accounts,
    cached: &HashSet<u32>,
    chunks: &[ChunkInfo],
) -> Result<(), Inconsistent> {
    let mut holds_block = vec![false; accounts.by_slot.len()];
    let (mut live, mut distinct) = (0, true);
    policy.visit(&mut |piece| {
        let Some(slot) = piece.slot.filter(|slot| !cached.contains(slot)) else { return };
        live += 1;
        let held = holds_block.get_mut(slot as usize);
        distinct &= held.is_some_and(|held| !std::mem::replace(held, true));
    });
    ensure(1, distinct, || "two live blocks have one slot, or one has no account".to_owned())?;
    let mut numbers = Vec::with_capacity(live);
    for (slot, (account, &holds_block)) in accounts.by_slot.iter().zip(&holds_block).enumerate() {
        let sound = if holds_block {
            numbers.push(account.allocation);
            (accounts.has_issued(account.allocation) || is_of_cache(account.allocation))
                && account.requested > 0
        } else {
            account.allocation == 0 && account.requested == 0 && account.tag == Tag::default()
        };
        ensure(1, sound, || format!("slot {slot}: {account:?}"))?;
    }
    numbers.sort_unstable();
    let twice = numbers.windows(2).find(|pair| pair[0] == pair[1]);
    ensure(1, twice.is_none(), || format!("two live blocks have one number: {twice:?}"))?;
    let accounted = numbers.len();
    ensure(1, live == accounted, || format!("{live} live blocks, {accounted} accounts"))?;
    for chunk in live_chunks(chunks) {
        ensure(1, chunk.requested <= chunk.bytes, || format!("{chunk:?}"))?;
    }
    Ok(())
}

/// Returns the chunks in use.
fn live_chunks(chunks: &[ChunkInfo]) -> impl Iterator<Item = &ChunkInfo> {
    chunks.iter().filter(|chunk| chunk.in_use())
}

fn check_figures(policy: &dyn Policy, accounts: &Accounts, chunks: &[ChunkInfo]) -> Result<(), Inconsistent> {
    let sums = live_chunks(chunks).fold((0, 0, 0_u64), |(bytes, requested, live), chunk| {
        (bytes + chunk.bytes, requested + chunk.requested, live + 1)
    });
    let figures = &accounts.figures;
    let said = (figures.bytes_in_use, figures.bytes_requested, figures.live_allocs);
    ensure(2, sums == said, || format!("chunks sum to {sums:?}, the figures say {said:?}"))?;
    let (reserved, said) = (policy.status().reserved_bytes, figures.bytes_reserved);
    ensure(4, reserved == said, || format!("{reserved} bytes reserved, the figures say {said}"))?;
    let peaks = figures.peak_bytes_in_use >= figures.bytes_in_use
        && figures.peak_bytes_requested <= figures.peak_bytes_in_use
        && figures.peak_bytes_reserved >= figures.bytes_reserved
        && figures.largest_alloc_bytes <= figures.peak_bytes_in_use;
    ensure(5, peaks, || format!("{figures:?}"))
}

fn check_ledger(accounts: &Accounts, chunks: &[ChunkInfo]) -> Result<(), Inconsistent> {
    // Sums by the owner's index.
    let mut owners: Vec<u64> = Vec::new();
    let mut categories = [0; Category::COUNT];
    for chunk in live_chunks(chunks) {
        let owner = chunk.tag.owner.index();
        owners.resize(owners.len().max(owner + 1), 0);
        owners[owner] += chunk.bytes;
        categories[chunk.tag.category.index()] += chunk.bytes;
    }
    for category in Category::ALL {
        let (held, booked) = (categories[category.index()], accounts.ledger.category(category));
        ensure(3, held == booked, || format!("{category:?} holds {held} bytes, the ledger says {booked}"))?;
    }
    for (owner, account) in accounts.ledger.owners() {
        let held = owners.get_mut(owner.index()).map_or(0, std::mem::take);
        ensure(3, held == account.own, || {
            format!("{owner} holds {held} bytes, the ledger says {}", account.own)
        })?;
    }
    let unknown = owners.iter().position(|&held| held > 0);
    ensure(3, unknown.is_none(), || format!("the ledger has no account for owner {unknown:?}"))
}

fn check_index(accounts: &Accounts, chunks: &[ChunkInfo]) -> Result<(), Inconsistent> {
    let Some(index) = &accounts.index else { return Ok(()) };
    for chunk in live_chunks(chunks) {
        let slot = index.get(&chunk.address).and_then(|&slot| accounts.by_slot.get(slot as usize));
        let found = slot.is_some_and(|account| account.allocation == chunk.id);
        ensure(6, found, || format!("allocation {} at {:#x} is not found", chunk.id, chunk.address))?;
    }
    let (indexed, live) = (index.len(), live_chunks(chunks).count());
    ensure(6, indexed == live, || format!("{indexed} blocks are indexed, {live} are live"))
}

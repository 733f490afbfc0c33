//! One attempt at a request, from the search to the out-of-memory report.

use std::time::Duration;

use super::super::arena::{Arena, Need};
use super::super::chunk::GRANULE;
use super::super::growth::available;
use super::{BfcAllocator, Shortfall, State};
use crate::allocator::Request;
use crate::error::{AllocError, SourceError};
use crate::memory::Block;
use crate::oom::{OomReport, Verdict};
use crate::owner::OwnerId;
use crate::retry::Refusal;
use crate::sync::lock;

/// How many holders an out-of-memory report names.
const HOLDERS: usize = 5;

impl BfcAllocator {
    /// The bytes asked for in whole granules, if the request can be met at all.
    #[inline]
    pub(super) fn rounded(&self, request: &Request<'_>) -> Result<u64, AllocError> {
        let (bytes, alignment) = (request.bytes, request.alignment);
        if !alignment.is_power_of_two() {
            return Err(AllocError::BadAlignment { allocator: self.name.clone(), alignment });
        }
        Need::rounded(bytes, alignment).ok_or_else(|| AllocError::TooLarge {
            allocator: self.name.clone(),
            bytes,
            alignment,
        })
    }

    /// Tries once. Only the `last` attempt works out who holds the memory.
    #[inline]
    pub(super) fn attempt(
        &self,
        request: &Request<'_>,
        rounded: u64,
        thread: u64,
        last: bool,
    ) -> Result<Block, Refusal> {
        let need = Need {
            requested: request.bytes,
            rounded,
            alignment: request.alignment.max(GRANULE),
            freed_before: request.attributes.freed_before.map(|count| count()),
            tag: request.tag,
        };
        let state = &mut *lock(&self.state);
        state.users.note(thread);
        state.arena.merge_ripe(self.frontier.get());
        match state.arena.allocate(&need) {
            Some(block) => Ok(block),
            None => {
                self.allocate_slowly(state, &need).map_err(|cause| self.refuse(state, &need, cause, last))
            }
        }
    }

    /// Makes room and tries again, in upstream's order: grow, join what the frontier has not passed, give back idle
    /// regions and grow in their place.
    #[cold]
    fn allocate_slowly(&self, state: &mut State, need: &Need) -> Result<Block, Shortfall> {
        let mut cause = match self.extend_and_allocate(state, need) {
            Ok(block) => return Ok(block),
            Err(cause) => cause,
        };
        if need.freed_before.is_none() && state.arena.merge_until_fit(need) {
            return state.arena.allocate(need).ok_or(cause);
        }
        if self.config.garbage_collection {
            let idle = state.arena.idle_bytes();
            let obtainable = available(self.config.limit, state.arena.reserved()).saturating_add(idle);
            if idle > 0 && need.rounded <= obtainable {
                self.release_idle(state);
                cause = match self.extend_and_allocate(state, need) {
                    Ok(block) => return Ok(block),
                    Err(cause) => cause,
                };
            }
        }
        Err(cause)
    }

    fn extend_and_allocate(&self, state: &mut State, need: &Need) -> Result<Block, Shortfall> {
        self.extend(state, need)?;
        state.arena.allocate(need).ok_or(Shortfall::Limit)
    }

    #[cold]
    fn refuse(&self, state: &State, need: &Need, cause: Shortfall, last: bool) -> Refusal {
        let wait = need.rounded <= self.config.limit && could_be_freed(state);
        let error = match cause {
            Shortfall::Source(error) if !matches!(error, SourceError::Exhausted { .. }) => {
                AllocError::Source { allocator: self.name.clone(), error }
            }
            cause => {
                let holders = if last || !wait { largest_holders(&state.arena) } else { Vec::new() };
                AllocError::OutOfMemory(Box::new(self.report(&state.arena, need, &cause, holders)))
            }
        };
        Refusal { error, wait }
    }

    fn report(
        &self,
        arena: &Arena,
        need: &Need,
        cause: &Shortfall,
        holders: Vec<(OwnerId, u64)>,
    ) -> OomReport {
        let stats = self.stats_of(arena);
        OomReport {
            allocator: self.name.clone(),
            tag: need.tag,
            requested: need.requested,
            rounded: need.rounded,
            alignment: need.alignment,
            limit: Some(self.config.limit),
            reserved: stats.bytes_reserved,
            in_use: stats.bytes_in_use,
            free: stats.free_bytes(),
            largest_free: stats.largest_free_block_bytes,
            verdict: self.verdict(arena, need, cause),
            holders,
            waited: Duration::ZERO,
        }
    }

    fn verdict(&self, arena: &Arena, need: &Need, cause: &Shortfall) -> Verdict {
        if need.rounded > self.config.limit {
            return Verdict::OverLimit;
        }
        let obtainable = match cause {
            Shortfall::Limit => available(self.config.limit, arena.reserved()),
            Shortfall::Source(_) => 0,
        };
        let within_reach = arena.free_bytes(need.freed_before).saturating_add(obtainable);
        if within_reach < need.rounded { Verdict::Exhausted } else { Verdict::Fragmented }
    }
}

/// Whether waiting can help: memory is live that another thread may free, or frees wait for the frontier.
fn could_be_freed(state: &State) -> bool {
    (state.users.several && state.arena.live_allocs() > 0) || state.arena.has_pending()
}

/// The owners that hold most themselves, in falling order of bytes.
fn largest_holders(arena: &Arena) -> Vec<(OwnerId, u64)> {
    let owners = arena.ledger().owners().map(|(owner, bytes)| (owner, bytes.own));
    let mut holders: Vec<(OwnerId, u64)> = owners.filter(|(_, own)| *own > 0).collect();
    holders.sort_by_key(|&(owner, own)| (std::cmp::Reverse(own), owner));
    holders.truncate(HOLDERS);
    holders
}

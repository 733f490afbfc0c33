//! What a pool could do with blocks that are not free yet.

use super::{PolicyAllocator, State};
use crate::allocator::Request;
use crate::memory::Block;
use crate::policy::Need;
use crate::pool::config::ConfiguredPolicy;
use crate::pool::growth::available;

impl<P: ConfiguredPolicy> PolicyAllocator<P> {
    /// Whether the request would find room once these blocks were free too: tried on a copy of the policy. Of regions that
    /// would become idle it is taken that others can be had in their place.
    pub(super) fn what_if_freed(&self, request: &Request<'_>, freed: &[Block]) -> Option<bool> {
        self.write(|state| self.would_fit_in(state, request, freed))
    }

    fn would_fit_in(&self, state: &State<P>, request: &Request<'_>, freed: &[Block]) -> bool {
        let Some(rounded) = state.policy.rounded(request.bytes, request.alignment) else { return false };
        let mut policy = self.copy_of(state);
        let idle = policy.idle_bytes();
        for block in freed.iter().filter(|block| state.live(block).is_ok()) {
            // A slot that holds no block frees nothing.
            let _ = policy.free(block.chunk, 0);
        }
        let need = Need {
            end: request.attributes.end,
            ..Need::new(request.bytes).with_alignment(request.alignment)
        };
        if policy.place(&need).is_some() {
            return true;
        }
        let room = available(self.config.limit, policy.reserved_bytes()).saturating_add(policy.idle_bytes());
        self.config.garbage_collection && policy.idle_bytes() > idle && rounded <= room
    }
}

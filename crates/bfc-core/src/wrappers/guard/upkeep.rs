//! Damage checks, and the treatment of damaged memory.

use std::sync::atomic::Ordering;

use super::pattern::{self, Difference, Pattern};
use super::quarantine::Freed;
use super::zones::Zones;
use super::{GuardAllocator, GuardedBlocks};
use crate::allocator::damage::{Damage, DamageKind};
use crate::base::ledger::Tag;
use crate::base::memory::Block;
use crate::base::sync::lock;

/// The most recorded findings; all are counted.
const MAX_FINDINGS: usize = 1000;

/// The figures of a guard: its memory and its findings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct GuardReport {
    /// Live blocks.
    pub live_blocks: u64,
    /// Bytes of the inner allocator around them: canaries and alignment.
    pub overhead_bytes: u64,
    /// Blocks in quarantine.
    pub quarantined_blocks: u64,
    /// Bytes of the inner allocator in quarantine.
    pub quarantined_bytes: u64,
    /// Freed damaged blocks, whose memory is never reused.
    pub condemned_blocks: u64,
    /// Bytes of the inner allocator in such blocks.
    pub condemned_bytes: u64,
    /// Damages found so far.
    pub found: u64,
}

/// The findings, and the damaged memory without an owner.
#[derive(Debug, Default)]
pub(super) struct Findings {
    first: Vec<Damage>,
    found: u64,
    condemned: Vec<Freed>,
}

impl Findings {
    /// The first findings, in order.
    pub(super) fn list(&self) -> Vec<Damage> {
        self.first.clone()
    }

    fn note(&mut self, damage: Damage) {
        self.found += 1;
        if self.first.len() < MAX_FINDINGS {
            self.first.push(damage);
        }
    }
}

impl GuardAllocator {
    /// Checks the canaries of every block and the poison of every quarantined block. Returns the findings that were not
    /// reported before; [`find_damage`](crate::PoolView::find_damage) returns all. Damaged quarantined memory is
    /// never reused.
    pub fn check_all(&self) -> Vec<Damage> {
        let found = {
            let state = &mut *lock(&self.state);
            let mut found = state.check_live();
            let mut damaged = |freed: &Freed| {
                let damage = freed.damage();
                found.extend(damage);
                damage.is_some()
            };
            let condemned = state.quarantine.extract(&mut damaged);
            state.findings.condemned.extend(condemned);
            found.iter().for_each(|damage| state.findings.note(*damage));
            found
        };
        self.tell(&found);
        found
    }

    /// Returns the current figures of the guard.
    #[must_use]
    pub fn report(&self) -> GuardReport {
        let GuardedBlocks { live, quarantine, findings, .. } = &*lock(&self.state);
        GuardReport {
            live_blocks: live.iter().count() as u64,
            overhead_bytes: live.iter().map(|(_, live)| live.zones.overhead()).sum(),
            quarantined_blocks: quarantine.len() as u64,
            quarantined_bytes: quarantine.bytes(),
            condemned_blocks: findings.condemned.len() as u64,
            condemned_bytes: findings.condemned.iter().map(|freed| freed.zones.inner.bytes).sum(),
            found: findings.found,
        }
    }

    /// Checks all quarantined blocks and returns them to the inner allocator. Returns how many.
    pub fn empty_quarantine(&self) -> usize {
        self.release(|state| state.quarantine.oldest())
    }

    /// Adds a block to the quarantine, and releases those beyond its capacity.
    pub(super) fn quarantine(&self, freed: Freed) {
        lock(&self.state).quarantine.admit(freed);
        if self.starving.load(Ordering::SeqCst) > 0 {
            self.empty_quarantine();
        } else {
            self.release(|state| state.quarantine.surplus());
        }
    }

    /// Keeps the memory of a freed damaged block.
    pub(super) fn condemn(&self, freed: Freed, damage: Damage, is_reported: bool) {
        {
            let findings = &mut lock(&self.state).findings;
            findings.condemned.push(freed);
            if !is_reported {
                findings.note(damage);
            }
        }
        if !is_reported {
            self.tell(&[damage]);
        }
    }

    /// Returns the blocks that `next` removes from the quarantine to the inner allocator. Returns how many.
    fn release(&self, next: impl Fn(&mut GuardedBlocks) -> Option<Freed>) -> usize {
        let mut count = 0;
        while let Some(freed) = { next(&mut lock(&self.state)) } {
            if let Some(damage) = freed.damage() {
                self.condemn(freed, damage, false);
                continue;
            }
            // SAFETY: the user has freed the block, and it has just left the quarantine.
            if unsafe { self.inner.deallocate(freed.zones.inner) }.is_err() {
                // Happens when its source calls back; a later free retries.
                lock(&self.state).quarantine.readmit(freed);
                break;
            }
            count += 1;
        }
        count
    }

    fn tell(&self, found: &[Damage]) {
        if let Some(listener) = &self.config.listener {
            found.iter().for_each(|damage| listener(damage));
        }
    }
}

impl GuardedBlocks {
    /// Returns the unreported damage around live blocks.
    fn check_live(&mut self) -> Vec<Damage> {
        let mut found = Vec::new();
        for (slot, live) in self.live.iter_mut().filter(|(_, live)| !live.is_reported) {
            let user = live.zones.user();
            let place = super::Placement { address: user.address, bytes: user.bytes, slot: slot as u32 };
            let block = self.accounts.block(place);
            let tag = self.accounts.live(&block).map_or_else(|_| Tag::default(), |account| account.tag);
            let damage = live.zones.damage_around(block, tag);
            live.is_reported = damage.is_some();
            found.extend(damage);
        }
        found
    }
}

impl Zones {
    /// Returns the damage to the canaries of `block` in these zones, preferring the one before the block.
    pub(super) fn damage_around(&self, block: Block, tag: Tag) -> Option<Damage> {
        let found = |zone, fault| {
            // SAFETY: the zones lie in a live inner block of the guard, which wrote its bytes outside of the user's.
            let difference = unsafe { pattern::difference(zone, Pattern::Canary) }?;
            Some(damage(block, tag, fault, difference))
        };
        found(self.before(), DamageKind::Underrun).or_else(|| found(self.after(), DamageKind::Overrun))
    }
}

impl Freed {
    /// Returns the damage to the poison in the block, or to the canaries around it.
    fn damage(&self) -> Option<Damage> {
        let zones = [
            (self.zones.before(), Pattern::Canary),
            (self.zones.user(), Pattern::Poison),
            (self.zones.after(), Pattern::Canary),
        ];
        let differences = zones.map(|(zone, pattern)| {
            // SAFETY: the block is free, so the guard owns the whole inner block and has written every byte.
            unsafe { pattern::difference(zone, pattern) }
        });
        let difference = differences.into_iter().fold(None, Difference::and)?;
        Some(damage(self.block, self.tag, DamageKind::UseAfterFree, difference))
    }
}

fn damage(block: Block, tag: Tag, fault: DamageKind, difference: Difference) -> Damage {
    let Difference { address, bytes, expected, found } = difference;
    // Both lie in one block of memory, which is always shorter than half the address space.
    let offset = address.wrapping_sub(block.address) as i64;
    Damage { block, tag, fault, offset, bytes, expected, found }
}

impl Drop for GuardAllocator {
    fn drop(&mut self) {
        self.check_all();
        let state = &mut *lock(&self.state);
        let quarantined = state.quarantine.extract(|_| true).into_iter().map(|freed| freed.zones);
        let condemned = state.findings.condemned.drain(..).map(|freed| freed.zones);
        let live = state.live.iter().map(|(_, live)| live.zones);
        for zones in quarantined.chain(condemned).chain(live) {
            // SAFETY: no block is valid longer than its allocator. No caller is left for an error.
            let _ = unsafe { self.inner.deallocate(zones.inner) };
        }
    }
}

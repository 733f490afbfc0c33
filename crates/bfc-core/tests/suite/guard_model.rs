//! Random sequences on a guarded pool, beside a shadow that knows which bytes were damaged.

use std::collections::BTreeMap;
use std::ptr::with_exposed_provenance_mut;
use std::sync::Arc;
use std::time::Duration;

use bfc_core::{
    AllocError, Allocator, BfcAllocator, BfcConfig, Block, BlockError, Bytes, Category, Damage, DamageKind,
    GuardAllocator, GuardConfig, HostMemory, OwnerId, PoolView, Request, Tag,
};
use proptest::collection::vec;
use proptest::prelude::*;

const LIMIT: Bytes = Bytes::kib(64);
const ZONE: i64 = 64;

#[derive(Clone, Debug)]
enum Op {
    Allocate {
        bytes: u64,
        alignment_log2: u8,
        owner: u8,
    },
    Free {
        pick: usize,
    },
    FreeTwice {
        pick: usize,
    },
    Retag {
        pick: usize,
        owner: u8,
    },
    /// Fills a live block, as a program would.
    Use {
        pick: usize,
    },
    /// Writes beside a live block.
    WriteBeside {
        pick: usize,
        distance: u8,
        after: bool,
    },
    /// Writes into or beside a freed block, if its memory is still in quarantine.
    WriteFreed {
        pick: usize,
        offset: i64,
    },
    Check,
    EmptyQuarantine,
    ClearStats,
}

fn op() -> impl Strategy<Value = Op> {
    let pick = any::<usize>;
    prop_oneof![
        12 => (prop_oneof![1..300_u64, 300..8000_u64, Just(0), Just(70_000)], 0..13_u8, any::<u8>())
            .prop_map(|(bytes, alignment_log2, owner)| Op::Allocate { bytes, alignment_log2, owner }),
        10 => pick().prop_map(|pick| Op::Free { pick }),
        1 => pick().prop_map(|pick| Op::FreeTwice { pick }),
        2 => (pick(), any::<u8>()).prop_map(|(pick, owner)| Op::Retag { pick, owner }),
        6 => pick().prop_map(|pick| Op::Use { pick }),
        2 => (pick(), 0..ZONE as u8, any::<bool>())
            .prop_map(|(pick, distance, after)| Op::WriteBeside { pick, distance, after }),
        2 => (pick(), -ZONE..300).prop_map(|(pick, offset)| Op::WriteFreed { pick, offset }),
        2 => Just(Op::Check),
        1 => Just(Op::EmptyQuarantine),
        1 => Just(Op::ClearStats),
    ]
}

/// A live block as the shadow sees it.
#[derive(Clone, Debug)]
struct Live {
    block: Block,
    tag: Tag,
    /// The changed bytes beside the block, by offset.
    changed: BTreeMap<i64, ()>,
    /// The guard has reported it.
    told: bool,
}

struct Model {
    pool: Arc<BfcAllocator>,
    guard: GuardAllocator,
    live: Vec<Live>,
    /// Freed blocks whose memory is still in quarantine.
    quarantine: Vec<Live>,
    /// Freed blocks that have left the quarantine.
    stale: Vec<Block>,
    found: u64,
    condemned: u64,
    quarantine_blocks: usize,
}

fn tag_of(owner: u8) -> Tag {
    let owner = owner % 5;
    let name = format!("guard-model-{owner}");
    Tag { owner: OwnerId::intern(OwnerId::ROOT, &name), category: Category::ALL[usize::from(owner)] }
}

/// Changes the byte `offset` bytes from the start of a block.
fn change(block: Block, offset: i64) {
    let address = block.address.wrapping_add_signed(offset);
    let pointer: *mut u8 = with_exposed_provenance_mut(address as usize);
    // SAFETY: the byte lies in a block of the pool that the guard holds, and the pool lives as long as the test.
    let value = unsafe { pointer.read() };
    // SAFETY: as above.
    unsafe { pointer.write(value ^ 0x55) };
}

impl Model {
    fn new(quarantine_blocks: usize) -> Self {
        let config = BfcConfig::new(LIMIT).with_retry_timeout(Duration::ZERO).with_first_region(Bytes(4096));
        let pool = Arc::new(BfcAllocator::new("cpu", Arc::new(HostMemory::new()), config));
        let config = GuardConfig::default().with_quarantine(Bytes::kib(64), quarantine_blocks);
        let guard = GuardAllocator::new(pool.clone(), config).unwrap();
        let (live, quarantine, stale) = (Vec::new(), Vec::new(), Vec::new());
        Self { pool, guard, live, quarantine, stale, found: 0, condemned: 0, quarantine_blocks }
    }

    fn step(&mut self, op: &Op) {
        match *op {
            Op::Allocate { bytes, alignment_log2, owner } => {
                self.allocate(bytes, 1 << alignment_log2, tag_of(owner))
            }
            Op::Free { pick } => self.free(pick),
            Op::FreeTwice { pick } => {
                let freed = self.stale.len() + self.quarantine.len();
                if let Some(index) = pick.checked_rem(freed) {
                    let quarantined = || self.quarantine[index - self.stale.len()].block;
                    let block = self.stale.get(index).copied().unwrap_or_else(quarantined);
                    // SAFETY: the block is not live, and the guard must report that.
                    assert_eq!(unsafe { self.guard.deallocate(block) }, Err(BlockError::Stale { block }));
                }
            }
            Op::Retag { pick, owner } => {
                if let Some(live) = pick_of(&mut self.live, pick) {
                    live.tag = tag_of(owner);
                    self.guard.retag(&live.block, live.tag).unwrap();
                }
            }
            Op::Use { pick } => {
                if let Some(live) = pick_of(&mut self.live, pick) {
                    (0..live.block.bytes as i64).for_each(|offset| change(live.block, offset));
                }
            }
            Op::WriteBeside { pick, distance, after } => {
                if let Some(live) = pick_of(&mut self.live, pick) {
                    let distance = i64::from(distance);
                    let offset = if after { live.block.bytes as i64 + distance } else { -1 - distance };
                    toggle(live, offset);
                }
            }
            Op::WriteFreed { pick, offset } => {
                if let Some(freed) = pick_of(&mut self.quarantine, pick) {
                    let offset = offset.min(freed.block.bytes as i64 + ZONE - 1);
                    toggle(freed, offset);
                }
            }
            Op::Check => self.check(),
            Op::EmptyQuarantine => {
                self.guard.empty_quarantine();
                self.leave(0);
            }
            Op::ClearStats => {
                assert!(self.guard.clear_stats());
                assert_eq!(self.guard.stats().peak_bytes_in_use, self.guard.stats().bytes_in_use);
            }
        }
        self.compare();
    }

    fn allocate(&mut self, bytes: u64, alignment: u64, tag: Tag) {
        let request = Request::new(bytes).with_alignment(alignment).with_tag(tag);
        match self.guard.allocate(&request) {
            Ok(block) if bytes == 0 => assert_eq!(block, Block::EMPTY),
            Ok(block) => {
                assert_eq!((block.bytes, block.address % alignment), (bytes, 0));
                // The guard shortens its quarantine from the oldest block on.
                self.leave(self.guard.report().quarantined_blocks as usize);
                let apart = |other: &Live| {
                    let (start, end) = (other.block.address, other.block.address + other.block.bytes);
                    end <= block.address || block.address + bytes <= start
                };
                assert!(self.live.iter().chain(&self.quarantine).all(apart));
                self.live.push(Live { block, tag, changed: BTreeMap::new(), told: false });
            }
            Err(AllocError::OutOfMemory(report)) => {
                assert_eq!(report.requested, bytes);
                self.leave(0);
            }
            Err(error) => panic!("{error}"),
        }
    }

    fn free(&mut self, pick: usize) {
        let Some(index) = pick.checked_rem(self.live.len()) else { return };
        let freed = self.live.swap_remove(index);
        // SAFETY: the shadow forgets the block and writes to its memory only where the guard must find that.
        let result = unsafe { self.guard.deallocate(freed.block) };
        match freed.changed.first_key_value() {
            None => {
                assert_eq!(result, Ok(()));
                self.quarantine.push(Live { changed: BTreeMap::new(), ..freed });
                self.leave(self.quarantine_blocks);
            }
            Some(_) => {
                let Err(BlockError::OutOfBounds { damage }) = result else { panic!("{result:?}") };
                agree(&damage, &freed, false);
                self.found += u64::from(!freed.told);
                self.condemned += 1;
                self.stale.push(freed.block);
            }
        }
    }

    /// Removes the oldest blocks from the quarantine until `most` are left, and condemns the damaged blocks.
    fn leave(&mut self, most: usize) {
        while self.quarantine.len() > most {
            let left = self.quarantine.remove(0);
            if !left.changed.is_empty() {
                self.found += 1;
                self.condemned += 1;
            }
            self.stale.push(left.block);
        }
    }

    fn check(&mut self) {
        let found = self.guard.check_all();
        let mut expected: Vec<&Live> =
            self.live.iter().filter(|live| !live.told && !live.changed.is_empty()).collect();
        let damaged = self.quarantine.iter().filter(|freed| !freed.changed.is_empty());
        expected.extend(damaged);
        assert_eq!(found.len(), expected.len());
        for damage in &found {
            let shadow = expected.iter().find(|live| live.block == damage.block).unwrap();
            agree(damage, shadow, damage.fault == DamageKind::UseAfterFree);
        }
        self.found += found.len() as u64;
        self.live.iter_mut().for_each(|live| live.told |= !live.changed.is_empty());
        let (damaged, sound): (Vec<Live>, Vec<Live>) =
            self.quarantine.drain(..).partition(|freed| !freed.changed.is_empty());
        self.condemned += damaged.len() as u64;
        self.stale.extend(damaged.iter().map(|freed| freed.block));
        self.quarantine = sound;
    }

    /// Checks the guard against the shadow after every step.
    fn compare(&self) {
        let (stats, report, ledger) = (self.guard.stats(), self.guard.report(), self.guard.ledger());
        let bytes: u64 = self.live.iter().map(|live| live.block.bytes).sum();
        assert_eq!((stats.bytes_in_use, stats.bytes_requested, ledger.total()), (bytes, bytes, bytes));
        assert_eq!(stats.live_allocs, self.live.len() as u64);
        assert_eq!(report.live_blocks, self.live.len() as u64);
        assert_eq!(report.quarantined_blocks, self.quarantine.len() as u64);
        assert_eq!((report.condemned_blocks, report.found), (self.condemned, self.found));
        // Every byte of the inner pool is a user's, around a user's, in quarantine or condemned.
        let inner = self.pool.stats();
        let held = bytes + report.overhead_bytes + report.quarantined_bytes + report.condemned_bytes;
        assert_eq!(inner.bytes_in_use, held);
        assert_eq!(
            inner.live_allocs,
            report.live_blocks + report.quarantined_blocks + report.condemned_blocks
        );
        for live in &self.live {
            assert_eq!(self.guard.tag(&live.block), Ok(live.tag));
            assert_eq!(self.guard.block_at(live.block.address), Ok(live.block));
            assert_eq!(self.guard.requested_bytes(&live.block), Ok(live.block.bytes));
        }
        for owner in 0..5 {
            let tag = tag_of(owner);
            let of_owner = self.live.iter().filter(|live| live.tag == tag).map(|live| live.block.bytes);
            assert_eq!(ledger.owner(tag.owner).own, of_owner.sum::<u64>());
        }
    }
}

fn pick_of(blocks: &mut [Live], pick: usize) -> Option<&mut Live> {
    let index = pick.checked_rem(blocks.len())?;
    blocks.get_mut(index)
}

/// Changes a byte that the guard watches, or changes it back.
fn toggle(live: &mut Live, offset: i64) {
    change(live.block, offset);
    if live.changed.remove(&offset).is_none() {
        live.changed.insert(offset, ());
    }
}

/// Whether the guard reports the damage that the shadow knows.
fn agree(damage: &Damage, shadow: &Live, freed: bool) {
    assert_eq!((damage.block, damage.tag), (shadow.block, shadow.tag));
    let first = *shadow.changed.first_key_value().unwrap().0;
    assert_eq!(damage.offset, first);
    let fault = match first {
        _ if freed => DamageKind::UseAfterFree,
        ..0 => DamageKind::Underrun,
        _ => DamageKind::Overrun,
    };
    assert_eq!(damage.fault, fault);
    // For a live block, the guard reports one side at a time.
    let same_side = |offset: &&i64| freed || (**offset < 0) == (first < 0);
    assert_eq!(damage.bytes, shadow.changed.keys().filter(same_side).count() as u64);
    assert_eq!(damage.found, damage.expected ^ 0x55);
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: if cfg!(miri) { 4 } else { 300 },
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn a_guard_finds_exactly_what_was_damaged(quarantine in 0..6_usize, ops in vec(op(), 1..120)) {
        let mut model = Model::new(quarantine);
        for op in &ops {
            model.step(op);
        }
        let Model { guard, pool, .. } = model;
        drop(guard);
        prop_assert_eq!(pool.stats().live_allocs, 0);
        prop_assert!(pool.check_invariants().is_ok());
    }
}

//! Short sequences of steps by several threads on one pool, under the `shuttle` checker, which runs them in
//! many orders. No two live blocks overlap, and all invariants hold at the end.

use std::collections::BTreeMap;

use bfc_core::sync::{Arc, Mutex, lock, thread};
use bfc_core::{
    AllocError, Allocator, Block, BlockError, Bytes, Category, ConfiguredPolicy, OwnerId, PolicyAllocator,
    PoolConfig, PoolView, Request, Tag,
};

use crate::common::op::{Op, ops_from_bytes};
use crate::common::scenario::{Chosen, policies, with_policy};
use crate::common::source::{FakeSource, Nature};
use crate::common::{Random, try_free};

/// Orders tried for each scenario.
const SCHEDULES: usize = 40;

const THREADS: u64 = 3;

/// A pool that several threads use, and its live blocks by address.
struct Shared<P: ConfiguredPolicy> {
    pool: PolicyAllocator<P>,
    out: Mutex<BTreeMap<u64, Block>>,
}

impl<P: ConfiguredPolicy> Shared<P> {
    /// Records a new block and checks that it overlaps no live block.
    fn note(&self, block: Block) {
        let mut out = lock(&self.out);
        let before = out.range(..block.address + block.bytes).next_back().map(|(_, block)| *block);
        let apart = before.is_none_or(|before| before.address + before.bytes <= block.address);
        assert!(apart, "{block:?} overlaps {before:?}");
        out.insert(block.address, block);
    }

    /// Frees a block. The record comes first, because another thread may own the memory right after the free.
    fn free(&self, block: Block) {
        lock(&self.out).remove(&block.address);
        try_free(&self.pool, block).unwrap();
    }

    /// One step of a thread that holds `mine`.
    fn step(&self, op: &Op, mine: &mut Vec<Block>) {
        let pick = |pick: usize, mine: &Vec<Block>| pick.checked_rem(mine.len());
        match *op {
            Op::Allocate { bytes, alignment_log2, owner, .. } => {
                let tag = Tag { owner: OwnerId::ROOT, category: Category::ALL[usize::from(owner) % 8] };
                let request = Request::new(bytes).with_alignment(1 << alignment_log2).with_tag(tag);
                match self.pool.allocate(&request) {
                    Ok(block) if block == Block::EMPTY => {}
                    Ok(block) => {
                        self.note(block);
                        mine.push(block);
                    }
                    Err(AllocError::OutOfMemory(_)) => {}
                    Err(other) => panic!("{other:?}"),
                }
            }
            Op::Free { pick: nth } | Op::FreeTwice { pick: nth } => {
                let Some(nth) = pick(nth, mine) else { return };
                let block = mine.swap_remove(nth);
                self.free(block);
                // Another thread may own the memory by now: the old handle must not free it.
                assert_eq!(try_free(&self.pool, block), Err(BlockError::Stale { block }));
            }
            Op::Resize { pick: nth, bytes } => {
                let Some(nth) = pick(nth, mine) else { return };
                // Without a record meanwhile: another thread may own the end of the block right after it shrinks.
                let block = mine[nth];
                lock(&self.out).remove(&block.address);
                // SAFETY: the addresses of these tests have no memory behind them.
                let resized = unsafe { self.pool.resize(&block, bytes) }.unwrap();
                mine[nth] = resized.unwrap_or(block);
                self.note(mine[nth]);
            }
            Op::LookUp { pick: nth, .. } | Op::Retag { pick: nth, .. } => {
                let Some(nth) = pick(nth, mine) else { return };
                let block = mine[nth];
                assert_eq!(self.pool.block_at(block.address), Ok(block));
                self.pool.retag(&block, Tag::default()).unwrap();
            }
            Op::ReleaseIdle => drop(self.pool.trim(Bytes(0))),
            Op::Trim { keep } => drop(self.pool.trim(Bytes(keep))),
            _ => self.pool.check_invariants().unwrap(),
        }
    }
}

/// Returns the steps of one thread.
fn steps(seed: u64) -> Vec<Op> {
    let mut random = Random(seed);
    let bytes: Vec<u8> = (0..40).map(|_| random.next() as u8).collect();
    ops_from_bytes(&bytes)
}

fn threads_share_a_pool<P: ConfiguredPolicy>(config: PoolConfig<P::Options>, seed: u64)
where
    P::Options: 'static,
{
    let scenario = move || {
        let source = FakeSource::new(Nature { coalescing: seed % 2 == 0, ..Nature::default() });
        let pool = PolicyAllocator::<P>::new("shared", source.clone(), config.clone().with_retry(false));
        let shared = Arc::new(Shared { pool, out: Mutex::new(BTreeMap::new()) });
        let threads: Vec<_> = (0..THREADS)
            .map(|nth| {
                let shared = Arc::clone(&shared);
                thread::spawn(move || {
                    let mut mine = Vec::new();
                    for op in steps(seed * THREADS + nth) {
                        shared.step(&op, &mut mine);
                    }
                    // The main thread frees the rest.
                    mine.drain(..).step_by(2).for_each(|block| shared.free(block));
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());

        let out: Vec<Block> = lock(&shared.out).values().copied().collect();
        let stats = shared.pool.stats();
        assert_eq!(stats.live_allocs, out.len() as u64);
        assert_eq!(stats.bytes_in_use, out.iter().map(|block| block.bytes).sum::<u64>());
        assert_eq!(stats.bytes_reserved, source.bytes_out());
        shared.pool.check_invariants().unwrap();
        out.into_iter().for_each(|block| shared.free(block));
        shared.pool.check_invariants().unwrap();
        shared.pool.trim(Bytes(0));
        assert_eq!(shared.pool.stats().bytes_reserved, 0);
        source.assert_all_returned();
    };
    shuttle::check_random(scenario.clone(), SCHEDULES);
    shuttle::check_pct(scenario, SCHEDULES, 3);
}

#[test]
fn threads_on_one_pool_of_any_policy_never_get_the_same_memory() {
    for seed in 0..4 {
        for (_, chosen) in policies() {
            // With a counter, idle regions may have to wait for the frontier: `bfc_frontier.rs`.
            if !matches!(chosen, Chosen::Bfc { timing: true, .. }) {
                with_policy!(chosen, |P, config| threads_share_a_pool::<P>(config, seed));
            }
        }
    }
}

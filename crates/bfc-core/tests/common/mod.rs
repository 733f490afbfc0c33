//! What the suites of the BFC pool share. Each suite is a crate of its own and uses only part of it.
#![allow(dead_code, unreachable_pub, unused_imports, unused_macros)]

pub mod environment;
pub mod interpreter;
pub mod liar;
pub mod op;
pub mod scenario;
pub mod schedule;
pub mod source;

use bfc_core::{
    AllocError, Allocator, BfcAllocator, Block, ConfiguredPolicy, OomReport, PolicyAllocator, Request,
};

/// Allocates `bytes` with the default alignment.
pub fn allocate(pool: &BfcAllocator, bytes: u64) -> Block {
    pool.allocate(&Request::new(bytes)).unwrap()
}

/// Frees a block that must be live.
pub fn free(pool: &BfcAllocator, block: Block) {
    try_free(pool, block).unwrap();
}

/// Frees whatever it is given.
pub fn try_free<P: ConfiguredPolicy>(
    pool: &PolicyAllocator<P>,
    block: Block,
) -> Result<(), bfc_core::BlockError> {
    // SAFETY: the addresses of these tests have nothing behind them.
    unsafe { pool.deallocate(block) }
}

/// The report of a request that must fail for want of memory.
pub fn out_of_memory(pool: &BfcAllocator, bytes: u64) -> OomReport {
    match pool.allocate(&Request::new(bytes)) {
        Err(AllocError::OutOfMemory(report)) => *report,
        other => panic!("{bytes} bytes should not fit: {other:?}"),
    }
}

/// Checks that no two blocks overlap.
pub fn assert_disjoint(blocks: &[Block]) {
    let mut sorted = blocks.to_vec();
    sorted.sort_by_key(|block| block.address);
    for pair in sorted.windows(2) {
        assert!(pair[0].address + pair[0].bytes <= pair[1].address, "{pair:?}");
    }
}

/// A small generator of random numbers (splitmix64), the same on every machine.
#[derive(Clone, Debug)]
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `bound`.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for index in (1..items.len()).rev() {
            items.swap(index, self.below(index as u64 + 1) as usize);
        }
    }
}

/// Runs a check, generic over the policy, on every one. The test names the policies and `scenario`'s parts itself.
macro_rules! on_every_policy {
    ($check:ident) => {
        for (_, chosen) in policies() {
            match chosen {
                Chosen::Bfc { config, .. } => $check::<Bfc>(config),
                Chosen::Buddy(config) => $check::<Buddy>(config),
                Chosen::AutoGrowth(config) => $check::<AutoGrowth>(config),
                Chosen::Planned(config) => $check::<Planned<Bfc>>(config),
            }
        }
    };
}
pub(crate) use on_every_policy;

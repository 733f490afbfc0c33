//! Helpers shared by the suites of the BFC pool. Each suite is a separate crate and uses only some of them.
#![allow(dead_code, unreachable_pub, unused_imports, unused_macros)]

pub mod environment;
pub mod interleaving;
pub mod interpreter;
pub mod liar;
pub mod op;
pub mod random;
pub mod scenario;
pub mod source;

pub use random::Random;

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

/// Frees any block that it receives.
pub fn try_free<P: ConfiguredPolicy>(
    pool: &PolicyAllocator<P>,
    block: Block,
) -> Result<(), bfc_core::BlockError> {
    // SAFETY: the addresses of these tests have no memory behind them.
    unsafe { pool.deallocate(block) }
}

/// Returns the report of a request that must run out of memory.
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

/// Runs a check that is generic over the policy on every policy of [`scenario`].
macro_rules! on_every_policy {
    ($check:ident) => {
        for (_, chosen) in $crate::common::scenario::policies() {
            $crate::common::scenario::with_policy!(chosen, |P, config| $check::<P>(config));
        }
    };
}
pub(crate) use on_every_policy;

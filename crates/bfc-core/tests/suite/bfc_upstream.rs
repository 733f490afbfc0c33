//! Upstream's own test cases, with their values: `bfc_allocator_test.cc` of XLA and
//! `gpu_bfc_allocator_test.cc` of TensorFlow. Each test names its case.

use std::sync::Arc;

use bfc_core::{
    Allocator, BfcAllocator, BfcConfig, Block, Bytes, CutRule, GIB, MIB, PoolView, Request, Verdict,
};

use crate::common::source::{BASE, Fails, FakeSource, Nature};
use crate::common::{Random, allocate, assert_disjoint, free, out_of_memory};

/// A pool as in upstream's GPU tests: TensorFlow's sizes, one region, collection of idle regions.
fn gpu_pool(limit: u64) -> BfcAllocator {
    let config = BfcConfig::tensorflow(Bytes(limit)).with_allow_growth(false).with_garbage_collection(true);
    BfcAllocator::new("GPU_0_bfc", FakeSource::new(Nature::default()), config)
}

/// As above, but growing.
fn growing_gpu_pool(limit: u64, nature: Nature) -> (BfcAllocator, Arc<FakeSource>) {
    let source = FakeSource::new(nature);
    let config = BfcConfig::tensorflow(Bytes(limit)).with_garbage_collection(true);
    (BfcAllocator::new("GPU_0_bfc", source.clone(), config), source)
}

fn pool(limit: u64) -> BfcAllocator {
    BfcAllocator::new("test", FakeSource::new(Nature::default()), BfcConfig::tensorflow(Bytes(limit)))
}

/// The values that upstream's `CheckStats` compares: (allocations, bytes in use, peak bytes in use, largest
/// allocation).
fn figures(pool: &BfcAllocator) -> (u64, u64, u64, u64) {
    let stats = pool.stats();
    (stats.num_allocs, stats.bytes_in_use, stats.peak_bytes_in_use, stats.largest_alloc_bytes)
}

#[test]
fn allocate_and_free() {
    let pool = pool(MIB);
    let block = pool.allocate(&Request::new(512).with_alignment(64)).unwrap();
    assert!(!block.is_empty());
    free(&pool, block);
    assert_eq!(pool.stats().bytes_in_use, 0);
}

#[test]
fn default_alignment() {
    assert!(allocate(&pool(MIB), 1).address % 64 == 0);
}

#[test]
fn extend_terminates_when_the_sub_allocator_always_fails() {
    let source = FakeSource::new(Nature { fails: Fails::Always, ..Nature::default() });
    let pool = BfcAllocator::new("test", source.clone(), BfcConfig::tensorflow(Bytes(2048)));
    let report = out_of_memory(&pool, 100);
    assert_eq!(source.calls(), 8, "2048, 1792, 1536, 1280, 1024, 768, 512, 256");
    assert_eq!(report.verdict, Verdict::Exhausted);
}

#[test]
fn alignment() {
    for alignment in [32, 64, 128, 256, 512, 1024, 2048, 4096] {
        let pool = pool(MIB);
        allocate(&pool, 256);
        for _ in 0..8 {
            let block = pool.allocate(&Request::new(256).with_alignment(alignment)).unwrap();
            assert!(block.address % alignment == 0, "{block:?}");
        }
        pool.check_invariants().unwrap();
    }
}

#[test]
fn alignment_with_hardcoded_sub_allocator_alignment() {
    for alignment in [256, 512, 1024, 4096] {
        let nature = Nature { fixed_alignment: Some(256), offset: 256, ..Nature::default() };
        let source = FakeSource::new(nature);
        let pool = BfcAllocator::new("test", source, BfcConfig::tensorflow(Bytes::mib(1)));
        for _ in 0..8 {
            let block = pool.allocate(&Request::new(256).with_alignment(alignment)).unwrap();
            assert!(block.address % alignment == 0, "{block:?}");
        }
    }
}

#[test]
fn stress_alloc_free() {
    let mut requests = Vec::new();
    for alignment in [64, 256, 512, 1024, 4096] {
        for bytes in [1, 128, 256, 700, 1024, 4096, 8192] {
            requests.extend([(alignment, bytes); 10]);
        }
    }
    assert_eq!(requests.len(), 350);
    let pool = pool(16 * MIB);
    let mut random = Random(42);
    for _ in 0..20 {
        random.shuffle(&mut requests);
        let mut blocks: Vec<Block> = requests
            .iter()
            .map(|&(alignment, bytes)| {
                let block = pool.allocate(&Request::new(bytes).with_alignment(alignment)).unwrap();
                assert!(block.address % alignment == 0 && block.bytes >= bytes);
                block
            })
            .collect();
        assert_disjoint(&blocks);
        pool.check_invariants().unwrap();
        random.shuffle(&mut blocks);
        for block in blocks {
            free(&pool, block);
        }
        pool.check_invariants().unwrap();
    }
    assert_eq!((pool.stats().bytes_in_use, pool.stats().num_allocs), (0, 7000));
}

/// `SpatialUnderContention` without its two ends.
#[test]
fn under_contention() {
    let pool = pool(64 * MIB);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for _ in 0..1000 {
                    let (first, second) = (allocate(&pool, 1024), allocate(&pool, 1024));
                    free(&pool, first);
                    free(&pool, second);
                }
            });
        }
    });
    pool.check_invariants().unwrap();
    let stats = pool.stats();
    assert_eq!((stats.num_allocs, stats.bytes_in_use), (16_000, 0));
    assert!(stats.peak_bytes_in_use <= 8 * 2048);
}

#[test]
fn get_and_clear_memory_stats() {
    let pool = pool(256 * MIB);
    let first = allocate(&pool, 1024);
    assert_eq!(figures(&pool), (1, 1024, 1024, 1024));
    let second = allocate(&pool, 2048);
    assert_eq!(figures(&pool), (2, 3072, 3072, 2048));
    free(&pool, second);
    assert_eq!(figures(&pool), (2, 1024, 3072, 2048));
    assert!(pool.clear_stats());
    assert_eq!(figures(&pool), (0, 1024, 1024, 0));
    free(&pool, first);
    assert_eq!(figures(&pool), (0, 0, 1024, 0));
}

#[test]
fn no_dups() {
    let pool = gpu_pool(GIB);
    assert_eq!(figures(&pool), (0, 0, 0, 0));
    let blocks: Vec<Block> = (1..1024).map(|bytes| allocate(&pool, bytes)).collect();
    assert_eq!(figures(&pool), (1023, 654_336, 654_336, 1024));
    assert_disjoint(&blocks);
    for (block, bytes) in blocks.iter().zip(1..) {
        assert_eq!(pool.requested_bytes(block), Ok(bytes));
    }
    for block in blocks {
        free(&pool, block);
    }
    assert_eq!(figures(&pool), (1023, 0, 654_336, 1024));
    pool.check_invariants().unwrap();
}

#[test]
fn allocations_and_deallocations() {
    let pool = gpu_pool(GIB);
    let mut random = Random(123);
    let mut size = || 100 + random.below(MIB - 99);
    let mut blocks: Vec<Block> = (0..255).map(|_| allocate(&pool, size())).collect();
    let mut index = 0;
    blocks.retain(|&block| {
        index += 1;
        if index % 2 == 0 {
            free(&pool, block);
        }
        index % 2 != 0
    });
    assert_eq!(out_of_memory(&pool, GIB + 1).verdict, Verdict::OverLimit);
    blocks.extend((0..255).map(|_| allocate(&pool, size())));
    assert_disjoint(&blocks);
    pool.check_invariants().unwrap();
}

#[test]
fn exercise_coalescing() {
    let pool = gpu_pool(GIB);
    assert_eq!(figures(&pool), (0, 0, 0, 0));
    let first = allocate(&pool, 4096);
    free(&pool, first);
    assert_eq!(figures(&pool), (1, 0, 4096, 4096));
    for _ in 0..1024 {
        let blocks = [4 * 1024, 8 * 1_048_576, 8 * 2048, 4 * 10_485_760].map(|bytes| allocate(&pool, bytes));
        for block in blocks {
            free(&pool, block);
        }
    }
    assert_eq!(figures(&pool), (4097, 0, 50_352_128, 41_943_040));
    assert_eq!(allocate(&pool, 4096).address, first.address);
    pool.check_invariants().unwrap();
}

#[test]
fn allocate_zero_buf_size() {
    let pool = gpu_pool(GIB);
    let before = pool.stats();
    assert_eq!(allocate(&pool, 0), Block::EMPTY);
    free(&pool, Block::EMPTY);
    assert_eq!(pool.stats(), before);
    assert_eq!(before.bytes_reserved, 0, "not even a region is taken");
}

#[test]
fn tracks_sizes() {
    assert!(gpu_pool(GIB).tracks_sizes());
}

#[test]
fn allocated_vs_requested() {
    let pool = gpu_pool(GIB);
    let block = allocate(&pool, 4);
    assert_eq!((pool.requested_bytes(&block), block.bytes), (Ok(4), 256));
    assert_eq!(pool.block_at(block.address), Ok(block));
}

#[test]
fn test_custom_memory_limit() {
    let pool = gpu_pool(2 << 20);
    let block = allocate(&pool, 4 * 64);
    out_of_memory(&pool, 4 * 2 * MIB);
    free(&pool, block);
}

#[test]
fn allocations_and_deallocations_with_growth() {
    let (pool, source) = growing_gpu_pool(2 * GIB, Nature::default());
    let mut random = Random(123);
    let mut blocks: Vec<Block> =
        (0..9).map(|_| allocate(&pool, 100 + random.below(128 * MIB - 100))).collect();
    let mut index = 0;
    blocks.retain(|&block| {
        index += 1;
        if index % 2 == 0 {
            free(&pool, block);
        }
        index % 2 != 0
    });
    blocks.extend((0..9).map(|_| allocate(&pool, 100 + random.below(64 * MIB - 100))));
    assert_disjoint(&blocks);
    pool.check_invariants().unwrap();
    drop(pool);
    source.assert_all_returned();
}

#[test]
fn bin_debug_info() {
    let pool = gpu_pool(GIB);
    let blocks: Vec<Block> = (0..10).map(|index| allocate(&pool, 256 << (index / 2))).collect();
    assert_eq!(pool.chunks().len(), 11);
    for (index, bin) in pool.bins().iter().enumerate() {
        assert_eq!(bin.lower_bound, 256 << index);
        if index < 5 {
            let bytes = 2 * (256 << index);
            assert_eq!((bin.bytes_in_use, bin.bytes, bin.requested_in_use), (bytes, bytes, bytes));
            assert_eq!((bin.chunks_in_use, bin.chunks), (2, 2));
        } else if index < 20 {
            assert_eq!((bin.bytes, bin.chunks), (0, 0));
        } else {
            assert_eq!((bin.bytes_in_use, bin.chunks_in_use, bin.chunks), (0, 0, 1));
            assert!(bin.bytes > 0);
        }
    }
    for block in blocks.iter().skip(1).step_by(2) {
        free(&pool, *block);
    }
    for (index, bin) in pool.bins().iter().enumerate().take(5) {
        assert_eq!((bin.bytes_in_use, bin.chunks_in_use), (256 << index, 1));
        assert!(bin.bytes >= bin.bytes_in_use && bin.requested_in_use == bin.bytes_in_use);
    }
}

fn hundred_and_twenty_eight_blocks(pool: &BfcAllocator) -> Block {
    let mut blocks: Vec<Block> = (0..128).map(|_| allocate(pool, 4 * MIB)).collect();
    let last = blocks.remove(127);
    for block in blocks {
        free(pool, block);
    }
    last
}

#[test]
fn virtual_allocator_promotes_reuse() {
    let (pool, _) = growing_gpu_pool(512 * MIB, Nature { coalescing: true, ..Nature::default() });
    hundred_and_twenty_eight_blocks(&pool);
    assert_eq!(allocate(&pool, 508 * MIB).bytes, 508 * MIB);
    assert_eq!(pool.regions().len(), 1);
}

#[test]
fn physical_allocator_ooms_fragmentation() {
    let (pool, source) = growing_gpu_pool(512 * MIB, Nature::default());
    hundred_and_twenty_eight_blocks(&pool);
    let mebibytes: Vec<u64> = pool.regions().iter().map(|region| region.bytes / MIB).collect();
    assert_eq!(mebibytes, [4, 4, 8, 16, 32, 64, 128, 256]);
    let report = out_of_memory(&pool, 508 * MIB);
    assert_eq!(report.verdict, Verdict::Fragmented);
    assert_eq!((report.free, report.largest_free), (508 * MIB, 252 * MIB));
    assert_eq!(source.frees(), 0, "giving regions back in vain is not tried");
}

#[test]
fn region_deallocation() {
    let (pool, source) = growing_gpu_pool(2 * GIB, Nature::default());
    hundred_and_twenty_eight_blocks(&pool);
    assert_eq!(pool.regions().len(), 8);
    assert_eq!(pool.trim(Bytes(0)), 256 * MIB);
    assert_eq!(pool.regions().len(), 1);
    assert_eq!(pool.chunks().iter().filter(|chunk| !chunk.in_use()).count(), 1);
    assert_eq!((source.frees(), source.bytes_out()), (7, 256 * MIB));
    pool.check_invariants().unwrap();
    drop(pool);
    source.assert_all_returned();
}

#[test]
fn no_region_deallocation() {
    let (pool, source) = growing_gpu_pool(2 * GIB, Nature { coalescing: true, ..Nature::default() });
    hundred_and_twenty_eight_blocks(&pool);
    assert_eq!(pool.regions().len(), 1);
    assert_eq!(pool.trim(Bytes(0)), 0);
    assert_eq!((pool.regions().len(), source.frees()), (1, 0));
    assert_eq!(pool.regions()[0].address, BASE);
}

/// Upstream returns the whole of a chunk that is less than twice the request; Highwater splits it.
#[test]
fn upstreams_split_rule_and_ours() {
    let granted = |config: BfcConfig| {
        let pool =
            BfcAllocator::new("test", FakeSource::new(Nature::default()), config.with_allow_growth(false));
        let hole = allocate(&pool, 1024);
        let _guard = allocate(&pool, 256);
        free(&pool, hole);
        let block = allocate(&pool, 768);
        assert_eq!(block.address, hole.address);
        block.bytes
    };
    assert_eq!(granted(BfcConfig::tensorflow(Bytes::mib(1))), 1024);
    assert_eq!(granted(BfcConfig::new(Bytes::mib(1)).with_cut_rule(CutRule::Low)), 768);
}

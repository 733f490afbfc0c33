//! Times pairs of allocate and free, for pools and the system's allocator.
//!
//! Run with `cargo bench -p highwater-benches --bench allocate`.

use std::hint::black_box;
use std::sync::Arc;
use std::thread;
use std::time::Instant;

use bfc_core::{
    AddressOnlyMemory, Allocator, BfcAllocator, BfcConfig, Block, Bytes, HostMemory, PassthroughAllocator,
    Request,
};
use criterion::{BatchSize, BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};

fn pool(config: BfcConfig) -> BfcAllocator {
    BfcAllocator::new("bench", Arc::new(AddressOnlyMemory::new()), config)
}

fn take(allocator: &dyn Allocator, bytes: u64) -> Block {
    allocator.allocate(&Request::new(bytes)).expect("the pool is large enough")
}

fn give(allocator: &dyn Allocator, block: Block) {
    // SAFETY: nothing uses the block.
    unsafe { allocator.deallocate(block) }.expect("the block is alive");
}

/// One block at a time.
fn pairs(c: &mut Criterion) {
    let mut group = c.benchmark_group("pair");
    group.throughput(Throughput::Elements(1));
    for bytes in [256, 64 << 10, 16 << 20] {
        let peers: [(&str, Box<dyn Allocator>); 3] = [
            ("bfc", Box::new(pool(BfcConfig::new(Bytes::gib(16))))),
            ("bfc-tensorflow", Box::new(pool(BfcConfig::tensorflow(Bytes::gib(16))))),
            ("system", Box::new(PassthroughAllocator::new("system", Arc::new(HostMemory::new())))),
        ];
        for (name, allocator) in peers {
            group.bench_with_input(BenchmarkId::new(name, Bytes(bytes)), &bytes, |b, &bytes| {
                b.iter(|| {
                    let block = black_box(take(allocator.as_ref(), black_box(bytes)));
                    give(allocator.as_ref(), block);
                });
            });
        }
    }
    group.finish();
}

/// Many blocks, freed in random order.
fn scattered(c: &mut Criterion) {
    let mut group = c.benchmark_group("scattered");
    for live in [1_000usize, 10_000] {
        group.throughput(Throughput::Elements(live as u64));
        let allocator = pool(BfcConfig::new(Bytes::gib(16)));
        group.bench_with_input(BenchmarkId::new("bfc", live), &live, |b, &live| {
            b.iter_batched(
                || scatter(live),
                |order| {
                    let mut blocks: Vec<Option<Block>> = order
                        .iter()
                        .map(|&index| Some(take(&allocator, 256 + 256 * (index as u64 % 64))))
                        .collect();
                    for index in order {
                        give(&allocator, blocks[index].take().expect("each is freed once"));
                    }
                },
                BatchSize::LargeInput,
            );
        });
    }
    group.finish();
}

/// A fixed permutation of the numbers below `count`.
fn scatter(count: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..count).collect();
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    for last in (1..count).rev() {
        // Xorshift (Marsaglia 2003), the same on every run.
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        order.swap(last, (state % (last as u64 + 1)) as usize);
    }
    order
}

/// One block at a time in each of several threads that share a pool.
fn shared(c: &mut Criterion) {
    let mut group = c.benchmark_group("shared");
    let allocator = pool(BfcConfig::new(Bytes::gib(16)));
    for threads in [1, 2] {
        group.throughput(Throughput::Elements(threads));
        group.bench_with_input(BenchmarkId::new("bfc", threads), &threads, |b, &threads| {
            b.iter_custom(|pairs| {
                let start = Instant::now();
                thread::scope(|scope| {
                    for _ in 0..threads {
                        scope.spawn(|| (0..pairs).for_each(|_| give(&allocator, take(&allocator, 256))));
                    }
                });
                start.elapsed()
            });
        });
    }
    group.finish();
}

criterion_group!(benches, pairs, scattered, shared);
criterion_main!(benches);

//! Times the overhead of ops, and of tracking an allocation.
//!
//! Run with `cargo bench -p highwater-benches --bench op_overhead`.

use std::hint::black_box;
use std::sync::Arc;

use bfc_core::{Allocation, Allocator, BfcAllocator, BfcConfig, Bytes, HostMemory, Request};
use criterion::{Criterion, criterion_group, criterion_main};
use highwater::prelude::*;
use highwater_tracking::Tracker;

/// One allocation: directly from the pool, and through an op's tracking allocator.
fn tracking(c: &mut Criterion) {
    let config = BfcConfig::new(Bytes::mib(64));
    let pool: Arc<dyn Allocator> = Arc::new(BfcAllocator::new("bench", Arc::new(HostMemory::new()), config));
    let tracker = Tracker::new();
    let request = Request::new(1024);
    let mut group = c.benchmark_group("allocation");
    group.bench_function("pool", |b| {
        b.iter(|| Allocation::new(black_box(&pool), &request).expect("the pool is large enough"));
    });
    let run = tracker.begin("bench");
    let tracked = run.track(&pool);
    group.bench_function("pool, tracked", |b| {
        b.iter(|| Allocation::new(black_box(&tracked), &request).expect("the pool is large enough"));
    });
    group.finish();
    drop((tracked, run));

    let mut group = c.benchmark_group("op account");
    group.bench_function("begin, allocate, free, end", |b| {
        b.iter(|| {
            let run = tracker.begin("bench");
            Allocation::new(&run.track(&pool), &request).expect("the pool is large enough")
        });
    });
    group.finish();
}

/// The smallest ops, which are nearly all overhead.
fn small_ops(c: &mut Criterion) {
    let runtime = Runtime::builder().threads(1).build().expect("a CPU");
    let device = runtime.cpu().expect("a CPU");
    let x = Tensor::ones(&device, [4, 16]).expect("memory");
    let w = Tensor::ones(&device, [16, 16]).expect("memory");
    let leaf = w.clone().requiring_grad().expect("a float tensor");
    let mut group = c.benchmark_group("small op");
    group.bench_function("add", |b| b.iter(|| x.add(black_box(&x)).expect("memory")));
    group.bench_function("matmul", |b| b.iter(|| x.matmul(black_box(&w)).expect("memory")));
    group.bench_function("matmul, recorded", |b| b.iter(|| x.matmul(black_box(&leaf)).expect("memory")));
    group.bench_function("transpose (a view)", |b| b.iter(|| x.transpose(0, 1).expect("a view")));
    group.finish();
}

criterion_group!(benches, tracking, small_ops);
criterion_main!(benches);

//! Products of one row, as each step of text generation computes: the bandwidth with which they read the matrix, beside that
//! of a plain copy by the same number of threads, which reads and writes.
//!
//! Run with `cargo bench -p highwater-benches --bench one_row`.

use std::hint::black_box;
use std::thread;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use highwater::prelude::*;

/// The output layer of SmolLM2-135M, which no cache holds.
const ROWS: usize = 49_152;
const WIDTH: usize = 576;

fn one_row(c: &mut Criterion) {
    let mut group = c.benchmark_group("one row, 576 x 49152");
    group.sample_size(20);
    let bytes = (ROWS * WIDTH * size_of::<f32>()) as u64;
    for threads in [1, 2] {
        let runtime = Runtime::builder().threads(threads).build().expect("a CPU");
        let device = runtime.cpu().expect("a CPU");
        let weights =
            Tensor::uniform(&device, [ROWS, WIDTH], -1.0, 1.0, &Rng::new(0)).expect("memory").transpose(0, 1);
        let weights = weights.expect("two axes");
        let x = Tensor::uniform(&device, [1, WIDTH], -1.0, 1.0, &Rng::new(1)).expect("memory");
        group.throughput(Throughput::Bytes(bytes));
        group.bench_function(BenchmarkId::new("matmul", threads), |b| {
            b.iter(|| no_grad(|| x.matmul(&weights)).expect("memory"));
        });

        let from = vec![1.0_f32; ROWS * WIDTH];
        let mut to = vec![0.0_f32; ROWS * WIDTH];
        group.throughput(Throughput::Bytes(2 * bytes));
        group.bench_function(BenchmarkId::new("copy", threads), |b| {
            b.iter(|| copy(&from, &mut to, threads));
        });
    }
    group.finish();
}

fn copy(from: &[f32], to: &mut [f32], threads: usize) {
    let part = from.len().div_ceil(threads);
    thread::scope(|scope| {
        for (from, to) in from.chunks(part).zip(to.chunks_mut(part)) {
            scope.spawn(|| to.copy_from_slice(black_box(from)));
        }
    });
}

criterion_group!(benches, one_row);
criterion_main!(benches);

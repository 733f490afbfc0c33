//! Times a whole training step of the digits network.
//!
//! Run with `cargo bench -p highwater-benches --bench train_step`.

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use highwater::prelude::*;

fn step(c: &mut Criterion) {
    let mut group = c.benchmark_group("train step, 64-128-10, batch 64");
    group.throughput(Throughput::Elements(1));
    for threads in [1, 2] {
        let runtime = Runtime::builder().threads(threads).build().expect("a CPU");
        let device = runtime.cpu().expect("a CPU");
        let rng = Rng::new(0);
        let model = Sequential::new()
            .with("fc1", Linear::new(&device, 64, 128, &rng).expect("memory"))
            .with("relu", Relu)
            .with("fc2", Linear::new(&device, 128, 10, &rng).expect("memory"));
        let mut optimizer = AdamW::new(model.parameters(), 1e-3).expect("memory");
        let x = Tensor::uniform(&device, [64, 64], 0.0, 1.0, &rng).expect("memory");
        let y = Tensor::from_slice(&device, &[3i64; 64], [64]).expect("memory");
        group.bench_function(BenchmarkId::new("cpu threads", threads), |b| {
            b.iter(|| {
                let loss = model.forward(&x).and_then(|logits| logits.cross_entropy(&y)).expect("memory");
                optimizer.step(loss.backward().expect("a graph")).expect("finite gradients");
            });
        });
    }
    group.finish();
}

criterion_group!(benches, step);
criterion_main!(benches);

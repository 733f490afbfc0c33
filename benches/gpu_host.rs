//! Times the host's part of a training step on a GPU, with a device that computes nothing.
//!
//! Run with `cargo bench -p highwater-benches --bench gpu_host`.

use std::sync::Arc;

use bfc_core::{DeviceId, DeviceKind};
use bfc_cuda::Compute;
use bfc_cuda::emulator::EmulatedMemory;
use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use highwater::StepGraph;
use highwater::backend::cuda::CudaBackend;
use highwater::prelude::*;
use highwater_kernels::emulator::emulator;

/// A device that accepts work without computing.
fn device() -> Device {
    let compute: Arc<dyn Compute> = Arc::new(emulator().expect("a C++ compiler").silent());
    let (id, memory) = (DeviceId::new(DeviceKind::Cuda, 0), Arc::new(EmulatedMemory::of(&compute)));
    let runtime = Runtime::builder().threads(1).device(id, Arc::new(CudaBackend::new(compute)), memory);
    runtime.build().and_then(|runtime| runtime.device(id)).expect("a device of our own")
}

/// Training steps of a model, from input to update.
fn steps(c: &mut Criterion, name: &str, device: &Device, model: &Sequential, x: &Tensor, y: &Tensor) {
    let mut optimizer = AdamW::new(model.parameters(), 1e-3).expect("memory");
    let mut step = || {
        let scores = model.forward(x)?;
        let loss = scores.reshape([y.elements(), scores.elements() / y.elements()])?.cross_entropy(y)?;
        optimizer.step(loss.backward()?)
    };
    let once = StepGraph::new(device);
    once.run(&mut step).expect("memory");
    let mut group = c.benchmark_group(format!("the host's part of a step, {name}"));
    group.throughput(Throughput::Elements(once.counts().singly));
    group.bench_function("kernel by kernel", |b| b.iter(|| step().expect("memory")));
    let graph = StepGraph::new(device);
    group.bench_function("as a graph", |b| b.iter(|| graph.run(&mut step).expect("memory")));
    group.finish();
    eprintln!("{name}: {:?}", graph.counts());
}

fn perceptron(c: &mut Criterion) {
    let (device, rng) = (device(), Rng::new(0));
    let model = Sequential::new()
        .with("fc1", Linear::new(&device, 64, 128, &rng).expect("memory"))
        .with("relu", Relu)
        .with("fc2", Linear::new(&device, 128, 10, &rng).expect("memory"));
    let x = Tensor::uniform(&device, [64, 64], 0.0, 1.0, &rng).expect("memory");
    let y = Tensor::from_slice(&device, &[3i64; 64], [64]).expect("memory");
    steps(c, "64-128-10, batch 64", &device, &model, &x, &y);
}

fn transformer(c: &mut Criterion) {
    for dtype in [DType::F32, DType::BF16] {
        transformer_of(c, dtype);
    }
}

fn transformer_of(c: &mut Criterion, dtype: DType) {
    let (device, rng) = (device(), Rng::new(0));
    let mut model = Sequential::new().with("tokens", Embedding::new(&device, 96, 128, &rng).expect("memory"));
    for n in 0..4 {
        let block = TransformerBlock::new(&device, 128, 4, &rng).expect("memory").causal();
        model = model.with(&format!("block{n}"), block);
    }
    model = model.with("head", Linear::new(&device, 128, 96, &rng).expect("memory"));
    model.convert(dtype).expect("memory");
    let words: Vec<i64> = (0..16 * 64).map(|place| place % 96).collect();
    let x = Tensor::from_slice(&device, &words, [16, 64]).expect("memory");
    let y = Tensor::from_slice(&device, &words, [16 * 64]).expect("memory");
    steps(c, &format!("GPT of 4 layers in {dtype}"), &device, &model, &x, &y);
}

criterion_group!(benches, perceptron, transformer);
criterion_main!(benches);

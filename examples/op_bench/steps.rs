//! Whole training steps: kernel by kernel, and as graphs.

use std::fmt;

use highwater::prelude::*;
use highwater::{Result, StepGraph};
use serde_json::{Value, json};

use crate::Sizes;

/// A GPT without position embeddings.
#[derive(Clone, Copy)]
struct Gpt {
    layers: usize,
    width: usize,
    heads: usize,
    classes: usize,
    /// Sequences, and their length.
    batch: [usize; 2],
    dtype: DType,
}

impl fmt::Display for Gpt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { layers, width, batch: [sequences, length], dtype, .. } = self;
        write!(f, "GPT {layers} by {width}, {sequences} of {length}, {dtype}")
    }
}

const PERCEPTRON: &str = "perceptron 64-128-10, batch 64";
const SMALL: Gpt = Gpt { layers: 4, width: 128, heads: 4, classes: 96, batch: [16, 64], dtype: DType::F32 };
const LARGE: Gpt =
    Gpt { layers: 12, width: 768, heads: 12, classes: 8192, batch: [8, 512], dtype: DType::BF16 };

/// Times a call.
type Time<'a> = &'a mut dyn FnMut(&mut dyn FnMut() -> Result<()>) -> Result<f64>;

/// Times the steps whose name contains `only`.
pub(crate) fn time(device: &Device, sizes: Sizes, only: &str, time: Time<'_>) -> Result<Vec<Value>> {
    println!("\n{:<52}{:>12}{:>12}{:>12}", "a training step", "µs", "as graphs", "kernels");
    let mut rows = Vec::new();
    if PERCEPTRON.contains(only) {
        rows.push(perceptron(device, time)?);
    }
    let models: &[Gpt] = if sizes.small { &[SMALL] } else { &[SMALL, LARGE] };
    for gpt in models.iter().filter(|gpt| gpt.to_string().contains(only)) {
        let timed = transformer(device, *gpt, time);
        rows.push(timed.unwrap_or_else(|error| json!({ "error": error.to_string() })));
    }
    Ok(rows)
}

fn row(device: &Device, name: &str, time: Time<'_>, step: &mut dyn FnMut() -> Result<()>) -> Result<Value> {
    let singly = time(step)? * 1e6;
    let graph = StepGraph::new(device);
    let graphs = time(&mut || graph.run(&mut *step))? * 1e6;
    let counts = graph.counts();
    let kernels = (counts.in_graphs + counts.singly) / counts.runs.max(1);
    println!("{name:<52}{singly:>12.1}{graphs:>12.1}{kernels:>12}");
    if let Some(reason) = &counts.refused {
        println!("graphs refused: {reason}");
    }
    Ok(json!({
        "step": name, "microseconds": singly, "microseconds_as_graphs": graphs, "kernels": kernels,
        "graphs_started": counts.graphs, "graphs_refused": counts.refused,
    }))
}

/// The step of `train_digits`.
fn perceptron(device: &Device, time: Time<'_>) -> Result<Value> {
    let rng = Rng::new(0);
    let model = Sequential::new()
        .with("fc1", Linear::new(device, 64, 128, &rng)?)
        .with("relu", Relu)
        .with("fc2", Linear::new(device, 128, 10, &rng)?);
    let mut optimizer = AdamW::new(model.parameters(), 1e-3)?;
    let x = Tensor::uniform(device, [64, 64], 0.0, 1.0, &rng)?;
    let y = Tensor::from_slice(device, &[3_i64; 64], [64])?;
    row(device, PERCEPTRON, time, &mut || {
        let loss = model.forward(&x)?.cross_entropy(&y)?;
        optimizer.step(loss.backward()?)
    })
}

fn transformer(device: &Device, gpt: Gpt, time: Time<'_>) -> Result<Value> {
    let rng = Rng::new(0);
    let mut model = Sequential::new().with("tokens", Embedding::new(device, gpt.classes, gpt.width, &rng)?);
    for layer in 0..gpt.layers {
        let block = TransformerBlock::new(device, gpt.width, gpt.heads, &rng)?.causal();
        model = model.with(&format!("block{layer}"), block);
    }
    model = model.with("head", Linear::new(device, gpt.width, gpt.classes, &rng)?);
    model.convert(gpt.dtype)?;
    let mut optimizer = AdamW::new(model.parameters(), 1e-3)?;
    let [sequences, length] = gpt.batch;
    let words: Vec<i64> = (0..(sequences * length) as i64).map(|place| place % gpt.classes as i64).collect();
    let x = Tensor::from_slice(device, &words, [sequences, length])?;
    let y = Tensor::from_slice(device, &words, [words.len()])?;
    row(device, &gpt.to_string(), time, &mut || {
        let loss = model.forward(&x)?.flatten(0, 1)?.cross_entropy(&y)?;
        optimizer.step(loss.backward()?)
    })
}

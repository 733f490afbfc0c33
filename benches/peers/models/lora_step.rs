//! Training steps of LoRA on a language model, for `finetune.py`: writes seconds per step, losses and the peak of the pool
//! as JSON.
//!
//! cargo run --release -p highwater-benches --example lora_step -- MODEL.gguf TOKENS.json

use std::fs;
use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context, ensure};
use clap::Parser;
use highwater::io::{Gguf, GgufLimits};
use highwater::models::Llama;
use highwater::prelude::*;

/// The rows of a batch, of `LEN` tokens each.
const ROWS: usize = 4;
const LEN: usize = 256;

#[derive(Debug, Parser)]
struct Args {
    /// The model, a GGUF file of the architecture of Llama
    model: PathBuf,

    /// A JSON list of tokens
    tokens: PathBuf,

    #[arg(long, default_value_t = 8)]
    steps: usize,

    #[arg(long, default_value_t = 2)]
    threads: usize,

    /// Compute products in bf16
    #[arg(long)]
    bf16: bool,

    /// The file of the results
    #[arg(long, value_name = "JSON")]
    json: Option<PathBuf>,

    /// Print the memory report
    #[arg(long)]
    report: bool,
}

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    let text = fs::read_to_string(&args.tokens).with_context(|| args.tokens.display().to_string())?;
    let tokens: Vec<i64> = serde_json::from_str(&text)?;
    ensure!(tokens.len() >= args.steps * ROWS * LEN, "{} tokens for {} steps", tokens.len(), args.steps);
    let runtime = Runtime::builder().threads(args.threads).build()?;
    let device = runtime.cpu()?;
    let model = Llama::from_gguf(&Gguf::open(&args.model, &GgufLimits::default())?, &device)?;
    for (name, parameter) in model.parameters() {
        if !(name.ends_with("q_proj.weight") || name.ends_with("v_proj.weight")) {
            parameter.freeze();
        }
    }
    let trained = model.parameters().into_iter().filter(|(_, parameter)| !parameter.is_frozen());
    let mut optimizer = AdamW::new(trained.collect::<Vec<_>>(), 1e-5)?;
    let (mut losses, mut seconds) = (Vec::new(), Vec::new());
    for batch in tokens.chunks_exact(ROWS * LEN).take(args.steps) {
        let start = Instant::now();
        let inputs = Tensor::from_slice(&device, batch, [ROWS, LEN])?;
        let targets: Vec<i64> =
            batch.chunks_exact(LEN).flat_map(|row| row[1..].iter().copied().chain([-100])).collect();
        let targets = Tensor::from_slice(&device, &targets, [ROWS * LEN])?;
        let loss = {
            let _guard = args.bf16.then(|| autocast(DType::BF16)).transpose()?;
            let logits = model.forward(&inputs)?.flatten(0, 1)?;
            logits.cross_entropy_with(&targets, CrossEntropyOptions { ignore_index: Some(-100), ..CrossEntropyOptions::default() })?
        };
        losses.push(loss.item::<f32>()?);
        optimizer.step(loss.backward()?)?;
        seconds.push(start.elapsed().as_secs_f64());
        println!("{} {:.6} {:.3} s", losses.len() - 1, losses[losses.len() - 1], seconds[seconds.len() - 1]);
    }
    Ok(())
}

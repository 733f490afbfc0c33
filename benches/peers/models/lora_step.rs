//! Training steps of LoRA on a language model, for `finetune.py`: writes seconds and CPU seconds per step, and losses, as
//! JSON.
//!
//! cargo run --release -p highwater-benches --example lora_step -- MODEL.gguf TOKENS.json

use std::fs;
use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context, ensure};
use clap::Parser;
use highwater::io::{Gguf, GgufLimits};
use highwater::models::{LanguageModel, Llama};
use highwater::nn::recompute::{Recomputation, Recompute};
use highwater::nn::{Lora, lora};
use highwater::prelude::*;
use serde_json::json;

/// The rows of a batch, of `LEN` tokens each.
const ROWS: usize = 4;
const LEN: usize = 256;

#[derive(Debug, Parser)]
struct Args {
    /// The model, a GGUF file of the architecture of Llama
    model: PathBuf,

    /// A JSON list of tokens
    tokens: PathBuf,

    #[arg(long, default_value_t = 4)]
    steps: usize,

    #[arg(long, default_value_t = 2)]
    threads: usize,

    /// Compute products in bf16
    #[arg(long)]
    bf16: bool,

    /// Keep the weights in the blocks of the file
    #[arg(long)]
    quantized: bool,

    /// Run each layer again in the backward pass
    #[arg(long)]
    recompute: bool,

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
    let model = {
        let file = Gguf::open(&args.model, &GgufLimits::default())?;
        if args.quantized {
            Llama::from_gguf_quantized(&file, &device)?
        } else {
            Llama::from_gguf(&file, &device)?
        }
    };
    let adapters = lora(&model, &Lora::default(), &Rng::new(0))?;
    for (name, parameter) in adapters.parameters() {
        if name.ends_with("lora_A.weight") {
            parameter.set(&first_values(&device, parameter.value().dims())?)?;
        }
    }
    let mut optimizer = AdamW::new(adapters.parameters(), 1e-3)?.with_weight_decay(0.0)?;
    let layers = model.config().layers;
    let recompute = Recompute::new().with("model.layers", Recomputation::of_blocks(layers, 0..layers));
    let _recompute = args.recompute.then(|| recompute.enter());
    let (mut seconds, mut cpu_seconds, mut losses) = (Vec::new(), Vec::new(), Vec::new());
    for batch in tokens.chunks_exact(ROWS * LEN).take(args.steps) {
        let (start, cpu_start) = (Instant::now(), cpu_time());
        let next = batch.chunks_exact(LEN).flat_map(|row| row[1..].iter().copied().chain([-100]));
        let targets = Tensor::from_slice(&device, &next.collect::<Vec<i64>>(), [ROWS, LEN])?;
        let loss = {
            let _mixed = args.bf16.then(|| mixed(DType::BF16)).transpose()?;
            model.loss(&Tensor::from_slice(&device, batch, [ROWS, LEN])?, &targets)?
        };
        losses.push(loss.item::<f32>()?);
        optimizer.step(loss.backward()?)?;
        seconds.push(start.elapsed().as_secs_f64());
        cpu_seconds.push(cpu_time() - cpu_start);
        println!("{:.6} {:.3} s", losses[losses.len() - 1], seconds[seconds.len() - 1]);
    }
    if args.report {
        println!("{}", memory_report(&device)?);
    }
    if let Some(path) = args.json {
        fs::write(
            path,
            json!({"seconds": seconds, "cpu_seconds": cpu_seconds, "losses": losses}).to_string(),
        )?;
    }
    Ok(())
}

/// The first values of A in both libraries.
fn first_values(device: &Device, dims: &[usize]) -> highwater::Result<Tensor> {
    let (count, inputs) = (dims.iter().product::<usize>(), dims[1]);
    let value = |i: usize| (2.0 * i as f64 / (count - 1) as f64 - 1.0) / (inputs as f64).sqrt();
    let values: Vec<f32> = (0..count).map(|i| value(i) as f32).collect();
    Tensor::from_slice(device, &values, dims)
}

/// The CPU seconds of all threads of this process; 0 on other systems than Linux.
fn cpu_time() -> f64 {
    let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
    // Fields 14 and 15 count 10 ms each; the command in parentheses is the second one.
    fields.skip(11).take(2).filter_map(|field| field.parse::<f64>().ok()).sum::<f64>() / 100.0
}

//! Finds the fastest way to train GPTs of three sizes and ResNet-50 on GPUs that this machine does not have.
//!
//! cargo run --release --example make_it_fit
//! cargo run --release --example make_it_fit -- --model 1.5B --device a100-80g --full --html plans.html

#[path = "../predict_gpt/model.rs"]
mod gpt;
mod resnet;

use std::path::PathBuf;

use anyhow::{Context, bail};
use clap::Parser;
use highwater::distributed::{Shard, World};
use highwater::fit::{Fit, FitError, Plan, Space, fit_ranks};
use highwater::io::write_atomically;
use highwater::prelude::*;
use highwater::tracking::table::{Table, bytes};
use highwater::tracking::write_plans_page;

use gpt::{Gpt, SIZES, Size};
use resnet::ResNet50;

/// The tokens of a sequence.
const CONTEXT: usize = 1024;

/// The steps of a real run; a trial has fewer.
const STEPS: u64 = 1000;

/// Find the fastest way to train models on GPUs that this machine does not have.
#[derive(Debug, Parser)]
struct Args {
    /// The models: 124M, 1.5B, 7B (GPTs), resnet50
    #[arg(
        long = "model",
        value_name = "NAMES",
        value_delimiter = ',',
        default_value = "124M,1.5B,7B,resnet50"
    )]
    models: Vec<String>,

    /// The devices
    #[arg(
        long = "device",
        value_name = "PROFILES",
        value_delimiter = ';',
        default_value = "rtx-4090;a100-80g;h100-80g"
    )]
    devices: Vec<DeviceProfile>,

    /// Sequences or images of a step, on all ranks
    #[arg(long, value_name = "N", default_value_t = 64)]
    batch_size: usize,

    /// The numbers of GPUs to choose from. With several, they may divide the optimizer's state and the gradients
    #[arg(long, value_name = "NUMBERS", value_delimiter = ',', default_value = "1")]
    ranks: Vec<usize>,

    /// Train in f32 only, not in mixed precision of bf16
    #[arg(long)]
    f32: bool,

    /// Print all plans of each front
    #[arg(long)]
    full: bool,

    /// Write the plans of the last model and device as a page
    #[arg(long, value_name = "FILE.html")]
    html: Option<PathBuf>,
}

/// A model to train.
#[derive(Clone, Copy, Debug)]
enum Model {
    Gpt(Size),
    ResNet50,
}

impl Model {
    fn named(name: &str) -> Option<Self> {
        match name {
            "resnet50" => Some(Self::ResNet50),
            _ => SIZES.into_iter().find(|size| size.name == name).map(Self::Gpt),
        }
    }

    /// Trains with a plan, as on a real device.
    fn train(self, device: &Device, plan: &Plan, world: &World) -> highwater::Result<()> {
        match self {
            Self::Gpt(size) => {
                let gpt = Gpt::new(device, size, CONTEXT)?;
                steps(&gpt, plan, world, || gpt.gradients(device, plan.micro_batch, CONTEXT))
            }
            Self::ResNet50 => {
                let network = ResNet50::new(device)?;
                steps(&network, plan, world, || network.loss(device, plan.micro_batch)?.backward())
            }
        }
    }
}

/// Training steps with AdamW, whose gradients are sums over micro-batches.
fn steps(
    model: &impl Module,
    plan: &Plan,
    world: &World,
    mut micro_batch: impl FnMut() -> highwater::Result<Gradients>,
) -> highwater::Result<()> {
    let mut optimizer = world.sharded(plan.shard, model.parameters(), |own| AdamW::new(own, 3e-4))?;
    for _ in 0..plan.steps(STEPS) {
        let mut gradients = micro_batch()?;
        for _ in 1..plan.accumulate {
            gradients.accumulate(&mut micro_batch()?)?;
        }
        if plan.accumulate > 1 {
            gradients.scale(1.0 / plan.accumulate as f64)?;
        }
        optimizer.step(gradients)?;
    }
    Ok(())
}

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    let mut table = Table::new(&[
        "model",
        "on",
        "fastest plan",
        "peak",
        "of",
        "step",
        "samples/s",
        "limited by",
        "found in",
    ]);
    let mut last = None;
    for name in &args.models {
        let model = Model::named(name).with_context(|| format!("--model: there is no {name}"))?;
        for device in &args.devices {
            let found = match find(&args, model, device) {
                Ok(found) => found,
                Err(FitError::NothingFits(nothing)) => {
                    let plan = format!("none: {} of {}", bytes(nothing.required_bytes), nothing.plan);
                    table.line(name, [device.name(), &plan].map(str::to_owned));
                    continue;
                }
                Err(error) => bail!("{name} on {device}: {error}"),
            };
            let best = found.chosen();
            let limit = found.limit_bytes.map_or_else(String::new, bytes);
            let cells = [
                device.name().to_owned(),
                best.plan.to_string(),
                bytes(best.peak_bytes),
                limit,
                format!("{:.3} s", best.seconds),
                format!("{:.1}", best.samples_per_second()),
                best.work.limit().to_string(),
                format!("{:.2} s, {} dry runs", found.search_seconds, found.runs),
            ];
            table.line(name, cells);
            if args.full {
                println!("{name} on {device}\n\n{found}");
            }
            last = Some(found);
        }
    }
    print!("{table}");
    match (args.html, last) {
        (Some(path), Some(found)) => {
            Ok(write_atomically(&path, |out| write_plans_page(&found.chart(), out))?)
        }
        _ => Ok(()),
    }
}

fn find(args: &Args, model: Model, device: &DeviceProfile) -> Result<Fit, FitError> {
    let space = Space::new(args.batch_size).ranks(args.ranks.iter().copied());
    let space = if args.f32 { space } else { space.precisions([None, Some(DType::BF16)]) };
    let space = space.shards([Shard::None, Shard::Optimizer, Shard::Gradients]);
    fit_ranks(device.clone(), &space, |device, plan, world| model.train(device, plan, world))
}

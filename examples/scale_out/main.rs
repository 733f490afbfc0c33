//! Predicts the memory of every rank and the time of a step for GPTs on up to 1,024 ranks.
//!
//! cargo run --release --example scale_out -- --model 124M --world-size 1,2,4,8
//!
//! Peaks come from rehearsals of the ranks on a dry device. Times come from a model of compute, latency and bandwidth.

mod clusters;
#[path = "../predict_gpt/model.rs"]
mod model;
mod ranks;
mod time;

use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context, ensure};
use clap::Parser;
use highwater::distributed::Shard;
use highwater::io::write_atomically;
use highwater::tracking::table::{Table, bytes, count};
use highwater::{DeviceProfile, Error};
use serde_json::{Value, json};

use clusters::{CLUSTERS, Cluster, GPU_TFLOPS};
use model::{SIZES, Size, VOCABULARY};
use ranks::{Peaks, Training};
use time::{Algorithm, Step, broadcast, multiply_adds};

/// More memory than any rank needs, so that each has a peak.
const DEVICE: &str = "h100-80g,memory=8TiB";

/// The headings of the table of efficiencies.
const SCALING: [&str; 10] =
    ["GPT", "link", "compute", "ring 0.8", "0.5", "ordered 0.8", "0.5", "batch", "all-gather", "broadcasts"];

/// The most times a rank's batch grows in the search for an efficient one.
const MOST_WORK: usize = 4096;

/// Predict the memory of every rank and the time of a step for GPTs.
#[derive(Debug, Parser)]
struct Args {
    /// The models: 124M, 1.5B, 7B
    #[arg(long = "model", value_name = "NAMES", value_delimiter = ',', default_value = "124M,1.5B,7B")]
    models: Vec<String>,

    /// The numbers of ranks
    #[arg(
        long = "world-size",
        value_name = "NUMBERS",
        value_delimiter = ',',
        default_value = "1,2,4,8,16,32,64,128,256,512,1024"
    )]
    sizes: Vec<u16>,

    /// The memory that ranks divide: none, optimizer, gradients
    #[arg(
        long = "shard",
        value_name = "NAMES",
        value_delimiter = ',',
        default_value = "none,optimizer,gradients"
    )]
    shards: Vec<String>,

    /// Sequences per rank and step
    #[arg(long, value_name = "N", default_value_t = 2)]
    batch_size: usize,

    /// The length of a sequence
    #[arg(long, value_name = "N", default_value_t = 1024)]
    context: usize,

    /// Compute matrix products in f32 instead of bf16
    #[arg(long)]
    f32: bool,

    /// The device of each rank, as for a dry run
    #[arg(long, value_name = "PROFILE", default_value = DEVICE)]
    profile: DeviceProfile,

    /// The TFLOP/s of a GPU in a training step; by default as measured
    #[arg(long, value_name = "N", default_value_t = GPU_TFLOPS)]
    gpu_tflops: f64,

    /// Write the figures as JSON to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    ensure!(args.sizes.iter().all(|size| *size > 0), "--world-size: expected at least one rank");
    ensure!(args.batch_size > 0 && args.context > 0, "--batch-size, --context: expected at least 1");
    ensure!(args.gpu_tflops > 0.0, "--gpu-tflops: expected more than 0");
    let find = |name: &String| {
        let size = SIZES.into_iter().find(|size| size.name == name);
        size.with_context(|| format!("--model: there is no {name}; expected 124M, 1.5B or 7B"))
    };
    let models = args.models.iter().map(find).collect::<anyhow::Result<Vec<Size>>>()?;
    let find = |name: &String| {
        Shard::from_name(name)
            .with_context(|| format!("--shard: there is no {name}; expected {:?}", Shard::NAMES))
    };
    let shards = args.shards.iter().map(find).collect::<anyhow::Result<Vec<Shard>>>()?;

    let (mut memory, mut times) = (Vec::new(), Vec::new());
    let mut table = Table::new(&SCALING);
    for size in models {
        let training = Training {
            size,
            batch: args.batch_size,
            context: args.context,
            bf16: !args.f32,
            device: args.profile.clone(),
        };
        // With enough memory for a peak, so that the parameters and buckets are known.
        let two = Training { device: DEVICE.parse()?, ..training.clone() }.peaks(2, Shard::None)?;
        println!("GPT {}: {} parameter tensors, {}", size.name, two.parameters, bytes(two.bytes() as u64));
        peaks(&training, &args.sizes, &shards, &mut memory)?;
        scaling(&training, &two, &args, &mut table, &mut times)?;
    }
    let most = args.sizes.iter().max().copied().unwrap_or(1);
    println!(
        "The most ranks, up to {most}, that reach an efficiency of 0.8 and of 0.5; then, with {most} ranks, the"
    );
    println!(
        "sequences per rank for 0.8 in a ring, and the exchange of parameters if ranks divide the optimizer\n"
    );
    println!("{table}");
    if let Some(path) = &args.json {
        let results = json!({
            "device": args.profile.to_string(), "bf16": !args.f32, "batch_size": args.batch_size,
            "context": args.context, "memory": memory, "time": times,
        });
        write_atomically(path, |mut file| {
            serde_json::to_writer_pretty(&mut file, &results)?;
            writeln!(file)
        })?;
    }
    Ok(())
}

/// Prints the peaks of all ranks of one model.
fn peaks(training: &Training, sizes: &[u16], shards: &[Shard], rows: &mut Vec<Value>) -> anyhow::Result<()> {
    let start = Instant::now();
    let mut heading = vec!["ranks"];
    for shard in shards {
        heading.extend(match shard {
            Shard::None => &["none"][..],
            Shard::Optimizer => &["optimizer: worst", "smallest"],
            Shard::Gradients => &["gradients: worst", "smallest"],
        });
    }
    heading.push("rehearsals");
    let mut table = Table::new(&heading);
    for &ranks in sizes {
        let (mut cells, mut rehearsals) = (Vec::new(), 0);
        for &shard in shards {
            let name = shard.name();
            let row = json!({ "model": training.size.name, "ranks": ranks, "shard": name });
            match training.peaks(ranks.into(), shard) {
                Ok(peaks) => {
                    let (worst, peak) = peaks.worst();
                    rehearsals += peaks.ranks.len();
                    cells.push(bytes(peak));
                    cells.extend((shard != Shard::None).then(|| bytes(peaks.smallest())));
                    rows.push(merge(
                        row,
                        json!({
                            "worst": peak, "worst_rank": worst, "smallest": peaks.smallest(),
                            "rehearsals": peaks.ranks.len(),
                        }),
                    ));
                }
                Err(Error::Allocation { op, .. }) => {
                    cells.push(format!("out of memory in {op}"));
                    cells.extend((shard != Shard::None).then(String::new));
                    rows.push(merge(row, json!({ "out_of_memory_in": op })));
                }
                Err(error) => return Err(error.into()),
            }
        }
        cells.push(count(rehearsals as u64));
        table.line(&ranks.to_string(), cells);
    }
    let time = start.elapsed().as_secs_f64();
    println!("the peak of each rank on {}, predicted in {time:.1} s\n\n{table}", training.device);
    Ok(())
}

fn merge(mut row: Value, more: Value) -> Value {
    if let (Value::Object(row), Value::Object(more)) = (&mut row, more) {
        row.extend(more);
    }
    row
}

/// Adds the lines of one model: where scaling stops with each link.
fn scaling(
    training: &Training,
    peaks: &Peaks,
    args: &Args,
    table: &mut Table,
    rows: &mut Vec<Value>,
) -> anyhow::Result<()> {
    let most = args.sizes.iter().max().copied().unwrap_or(1).into();
    for Cluster { name, flops, link } in CLUSTERS {
        let step = step(training, peaks, flops.unwrap_or(args.gpu_tflops * 1e12));
        let stops = |algorithm: Algorithm| {
            [0.8, 0.5].map(|efficiency| step.scales_to(link, algorithm, efficiency, most))
        };
        let [ring, ordered] = Algorithm::ALL.map(stops);
        let batch =
            step.work_for(link, Algorithm::Ring, 0.8, most, MOST_WORK).map(|factor| factor * args.batch_size);
        let gather = Algorithm::Ring.all_gather(link, peaks.bytes(), most);
        let tensors = peaks.parameters as f64;
        let broadcasts = tensors * broadcast(link, peaks.bytes() / tensors, most);
        let mut cells = vec![name.to_owned(), milliseconds(step.compute)];
        cells.extend(ring.into_iter().chain(ordered).map(|ranks| count(ranks as u64)));
        cells.push(batch.map_or_else(|| "-".into(), |batch| count(batch as u64)));
        cells.extend([gather, broadcasts].map(milliseconds));
        table.line(training.size.name, cells);
        let steps = Algorithm::ALL.map(|algorithm| {
            let seconds: Vec<_> =
                args.sizes.iter().map(|ranks| step.seconds(link, algorithm, (*ranks).into())).collect();
            json!({ "algorithm": algorithm.name(), "seconds": seconds })
        });
        rows.push(json!({
            "model": training.size.name, "link": name, "compute_seconds": step.compute, "ranks": args.sizes,
            "steps": steps, "ring": ring, "ordered": ordered, "batch_for_0.8": batch,
            "all_gather_seconds": gather, "broadcast_seconds": broadcasts,
        }));
    }
    Ok(())
}

fn milliseconds(seconds: f64) -> String {
    format!("{:.0} ms", seconds * 1e3)
}

/// The step of one rank. The output layer shares the token table, whose gradient is complete only when backward ends.
fn step(training: &Training, peaks: &Peaks, flops: f64) -> Step {
    let table = VOCABULARY * training.size.width * size_of::<f32>();
    let early = peaks.buckets.iter().take_while(|bucket| **bucket < table).count();
    let (early, last) = peaks.buckets.split_at(early);
    let bytes = |buckets: &[usize]| buckets.iter().map(|bucket| *bucket as f64).collect();
    // A multiplication and an addition.
    let compute = 2.0 * multiply_adds(training.size, training.batch, training.context) / flops;
    Step { compute, early: bytes(early), last: bytes(last) }
}

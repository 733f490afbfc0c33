//! Times ops on a device, the overhead of small ops, and whole training steps.
//!
//! cargo run --release --example op_bench -- --device cuda:0
//!
//! Everything runs once before it is timed: kernels are compiled and memory is in the pool. Each round ends by reading
//! a value, which waits for asynchronous devices.

mod ops;
mod steps;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Parser;
use highwater::alloc::{DeviceId, DeviceKind};
use highwater::io::write_atomically;
use highwater::{Device, Result, Runtime, Tensor};
use serde_json::{Value, json};

/// The duration of a round, unless one call takes longer.
const ROUND: Duration = Duration::from_millis(20);

/// The most calls per round: their work is queued on the device.
const MOST_CALLS: u32 = 2000;

/// Time ops on a device.
#[derive(Debug, Parser)]
struct Args {
    /// The device: cpu or cuda:N
    #[arg(long, default_value = "cpu")]
    device: DeviceId,

    /// Use small sizes, as on the CPU; without it, sizes that fill a GPU
    #[arg(long)]
    small: bool,

    /// Time only ops and steps whose name contains this text
    #[arg(long, value_name = "TEXT", default_value = "")]
    only: String,

    /// Rounds; the median counts
    #[arg(long, value_name = "N", default_value_t = 7, value_parser = clap::value_parser!(u16).range(1..))]
    rounds: u16,

    /// Write the figures as JSON to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// An op to time.
pub(crate) struct Case {
    pub(crate) name: String,
    /// The fewest bytes to read and write.
    pub(crate) bytes: f64,
    /// Multiplications and additions; 0 for ops that are limited by memory.
    pub(crate) flops: f64,
    pub(crate) call: Box<dyn FnMut() -> Result<()>>,
}

/// The problem sizes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    /// Elements of a large tensor, a square number.
    pub(crate) side: usize,
    /// Rows and columns of matrices.
    pub(crate) product: usize,
    /// Sequences times heads, and their length.
    pub(crate) attention: [usize; 2],
    /// Images, channels, height and width.
    pub(crate) images: [usize; 2],
    /// Whether to use small models.
    pub(crate) small: bool,
}

/// Times calls and waits for the device.
struct Clock {
    probe: Tensor,
    rounds: u16,
}

impl Clock {
    /// Waits for all submitted work.
    fn wait(&self) -> Result<()> {
        self.probe.item_or(0.0_f32).map(drop)
    }

    /// The seconds for this number of calls, until the device has finished.
    fn round(&self, calls: u32, call: &mut dyn FnMut() -> Result<()>) -> Result<f64> {
        let start = Instant::now();
        (0..calls).try_for_each(|_| call())?;
        self.wait()?;
        Ok(start.elapsed().as_secs_f64())
    }

    /// The seconds per call: the median of the rounds.
    fn time(&self, call: &mut dyn FnMut() -> Result<()>) -> Result<f64> {
        // Compiles, loads and allocates everything once.
        self.round(2, call)?;
        let once = self.round(1, call)?.max(1e-7);
        let calls = ((ROUND.as_secs_f64() / once) as u32).clamp(1, MOST_CALLS);
        let rounds = (0..self.rounds).map(|_| Ok(self.round(calls, call)? / f64::from(calls)));
        let mut seconds = rounds.collect::<Result<Vec<f64>>>()?;
        seconds.sort_by(f64::total_cmp);
        Ok(seconds[seconds.len() / 2])
    }
}

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    let runtime = Runtime::builder().build()?;
    let device = runtime.device(args.device)?;
    let is_small = args.small || args.device.kind != DeviceKind::Cuda;
    let sizes = if is_small {
        Sizes { side: 1 << 9, product: 256, attention: [4, 128], images: [2, 16], small: true }
    } else {
        Sizes { side: 1 << 13, product: 4096, attention: [64, 1024], images: [32, 64], small: false }
    };
    let clock = Clock { probe: Tensor::zeros(&device, 1)?, rounds: args.rounds };

    println!("{device}: medians of {} rounds", args.rounds);
    println!("{:<52}{:>12}{:>12}{:>12}", "op", "µs", "GB/s", "GFLOP/s");
    let mut failed = 0;
    let mut table = Vec::new();
    for make in ops::TABLE {
        // A failed op fills its own row; the others are timed all the same.
        let made = make(&device, sizes);
        if made.as_ref().is_ok_and(|case| !case.name.contains(&args.only)) {
            continue;
        }
        match made.and_then(|mut case| Ok((clock.time(&mut *case.call)?, case))) {
            Ok((seconds, case)) => table.push(row(&case, seconds)),
            Err(error) => {
                failed += 1;
                println!("failed: {error}");
                table.push(json!({ "error": error.to_string() }));
            }
        }
    }
    let overhead = if args.only.is_empty() { overhead(&device, &clock)? } else { Vec::new() };
    let steps = steps::time(&device, sizes, &args.only, &mut |call| clock.time(call))?;

    if let Some(path) = &args.json {
        let results = json!({
            "device": device.to_string(), "ops": table, "overhead": overhead, "training_steps": steps, "failed": failed,
        });
        write_atomically(path, |mut file| {
            serde_json::to_writer_pretty(&mut file, &results)?;
            writeln!(file)
        })?;
    }
    anyhow::ensure!(failed == 0, "{failed} ops failed");
    Ok(())
}

fn row(case: &Case, seconds: f64) -> Value {
    let (bytes, flops) = (case.bytes / seconds, case.flops / seconds);
    let figure = |per_second: f64| match per_second {
        0.0 => String::new(),
        rate => format!("{:.1}", rate / 1e9),
    };
    println!("{:<52}{:>12.2}{:>12}{:>12}", case.name, seconds * 1e6, figure(bytes), figure(flops));
    json!({
        "op": case.name,
        "microseconds": seconds * 1e6,
        "bytes_per_second": (bytes > 0.0).then_some(bytes),
        "flop_per_second": (flops > 0.0).then_some(flops),
    })
}

/// The overhead of small ops: queued, and with a wait after each.
fn overhead(device: &Device, clock: &Clock) -> Result<Vec<Value>> {
    let (x, w) = (Tensor::ones(device, [4, 16])?, Tensor::ones(device, [16, 16])?);
    let leaf = w.clone().requiring_grad()?;
    type Small<'a> = (&'a str, Box<dyn FnMut() -> Result<()> + 'a>);
    let calls: [Small<'_>; 6] = [
        ("add, 64 elements", Box::new(|| x.add(&x).map(drop))),
        ("matmul, 4 by 16 by 16", Box::new(|| x.matmul(&w).map(drop))),
        ("matmul, 4 by 16 by 16, recorded", Box::new(|| x.matmul(&leaf).map(drop))),
        ("a view", Box::new(|| x.transpose(0, 1).map(drop))),
        ("nothing, and a wait", Box::new(|| clock.wait())),
        ("add, 64 elements, and a wait", Box::new(|| x.add(&x).map(drop).and_then(|()| clock.wait()))),
    ];
    println!("\n{:<52}{:>12}", "overhead of an op", "µs");
    let mut rows = Vec::new();
    for (name, mut call) in calls {
        let microseconds = clock.time(&mut *call)? * 1e6;
        println!("{name:<52}{microseconds:>12.2}");
        rows.push(json!({ "op": name, "microseconds": microseconds }));
    }
    Ok(rows)
}

//! Measures steps per second of training loops, and prints the losses to show that all peers learn the same.
//!
//! ```text
//! cargo run --release -- mlp cnn gpt tiny
//! cargo run --release -- --threads 2 --blocks 5 resnet18 lstm gru gpt512 mlp4096
//! RAYON_NUM_THREADS=1 cargo run --release --features candle,burn -- --peer highwater,candle,burn mlp cnn gpt tiny
//! RAYON_NUM_THREADS=1 cargo run --release --features dfdx -- --peer highwater,dfdx mlp tiny
//! python3 torch_peer.py mlp cnn gpt tiny
//! chrt -f 10 target/release/peers-train --estimate --threads 2 mlp cnn gpt tiny    # estimated and measured times
//! mpiexec -n 2 target/release/peers-train --ranks gpt    # with the feature mpi; see ranks.py
//! python3 compare.py target/release/peers-train resnet18 lstm gpt512 mlp4096
//! ```

#[cfg(feature = "burn")]
mod burn;
#[cfg(feature = "candle")]
mod candle;
#[cfg(feature = "dfdx")]
mod dfdx;
mod highwater;
mod workload;

use std::time::Instant;

use ::highwater::{Device, DeviceProfile, memory_report};
use clap::{Parser, ValueEnum};

use self::workload::Workload;

/// One training step: the number of the step in, the loss out.
pub type Step = Box<dyn FnMut(usize) -> anyhow::Result<f32>>;

/// A prepared workload.
pub struct Program {
    pub step: Step,
    /// The device that accounts for the memory, if there is one.
    pub device: Option<Device>,
    /// Whether this process prints the result.
    pub prints: bool,
}

impl From<Step> for Program {
    fn from(step: Step) -> Self {
        Self { step, device: None, prints: true }
    }
}

/// Times training loops.
#[derive(Debug, Parser)]
struct Args {
    /// Threads that share the work of an op.
    #[arg(long, default_value_t = 1)]
    threads: usize,
    /// Frameworks, in turn.
    #[arg(long = "peer", value_enum, value_delimiter = ',', default_value = "highwater")]
    peers: Vec<Peer>,
    /// Timed blocks of steps; their median counts.
    #[arg(long, default_value_t = 9)]
    blocks: usize,
    /// Compares the estimated times of Highwater's steps with measured ones, in f32 and in mixed precision, on one thread and on
    /// as many as `--threads` says.
    #[arg(long)]
    estimate: bool,
    /// Estimates the training steps of `examples/op_bench` on a GPU by its name.
    #[arg(long, value_name = "PROFILE")]
    estimate_gpu: Option<DeviceProfile>,
    #[command(flatten)]
    ours: highwater::Options,
    /// The programs to train.
    #[arg(value_enum, required_unless_present = "estimate_gpu")]
    workloads: Vec<Workload>,
}

/// A framework that this program was built with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Peer {
    Highwater,
    #[cfg(feature = "candle")]
    Candle,
    #[cfg(feature = "burn")]
    Burn,
    #[cfg(feature = "dfdx")]
    Dfdx,
}

impl Peer {
    fn start(self, workload: Workload, threads: usize, ours: highwater::Options) -> anyhow::Result<Program> {
        if self != Self::Highwater {
            let set = std::env::var("RAYON_NUM_THREADS").ok().and_then(|text| text.parse().ok());
            anyhow::ensure!(
                set == Some(threads),
                "{self:?} has its threads from RAYON_NUM_THREADS: set it to {threads}"
            );
        }
        match self {
            Self::Highwater => highwater::start(workload, threads, ours),
            #[cfg(feature = "candle")]
            Self::Candle => candle::start(workload).map(Program::from),
            #[cfg(feature = "burn")]
            Self::Burn => burn::start(workload).map(Program::from),
            #[cfg(feature = "dfdx")]
            Self::Dfdx => dfdx::start(workload).map(Program::from),
        }
    }
}

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    if let Some(profile) = &args.estimate_gpu {
        return highwater::estimate::estimate_gpu(profile);
    }
    if args.estimate {
        return highwater::estimate::compare(&args.workloads, args.threads, args.blocks, args.ours);
    }
    for &workload in &args.workloads {
        for &peer in &args.peers {
            measure(peer, workload, &args)?;
        }
    }
    Ok(())
}

/// Runs one program and prints a line.
fn measure(peer: Peer, workload: Workload, args: &Args) -> anyhow::Result<()> {
    let mut program = peer.start(workload, args.threads, args.ours)?;
    let (mut losses, mut times) = (Vec::new(), Vec::new());
    for block in 0..=args.blocks {
        let start = Instant::now();
        for _ in 0..workload.steps_per_block() {
            losses.push((program.step)(losses.len())?);
        }
        if block > 0 {
            times.push(start.elapsed().as_secs_f64() / workload.steps_per_block() as f64);
        }
    }
    if !program.prints {
        return Ok(());
    }
    times.sort_by(f64::total_cmp);
    let median = times.get(times.len() / 2).copied().unwrap_or(f64::NAN);
    let loss = |step: usize| losses.get(step - 1).map_or_else(|| "-".to_owned(), |loss| format!("{loss:.5}"));
    print!(
        "{:9} {:8} threads {}: {:9.1} steps/s, {:8.3} ms (best {:8.3}); loss at step 1, 10, 100: {} {} {}",
        format!("{peer:?}").to_lowercase(),
        format!("{workload:?}").to_lowercase(),
        args.threads,
        median.recip(),
        median * 1e3,
        times.first().copied().unwrap_or(f64::NAN) * 1e3,
        loss(1),
        loss(10),
        loss(100),
    );
    let report = program.device.as_ref().map(memory_report).transpose()?;
    if let Some(peak) = report.as_ref().and_then(|report| report.peak.as_ref()) {
        print!("; peak {:.1} MiB", peak.bytes as f64 / f64::from(1 << 20));
    }
    println!();
    if let Some(report) = report.filter(|_| args.ours.report) {
        println!("{report}");
    }
    Ok(())
}

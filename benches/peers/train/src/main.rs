//! Steps per second of small training loops, and the losses by which one sees that all learn the same.
//!
//! ```text
//! cargo run --release -- mlp cnn gpt tiny
//! python3 torch_peer.py mlp cnn gpt tiny
//! ```

mod highwater;
mod workload;

use std::time::Instant;

use clap::Parser;

use self::workload::Workload;

/// One training step: the number of the step in, the loss out.
pub type Step = Box<dyn FnMut(usize) -> anyhow::Result<f32>>;

/// Times training loops.
#[derive(Debug, Parser)]
struct Args {
    /// Threads that share the work of an op.
    #[arg(long, default_value_t = 1)]
    threads: usize,
    /// Timed blocks of steps; their median counts.
    #[arg(long, default_value_t = 9)]
    blocks: usize,
    /// What to train.
    #[arg(value_enum, required = true)]
    workloads: Vec<Workload>,
}

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    for &workload in &args.workloads {
        let mut step = highwater::start(workload, args.threads)?;
        let (mut losses, mut number, mut times) = (Vec::new(), 0, Vec::new());
        for block in 0..=args.blocks {
            let start = Instant::now();
            for _ in 0..workload.steps_per_block() {
                losses.push(step(number)?);
                number += 1;
            }
            if block > 0 {
                times.push(start.elapsed().as_secs_f64() / workload.steps_per_block() as f64);
            }
        }
        times.sort_by(f64::total_cmp);
        let median = times.get(times.len() / 2).copied().unwrap_or(f64::NAN);
        let loss = |step: usize| losses.get(step - 1).copied().unwrap_or(f32::NAN);
        println!(
            "highwater {:4} threads {}: {:9.1} steps/s, {:8.3} ms (best {:8.3}); loss at step 1, 10, 100: {:.5} {:.5} {:.5}",
            format!("{workload:?}").to_lowercase(),
            args.threads,
            median.recip(),
            median * 1e3,
            times.first().copied().unwrap_or(f64::NAN) * 1e3,
            loss(1),
            loss(10),
            loss(100),
        );
    }
    Ok(())
}

//! Times and packs traces with Highwater's allocators and third-party ones, in one process, interleaved.
//!
//! `cargo run --release -- TRACE…` prints the table; `--json FILE` writes it for programs too.

mod growth;
mod others;
mod ours;
mod peer;
mod program;
mod report;
mod threads;

use std::path::PathBuf;

use anyhow::{Result, ensure};
use clap::{Parser, ValueEnum};

use peer::{Locked, Peer, empty_slots, smallest_pool, time_random_free, time_replay};
use program::Program;
use report::{Report, Row};

/// Compare allocators on real allocation traces.
#[derive(Debug, Parser)]
struct Options {
    /// Traces, plain or .gz.
    #[arg(required = true)]
    traces: Vec<PathBuf>,
    /// Rounds over all allocators; each figure is a median over the rounds.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Write the figures to this file as JSON.
    #[arg(long)]
    json: Option<PathBuf>,
    /// The measurement.
    #[arg(long, value_enum, value_delimiter = ',', default_values = ["replay", "random", "space", "growth"])]
    measure: Vec<Measure>,
    /// Only allocators whose name contains one of these.
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Measure {
    /// Nanoseconds an event of a replay, cold and warm.
    Replay,
    /// Nanoseconds a pair with many blocks freed in random order.
    Random,
    /// The smallest pool on which a trace fits.
    Space,
    /// The most reserved by a pool that grows, by separate regions and by one that is continued in place.
    Growth,
    /// Nanoseconds an event of one thread and of two on one allocator, each with a trace of its own.
    Threads,
}

/// The pool that times are measured on, in bytes.
const ROOMY: u64 = 16 << 30;
/// The pool for allocators that need real memory behind it.
const ROOMY_REAL: u64 = 2 << 30;
/// Replays of a trace in one warm measurement.
const REPLAYS: usize = 6;

/// One allocator and how it is measured.
struct Contestant {
    name: &'static str,
    thread_safe: bool,
    warm: fn(&Program) -> (f64, f64),
    random: fn(usize) -> f64,
    smallest: Option<fn(&Program) -> Option<u64>>,
}

/// Cold and warm nanoseconds an event.
fn times<P: Peer, const CAPACITY: u64>(program: &Program) -> (f64, f64) {
    let mut peer = P::new(CAPACITY, program.slots as u32 + 1);
    let mut slots = empty_slots::<P>(program);
    let cold = time_replay(&mut peer, program, &mut slots);
    let mut warm: Vec<f64> = (0..REPLAYS).map(|_| time_replay(&mut peer, program, &mut slots)).collect();
    (cold, report::median(&mut warm))
}

fn random<P: Peer, const CAPACITY: u64>(count: usize) -> f64 {
    let mut peer = P::new(CAPACITY, count as u32 + 1);
    time_random_free(&mut peer, count, 1);
    time_random_free(&mut peer, count, (200_000 / count).max(1))
}

fn contestant<P: Peer, const CAPACITY: u64>(
    name: &'static str,
    thread_safe: bool,
    space: bool,
) -> Contestant {
    Contestant {
        name,
        thread_safe,
        warm: times::<P, CAPACITY>,
        random: random::<P, CAPACITY>,
        smallest: space.then_some(smallest_pool::<P> as fn(&Program) -> Option<u64>),
    }
}

fn contestants() -> Vec<Contestant> {
    vec![
        contestant::<ours::Arena, ROOMY>("highwater arena", false, false),
        contestant::<ours::Pool, ROOMY>("highwater pool", true, true),
        contestant::<ours::Marked, ROOMY>("highwater marked", true, false),
        contestant::<others::Offset, ROOMY>("offset-allocator", false, true),
        contestant::<Locked<others::Offset>, ROOMY>("offset-allocator + Mutex", true, false),
        contestant::<others::Vma<true>, ROOMY>("VMA min-memory", false, true),
        contestant::<others::Vma<false>, ROOMY>("VMA", false, true),
        contestant::<others::RangeAlloc, ROOMY>("range-alloc", false, true),
        contestant::<others::GpuAlloc, ROOMY>("gpu-alloc", false, false),
        contestant::<others::Rlsf, ROOMY_REAL>("rlsf (in memory)", false, true),
        contestant::<others::TalcPeer, ROOMY_REAL>("talc (in memory)", false, true),
    ]
}

/// Numbers of blocks that are freed in random order.
const LIVE: [usize; 3] = [1_000, 10_000, 1_000_000];

fn main() -> Result<()> {
    let options = Options::parse();
    ensure!(options.rounds > 0, "--rounds must be at least 1");
    let programs: Vec<Program> =
        options.traces.iter().map(|path| Program::load(path)).collect::<Result<_>>()?;
    let mut contestants = contestants();
    if !options.only.is_empty() {
        contestants.retain(|one| options.only.iter().any(|part| one.name.contains(part)));
    }
    ensure!(!contestants.is_empty(), "no allocator's name contains any of {:?}", options.only);
    let mut rows: Vec<Row> = contestants.iter().map(|one| Row::new(one.name, one.thread_safe)).collect();
    let measures = |measure| options.measure.contains(&measure);
    if measures(Measure::Threads) {
        threads::compare(&programs, options.rounds);
    }
    if options.measure == [Measure::Threads] {
        return Ok(());
    }
    for round in 0..options.rounds {
        eprintln!("round {} of {}", round + 1, options.rounds);
        for program in programs.iter().filter(|_| measures(Measure::Replay)) {
            for (one, row) in contestants.iter().zip(&mut rows) {
                let (cold, warm) = (one.warm)(program);
                row.add_times(&program.name, cold, warm);
            }
        }
        for live in LIVE.into_iter().filter(|_| measures(Measure::Random)) {
            for (one, row) in contestants.iter().zip(&mut rows) {
                // A linear scan over a million gaps would take hours, a real gigabyte of headers minutes.
                let bearable =
                    live <= 10_000 || one.name.starts_with("highwater") || one.name.starts_with("offset");
                if bearable && (live < 1_000_000 || round == 0) {
                    row.add_random(live, (one.random)(live));
                }
            }
        }
    }
    if measures(Measure::Space) {
        for (one, row) in contestants.iter().zip(&mut rows) {
            let Some(smallest) = one.smallest else { continue };
            eprintln!("smallest pools of {}", one.name);
            for program in &programs {
                let pool = smallest(program);
                row.add_space(&program.name, pool.map(|bytes| bytes as f64 / program.peak_live as f64));
            }
        }
    }
    let growth = if measures(Measure::Growth) { growth::measure(&programs) } else { Vec::new() };
    let names = programs.iter().map(|program| program.name.clone()).collect();
    let report = Report { traces: names, rows, growth };
    print!("{report}");
    if let Some(path) = options.json {
        std::fs::write(&path, serde_json::to_string_pretty(&report)?)?;
    }
    Ok(())
}

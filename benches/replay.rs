//! Times warm replays of the digits trace without real memory: through pools, and through policies alone.
//!
//! Run with `cargo bench -p highwater-benches --bench replay`; `HIGHWATER_TRACES` names a folder of further
//! `*.trace.gz`. The end compares a packed event with best fit, in alternating rounds.

use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bfc_core::setting::TRACES;
use bfc_core::{
    AddressOnlyMemory, Bfc, BfcAllocator, BfcConfig, Bytes, Packed, PackedAllocator, PackedConfig, Packing,
    PackingOptions, PlacementRequest, Policy, Span,
};
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use flate2::bufread::GzDecoder;
use highwater_traces::{Replayer, Step, Trace, TraceEvent, TraceLimits, packing_of};

/// More than any of the traces needs.
const POOL: Bytes = Bytes::gib(16);

/// The number of alternating rounds.
const ROUNDS: usize = 25;

fn traces() -> Vec<(String, Trace)> {
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("../data/digits.trace.gz");
    let others = TRACES.variable.and_then(std::env::var_os).and_then(|folder| std::fs::read_dir(folder).ok());
    let mut others: Vec<PathBuf> = others
        .into_iter()
        .flatten()
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.to_string_lossy().ends_with(".trace.gz"))
        .collect();
    others.sort();
    std::iter::once(own).chain(others).map(|path| (name(&path), read(&path))).collect()
}

fn name(path: &Path) -> String {
    path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}

fn read(path: &Path) -> Trace {
    let file = File::open(path).expect("the trace is there");
    let reader = BufReader::new(GzDecoder::new(BufReader::new(file)));
    Trace::parse(reader, &TraceLimits::default()).expect("the trace is well formed")
}

fn packing(trace: &Trace) -> Arc<Packing> {
    let packing = packing_of(trace, &Step::Whole, &PackingOptions::default(), &mut |_| true);
    Arc::new(packing.expect("a whole trace can be packed"))
}

fn pools(c: &mut Criterion) {
    let mut group = c.benchmark_group("replay");
    for (name, trace) in traces() {
        group.throughput(Throughput::Elements(trace.events().len() as u64));
        let mut replayer = Replayer::new(&trace);
        let source = || Arc::new(AddressOnlyMemory::new());
        let configs = [
            ("bfc", BfcConfig::new(POOL)),
            ("bfc-tensorflow", BfcConfig::tensorflow(POOL).with_allow_growth(false)),
        ];
        for (policy, config) in configs {
            let pool = BfcAllocator::new(policy, source(), config);
            group.bench_function(BenchmarkId::new(policy, &name), |b| {
                b.iter(|| replayer.run(&pool).expect("the pool is large enough"));
            });
        }
        let config = PackedConfig::packed(POOL, packing(&trace)).with_allow_growth(false);
        let pool = PackedAllocator::new("packed", source(), config);
        group.bench_function(BenchmarkId::new("packed", &name), |b| {
            b.iter(|| replayer.run(&pool).expect("the pool is large enough"));
        });
    }
    group.finish();
}

/// A trace for policies alone, without lock and accounts.
struct Script {
    /// The bytes of an allocation, or 0 for a free, and the block's index.
    events: Vec<(u64, u32)>,
    /// Blocks live at the end.
    rest: Vec<u32>,
    slots: Vec<u32>,
}

impl Script {
    fn new(trace: &Trace) -> Self {
        let (mut events, mut live, mut free) = (Vec::new(), Vec::<u32>::new(), Vec::new());
        let mut count = 0;
        for event in trace.events() {
            match *event {
                TraceEvent::Alloc { bytes, .. } => {
                    let entry = free.pop().unwrap_or_else(|| {
                        count += 1;
                        count - 1
                    });
                    live.push(entry);
                    events.push((bytes.max(1), entry));
                }
                // A free never fails for a live block.
                TraceEvent::Free { block } => {
                    let entry = std::mem::replace(&mut live[block as usize], u32::MAX);
                    free.push(entry);
                    events.push((0, entry));
                }
                // Occupied parts are the business of offline packers.
                _ => {}
            }
        }
        let rest = live.into_iter().filter(|&entry| entry != u32::MAX).collect();
        Self { events, rest, slots: vec![0; count as usize] }
    }

    /// Replays all events and frees the remaining blocks.
    fn play(&mut self, policy: &mut impl Policy) {
        for &(bytes, entry) in &self.events {
            let slot = &mut self.slots[entry as usize];
            if bytes == 0 {
                policy.free(*slot).expect("the block is live");
            } else {
                *slot = policy.place(&PlacementRequest::new(bytes)).expect("there is room").slot;
            }
        }
        for &entry in &self.rest {
            policy.free(self.slots[entry as usize]).expect("the block is live");
        }
    }

    fn time(&mut self, policy: &mut impl Policy) -> Duration {
        let start = Instant::now();
        self.play(policy);
        start.elapsed()
    }
}

fn with_memory<P: Policy>(mut policy: P) -> P {
    policy.add_region(Span { address: 1 << 40, bytes: POOL.get() }, false).expect("a sound region");
    policy
}

fn policies(c: &mut Criterion) {
    let mut ratios = Vec::new();
    let mut group = c.benchmark_group("policy");
    for (name, trace) in traces() {
        let mut script = Script::new(&trace);
        let mut best_fit = with_memory(Bfc::default());
        let mut packed = with_memory(Packed::new(&packing(&trace), Bfc::default()));
        group.throughput(Throughput::Elements(trace.events().len() as u64));
        group.bench_function(BenchmarkId::new("bfc", &name), |b| b.iter(|| script.play(&mut best_fit)));
        group.bench_function(BenchmarkId::new("packed", &name), |b| b.iter(|| script.play(&mut packed)));

        let rounds = (0..ROUNDS).map(|_| (script.time(&mut packed), script.time(&mut best_fit)));
        let (packed, best_fit): (Vec<Duration>, Vec<Duration>) = rounds.unzip();
        let per_event = |mut times: Vec<Duration>| {
            times.sort();
            times[ROUNDS / 2].as_secs_f64() * 1e9 / trace.events().len() as f64
        };
        ratios.push((name, per_event(packed), per_event(best_fit)));
    }
    group.finish();
    println!("policies alone, ns per event: packed, best fit, ratio");
    for (name, packed, best_fit) in ratios {
        println!("{name:<24}{packed:6.2}{best_fit:8.2}{:8.2}", packed / best_fit);
    }
}

criterion_group!(benches, pools, policies);
criterion_main!(benches);

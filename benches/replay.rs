//! Replay of the digits run's own trace through pools, warm, on address-only memory.
//!
//! Run with `cargo bench --bench replay`; set `HIGHWATER_TRACES` to a folder of `*.trace.gz` to replay others too.

use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bfc_core::{AddressOnlyMemory, BfcAllocator, BfcConfig, Bytes};
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use flate2::bufread::GzDecoder;
use highwater_tracking::{Trace, TraceLimits, replay};

fn traces() -> Vec<PathBuf> {
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("data/digits.trace.gz");
    let others = std::env::var_os("HIGHWATER_TRACES").and_then(|folder| std::fs::read_dir(folder).ok());
    let mut others: Vec<PathBuf> = others
        .into_iter()
        .flatten()
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.to_string_lossy().ends_with(".trace.gz"))
        .collect();
    others.sort();
    std::iter::once(own).chain(others).collect()
}

fn replays(c: &mut Criterion) {
    let mut group = c.benchmark_group("replay");
    for path in traces() {
        let file = File::open(&path).expect("the trace is there");
        let reader = BufReader::new(GzDecoder::new(BufReader::new(file)));
        let trace = Trace::parse(reader, &TraceLimits::default()).expect("the trace is well formed");
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        group.throughput(Throughput::Elements(trace.events().len() as u64));
        let configs = [
            ("bfc", BfcConfig::new(Bytes::gib(16))),
            ("bfc-tensorflow", BfcConfig::tensorflow(Bytes::gib(16)).with_allow_growth(false)),
        ];
        for (policy, config) in configs {
            let pool = BfcAllocator::new(policy, Arc::new(AddressOnlyMemory::new()), config);
            group.bench_function(BenchmarkId::new(policy, &name), |b| {
                b.iter(|| replay(&trace, &pool).expect("the pool is large enough"));
            });
        }
    }
    group.finish();
}

criterion_group!(benches, replays);
criterion_main!(benches);

//! Traces of real training runs, if the checkout contains them. They are too large to ship.

use std::fs::File;
use std::io::BufReader;
use std::path::Path;
use std::sync::Arc;

use bfc_core::{AddressOnlyMemory, Allocator, BfcAllocator, BfcConfig, Bytes};
use flate2::read::GzDecoder;
use highwater_traces::{Trace, TraceLimits, replay};

const NAMES: &[&str] = &["bert", "gpt2", "lstm", "resnet18"];

fn read(name: &str) -> Option<Trace> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/traces");
    let file = File::open(folder.join(format!("{name}.trace.gz"))).ok()?;
    Some(Trace::parse(BufReader::new(GzDecoder::new(file)), &TraceLimits::default()).expect("a trace"))
}

fn traces() -> Vec<(&'static str, Trace)> {
    let traces: Vec<_> = NAMES.iter().filter_map(|name| Some((*name, read(name)?))).collect();
    if traces.len() < NAMES.len() {
        println!("skipped: {} of {} traces are not here", NAMES.len() - traces.len(), NAMES.len());
    }
    traces
}

#[test]
fn the_figures_of_real_traces_are_those_of_their_headers() {
    for (name, trace) in traces() {
        let header = |key: &str| trace.header(key).unwrap().parse::<u64>().unwrap();
        assert_eq!(trace.peak_live_bytes(), header("peak_live_bytes"), "{name}");
        assert_eq!(trace.events().len() as u64, header("events"), "{name}");
        let mut text = Vec::new();
        trace.write(&mut text).unwrap();
        assert_eq!(Trace::parse(&text[..], &TraceLimits::default()).unwrap(), trace, "{name}");
    }
}

#[test]
fn real_traces_replay_through_a_pool_and_leave_it_empty() {
    for (name, trace) in traces() {
        let config = BfcConfig::new(Bytes::gib(2));
        let pool = BfcAllocator::new(name, Arc::new(AddressOnlyMemory::new()), config);
        let summary = replay(&trace, &pool).unwrap();
        assert!(summary.peak_in_use >= trace.peak_live_bytes(), "{name}");
        assert!(summary.peak_reserved >= summary.peak_in_use, "{name}");
        assert_eq!(summary.peak_in_use, pool.stats().peak_bytes_in_use, "{name}");
        assert_eq!(pool.stats().live_allocs, 0, "{name}");
    }
}

//! How much a growing pool reserves from its source, compared with the live bytes.
//!
//! The peers do not grow: each manages one given space. The benchmark compares TensorFlow's growth rule with
//! Highwater's, in the same pool.

use std::collections::BTreeMap;
use std::sync::Arc;

use bfc_core::{AddressOnlyMemory, Allocator, BfcAllocator, BfcConfig, Bytes};
use serde::Serialize;

use crate::ours::Pool;
use crate::peer::{empty_slots, replay};
use crate::program::Program;

/// More than any trace needs, so that the limit has no effect.
const LIMIT: Bytes = Bytes(1 << 40);

/// The most reserved as a multiple of the live peak, by trace.
#[derive(Debug, Serialize)]
pub struct Row {
    pub name: &'static str,
    pub reserved: BTreeMap<String, f64>,
}

/// One growth rule.
struct Way {
    name: &'static str,
    config: fn(Bytes) -> BfcConfig,
    /// Whether the source continues regions.
    joins: bool,
}

const WAYS: [Way; 4] = [
    Way { name: "highwater, separate regions", config: BfcConfig::new, joins: false },
    Way { name: "highwater, one region continued", config: BfcConfig::new, joins: true },
    Way { name: "TensorFlow's rules, separate regions", config: BfcConfig::tensorflow, joins: false },
    Way { name: "TensorFlow's rules, one region continued", config: BfcConfig::tensorflow, joins: true },
];

/// Replays every trace once with each growth rule. The result is the same on every machine, because it
/// contains no times.
pub fn measure(programs: &[Program]) -> Vec<Row> {
    let measured = |way: Way| {
        let ratio =
            |program: &Program| (program.name.clone(), reserved(program, (way.config)(LIMIT), way.joins));
        Row { name: way.name, reserved: programs.iter().map(ratio).collect() }
    };
    WAYS.into_iter().map(measured).collect()
}

fn reserved(program: &Program, config: BfcConfig, joins: bool) -> f64 {
    let source = AddressOnlyMemory::new().with_coalescing(joins);
    let mut pool = Pool(BfcAllocator::new("growing", Arc::new(source), config));
    assert!(replay(&mut pool, program, &mut empty_slots::<Pool>(program)), "the limit is out of reach");
    pool.0.stats().peak_bytes_reserved as f64 / program.peak_live as f64
}

//! The measurements as a table.

use std::path::Path;

use highwater_tracking::table::{self, Table, sparkline};

use super::measure::Measurement;

/// The width of the fragmentation curve.
const SPARKLINE: usize = 24;

/// One row per trace and policy, then the failures.
pub(super) fn table(measurements: &[Measurement], wide: bool) -> String {
    let with_smallest = measurements.iter().any(|measurement| measurement.smallest.is_some());
    let mut heading = vec!["trace, policy", "events", "ns/event", "cold", "peak live", "reserved", "waste"];
    if with_smallest {
        heading.extend(["smallest pool", "waste"]);
    }
    heading.push("fragmentation over time");
    let mut table =
        Table::new(&heading).omitting(&["fragmentation over time", "cold", "events", "waste"]).wide(wide);
    let mut trace = None;
    for measurement in measurements {
        if trace != Some(&measurement.trace) {
            trace = Some(&measurement.trace);
            let figures = ["", "", table::bytes(measurement.peak_live_bytes).as_str()].map(str::to_owned);
            let events = measurement.events.to_string();
            table.line(&file_name(&measurement.trace), std::iter::once(events).chain(figures));
        }
        table.line(&format!("  {}", measurement.policy), cells(measurement, with_smallest));
    }
    let starred = measurements.iter().filter_map(|measurement| measurement.smallest);
    let note = match starred.filter_map(|smallest| smallest.larger_pool_that_fails_bytes).next() {
        Some(_) => "* a larger pool failed\n",
        None => "",
    };
    let beside = measurements.iter().filter_map(|measurement| {
        let packing = measurement.packing.filter(|packing| packing.allocations_beside_packing > 0)?;
        Some(format!(
            "\n{}, {}: {} allocations followed the packing, and {} took memory beside its range\n",
            measurement.trace,
            measurement.policy,
            packing.packed_allocations,
            packing.allocations_beside_packing
        ))
    });
    let failures = measurements.iter().filter_map(|measurement| {
        let failure = measurement.failure.as_ref()?;
        Some(format!("\n{}, {}: {}\n", measurement.trace, measurement.policy, failure.message))
    });
    format!("{table}{note}{}", beside.chain(failures).collect::<String>())
}

fn cells(measurement: &Measurement, with_smallest: bool) -> Vec<String> {
    let time = |time: Option<f64>| time.map_or_else(|| "-".to_owned(), |time| format!("{time:.1}"));
    let ratio = |ratio: Option<f64>| ratio.map_or_else(|| "-".to_owned(), |ratio| format!("{ratio:.3}"));
    let mut cells = vec![
        String::new(),
        time(measurement.ns_per_event),
        time(measurement.cold_ns_per_event),
        String::new(),
        table::bytes(measurement.peak_reserved_bytes),
        ratio(measurement.waste),
    ];
    if with_smallest {
        let smallest = measurement.smallest;
        let bytes = smallest.and_then(|smallest| smallest.smallest_pool_bytes);
        // A star: a larger pool was too small.
        let star = smallest.and_then(|smallest| smallest.larger_pool_that_fails_bytes).map_or("", |_| "*");
        cells.push(bytes.map_or_else(|| "none".to_owned(), |bytes| format!("{}{star}", table::bytes(bytes))));
        cells.push(ratio(smallest.and_then(|smallest| smallest.smallest_pool_waste)));
    }
    cells.push(sparkline(measurement.timeline.iter().map(|sample| sample.fragmentation), SPARKLINE));
    cells
}

/// The last part of a path, enough for a table.
fn file_name(path: &str) -> String {
    Path::new(path).file_name().map_or_else(|| path.to_owned(), |name| name.to_string_lossy().into_owned())
}

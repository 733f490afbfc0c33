//! Compares every column of a live report with the report of its recording. The tests of the examples use it too.

use crate::tracking::{Recording, Report};
use serde_json::{Map, Value};

/// Times, which a recording measures by itself.
const TIMES: [&str; 2] = ["time_ns", "mean_held_ns"];

/// Columns that only one of the two knows. docs/columns.md lists those of recordings.
const ONE_SIDED: [&str; 13] = [
    "run",
    "at_ns",
    "total_peak",
    "streams",
    "peak_parts",
    "failures",
    "marks",
    "growth",
    "frees",
    "live_peak_bytes",
    "longest_held_ns",
    "age_ns",
    "unlisted_layers",
];

/// The columns that name a row.
const NAMES: [&str; 8] = ["scope", "op", "phase", "category", "thread", "name", "pool", "stream"];

/// Checks that the report at the end of a recording, which the live run made, equals the report of its events.
pub(crate) fn check(recording: &Recording) {
    let live = &recording.summary().expect("the recording is complete").report;
    let of = |report: &Report| match serde_json::to_value(report) {
        Ok(Value::Object(report)) => report,
        other => panic!("{other:?}"),
    };
    let (live, recorded) = (of(live), of(&Report::from_recording(recording)));
    assert!(live["places"].as_array().is_some_and(|places| !places.is_empty()));
    same_objects("", &live, &recorded);
}

fn same_objects(table: &str, live: &Map<String, Value>, recorded: &Map<String, Value>) {
    for key in live.keys().chain(recorded.keys()) {
        // Only recordings count the blocks of ops and threads, and the sums of categories.
        let is_recorded = matches!(
            (table, key.as_str()),
            ("places" | "ops" | "threads", "allocations") | ("categories", "total_bytes")
        );
        if is_recorded || TIMES.contains(&&**key) || ONE_SIDED.contains(&&**key) {
            continue;
        }
        let [left, right] = [live, recorded].map(|object| object.get(key).unwrap_or(&Value::Null));
        match (left, right) {
            (Value::Array(left), Value::Array(right)) if left.iter().chain(right).all(Value::is_object) => {
                same_rows(key, left, right);
            }
            (Value::Object(left), Value::Object(right)) => same_objects(key, left, right),
            // A share went through the text of the file.
            (Value::Number(left), Value::Number(right)) if left.is_f64() => {
                let difference = left.as_f64().unwrap() - right.as_f64().unwrap();
                assert!(difference.abs() < 1e-12, "{key} of {table}: {live:?} and {recorded:?}");
            }
            _ => assert_eq!(left, right, "{key} of {table}: {live:?} and {recorded:?}"),
        }
    }
}

/// Compares rows in any order. A thread that began no op has a row only in a recording.
fn same_rows(table: &str, live: &[Value], recorded: &[Value]) {
    let name = |row: &Value| NAMES.map(|key| row.get(key).map(Value::to_string));
    for row in live {
        let same = recorded.iter().find(|other| name(other) == name(row));
        let same = same.unwrap_or_else(|| panic!("{table} of the recording has no {row}"));
        same_objects(table, row.as_object().unwrap(), same.as_object().unwrap());
    }
    for row in recorded.iter().filter(|row| !live.iter().any(|other| name(other) == name(row))) {
        assert!(table == "threads" && row["calls"] == 0, "{table} of the live report has no {row}");
    }
}

//! `highwater report` and `highwater diff` of PyTorch snapshots, recorded by PyTorch.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

const MIB: u64 = 1 << 20;

fn snapshot(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../traces/tests/data/pytorch-2.15").join(name)
}

fn highwater(arguments: &[&str], files: &[&str]) -> Output {
    let files = files.iter().map(|name| snapshot(name));
    Command::new(env!("CARGO_BIN_EXE_highwater")).args(arguments).args(files).output().unwrap()
}

fn text(output: &Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn json(arguments: &[&str], files: &[&str]) -> Value {
    serde_json::from_str(&text(&highwater(&[arguments, &["--json"]].concat(), files))).unwrap()
}

#[test]
fn the_report_explains_reserved_memory() {
    let report = text(&highwater(&["report"], &["streams.pickle"]));
    // The other parts depend on the categories.
    let parts = ["PyTorch's", "stream ", "over time", "reserved, not", "settings ", "The replay"];
    let is_own = |part: &&str| parts.iter().any(|start| part.starts_with(start));
    let own: Vec<&str> = report.split("\n\n").filter(is_own).collect();
    assert_eq!(own.join("\n\n"), include_str!("golden/streams.txt").trim_end());
    assert!(report.lines().all(|line| line.chars().count() <= 100));
}

#[test]
fn the_json_of_a_report_has_the_figures_of_the_allocator() {
    let report = json(&["report"], &["streams.pickle"]);
    assert_eq!(report["peak"]["bytes"], report["pytorch"]["peak_allocated"]["allocated_bytes"]);
    let peak = &report["pytorch"]["peak_reserved"];
    assert_eq!(peak["reserved_bytes"], 82 * MIB);
    assert_eq!(peak["causes"]["idle"]["other_streams_bytes"], 30 * MIB);
    assert_eq!(report["pytorch"]["tried"][0]["peak_reserved_bytes"], 82 * MIB);
    assert_eq!(report["pools"][0]["peak_reserved"], 82 * MIB);
}

#[test]
fn a_snapshot_without_events_says_how_to_record_them() {
    let report = text(&highwater(&["report"], &["without-events.pickle"]));
    assert!(report.contains("_record_memory_history(max_entries="), "{report}");
    assert!(report.contains("free beside live blocks"), "{report}");
}

#[test]
fn annotations_are_indented() {
    let report = text(&highwater(&["report"], &["annotations.pickle"]));
    assert!(report.contains("\nProfilerStep#*  ") && report.contains("\n  forward  "), "{report}");
}

#[test]
fn snapshots_of_several_ranks_show_what_each_reserves() {
    let files = ["streams.pickle", "mempool.pickle"];
    let ranks = text(&highwater(&["report"], &files));
    assert!(ranks.contains("peak reserved") && ranks.contains("82.0 MiB"), "{ranks}");
    let ranks = json(&["report"], &files);
    assert_eq!(ranks["ranks"][0]["peak_reserved_bytes"], 82 * MIB);
    assert_eq!(ranks["ranks"][1]["peak_reserved_bytes"], 42 * MIB);
}

#[test]
fn the_difference_of_two_snapshots_has_the_causes() {
    let files = ["mempool.pickle", "streams.pickle"];
    let diff = text(&highwater(&["diff"], &files));
    let line = |start: &str| diff.lines().find(|line| line.starts_with(start)).unwrap_or_default().to_owned();
    let words = |line: String| {
        line.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(
        words(line("peak reserved")),
        ["peak reserved", "42.0 MiB", "82.0 MiB", "+40.0 MiB"],
        "{diff}"
    );
    assert!(diff.contains("idle segments, other streams"), "{diff}");
    let diff = json(&["diff"], &files);
    assert_eq!(diff["pytorch"]["peak_reserved"]["after"]["reserved_bytes"], 82 * MIB);
    let same = text(&highwater(&["diff"], &["streams.pickle", "streams.pickle"]));
    assert_eq!(same, "the runs have the same figures\n");
}

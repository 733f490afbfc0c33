//! A recorded run and everything made from it: report, page, diff, exports, and the view of a running program.

use std::path::Path;
use std::process::Command;

use highwater::tracking::{Recording, RecordingLimits};
use serde_json::Value;

/// Trains for an epoch, and records it.
fn record(path: &Path, batch: &str) {
    let json = path.with_extension("json");
    let output = Command::new(crate::built::example("train_digits"))
        .args(["--epochs", "1", "--threads", "1", "--batch-size", batch, "--device", "cpu", "--record"])
        .arg(path)
        .arg("--json")
        .arg(json)
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
}

/// Runs the command and returns its output.
fn highwater(command: &Path, arguments: &[&str], files: &[&Path]) -> Vec<u8> {
    let output = Command::new(command).args(arguments).args(files).output().unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{arguments:?}: {output:?}");
    output.stdout
}

#[test]
fn a_recorded_run_goes_through_every_command() {
    let folder = tempfile::TempDir::new().unwrap();
    let (run, other) = (folder.path().join("run.hwm"), folder.path().join("other.hwm"));
    record(&run, "64");
    record(&other, "32");
    let command = crate::built::highwater();
    let text = |arguments: &[&str], files: &[&Path]| {
        String::from_utf8(highwater(&command, arguments, files)).unwrap()
    };
    let json = |arguments: &[&str], files: &[&Path]| -> Value {
        serde_json::from_slice(&highwater(&command, arguments, files)).unwrap()
    };

    let file = std::fs::File::open(&run).unwrap();
    let recording = Recording::read(std::io::BufReader::new(file), &RecordingLimits::default()).unwrap();
    let peak = recording.peak().unwrap().bytes;

    let report = json(&["report", "--json"], &[&run]);
    assert_eq!(report["peak"]["bytes"], peak);

    assert!(text(&["report"], &[&run]).contains("the peak without each of its holders"));
    assert!(text(&["report", "--wide", "--by", "place"], &[&run]).contains("self peak"));

    let page = folder.path().join("run.html");
    text(&["report", "--html", page.to_str().unwrap()], &[&run]);
    assert!(std::fs::read_to_string(&page).unwrap().ends_with("</html>\n"));

    let moved = json(&["diff", "--json"], &[&run, &other]);
    assert!(
        moved["places"]
            .as_array()
            .unwrap()
            .iter()
            .any(|row| row["after"]["peak_bytes"] != row["before"]["peak_bytes"])
    );
    assert_eq!(text(&["diff"], &[&run, &run]), "the runs have the same figures\n");

    let snapshot = highwater(&command, &["export", "--format", "memory-viz"], &[&run]);
    assert!(snapshot.starts_with(&[0x80, 2]) && snapshot.ends_with(b"."));
    let snapshot = json(&["export", "--format", "memory-viz-json"], &[&run]);
    // The pool's region, older than its first block, is a segment that contains every block.
    let segments = snapshot["segments"].as_array().unwrap();
    assert!(!segments.is_empty() && !recording.regions().is_empty());
    let lies_in = |block: &highwater::tracking::BlockLife| {
        recording.regions().iter().any(|region| {
            region.address <= block.address && block.address + block.granted <= region.address + region.bytes
        })
    };
    assert!(recording.blocks().iter().all(lies_in));
    let trace = json(&["export", "--format", "chrome"], &[&run]);
    assert!(trace["traceEvents"].as_array().unwrap().len() > 1000);
    assert!(highwater(&command, &["export", "--format", "pprof"], &[&run]).starts_with(&[0x1f, 0x8b]));
    let folded = text(&["export", "--format", "folded"], &[&run]);
    let sum: u64 = folded.lines().map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap()).sum();
    assert_eq!(sum, peak);
    let picture = text(&["export", "--format", "svg"], &[&run]);
    assert!(picture.starts_with("<svg") && picture.trim_end().ends_with("</svg>"));

    let view = text(&["top"], &[&run]);
    assert!(view.contains("ended: ") && view.contains("peak "), "{view}");
}

/// In every example that records, each column of the live report equals that of the recording.
#[test]
fn live_reports_of_examples_equal_those_of_their_recordings() {
    let folder = tempfile::TempDir::new().unwrap();
    let path = folder.path().join("run.hwm");
    for (name, arguments) in [
        ("train_digits", "--epochs 1"),
        ("train_digits", "--epochs 1 --network cnn"),
        ("train_digits", "--epochs 1 --dry-run"),
        ("train_chargpt", "--steps 3 --sample 5"),
        ("autoencoder", "--epochs 1"),
        ("checkpointed_transformer", "--steps 3"),
        ("train_gan", "--steps 20"),
        ("custom_op", ""),
        ("linear_regression", ""),
        ("recover_from_oom", ""),
    ] {
        let mut command = Command::new(crate::built::example(name));
        command.args(arguments.split_whitespace()).arg("--record").arg(&path);
        let output = command.output().unwrap();
        assert!(output.status.success(), "{name} {arguments}: {output:?}");
        let file = std::io::BufReader::new(std::fs::File::open(&path).unwrap());
        crate::same_report::check(&Recording::read(file, &RecordingLimits::default()).unwrap());
    }
}

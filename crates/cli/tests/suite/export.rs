//! `highwater export` as people run it.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;

use bfc_core::{AddressOnlyMemory, Allocation, Allocator, BfcAllocator, BfcConfig, Bytes, Category, Request};
use highwater_traces::ExportFormat;
use highwater_tracking::{RunFacts, Tracker, module};
use tempfile::TempDir;

fn highwater(run: &Path, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_highwater")).arg("export").arg(run).args(arguments).output().unwrap()
}

fn record(directory: &TempDir) -> PathBuf {
    let path = directory.path().join("run.hwm");
    let config = BfcConfig::new(Bytes::mib(64));
    let pool: Arc<dyn Allocator> =
        Arc::new(BfcAllocator::new("cpu:0", Arc::new(AddressOnlyMemory::new()), config));
    let tracker = Tracker::new();
    tracker.start_recording(File::create(&path).unwrap(), &RunFacts::new("sample")).unwrap();
    {
        let _scope = module("net.fc1");
        let run = tracker.begin("matmul");
        let request = Request::new(1000).with_category(Category::Output);
        drop(Allocation::new(&run.track(&pool), &request).unwrap());
    }
    tracker.finish_recording(&[pool]).unwrap().unwrap();
    path
}

#[test]
fn every_format_goes_to_a_file_and_to_standard_output_alike() {
    let directory = TempDir::new().unwrap();
    let run = record(&directory);
    for format in ExportFormat::ALL {
        let file = directory.path().join(format.name());
        let output = highwater(&run, &["--format", format.name(), "--output", file.to_str().unwrap()]);
        assert!(output.status.success(), "{output:?}");
        assert!(String::from_utf8(output.stdout).unwrap().contains(" from 5 events in "));
        let output = highwater(&run, &["--format", format.name()]);
        assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
        assert_eq!(output.stdout, fs::read(file).unwrap(), "{format}");
    }
    let output = highwater(&run, &["--format", "folded"]);
    assert_eq!(output.stdout, b"sample;net;fc1;matmul;[output] 1024\n");
}

#[test]
fn exported_snapshots_replay_like_the_recording() {
    let directory = TempDir::new().unwrap();
    let run = record(&directory);
    let replayed = |file: &Path| {
        let file = file.to_str().unwrap();
        let arguments = ["replay", file, "--json", "--repeat", "1", "--policy", "bfc,packed"];
        let output = Command::new(env!("CARGO_BIN_EXE_highwater")).args(arguments).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        let rows: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        let figures = |row: &serde_json::Value| {
            ["events", "peak_live_bytes", "peak_in_use_bytes", "peak_reserved_bytes"]
                .map(|name| row[name].clone())
        };
        rows.as_array().unwrap().iter().map(figures).collect::<Vec<_>>()
    };
    let expected = replayed(&run);
    assert_eq!(expected[0][1], 1000);
    for format in ["memory-viz", "memory-viz-json"] {
        let file = directory.path().join(format);
        assert!(highwater(&run, &["--format", format, "-o", file.to_str().unwrap()]).status.success());
        assert_eq!(replayed(&file), expected, "{format}");
    }
}

#[test]
fn what_cannot_be_written_is_named_and_leaves_no_file() {
    let directory = TempDir::new().unwrap();
    let run = record(&directory);
    let nowhere = directory.path().join("none").join("run.json");
    let output = highwater(&run, &["--format", "chrome", "-o", nowhere.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.starts_with(&format!("highwater: {}: ", nowhere.display())), "{said}");
}

#[test]
fn unknown_formats_and_files_that_are_no_recordings_are_refused() {
    let directory = TempDir::new().unwrap();
    let run = record(&directory);
    let output = highwater(&run, &["--format", "png"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8(output.stderr).unwrap().contains("memory-viz-json"));
    fs::write(&run, "no recording").unwrap();
    let output = highwater(&run, &["--format", "svg"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8(output.stderr).unwrap().contains("run.hwm"));
}

#[test]
fn a_recording_that_was_cut_off_is_exported_up_to_the_cut() {
    let directory = TempDir::new().unwrap();
    let run = record(&directory);
    let whole = fs::read(&run).unwrap();
    fs::write(&run, &whole[..whole.len() - 1]).unwrap();
    let output = highwater(&run, &["--format", "folded"]);
    assert!(output.status.success());
    assert_eq!(output.stdout, b"sample;net;fc1;matmul;[output] 1024\n");
    assert!(String::from_utf8(output.stderr).unwrap().contains("read up to byte"));
}

/// Runs with a terminal as standard output.
#[cfg(target_os = "linux")]
fn at_a_terminal(run: &Path, arguments: &[&str]) -> Output {
    use rustix::fs::{Mode, OFlags, open};
    use rustix::pty::{OpenptFlags, openpt, ptsname, unlockpt};

    let ours = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    unlockpt(&ours).unwrap();
    let name = ptsname(&ours, Vec::new()).unwrap();
    let theirs = open(name, OFlags::RDWR | OFlags::NOCTTY, Mode::empty()).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_highwater"));
    command.arg("export").arg(run).args(arguments).stdout(theirs).output().unwrap()
}

#[cfg(target_os = "linux")]
#[test]
fn only_text_goes_to_a_terminal_unless_that_is_asked_for() {
    let directory = TempDir::new().unwrap();
    let run = record(&directory);
    for format in ExportFormat::ALL.into_iter().filter(|format| !format.is_text()) {
        let output = at_a_terminal(&run, &["--format", format.name()]);
        assert_eq!(output.status.code(), Some(1), "{format}");
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(said.contains("is a terminal: name a file with --output, or - to force it"), "{said}");
    }
    for arguments in [&["--format", "folded"][..], &["--format", "pprof", "--output", "-"]] {
        let output = at_a_terminal(&run, arguments);
        assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    }
    assert!(!Path::new("-").exists());
}

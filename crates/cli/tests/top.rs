//! `highwater top` where there is no terminal.

#![allow(clippy::unwrap_used, reason = "these are tests")]

use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, Output};

use highwater_tracking::{RunFacts, Tracker};
use tempfile::TempDir;

fn top(run: &Path) -> Output {
    Command::new(env!("CARGO_BIN_EXE_highwater")).arg("top").arg(run).output().unwrap()
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

#[test]
fn without_a_terminal_top_prints_what_there_is_and_leaves() {
    let directory = TempDir::new().unwrap();
    let run = directory.path().join("run.hwm");
    let tracker = Tracker::new();
    tracker.start_recording(File::create(&run).unwrap(), &RunFacts::new("sample")).unwrap();
    let output = top(&run);
    assert!(output.status.success(), "{output:?}");
    assert!(stdout(&output).starts_with("sample (") && stdout(&output).contains("recording: 0 events"));
    drop(tracker.begin("matmul"));
    tracker.finish_recording(&[]).unwrap();
    assert!(stdout(&top(&run)).contains("ended: 2 events"));

    // A block of which only a part is there yet is no error.
    let whole = fs::read(&run).unwrap();
    fs::write(&run, &whole[..whole.len() - 1]).unwrap();
    let output = top(&run);
    assert!(output.status.success() && stdout(&output).contains("recording: 2 events"), "{output:?}");
}

#[test]
fn what_cannot_be_followed_is_named() {
    let directory = TempDir::new().unwrap();
    let run = directory.path().join("run.hwm");
    let complaint = |output: &Output| {
        assert_eq!(output.status.code(), Some(2));
        String::from_utf8(output.stderr.clone()).unwrap()
    };
    assert!(complaint(&top(&run)).contains("run.hwm: "));
    fs::write(&run, "this is no recording at all").unwrap();
    assert!(complaint(&top(&run)).contains("run.hwm: byte 0: not a recording"));
}

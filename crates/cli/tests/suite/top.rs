//! `highwater top`, without a terminal and at one.

use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::Duration;

use highwater_tracking::{RunFacts, Tracker};
use tempfile::TempDir;

fn top(run: &Path) -> Output {
    command(&["--once"], run).output().unwrap()
}

fn command(options: &[&str], run: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_highwater"));
    command.arg("top").args(options).arg(run);
    command
}

/// Writes a recording under a temporary name and renames it.
fn record(run: &Path) {
    let temporary = run.with_extension("part");
    let tracker = Tracker::new();
    tracker.start_recording(File::create(&temporary).unwrap(), &RunFacts::new("sample")).unwrap();
    drop(tracker.begin("matmul"));
    tracker.finish_recording(&[]).unwrap();
    fs::rename(temporary, run).unwrap();
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
    let output = command(&[], &run).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert!(stdout(&output).starts_with("sample (") && stdout(&output).contains("recording: 0 events"));
    drop(tracker.begin("matmul"));
    tracker.finish_recording(&[]).unwrap();
    assert!(stdout(&top(&run)).contains("ended: 2 events"));

    // A partly written block is not an error.
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

#[test]
fn without_a_terminal_top_waits_quietly_for_its_file() {
    let directory = TempDir::new().unwrap();
    let run = directory.path().join("run.hwm");
    let mut command = command(&["--every", "10"], &run);
    let waiting = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // Long enough for a command that does not wait to fail.
    thread::sleep(Duration::from_millis(500));
    record(&run);
    let output = waiting.wait_with_output().unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    assert!(stdout(&output).contains("ended: 2 events"), "{output:?}");
}

#[test]
fn top_does_not_wait_for_a_folder() {
    let directory = TempDir::new().unwrap();
    let output = command(&[], directory.path()).output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{output:?}");
}

#[cfg(target_os = "linux")]
mod terminal {
    use std::io::{Read, Write};
    use std::process::Child;

    use rustix::fs::{Mode, OFlags, open};
    use rustix::pty::{OpenptFlags, openpt, ptsname, unlockpt};
    use rustix::termios::{Winsize, tcsetwinsize};

    use super::*;

    /// Runs the command in a new terminal; returns the other end.
    fn at_a_terminal(run: &Path) -> (Child, File) {
        let ours = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        unlockpt(&ours).unwrap();
        let name = ptsname(&ours, Vec::new()).unwrap();
        let theirs = open(name, OFlags::RDWR | OFlags::NOCTTY, Mode::empty()).unwrap();
        let size = Winsize { ws_row: 24, ws_col: 300, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&theirs, size).unwrap();
        // In a new session the terminal of the tests is not used.
        let mut command = Command::new("setsid");
        command.arg(env!("CARGO_BIN_EXE_highwater")).args(["top", "--every", "10"]).arg(run);
        let child = command
            .env("TERM", "xterm")
            .stdin(theirs.try_clone().unwrap())
            .stdout(theirs.try_clone().unwrap())
            .stderr(theirs)
            .spawn()
            .unwrap();
        (child, File::from(ours))
    }

    /// Reads what the command shows until it contains a text.
    fn read_until(terminal: &mut File, text: &str) {
        let (mut shown, mut bytes) = (String::new(), [0; 4096]);
        while !shown.contains(text) {
            // Fails when the command has ended.
            let count = terminal.read(&mut bytes).unwrap();
            shown += &String::from_utf8_lossy(&bytes[..count]);
        }
    }

    #[test]
    fn top_shows_that_it_waits_and_then_the_run() {
        let directory = TempDir::new().unwrap();
        let run = directory.path().join("run.hwm");
        let (mut child, mut terminal) = at_a_terminal(&run);
        read_until(&mut terminal, "run.hwm, which does not exist yet");
        record(&run);
        read_until(&mut terminal, "ended: 2 events");
        terminal.write_all(b"q").unwrap();
        assert!(child.wait().unwrap().success());
    }

    #[test]
    fn a_waiting_top_quits_on_ctrl_c() {
        let directory = TempDir::new().unwrap();
        let (mut child, mut terminal) = at_a_terminal(&directory.path().join("run.hwm"));
        read_until(&mut terminal, "which does not exist yet");
        terminal.write_all(b"\x03").unwrap();
        assert!(child.wait().unwrap().success());
    }
}

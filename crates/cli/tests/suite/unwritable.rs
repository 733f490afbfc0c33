//! Unwritable outputs of every command. An error leaves the old file and no temporary one.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use tempfile::TempDir;

/// The commands, each with the option that names its output.
const COMMANDS: &[&[&str]] = &[
    &["report", "INPUT", "--html"],
    &["export", "INPUT", "--format", "svg", "--output"],
    &["pack", "INPUT", "--output"],
];

/// Runs one of them with this input and output.
fn run(command: &[&str], input: &Path, path: &Path) -> Output {
    run_as(Command::new(env!("CARGO_BIN_EXE_highwater")), command, input, path)
}

fn run_as(mut program: Command, command: &[&str], input: &Path, path: &Path) -> Output {
    let arguments =
        command.iter().map(|&word| if word == "INPUT" { input.as_os_str() } else { word.as_ref() });
    program.args(arguments).arg(path).output().unwrap()
}

#[test]
fn an_unwritable_path_is_named_before_the_input_is_read() {
    let directory = TempDir::new().unwrap();
    // The input would be refused too: the error shows which was opened first.
    let input = directory.path().join("input");
    fs::write(&input, "neither a recording nor a trace").unwrap();
    let folder = directory.path().to_owned();
    let nowhere = directory.path().join("none").join("output");
    for &command in COMMANDS {
        for path in [&nowhere, &folder] {
            let output = run(command, &input, path);
            assert_eq!(output.status.code(), Some(1), "{command:?}");
            let said = String::from_utf8(output.stderr).unwrap();
            assert!(said.starts_with(&format!("highwater: {}: ", path.display())), "{said}");
            assert!(output.stdout.is_empty());
        }
    }
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1, "nothing else was made");
}

#[test]
fn a_refused_input_leaves_the_output_unchanged() {
    let directory = TempDir::new().unwrap();
    let (input, old, new) =
        (directory.path().join("input"), directory.path().join("old"), directory.path().join("new"));
    fs::write(&input, "neither a recording nor a trace").unwrap();
    fs::write(&old, "precious").unwrap();
    for &command in COMMANDS {
        for path in [&old, &new] {
            let output = run(command, &input, path);
            assert_eq!(output.status.code(), Some(2), "{command:?}");
        }
        assert_eq!(fs::read_to_string(&old).unwrap(), "precious");
        assert!(!new.exists());
    }
}

#[test]
fn inputs_are_never_overwritten() {
    let directory = TempDir::new().unwrap();
    let input = directory.path().join("input");
    let again = directory.path().join(".").join("input");
    fs::write(&input, "a 0 256 x\nf 0\n").unwrap();
    for &command in COMMANDS {
        for path in [&input, &again] {
            let output = run(command, &input, path);
            assert_eq!(output.status.code(), Some(1), "{command:?}");
            let said = String::from_utf8(output.stderr).unwrap();
            assert!(said.contains("this is an input file"), "{said}");
        }
        assert_eq!(fs::read_to_string(&input).unwrap(), "a 0 256 x\nf 0\n");
    }
}

#[cfg(unix)]
mod unix {
    use highwater_tracking::{RunFacts, Tracker};

    use super::*;

    /// Writes a recording that all of the commands read.
    fn record(path: &Path) {
        let tracker = Tracker::new();
        tracker.start_recording(fs::File::create(path).unwrap(), &RunFacts::new("sample")).unwrap();
        drop(tracker.begin("matmul"));
        tracker.finish_recording(&[]).unwrap();
    }

    #[test]
    fn a_full_disk_leaves_the_old_file() {
        let directory = TempDir::new().unwrap();
        let [input, old, new] = ["input", "old", "new"].map(|name| directory.path().join(name));
        record(&input);
        fs::write(&old, "precious").unwrap();
        for &command in COMMANDS {
            for path in [&old, &new] {
                // The shell's limit on file sizes acts like a full disk.
                let mut limited = Command::new("sh");
                limited.args(["-c", "trap '' XFSZ && ulimit -f 0 && exec \"$@\"", "sh"]);
                limited.arg(env!("CARGO_BIN_EXE_highwater"));
                let output = run_as(limited, command, &input, path);
                assert_eq!(output.status.code(), Some(1), "{command:?} {output:?}");
                let text = String::from_utf8(output.stderr).unwrap();
                assert!(text.starts_with(&format!("highwater: {}: ", path.display())), "{text}");
            }
            assert_eq!(fs::read_to_string(&old).unwrap(), "precious");
            assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 2, "{command:?}");
        }
    }

    #[test]
    fn devices_are_written_directly() {
        let directory = TempDir::new().unwrap();
        let input = directory.path().join("input");
        record(&input);
        for &command in COMMANDS {
            let output = run(command, &input, Path::new("/dev/stdout"));
            assert!(output.status.success() && !output.stdout.is_empty(), "{command:?} {output:?}");
            if cfg!(target_os = "linux") {
                let output = run(command, &input, Path::new("/dev/full"));
                let text = String::from_utf8(output.stderr).unwrap();
                assert!(text.starts_with("highwater: /dev/full: No space left"), "{command:?} {text}");
            }
        }
        assert!(run(COMMANDS[0], &input, Path::new("/dev/null")).status.success());
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
    }
}

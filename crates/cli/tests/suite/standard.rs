//! Standard input and output for the path `-`.

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::Arc;

use bfc_core::{AddressOnlyMemory, Allocation, Allocator, BfcAllocator, BfcConfig, Bytes, Request};
use highwater_tracking::{RunFacts, Tracker};
use tempfile::TempDir;

/// Two steps between marks with one name.
const TRACE: &str =
    "a 0 512 weights\n# mark: step\na 1 2000 hidden\nf 1\n# mark: step\na 2 1500 hidden\nf 2\n";

/// Runs the command in a folder, with this as its standard input.
fn highwater(folder: &Path, arguments: &[&str], input: &[u8]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_highwater"));
    command.args(arguments).current_dir(folder);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    // A reader that has enough closes the pipe.
    let _ = child.stdin.take().unwrap().write_all(input);
    child.wait_with_output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// Runs the command, which succeeds; its standard output.
fn stdout(folder: &TempDir, arguments: &[&str], input: &[u8]) -> String {
    let output = highwater(folder.path(), arguments, input);
    assert!(output.status.success(), "{arguments:?}: {}", text(&output.stderr));
    assert!(!folder.path().join("-").exists(), "{arguments:?} made a file called -");
    text(&output.stdout)
}

/// A recording, in the folder as `run.hwm` too.
fn recording(folder: &TempDir) -> Vec<u8> {
    let path = folder.path().join("run.hwm");
    let memory = Arc::new(AddressOnlyMemory::new());
    let pool: Arc<dyn Allocator> =
        Arc::new(BfcAllocator::new("cpu:0", memory, BfcConfig::new(Bytes::mib(1))));
    let tracker = Tracker::new();
    tracker.start_recording(File::create(&path).unwrap(), &RunFacts::new("sample")).unwrap();
    let run = tracker.begin("matmul");
    drop(Allocation::new(&run.track(&pool), &Request::new(1024)).unwrap());
    drop(run);
    tracker.finish_recording(&[pool]).unwrap().unwrap();
    fs::read(path).unwrap()
}

#[test]
fn traces_and_packings_are_read_from_standard_input() {
    let folder = TempDir::new().unwrap();
    fs::write(folder.path().join("trace"), TRACE).unwrap();
    let replayed = stdout(&folder, &["replay", "-"], TRACE.as_bytes());
    let figures = |text: &str| {
        text.lines().nth(2).unwrap().split_whitespace().skip(2).take(4).map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(figures(&replayed), figures(&stdout(&folder, &["replay", "trace"], b"")));

    let packing = stdout(&folder, &["pack", "-", "-o", "-"], TRACE.as_bytes());
    stdout(&folder, &["pack", "trace", "-o", "packing"], b"");
    assert_eq!(packing, fs::read_to_string(folder.path().join("packing")).unwrap());
    let followed =
        stdout(&folder, &["replay", "trace", "--policy", "packed", "--packing", "-"], packing.as_bytes());
    assert!(followed.contains("packed"), "{followed}");
}

#[test]
fn recordings_are_read_from_standard_input() {
    let folder = TempDir::new().unwrap();
    let run = recording(&folder);
    for command in [
        &["report", "RUN"][..],
        &["what-if", "RUN"],
        &["diff", "RUN", "run.hwm"],
        &["export", "RUN", "--format", "folded"],
    ] {
        let of = |run: &str| {
            command
                .iter()
                .map(|&word| if word == "RUN" { run.to_owned() } else { word.to_owned() })
                .collect::<Vec<_>>()
        };
        let run_on = |path: &str, input: &[u8]| {
            let arguments = of(path);
            stdout(&folder, &arguments.iter().map(String::as_str).collect::<Vec<_>>(), input)
        };
        assert_eq!(run_on("-", &run), run_on("run.hwm", b""), "{command:?}");
    }
}

#[test]
fn pages_and_exports_go_to_standard_output_with_nothing_else() {
    let folder = TempDir::new().unwrap();
    let run = recording(&folder);
    let page = stdout(&folder, &["report", "run.hwm", "--html", "-"], b"");
    stdout(&folder, &["report", "run.hwm", "--html", "page.html"], b"");
    assert_eq!(page, fs::read_to_string(folder.path().join("page.html")).unwrap());

    let log = "{\"step\":0,\"seconds\":0,\"loss\":1}\n";
    let with_log = stdout(&folder, &["report", "run.hwm", "--html", "-", "--log", "-"], log.as_bytes());
    assert!(with_log.len() > page.len());

    let export = stdout(&folder, &["export", "-", "--format", "svg", "-o", "-"], &run);
    assert_eq!(export, stdout(&folder, &["export", "run.hwm", "--format", "svg"], b""));
}

#[test]
fn a_packing_on_standard_output_has_its_summary_on_stderr() {
    let folder = TempDir::new().unwrap();
    let output = highwater(folder.path(), &["pack", "-", "-o", "-"], TRACE.as_bytes());
    assert!(text(&output.stderr).contains("3 of 3 blocks"), "{}", text(&output.stderr));
    let output = highwater(folder.path(), &["pack", "-", "-o", "-", "--json"], TRACE.as_bytes());
    assert_eq!((output.status.code(), text(&output.stdout).as_str()), (Some(2), ""));
    assert!(text(&output.stderr).contains("cannot both use standard output"));
}

#[test]
fn standard_input_is_read_once_within_bounds_and_never_followed() {
    let folder = TempDir::new().unwrap();
    let long = "# a comment that is no event\n".repeat(1 << 16);
    for (arguments, message) in [
        (&["replay", "-", "-"][..], "standard input: it can be read only once"),
        (&["replay", "-", "--max-input", "64KiB"], "standard input: line "),
        (&["diff", "-", "-", "--max-input", "64KiB"], "standard input: "),
        (&["top", "-"], "standard input cannot be followed"),
    ] {
        let output = highwater(folder.path(), arguments, long.as_bytes());
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(text(&output.stderr).contains(message), "{}", text(&output.stderr));
    }
}

#[test]
fn a_folder_in_the_place_of_a_file_is_called_one() {
    let folder = TempDir::new().unwrap();
    recording(&folder);
    fs::write(folder.path().join("trace"), TRACE).unwrap();
    for arguments in [
        &["replay", "."][..],
        &["report", "."],
        &["top", "."],
        &["what-if", "."],
        &["diff", "run.hwm", "."],
        &["replay", "trace", "--policy", "packed", "--packing", "."],
        &["report", "run.hwm", "--html", "page", "--log", "."],
    ] {
        let output = highwater(folder.path(), arguments, b"");
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert_eq!(text(&output.stderr), "highwater: .: is a directory\n", "{arguments:?}");
    }
}

#[test]
fn a_step_between_marks_is_packed_by_name() {
    let folder = TempDir::new().unwrap();
    let packing =
        |step: &str| highwater(folder.path(), &["pack", "-", "-o", "-", "--step", step], TRACE.as_bytes());
    let one = packing("marks:step..step");
    assert!(text(&one.stderr).contains("1 of 1 blocks in 2.00 KiB"), "{}", text(&one.stderr));
    let rest = packing("marks:step..end");
    assert!(text(&rest.stderr).contains("2 of 2 blocks in 2.00 KiB"), "{}", text(&rest.stderr));
    let none = packing("marks:start..step");
    assert_eq!(none.status.code(), Some(1));
    assert!(text(&none.stderr).contains("standard input: the trace has no comment `mark: start`"));
    assert_eq!(packing("marks:step").status.code(), Some(2));
}

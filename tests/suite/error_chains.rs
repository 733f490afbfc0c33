//! The text of errors. Each cause appears once: in the error's text or as `source()`, but not in both. A `main` that
//! returns an error prints its text.

use std::error::Error;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use highwater::alloc::{Bytes, Environment, SourceError};
use highwater::data::{CsvOptions, read_csv};
use highwater::io::{SafetensorsLimits, read_safetensors};
use highwater::tracking::{HwmError, HwmProblem, PackingLimits, Recording, RecordingLimits, parse_packing};
use highwater::{DeviceFault, DeviceProfile, Runtime};

/// Fails if an error's text has the text of its cause in it.
fn check(error: &dyn Error) {
    let text = error.to_string();
    if let Some(cause) = error.source() {
        assert!(!text.contains(&cause.to_string()), "{cause} is told twice in {error:?}");
        check(cause);
    }
}

fn no_such_file() -> io::Error {
    io::Error::from(io::ErrorKind::NotFound)
}

#[test]
fn errors_do_not_return_a_cause_that_their_text_includes() {
    let runtime = Runtime::builder().environment(Environment::default()).build().unwrap();
    let reason = || DeviceFault::Driver(SourceError::Exhausted { bytes: 1 });
    let errors: Vec<Box<dyn Error>> = vec![
        Box::new(runtime.device("sim:7".parse().unwrap()).unwrap_err()),
        Box::new(highwater::Error::Device { op: "add", device: "cuda:0".to_owned(), reason: reason() }),
        Box::new(highwater::Error::NoDevice { device: "cuda:0".to_owned(), reason: reason() }),
        Box::new(highwater::Error::from("toaster".parse::<DeviceProfile>().unwrap_err())),
        Box::new(read_csv("no/such/file.csv", &CsvOptions::default()).unwrap_err()),
        Box::new(read_safetensors("no/such/file", &SafetensorsLimits::default()).unwrap_err()),
        Box::new(HwmError { offset: 1, problem: HwmProblem::Io(no_such_file()) }),
        Box::new(Recording::read(&b"nonsense"[..], &RecordingLimits::default()).unwrap_err()),
        Box::new(parse_packing(&b"nonsense"[..], &PackingLimits::default()).unwrap_err()),
    ];
    errors.iter().for_each(|error| check(&**error));
}

/// All Rust files below a folder.
fn sources(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, files);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
}

#[test]
fn only_transparent_errors_have_a_source() {
    let mut files = Vec::new();
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    for member in std::fs::read_dir(root.join("crates")).unwrap() {
        sources(&member.unwrap().path().join("src"), &mut files);
    }
    assert!(files.len() > 100, "{} files", files.len());
    for file in files {
        let text = std::fs::read_to_string(&file).unwrap();
        let mut shown = "";
        for (number, line) in (1..).zip(text.lines()) {
            if line.trim_start().starts_with("#[error(") {
                shown = line.trim();
            }
            let has_source = line.contains("#[from]") || line.contains("#[source]");
            let place = format!("{}:{number}", file.display());
            assert!(!has_source || shown == "#[error(transparent)]", "{place}: after {shown}");
            // A field of this name is a source without an attribute.
            let named = shown.contains("{source}") && line.trim_start().starts_with("source:");
            assert!(!named, "{place}: {shown}");
        }
    }
}

/// The text up to the parenthesis or brace that closes the first one, and the rest.
fn enclosed(text: &str) -> (&str, &str) {
    let (mut depth, mut in_text, mut escaped) = (0, false, false);
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = in_text,
            b'"' => in_text = !in_text,
            b'(' | b'{' if !in_text => depth += 1,
            b')' | b'}' if !in_text => {
                depth -= 1;
                if depth == 0 {
                    return (&text[..at], &text[at + 1..]);
                }
            }
            _ => {}
        }
    }
    (text, "")
}

/// The fields of a variant or struct that hold text of users and files, from the text after its `#[error(..)]`.
fn text_fields(item: &str) -> Vec<&str> {
    const TYPES: &[&str] = &["String", "PathBuf", "Box<str>", "Arc<str>", "io::Error", "std::io::Error"];
    let Some(start) = item.find(['{', '(', ',', ';']) else { return Vec::new() };
    if !item[start..].starts_with('{') {
        let tuple = item[start..].starts_with("(String") || item[start..].starts_with("(io::Error");
        return if tuple { vec!["0"] } else { Vec::new() };
    }
    let (fields, _) = enclosed(&item[start..]);
    fields
        .split([',', '\n', '{'])
        .filter_map(|field| field.trim().trim_start_matches("pub ").split_once(": "))
        .filter(|(_, kind)| TYPES.contains(kind))
        .map(|(name, _)| name)
        .collect()
}

/// Names and values may contain control characters, which a terminal obeys.
#[test]
fn texts_in_messages_are_printable() {
    let mut files = Vec::new();
    sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("crates"), &mut files);
    let mut checked = 0;
    for file in files.iter().filter(|file| file.components().any(|part| part.as_os_str() == "src")) {
        let text = std::fs::read_to_string(file).unwrap();
        let mut rest = text.as_str();
        while let Some(start) = rest.find("#[error(") {
            let (message, after) = enclosed(&rest[start + "#[error".len()..]);
            rest = after;
            // The rest of the attribute, other attributes and documentation.
            let item = after.trim_start_matches(']');
            let item: String = item
                .lines()
                .skip_while(|line| matches!(line.trim().get(..2), None | Some("#[" | "//")))
                .flat_map(|line| [line, "\n"])
                .collect();
            for name in text_fields(&item) {
                let is_shown = message.contains(&format!("{{{name}}}"));
                let is_printable = message.contains(&format!("{name} = printable"));
                assert!(!is_shown || is_printable, "{}: {name} in {message}", file.display());
                let path = format!("{name}.display()");
                let shows_path = message.matches(&path).count();
                let printable = message.matches(&format!("printable({path}")).count();
                assert_eq!(shows_path, printable, "{}: {name} in {message}", file.display());
                checked += 1;
            }
        }
    }
    assert!(checked > 100, "{checked} fields");
}

/// The errors that users return from `main`, or unwrap in their tests. `Debug` prints their message; all other errors derive
/// it. `Mismatch` lists few of its arrays, of which there may be thousands.
const PRINTED: &[&str] = &[
    "AllocError",
    "CollectiveError",
    "ComputeError",
    "CudaUnavailable",
    "EnvironmentError",
    "Error",
    "ExportError",
    "FileError",
    "FitError",
    "GoldenError",
    "GradCheckError",
    "HwmError",
    "KernelError",
    "LoraError",
    "Mismatch",
    "ModelError",
    "NcclError",
    "NoPacking",
    "NotFlat",
    "NothingFits",
    "OptionError",
    "PackingTextError",
    "ParallelError",
    "PeakExceeded",
    "PickleError",
    "PoolError",
    "PoolSliceError",
    "RegisterError",
    "RegistryError",
    "ReplayError",
    "RunError",
    "SamplingError",
    "SourceError",
    "TextError",
    "TraceError",
    "TrainingLogError",
    "WorldError",
];

#[test]
fn errors_that_users_return_from_main_print_their_message() {
    let mut files = Vec::new();
    for member in std::fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("crates")).unwrap() {
        sources(&member.unwrap().path().join("src"), &mut files);
    }
    let mut found = Vec::new();
    for file in files {
        let text = std::fs::read_to_string(&file).unwrap();
        // An implementation by hand writes the message and more.
        let mut implemented = "";
        for line in text.lines() {
            if let Some((_, name)) = line.split_once("debug_as_message!(").filter(|_| !line.starts_with("//"))
            {
                found.extend(name.strip_suffix(");").map(str::to_owned));
            }
            if let Some(name) = line.strip_prefix("impl fmt::Debug for ") {
                implemented = name.trim_end_matches(" {");
            }
            if line.trim_start().starts_with("write_error(self, f)") {
                found.push(implemented.to_owned());
            }
        }
    }
    found.sort();
    assert_eq!(found, PRINTED);
}

#[test]
fn debug_prints_the_message_of_an_error_and_the_fields_of_its_data() {
    let fault = DeviceFault::Driver(SourceError::Exhausted { bytes: 1 });
    let error = highwater::Error::Device { op: "item", device: "cuda:0".to_owned(), reason: fault.clone() };
    assert_eq!(format!("{error:?}"), error.to_string());
    let source = SourceError::Exhausted { bytes: 1 };
    assert_eq!(format!("{source:?}"), source.to_string());
    assert_eq!(format!("{fault:?}"), format!("Driver({source})"));

    let device = Runtime::builder().pool(Bytes::kib(1)).build().unwrap().cpu().unwrap();
    let error = highwater::Tensor::zeros(&device, [1024]).unwrap_err();
    let details = error.out_of_memory().unwrap().details();
    assert_eq!(format!("{error:?}"), format!("{error}\n\n{details}"));
    let highwater::Error::Allocation { error: inner, .. } = &error else { panic!("{error}") };
    assert_eq!(format!("{inner:?}"), format!("{inner}\n\n{details}"));
}

#[test]
fn a_main_that_returns_the_error_prints_the_report() {
    let output = Command::new(crate::built::example("out_of_memory")).output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!((output.status.code(), output.stdout.len()), (Some(1), 0), "{stderr}");
    let lines: Vec<&str> = stderr.lines().collect();
    assert_eq!(
        lines[..5],
        [
            "Error: relu: cannot allocate shape [1024, 1024] of f32: cpu:0: out of memory (exhausted): 4.00 MiB \
             requested by layer6.relu, 24.00 MiB in use of 24.00 MiB, 0 B free, largest free block 0 B",
            "",
            "out of memory in cpu:0: exhausted, 4.00 MiB more than the limit leaves",
            "4.00 MiB (output) requested by layer6.relu for [1024, 1024] of f32",
            "  rounded              4.00 MiB",
        ],
        "{stderr}"
    );
    assert!(lines.contains(&"  held by modules") && lines.contains(&"        4.00 MiB  layer4"), "{stderr}");
    assert!(!stderr.contains("OomReport") && !stderr.contains("Allocation {"), "{stderr}");
}

/// The parts of a message between colons.
fn parts(message: &str) -> Vec<&str> {
    message.trim().split(": ").collect()
}

#[test]
fn an_example_prints_each_cause_once() {
    let example = crate::built::example("linear_regression");
    for args in [["--resume", "no/such/file"], ["--points", "no/such/file.csv"], ["--device", "cuda:9"]] {
        let output = Command::new(&example).args(args).output().unwrap();
        assert!(!output.status.success(), "{args:?}");
        let stderr = String::from_utf8(output.stderr).unwrap();
        let mut told = parts(&stderr);
        let all = told.len();
        told.sort_unstable();
        told.dedup();
        assert!(all > 1 && told.len() == all, "{args:?}: {stderr}");
    }
}

#[test]
fn an_unknown_variable_is_warned_of_once_and_the_run_goes_on() {
    let example = crate::built::example("linear_regression");
    let run = |name: &str, value: &str| {
        let mut command = Command::new(&example);
        command.args(["--steps", "2", "--threads", "1", "--dry-run"]).env(name, value);
        command.output().unwrap()
    };
    let output = run("HIGHWATER_DEVCE", "cpu");
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{stderr}");
    assert_eq!(stderr, "warning: unknown variable HIGHWATER_DEVCE; did you mean HIGHWATER_DEVICE?\n");
    let output = run("HIGHWATER_DEVICE", "toaster");
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success() && stderr.contains("HIGHWATER_DEVICE"), "{stderr}");
}

//! The formats of files that the commands read: one row each, in a file of its own.
//!
//! Detection, the errors that list the formats, `--device`, tests and fuzzing go through [`FORMATS`].

mod heap_text;
mod heaptrack;
mod memray;
mod minimalloc;
mod mtrace;
mod pprof;
mod profiler;
mod rmm;
mod snapshot;
pub(super) mod text;
mod timeline;

use std::borrow::Cow;
use std::io::BufRead;

use highwater_files::FileKind;
use highwater_files::lines::MARK;
use highwater_tracking::Recording;

use super::lines::beginning;
use super::profile::recording_limits;
use super::snapshot::Snapshot;
use super::{ReadOptions, Trace, TraceError, TraceLimits, TracePlace, TraceProblem};

/// All formats. Detection takes the first one that recognizes a file.
pub(crate) const FORMATS: &[Format] = &[
    RECORDING,
    snapshot::PICKLE,
    pprof::FORMAT,
    profiler::FORMAT,
    timeline::FORMAT,
    snapshot::JSON,
    rmm::FORMAT,
    minimalloc::FORMAT,
    memray::FORMAT,
    heap_text::FORMAT,
    heaptrack::FORMAT,
    mtrace::FORMAT,
    text::FORMAT,
];

const RECORDING: Format = Format {
    kind: Some(FileKind::Recording),
    ..Format::profile(
        "a recording (.hwm)",
        |_| true,
        &[b"\x89HWM\r\n\x1a\n"],
        |reader, limits, eighths| Ok(Recording::read_within(reader, &recording_limits(limits), eighths)?),
    )
};

/// A format of files.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Format {
    /// The name with its article, for reports and errors.
    pub(crate) name: &'static str,
    /// The kind of a file in this format; `None` for formats that only the trace commands know.
    kind: Option<FileKind>,
    /// Returns whether a file of that kind has this format. Formats before this one in [`FORMATS`] did not recognize it.
    is_start: fn(&Start<'_>) -> bool,
    /// Typical first bytes. Tests detect them, and fuzzing continues them.
    #[cfg_attr(
        not(any(test, feature = "fuzz")),
        allow(dead_code, reason = "only tests and fuzzing read it")
    )]
    pub(crate) starts: &'static [&'static [u8]],
    /// Whether the file distinguishes devices, so that options may select one.
    has_devices: bool,
    /// Whether labels are paths of ops in their modules: `net.fc1.matmul:backward`.
    pub(super) has_paths: bool,
    pub(super) reader: Reader,
}

type ReadProfile = fn(&mut dyn BufRead, &TraceLimits, u64) -> Result<(Recording, u64), TraceError>;
type ReadSnapshot = fn(&mut dyn BufRead, &ReadOptions, u64) -> Result<Snapshot, TraceError>;
type ReadTrace = fn(&mut dyn BufRead, &ReadOptions) -> Result<Trace, TraceError>;

/// Reads a file without its byte-order mark.
#[derive(Clone, Copy, Debug)]
pub(super) enum Reader {
    /// Reads a recording within so many eighths of the memory limit. Also returns the bytes of the other eighths.
    Profile(ReadProfile),
    Trace(ReadTrace),
    /// Reads a PyTorch snapshot, whose recording fits into so many eighths of the memory limit.
    Snapshot(ReadSnapshot),
}

impl Format {
    /// A list of allocations and frees.
    const fn trace(
        name: &'static str,
        is_start: fn(&Start<'_>) -> bool,
        starts: &'static [&'static [u8]],
        read: ReadTrace,
    ) -> Self {
        let (kind, reader) = (None, Reader::Trace(read));
        Self { name, kind, is_start, starts, has_devices: false, has_paths: false, reader }
    }

    /// A PyTorch snapshot.
    const fn snapshot(
        is_start: fn(&Start<'_>) -> bool,
        starts: &'static [&'static [u8]],
        read: ReadSnapshot,
    ) -> Self {
        let (kind, reader) = (None, Reader::Snapshot(read));
        Self {
            name: super::snapshot::NAME,
            kind,
            is_start,
            starts,
            has_devices: true,
            has_paths: false,
            reader,
        }
    }

    /// A file that becomes a recording: blocks with call stacks.
    const fn profile(
        name: &'static str,
        is_start: fn(&Start<'_>) -> bool,
        starts: &'static [&'static [u8]],
        read: ReadProfile,
    ) -> Self {
        let (kind, reader) = (None, Reader::Profile(read));
        Self { name, kind, is_start, starts, has_devices: false, has_paths: false, reader }
    }

    const fn with_devices(self) -> Self {
        Self { has_devices: true, ..self }
    }

    /// Detects the format from the first bytes, and checks that it supports the options.
    pub(super) fn of(start: &[u8], options: &ReadOptions) -> Result<&'static Self, TraceError> {
        if start.is_empty() {
            return Err(TracePlace::Byte(0).of(TraceProblem::Empty));
        }
        let (kind, start) = (FileKind::of(start), Start::new(start));
        let found = FORMATS.iter().find(|format| format.kind == kind && (format.is_start)(&start));
        let Some(format) = found else {
            if let Some(kind) = kind {
                return Err(TracePlace::Byte(0).of(TraceProblem::WrongFile { kind }));
            }
            let (number, line) = start.numbered_line().unwrap_or((1, ""));
            return Err(TracePlace::Line(number).of(TraceProblem::UnknownFormat { found: beginning(line) }));
        };
        if let Some(device) = options.device.filter(|_| !format.has_devices) {
            return Err(TracePlace::Byte(0).of(TraceProblem::NoDevices { device }));
        }
        Ok(format)
    }
}

/// Returns the distinct names of all formats.
pub(super) fn names() -> Vec<&'static str> {
    names_of(FORMATS.iter())
}

/// Returns the distinct names of the formats that distinguish devices.
pub(super) fn names_with_devices() -> Vec<&'static str> {
    names_of(FORMATS.iter().filter(|format| format.has_devices))
}

fn names_of<'a>(formats: impl Iterator<Item = &'a Format>) -> Vec<&'static str> {
    let mut names = Vec::new();
    for format in formats {
        if !names.contains(&format.name) {
            names.push(format.name);
        }
    }
    names
}

/// Returns the names as a phrase: `a, b or c`.
pub(super) fn list(names: &[&str]) -> String {
    match names {
        [first @ .., last] if !first.is_empty() => format!("{} or {last}", first.join(", ")),
        _ => names.concat(),
    }
}

/// The beginning of a file.
pub(super) struct Start<'a> {
    bytes: &'a [u8],
    text: Cow<'a, str>,
}

impl<'a> Start<'a> {
    fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, text: String::from_utf8_lossy(bytes.strip_prefix(MARK).unwrap_or(bytes)) }
    }

    /// Returns the text without a byte-order mark.
    fn text(&self) -> &str {
        &self.text
    }

    /// Returns the first line that is not blank, trimmed, with its number counted from 1.
    fn numbered_line(&self) -> Option<(u64, &str)> {
        (1..).zip(self.text.lines().map(str::trim)).find(|(_, line)| !line.is_empty())
    }

    fn line(&self) -> Option<&str> {
        self.numbered_line().map(|(_, line)| line)
    }

    fn has_line(&self, is_first_line: impl FnOnce(&str) -> bool) -> bool {
        self.line().is_some_and(is_first_line)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_format_recognizes_its_first_bytes() {
        for format in FORMATS {
            assert!(!format.starts.is_empty(), "{}: add first bytes for tests and fuzzing", format.name);
            for start in format.starts {
                let found = Format::of(start, &ReadOptions::default()).map(|format| format.name);
                assert_eq!(found.unwrap(), format.name, "{}", String::from_utf8_lossy(start));
            }
        }
    }

    #[test]
    fn errors_list_all_formats() {
        let unknown = TraceProblem::UnknownFormat { found: "x".to_owned() }.to_string();
        let devices = TraceProblem::NoDevices { device: 1 }.to_string();
        for format in FORMATS {
            assert!(unknown.contains(format.name), "{unknown}");
            assert_eq!(devices.contains(format.name), format.has_devices, "{}: {devices}", format.name);
        }
        assert_eq!([list(&["a"]), list(&["a", "b", "c"])], ["a", "a, b or c"]);
    }
}

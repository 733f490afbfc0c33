//! The facts of a recorded run besides its events.

use serde::{Deserialize, Serialize};

/// The facts known when a run begins: the head of a `.hwm` file. All fields may be empty.
///
/// ```
/// use highwater_tracking::RunFacts;
/// let facts = RunFacts::new("train_digits").with("seed", 7);
/// assert_eq!(facts.more[0], ("seed".to_owned(), "7".to_owned()));
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct RunFacts {
    /// The program.
    pub program: String,
    /// The version of Highwater that wrote the file.
    pub version: String,
    /// When recording began, in milliseconds since 1970.
    pub started_unix_ms: u64,
    /// The memory of the process when recording began.
    pub outside: ProcessMemory,
    /// Further facts, in order: device, policy, threads, seed.
    pub more: Vec<(String, String)>,
}

impl RunFacts {
    /// The facts of a run of `program` that begins now.
    #[must_use]
    pub fn new(program: impl Into<String>) -> Self {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        Self {
            program: program.into(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            started_unix_ms: u64::try_from(now.as_millis()).unwrap_or(u64::MAX),
            outside: ProcessMemory::now(),
            more: Vec::new(),
        }
    }

    /// Adds a fact.
    #[must_use]
    pub fn with(mut self, name: impl Into<String>, value: impl ToString) -> Self {
        self.more.push((name.into(), value.to_string()));
        self
    }

    /// The fact of this name among [`more`](Self::more).
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&str> {
        self.more.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }
}

/// A run that was recorded.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct RecordedRun {
    /// The facts of the run.
    pub facts: RunFacts,
    /// Number of events.
    pub events: u64,
    /// Number of blocks allocated.
    pub blocks: u64,
    /// The time of the last event, in nanoseconds since recording began.
    pub duration_ns: u64,
    /// Events lost at the beginning because the recording's memory was full.
    pub lost_events: u64,
    /// Events left out, because their blocks were allocated before recording began.
    pub skipped_events: u64,
    /// Requests that ran out of memory.
    pub failures: u64,
    /// Moments that the program marked.
    pub marks: u64,
    /// The memory of the process at the end.
    pub outside: ProcessMemory,
    /// Where and why the file ends early; `None` for a complete one.
    pub cut: Option<Cut>,
}

/// Where and why a file ends before its end.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Cut {
    /// The first byte that could not be used.
    pub offset: u64,
    /// The problem there.
    pub reason: String,
}

impl Cut {
    /// Creates a cut at a byte, with the problem there.
    #[must_use]
    pub const fn new(offset: u64, reason: String) -> Self {
        Self { offset, reason }
    }
}

/// The memory of this process according to the system, in bytes. It includes pools of host memory, program code,
/// stacks, heaps and a driver's memory. On Linux, from `/proc/self/status`; elsewhere all `None`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct ProcessMemory {
    /// Physical memory that the process holds (`VmRSS`).
    pub resident: Option<u64>,
    /// The most that it ever held (`VmHWM`).
    pub peak_resident: Option<u64>,
}

impl ProcessMemory {
    /// Returns the current figures.
    #[must_use]
    pub fn now() -> Self {
        std::fs::read_to_string("/proc/self/status")
            .map_or_else(|_| Self::default(), |text| Self::parse(&text))
    }

    /// Parses the text of `/proc/self/status`, whose unit `kB` is 1024 bytes.
    fn parse(status: &str) -> Self {
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
            line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(bfc_core::KIB)
        };
        Self { resident: field("VmRSS"), peak_resident: field("VmHWM") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_where_the_system_gives_them() {
        let status = "Name:\tx\nVmHWM:\t    5000 kB\nVmRSS:\t    4000 kB\nThreads:\t1\n";
        assert_eq!(
            ProcessMemory::parse(status),
            ProcessMemory { resident: Some(4_096_000), peak_resident: Some(5_120_000) }
        );
        assert_eq!(ProcessMemory::parse("VmRSS: many kB\n"), ProcessMemory::default());
        assert_eq!(ProcessMemory::parse("VmRSS: 18446744073709551615 kB\n"), ProcessMemory::default());
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn this_process_holds_memory() {
        let ProcessMemory { resident: Some(resident), peak_resident: Some(peak) } = ProcessMemory::now()
        else {
            panic!("Linux tells both")
        };
        assert!(resident > 0 && resident <= peak);
    }
}

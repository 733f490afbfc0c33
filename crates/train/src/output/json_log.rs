//! A log with one line of JSON per step.

use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, LineWriter, Read, Write};
use std::path::{Path, PathBuf};
use std::time::Instant;

use bfc_core::printable_json;
use highwater_tensor::Result;
use highwater_tensor::error::FileError;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::{Observer, RunStart, StepRecord};

/// The longest line that is read, in bytes.
const LINE_BYTES: u64 = 1 << 20;

/// Writes one line of JSON per step, which `highwater report --log` and
/// [`TrainingLog`](highwater_tracking::TrainingLog) read.
///
/// The fields are `step`, `seconds` since the start, `bytes_in_use`, `peak_bytes_in_use`, `loss` and the figures of the
/// step. Unknown values are `null`. NaN and infinities are the strings `NaN`, `Infinity` and `-Infinity`.
///
/// A failure to write does not stop the training; [`finish`](Observer::finish) returns it.
///
/// # Resuming
///
/// A run that starts at step 0 replaces the file. A run that [continues](crate::Saves::resume) appends to it, and `seconds`
/// goes on. Lines of steps that the run repeats, and an incomplete last line, are removed first: a killed run has logged
/// more steps than its last checkpoint has.
#[derive(Debug)]
pub struct JsonLog {
    path: PathBuf,
    /// Flushes every line, so that other programs can follow the file.
    file: LineWriter<File>,
    started: Instant,
    /// The seconds of earlier runs; `None` before the run begins.
    earlier_seconds: Option<f64>,
    failure: Option<io::Error>,
}

/// The fields of a line that resuming needs.
#[derive(Deserialize)]
struct Line {
    step: u64,
    #[serde(default)]
    seconds: f64,
}

impl JsonLog {
    /// Opens the file, and creates it if it does not exist. Its contents stay until the run begins.
    ///
    /// # Errors
    /// [`FileError::Io`].
    pub fn create(path: impl AsRef<Path>) -> Result<Self, FileError> {
        let path = path.as_ref().to_owned();
        let file = OpenOptions::new().append(true).create(true).open(&path);
        let file = LineWriter::new(file.map_err(|error| FileError::io(&path, &error))?);
        Ok(Self { path, file, started: Instant::now(), earlier_seconds: None, failure: None })
    }

    /// Prepares the file for the steps after `completed`.
    fn start(&mut self, completed: u64) -> Result<(), FileError> {
        let io_error = |error: io::Error| FileError::io(&self.path, &error);
        let file = self.file.get_ref();
        // Pipes and devices have no old contents.
        let is_file = file.metadata().map_err(io_error)?.is_file();
        let kept = if is_file && completed > 0 { kept(&self.path, completed)? } else { Kept::default() };
        if is_file {
            // One call, so that a crash leaves the old contents or the kept ones.
            file.set_len(kept.bytes).map_err(io_error)?;
        }
        if kept.lacks_end {
            self.file.write_all(b"\n").map_err(io_error)?;
        }
        self.earlier_seconds = Some(kept.seconds);
        Ok(())
    }
}

/// The beginning of a log that a resumed run keeps.
#[derive(Default)]
struct Kept {
    bytes: u64,
    /// The seconds of the last line.
    seconds: f64,
    /// Whether the last line lacks its line end.
    lacks_end: bool,
}

/// Finds the lines of the first `completed` steps.
///
/// # Errors
/// [`FileError::Malformed`] for a file that is not the log of this run.
fn kept(path: &Path, completed: u64) -> Result<Kept, FileError> {
    let io_error = |error: io::Error| FileError::io(path, &error);
    let mut source = BufReader::new(File::open(path).map_err(io_error)?);
    let (mut kept, mut last, mut offset) = (Kept::default(), None, 0);
    let mut line = Vec::new();
    loop {
        line.clear();
        let length = source.by_ref().take(LINE_BYTES).read_until(b'\n', &mut line).map_err(io_error)?;
        if length == 0 {
            break;
        }
        let is_complete = line.ends_with(b"\n");
        let refused = |problem: &str| {
            FileError::malformed(path, offset, format!("{problem}; choose another file for the log"))
        };
        match serde_json::from_slice::<Line>(&line) {
            Ok(Line { step, .. }) if last.is_some_and(|last| step < last) => {
                return Err(refused("the steps of the log decrease"));
            }
            Ok(Line { step, seconds }) => {
                if step < completed {
                    kept = Kept { bytes: offset + length as u64, seconds, lacks_end: !is_complete };
                }
                last = Some(step);
            }
            // A killed run leaves an incomplete line.
            Err(_) if !is_complete && (length as u64) < LINE_BYTES => {}
            Err(_) if line.trim_ascii().is_empty() => {}
            Err(_) => return Err(refused("this is no line of a training log")),
        }
        offset += length as u64;
    }
    // A save takes place before the line of its step is written.
    match last.filter(|last| last.saturating_add(2) < completed) {
        Some(last) => {
            let problem = format!(
                "the log ends after step {last}, but this run continues at step {completed}: it is the log of another \
                 run; choose another file for the log, or remove it"
            );
            Err(FileError::malformed(path, offset, problem))
        }
        None => Ok(kept),
    }
}

/// A value for the log. JSON has no NaN and infinities, so they are strings; `null` means a missing value.
fn number(value: Option<f64>) -> Value {
    match value {
        None => Value::Null,
        Some(value) if value.is_finite() => json!(value),
        Some(value) if value.is_nan() => json!("NaN"),
        Some(value) if value > 0.0 => json!("Infinity"),
        Some(_) => json!("-Infinity"),
    }
}

impl Observer for JsonLog {
    fn begin(&mut self, start: &RunStart) -> Result<()> {
        Ok(self.start(start.completed)?)
    }

    fn step(&mut self, record: &StepRecord) -> Result<()> {
        // A loop of the program may not have called `begin`.
        if self.earlier_seconds.is_none() {
            self.start(record.step)?;
        }
        let seconds = self.earlier_seconds.unwrap_or(0.0) + self.started.elapsed().as_secs_f64();
        let figures = record.figures.iter().map(|(name, value)| (name.to_owned(), number(value)));
        let mut line: Map<String, Value> = figures.collect();
        for (name, value) in [
            ("step", json!(record.step)),
            ("seconds", json!(seconds)),
            ("bytes_in_use", json!(record.bytes_in_use)),
            ("peak_bytes_in_use", json!(record.peak_bytes_in_use)),
            ("loss", number(record.loss)),
        ] {
            line.insert(name.to_owned(), value);
        }
        if self.failure.is_none() {
            self.failure = writeln!(self.file, "{}", printable_json(Value::Object(line))).err();
        }
        Ok(())
    }

    fn finish(&mut self) -> Result<()> {
        let flushed = self.failure.take().map_or_else(|| self.file.flush(), Err);
        flushed.map_err(|error| FileError::io(&self.path, &error).into())
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::figures::Figures;

    const START: RunStart = RunStart { completed: 0, total: None };

    fn record(step: u64) -> StepRecord {
        let figures = Figures::default();
        StepRecord {
            step,
            loss: Some(step as f64),
            figures,
            bytes_in_use: 0,
            peak_bytes_in_use: 0,
            estimated: None,
        }
    }

    /// Logs these steps of a run that begins after as many steps as the first one says.
    fn log(path: &Path, steps: std::ops::Range<u64>) -> Result<()> {
        let mut log = JsonLog::create(path)?;
        log.begin(&RunStart { completed: steps.start, ..START })?;
        steps.map(record).try_for_each(|record| log.step(&record))?;
        log.finish()
    }

    /// The steps of the log. Times never decrease.
    fn steps(path: &Path) -> Vec<u64> {
        let text = fs::read_to_string(path).unwrap();
        assert!(text.is_empty() || text.ends_with('\n'));
        let lines: Vec<Line> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert!(lines.is_sorted_by(|a, b| a.seconds <= b.seconds), "{text}");
        lines.iter().map(|line| line.step).collect()
    }

    #[test]
    fn a_new_run_replaces_the_log_and_a_resumed_run_appends() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run.jsonl");
        log(&path, 0..5).unwrap();
        log(&path, 0..3).unwrap();
        assert_eq!(steps(&path), [0, 1, 2]);
        let before = fs::read_to_string(&path).unwrap();
        log(&path, 3..6).unwrap();
        assert_eq!(steps(&path), [0, 1, 2, 3, 4, 5]);
        assert!(fs::read_to_string(&path).unwrap().starts_with(&before), "earlier lines stay as they are");
        // A log that begins with the resumed run.
        let other = folder.path().join("other.jsonl");
        log(&other, 3..5).unwrap();
        assert_eq!(steps(&other), [3, 4]);
        log(&other, 2..4).unwrap();
        assert_eq!(steps(&other), [2, 3]);
    }

    #[test]
    fn steps_after_the_last_checkpoint_are_logged_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run.jsonl");
        log(&path, 0..7).unwrap();
        log(&path, 4..6).unwrap();
        assert_eq!(steps(&path), [0, 1, 2, 3, 4, 5]);
        // Every place at which a kill may cut the last line.
        let whole = fs::read(&path).unwrap();
        let start = whole[..whole.len() - 1].iter().rposition(|&byte| byte == b'\n').unwrap() + 1;
        for end in start..whole.len() {
            fs::write(&path, &whole[..end]).unwrap();
            log(&path, 6..8).unwrap();
            // Without its line end, the last line is complete.
            let expected: &[u64] =
                if end + 1 == whole.len() { &[0, 1, 2, 3, 4, 5, 6, 7] } else { &[0, 1, 2, 3, 4, 6, 7] };
            assert_eq!(steps(&path), expected, "cut at {end}");
        }
    }

    #[test]
    fn a_file_that_is_not_the_log_of_this_run_is_refused_and_stays() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run.jsonl");
        for (text, problem) in [
            ("label,pixel\n1,2\n", "at offset 0: this is no line of a training log"),
            ("{\"step\":0}\n[]\n{\"step\":1}\n", "at offset 11: this is no line of a training log"),
            ("{\"step\":-1}\n", "this is no line of a training log"),
            ("{\"step\":1}\n{\"step\":0}\n", "at offset 11: the steps of the log decrease"),
            ("{\"step\":0}\n{\"step\":1}\n", "ends after step 1, but this run continues at step 4"),
        ] {
            fs::write(&path, text).unwrap();
            let refused = log(&path, 4..5).unwrap_err().to_string();
            assert!(refused.contains(problem) && refused.contains("choose another file"), "{refused}");
            assert_eq!(fs::read_to_string(&path).unwrap(), text);
        }
    }

    #[test]
    fn a_loop_without_begin_starts_with_its_first_step() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run.jsonl");
        for (first, expected) in [(0, &[0][..]), (1, &[0, 1]), (1, &[0, 1]), (0, &[0])] {
            let mut log = JsonLog::create(&path).unwrap();
            log.step(&record(first)).unwrap();
            log.finish().unwrap();
            assert_eq!(steps(&path), expected);
        }
    }
}

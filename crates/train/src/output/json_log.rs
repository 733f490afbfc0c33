//! A log with one line of JSON per step.

use std::fs::File;
use std::io::{self, LineWriter, Write};
use std::path::{Path, PathBuf};
use std::time::Instant;

use highwater_tensor::Result;
use highwater_tensor::error::FileError;
use serde_json::{Map, Value, json};

use super::{Observer, StepRecord};

/// Writes one line of JSON per step, which `highwater report --log` and
/// [`TrainingLog`](highwater_tracking::TrainingLog) read.
///
/// The fields are `step`, `seconds` since the start, `bytes_in_use`, `peak_bytes_in_use`, `loss` and the figures of the
/// step. Unknown values are `null`. NaN and infinities are the strings `NaN`, `Infinity` and `-Infinity`.
///
/// A failure to write does not stop the training; [`finish`](Observer::finish) returns it.
#[derive(Debug)]
pub struct JsonLog {
    path: PathBuf,
    /// Flushes every line, so that other programs can follow the file.
    file: LineWriter<File>,
    started: Instant,
    failure: Option<io::Error>,
}

impl JsonLog {
    /// Creates or truncates the file.
    ///
    /// # Errors
    /// [`FileError::Io`].
    pub fn create(path: impl AsRef<Path>) -> Result<Self, FileError> {
        let path = path.as_ref().to_owned();
        let file = File::create(&path).map_err(|error| FileError::io(&path, &error))?;
        Ok(Self { path, file: LineWriter::new(file), started: Instant::now(), failure: None })
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
    fn step(&mut self, record: &StepRecord) -> Result<()> {
        let figures = record.figures.iter().map(|(name, value)| (name.to_owned(), number(value)));
        let mut line: Map<String, Value> = figures.collect();
        for (name, value) in [
            ("step", json!(record.step)),
            ("seconds", json!(self.started.elapsed().as_secs_f64())),
            ("bytes_in_use", json!(record.bytes_in_use)),
            ("peak_bytes_in_use", json!(record.peak_bytes_in_use)),
            ("loss", number(record.loss)),
        ] {
            line.insert(name.to_owned(), value);
        }
        if self.failure.is_none() {
            self.failure = writeln!(self.file, "{}", Value::Object(line)).err();
        }
        Ok(())
    }

    fn finish(&mut self) -> Result<()> {
        let flushed = self.failure.take().map_or_else(|| self.file.flush(), Err);
        flushed.map_err(|error| FileError::io(&self.path, &error).into())
    }
}

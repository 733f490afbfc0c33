//! `--log`: one JSON line per training step.

use std::cell::RefCell;
use std::fs::File;
use std::io::{self, LineWriter, Write};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Instant;

use anyhow::Context;
use highwater::{Device, Result};
use serde_json::{Value, json};

/// Writes the log, if requested. Clones share the file.
#[derive(Clone, Default)]
pub(super) struct Metrics(Option<Rc<RefCell<Log>>>);

struct Log {
    path: PathBuf,
    /// Flushes every line, so that others can follow the file.
    file: LineWriter<File>,
    started: Instant,
    /// The first write error, reported at the end: a full disk must not stop training.
    failed: Option<io::Error>,
}

/// A number for the log. JSON has no NaN and infinities, so they are strings; `null` would mean a missing value.
pub(crate) fn number(value: impl Into<f64>) -> Value {
    let value = value.into();
    match value {
        _ if value.is_finite() => json!(value),
        _ if value.is_nan() => json!("NaN"),
        _ if value > 0.0 => json!("Infinity"),
        _ => json!("-Infinity"),
    }
}

impl Metrics {
    pub(super) fn open(path: Option<&Path>) -> anyhow::Result<Self> {
        let Some(path) = path else { return Ok(Self::default()) };
        let file = File::create(path).with_context(|| super::output::name(path))?;
        let (path, file) = (path.to_owned(), LineWriter::new(file));
        Ok(Self(Some(Rc::new(RefCell::new(Log { path, file, started: Instant::now(), failed: None })))))
    }

    /// Writes a step's line: its number, the seconds since the start, the memory in use and its peak, the loss, and
    /// `figures`. The loss of a dry run is null.
    pub(super) fn step(&self, step: u64, device: &Device, loss: Option<f32>, figures: Value) -> Result<()> {
        let Some(log) = &self.0 else { return Ok(()) };
        let (mut log, memory) = (log.borrow_mut(), device.default_allocator()?.stats());
        let mut line = json!({
            "step": step,
            "seconds": log.started.elapsed().as_secs_f64(),
            "bytes_in_use": memory.bytes_in_use,
            "peak_bytes_in_use": memory.peak_bytes_in_use,
            "loss": loss.map(number),
        });
        super::output::merge(&mut line, figures);
        if log.failed.is_none() {
            log.failed = writeln!(log.file, "{line}").err();
        }
        Ok(())
    }

    /// Flushes, and returns the first write error.
    pub(super) fn finish(&self) -> anyhow::Result<()> {
        let Some(log) = &self.0 else { return Ok(()) };
        let mut log = log.borrow_mut();
        let flushed = log.failed.take().map_or_else(|| log.file.flush(), Err);
        flushed.with_context(|| super::output::name(&log.path))
    }
}

//! The progress bar: how training goes, and what memory it holds meanwhile.

use highwater::alloc::Bytes;
use highwater::{Device, Result};
use indicatif::{ProgressBar, ProgressFinish, ProgressStyle};
use serde_json::json;

use crate::harness::Metrics;

/// A bar on standard error; nothing where that is no terminal.
pub(crate) struct Progress {
    bar: ProgressBar,
    device: Device,
    metrics: Metrics,
    accuracy: Option<f64>,
}

impl Progress {
    /// A bar for so many steps, which are also told to `metrics`.
    pub(crate) fn new(device: &Device, steps: u64, metrics: Metrics) -> Self {
        let style = ProgressStyle::with_template("{bar:20.cyan/dim} {percent:>3} %  {msg}")
            .map_or_else(|_| ProgressStyle::default_bar(), |style| style.progress_chars("━╸─"));
        // A run that fails leaves the bar as it was.
        let bar = ProgressBar::new(steps).with_style(style).with_finish(ProgressFinish::Abandon);
        Self { bar, device: device.clone(), metrics, accuracy: None }
    }

    /// Shows nothing.
    pub(crate) fn hidden(device: &Device) -> Self {
        Self {
            bar: ProgressBar::hidden(),
            device: device.clone(),
            metrics: Metrics::default(),
            accuracy: None,
        }
    }

    /// Counts a step.
    pub(crate) fn step(&self, step: u64, loss: Option<f32>, learning_rate: f64) -> Result<()> {
        let figures = json!({ "loss": loss, "learning_rate": learning_rate, "test_accuracy": self.accuracy });
        self.metrics.step(step, &self.device, figures)?;
        self.bar.inc(1);
        if self.bar.is_hidden() {
            return Ok(());
        }
        let memory = self.device.default_allocator()?.stats();
        let (now, peak) = (Bytes(memory.bytes_in_use), Bytes(memory.peak_bytes_in_use));
        let loss = loss.map_or(String::new(), |loss| format!("loss {loss:.4}  "));
        let accuracy =
            self.accuracy.map_or(String::new(), |share| format!("accuracy {:.1} %  ", share * 100.0));
        let speed = self.bar.per_sec();
        self.bar.set_message(format!("{loss}{accuracy}{speed:.0} steps/s  memory {now}, peak {peak}"));
        Ok(())
    }

    /// Shows the accuracy on images that were not trained on, from now on.
    pub(crate) fn show_accuracy(&mut self, accuracy: Option<f64>) {
        self.accuracy = accuracy;
    }
}

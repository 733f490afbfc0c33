//! Training progress: a bar on standard error, and a log line per step.

use std::sync::Arc;

use highwater::alloc::Bytes;
use highwater::{Device, Result, StepGraph, Tensor};
use indicatif::{ProgressBar, ProgressFinish, ProgressStyle};
use serde_json::Value;

use super::metrics::Metrics;

/// Counts steps and keeps the last loss. Without a terminal the bar is hidden.
pub(crate) struct Progress {
    bar: ProgressBar,
    device: Device,
    metrics: Metrics,
    graph: Option<Arc<StepGraph>>,
    steps: u64,
    loss: Option<f32>,
    note: String,
}

impl Progress {
    pub(super) fn new(device: &Device, steps: u64, metrics: Metrics, graph: Option<Arc<StepGraph>>) -> Self {
        let style = ProgressStyle::with_template("{bar:20.cyan/dim} {percent:>3} %  {msg}")
            .map_or_else(|_| ProgressStyle::default_bar(), |style| style.progress_chars("━╸─"));
        // A run that fails leaves the bar as it was.
        let bar = ProgressBar::new(steps).with_style(style).with_finish(ProgressFinish::Abandon);
        Self { bar, device: device.clone(), metrics, graph, steps: 0, loss: None, note: String::new() }
    }

    /// Counts without a bar, for dry runs.
    pub(crate) fn hidden(device: &Device) -> Self {
        Self { bar: ProgressBar::hidden(), ..Self::new(device, 0, Metrics::default(), None) }
    }

    /// Continues after this number of steps.
    pub(crate) fn resume(&mut self, steps: u64) {
        self.steps = steps;
        self.bar.set_position(steps);
    }

    /// The number of finished steps.
    pub(crate) const fn steps(&self) -> u64 {
        self.steps
    }

    /// The loss of the last step; `None` on a device that computes nothing.
    pub(crate) const fn loss(&self) -> Option<f32> {
        self.loss
    }

    /// Sets a note to show next to the loss.
    pub(crate) fn note(&mut self, note: String) {
        self.note = note;
    }

    /// Runs a step, as graphs if requested.
    pub(crate) fn run<T>(&self, step: impl FnOnce() -> Result<T>) -> Result<T> {
        match &self.graph {
            Some(graph) => graph.run(step),
            None => step(),
        }
    }

    /// Counts a step. `figures` are further fields of its log line.
    pub(crate) fn step(&mut self, loss: &Tensor, figures: Value) -> Result<()> {
        let loss = if self.device.is_dry() { None } else { Some(loss.item::<f32>()?) };
        self.step_with(loss, figures)
    }

    /// Counts a step with a known loss.
    pub(crate) fn step_with(&mut self, loss: Option<f32>, figures: Value) -> Result<()> {
        self.loss = loss;
        self.metrics.step(self.steps, &self.device, loss, figures)?;
        self.steps += 1;
        self.bar.inc(1);
        if self.bar.is_hidden() {
            return Ok(());
        }
        let memory = self.device.default_allocator()?.stats();
        let (now, peak) = (Bytes(memory.bytes_in_use), Bytes(memory.peak_bytes_in_use));
        let loss = loss.map_or(String::new(), |loss| format!("loss {loss:.4}  "));
        let note = if self.note.is_empty() { String::new() } else { format!("{}  ", self.note) };
        let speed = self.bar.per_sec();
        self.bar.set_message(format!("{loss}{note}{speed:.0} steps/s  memory {now}, peak {peak}"));
        Ok(())
    }
}

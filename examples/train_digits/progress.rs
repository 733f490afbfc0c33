//! The progress bar: how training goes, and what memory it takes meanwhile.

use std::sync::Arc;

use highwater::alloc::{Allocator, Bytes};
use highwater::{Device, Result};
use indicatif::{ProgressBar, ProgressStyle};

/// A bar on the terminal; nothing at all where standard error is no terminal.
pub struct Progress {
    bar: ProgressBar,
    pool: Option<Arc<dyn Allocator>>,
    loss: Option<f32>,
    accuracy: Option<f64>,
}

impl Progress {
    pub fn new(device: &Device, steps: u64) -> Self {
        let style = ProgressStyle::with_template("{bar:24.cyan/blue} {pos}/{len} {per_sec:>10} {msg}");
        let bar = ProgressBar::new(steps);
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        Self { bar, pool: device.default_allocator().ok().cloned(), loss: None, accuracy: None }
    }

    /// Counts a step.
    pub fn step(&mut self, loss: Option<f32>) -> Result<()> {
        self.bar.inc(1);
        Ok(())
    }

    pub fn epoch(&mut self, accuracy: Option<f64>) {}

    pub fn finish(&self) {}
}

//! A progress bar on standard error.

use bfc_core::{Bytes, printable};
use highwater_tensor::Result;
use indicatif::{ProgressBar as Bar, ProgressFinish, ProgressStyle};

use super::{Observer, RunStart, StepRecord};

/// The figure that the bar omits: it is known in advance.
const KNOWN: &str = "learning_rate";

/// A progress bar on standard error: loss, last evaluation, speed and memory. Hidden if standard error is no terminal.
#[derive(Debug)]
pub struct ProgressBar {
    bar: Bar,
    /// The last values of an evaluation.
    evaluation: String,
}

impl Default for ProgressBar {
    fn default() -> Self {
        Self::new()
    }
}

impl ProgressBar {
    /// Creates the bar.
    #[must_use]
    pub fn new() -> Self {
        // A run that fails leaves the bar as it was.
        let bar = Bar::no_length().with_finish(ProgressFinish::Abandon);
        Self { bar, evaluation: String::new() }
    }
}

impl Observer for ProgressBar {
    fn begin(&mut self, start: &RunStart) -> Result<()> {
        let template = if start.total.is_some() {
            "{bar:20.cyan/dim} {percent:>3} %  {wide_msg}"
        } else {
            "{spinner} step {pos}  {wide_msg}"
        };
        let style = ProgressStyle::with_template(template);
        self.bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()).progress_chars("━╸─"));
        if let Some(total) = start.total {
            self.bar.set_length(total);
        }
        self.bar.set_position(start.completed);
        self.bar.reset_eta();
        Ok(())
    }

    fn step(&mut self, record: &StepRecord) -> Result<()> {
        self.bar.inc(1);
        if self.bar.is_hidden() {
            return Ok(());
        }
        let values = record.figures.iter().filter(|(name, _)| *name != KNOWN);
        let evaluation: String = values
            .filter_map(|(name, value)| Some(format!("{} {:.4}  ", name.replace('_', " "), value?)))
            .collect();
        if !evaluation.is_empty() {
            self.evaluation = evaluation;
        }
        let loss = record.loss.map_or_else(String::new, |loss| format!("loss {loss:.4}  "));
        let (now, peak) = (Bytes(record.bytes_in_use), Bytes(record.peak_bytes_in_use));
        let (evaluation, speed) = (&self.evaluation, self.bar.per_sec());
        let message = format!("{loss}{evaluation}{speed:.0} steps/s  memory {now}, peak {peak}");
        // The program names its figures.
        self.bar.set_message(printable(message).to_string());
        Ok(())
    }

    fn finish(&mut self) -> Result<()> {
        self.bar.abandon();
        Ok(())
    }
}

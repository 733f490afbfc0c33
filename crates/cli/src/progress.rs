//! Progress of long work.

use indicatif::{ProgressBar, ProgressStyle};

use bfc_core::printable;

/// A progress line on standard error if that is a terminal.
#[derive(Debug)]
pub(crate) struct Progress(ProgressBar);

impl Progress {
    pub(crate) fn new(parts: usize) -> Self {
        let bar = ProgressBar::new(parts as u64);
        // The template is constant, and a missing style is harmless.
        if let Ok(style) = ProgressStyle::with_template("{pos}/{len} {wide_msg}") {
            bar.set_style(style);
        }
        Self(bar)
    }

    pub(crate) fn say(&self, what: &str) {
        self.0.set_message(printable(what).to_string());
        self.0.tick();
    }

    pub(crate) fn done(&self, parts: usize) {
        self.0.inc(parts as u64);
    }

    pub(crate) fn clear(&self) {
        self.0.finish_and_clear();
    }
}

//! How far a long replay is, for people who watch.

use indicatif::{ProgressBar, ProgressStyle};

/// A line on standard error; nothing where that is no terminal.
#[derive(Debug)]
pub(super) struct Progress(ProgressBar);

impl Progress {
    pub(super) fn new(replays: usize) -> Self {
        let bar = ProgressBar::new(replays as u64);
        // The template is our own, and a progress bar without one is none the worse.
        if let Ok(style) = ProgressStyle::with_template("{pos}/{len} {wide_msg}") {
            bar.set_style(style);
        }
        Self(bar)
    }

    pub(super) fn say(&self, what: &str) {
        self.0.set_message(what.to_owned());
        self.0.tick();
    }

    pub(super) fn done(&self, replays: usize) {
        self.0.inc(replays as u64);
    }

    pub(super) fn clear(&self) {
        self.0.finish_and_clear();
    }
}

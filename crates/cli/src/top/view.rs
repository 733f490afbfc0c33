//! The screen of `highwater top` as lines of text.

use std::path::Path;

use highwater_tracking::table::{Table, bytes, count, duration, share};
use highwater_tracking::{Follower, HolderNow};

use crate::report::plain;
use crate::sparkline::sparkline;

/// The order of the holders.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    /// By live bytes.
    Live,
    /// By bytes at the peak.
    Peak,
}

impl Order {
    pub(super) const fn next(self) -> Self {
        match self {
            Self::Live => Self::Peak,
            Self::Peak => Self::Live,
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Live => "bytes in use",
            Self::Peak => "bytes at the peak",
        }
    }
}

/// A run at one moment.
pub(super) struct View<'a, R> {
    path: &'a Path,
    run: &'a Follower<R>,
    order: Order,
    /// Events a second, once that is known.
    rate: Option<f64>,
}

/// The message while the file does not exist.
pub(super) fn waiting(path: &Path) -> String {
    format!("waiting for {}, which does not exist yet", path.display())
}

/// [`waiting`] on a screen of this size.
pub(super) fn waiting_fitting(path: &Path, columns: usize, rows: usize) -> Vec<String> {
    fit(vec![waiting(path)], "q quits".to_owned(), columns, rows)
}

/// Lines for a screen of this size, with the keys in the last row.
fn fit(mut lines: Vec<String>, keys: String, columns: usize, rows: usize) -> Vec<String> {
    lines.resize(rows.saturating_sub(1), String::new());
    lines.push(keys);
    lines.truncate(rows);
    lines.into_iter().map(|line| line.chars().take(columns).collect()).collect()
}

/// More holders than fit on a screen; the largest are chosen from these.
const CANDIDATES: usize = 1000;

impl<'a, R: std::io::Read> View<'a, R> {
    pub(super) const fn new(path: &'a Path, run: &'a Follower<R>, order: Order, rate: Option<f64>) -> Self {
        Self { path, run, order, rate }
    }

    /// The view on a screen of so many columns and rows, the keys in the last row.
    pub(super) fn fitting(&self, columns: usize, rows: usize) -> Vec<String> {
        let keys = format!("q quits   s changes the order; now by {}", self.order.name());
        fit(self.lines(columns, rows), keys, columns, rows)
    }

    /// The view, so wide, with at most so many holders.
    pub(super) fn lines(&self, width: usize, holders: usize) -> Vec<String> {
        let run = self.run;
        let mut lines = vec![self.head()];
        if run.facts().is_none() {
            lines.push("nothing recorded yet".to_owned());
            return lines;
        }
        lines.push(self.levels());
        if run.failures() > 0 {
            lines.push(format!("{} requests failed: out of memory", run.failures()));
        }
        if let Some(mark) = run.last_mark() {
            lines.push(format!("last mark: {}", plain(mark)));
        }
        let top = run.peak_bytes().max(1) as f64;
        lines.push(sparkline(run.course().iter().map(|&level| level as f64 / top), width.min(512)));
        let tables = [self.categories(), self.holders(holders)];
        for table in tables {
            lines.push(String::new());
            lines.extend(table.to_string().lines().map(str::to_owned));
        }
        lines
    }

    fn head(&self) -> String {
        let run = self.run;
        let name = run.facts().map_or("", |facts| facts.program.as_str());
        let name = if name.is_empty() { "a run" } else { name };
        let state = if run.has_ended() { "ended" } else { "recording" };
        let rate = self.rate.filter(|_| !run.has_ended());
        let rate = rate.map_or_else(String::new, |rate| format!(", {rate:.0} a second"));
        let time = duration(run.time_ns());
        let path = self.path.display();
        format!("{} ({path}), {state}: {} events in {time}{rate}", plain(name), run.events())
    }

    fn levels(&self) -> String {
        let run = self.run;
        let reserved = match run.reserved_bytes() {
            0 => String::new(),
            reserved => format!(", reserved {}", bytes(reserved)),
        };
        let peak = match run.peak_bytes() {
            0 => String::new(),
            peak => {
                let (time, owner) = (duration(run.peak_at_ns()), run.peak_owner());
                let by = if owner.is_empty() { String::new() } else { format!(" by {}", plain(&owner)) };
                format!(", peak {} after {time}{by}", bytes(peak))
            }
        };
        format!("in use {}{reserved}{peak}", bytes(run.live_bytes()))
    }

    fn categories(&self) -> Table {
        let mut table = Table::new(&["category", "in use", "at most", "at peak", "share"]);
        for row in self.run.categories().iter().filter(|row| row.most_bytes > 0) {
            table.line(
                &row.category.name().replace('_', " "),
                [
                    bytes(row.live_bytes),
                    bytes(row.most_bytes),
                    bytes(row.peak_bytes),
                    self.share_of_peak(row.peak_bytes),
                ],
            );
        }
        table
    }

    fn holders(&self, most: usize) -> Table {
        let mut rows = self.run.holders(CANDIDATES.max(most));
        if self.order == Order::Peak {
            rows.sort_by_key(|row| std::cmp::Reverse((row.peak_bytes, row.live_bytes)));
        }
        let mut table = Table::new(&["held by", "calls", "in use", "at most", "at peak", "share"]);
        for HolderNow { name, calls, live_bytes, most_bytes, peak_bytes, .. } in rows.iter().take(most) {
            let name = if name.is_empty() { "(outside of ops)".to_owned() } else { plain(name) };
            let share = self.share_of_peak(*peak_bytes);
            table.line(
                &name,
                [count(*calls), bytes(*live_bytes), bytes(*most_bytes), bytes(*peak_bytes), share],
            );
        }
        table
    }

    fn share_of_peak(&self, held: u64) -> String {
        share(held as f64 / self.run.peak_bytes().max(1) as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bfc_core::{AddressOnlyMemory, Allocation, Allocator, BfcAllocator, BfcConfig, Bytes, Request};
    use highwater_tracking::{RecordingLimits, RunFacts, Tracker, module};
    use std::fs::File;
    use std::sync::Arc;

    /// A run of two holders: the first let go, the second holds less.
    fn followed() -> Follower<File> {
        let directory = tempfile::TempDir::new().unwrap();
        let path = directory.path().join("run.hwm");
        let config = BfcConfig::new(Bytes::mib(1));
        let pool: Arc<dyn Allocator> =
            Arc::new(BfcAllocator::new("cpu:0", Arc::new(AddressOnlyMemory::new()), config));
        let tracker = Tracker::new();
        tracker.start_recording(File::create(&path).unwrap(), &RunFacts::new("sample\x1b[2J")).unwrap();
        let take = |scope, bytes| {
            let _scope = module(scope);
            let run = tracker.begin("matmul");
            Allocation::new(&run.track(&pool), &Request::new(bytes)).unwrap()
        };
        tracker.mark("step 1");
        let (first, second) = (take("fc1", 4096), take("fc2", 1024));
        drop(first);
        tracker.finish_recording(std::slice::from_ref(&pool)).unwrap();
        drop(second);
        let mut follower = Follower::new(File::open(&path).unwrap(), RecordingLimits::default());
        follower.poll().unwrap();
        follower
    }

    #[test]
    fn a_view_says_what_is_in_use_and_who_holds_it() {
        let follower = followed();
        let view = View::new(Path::new("run.hwm"), &follower, Order::Live, None);
        let lines = view.lines(100, 20);
        assert!(lines[0].starts_with("sample\u{fffd}[2J (run.hwm), ended: "), "{lines:#?}");
        assert!(
            lines[1].starts_with("in use 1.00 KiB, reserved 1.00 MiB, peak 5.00 KiB after "),
            "{lines:#?}"
        );
        assert!(lines[1].ends_with("by fc2.matmul") && lines[2] == "last mark: step 1", "{lines:#?}");
        let of = |order| {
            let lines = View::new(Path::new("run.hwm"), &follower, order, None).lines(100, 1);
            lines.last().cloned().unwrap()
        };
        assert!(of(Order::Live).starts_with("fc2.matmul") && of(Order::Live).ends_with("20.0 %"));
        assert!(of(Order::Peak).starts_with("fc1.matmul") && of(Order::Peak).ends_with("80.0 %"));
    }

    #[test]
    fn a_view_fits_any_screen() {
        let follower = followed();
        let view = View::new(Path::new("run.hwm"), &follower, Order::Live, Some(1e6));
        for (columns, rows) in [(0, 0), (1, 1), (7, 3), (80, 24), (300, 100)] {
            for lines in [view.fitting(columns, rows), waiting_fitting(view.path, columns, rows)] {
                assert_eq!(lines.len(), rows);
                assert!(lines.iter().all(|line| line.chars().count() <= columns));
            }
        }
        assert!(view.fitting(80, 24)[23].starts_with("q quits"));
    }
}

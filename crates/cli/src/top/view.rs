//! The screen of `highwater top` as lines of text.

use std::path::Path;

use bfc_core::printable;
use highwater_tracking::table::{Table, bytes, count, duration, plain, share, sparkline};
use highwater_tracking::{Follower, Report};

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
            Self::Live => "live bytes",
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
    format!("waiting for {}, which does not exist yet", printable(path.display()))
}

/// [`waiting`] on a screen of this size.
pub(super) fn waiting_cropped(path: &Path, columns: usize, rows: usize) -> Vec<String> {
    crop(vec![waiting(path)], "q quits".to_owned(), columns, rows)
}

/// Lines for a screen of this size, with the keys in the last row.
fn crop(mut lines: Vec<String>, keys: String, columns: usize, rows: usize) -> Vec<String> {
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

    /// Returns the view on a screen of this many columns and rows, with the keys in the last row.
    pub(super) fn cropped(&self, columns: usize, rows: usize) -> Vec<String> {
        let keys = format!("q quits   s changes the order; now by {}", self.order.name());
        crop(self.lines(columns, rows), keys, columns, rows)
    }

    /// Returns the view of this width, with at most this many holders.
    pub(super) fn lines(&self, width: usize, holders: usize) -> Vec<String> {
        let run = self.run;
        let report = run.report(CANDIDATES.max(holders));
        let mut lines = vec![self.head()];
        if run.facts().is_none() {
            lines.push("nothing recorded yet".to_owned());
            return lines;
        }
        lines.push(self.levels(&report));
        if run.failures() > 0 {
            lines.push(format!("{} requests failed: out of memory", run.failures()));
        }
        if let Some(mark) = run.last_mark() {
            lines.push(format!("last mark: {}", plain(mark)));
        }
        let top = report.peak.as_ref().map_or(1, |peak| peak.bytes) as f64;
        lines.push(sparkline(run.level_history().iter().map(|&level| level as f64 / top), width.min(512)));
        let tables = [report.category_table(), self.holders(report, holders)];
        for table in tables {
            lines.push(String::new());
            lines.extend(table.within(width).to_string().lines().map(str::to_owned));
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
        let path = printable(self.path.display());
        format!("{} ({path}), {state}: {} events in {time}{rate}", plain(name), run.events())
    }

    fn levels(&self, report: &Report) -> String {
        let reserved = match self.run.reserved_bytes() {
            0 => String::new(),
            reserved => format!(", reserved {}", bytes(reserved)),
        };
        let peak = report.peak.as_ref().map_or(String::new(), |peak| {
            let (time, owner) = (duration(peak.at_ns.unwrap_or(0)), peak.owner());
            let by = if owner.is_empty() { String::new() } else { format!(" by {}", plain(&owner)) };
            format!(", peak {} after {time}{by}", bytes(peak.bytes))
        });
        format!("live {}{reserved}{peak}", bytes(self.run.live_bytes()))
    }

    fn holders(&self, report: Report, most: usize) -> Table {
        let mut rows = report.places;
        if self.order == Order::Peak {
            rows.sort_by_key(|row| std::cmp::Reverse((row.peak_bytes, row.live_bytes)));
        }
        let heading = ["op", "calls", "live", "self peak", "at peak", "share"];
        let mut table = Table::new(&heading).omitting(&["calls", "self peak", "share"]);
        for row in rows.iter().take(most) {
            let path = row.path();
            let name = if path.is_empty() { "(outside of ops)" } else { &path };
            let sizes = [row.live_bytes, row.self_peak_bytes, row.peak_bytes].map(bytes);
            table.line(name, [count(row.calls)].into_iter().chain(sizes).chain([share(row.peak_share)]));
        }
        table
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
        assert!(lines[0].starts_with(r"sample\u{1b}[2J (run.hwm), ended: "), "{lines:#?}");
        assert!(lines[1].starts_with("live 1.00 KiB, reserved 1.00 MiB, peak 5.00 KiB after "), "{lines:#?}");
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
            for lines in [view.cropped(columns, rows), waiting_cropped(view.path, columns, rows)] {
                assert_eq!(lines.len(), rows);
                assert!(lines.iter().all(|line| line.chars().count() <= columns));
            }
        }
        assert!(view.cropped(80, 24)[23].starts_with("q quits"));
    }
}

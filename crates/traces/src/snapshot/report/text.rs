//! The report of a PyTorch snapshot as text.
//!
//! The order follows the questions of its readers: how much is reserved, what holds the memory, why more is reserved
//! than requested, and which settings help.

use std::fmt::Write as _;

use highwater_tracking::TextOptions;
use highwater_tracking::table::{Table, WIDTH, bytes, count, duration, plain, share, sparkline};

use super::{AllocatorReport, GapMoment, MemoryLevel, SettingsAdvice, SettingsRow, SnapshotReport};

/// How to record a history.
const HOW_TO_RECORD: &str = "\
The file has no events, only the state at one moment. Record the history to see peaks, categories and
the effect of settings:

  torch.cuda.memory._record_memory_history(max_entries=1_000_000)
  ...  # some training steps
  torch.cuda.memory._dump_snapshot(\"snapshot.pickle\")
";

/// The length of settings that a table keeps at the cost of columns.
const SETTINGS_LENGTH: usize = 48;

impl SnapshotReport {
    /// Returns the report as text.
    #[must_use]
    pub fn text(&self, options: TextOptions) -> String {
        text(self, options)
    }
}

fn text(report: &SnapshotReport, options: TextOptions) -> String {
    let pytorch = &report.pytorch;
    let mut text = head(pytorch, options.wide);
    let mut part = |part: String| {
        if !part.is_empty() {
            text.push('\n');
            text += &part;
        }
    };
    part(table(report.report.category_table(), options.wide));
    part(annotations(pytorch, options));
    part(streams(pytorch, options));
    part(over_time(pytorch));
    part(causes(pytorch, options.wide));
    part(keepers(pytorch, options));
    if pytorch.has_events {
        part(settings(pytorch, options.wide));
        part(wrapped(&pytorch.conclusion(), options.wide));
    } else {
        part(HOW_TO_RECORD.to_owned());
    }
    part(report.report.holders(options).to_string());
    text
}

/// The table, or nothing if it has no rows.
fn table(table: Table, wide: bool) -> String {
    if table.is_empty() { String::new() } else { table.wide(wide).to_string() }
}

/// The device, the settings and the peaks.
fn head(report: &AllocatorReport, wide: bool) -> String {
    let mut text = format!("PyTorch's memory on device {}", report.device);
    let end = &report.end.level;
    if report.has_events {
        let _ = write!(text, ": {} events", report.events);
        if end.at_ns > 0 {
            let _ = write!(text, " in {}", duration(end.at_ns));
        }
    }
    text.push('\n');
    let settings = match report.alloc_conf.as_deref() {
        Some("") => "defaults",
        Some(settings) => settings,
        None => "not in the file",
    };
    text += &wrapped(&format!("settings: {}", plain(settings)), wide);
    if report.lost_beginning && report.has_events {
        text += "the beginning of the history is lost: a larger max_entries keeps more events\n";
    }
    if !report.has_events {
        let (reserved, allocated) = (size(end.reserved_bytes), size(end.allocated_bytes));
        let _ = writeln!(text, "reserved: {reserved}, of which {allocated} are allocated");
        return text;
    }
    let (allocated, reserved) = (&report.peak_allocated, &report.peak_reserved);
    let peak = size(allocated.allocated_bytes);
    let _ = writeln!(text, "peak allocated: {peak}{}", after(allocated));
    let (peak, gap) = (size(reserved.level.reserved_bytes), size(reserved.gap_bytes));
    let _ = writeln!(text, "peak reserved: {peak}{}, {gap} more than requested", after(&reserved.level));
    text
}

/// A size in a sentence.
fn size(value: u64) -> String {
    if value == 0 { "0 B".to_owned() } else { bytes(value) }
}

/// When a level was reached.
fn after(level: &MemoryLevel) -> String {
    if level.at_ns > 0 { format!(" after {}", duration(level.at_ns)) } else { String::new() }
}

/// The annotations, indented by their depth.
fn annotations(report: &AllocatorReport, TextOptions { top, wide, .. }: TextOptions) -> String {
    let heading = ["annotation", "times", "time", "own high water", "peak allocated", "peak reserved"];
    let mut rows = Table::new(&heading).omitting(&["time", "times"]);
    for row in report.annotations.iter().take(top) {
        let name = format!("{}{}", "  ".repeat(row.depth as usize), row.name);
        let time = if row.time_ns > 0 { duration(row.time_ns) } else { "-".to_owned() };
        let figures = [row.high_water_bytes, row.peak_allocated_bytes, row.peak_reserved_bytes].map(bytes);
        rows.line(&name, [count(row.times), time].into_iter().chain(figures));
    }
    rows.rest(report.annotations.len(), top);
    table(rows.without_empty_columns(), wide)
}

/// The streams and private pools at the end.
fn streams(report: &AllocatorReport, TextOptions { top, wide, .. }: TextOptions) -> String {
    let mut rows = Table::new(&["stream", "reserved at the end", "allocated"]);
    for row in report.streams.iter().take(top) {
        let name = match row.private_pool {
            Some((a, b)) => format!("{}, private pool ({a}, {b})", row.cuda_stream),
            None => row.cuda_stream.to_string(),
        };
        rows.line(&name, [row.reserved_bytes, row.allocated_bytes].map(bytes));
    }
    rows.rest(report.streams.len(), top);
    table(rows, wide)
}

/// A figure of a moment.
type Figure = fn(&MemoryLevel) -> u64;

/// Curves of reserved and requested bytes and their difference, all in parts of the peak.
fn over_time(report: &AllocatorReport) -> String {
    let peak = report.peak_reserved.level.reserved_bytes;
    if report.timeline.len() < 2 || peak == 0 {
        return String::new();
    }
    let curve = |figure: fn(&MemoryLevel) -> u64| {
        sparkline(
            report.timeline.iter().map(|level| figure(level) as f64 / peak as f64),
            report.timeline.len(),
        )
    };
    let curves: [(&str, Figure); 3] = [
        ("reserved", |level| level.reserved_bytes),
        ("requested", |level| level.requested_bytes),
        ("difference", MemoryLevel::gap_bytes),
    ];
    let lines = curves.map(|(name, figure)| {
        let most = report.timeline.iter().map(figure).max().unwrap_or(0);
        format!("{name:<11} {}  up to {}\n", curve(figure), size(most))
    });
    format!("over time\n{}", lines.concat())
}

/// The causes of the difference at three moments, or at the only one.
fn causes(report: &AllocatorReport, wide: bool) -> String {
    let all = [
        ("largest difference", &report.largest_gap),
        ("peak reserved", &report.peak_reserved),
        ("at the end", &report.end),
    ];
    let moments = if report.has_events { &all[..] } else { &all[2..] };
    let heading: Vec<&str> =
        ["reserved, not requested"].into_iter().chain(moments.iter().map(|(name, _)| *name)).collect();
    let mut rows = Table::new(&heading);
    let mut line = |name: &str, figure: &dyn Fn(&GapMoment) -> u64| {
        let cells = moments.iter().map(|(_, moment)| bytes(figure(moment)));
        rows.line(name, cells);
    };
    for (number, (name, _)) in report.end.causes.rows().into_iter().enumerate() {
        let figure = |moment: &GapMoment| moment.causes.rows()[number].1;
        if moments.iter().any(|(_, moment)| figure(moment) > 0) {
            line(name, &figure);
        }
    }
    if moments.iter().any(|(_, moment)| moment.gap_bytes > 0) {
        rows.rule();
    }
    let mut line = |name: &str, figure: fn(&GapMoment) -> u64| {
        rows.line(name, moments.iter().map(|(_, moment)| bytes(figure(moment))));
    };
    line("difference", |moment| moment.gap_bytes);
    line("requested", |moment| moment.level.requested_bytes);
    line("reserved", |moment| moment.level.reserved_bytes);
    if moments.iter().any(|(_, moment)| moment.level.at_ns > 0) {
        rows.line("time", moments.iter().map(|(_, moment)| duration(moment.level.at_ns)));
    }
    table(rows, wide)
}

/// The blocks that keep the most free memory at the largest difference, or in a file without events.
fn keepers(report: &AllocatorReport, TextOptions { top, wide, .. }: TextOptions) -> String {
    let moment = if report.has_events { &report.largest_gap } else { &report.end };
    let heading = ["blocks that keep free memory", "category", "segments", "one block", "in use", "free"];
    let mut rows = Table::new(&heading).omitting(&["one block", "category"]);
    for row in moment.keepers.iter().take(top) {
        let name = if row.owner.is_empty() { "(unknown)" } else { &row.owner };
        let counts = [row.segments, row.single_block_segments].map(count);
        let figures = [row.block_bytes, row.free_bytes].map(bytes);
        let category = row.category.replace('_', " ");
        rows.line(name, [category].into_iter().chain(counts).chain(figures));
    }
    rows.rest(moment.keepers.len(), top);
    let mut text = table(rows, wide);
    let single = &moment.single_block_segments;
    if single.segments > 0 {
        let (used, free) = (size(single.block_bytes), size(single.free_bytes));
        let segments = match single.segments {
            1 => "1 segment has".to_owned(),
            many => format!("{many} segments have"),
        };
        let _ = writeln!(text, "{segments} only one live block: {used} in use keep {free} free");
    }
    text
}

/// The recorded run, and the settings that were replayed.
fn settings(report: &AllocatorReport, wide: bool) -> String {
    let heading = ["settings", "peak reserved", "difference removed", "reserved at the end", "removed"];
    let mut rows = Table::new(&heading).omitting(&["removed"]).keeping_names(SETTINGS_LENGTH);
    let level = [report.peak_reserved.level.reserved_bytes, report.end.level.reserved_bytes];
    rows.line("(the recorded run)", [bytes(level[0]), String::new(), bytes(level[1]), String::new()]);
    let removed = |part: Option<f64>| part.filter(|part| part.abs() >= 0.0005).map_or("-".to_owned(), share);
    for row in &report.tried {
        let cells = match (row.peak_reserved_bytes, row.end_reserved_bytes) {
            (Some(peak), Some(end)) => {
                [bytes(peak), removed(row.peak_gap_removed), bytes(end), removed(row.end_gap_removed)]
            }
            _ => ["fails", "", "", ""].map(str::to_owned),
        };
        rows.line(&settings_name(row), cells);
    }
    let mut text = table(rows, wide);
    for row in &report.tried {
        if let Some(failure) = &row.failure {
            text += &wrapped(&format!("{}: {}", settings_name(row), plain(failure)), wide);
        }
    }
    text
}

/// The name of settings in the table.
fn settings_name(row: &SettingsRow) -> String {
    let name = or_defaults(&row.settings);
    if row.is_recorded { format!("replayed: {name}") } else { name.to_owned() }
}

fn or_defaults(settings: &str) -> &str {
    if settings.is_empty() { "defaults" } else { settings }
}

impl AllocatorReport {
    /// Returns sentences: whether the replay of the recorded settings agrees with the run, and which settings help.
    /// Empty without replays.
    #[must_use]
    pub fn conclusion(&self) -> String {
        let Some(recorded) = self.tried.first() else { return String::new() };
        let (run, replay) = (self.peak_reserved.level.reserved_bytes, recorded.peak_reserved_bytes);
        let check = match replay {
            Some(replay) if replay == run => {
                "The replay of the recorded settings has the same peak as the run.".to_owned()
            }
            Some(replay) => {
                let (replay, run) = (size(replay), size(run));
                format!("The replay of the recorded settings reserves {replay}, the run {run}.")
            }
            None => "The recorded settings could not be replayed.".to_owned(),
        };
        let reasons = match self.deviations.as_slice() {
            reasons @ [_, ..] if replay != Some(run) => format!(" Possible reasons: {}.", reasons.join("; ")),
            _ => String::new(),
        };
        let advice = match &self.advice {
            Some(advice) => advice_text(advice),
            None => "None of these settings removes a real part of the difference.".to_owned(),
        };
        format!("{check}{reasons} {advice}")
    }
}

fn advice_text(advice: &SettingsAdvice) -> String {
    let what = if advice.is_about_end { "reserved memory at the end" } else { "the peak of reserved memory" };
    let (before, after) = (size(advice.before_bytes), size(advice.after_bytes));
    let part = share(advice.gap_removed);
    let change = format!("{what} from {before} to {after}, {part} of the difference to requested memory");
    match advice.settings.as_str() {
        "" => format!("PyTorch's defaults, without PYTORCH_CUDA_ALLOC_CONF, lower {change}."),
        settings => format!("PYTORCH_CUDA_ALLOC_CONF={settings} lowers {change}."),
    }
}

/// Breaks a text into lines that fit, unless the report is wide.
fn wrapped(text: &str, wide: bool) -> String {
    let most = if wide { usize::MAX } else { WIDTH };
    let (mut lines, mut column) = (String::new(), 0);
    for word in plain(text).split(' ').filter(|word| !word.is_empty()) {
        let mut rest = word;
        loop {
            let length = rest.chars().count();
            if column > 0 && column + 1 + length > most {
                // A word that fits no line continues on the next one.
                lines.push('\n');
                column = 0;
            } else if column > 0 {
                lines.push(' ');
                column += 1;
            }
            let cut = rest.char_indices().nth(most).map_or(rest.len(), |(index, _)| index);
            let (now, later) = rest.split_at(cut);
            lines += now;
            column += now.chars().count();
            if later.is_empty() {
                break;
            }
            rest = later;
        }
    }
    if !lines.is_empty() {
        lines.push('\n');
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_texts_are_broken_into_lines() {
        assert_eq!(wrapped("one  two", false), "one two\n");
        assert_eq!(wrapped("", false), "");
        let text = wrapped(&"word ".repeat(50), false);
        assert!(text.lines().all(|line| line.len() <= WIDTH), "{text}");
        let text = wrapped(&format!("settings: {}", "x".repeat(250)), false);
        assert_eq!(text.lines().map(str::len).collect::<Vec<_>>(), [9, 100, 100, 50]);
        assert_eq!(wrapped(&"x".repeat(250), true).len(), 251);
    }
}

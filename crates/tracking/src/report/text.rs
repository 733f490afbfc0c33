//! A report as tables of at most 100 columns, unless all figures are requested.
//!
//! Every table leaves out columns without figures. A table that is too wide also leaves out its least important columns,
//! then abbreviates names. Names may come from a file and are printed without control
//! characters.

use std::fmt::{self, Write as _};

use super::live::{growth_table, live_table};
use super::outside::outside_table;
use super::table::{Table, WIDTH, bytes, count, duration, plain, share, shorten};
use super::{OpRow, PeakPart, PeakRow, PoolRow, ProcessMemory, Report, ScopeRow};

/// How many failed requests are printed in full.
const PRINTED_FAILURES: usize = 3;

/// How a report is printed.
#[derive(Clone, Copy, Debug)]
pub struct TextOptions {
    /// The most lines of a table.
    pub top: usize,
    /// Whether ops are listed by module.
    pub by_place: bool,
    /// Whether every figure and every complete name is printed, however wide the tables become.
    pub wide: bool,
}

impl Default for TextOptions {
    /// At most 20 lines, ops over all modules, within 100 columns.
    fn default() -> Self {
        Self { top: 20, by_place: false, wide: false }
    }
}

/// A report to be printed: see [`Report::text`].
#[derive(Clone, Copy, Debug)]
pub struct ReportText<'a> {
    report: &'a Report,
    options: TextOptions,
}

impl Report {
    /// The report as text.
    ///
    /// ```
    /// use highwater_tracking::{Report, TextOptions, Tracker};
    /// let report = Report::new(&Tracker::new(), &[]);
    /// let wide = TextOptions { wide: true, ..TextOptions::default() };
    /// println!("{}", report.text(wide));
    /// ```
    #[must_use]
    pub const fn text(&self, options: TextOptions) -> ReportText<'_> {
        ReportText { report: self, options }
    }

    /// The holders of the memory as text, without totals: ops, marks, memory at the end, the parts of the peak, and
    /// failures.
    #[must_use]
    pub const fn holders(&self, options: TextOptions) -> HoldersText<'_> {
        HoldersText(self.text(options))
    }

    /// The table of categories.
    #[must_use]
    pub fn category_table(&self) -> Table {
        let peak = self.peak.as_ref().map_or(0, |peak| peak.bytes).max(1) as f64;
        let mut table = Table::new(&["category", "total", "high water", "live", "at peak", "share"]);
        for row in self.categories.iter().filter(|row| row.high_water_bytes > 0) {
            let figures = [row.total_bytes, row.high_water_bytes, row.live_bytes, row.peak_bytes];
            let share = share(row.peak_bytes as f64 / peak);
            table.line(&row.category.replace('_', " "), figures.map(bytes).into_iter().chain([share]));
        }
        table.without_empty_columns()
    }
}

/// The default text, which fits 100 columns: see [`Report::text`]. `{:#}` prints all columns and all rows.
impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let options = match f.alternate() {
            true => TextOptions { top: usize::MAX, by_place: false, wide: true },
            false => TextOptions::default(),
        };
        self.text(options).fmt(f)
    }
}

/// The holders of a report's memory to be printed: see [`Report::holders`].
#[derive(Clone, Copy, Debug)]
pub struct HoldersText<'a>(ReportText<'a>);

impl fmt::Display for HoldersText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = &self.0;
        write!(f, "{}", text.ops().wide(text.options.wide))?;
        let marks = text.marks();
        if !marks.is_empty() {
            write!(f, "\n{}", marks.wide(text.options.wide))?;
        }
        text.live(f)?;
        text.peak_parts(f)?;
        text.failures(f)
    }
}

impl fmt::Display for ReportText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Report { threads, streams, pools, .. }, wide) = (self.report, self.options.wide);
        self.head(f)?;
        let mut tables = vec![self.ops(), self.phases(), self.scopes()];
        tables.push(self.report.category_table());
        tables.extend((threads.len() > 1).then(|| self.threads()));
        tables.extend((streams.len() > 1).then(|| self.streams()));
        tables.extend(pool_tables(pools, wide));
        tables.push(outside_table(&self.report.outside, self.options.top));
        tables.push(self.marks());
        for table in tables.into_iter().filter(|table| !table.is_empty()) {
            write!(f, "\n{}", table.wide(wide))?;
        }
        self.live(f)?;
        self.peak_parts(f)?;
        self.saved(f)?;
        self.unlisted(f)?;
        self.process(f)?;
        self.failures(f)
    }
}

impl ReportText<'_> {
    /// The run, and its peak.
    fn head(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(run) = &self.report.run {
            let name = if run.facts.program.is_empty() { "a run" } else { &run.facts.program };
            write!(f, "{}: {} events", plain(name), run.events)?;
            match run.duration_ns {
                0 => writeln!(f)?,
                time => writeln!(f, " in {}", duration(time))?,
            }
            let facts: Vec<String> =
                run.facts.more.iter().map(|(name, value)| format!("{name} {value}")).collect();
            if !facts.is_empty() {
                writeln!(f, "{}", plain(&facts.join(", ")))?;
            }
        }
        let peaks = [&self.report.peak, &self.report.total_peak];
        peaks.into_iter().flatten().try_for_each(|peak| self.peak(peak, f))
    }

    /// The peak of a pool, or of all pools together.
    fn peak(&self, peak: &PeakRow, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "peak: {} in use in ", bytes(peak.bytes))?;
        let pool = if peak.pool.is_empty() { "all pools" } else { &peak.pool };
        write!(f, "{}", plain(pool))?;
        if let Some(time) = peak.at_ns.filter(|&time| time > 0) {
            write!(f, " after {}", duration(time))?;
        }
        match peak.owner() {
            owner if owner.is_empty() => writeln!(f),
            owner => writeln!(f, ", reached by {}", plain(&owner)),
        }
    }

    /// The ops that held most at the peak, and the sums over all ops.
    fn ops(&self) -> Table {
        let rows = if self.options.by_place { &self.report.places } else { &self.report.ops };
        let mut rows: Vec<&OpRow> = rows.iter().collect();
        rows.sort_by(|a, b| a.order_at_peak().cmp(&b.order_at_peak()));
        let mut total = OpRow { live_bytes: self.report.unowned_bytes, ..OpRow::default() };
        self.report.ops.iter().for_each(|row| total.add(row));
        let columns: Vec<&OpColumn> =
            OP_COLUMNS.iter().filter(|column| self.options.wide || column.1).collect();
        let heading: Vec<&str> = ["op"].into_iter().chain(columns.iter().map(|column| column.0)).collect();
        let mut table = Table::new(&heading).omitting(&["outliving", "live", "high water", "total"]);
        let cells = |row: &OpRow| columns.iter().map(|column| (column.2)(row)).collect::<Vec<_>>();
        for row in rows.iter().take(self.options.top) {
            table.line(&row.path(), cells(row));
        }
        table.rest(rows.len(), self.options.top);
        if !rows.is_empty() {
            table.rule();
            if self.report.unowned_bytes > 0 {
                let unowned = OpRow { live_bytes: self.report.unowned_bytes, ..OpRow::default() };
                table.line("(outside of ops)", cells(&unowned));
            }
            table.line("total", cells(&total));
        }
        table.without_empty_columns()
    }

    fn phases(&self) -> Table {
        let heading =
            ["phase", "calls", "time", "total", "high water", "live", "live peak", "at peak", "share"];
        let mut table = Table::new(&heading);
        for row in &self.report.phases {
            let figures =
                [row.total_bytes, row.high_water_bytes, row.live_bytes, row.live_peak_bytes, row.peak_bytes];
            table.line(
                row.phase.name(),
                figure_cells(row.calls, Some(row.time_ns), figures, Some(row.peak_share)),
            );
        }
        table.without_empty_columns()
    }

    /// The tree of modules: each name is indented by its depth.
    fn scopes(&self) -> Table {
        let heading = ["module", "calls", "time", "total", "high water", "live", "at peak", "share"];
        let mut table = Table::new(&heading).omitting(&["total", "live"]);
        for row in self.report.scopes.iter().take(self.options.top) {
            let figures = [row.total_bytes, row.high_water_bytes, row.live_bytes, row.peak_bytes];
            let cells = figure_cells(row.calls, Some(row.time_ns), figures, Some(row.peak_share));
            table.line(&scope_name(row), cells);
        }
        table.rest(self.report.scopes.len(), self.options.top);
        table.without_empty_columns()
    }

    /// Only printed for several threads: the figures of one thread are those of the whole run.
    fn threads(&self) -> Table {
        let heading = [
            "thread",
            "calls",
            "time",
            "requested",
            "total",
            "high water",
            "outliving",
            "blocks",
            "freed blocks",
        ];
        let mut table = Table::new(&heading);
        for row in self.report.threads.iter().take(self.options.top) {
            let figures = [row.requested_bytes, row.total_bytes, row.high_water_bytes, row.outliving_bytes];
            let counts = [count(row.allocations), count(row.frees)];
            table.line(
                &row.thread.to_string(),
                figure_cells(row.calls, Some(row.time_ns), figures, None).chain(counts),
            );
        }
        table.rest(self.report.threads.len(), self.options.top);
        table.without_empty_columns()
    }

    fn streams(&self) -> Table {
        let heading = ["pool, stream", "blocks", "requested", "total", "high water", "live", "at peak"];
        let mut table = Table::new(&heading);
        for row in self.report.streams.iter().take(self.options.top) {
            let stream = if row.stream == 0 { String::new() } else { format!(", {}", row.stream) };
            let figures =
                [row.requested_bytes, row.total_bytes, row.high_water_bytes, row.live_bytes, row.peak_bytes];
            table.line(&format!("{}{stream}", row.pool), figure_cells(row.allocations, None, figures, None));
        }
        table.rest(self.report.streams.len(), self.options.top);
        table.without_empty_columns()
    }

    /// The moments that the program marked.
    fn marks(&self) -> Table {
        let Report { marks, run, .. } = self.report;
        let mut table = Table::new(&["mark", "time", "steps", "live"]);
        for row in marks.iter().take(self.options.top) {
            table.line(&row.text, [time(row.at_ns), count(row.completed_steps), bytes(row.live_bytes)]);
        }
        let all = run.as_ref().map_or(0, |run| usize::try_from(run.marks).unwrap_or(usize::MAX));
        table.rest(all.max(marks.len()), self.options.top.min(marks.len()));
        table.without_empty_columns()
    }

    /// Live memory at the end, and memory that grows from step to step.
    fn live(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Report { live, growth, completed_steps, .. }, TextOptions { top, wide, .. }) =
            (self.report, self.options);
        if !live.is_empty() {
            let mut table = live_table(live, top, wide);
            table.rest(live.len(), self.options.top);
            write!(f, "\n{}", table.without_empty_columns())?;
        }
        if !growth.is_empty() {
            let mut table = growth_table(growth, top, wide);
            table.rest(growth.len(), self.options.top);
            write!(f, "\nmemory that grows over {completed_steps} steps\n\n{table}")?;
        }
        Ok(())
    }

    /// The holders of the peak: categories, then ops in modules.
    fn peak_parts(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(parts) = &self.report.peak_parts else { return Ok(()) };
        let (wide, heading) =
            (self.options.wide, ["without", "at peak", "peak falls by", "next peak", "reached by"]);
        let mut table = Table::new(&heading).omitting(&["next peak"]).wide(wide);
        let mut lines = |parts: &[PeakPart], words: bool| {
            for part in parts.iter().take(self.options.top) {
                let name = if words { part.name.replace('_', " ") } else { part.name.clone() };
                let name = if name.is_empty() { "(outside of ops)" } else { &name };
                let figures = [part.bytes, part.falls, part.next_peak].map(bytes);
                let next = if part.next_owner.is_empty() { "-" } else { &part.next_owner };
                let next = if wide { plain(next) } else { shorten(next) };
                table.line(name, figures.into_iter().chain([next]));
            }
        };
        lines(&parts.categories, true);
        lines(&parts.places, false);
        table.rest(parts.places.len(), self.options.top);
        write!(f, "\nthe peak without each of its holders\n\n{table}")
    }

    fn saved(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let saved = &self.report.saved;
        if saved.blocks == 0 {
            return Ok(());
        }
        let (blocks, most, mean) =
            (saved.blocks, bytes(saved.high_water_bytes), duration(saved.mean_held_ns));
        write!(
            f,
            "\nfor backward: {blocks} blocks, at most {most} at a time; a byte is kept for {mean} on average"
        )?;
        if saved.longest_held_ns > 0 {
            write!(f, ", a block for at most {}", duration(saved.longest_held_ns))?;
        }
        writeln!(f)
    }

    /// Warns about layers without a path.
    fn unlisted(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for layer in &self.report.unlisted_layers {
            writeln!(f, "warning: {} ran without a path: it is no part of a module", plain(layer))?;
        }
        Ok(())
    }

    /// The memory of the process, which includes pools of host memory.
    fn process(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(run) = &self.report.run else { return Ok(()) };
        let (ProcessMemory { resident: Some(start), .. }, ProcessMemory { peak_resident: Some(most), .. }) =
            (run.facts.outside, run.outside)
        else {
            return Ok(());
        };
        let (start, most) = (bytes(start), bytes(most));
        writeln!(f, "process, including pools of host memory: {start} at the start, {most} at most")
    }

    fn failures(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = self.report.run.as_ref().map_or(0, |run| run.failures);
        if count == 0 {
            return Ok(());
        }
        writeln!(f, "\nrequests that ran out of memory: {count}")?;
        for failure in self.report.failures.iter().take(PRINTED_FAILURES) {
            f.write_char('\n')?;
            match &failure.report {
                Some(report) => {
                    report.details().lines().try_for_each(|line| writeln!(f, "{}", plain(line)))?;
                }
                None => writeln!(f, "{} by {}", bytes(failure.requested), plain(&failure.owner))?,
            }
        }
        Ok(())
    }
}

/// A column of the op table: its heading, whether it is part of the narrow table, and its cell.
type OpColumn = (&'static str, bool, fn(&OpRow) -> String);

const OP_COLUMNS: &[OpColumn] = &[
    ("calls", true, |row| count(row.calls)),
    ("time", true, |row| time(row.time_ns)),
    ("blocks", false, |row| count(row.allocations)),
    ("requested", false, |row| bytes(row.requested_bytes)),
    ("total", true, |row| bytes(row.total_bytes)),
    ("high water", true, |row| bytes(row.high_water_bytes)),
    ("self peak", false, |row| bytes(row.self_peak_bytes)),
    ("live", true, |row| bytes(row.live_bytes)),
    ("outliving", true, |row| bytes(row.outliving_bytes)),
    ("live before", false, |row| bytes(row.live_before_bytes)),
    ("live peak", false, |row| bytes(row.live_peak_bytes)),
    ("for backward", false, |row| bytes(row.saved_bytes)),
    ("most for backward", false, |row| bytes(row.saved_peak_bytes)),
    ("temporary", false, |row| bytes(row.temporary_bytes)),
    ("output", false, |row| bytes(row.output_bytes)),
    ("persistent", false, |row| bytes(row.persistent_bytes)),
    ("at peak", true, |row| bytes(row.peak_bytes)),
    ("share", true, |row| share(row.peak_share)),
];

/// A count, a time, sizes, and a share of the peak as cells.
fn figure_cells<const N: usize>(
    calls: u64,
    time_ns: Option<u64>,
    figures: [u64; N],
    peak_share: Option<f64>,
) -> impl Iterator<Item = String> {
    let first = [count(calls)].into_iter().chain(time_ns.map(time));
    first.chain(figures.map(bytes)).chain(peak_share.map(share))
}

/// A time as a cell. Zero is a dash.
fn time(ns: u64) -> String {
    if ns == 0 { "-".to_owned() } else { duration(ns) }
}

/// The last name of a module's path, indented by its depth.
fn scope_name(row: &ScopeRow) -> String {
    match row.scope.rsplit('.').next() {
        Some(name) if !name.is_empty() => {
            format!("{}{name}", "  ".repeat(row.scope.matches('.').count() + 1))
        }
        _ => "(top)".to_owned(),
    }
}

/// The tables of pools: one, or several that fit [`WIDTH`].
fn pool_tables(pools: &[PoolRow], wide: bool) -> Vec<Table> {
    let tables = |size: usize| pools.chunks(size).map(pool_table).collect::<Vec<_>>();
    if wide {
        return tables(pools.len().max(1));
    }
    let fits = |tables: &Vec<Table>| tables.iter().all(|table| table.width() <= WIDTH);
    (2..=POOLS_PER_TABLE).rev().map(tables).find(fits).unwrap_or_else(|| tables(1))
}

/// The most pools of a table that fits [`WIDTH`].
const POOLS_PER_TABLE: usize = 6;

/// A column for each pool: there are few of them, with many figures.
fn pool_table(pools: &[PoolRow]) -> Table {
    let heading: Vec<&str> =
        std::iter::once("pool").chain(pools.iter().map(|pool| pool.name.as_str())).collect();
    let mut table = Table::new(&heading);
    let mut line = |name: &str, figure: &dyn Fn(&PoolRow) -> String| {
        table.line(name, pools.iter().map(figure));
    };
    line("memory", &|pool| plain(&pool.memory));
    if pools.iter().any(|pool| pool.stream.is_some()) {
        line("stream", &|pool| pool.stream.map_or_else(|| "-".to_owned(), |stream| stream.to_string()));
    }
    line("limit", &|pool| pool.limit.map_or_else(|| "none".to_owned(), bytes));
    line("reserved", &|pool| bytes(pool.reserved));
    line("in use", &|pool| bytes(pool.in_use));
    line("requested", &|pool| bytes(pool.requested));
    line("peak in use", &|pool| bytes(pool.peak_in_use));
    line("peak reserved", &|pool| bytes(pool.peak_reserved));
    line("largest free block", &|pool| bytes(pool.largest_free_block));
    line("fragmentation", &|pool| format!("{:.1} %", pool.fragmentation * 100.0));
    line("allocations", &|pool| count(pool.allocations));
    line("live allocations", &|pool| count(pool.live_allocations));
    line("waits for memory", &|pool| count(pool.waits));
    table
}

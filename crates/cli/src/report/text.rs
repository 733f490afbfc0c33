//! A report as text of at most 100 columns.

use std::fmt;

use highwater_tracking::table::{Table, bytes, count, duration, share, shorten};
use highwater_tracking::{OpUsage, Outside, PeakPart, PeakParts, Phase, Recording, Usage};

use super::failures;

/// The report to print.
pub(super) struct Text<'a> {
    pub(super) recording: &'a Recording,
    pub(super) usage: &'a Usage,
    pub(super) parts: &'a PeakParts,
    /// The most rows of a table.
    pub(super) top: usize,
    /// Whether rows distinguish modules.
    pub(super) places: bool,
    /// Whether to show every column, however wide the table.
    pub(super) wide: bool,
}

impl fmt::Display for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.head(f)?;
        let rows = if self.places { &self.usage.places } else { &self.usage.ops };
        writeln!(f, "\n{}", if self.wide { self.wide_ops(rows) } else { self.ops(rows) })?;
        writeln!(f, "{}", self.phases())?;
        writeln!(f, "{}", self.scopes())?;
        write!(f, "{}", self.categories())?;
        if self.usage.threads.len() > 1 {
            write!(f, "\n{}", self.threads())?;
        }
        if self.usage.streams.len() > 1 {
            write!(f, "\n{}", self.streams())?;
        }
        if self.parts.bytes > 0 {
            writeln!(f, "\nthe peak taken apart: how far it falls without a holder\n")?;
            write!(f, "{}", self.parts())?;
        }
        let saved = &self.usage.saved;
        if saved.blocks > 0 {
            writeln!(
                f,
                "\nkept for backward: {} blocks, at most {} at a time, a byte for {} on average, a block for up to {}",
                saved.blocks,
                bytes(saved.high_water_bytes),
                duration(saved.mean_held_ns),
                duration(saved.longest_held_ns)
            )?;
        }
        self.pools(f)?;
        failures::print(self.recording, f)
    }
}

impl Text<'_> {
    fn head(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let facts = self.recording.facts();
        let more: Vec<String> = facts.more.iter().map(|(name, value)| format!("{name} {value}")).collect();
        let name = if facts.program.is_empty() { "a run" } else { &facts.program };
        let (events, time) = (self.recording.events().len(), duration(self.recording.end_ns()));
        writeln!(f, "{}: {events} events in {time}", plain(name))?;
        if !more.is_empty() {
            writeln!(f, "{}", plain(&more.join(", ")))?;
        }
        if let Some(peak) = &self.usage.peak {
            let (owner, time) = (plain(&peak.owner), duration(peak.at_ns));
            writeln!(f, "peak: {} in use after {time}, reached by {owner}", bytes(peak.bytes))?;
        }
        Ok(())
    }

    fn wide_ops(&self, rows: &[OpUsage]) -> Table {
        let heading = [
            "op",
            "calls",
            "blocks",
            "requested",
            "granted",
            "high water",
            "self peak",
            "outliving",
            "live before",
            "live peak",
            "for backward",
            "at peak",
            "share",
        ];
        let mut table = Table::new(&heading);
        for row in rows.iter().take(self.top) {
            let figures = [
                row.requested_bytes,
                row.granted_bytes,
                row.high_water_bytes,
                row.self_peak_bytes,
                row.outliving_bytes,
                row.live_before_bytes,
                row.live_peak_bytes,
                row.saved_bytes,
                row.peak_bytes,
            ];
            let counts = [count(row.calls), count(row.allocations)].into_iter();
            table.line(
                &op_name(row),
                counts.chain(figures.map(bytes)).chain(std::iter::once(share(row.peak_share))),
            );
        }
        rest(&mut table, rows.len(), self.top);
        table
    }

    fn phases(&self) -> Table {
        let mut table = Table::new(&["phase", "calls", "granted", "live at most", "at peak"]);
        for row in &self.usage.phases {
            let figures = [row.granted_bytes, row.live_peak_bytes, row.peak_bytes].map(bytes);
            table.line(row.phase.name(), std::iter::once(count(row.calls)).chain(figures));
        }
        table
    }

    fn threads(&self) -> Table {
        let mut table = Table::new(&["thread", "calls", "blocks taken", "granted", "blocks given back"]);
        for row in self.usage.threads.iter().take(self.top) {
            table.line(
                &row.thread.to_string(),
                [count(row.calls), count(row.allocations), bytes(row.granted_bytes), count(row.frees)],
            );
        }
        rest(&mut table, self.usage.threads.len(), self.top);
        table
    }

    fn streams(&self) -> Table {
        let heading = ["pool, stream", "blocks", "requested", "granted", "high water", "at peak"];
        let mut table = Table::new(&heading);
        for row in self.usage.streams.iter().take(self.top) {
            let stream = if row.stream == 0 { String::new() } else { format!(", {}", row.stream) };
            let figures =
                [row.requested_bytes, row.granted_bytes, row.high_water_bytes, row.peak_bytes].map(bytes);
            table.line(
                &format!("{}{stream}", plain(&row.pool)),
                std::iter::once(count(row.allocations)).chain(figures),
            );
        }
        rest(&mut table, self.usage.streams.len(), self.top);
        table
    }

    fn ops(&self, rows: &[OpUsage]) -> Table {
        let heading =
            ["op", "calls", "granted", "high water", "outliving", "live before", "at peak", "share"];
        let mut table = Table::new(&heading);
        for row in rows.iter().take(self.top) {
            table.line(
                &op_name(row),
                [
                    count(row.calls),
                    bytes(row.granted_bytes),
                    bytes(row.high_water_bytes),
                    bytes(row.outliving_bytes),
                    bytes(row.live_before_bytes),
                    bytes(row.peak_bytes),
                    share(row.peak_share),
                ],
            );
        }
        rest(&mut table, rows.len(), self.top);
        table
    }

    /// The holders of the peak: categories, then ops in modules.
    fn parts(&self) -> Table {
        let mut table = Table::new(&["without", "held", "peak falls by", "next peak", "which is in"]);
        let mut lines = |parts: &[PeakPart]| {
            for part in parts.iter().take(self.top) {
                let name = if part.name.is_empty() { "(outside of ops)" } else { &part.name };
                let figures = [bytes(part.bytes), bytes(part.falls), bytes(part.next_peak)];
                let next = if part.next_owner.is_empty() { "-" } else { &part.next_owner };
                let next = std::iter::once(shorten(&plain(next)));
                table.line(
                    &plain(name).replace("optimizer_state", "optimizer state"),
                    figures.into_iter().chain(next),
                );
            }
        };
        lines(&self.parts.categories);
        lines(&self.parts.places);
        rest(&mut table, self.parts.places.len(), self.top);
        table
    }

    /// The tree of modules: each name is indented by its depth.
    fn scopes(&self) -> Table {
        let mut table = Table::new(&["module", "calls", "granted", "high water", "at peak", "share"]);
        for row in self.usage.scopes.iter().take(self.top) {
            let depth = if row.scope.is_empty() { 0 } else { row.scope.matches('.').count() + 1 };
            let name = row.scope.rsplit('.').next().filter(|name| !name.is_empty()).unwrap_or("(all)");
            table.line(
                &format!("{}{}", "  ".repeat(depth.min(8)), plain(name)),
                [
                    count(row.calls),
                    bytes(row.granted_bytes),
                    bytes(row.high_water_bytes),
                    bytes(row.peak_bytes),
                    share(row.peak_share),
                ],
            );
        }
        rest(&mut table, self.usage.scopes.len(), self.top);
        table
    }

    fn categories(&self) -> Table {
        let peak = self.usage.peak.as_ref().map_or(0, |peak| peak.bytes);
        let mut table = Table::new(&["category", "granted", "high water", "at peak", "share", "at the end"]);
        for row in &self.usage.categories {
            let part = if peak == 0 { 0.0 } else { row.peak_bytes as f64 / peak as f64 };
            table.line(
                &row.category.replace('_', " "),
                [
                    bytes(row.granted_bytes),
                    bytes(row.high_water_bytes),
                    bytes(row.peak_bytes),
                    share(part),
                    bytes(row.live_bytes),
                ],
            );
        }
        table
    }

    /// Figures of the summary, and memory outside of the pools.
    fn pools(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(summary) = self.recording.summary() else { return Ok(()) };
        for pool in &summary.report.pools {
            let limit =
                pool.limit.map_or_else(|| "no limit".to_owned(), |limit| format!("limit {}", bytes(limit)));
            writeln!(
                f,
                "\npool {} ({}): {limit}, reserved {} (at most {}), in use {} (at most {})",
                plain(&pool.name),
                plain(&pool.memory),
                bytes(pool.reserved),
                bytes(pool.peak_reserved),
                bytes(pool.in_use),
                bytes(pool.peak_in_use),
            )?;
        }
        let before = self.recording.facts().outside;
        if let (Outside { resident: Some(start), .. }, Outside { peak_resident: Some(most), .. }) =
            (before, summary.outside)
        {
            writeln!(
                f,
                "process, pools of host memory included: {} at the start, {} at most",
                bytes(start),
                bytes(most)
            )?;
        }
        Ok(())
    }
}

/// The name of an op: its module if rows distinguish modules, and its phase.
fn op_name(row: &OpUsage) -> String {
    let scope = row.scope.as_deref().filter(|scope| !scope.is_empty());
    let phase = if row.phase == Phase::Forward { String::new() } else { format!(":{}", row.phase) };
    plain(&format!("{}{}{}{phase}", scope.unwrap_or(""), scope.map_or("", |_| "."), row.op))
}

fn rest(table: &mut Table, rows: usize, top: usize) {
    if rows > top {
        table.line(&format!("({} more)", rows - top), []);
    }
}

/// Makes text from a file safe for a terminal: removes control characters.
pub(crate) fn plain(text: &str) -> String {
    text.replace(char::is_control, "\u{fffd}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_from_a_file_cannot_steer_the_terminal() {
        assert_eq!(plain("a\x1b[2Jb\n"), "a\u{fffd}[2Jb\u{fffd}");
    }
}

//! A comparison of ranks as tables.

use std::fmt;

use super::{RankBytes, RankComparison, RankRow};
use crate::report::TextOptions;
use crate::report::table::{Table, bytes, plain, shorten};

/// The most missing ranks that a warning names.
const NAMED_RANKS: usize = 8;

/// A comparison to be printed: see [`RankComparison::text`].
#[derive(Clone, Copy, Debug)]
pub struct RanksText<'a> {
    comparison: &'a RankComparison,
    options: TextOptions,
}

impl RankComparison {
    /// The comparison as text. [`TextOptions::wide`] adds a column for each rank.
    #[must_use]
    pub const fn text(&self, options: TextOptions) -> RanksText<'_> {
        RanksText { comparison: self, options }
    }

    /// Limits of the comparison: files that do not state their rank, and ranks without a file. One line each.
    #[must_use]
    pub fn warnings(&self) -> Vec<String> {
        let unstated = self.ranks.iter().filter(|row| !row.is_stated).count();
        let unstated = (unstated > 0).then(|| {
            let (files, state) = if unstated == 1 { ("file", "states") } else { ("files", "state") };
            format!("{unstated} {files} {state} no rank: the order of the arguments counts, from rank 0")
        });
        unstated.into_iter().chain(self.missing()).collect()
    }

    fn missing(&self) -> Option<String> {
        let (missing, size) =
            (self.missing_ranks.len(), self.world_size.filter(|_| !self.missing_ranks.is_empty())?);
        let named: Vec<String> =
            self.missing_ranks.iter().take(NAMED_RANKS).map(ToString::to_string).collect();
        let named = named.join(", ");
        Some(match missing {
            1 => format!("no file of rank {named}, of {size} ranks"),
            2..=NAMED_RANKS => format!("no files of ranks {named}, of {size} ranks"),
            _ => format!("no files of ranks {named} and {} more, of {size} ranks", missing - NAMED_RANKS),
        })
    }
}

impl fmt::Display for RanksText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.head(f)?;
        let RankComparison { ops, places, scopes, categories, .. } = self.comparison;
        let ops = if self.options.by_place { places } else { ops };
        write!(f, "\n{}", self.ranks())?;
        let tables = [
            self.table("op", ops, plain),
            self.table(
                "module",
                scopes,
                |name| if name.is_empty() { "(top)".to_owned() } else { plain(name) },
            ),
            self.table("category", categories, |name| name.replace('_', " ")),
        ];
        if tables.iter().any(|table| !table.is_empty()) {
            f.write_str("\nhigh water of the ranks\n")?;
        }
        for table in tables.into_iter().filter(|table| !table.is_empty()) {
            write!(f, "\n{}", table.wide(self.options.wide))?;
        }
        Ok(())
    }
}

impl RanksText<'_> {
    /// The program, the number of ranks, and the highest and the lowest peak.
    fn head(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let RankComparison { program, ranks, world_size, .. } = self.comparison;
        let program = if program.is_empty() { "a run" } else { program };
        let (files, size) = (ranks.len() as u64, world_size.unwrap_or(ranks.len() as u64));
        let of = if files == size { String::new() } else { format!("{files} of ") };
        let plural = if size == 1 { "" } else { "s" };
        writeln!(f, "{}: {of}{size} rank{plural}", plain(program))?;
        let sorted = self.by_peak();
        let (Some(worst), Some(best)) = (sorted.first(), sorted.last()) else { return Ok(()) };
        match (ranks.len(), worst.peak_bytes == best.peak_bytes) {
            (1, _) => writeln!(f, "peak: {} on rank {}", size_of(worst), worst.rank),
            (_, true) => writeln!(f, "peak: {} on all ranks", size_of(worst)),
            (_, false) => writeln!(
                f,
                "peak: {} on rank {}, the worst; {} on rank {}, the best",
                size_of(worst),
                worst.rank,
                size_of(best),
                best.rank
            ),
        }
    }

    /// The ranks, the worst first.
    fn by_peak(&self) -> Vec<&RankRow> {
        let mut ranks: Vec<&RankRow> = self.comparison.ranks.iter().collect();
        ranks.sort_by_key(|row| (std::cmp::Reverse(row.peak_bytes), row.rank));
        ranks
    }

    fn ranks(&self) -> Table {
        let (TextOptions { top, wide, .. }, ranks) = (self.options, self.by_peak());
        let heading =
            ["rank", "peak", "above minimum", "peak reserved", "outside the pools", "reached by", "file"];
        let mut table = Table::new(&heading).omitting(&["file"]).wide(wide);
        let least = ranks.last().map_or(0, |row| row.peak_bytes);
        let name = |name: &str| match name {
            "" => "-".to_owned(),
            _ if wide => plain(name),
            _ => shorten(name),
        };
        for row in ranks.iter().take(top) {
            let reserved = row.peak_reserved_bytes.unwrap_or(0);
            let figures = [row.peak_bytes, row.peak_bytes - least, reserved, row.outside_bytes].map(bytes);
            let names = [&row.reached_by, &row.file].map(|text| name(text));
            table.line(&row.rank.to_string(), figures.into_iter().chain(names));
        }
        table.rest(ranks.len(), top);
        table.without_empty_columns()
    }

    /// One table of high-water marks. `named` formats a name.
    fn table(&self, kind: &str, rows: &[RankBytes], named: impl Fn(&str) -> String) -> Table {
        let (TextOptions { top, wide, .. }, ranks) = (self.options, &self.comparison.ranks);
        let each: Vec<String> =
            ranks.iter().filter(|_| wide).map(|row| format!("rank {}", row.rank)).collect();
        let figures = ["minimum", "maximum", "difference", "worst rank"];
        let heading: Vec<&str> =
            [kind].into_iter().chain(figures).chain(each.iter().map(String::as_str)).collect();
        let mut table = Table::new(&heading);
        for row in rows.iter().take(top) {
            let is_equal = row.difference() == 0 && ranks.len() > 1;
            let worst = if is_equal { "all".to_owned() } else { row.max_rank.to_string() };
            let figures = [row.min_bytes, row.max_bytes, row.difference()].map(bytes);
            let each = row.bytes.iter().filter(|_| wide).map(|&each| bytes(each));
            table.line(&named(&row.name), figures.into_iter().chain([worst]).chain(each));
        }
        table.rest(rows.len(), top);
        table
    }
}

/// The peak of a rank in a sentence.
fn size_of(row: &RankRow) -> String {
    if row.peak_bytes == 0 { "0 B".to_owned() } else { bytes(row.peak_bytes) }
}

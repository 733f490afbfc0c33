//! Text tables with a left-aligned name and right-aligned figures. Columns are as wide as their contents.
//!
//! A table fits [`WIDTH`] columns unless it is [wide](Table::wide). A table that is too wide omits the columns that it
//! may [omit](Table::omitting), then abbreviates the names in its first column.

use std::fmt;

use bfc_core::{KIB, printable};

/// The most columns of a table that is not wide.
pub const WIDTH: usize = 100;

/// The length of the longest heading, and of the longest name that is not in a first column.
const MAX_NAME: usize = 28;

/// The length of names that a table keeps at the cost of columns, unless it sets another one.
const MIN_FIRST_NAME: usize = 36;

/// One line of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Line {
    Cells(Vec<String>),
    Rule,
}

/// Lines of cells under a heading.
///
/// ```
/// use highwater_tracking::table::{Table, bytes, count};
/// let mut table = Table::new(&["op", "calls", "live"]);
/// table.line("matmul", [count(3), bytes(2048)]);
/// assert_eq!(table.to_string().lines().last(), Some("matmul      3  2.00 KiB"));
/// ```
#[derive(Clone, Debug)]
pub struct Table {
    lines: Vec<Line>,
    /// Headings of columns that a narrow table may omit, the first one first.
    omitted_first: Vec<&'static str>,
    /// The length to which names are abbreviated before the table keeps such a column.
    name_length: usize,
    width: usize,
}

impl Table {
    /// Creates a table without lines. Shortens long headings.
    #[must_use]
    pub fn new(heading: &[&str]) -> Self {
        let cells = heading.iter().map(|&cell| shorten(cell)).collect();
        Self {
            lines: vec![Line::Cells(cells), Line::Rule],
            omitted_first: Vec::new(),
            name_length: MIN_FIRST_NAME,
            width: WIDTH,
        }
    }

    /// Names the columns to omit, in this order, while the table is too wide.
    #[must_use]
    pub fn omitting(mut self, headings: &[&'static str]) -> Self {
        self.omitted_first = headings.to_vec();
        self
    }

    /// Omits columns before it abbreviates names to fewer than `length` characters.
    #[must_use]
    pub const fn keeping_names(mut self, length: usize) -> Self {
        self.name_length = length;
        self
    }

    /// Prints all columns and complete names, however wide the table becomes, if `is_wide` is true.
    #[must_use]
    pub const fn wide(self, is_wide: bool) -> Self {
        self.within(if is_wide { usize::MAX } else { WIDTH })
    }

    /// Sets the number of columns that the table fits.
    #[must_use]
    pub const fn within(mut self, width: usize) -> Self {
        self.width = width;
        self
    }

    /// Adds a line: a name and its figures. Escapes control characters.
    pub fn line(&mut self, name: &str, figures: impl IntoIterator<Item = String>) {
        let cells =
            std::iter::once(plain(name)).chain(figures.into_iter().map(|cell| plain(&cell))).collect();
        self.lines.push(Line::Cells(cells));
    }

    /// Adds a horizontal rule, for example above a total.
    pub fn rule(&mut self) {
        self.lines.push(Line::Rule);
    }

    /// Adds a line with the number of rows that the table leaves out, if it shows `top` of more `rows`.
    pub fn rest(&mut self, rows: usize, top: usize) {
        if rows > top {
            self.line(&format!("({} more)", rows - top), []);
        }
    }

    /// Whether the table has no line below its heading.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.lines.len() <= 2
    }

    /// Removes the columns that contain only dashes and empty cells.
    #[must_use]
    pub fn without_empty_columns(mut self) -> Self {
        let mut rows = self.lines.iter().filter_map(|line| match line {
            Line::Cells(cells) => Some(cells),
            Line::Rule => None,
        });
        let mut used = vec![false; rows.next().map_or(0, Vec::len)];
        for cells in rows {
            for (used, cell) in used.iter_mut().zip(cells) {
                *used |= !matches!(cell.as_str(), "-" | "");
            }
        }
        self.retain_columns(|column| column == 0 || used.get(column).copied().unwrap_or(false));
        self
    }

    fn retain_columns(&mut self, keep: impl Fn(usize) -> bool) {
        for line in &mut self.lines {
            let Line::Cells(cells) = line else { continue };
            let mut column = 0;
            cells.retain(|_| {
                column += 1;
                keep(column - 1)
            });
        }
    }

    /// Returns the width of each column.
    fn widths(&self) -> Vec<usize> {
        let mut widths: Vec<usize> = Vec::new();
        for line in &self.lines {
            let Line::Cells(cells) = line else { continue };
            widths.resize(widths.len().max(cells.len()), 0);
            for (width, cell) in widths.iter_mut().zip(cells) {
                *width = (*width).max(cell.chars().count());
            }
        }
        widths
    }

    /// Returns the number of columns of the complete table.
    pub(super) fn width(&self) -> usize {
        let widths = self.widths();
        widths.first().map_or(0, |name| name + figures_width(&widths))
    }

    /// Omits columns and abbreviates names until the table fits, as far as possible.
    fn narrow(&mut self) {
        for heading in std::mem::take(&mut self.omitted_first) {
            let widths = self.widths();
            let name = widths.first().map_or(0, |&width| width.min(self.name_length));
            if name + figures_width(&widths) <= self.width {
                break;
            }
            let Some(Line::Cells(headings)) = self.lines.first() else { return };
            if let Some(omitted) = headings.iter().position(|cell| cell == heading) {
                self.retain_columns(|column| column != omitted);
            }
        }
        let most = self.width.saturating_sub(figures_width(&self.widths())).max(MAX_NAME.min(self.width));
        for line in &mut self.lines {
            let Line::Cells(cells) = line else { continue };
            if let Some(name) = cells.first_mut() {
                *name = abbreviate(name, most);
            }
        }
    }
}

/// The width of all columns but the first, with their gaps.
fn figures_width(widths: &[usize]) -> usize {
    widths.iter().skip(1).map(|width| width + GAP.len()).sum()
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.width() > self.width {
            let mut narrowed = self.clone();
            narrowed.narrow();
            return narrowed.wide(true).fmt(f);
        }
        let (widths, total) = (self.widths(), self.width());
        for line in &self.lines {
            match line {
                Line::Rule => writeln!(f, "{}", "-".repeat(total))?,
                Line::Cells(cells) => {
                    let text: Vec<String> = cells
                        .iter()
                        .zip(&widths)
                        .enumerate()
                        .map(|(column, (cell, &width))| match column {
                            0 => format!("{cell:<width$}"),
                            _ => format!("{cell:>width$}"),
                        })
                        .collect();
                    writeln!(f, "{}", text.join(GAP).trim_end())?;
                }
            }
        }
        Ok(())
    }
}

/// The gap between two columns.
const GAP: &str = "  ";

/// Formats bytes as a cell with three significant digits, so that a wide table fits a terminal. Zero is a dash.
#[must_use]
pub fn bytes(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if bytes == 0 {
        return "-".to_owned();
    }
    if bytes < KIB {
        return format!("{bytes} B");
    }
    let mut value = bytes as f64 / KIB as f64;
    let mut unit = 0;
    while value >= 1023.5 && unit + 1 < UNITS.len() {
        value /= KIB as f64;
        unit += 1;
    }
    let decimals = if value < 9.995 { 2 } else { usize::from(value < 99.95) };
    format!("{value:.decimals$} {}", UNITS[unit])
}

/// Formats a share of 0 to 1 as a cell in percent. Zero is a dash.
#[must_use]
pub fn share(share: f64) -> String {
    if share == 0.0 { "-".to_owned() } else { format!("{:.1} %", share * 100.0) }
}

/// Formats a time in nanoseconds in a suitable unit.
///
/// ```
/// use highwater_tracking::table::duration;
/// assert_eq!([999, 1_500, 2_000_000, 61_000_000_000].map(duration), ["999 ns", "1.5 µs", "2.0 ms", "61.00 s"]);
/// ```
#[must_use]
pub fn duration(ns: u64) -> String {
    match ns {
        0..1_000 => format!("{ns} ns"),
        1_000..1_000_000 => format!("{:.1} µs", ns as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} ms", ns as f64 / 1e6),
        _ => format!("{:.2} s", ns as f64 / 1e9),
    }
}

/// Escapes control characters, so that text from a file cannot control a terminal; see [`printable`](bfc_core::printable()).
#[must_use]
pub fn plain(text: &str) -> String {
    printable(text).to_string()
}

/// Formats a count as a cell. Zero is a dash.
#[must_use]
pub fn count(count: u64) -> String {
    if count == 0 { "-".to_owned() } else { count.to_string() }
}

/// Formats a name as a cell: without control characters, and abbreviated if it is long.
#[must_use]
pub fn shorten(name: &str) -> String {
    abbreviate(&plain(name), MAX_NAME)
}

/// Abbreviates a name to at most `most` characters. A path first loses all but the initials of its inner names, from
/// the left, so that rows stay distinct: `encoder.b.11.a.query.matmul`. A name that is still too long loses its middle.
#[must_use]
pub fn abbreviate(name: &str, most: usize) -> String {
    let mut length = name.chars().count();
    if length <= most {
        return name.to_owned();
    }
    let mut parts: Vec<&str> = name.split('.').collect();
    let inner = 1..parts.len().saturating_sub(2).max(1);
    for part in &mut parts[inner] {
        // Numbers distinguish the layers of a list.
        if length > most && !part.bytes().all(|byte| byte.is_ascii_digit()) {
            let initial = part.chars().next().map_or(0, char::len_utf8);
            length -= part.chars().count().saturating_sub(1);
            *part = &part[..initial];
        }
    }
    let name = parts.join(".");
    if length <= most {
        return name;
    }
    // The end of a path says more than its begin.
    let head = most.saturating_sub(1) / 3;
    let tail = most.saturating_sub(1) - head;
    name.chars().take(head).chain(['…']).chain(name.chars().skip(length - tail)).collect()
}

/// From empty to full.
const LEVELS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// Draws shares from 0 to 1 as at most `width` bars, each the maximum of its range. Shares above 0 are always visible.
#[must_use]
pub fn sparkline(shares: impl ExactSizeIterator<Item = f64>, width: usize) -> String {
    let count = shares.len();
    let mut bars = vec![0.0_f64; count.min(width)];
    for (index, share) in shares.enumerate() {
        let Some(bar) = bars.get_mut(index * count.min(width) / count) else { break };
        *bar = bar.max(share);
    }
    let top = LEVELS.len() - 1;
    let level = |bar: f64| LEVELS[((bar * top as f64).ceil() as usize).min(top)];
    bars.into_iter().map(level).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_rise_with_the_shares_and_a_little_is_more_than_nothing() {
        assert_eq!(sparkline([0.0, 0.001, 0.5, 1.0].into_iter(), 24), "▁▂▅█");
        assert_eq!(sparkline([2.0, -1.0, f64::NAN].into_iter(), 24), "█▁▁");
        assert_eq!(sparkline([].into_iter(), 24), "");
    }

    #[test]
    fn many_shares_make_one_line_that_keeps_the_peaks() {
        let line = sparkline((0..1000).map(|index| if index == 500 { 1.0 } else { 0.0 }), 24);
        assert_eq!(line.chars().count(), 24);
        assert_eq!(line.chars().filter(|&bar| bar == '█').count(), 1);
    }

    #[test]
    fn columns_are_as_wide_as_their_contents_and_numbers_end_flush() {
        let mut table = Table::new(&["op", "calls", "live"]);
        table.line("matmul", [count(12), bytes(2048)]);
        table.line("add", [count(1), bytes(0)]);
        table.rule();
        table.line("total", [count(13), bytes(2048)]);
        let expected = "\
op      calls      live
-----------------------
matmul     12  2.00 KiB
add         1         -
-----------------------
total      13  2.00 KiB
";
        assert_eq!(table.to_string(), expected);
    }

    #[test]
    fn bytes_have_three_significant_digits() {
        let cases = [
            (0, "-"),
            (1023, "1023 B"),
            (1024, "1.00 KiB"),
            (10 * KIB - 6, "9.99 KiB"),
            (10 * KIB - 5, "10.0 KiB"),
            (100 * KIB - 1, "100 KiB"),
            (1023 * KIB + 511, "1023 KiB"),
            (1023 * KIB + 512, "1.00 MiB"),
            (u64::MAX, "16.0 EiB"),
        ];
        for (count, text) in cases {
            assert_eq!(bytes(count), text);
        }
    }

    #[test]
    fn columns_without_figures_can_be_removed() {
        let mut table = Table::new(&["op", "calls", "live", "peak"]);
        table.line("matmul", [count(12), bytes(0), bytes(1)]);
        table.line("(1 more)", []);
        let expected = "\
op        calls  peak
---------------------
matmul       12   1 B
(1 more)
";
        assert_eq!(table.without_empty_columns().to_string(), expected);
    }

    #[test]
    fn text_from_a_file_cannot_steer_the_terminal() {
        assert_eq!(plain("a\x1b[2Jb\n"), r"a\u{1b}[2Jb\n");
    }

    #[test]
    fn a_heading_is_no_wider_than_a_name() {
        let table = Table::new(&["pool", &"x".repeat(70_000)]);
        assert!(table.to_string().lines().all(|line| line.chars().count() <= 4 + GAP.len() + MAX_NAME));
    }

    #[test]
    fn long_names_are_cut_in_the_middle() {
        let name = format!("first{}last", "x".repeat(100));
        let short = shorten(&name);
        assert_eq!(short.chars().count(), MAX_NAME);
        assert!(short.starts_with("first") && short.ends_with("last") && short.contains('…'));
        assert_eq!(shorten("short"), "short");
    }

    #[test]
    fn paths_keep_their_ends_and_numbers() {
        let path = "encoder.blocks.11.attention.query.matmul:backward";
        assert_eq!(abbreviate(path, 49), path);
        assert_eq!(abbreviate(path, 48), "encoder.b.11.attention.query.matmul:backward");
        assert_eq!(abbreviate(path, 36), "encoder.b.11.a.query.matmul:backward");
        assert_eq!(abbreviate(path, 20), "encode…tmul:backward");
        // Names from a file may be empty or begin with any character.
        assert_eq!(abbreviate("aa..äöü.bb.cc", 11), "aa..ä.bb.cc");
        assert_eq!(abbreviate("abc", 0), "…");
    }

    #[test]
    fn a_table_fits_unless_it_is_wide() {
        let figures: [&str; 9] = std::array::from_fn(|index| &"ABCDEFGHI"[index..=index]);
        let mut table = Table::new(&[&["op"][..], &figures].concat()).omitting(&["C", "none", "A", "B"]);
        let name = "encoder.blocks.11.attention.query.matmul:backward";
        table.line(name, figures.map(|_| "1000 KiB".to_owned()));
        let text = table.to_string();
        assert!(text.lines().all(|line| line.chars().count() <= WIDTH), "{text}");
        assert_eq!(text.split_whitespace().take(7).collect::<String>(), "opDEFGHI");
        assert!(text.contains("\nencoder.b.11.a.query.matmul:backward "), "{text}");
        let text = table.wide(true).to_string();
        assert!(text.contains(name) && text.starts_with("op  ") && text.contains(" A "), "{text}");
    }
}

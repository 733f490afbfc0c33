//! Golden files: exact figures by op, for comparison in tests.
//!
//! A golden file is a plain text table for reviews: one line per op and phase, and one for the pool. It does
//! not name the pool, so that a dry run matches the file of a real run.

use std::collections::BTreeMap;
use std::fmt::{self, Write};
use std::io;
use std::path::{Path, PathBuf};

use bfc_core::{printable, printable_lines};
use highwater_tracking::{AtomicFile, OpRow, Phase, PoolRow, Report};

use crate::settings::UPDATE_VARIABLE as UPDATE;

/// The column headings.
const COLUMNS: [&str; 7] = ["calls", "total", "high_water", "live", "temporary", "output", "persistent"];

/// The name of the line for all pools, which has columns of its own.
const POOL: &str = "(pool)";

/// The columns of that line.
const POOL_COLUMNS: [&str; 3] = ["peak_in_use", "peak_reserved", "allocations"];

/// Fails if the figures by op of a [`Report`] differ from those in a file. The path is relative to the folder
/// of the package's `Cargo.toml`. With `HIGHWATER_UPDATE_GOLDEN=1` in the environment it writes the file
/// instead.
///
/// ```no_run
/// use highwater::{DeviceProfile, Tensor, assert_golden, dry_run};
/// let run = dry_run(DeviceProfile::this_machine(), |device| Tensor::zeros(device, [64])?.relu().map(drop))?;
/// assert_golden!(run.report, "tests/golden/relu.txt");
/// # Ok::<(), highwater::Error>(())
/// ```
///
/// # Panics
/// With [`GoldenError`](crate::testing::GoldenError), which lists the changes.
#[macro_export]
macro_rules! assert_golden {
    ($report:expr, $path:expr $(,)?) => {{
        let path = ::std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join($path);
        if let Err(error) =
            $crate::testing::check_golden(&$report, path, $crate::testing::Update::FromEnvironment)
        {
            panic!("{error}");
        }
    }};
}

/// The condition for writing a golden file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Update {
    /// If the environment variable `HIGHWATER_UPDATE_GOLDEN` is neither empty nor 0.
    #[default]
    FromEnvironment,
    /// Never.
    Never,
    /// Always.
    Always,
}

impl Update {
    fn is_enabled(self) -> bool {
        match self {
            Self::FromEnvironment => {
                std::env::var_os(UPDATE).is_some_and(|value| !value.is_empty() && value != "0")
            }
            Self::Never => false,
            Self::Always => true,
        }
    }
}

/// Compares the figures by op with those in a file, or writes the file.
///
/// ```
/// use highwater::{DeviceProfile, Tensor, dry_run};
/// use highwater::testing::{GoldenError, Update, check_golden};
///
/// let folder = std::env::temp_dir().join(format!("highwater-golden-{}", std::process::id()));
/// let file = folder.join("step.txt");
/// let report = |rows| {
///     let run = dry_run(DeviceProfile::this_machine(), |device| Tensor::zeros(device, [rows, 64]).map(drop))?;
///     Ok::<_, highwater::Error>(run.report)
/// };
/// check_golden(&report(1)?, &file, Update::Always)?;
/// check_golden(&report(1)?, &file, Update::Never)?;
/// let error = check_golden(&report(2)?, &file, Update::Never).unwrap_err();
/// assert!(matches!(&error, GoldenError::Differs { .. }));
/// assert!(error.to_string().contains("zeros"));
/// # std::fs::remove_dir_all(folder)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// [`GoldenError`] if the figures differ or the file is inaccessible.
pub fn check_golden(report: &Report, path: impl AsRef<Path>, update: Update) -> Result<(), GoldenError> {
    let (path, new) = (path.as_ref(), text(report));
    let io = |error: io::Error| GoldenError::File { path: path.to_owned(), message: error.to_string() };
    if update.is_enabled() {
        path.parent().map_or(Ok(()), std::fs::create_dir_all).map_err(io)?;
        let written = AtomicFile::create(path).and_then(|mut file| {
            io::Write::write_all(&mut file, new.as_bytes())?;
            file.commit()
        });
        return written.map_err(io);
    }
    // Git may have converted the line endings.
    let old = std::fs::read_to_string(path).map_err(io)?.replace("\r\n", "\n");
    if old == new {
        return Ok(());
    }
    Err(GoldenError::Differs { path: path.to_owned(), difference: difference(&old, &new) })
}

/// The figures differ from the file, or the file is inaccessible.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GoldenError {
    /// The figures differ.
    #[error("the bytes by op differ from those in {}; set {UPDATE}=1 to update the file\n\n{difference}", printable(path.display()), difference = printable_lines(difference))]
    Differs {
        /// The file.
        path: PathBuf,
        /// One line per op whose figures changed.
        difference: String,
    },
    /// The file does not exist, or cannot be read or written.
    #[error("{}: {message}; set {UPDATE}=1 to write it", printable(path.display()), message = printable(message))]
    File {
        /// The file.
        path: PathBuf,
        /// The system's error message.
        message: String,
    },
}

bfc_core::debug_as_message!(GoldenError);

/// Formats the figures as in the file.
fn text(report: &Report) -> String {
    let rows: Vec<(String, Vec<u64>)> = report.ops.iter().map(|row| (name(row), figures(row))).collect();
    let name_width = rows.iter().map(|(name, _)| name.len()).chain([2]).max().unwrap_or(0);
    let widths: Vec<usize> = COLUMNS
        .iter()
        .enumerate()
        .map(|(column, heading)| {
            let digits = rows.iter().map(|(_, figures)| figures[column].to_string().len());
            digits.chain([heading.len()]).max().unwrap_or(0)
        })
        .collect();
    let mut text = format!("# Bytes by op. {UPDATE}=1 updates this file.\n");
    let mut line = |name: &str, cells: &[String]| {
        let cells: String =
            cells.iter().zip(&widths).map(|(cell, width)| format!("  {cell:>width$}")).collect();
        // Writing to a `String` cannot fail.
        let _ = writeln!(text, "{name:<name_width$}{cells}");
    };
    line("op", &COLUMNS.map(str::to_owned));
    for (name, figures) in &rows {
        line(name, &figures.iter().map(u64::to_string).collect::<Vec<_>>());
    }
    let pool: String = POOL_COLUMNS
        .iter()
        .zip(pool_figures(&report.pools))
        .map(|(name, figure)| format!("  {name} {figure}"))
        .collect();
    let _ = writeln!(text, "{POOL}{pool}");
    text
}

/// Returns an op's name with its phase, as one word.
fn name(row: &OpRow) -> String {
    let op: String = row.op.chars().map(|letter| if letter.is_whitespace() { '_' } else { letter }).collect();
    match row.phase {
        Phase::Forward => op,
        phase => format!("{op}:{}", phase.name()),
    }
}

fn figures(row: &OpRow) -> Vec<u64> {
    vec![
        row.calls,
        row.total_bytes,
        row.high_water_bytes,
        row.live_bytes,
        row.temporary_bytes,
        row.output_bytes,
        row.persistent_bytes,
    ]
}

fn pool_figures(pools: &[PoolRow]) -> [u64; POOL_COLUMNS.len()] {
    let sum = |figure: fn(&PoolRow) -> u64| pools.iter().map(figure).fold(0, u64::saturating_add);
    [sum(|pool| pool.peak_in_use), sum(|pool| pool.peak_reserved), sum(|pool| pool.allocations)]
}

/// Parses the figures of a file by op and column. Malformed lines have no figures, so they differ.
fn parse(text: &str) -> BTreeMap<&str, BTreeMap<&str, u64>> {
    let mut rows = BTreeMap::new();
    for line in text.lines().skip(2) {
        let mut words = line.split_whitespace();
        let Some(name) = words.next() else { continue };
        let words: Vec<&str> = words.collect();
        // Inserted one by one, because collecting a map compiles a sort.
        let mut figures = BTreeMap::new();
        let mut add = |name, word: &str| {
            if let Ok(figure) = word.parse() {
                figures.insert(name, figure);
            }
        };
        if name == POOL {
            words.chunks_exact(2).for_each(|pair| add(pair[0], pair[1]));
        } else {
            COLUMNS.into_iter().zip(words).for_each(|(name, word)| add(name, word));
        }
        rows.insert(name, figures);
    }
    rows
}

/// A changed figure.
struct Change<'a> {
    name: &'a str,
    before: u64,
    after: u64,
}

impl fmt::Display for Change<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, before, after } = self;
        let (sign, by) = if after >= before { ('+', after - before) } else { ('-', before - after) };
        write!(f, "{name} {before} -> {after} ({sign}{by})")
    }
}

/// Returns one line per op that is new, missing or has changed figures.
pub(crate) fn difference(old: &str, new: &str) -> String {
    let (old, new) = (parse(old), parse(new));
    let none = BTreeMap::new();
    let mut names: Vec<&str> = old.keys().chain(new.keys()).copied().collect();
    names.sort_unstable();
    names.dedup();
    let mut text = String::new();
    for name in names {
        let (before, after) = (old.get(name), new.get(name));
        let sign = match (before, after) {
            (None, _) => '+',
            (_, None) => '-',
            _ => '~',
        };
        let (before, after) = (before.unwrap_or(&none), after.unwrap_or(&none));
        let columns = COLUMNS.into_iter().chain(POOL_COLUMNS);
        let changes: Vec<String> = columns
            .filter_map(|column| {
                let figure = |row: &BTreeMap<&str, u64>| row.get(column).copied().unwrap_or(0);
                let change = Change { name: column, before: figure(before), after: figure(after) };
                (change.before != change.after).then(|| change.to_string())
            })
            .collect();
        if sign != '~' || !changes.is_empty() {
            let _ = writeln!(text, "{sign} {name}: {}", changes.join(", "));
        }
    }
    if text.is_empty() {
        // Only spaces, comments or the order of the ops differ.
        text.push_str("the figures are equal, but the format of the file differs\n");
    }
    text
}

#[cfg(test)]
mod tests;

//! Figures by op in a file, compared to the byte.
//!
//! The file is a table of plain text, made to be read in a review: a line for each op and phase, and one for the pool, whose
//! names are not in it, so that a dry run may be compared with the file of a real one.

use std::collections::BTreeMap;
use std::fmt::{self, Write};
use std::io;
use std::path::{Path, PathBuf};

use highwater_tracking::{AtomicFile, OpRow, Phase, PoolRow, Report};

/// The environment variable that makes [`assert_golden!`](crate::assert_golden) write files instead of comparing with them.
const UPDATE: &str = "HIGHWATER_UPDATE_GOLDEN";

/// What stands above the columns.
const COLUMNS: [&str; 7] = ["calls", "total", "high_water", "live", "temporary", "output", "persistent"];

/// The line of all pools together, in figures of its own.
const POOL: &str = "(pool)";

/// What that line's figures are.
const POOL_COLUMNS: [&str; 3] = ["peak_in_use", "peak_reserved", "allocations"];

/// Fails if the figures by op of a [`Report`] are not those in a file, whose path is given from the folder of the package's
/// `Cargo.toml`. With `HIGHWATER_UPDATE_GOLDEN=1` in the environment the file is written instead.
///
/// ```no_run
/// use highwater::{DeviceProfile, Tensor, assert_golden, dry_run};
/// let run = dry_run(DeviceProfile::this_machine(), |device| Tensor::zeros(device, [64])?.relu().map(drop))?;
/// assert_golden!(run.report, "tests/golden/relu.txt");
/// # Ok::<(), highwater::Error>(())
/// ```
///
/// # Panics
/// With [`GoldenError`](crate::testing::GoldenError), which says what changed by how much.
#[macro_export]
macro_rules! assert_golden {
    ($report:expr, $path:expr $(,)?) => {{
        let path = ::std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join($path);
        if let Err(error) = $crate::testing::check_golden(&$report, path, $crate::testing::Update::Asked) {
            panic!("{error}");
        }
    }};
}

/// When a file is written anew.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Update {
    /// When the environment variable `HIGHWATER_UPDATE_GOLDEN` asks for it: when it is neither empty nor 0.
    #[default]
    Asked,
    /// Never.
    Never,
    /// Always.
    Always,
}

impl Update {
    fn decided(self) -> bool {
        match self {
            Self::Asked => std::env::var_os(UPDATE).is_some_and(|said| !said.is_empty() && said != "0"),
            Self::Never => false,
            Self::Always => true,
        }
    }
}

/// Compares the figures by op with those in a file, or writes them there.
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
/// See [`GoldenError`].
pub fn check_golden(report: &Report, path: impl AsRef<Path>, update: Update) -> Result<(), GoldenError> {
    let (path, new) = (path.as_ref(), text(report));
    let io = |error: io::Error| GoldenError::File { path: path.to_owned(), message: error.to_string() };
    if update.decided() {
        path.parent().map_or(Ok(()), std::fs::create_dir_all).map_err(io)?;
        let written = AtomicFile::create(path).and_then(|mut file| {
            io::Write::write_all(&mut file, new.as_bytes())?;
            file.commit()
        });
        return written.map_err(io);
    }
    // Git may have given the file the line ends of another system.
    let old = std::fs::read_to_string(path).map_err(io)?.replace("\r\n", "\n");
    if old == new {
        return Ok(());
    }
    Err(GoldenError::Differs { path: path.to_owned(), difference: difference(&old, &new) })
}

/// The figures are not those in the file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GoldenError {
    /// They are others.
    #[error("bytes by op are not those in {}; {UPDATE}=1 takes the new ones\n\n{difference}", path.display())]
    Differs {
        /// The file.
        path: PathBuf,
        /// A line for each op whose figures changed, with what changed.
        difference: String,
    },
    /// There is no such file, or it cannot be read or written.
    #[error("{}: {message}; {UPDATE}=1 writes it", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What the system says.
        message: String,
    },
}

/// The figures as they stand in the file.
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
    let mut text = format!("# Bytes by op. {UPDATE}=1 writes this file anew.\n");
    let mut line = |name: &str, cells: &[String]| {
        let cells: String =
            cells.iter().zip(&widths).map(|(cell, width)| format!("  {cell:>width$}")).collect();
        // A text takes everything.
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

/// An op's name with its phase, as a word.
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

/// The figures of a file by op and column. What is no such line has no figures, and differs then.
fn parse(text: &str) -> BTreeMap<&str, BTreeMap<&str, u64>> {
    let mut rows = BTreeMap::new();
    for line in text.lines().skip(2) {
        let mut words = line.split_whitespace();
        let Some(name) = words.next() else { continue };
        let words: Vec<&str> = words.collect();
        // Inserted, as a map that is collected brings a sort of its own.
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

/// A figure that changed.
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

/// A line for each op that is new, gone or has other figures.
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
        // Only what is no figure: spaces, comments, the order of ops.
        text.push_str("the figures are the same, the text around them is not\n");
    }
    text
}

#[cfg(test)]
mod tests;

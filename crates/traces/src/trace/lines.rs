//! Reads lines of bounded length and the numbers in them.

use std::borrow::Cow;
use std::io::BufRead;

use highwater_files::lines::{self, LineReader};

pub(super) use highwater_files::lines::beginning;

use super::builder::Builder;
use super::{Trace, TraceError, TraceLimits, TracePlace, TraceProblem};

/// Builds a trace from lines that each are complete events. `line` returns whether the line contained an event.
pub(super) fn parse(
    reader: impl BufRead,
    limits: &TraceLimits,
    mut line: impl FnMut(&str, &mut Builder) -> Result<bool, TraceProblem>,
) -> Result<Trace, TraceError> {
    let mut builder = Builder::new(*limits);
    each_line(reader, limits, &mut builder, |builder, _, text| line(text, builder))?;
    Ok(builder.finish())
}

/// Calls `line` with the number and the text of each trimmed line that is not blank, until it fails. `line` returns
/// whether the line contained an event.
///
/// # Errors
/// Errors of `line`, of reading, and of too many lines without an event; each with its line number.
pub(super) fn each_line(
    reader: impl BufRead,
    limits: &TraceLimits,
    builder: &mut Builder,
    mut line: impl FnMut(&mut Builder, u64, &str) -> Result<bool, TraceProblem>,
) -> Result<(), TraceError> {
    each_raw_line(reader, limits, limits.line_bytes, |number, bytes| {
        let text = text_of(bytes)?.trim();
        builder.note_input(text.len() as u64 + 1);
        Ok(!text.is_empty() && line(builder, number, text)?)
    })
}

/// Calls `line` with the number and the bytes of each line of at most so many bytes, until it fails. `line` returns
/// whether the line contained an event.
///
/// # Errors
/// As [`each_line`].
pub(super) fn each_raw_line(
    reader: impl BufRead,
    limits: &TraceLimits,
    line_bytes: usize,
    mut line: impl FnMut(u64, &[u8]) -> Result<bool, TraceProblem>,
) -> Result<(), TraceError> {
    let mut lines = LineReader::new(reader, line_bytes);
    let mut idle = 0;
    loop {
        let read = lines.read();
        let place = TracePlace::Line(lines.number);
        if !read.map_err(|problem| place.of(problem))? {
            return Ok(());
        }
        let is_event = line(lines.number, &lines.line).map_err(|problem| place.of(problem))?;
        idle += u32::from(!is_event);
        if idle > limits.idle_lines {
            let problem = TraceProblem::TooMany { what: "lines without an event", limit: limits.idle_lines };
            return Err(place.of(problem));
        }
    }
}

/// Returns the text of a line.
pub(super) fn text_of(line: &[u8]) -> Result<&str, TraceProblem> {
    Ok(lines::text_of(line)?)
}

/// Parses an integer without a sign.
pub(super) fn number(text: &str) -> Result<u64, TraceProblem> {
    Ok(lines::number(text)?)
}

/// Parses an alignment in bytes.
pub(super) fn alignment_of(text: &str) -> Result<u32, TraceProblem> {
    let bytes = number(text)?;
    let alignment = u32::try_from(bytes).ok().filter(|alignment| alignment.is_power_of_two());
    alignment.ok_or(TraceProblem::BadAlignment { bytes })
}

/// Returns the error for a text that is not a number.
pub(super) fn bad_number(text: &str) -> TraceProblem {
    TraceProblem::BadNumber { found: beginning(text) }
}

/// Splits a line of CSV into its first `N` cells, trimmed. Returns `None` if there are fewer.
pub(super) fn fields<const N: usize>(line: &str) -> Option<[Cow<'_, str>; N]> {
    let mut found = [const { Cow::Borrowed("") }; N];
    let mut cells = Cells::of(line);
    for field in &mut found {
        *field = cells.next()?;
    }
    Some(found)
}

/// The cells of a line of CSV, without spaces around them. A cell in quotes may contain commas, and doubled quotes stand
/// for one. A cell without its closing quote ends the line.
#[derive(Clone, Debug)]
pub(super) struct Cells<'a> {
    rest: Option<&'a str>,
}

impl<'a> Cells<'a> {
    pub(super) const fn of(line: &'a str) -> Self {
        Self { rest: Some(line) }
    }
}

impl<'a> Iterator for Cells<'a> {
    type Item = Cow<'a, str>;

    fn next(&mut self) -> Option<Cow<'a, str>> {
        let rest = self.rest.take()?;
        let Some(quoted) = rest.trim_start().strip_prefix('"') else {
            let (cell, rest) = rest.split_once(',').map_or((rest, None), |(cell, rest)| (cell, Some(rest)));
            self.rest = rest;
            return Some(Cow::Borrowed(cell.trim()));
        };
        let (mut cell, mut rest) = (Cow::Borrowed(""), quoted);
        loop {
            let (part, after) = rest.split_once('"')?;
            // Only a cell with a doubled quote is copied.
            cell = if cell.is_empty() { Cow::Borrowed(part) } else { cell + part };
            match after.strip_prefix('"') {
                Some(after) => {
                    cell.to_mut().push('"');
                    rest = after;
                }
                None => {
                    let after = after.trim_start();
                    self.rest = after.strip_prefix(',');
                    return (after.is_empty() || self.rest.is_some()).then(|| trimmed(cell));
                }
            }
        }
    }
}

/// Removes the spaces around a cell.
fn trimmed(cell: Cow<'_, str>) -> Cow<'_, str> {
    match cell {
        Cow::Borrowed(cell) => Cow::Borrowed(cell.trim()),
        Cow::Owned(cell) => Cow::Owned(cell.trim().to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_of_a_line_may_be_quoted() {
        let cases: &[(&str, &[&str])] = &[
            ("a, b ,,c", &["a", "b", "", "c"]),
            ("\"a\",\"b,c\",\"\"", &["a", "b,c", ""]),
            (" \"a\" , b", &["a", "b"]),
            ("\"say \"\"yes\"\", then\",1", &["say \"yes\", then", "1"]),
            ("\"\"\"\",1", &["\"", "1"]),
            ("a\"b,1", &["a\"b", "1"]),
            // An open quote, and letters after a quote.
            ("1,\"a", &["1"]),
            ("1,\"a\"b,2", &["1"]),
        ];
        for &(line, expected) in cases {
            assert_eq!(Cells::of(line).collect::<Vec<_>>(), expected, "{line}");
        }
    }
}

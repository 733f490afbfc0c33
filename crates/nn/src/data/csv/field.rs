//! The fields of a line.

use std::path::Path;

use highwater_tensor::error::DataError;

use super::encoding::{Categories, Refused};
use super::options::CsvOptions;

/// Maximum number of characters of an invalid field that an error repeats.
const MAX_FOUND: usize = 40;

/// A table keeps the numbers of categories as 32-bit floats, which represent all whole numbers up to this one.
const MOST_CATEGORIES: usize = 1 << 24;

/// Texts that often stand for a missing value.
const USUAL_MARKS: [&str; 7] = ["na", "n/a", "nan", "null", "none", "?", "-"];

/// The hint for a first line that is not a row of numbers.
const HEADER: &str = "if the first line has the names of the columns, use `CsvOptions::with_header(true)`";

/// A field and its position.
pub(super) struct Field<'a> {
    pub(super) bytes: &'a [u8],
    pub(super) path: &'a Path,
    pub(super) line: u64,
    /// The number of the data row, from 1.
    pub(super) row: usize,
    pub(super) index: usize,
    /// The name of the column; empty without a header.
    pub(super) name: &'a str,
    /// Whether the row may have the names of the columns.
    pub(super) like_header: bool,
    pub(super) options: &'a CsvOptions,
}

impl Field<'_> {
    /// Whether the value is missing.
    pub(super) fn is_missing(&self) -> bool {
        self.options.is_missing(self.bytes)
    }

    /// Parses a feature that is a number.
    pub(super) fn number(&self) -> Result<f32, DataError> {
        self.parse("a finite number", self.hint_for_numbers(), finite)
    }

    /// Parses a target.
    pub(super) fn target(&self) -> Result<f32, DataError> {
        self.check_answer()?;
        self.parse("a finite number as a target", if self.like_header { HEADER } else { "" }, finite)
    }

    /// Parses a label: a whole number, which some programs write as a float: `1.0`.
    pub(super) fn label(&self) -> Result<i64, DataError> {
        self.check_answer()?;
        let is_text = self.text().is_ok_and(|text| text.parse::<f64>().is_err());
        let hint = match is_text {
            true if self.like_header => HEADER,
            true => "`CsvOptions::with_classes` reads text as classes",
            false => "",
        };
        self.parse("a whole number as the label", hint, |text| {
            let of_float = || {
                let value: f64 = text.parse().ok()?;
                // A 64-bit float represents all whole numbers up to this one.
                (value.fract() == 0.0 && value.abs() <= 2_f64.powi(53)).then_some(value as i64)
            };
            text.parse().ok().or_else(of_float)
        })
    }

    /// Returns the number of a class.
    pub(super) fn class(&self, classes: &mut Categories) -> Result<i64, DataError> {
        self.check_answer()?;
        self.category(classes).map(i64::from)
    }

    /// Returns the number of a category.
    pub(super) fn category(&self, categories: &mut Categories) -> Result<u32, DataError> {
        let limit = self.options.max_categories.min(MOST_CATEGORIES);
        let text = self.text()?;
        categories.number(text, limit).map_err(|refused| match refused {
            Refused::Unknown => DataError::UnknownCategory {
                path: self.path.to_owned(),
                line: self.line,
                column: self.index + 1,
                name: self.name.to_owned(),
                found: self.found(),
                known: categories.shown(),
            },
            Refused::TooMany => DataError::TooLarge {
                path: self.path.to_owned(),
                line: self.line,
                what: "categories in a column",
                limit,
            },
        })
    }

    /// Returns the error of a missing feature.
    pub(super) fn missing_feature(&self) -> DataError {
        const FILL: &str = "`CsvOptions::with_missing` fills missing features";
        // pandas leaves the cell above its index column empty, and may number the columns.
        const FILL_OR_HEADER: &str = "`CsvOptions::with_missing` fills missing features; if the first line has the names of \
             the columns, use `CsvOptions::with_header(true)`";
        let is_first_cell =
            self.row == 1 && self.index == 0 && self.name.is_empty() && !self.options.has_header();
        self.missing(match is_first_cell {
            _ if self.like_header => HEADER,
            true => FILL_OR_HEADER,
            false => FILL,
        })
    }

    /// Returns the error of a missing value.
    fn missing(&self, hint: &'static str) -> DataError {
        DataError::MissingValue {
            path: self.path.to_owned(),
            line: self.line,
            row: self.row,
            column: self.index + 1,
            name: self.name.to_owned(),
            hint,
        }
    }

    /// Checks that a label or target is there.
    fn check_answer(&self) -> Result<(), DataError> {
        let hint = if self.like_header { HEADER } else { "remove the row" };
        if self.is_missing() { Err(self.missing(hint)) } else { Ok(()) }
    }

    /// Returns the field as text.
    pub(super) fn text(&self) -> Result<&str, DataError> {
        std::str::from_utf8(self.bytes).map_err(|_| self.bad("text in UTF-8", "save the file as UTF-8"))
    }

    fn parse<T>(
        &self,
        expected: &'static str,
        hint: &'static str,
        parse: impl Fn(&str) -> Option<T>,
    ) -> Result<T, DataError> {
        let value = std::str::from_utf8(self.bytes).ok().and_then(parse);
        value.ok_or_else(|| self.bad(expected, hint))
    }

    fn bad(&self, expected: &'static str, hint: &'static str) -> DataError {
        DataError::BadField {
            path: self.path.to_owned(),
            line: self.line,
            column: self.index + 1,
            name: self.name.to_owned(),
            expected,
            found: self.found(),
            hint,
        }
    }

    fn found(&self) -> String {
        String::from_utf8_lossy(self.bytes).chars().take(MAX_FOUND).collect()
    }

    fn hint_for_numbers(&self) -> &'static str {
        let is_mark = |text: &str| USUAL_MARKS.iter().any(|mark| text.eq_ignore_ascii_case(mark));
        match std::str::from_utf8(self.bytes) {
            Ok(text) if is_mark(text) => {
                "`CsvOptions::with_missing_marks` lists texts that stand for missing values"
            }
            _ if !self.name.is_empty() => {
                "columns of text may be read as text (`CsvOptions::with_text`), ignored (`with_ignored`) or one-hot (`with_one_hot`)"
            }
            _ if self.row == 1 => HEADER,
            _ => "",
        }
    }
}

fn finite(text: &str) -> Option<f32> {
    text.parse().ok().filter(|value: &f32| value.is_finite())
}

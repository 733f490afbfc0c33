//! Columns of text beside the features.

use std::fmt::Write as _;

use highwater_tensor::{Error, Result};

use super::csv::Column;

/// A column of text: one text per row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TextColumn {
    /// The index of the column in the file, from 0.
    pub(super) index: usize,
    /// The name of the column; empty without a header.
    pub(super) name: String,
    pub(super) rows: Vec<String>,
}

impl TextColumn {
    /// Copies the texts of the given rows.
    pub(super) fn select(&self, rows: &[usize]) -> Self {
        let selected = rows.iter().filter_map(|&row| self.rows.get(row).cloned()).collect();
        Self { rows: selected, name: self.name.clone(), ..*self }
    }

    fn is(&self, column: &Column) -> bool {
        match column {
            Column::Index(index) => self.index == *index,
            Column::Name(name) => self.name == *name,
        }
    }
}

/// Returns the column with this name or index.
pub(super) fn find<'a>(columns: &'a [TextColumn], column: &Column) -> Result<&'a TextColumn> {
    columns.iter().find(|text| text.is(column)).ok_or_else(|| {
        let mut got = match column {
            Column::Index(index) => format!("{index}; "),
            Column::Name(name) => format!("{name:?}; "),
        };
        for (number, text) in columns.iter().enumerate() {
            got.push_str(if number == 0 { "the text columns are " } else { ", " });
            // Writing to a string cannot fail.
            let _ = match text.name.as_str() {
                "" => write!(got, "{}", text.index),
                name => write!(got, "{name:?}"),
            };
        }
        if columns.is_empty() {
            got.push_str("`CsvOptions::with_text` reads columns of text");
        }
        Error::BadArgument { op: "texts", argument: "column", expected: "a column of text", got }
    })
}

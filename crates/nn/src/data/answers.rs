//! The labels or targets of rows.

use highwater_tensor::Result;

use crate::io::Array;

/// The labels or targets of some rows, in order.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Answers {
    /// A class index for each row, or an empty vector.
    Labels(Vec<i64>),
    /// `width` values for each row, row after row.
    Targets { values: Vec<f32>, width: usize },
}

impl Default for Answers {
    fn default() -> Self {
        Self::Labels(Vec::new())
    }
}

impl Answers {
    /// Copies the answers of the given rows.
    pub(super) fn select(&self, rows: &[usize]) -> Self {
        match self {
            Self::Labels(labels) => {
                Self::Labels(rows.iter().filter_map(|&row| labels.get(row).copied()).collect())
            }
            Self::Targets { values, width } => {
                let selected = rows.iter().flat_map(|row| &values[row * width..][..*width]);
                Self::Targets { values: selected.copied().collect(), width: *width }
            }
        }
    }

    /// Returns the answer of one row: a class index of shape `[]`, or targets `[width]`.
    pub(super) fn get(&self, row: usize) -> Result<Option<Array>> {
        match self {
            Self::Labels(labels) => labels.get(row).map(|&label| Array::from_slice(&[label], ())).transpose(),
            Self::Targets { values, width } => {
                Array::from_slice(&values[row * width..][..*width], [*width]).map(Some)
            }
        }
    }

    /// Returns all answers: class indices `[n]` (`i64`), or targets `[n, width]` (`f32`).
    pub(super) fn to_array(&self) -> Result<Option<Array>> {
        match self {
            Self::Labels(labels) if labels.is_empty() => Ok(None),
            Self::Labels(labels) => Array::from_slice(labels, [labels.len()]).map(Some),
            Self::Targets { values, width } => {
                Array::from_slice(values, [values.len() / width, *width]).map(Some)
            }
        }
    }
}

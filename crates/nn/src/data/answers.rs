//! The labels or targets of rows.

use highwater_tensor::{Place, Result, Tensor};

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
    /// Replaces the contents by those of the given rows of `all`. Reuses the allocated memory.
    pub(super) fn select(&mut self, all: &Self, rows: &[usize]) {
        match (&mut *self, all) {
            (Self::Labels(to), Self::Labels(from)) => {
                to.clear();
                to.extend(rows.iter().filter_map(|&row| from.get(row)));
            }
            (Self::Targets { values: to, .. }, Self::Targets { values: from, width }) => {
                to.clear();
                rows.iter().for_each(|row| to.extend_from_slice(&from[row * width..][..*width]));
            }
            (_, Self::Labels(_)) => {
                *self = Self::Labels(Vec::with_capacity(rows.len()));
                self.select(all, rows);
            }
            (_, Self::Targets { width, .. }) => {
                *self = Self::Targets { values: Vec::with_capacity(rows.len() * width), width: *width };
                self.select(all, rows);
            }
        }
    }

    /// Creates a tensor: class indices `[n]` (`i64`), or targets `[n, width]` (`f32`).
    pub(super) fn to_tensor(&self, place: &impl Place) -> Result<Tensor> {
        match self {
            Self::Labels(labels) => Tensor::from_slice(place, labels, [labels.len()]),
            Self::Targets { values, width } => {
                Tensor::from_slice(place, values, [values.len() / width, *width])
            }
        }
    }
}

//! The role of each column.

use std::path::Path;

use csv::ByteRecord;
use highwater_tensor::error::DataError;

use super::encoding::{Categories, FeatureEncoding, list};
use super::options::{ClassNames, Column, CsvOptions, LabelColumn, TargetColumns};

/// The role of each column of a file.
pub(super) struct Columns {
    /// The number of fields in a line.
    pub(super) count: usize,
    /// The names of all columns; empty without a header.
    pub(super) names: Vec<String>,
    pub(super) features: Vec<Feature>,
    /// The columns of text.
    pub(super) texts: Vec<usize>,
    /// The column of the label, or the columns of the targets in the requested order.
    pub(super) answers: Vec<usize>,
    /// The classes, if the label is text.
    pub(super) classes: Option<Categories>,
}

/// A column of features.
pub(super) struct Feature {
    pub(super) index: usize,
    /// The categories of a one-hot column.
    pub(super) categories: Option<Categories>,
    /// The mean of another data set.
    pub(super) mean: Option<f32>,
}

impl Columns {
    /// Finds the columns from the first line, which has the names if there is a header.
    pub(super) fn new(first: &ByteRecord, path: &Path, options: &CsvOptions) -> Result<Self, DataError> {
        let has_header = options.has_header();
        let name = |field: &[u8]| String::from_utf8_lossy(field).into_owned();
        let names = if has_header { first.iter().map(name).collect() } else { Vec::new() };
        let header = Header { count: first.len(), names: &names, path };
        let answers = header.answers(options)?;
        let (texts, indices) = header.texts_and_features(options, &answers)?;
        let one_hot = options
            .one_hot
            .iter()
            .map(|column| header.find(column, "a one-hot column"))
            .collect::<Result<Vec<_>, _>>()?;
        if let Some(&index) = one_hot.iter().find(|index| !indices.contains(index)) {
            return Err(header.bad(index, "the column is one-hot, but not a feature"));
        }
        let features = match &options.encoding {
            Some(encoding) if encoding.features().len() != indices.len() => {
                let (expected, found) = (encoding.features().len(), indices.len());
                return Err(DataError::OtherColumns { path: path.to_owned(), expected, found });
            }
            Some(encoding) => {
                let known = indices.iter().zip(encoding.features());
                known.map(|(&index, feature)| Feature::known(index, feature)).collect()
            }
            None => indices.iter().map(|&index| Feature::new(index, one_hot.contains(&index))).collect(),
        };
        let classes = options.classes();
        Ok(Self { count: first.len(), names, features, texts, answers, classes })
    }

    /// Whether the first line of a file, which was read as a row, may have the names of the columns: no column of numbers
    /// has a number there.
    pub(super) fn is_like_header(&self, line: &ByteRecord, options: &CsvOptions) -> bool {
        let features = self.features.iter().filter(|feature| feature.categories.is_none());
        let answers = self.answers.iter().copied().filter(|_| self.classes.is_none());
        let mut cells = features.map(|feature| feature.index).chain(answers).map(|index| &line[index]);
        let mut has_name = false;
        cells.all(|cell| {
            let is_name = !options.is_missing(cell);
            has_name |= is_name;
            !std::str::from_utf8(cell).is_ok_and(|cell| cell.parse::<f64>().is_ok())
        }) && has_name
    }

    /// Returns the name of a column; empty without a header.
    pub(super) fn name(&self, index: usize) -> &str {
        self.names.get(index).map_or("", String::as_str)
    }
}

impl Feature {
    fn new(index: usize, is_one_hot: bool) -> Self {
        Self { index, categories: is_one_hot.then(Categories::default), mean: None }
    }

    fn known(index: usize, encoding: &FeatureEncoding) -> Self {
        let categories = encoding.categories.as_deref().map(Categories::fixed);
        Self { index, categories, mean: encoding.mean }
    }
}

impl CsvOptions {
    /// Whether the first line has the names of the columns. Options that name columns need one.
    pub(super) fn has_header(&self) -> bool {
        let is_name = |column: &Column| matches!(column, Column::Name(_));
        self.header
            || matches!(self.label, LabelColumn::Name(_))
            || matches!(self.targets, Some(TargetColumns::Names(_)))
            || self
                .features
                .iter()
                .flatten()
                .chain(&self.text)
                .chain(&self.ignored)
                .chain(&self.one_hot)
                .any(is_name)
            || self.encoding.as_ref().is_some_and(|encoding| encoding.is_named())
    }

    /// Whether the value of a field is missing.
    pub(super) fn is_missing(&self, field: &[u8]) -> bool {
        field.is_empty() || self.missing_marks.iter().any(|mark| mark.as_bytes() == field)
    }

    /// Returns the classes known in advance, if the label is text.
    fn classes(&self) -> Option<Categories> {
        match (&self.class_names, &self.encoding) {
            _ if self.targets.is_some() => None,
            (ClassNames::Numbers, _) => None,
            (ClassNames::Fixed(names), _) => Some(Categories::fixed(names)),
            (ClassNames::Sorted, Some(encoding)) if !encoding.class_names().is_empty() => {
                Some(Categories::fixed(encoding.class_names()))
            }
            (ClassNames::Sorted, _) => Some(Categories::default()),
        }
    }
}

/// The columns of a file.
struct Header<'a> {
    count: usize,
    names: &'a [String],
    path: &'a Path,
}

impl Header<'_> {
    /// Returns the label or target columns.
    fn answers(&self, options: &CsvOptions) -> Result<Vec<usize>, DataError> {
        let count = self.count;
        match &options.targets {
            Some(TargetColumns::Names(names)) => return names.iter().map(|name| self.named(name)).collect(),
            Some(targets) => {
                return targets.indices(count).map_err(|index| self.missing("a target", index));
            }
            None => {}
        }
        let label = match &options.label {
            LabelColumn::First => 0,
            LabelColumn::Last => count.saturating_sub(1),
            LabelColumn::Index(index) => *index,
            LabelColumn::Name(name) => self.named(name)?,
            LabelColumn::None => return Ok(Vec::new()),
        };
        if label < count { Ok(vec![label]) } else { Err(self.missing("the label", label)) }
    }

    /// Returns the columns of text and the feature columns.
    fn texts_and_features(
        &self,
        options: &CsvOptions,
        answers: &[usize],
    ) -> Result<(Vec<usize>, Vec<usize>), DataError> {
        let mut is_free = vec![true; self.count];
        answers.iter().for_each(|&index| is_free[index] = false);
        for column in &options.ignored {
            is_free[self.find(column, "an ignored column")?] = false;
        }
        let mut texts = Vec::with_capacity(options.text.len());
        for column in &options.text {
            let index = self.find(column, "a column of text")?;
            if !std::mem::take(&mut is_free[index]) {
                return Err(self
                    .bad(index, "the column is text, and also ignored, a label or a target, or text twice"));
            }
            texts.push(index);
        }
        let chosen = if let Some(features) = &options.features {
            features.iter().map(|column| self.find(column, "a feature")).collect::<Result<Vec<_>, _>>()?
        } else if let Some(encoding) = options.encoding.as_ref().filter(|encoding| encoding.is_named()) {
            let names = encoding.features().iter().map(|feature| self.named(&feature.name));
            names.collect::<Result<Vec<_>, _>>()?
        } else {
            (0..self.count).filter(|&index| is_free[index]).collect()
        };
        match chosen.iter().find(|&&index| !is_free[index]) {
            Some(&index) => {
                Err(self.bad(index, "the column is a feature, and also text, ignored, a label or a target"))
            }
            None => Ok((texts, chosen)),
        }
    }

    fn find(&self, column: &Column, what: &'static str) -> Result<usize, DataError> {
        match column {
            Column::Index(index) if *index < self.count => Ok(*index),
            Column::Index(index) => Err(self.missing(what, *index)),
            Column::Name(name) => self.named(name),
        }
    }

    /// Returns the only column of this name.
    fn named(&self, name: &str) -> Result<usize, DataError> {
        let mut found =
            (0..self.count).filter(|&index| self.names.get(index).is_some_and(|other| other == name));
        match (found.next(), found.next()) {
            (Some(index), None) => Ok(index),
            (Some(_), Some(second)) => {
                Err(self.bad(second, "two columns have this name; name columns by their index"))
            }
            (None, _) => Err(DataError::NoNamedColumn {
                path: self.path.to_owned(),
                name: name.to_owned(),
                columns: list(self.names.iter().map(String::as_str)),
            }),
        }
    }

    fn missing(&self, what: &'static str, index: usize) -> DataError {
        let (path, column) = (self.path.to_owned(), index.saturating_add(1));
        DataError::NoColumn { path, what, column, columns: self.count }
    }

    fn bad(&self, index: usize, problem: &'static str) -> DataError {
        let name = self.names.get(index).cloned().unwrap_or_default();
        DataError::BadColumn { path: self.path.to_owned(), column: index + 1, name, problem }
    }
}

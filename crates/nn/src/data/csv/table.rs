//! The rows of a file as numbers.

use std::collections::TryReserveError;
use std::path::Path;

use csv::ByteRecord;
use highwater_tensor::Shape;
use highwater_tensor::error::DataError;

use super::columns::Columns;
use super::encoding::{Encoding, FeatureEncoding};
use super::field::Field;
use super::options::{CsvOptions, Missing};
use crate::data::answers::Answers;
use crate::data::array_dataset::ArrayDataset;
use crate::data::texts::TextColumn;

/// The rows that were read so far.
pub(super) struct Table<'a> {
    path: &'a Path,
    options: &'a CsvOptions,
    /// Set by the first line.
    columns: Option<Columns>,
    rows: usize,
    /// A value for each feature column of each row: a number, the number of a category, or NaN for a missing value.
    values: Vec<f32>,
    answers: Answers,
    texts: Vec<TextColumn>,
    /// The memory of the texts, in values of 4 bytes.
    text_values: usize,
}

/// The final form of a feature column.
struct Coded {
    /// For a one-hot column, the place of each category; see [`Table::values`].
    places: Option<Vec<u32>>,
    /// The replacement of missing numbers.
    fill: f32,
}

impl<'a> Table<'a> {
    pub(super) fn new(path: &'a Path, options: &'a CsvOptions) -> Self {
        Self {
            path,
            options,
            columns: None,
            rows: 0,
            values: Vec::new(),
            answers: Answers::default(),
            texts: Vec::new(),
            text_values: 0,
        }
    }

    /// Checks the number of lines without a row. The last line may be one of them.
    pub(super) fn check_idle(&self, line: u64, last_is_row: bool) -> Result<(), DataError> {
        let limit = self.options.max_idle_lines;
        let idle = line.saturating_sub(self.rows as u64 + u64::from(last_is_row));
        let within = usize::try_from(idle).is_ok_and(|idle| idle <= limit);
        if within { Ok(()) } else { Err(self.too_large(line, "lines without a row", limit)) }
    }

    /// Checks the number of fields of a line against the limit and the previous lines. The first line sets the columns.
    pub(super) fn check_columns(&mut self, record: &ByteRecord, line: u64) -> Result<(), DataError> {
        let found = record.len();
        if let Some(&Columns { count: expected, .. }) = self.columns.as_ref() {
            if found != expected {
                return Err(DataError::Ragged { path: self.path.to_owned(), line, expected, found });
            }
            return Ok(());
        }
        if found > self.options.max_columns {
            return Err(self.too_large(line, "columns", self.options.max_columns));
        }
        let columns = Columns::new(record, self.path, self.options)?;
        if self.options.targets.is_some() && !columns.answers.is_empty() {
            self.answers = Answers::Targets { values: Vec::new(), width: columns.answers.len() };
        }
        let text =
            |&index: &usize| TextColumn { index, name: columns.name(index).to_owned(), rows: Vec::new() };
        self.texts = columns.texts.iter().map(text).collect();
        self.columns = Some(columns);
        Ok(())
    }

    /// Appends a row.
    pub(super) fn push(&mut self, record: &ByteRecord, line: u64) -> Result<(), DataError> {
        let options = self.options;
        if self.rows == options.max_rows {
            return Err(self.too_large(line, "rows", options.max_rows));
        }
        self.reserve_row(record, line)?;
        let Self { path, rows, values, answers, texts, .. } = self;
        // This line or the previous one has set the columns.
        let Some(columns) = &mut self.columns else { return Ok(()) };
        let (row, names) = (*rows + 1, &columns.names);
        let like_header = row == 1 && names.is_empty() && columns.is_like_header(record, options);
        let field = |index: usize| {
            let name = names.get(index).map_or("", String::as_str);
            Field { bytes: &record[index], path, line, row, index, name, like_header, options }
        };
        for feature in &mut columns.features {
            let field = field(feature.index);
            values.push(if field.is_missing() {
                if options.missing == Missing::Error {
                    return Err(field.missing_feature());
                }
                f32::NAN
            } else if let Some(categories) = &mut feature.categories {
                field.category(categories)? as f32
            } else {
                field.number()?
            });
        }
        for column in texts {
            column.rows.push(field(column.index).text()?.to_owned());
        }
        for &index in &columns.answers {
            let field = field(index);
            match (&mut *answers, &mut columns.classes) {
                (Answers::Targets { values, .. }, _) => values.push(field.target()?),
                (Answers::Labels(labels), None) => labels.push(field.label()?),
                (Answers::Labels(labels), Some(classes)) => labels.push(field.class(classes)?),
            }
        }
        // Field errors come first: they show that the delimiter is wrong.
        if columns.features.is_empty() && columns.texts.is_empty() {
            return Err(DataError::NoFeatures { path: self.path.to_owned(), columns: columns.count });
        }
        self.rows += 1;
        Ok(())
    }

    /// Reserves memory for a row and checks the number of values.
    fn reserve_row(&mut self, record: &ByteRecord, line: u64) -> Result<(), DataError> {
        let Some(columns) = &self.columns else { return Ok(()) };
        let (features, answered) = (columns.features.len(), columns.answers.len());
        let (values, numbers) = match &self.answers {
            Answers::Labels(_) => (self.values.len(), features),
            Answers::Targets { values, .. } => (self.values.len() + values.len(), features + answered),
        };
        let text_of = |&index: &usize| (size_of::<String>() + record[index].len()).div_ceil(size_of::<f32>());
        self.text_values += columns.texts.iter().map(text_of).sum::<usize>();
        if values.saturating_add(numbers).saturating_add(self.text_values) > self.options.max_values {
            return Err(self.too_large(line, "numbers", self.options.max_values));
        }
        let reserved = reserve(&mut self.values, features).and_then(|()| match &mut self.answers {
            Answers::Labels(labels) => reserve(labels, 1),
            Answers::Targets { values, width } => reserve(values, *width),
        });
        let reserved =
            reserved.and_then(|()| self.texts.iter_mut().try_for_each(|column| reserve(&mut column.rows, 1)));
        reserved.map_err(|_| self.no_memory(line))
    }

    /// Returns the data set. `line` is the last line.
    pub(super) fn finish(mut self, line: u64) -> Result<ArrayDataset, DataError> {
        let columns = self.columns.take().filter(|_| self.rows > 0);
        let mut columns = columns.ok_or_else(|| DataError::Empty { path: self.path.to_owned() })?;
        let mut class_names = Vec::new();
        if let (Some(classes), Answers::Labels(labels)) = (columns.classes.take(), &mut self.answers) {
            let ranks;
            (class_names, ranks) = classes.sorted();
            for label in labels {
                let rank = usize::try_from(*label).ok().and_then(|number| ranks.get(number));
                *label = rank.map_or(*label, |&rank| i64::from(rank));
            }
        }
        let means = self.means(&columns)?;
        let (mut coded, mut encodings, mut width) = (Vec::new(), Vec::new(), 0_usize);
        for (feature, mean) in std::mem::take(&mut columns.features).into_iter().zip(means) {
            let name = columns.name(feature.index).to_owned();
            let (categories, places) = feature.categories.map(|categories| categories.sorted()).unzip();
            width = width.saturating_add(categories.as_ref().map_or(1, Vec::len));
            let fill = match self.options.missing {
                Missing::Constant(value) => value,
                Missing::Error | Missing::Mean => mean.unwrap_or(0.0),
            };
            coded.push(Coded { places, fill });
            encodings.push(FeatureEncoding { name, categories, mean });
        }
        self.encode(&coded, width, line)?;
        let shape = Shape::new(&[width]).map_err(|_| self.no_memory(line))?;
        let data = ArrayDataset::from_rows(self.values, self.answers, self.rows, shape);
        Ok(data.with_table(Encoding::new(encodings, class_names), self.texts))
    }

    /// Returns the mean of each column of numbers, if missing values are filled with it.
    fn means(&self, columns: &Columns) -> Result<Vec<Option<f32>>, DataError> {
        let features = &columns.features;
        if self.options.missing != Missing::Mean {
            return Ok(features.iter().map(|feature| feature.mean).collect());
        }
        let mut sums = vec![(0.0_f64, 0_usize); features.len()];
        for row in self.values.chunks_exact(features.len().max(1)) {
            for ((sum, count), &value) in sums.iter_mut().zip(row).filter(|(_, value)| !value.is_nan()) {
                *sum += f64::from(value);
                *count += 1;
            }
        }
        let mean =
            |(feature, (sum, count)): (&super::columns::Feature, (f64, usize))| match (feature.mean, count) {
                _ if feature.categories.is_some() => Ok(None),
                (Some(mean), _) => Ok(Some(mean)),
                (None, 0) => Err(DataError::NoMean {
                    path: self.path.to_owned(),
                    column: feature.index + 1,
                    name: columns.name(feature.index).to_owned(),
                }),
                (None, _) => Ok(Some((sum / count as f64) as f32)),
            };
        features.iter().zip(sums).map(mean).collect()
    }

    /// Fills missing values and replaces one-hot columns by a feature for each category.
    fn encode(&mut self, columns: &[Coded], width: usize, line: u64) -> Result<(), DataError> {
        if columns.iter().all(|column| column.places.is_none()) {
            for row in self.values.chunks_exact_mut(columns.len().max(1)) {
                for (value, column) in row.iter_mut().zip(columns).filter(|(value, _)| value.is_nan()) {
                    *value = column.fill;
                }
            }
            return Ok(());
        }
        let total = self.rows.saturating_mul(width);
        if total.saturating_add(self.text_values) > self.options.max_values {
            return Err(self.too_large(line, "numbers", self.options.max_values));
        }
        let mut encoded: Vec<f32> = Vec::new();
        encoded.try_reserve_exact(total).map_err(|_| self.no_memory(line))?;
        for row in self.values.chunks_exact(columns.len().max(1)) {
            for (&value, column) in row.iter().zip(columns) {
                let Some(places) = &column.places else {
                    encoded.push(if value.is_nan() { column.fill } else { value });
                    continue;
                };
                let first = encoded.len();
                encoded.resize(first + places.len(), 0.0);
                // Missing categories have no place.
                let place = if value.is_nan() { None } else { places.get(value as usize) };
                if let Some(feature) = place.and_then(|&place| encoded.get_mut(first + place as usize)) {
                    *feature = 1.0;
                }
            }
        }
        self.values = encoded;
        Ok(())
    }

    fn too_large(&self, line: u64, what: &'static str, limit: usize) -> DataError {
        DataError::TooLarge { path: self.path.to_owned(), line, what, limit }
    }

    fn no_memory(&self, line: u64) -> DataError {
        DataError::NoMemory { path: self.path.to_owned(), line }
    }
}

/// Reserves capacity for `more` values plus half of that, so a table is never much larger than its text.
fn reserve<T>(values: &mut Vec<T>, more: usize) -> Result<(), TryReserveError> {
    if values.capacity() - values.len() >= more {
        return Ok(());
    }
    values.try_reserve_exact(more.max(values.len() / 2))
}

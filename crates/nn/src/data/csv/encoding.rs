//! How the text of a table becomes numbers: classes, one-hot categories and means.

use std::cmp::Ordering;
use std::collections::HashMap;
use std::sync::Arc;

/// The classes, categories and column means of a data set that [`read_csv`](crate::data::read_csv) returned. Reading
/// another file with them ([`CsvOptions::with_encoding_of`](crate::data::CsvOptions::with_encoding_of)) gives the same
/// numbers to the same text.
#[derive(Clone, Debug, PartialEq)]
pub struct Encoding(Arc<Contents>);

#[derive(Debug, PartialEq)]
struct Contents {
    features: Vec<FeatureEncoding>,
    class_names: Vec<String>,
}

/// The encoding of a feature column.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct FeatureEncoding {
    /// The name of the column; empty without a header.
    pub(super) name: String,
    /// The categories of a one-hot column.
    pub(super) categories: Option<Vec<String>>,
    /// The mean of a column of numbers, if missing values are filled with it.
    pub(super) mean: Option<f32>,
}

impl Encoding {
    pub(super) fn new(features: Vec<FeatureEncoding>, class_names: Vec<String>) -> Self {
        Self(Arc::new(Contents { features, class_names }))
    }

    /// Returns the names of the classes, in the order of the labels.
    #[must_use]
    pub fn class_names(&self) -> &[String] {
        &self.0.class_names
    }

    /// Returns a name for each feature of a row: the name of its column; for a one-hot column, `column=category`.
    /// Columns without a name have their number among the features, from 0.
    ///
    /// ```
    /// use highwater::data::{CsvOptions, LabelColumn, read_csv_from};
    /// let text = "color,width\nred,1\nblue,2\n";
    /// let options = CsvOptions::default().with_one_hot(["color"]).with_label(LabelColumn::None);
    /// let data = read_csv_from(text.as_bytes(), "leaves.csv", &options)?;
    /// assert_eq!(data.encoding().unwrap().feature_names(), ["color=blue", "color=red", "width"]);
    /// assert_eq!(data.features(), [0.0, 1.0, 1.0, 1.0, 0.0, 2.0]);
    /// # Ok::<(), highwater::data::DataError>(())
    /// ```
    #[must_use]
    pub fn feature_names(&self) -> Vec<String> {
        let mut names = Vec::new();
        for (number, feature) in self.0.features.iter().enumerate() {
            let name = if feature.name.is_empty() { number.to_string() } else { feature.name.clone() };
            match &feature.categories {
                Some(categories) => {
                    names.extend(categories.iter().map(|category| format!("{name}={category}")))
                }
                None => names.push(name),
            }
        }
        names
    }

    pub(super) fn features(&self) -> &[FeatureEncoding] {
        &self.0.features
    }

    /// Whether the columns have names.
    pub(super) fn is_named(&self) -> bool {
        self.0.features.iter().any(|feature| !feature.name.is_empty())
    }
}

/// The names in a column, with the number of each name in the order of their first occurrence.
#[derive(Debug, Default)]
pub(super) struct Categories {
    numbers: HashMap<String, u32>,
    /// Whether no names may be added, because the options fix them.
    is_fixed: bool,
}

/// A name that a column may not have.
#[derive(Debug)]
pub(super) enum Refused {
    Unknown,
    TooMany,
}

impl Categories {
    /// Fixes the names and their numbers.
    pub(super) fn fixed(names: &[String]) -> Self {
        let mut numbers = HashMap::new();
        for name in names {
            // A repeated name keeps its first number.
            let number = numbers.len() as u32;
            numbers.entry(name.clone()).or_insert(number);
        }
        Self { numbers, is_fixed: true }
    }

    /// Returns the number of a name; adds a new name if there are fewer than `limit`.
    pub(super) fn number(&mut self, name: &str, limit: usize) -> Result<u32, Refused> {
        if let Some(&number) = self.numbers.get(name) {
            return Ok(number);
        }
        if self.is_fixed {
            return Err(Refused::Unknown);
        }
        let number = self.numbers.len();
        if number >= limit {
            return Err(Refused::TooMany);
        }
        let number = u32::try_from(number).map_err(|_| Refused::TooMany)?;
        self.numbers.insert(name.to_owned(), number);
        Ok(number)
    }

    /// Returns the first names, for an error.
    pub(super) fn shown(&self) -> String {
        let mut names: Vec<_> = self.numbers.iter().map(|(name, &number)| (number, name.as_str())).collect();
        names.sort_unstable();
        list(names.into_iter().map(|(_, name)| name))
    }

    /// Returns the names in their final order, and the final number of each number. Names of whole numbers are sorted
    /// by value, before all other names. Fixed names keep their order.
    pub(super) fn sorted(self) -> (Vec<String>, Vec<u32>) {
        let (count, is_fixed) = (self.numbers.len(), self.is_fixed);
        let mut names: Vec<(String, u32)> = self.numbers.into_iter().collect();
        if is_fixed {
            names.sort_unstable_by_key(|(_, number)| *number);
        } else {
            names.sort_unstable_by(|(one, _), (other, _)| compare(one, other));
        }
        let mut ranks = vec![0; count];
        for (rank, (_, number)) in (0..).zip(&names) {
            if let Some(place) = ranks.get_mut(*number as usize) {
                *place = rank;
            }
        }
        (names.into_iter().map(|(name, _)| name).collect(), ranks)
    }
}

fn compare(one: &str, other: &str) -> Ordering {
    match (one.parse::<i64>(), other.parse::<i64>()) {
        (Ok(a), Ok(b)) => a.cmp(&b).then_with(|| one.cmp(other)),
        (Ok(_), Err(_)) => Ordering::Less,
        (Err(_), Ok(_)) => Ordering::Greater,
        (Err(_), Err(_)) => one.cmp(other),
    }
}

/// Lists the first names.
pub(crate) fn list<'a>(names: impl Iterator<Item = &'a str>) -> String {
    const SHOWN: usize = 10;
    const LONGEST: usize = 40;
    let mut names = names.map(|name| name.chars().take(LONGEST).collect::<String>());
    let mut list = names.by_ref().take(SHOWN).collect::<Vec<_>>().join(", ");
    if names.next().is_some() {
        list.push_str(", …");
    }
    list
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_sorted_by_value_before_names() {
        let mut categories = Categories::default();
        for name in ["b", "10", "9", "a", "-1", "09", "b"] {
            categories.number(name, 6).unwrap();
        }
        assert!(matches!(categories.number("c", 6), Err(Refused::TooMany)));
        let (names, ranks) = categories.sorted();
        assert_eq!(names, ["-1", "09", "9", "10", "a", "b"]);
        assert_eq!(ranks, [5, 3, 2, 4, 0, 1]);
    }

    #[test]
    fn fixed_names_keep_their_order_and_accept_no_others() {
        let mut categories = Categories::fixed(&["z".to_owned(), "a".to_owned()]);
        assert_eq!(categories.number("a", 0).unwrap(), 1);
        assert!(matches!(categories.number("b", 9), Err(Refused::Unknown)));
        assert_eq!(categories.shown(), "z, a");
        assert_eq!(categories.sorted(), (vec!["z".to_owned(), "a".to_owned()], vec![0, 1]));
    }
}

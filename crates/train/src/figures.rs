//! Named values of steps and evaluations.

use std::fmt;

use bfc_core::printable;

/// Named values, in order: those of a step, or the results of an evaluation. A value is `None` on a dry device.
///
/// ```
/// use highwater::train::Figures;
/// let figures = Figures::from([("accuracy", 0.75), ("loss", 0.5)]).with("f1", None);
/// assert_eq!(figures.get("accuracy"), Some(0.75));
/// assert_eq!(figures.get("f1"), None);
/// assert_eq!(figures.to_string(), "accuracy 0.7500, loss 0.5000");
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Figures(Vec<(String, Option<f64>)>);

impl Figures {
    /// Adds a value, or replaces the value of this name.
    #[must_use]
    pub fn with(mut self, name: impl Into<String>, value: impl Into<Option<f64>>) -> Self {
        self.set(name, value);
        self
    }

    /// Adds a value, or replaces the value of this name.
    pub fn set(&mut self, name: impl Into<String>, value: impl Into<Option<f64>>) {
        let (name, value) = (name.into(), value.into());
        match self.0.iter_mut().find(|(known, _)| *known == name) {
            Some((_, known)) => *known = value,
            None => self.0.push((name, value)),
        }
    }

    /// Returns the value of this name, if it is known.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<f64> {
        self.iter().find(|(known, _)| *known == name)?.1
    }

    /// Returns whether there is a value of this name, known or not.
    #[must_use]
    pub fn contains(&self, name: &str) -> bool {
        self.iter().any(|(known, _)| known == name)
    }

    /// Returns the names and values, in order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, Option<f64>)> {
        self.0.iter().map(|(name, value)| (name.as_str(), *value))
    }

    /// Returns whether there are no values.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds the values of `other`, which replace those of the same name.
    pub(crate) fn extend(&mut self, other: &Self) {
        other.iter().for_each(|(name, value)| self.set(name, value));
    }
}

/// Shows the known values: `accuracy 0.7500, loss 0.5000`.
impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let known = self.iter().filter_map(|(name, value)| Some((name, value?)));
        for (at, (name, value)) in known.enumerate() {
            write!(f, "{}{} {value:.4}", if at > 0 { ", " } else { "" }, printable(name))?;
        }
        Ok(())
    }
}

impl<N: Into<String>, V: Into<Option<f64>>, const COUNT: usize> From<[(N, V); COUNT]> for Figures {
    fn from(figures: [(N, V); COUNT]) -> Self {
        figures.into_iter().collect()
    }
}

impl<N: Into<String>, V: Into<Option<f64>>> FromIterator<(N, V)> for Figures {
    fn from_iter<I: IntoIterator<Item = (N, V)>>(figures: I) -> Self {
        figures.into_iter().fold(Self::default(), |all, (name, value)| all.with(name, value))
    }
}

//! What does not fit when arrays are put into places that were made for others.

use std::collections::BTreeMap;
use std::fmt;

use super::array::Arrays;
use super::skipped::Skipped;
use crate::dtype::DType;
use crate::shape::Shape;

/// What else than an optimiser's state may not fit.
pub(super) const PARAMETERS: &str = "parameters";
/// Likewise.
pub(super) const RNGS: &str = "sources of randomness";

/// How many names of a kind a message lists.
const LISTED: usize = 8;

/// The arrays that were given are not those that were expected. Nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mismatch {
    /// What was to be loaded: "parameters", "sources of randomness", or the optimiser's name.
    pub what: &'static str,
    /// Names that are expected and not there.
    pub missing: Vec<String>,
    /// Names that are there and not expected.
    pub unexpected: Vec<String>,
    /// Those that are there with another shape or element type.
    pub different: Vec<Difference>,
    /// Members of the file that could not be read, of which some may be the missing ones.
    pub skipped: Vec<Skipped>,
}

/// An array of another shape or element type than its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// Its name.
    pub name: String,
    /// Element type and shape of the place.
    pub expected: (DType, Shape),
    /// Element type and shape of what was given.
    pub found: (DType, Shape),
}

impl Mismatch {
    /// Compares all names, element types and shapes.
    pub(crate) fn check(
        what: &'static str,
        expected: &BTreeMap<String, (DType, Shape)>,
        found: &Arrays,
    ) -> Result<(), Box<Self>> {
        Self::between(what, expected, found).none()
    }

    /// All that does not fit.
    pub(super) fn between(
        what: &'static str,
        expected: &BTreeMap<String, (DType, Shape)>,
        found: &Arrays,
    ) -> Self {
        let mut mismatch = Self::of_names(what, expected, found);
        for (name, &expected) in expected {
            let Some(array) = found.get(name) else { continue };
            let found = (array.dtype(), *array.shape());
            if found != expected {
                mismatch.different.push(Difference { name: name.clone(), expected, found });
            }
        }
        mismatch
    }

    /// Compares names alone.
    pub(super) fn check_names<E, F>(
        what: &'static str,
        expected: &BTreeMap<String, E>,
        found: &BTreeMap<String, F>,
    ) -> Result<(), Box<Self>> {
        Self::of_names(what, expected, found).none()
    }

    fn of_names<E, F>(
        what: &'static str,
        expected: &BTreeMap<String, E>,
        found: &BTreeMap<String, F>,
    ) -> Self {
        let missing = expected.keys().filter(|name| !found.contains_key(*name)).cloned().collect();
        let unexpected = found.keys().filter(|name| !expected.contains_key(*name)).cloned().collect();
        Self { what, missing, unexpected, different: Vec::new(), skipped: Vec::new() }
    }

    /// Whether all fits.
    fn none(self) -> Result<(), Box<Self>> {
        if self.missing.is_empty() && self.unexpected.is_empty() && self.different.is_empty() {
            return Ok(());
        }
        Err(Box::new(self))
    }
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.what {
            PARAMETERS | RNGS => write!(f, "load: these are not the {} expected", self.what)?,
            optimizer => write!(f, "load: this is not the state of {optimizer} for these parameters")?,
        }
        list(f, "missing", &self.missing)?;
        list(f, "unexpected", &self.unexpected)?;
        let different: Vec<String> = self
            .different
            .iter()
            .map(|Difference { name, expected, found }| {
                format!("{name} is {} {}, should be {} {}", found.0, found.1, expected.0, expected.1)
            })
            .collect();
        list(f, "different", &different)?;
        if self.missing.is_empty() {
            return Ok(());
        }
        let skipped: Vec<String> =
            self.skipped.iter().map(|Skipped { name, class, .. }| format!("{name} ({class})")).collect();
        list(f, "skipped in the file", &skipped)
    }
}

fn list(f: &mut fmt::Formatter<'_>, kind: &str, names: &[String]) -> fmt::Result {
    if names.is_empty() {
        return Ok(());
    }
    write!(f, "; {kind}: {}", names[..names.len().min(LISTED)].join(", "))?;
    match names.len().checked_sub(LISTED) {
        Some(more @ 1..) => write!(f, " and {more} more"),
        _ => Ok(()),
    }
}

impl std::error::Error for Mismatch {}

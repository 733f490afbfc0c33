//! The comparison of arrays with the places that they are loaded into.

use std::collections::BTreeMap;

use super::array::Arrays;
use crate::error::{Difference, Mismatch};
use crate::shape::{DType, Shape};

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
    pub(crate) fn between(
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
    pub(crate) fn check_names<E, F>(
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

//! Comparison of loaded arrays with the parameters of a module or optimizer.

use std::collections::BTreeMap;

use highwater_tensor::{
    DType, Shape,
    error::{Difference, Mismatch},
};

use super::array::Arrays;

/// Compares all names, element types and shapes.
pub(crate) fn check(
    what: &'static str,
    expected: &BTreeMap<String, (DType, Shape)>,
    found: &Arrays,
) -> Result<(), Box<Mismatch>> {
    none(between(what, expected, found))
}

/// Returns all differences.
pub(crate) fn between(
    what: &'static str,
    expected: &BTreeMap<String, (DType, Shape)>,
    found: &Arrays,
) -> Mismatch {
    let mut mismatch = of_names(what, expected, found);
    for (name, &expected) in expected {
        let Some(array) = found.get(name) else { continue };
        let found = (array.dtype(), *array.shape());
        if found != expected {
            mismatch.different.push(Difference { name: name.clone(), expected, found });
        }
    }
    mismatch
}

/// Compares only the names.
pub(crate) fn check_names<E, F>(
    what: &'static str,
    expected: &BTreeMap<String, E>,
    found: &BTreeMap<String, F>,
) -> Result<(), Box<Mismatch>> {
    none(of_names(what, expected, found))
}

fn of_names<E, F>(
    what: &'static str,
    expected: &BTreeMap<String, E>,
    found: &BTreeMap<String, F>,
) -> Mismatch {
    let missing = expected.keys().filter(|name| !found.contains_key(*name)).cloned().collect();
    let unexpected = found.keys().filter(|name| !expected.contains_key(*name)).cloned().collect();
    Mismatch { what, missing, unexpected, different: Vec::new(), skipped: Vec::new() }
}

/// Fails if there is a difference.
fn none(mismatch: Mismatch) -> Result<(), Box<Mismatch>> {
    if mismatch.missing.is_empty() && mismatch.unexpected.is_empty() && mismatch.different.is_empty() {
        return Ok(());
    }
    Err(Box::new(mismatch))
}

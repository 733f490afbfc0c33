//! Arrays that do not match the parameters or states to load.

use std::fmt;

use crate::shape::{DType, Shape};
use bfc_core::printable;

/// The most names of each kind that an error message lists.
const LISTED: usize = 8;

/// The given arrays differ from the expected arrays. Loading changed nothing.
#[derive(Clone, PartialEq, Eq)]
pub struct Mismatch {
    /// The kind of the loaded arrays: "parameters", "sources of randomness", or the optimizer's name.
    pub what: &'static str,
    /// Expected names without an array.
    pub missing: Vec<String>,
    /// Names of arrays that are not expected.
    pub unexpected: Vec<String>,
    /// Arrays of another shape or element type than expected.
    pub different: Vec<Difference>,
    /// Members of the file that are unreadable. The missing arrays may be among them.
    pub skipped: Vec<Skipped>,
}

/// An array of another shape or element type than expected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// Its name.
    pub name: String,
    /// The expected element type and shape.
    pub expected: (DType, Shape),
    /// The element type and shape of the given array.
    pub found: (DType, Shape),
}

/// A member of a file that is not a readable array: another object, or an unsupported element type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Skipped {
    /// Its name in the file.
    pub name: String,
    /// The class or element type as the file names it: `argparse.Namespace`, `|O`.
    pub class: String,
    /// The reason for skipping it.
    pub reason: String,
}

impl fmt::Display for Skipped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", printable(format_args!("{} ({}): {}", self.name, self.class, self.reason)))
    }
}

impl Mismatch {
    /// The value of [`what`](Self::what) for the parameters of a module.
    pub const PARAMETERS: &str = "parameters";

    /// The value of [`what`](Self::what) for the random number generators of a module.
    pub const RNGS: &str = "sources of randomness";
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.what {
            Self::PARAMETERS | Self::RNGS => {
                write!(f, "load: the file does not match the expected {}", self.what)?
            }
            optimizer => {
                write!(f, "load: the file does not match the state of {optimizer} for these parameters")?
            }
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

/// Writes the first names after their kind, unless there are none.
pub(super) fn list(f: &mut fmt::Formatter<'_>, kind: &str, names: &[String]) -> fmt::Result {
    if names.is_empty() {
        return Ok(());
    }
    write!(f, "; {kind}: {}", printable(names[..names.len().min(LISTED)].join(", ")))?;
    match names.len().checked_sub(LISTED) {
        Some(more @ 1..) => write!(f, " and {more} more"),
        _ => Ok(()),
    }
}

bfc_core::debug_as_message!(Mismatch);

impl std::error::Error for Mismatch {}

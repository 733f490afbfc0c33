//! What does not fit when arrays are put into places that were made for others.

use std::fmt;

use crate::shape::{DType, Shape};

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

/// A member of a file that cannot be read as an array: another object, or an element type that tensors do not have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Skipped {
    /// Its name in the file.
    pub name: String,
    /// Its class or element type, as the program that wrote the file names it: `argparse.Namespace`, `|O`.
    pub class: String,
    /// Why it was skipped.
    pub reason: String,
}

impl fmt::Display for Skipped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}): {}", self.name, self.class, self.reason)
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
            Self::PARAMETERS | Self::RNGS => write!(f, "load: these are not the {} expected", self.what)?,
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

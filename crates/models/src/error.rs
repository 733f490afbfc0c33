//! Errors of configurations and weights.

use std::fmt;
use std::path::PathBuf;

use bfc_core::printable;
use highwater_tensor::{Error, Shape};

/// The name and the shape of a tensor of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TensorShape {
    /// The name, as in files of Hugging Face.
    pub name: String,
    /// The shape.
    pub shape: Shape,
}

impl fmt::Display for TensorShape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", printable(&self.name), self.shape)
    }
}

/// A model that cannot be created.
#[derive(Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ModelError {
    /// The configuration is not valid JSON.
    #[error("the configuration is no valid JSON: {}", printable(reason))]
    Json {
        /// The problem and its position.
        reason: String,
    },
    /// No model of this crate has this architecture.
    #[error("unknown architecture {}; supported are {supported}", printable(found))]
    UnknownArchitecture {
        /// The architecture that the file names.
        found: String,
        /// The supported architectures.
        supported: &'static str,
    },
    /// The configuration lacks a required field.
    #[error("the configuration has no field `{field}`", field = printable(field))]
    MissingField {
        /// The field.
        field: String,
    },
    /// A field of the configuration has an invalid value.
    #[error(
        "the field `{field}` of the configuration must be {expected}, got {got}",
        field = printable(field),
        got = printable(got)
    )]
    BadField {
        /// The field.
        field: String,
        /// The valid values.
        expected: &'static str,
        /// The given value.
        got: String,
    },
    /// The configuration asks for an option that this crate does not support.
    #[error(
        "the option `{option}` = {got} is not supported; supported is {supported}",
        option = printable(option),
        got = printable(got)
    )]
    Unsupported {
        /// The field of the configuration.
        option: String,
        /// Its value.
        got: String,
        /// The supported values.
        supported: &'static str,
    },
    /// The tensors of a file do not match the configuration.
    #[error(transparent)]
    Tensors(Box<TensorMismatch>),
    /// An error of a tensor op or of a file.
    #[error(transparent)]
    Tensor(#[from] Error),
}

bfc_core::debug_as_message!(ModelError);

impl From<ModelError> for Error {
    fn from(error: ModelError) -> Self {
        match error {
            ModelError::Tensor(error) => error,
            other => Self::Custom { op: "model", message: other.to_string() },
        }
    }
}

/// The differences between the tensors of a file and those of a model.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct TensorMismatch {
    /// The file.
    pub path: PathBuf,
    /// The tensors that the file lacks, with the shapes that the model needs.
    pub missing: Vec<TensorShape>,
    /// The tensors of another shape: as the model needs them, with the shape in the file.
    pub mismatched: Vec<(TensorShape, Shape)>,
    /// The tensors whose element type or quantization is not supported, with the reason.
    pub unsupported: Vec<(String, String)>,
    /// The tensors that the model does not have.
    pub unexpected: Vec<String>,
}

/// The largest number of names that the message contains for each kind of difference.
const SHOWN: usize = 4;

impl fmt::Display for TensorMismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { path, missing, mismatched, unsupported, unexpected } = self;
        write!(f, "{}: the tensors do not match the model", printable(path.display()))?;
        list(f, "missing", missing, |tensor| tensor.to_string())?;
        list(f, "of another shape", mismatched, |(tensor, found)| {
            format!("{tensor} is {found} in the file")
        })?;
        list(f, "of an unsupported type", unsupported, |(name, reason)| format!("{name} ({reason})"))?;
        list(f, "unexpected", unexpected, Clone::clone)
    }
}

fn list<T>(f: &mut fmt::Formatter<'_>, what: &str, all: &[T], text: impl Fn(&T) -> String) -> fmt::Result {
    if all.is_empty() {
        return Ok(());
    }
    let shown: Vec<String> = all.iter().take(SHOWN).map(text).collect();
    let rest = match all.len().saturating_sub(SHOWN) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    write!(f, "; {} {what}: {}{rest}", all.len(), printable(shown.join(", ")))
}

impl std::error::Error for TensorMismatch {}

impl From<TensorMismatch> for ModelError {
    fn from(mismatch: TensorMismatch) -> Self {
        Self::Tensors(Box::new(mismatch))
    }
}

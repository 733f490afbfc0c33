//! Errors of adapters.

use std::fmt;
use std::path::PathBuf;

use bfc_core::printable;
use highwater_tensor::error::FileError;
use highwater_tensor::{DType, Error, Shape};

/// Adapters that cannot be attached, merged, saved or loaded.
#[derive(Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum LoraError {
    /// An option is out of range.
    #[error("lora: `{option}` must be {expected}, got {got}", got = printable(got))]
    BadOption {
        /// The field of [`Lora`](super::Lora).
        option: &'static str,
        /// The valid values.
        expected: &'static str,
        /// The given value.
        got: String,
    },
    /// A pattern matches no linear layer.
    #[error(
        "lora: the pattern `{pattern}` matches no linear layer; the model has {}",
        Names(layers, "no linear layers"),
        pattern = printable(pattern)
    )]
    NoMatch {
        /// The pattern.
        pattern: String,
        /// The paths of the linear layers, with `*` for numbers.
        layers: Vec<String>,
    },
    /// A layer already has an adapter.
    #[error("lora: {} already has an adapter; detach it first", printable(layer))]
    AlreadyAttached {
        /// The path of the layer.
        layer: String,
    },
    /// The adapter cannot be merged into a quantized weight.
    #[error(
        "lora: the weight of {} is quantized and cannot change; load dense weights to merge adapters",
        printable(layer)
    )]
    Quantized {
        /// The path of the layer.
        layer: String,
    },
    /// The adapter cannot be merged into a weight that other layers use without the adapter.
    #[error("lora: other layers use the weight of {}; merging would change them too", printable(layer))]
    SharedWeight {
        /// The path of the layer.
        layer: String,
    },
    /// The adapters are merged into the weights, so they cannot be replaced.
    #[error("lora: the adapters are merged into the weights; call `unmerge` before `load`")]
    Merged,
    /// The configuration of a folder is not valid JSON.
    #[error("{}: no valid JSON: {}", printable(path.display()), printable(reason))]
    Json {
        /// The file.
        path: PathBuf,
        /// The problem and its position.
        reason: String,
    },
    /// A field of the configuration is missing or invalid.
    #[error(
        "{}: the field `{field}` must be {expected}, got {got}",
        printable(path.display()),
        got = printable(got)
    )]
    BadField {
        /// The file.
        path: PathBuf,
        /// The field.
        field: &'static str,
        /// The valid values.
        expected: &'static str,
        /// The value in the file.
        got: String,
    },
    /// The configuration has an option that this library does not support.
    #[error(
        "{}: the option `{option}` = {got} is not supported; supported is {supported}",
        printable(path.display()),
        option = printable(option),
        got = printable(got)
    )]
    Unsupported {
        /// The file.
        path: PathBuf,
        /// The option.
        option: String,
        /// Its value.
        got: String,
        /// The supported values.
        supported: &'static str,
    },
    /// The adapters in a folder differ from the attached ones in an option: the rank, alpha, the scale or the base model.
    #[error(
        "{}: the option `{option}` is {found}, but the attached adapters have {expected}",
        printable(path.display()),
        found = printable(found),
        expected = printable(expected)
    )]
    OtherOption {
        /// The file.
        path: PathBuf,
        /// The option, by its name in the file.
        option: &'static str,
        /// The value of the attached adapters.
        expected: String,
        /// The value in the file.
        found: String,
    },
    /// The tensors of a folder are not those of the adapters.
    #[error(
        "{}: the tensors do not match the adapters; missing: {}; of no adapted linear layer: {}",
        printable(path.display()),
        Names(missing, "none"),
        Names(unexpected, "none")
    )]
    Tensors {
        /// The file.
        path: PathBuf,
        /// The tensors that the file lacks.
        missing: Vec<String>,
        /// The tensors whose names match no adapter, or no linear layer of the model.
        unexpected: Vec<String>,
    },
    /// A tensor of a folder has another shape than the layer requires.
    #[error(
        "{}: {} has the shape {found}, but the layer requires {expected}",
        printable(path.display()),
        printable(tensor)
    )]
    Shape {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// The required shape.
        expected: Shape,
        /// The shape in the file.
        found: Shape,
    },
    /// A tensor of a folder does not contain floats.
    #[error("{}: {} has the element type {found}, but adapters consist of floats", printable(path.display()), printable(tensor))]
    ElementType {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// The element type in the file.
        found: DType,
    },
    /// An error of a tensor op or of a file.
    #[error(transparent)]
    Tensor(#[from] Error),
}

bfc_core::debug_as_message!(LoraError);

impl From<FileError> for LoraError {
    fn from(error: FileError) -> Self {
        Self::Tensor(error.into())
    }
}

impl From<LoraError> for Error {
    fn from(error: LoraError) -> Self {
        match error {
            LoraError::Tensor(error) => error,
            other => Self::Custom { op: "lora", message: other.to_string() },
        }
    }
}

/// The largest number of names that a message contains.
const SHOWN: usize = 8;

/// A shortened list of names, or a text for none.
struct Names<'a>(&'a [String], &'static str);

impl fmt::Display for Names<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(names, none) = *self;
        if names.is_empty() {
            return f.write_str(none);
        }
        for (number, name) in names.iter().take(SHOWN).enumerate() {
            write!(f, "{}{}", if number > 0 { ", " } else { "" }, printable(name))?;
        }
        match names.len().saturating_sub(SHOWN) {
            0 => Ok(()),
            more => write!(f, " and {more} more"),
        }
    }
}

//! The fields of a configuration file, with errors that name them.

use std::fmt;

use serde_json::{Map, Value};

use crate::error::ModelError;

/// The largest size that a configuration may name. Larger ones are damaged files.
const MAX_SIZE: u64 = 1 << 31;

/// The largest number of layers.
const MAX_LAYERS: u64 = 4096;

pub(crate) fn unknown(found: &str, supported: &'static str) -> ModelError {
    ModelError::UnknownArchitecture { found: found.to_owned(), supported }
}

/// The fields of a JSON object, with the path of the object for errors.
#[derive(Debug)]
pub(crate) struct Fields {
    fields: Map<String, Value>,
    prefix: String,
}

impl Fields {
    pub(crate) fn parse(text: &str) -> Result<Self, ModelError> {
        let value: Value =
            serde_json::from_str(text).map_err(|error| ModelError::Json { reason: error.to_string() })?;
        match value {
            Value::Object(fields) => Ok(Self { fields, prefix: String::new() }),
            other => Err(ModelError::Json { reason: format!("expected an object, got {}", kind(&other)) }),
        }
    }

    /// Reads the text of a configuration of one architecture.
    pub(crate) fn of(text: &str, architecture: &'static str) -> Result<Self, ModelError> {
        let fields = Self::parse(text)?;
        match fields.architecture()? {
            found if found == architecture => Ok(fields),
            other => Err(unknown(other, architecture)),
        }
    }

    pub(crate) fn architecture(&self) -> Result<&str, ModelError> {
        self.text("model_type")?.ok_or_else(|| self.missing("model_type"))
    }

    fn name(&self, field: &str) -> String {
        format!("{}{field}", self.prefix)
    }

    fn missing(&self, field: &str) -> ModelError {
        ModelError::MissingField { field: self.name(field) }
    }

    fn bad(&self, field: &str, expected: &'static str, got: impl fmt::Display) -> ModelError {
        ModelError::BadField { field: self.name(field), expected, got: got.to_string() }
    }

    /// Returns a value; `None` if it is absent or null.
    pub(crate) fn get(&self, field: &str) -> Option<&Value> {
        self.fields.get(field).filter(|value| !value.is_null())
    }

    pub(crate) fn text(&self, field: &str) -> Result<Option<&str>, ModelError> {
        self.get(field)
            .map(|value| value.as_str().ok_or_else(|| self.bad(field, "a text", kind(value))))
            .transpose()
    }

    pub(crate) fn flag(&self, field: &str, otherwise: bool) -> Result<bool, ModelError> {
        let flag = self
            .get(field)
            .map(|value| value.as_bool().ok_or_else(|| self.bad(field, "true or false", value)));
        Ok(flag.transpose()?.unwrap_or(otherwise))
    }

    pub(crate) fn object(&self, field: &str) -> Result<Option<Self>, ModelError> {
        let Some(value) = self.get(field) else { return Ok(None) };
        match value {
            Value::Object(fields) => {
                Ok(Some(Self { fields: fields.clone(), prefix: format!("{}.", self.name(field)) }))
            }
            other => Err(self.bad(field, "an object", kind(other))),
        }
    }

    /// Returns a size of at least 1; `None` if it is absent.
    pub(crate) fn optional_size(&self, field: &str) -> Result<Option<usize>, ModelError> {
        self.limited(field, MAX_SIZE, "a number from 1 to 2^31")
    }

    pub(crate) fn size(&self, field: &str) -> Result<usize, ModelError> {
        self.optional_size(field)?.ok_or_else(|| self.missing(field))
    }

    pub(crate) fn layers(&self, field: &str) -> Result<usize, ModelError> {
        let layers = self.limited(field, MAX_LAYERS, "a number from 1 to 4096")?;
        layers.ok_or_else(|| self.missing(field))
    }

    fn limited(&self, field: &str, most: u64, expected: &'static str) -> Result<Option<usize>, ModelError> {
        let Some(value) = self.get(field) else { return Ok(None) };
        let size = value.as_u64().filter(|size| (1..=most).contains(size));
        let size = size.and_then(|size| usize::try_from(size).ok());
        Ok(Some(size.ok_or_else(|| self.bad(field, expected, value))?))
    }

    /// Returns a number that is finite and above 0; `None` if it is absent.
    pub(crate) fn optional_number(&self, field: &str) -> Result<Option<f64>, ModelError> {
        let Some(value) = self.get(field) else { return Ok(None) };
        let number = value.as_f64().filter(|number| number.is_finite() && *number > 0.0);
        Ok(Some(number.ok_or_else(|| self.bad(field, "a number above 0", value))?))
    }

    pub(crate) fn number(&self, field: &str) -> Result<f64, ModelError> {
        self.optional_number(field)?.ok_or_else(|| self.missing(field))
    }

    /// Returns token ids: none, one, or a list.
    pub(crate) fn tokens(&self, field: &str) -> Result<Vec<u32>, ModelError> {
        let Some(value) = self.get(field) else { return Ok(Vec::new()) };
        let token = |value: &Value| value.as_u64().and_then(|token| u32::try_from(token).ok());
        let tokens = match value {
            Value::Array(list) => list.iter().map(token).collect(),
            one => token(one).map(|token| vec![token]),
        };
        tokens.ok_or_else(|| self.bad(field, "a token or a list of tokens", value))
    }

    /// Fails unless a field is absent or has one of these texts.
    pub(crate) fn one_of(
        &self,
        field: &str,
        allowed: &[&str],
        supported: &'static str,
    ) -> Result<(), ModelError> {
        match self.text(field)? {
            Some(text) if !allowed.contains(&text) => Err(self.unsupported(field, text, supported)),
            _ => Ok(()),
        }
    }

    /// Fails unless a field is absent or has this value.
    pub(crate) fn only(&self, field: &str, only: bool, supported: &'static str) -> Result<(), ModelError> {
        match self.flag(field, only)? {
            flag if flag == only => Ok(()),
            other => Err(self.unsupported(field, other, supported)),
        }
    }

    /// Fails if a field has a value.
    pub(crate) fn absent(&self, field: &str) -> Result<(), ModelError> {
        match self.get(field) {
            None => Ok(()),
            Some(value) => Err(self.unsupported(field, kind(value), "no such field")),
        }
    }

    pub(crate) fn unsupported(
        &self,
        field: &str,
        got: impl fmt::Display,
        supported: &'static str,
    ) -> ModelError {
        ModelError::Unsupported { option: self.name(field), got: got.to_string(), supported }
    }
}

/// Names the kind of a value, which may be long.
fn kind(value: &Value) -> String {
    match value {
        Value::Array(_) => "an array".to_owned(),
        Value::Object(_) => "an object".to_owned(),
        Value::String(text) => format!("the text {:?}", text.chars().take(40).collect::<String>()),
        other => other.to_string(),
    }
}

/// Fails unless `divisor` divides a size.
pub(crate) fn check_divides(
    field: &str,
    divisor: usize,
    size: usize,
    expected: &'static str,
) -> Result<(), ModelError> {
    if divisor > 0 && size.is_multiple_of(divisor) {
        return Ok(());
    }
    Err(ModelError::BadField { field: field.to_owned(), expected, got: format!("{divisor} for {size}") })
}

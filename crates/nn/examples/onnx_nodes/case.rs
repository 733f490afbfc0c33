//! A test case of one node, as `scripts/check_onnx.py` writes it.

use highwater_tensor::{DType, Device, Result, Tensor};
use serde::Deserialize;
use serde_json::{Map, Value};

/// A case.
#[derive(Debug, Deserialize)]
pub(crate) struct Case {
    pub(crate) name: String,
    pub(crate) op: String,
    /// Why it could not be written, if so; then the rest is missing.
    pub(crate) why_not: Option<String>,
    #[serde(default)]
    attributes: Map<String, Value>,
    /// An input that was left out is none.
    #[serde(default)]
    pub(crate) inputs: Vec<Option<Numbers>>,
    /// An output that is not asked for is none.
    #[serde(default)]
    pub(crate) outputs: Vec<Option<Numbers>>,
    /// How far results may be off: relative to what is expected, and absolutely.
    #[serde(default)]
    pub(crate) tolerance: (f64, f64),
}

/// A tensor: its type, its shape and its values.
#[derive(Debug, Deserialize)]
pub(crate) struct Numbers(pub(crate) String, pub(crate) Vec<usize>, Vec<Value>);

/// A number of the file: what JSON does not have is a word.
fn number(value: &Value) -> f64 {
    match value {
        Value::Bool(value) => f64::from(u8::from(*value)),
        Value::String(word) => word.parse().unwrap_or(f64::NAN),
        value => value.as_f64().unwrap_or(f64::NAN),
    }
}

impl Numbers {
    /// The values.
    pub(crate) fn values(&self) -> Vec<f64> {
        self.2.iter().map(number).collect()
    }

    /// The tensor.
    pub(crate) fn tensor(&self, device: &Device) -> Result<Tensor> {
        let dtype = DType::ALL.into_iter().find(|dtype| dtype.name() == self.0).unwrap_or(DType::F32);
        if dtype == DType::I64 {
            // Not by way of f64, which does not hold them all.
            let values: Vec<i64> = self.2.iter().map(|value| value.as_i64().unwrap_or(0)).collect();
            return Tensor::from_slice(device, &values, &self.1[..]);
        }
        Tensor::from_slice(device, &self.values(), &self.1[..])?.to_dtype(dtype)
    }
}

impl Case {
    /// Whether there are no attributes but these.
    pub(crate) fn has_only(&self, names: &[&str]) -> bool {
        self.attributes.keys().all(|name| names.contains(&name.as_str()))
    }

    /// An attribute that is a whole number.
    pub(crate) fn whole(&self, name: &str, default: i64) -> i64 {
        self.attributes.get(name).and_then(Value::as_i64).unwrap_or(default)
    }

    /// An attribute that is a number.
    pub(crate) fn float(&self, name: &str) -> Option<f64> {
        self.attributes.get(name).map(number)
    }

    /// An attribute that is a word.
    pub(crate) fn word<'a>(&'a self, name: &str, default: &'a str) -> &'a str {
        self.attributes.get(name).and_then(Value::as_str).unwrap_or(default)
    }

    /// An attribute that is a list of words.
    pub(crate) fn words(&self, name: &str) -> Vec<&str> {
        let list = self.attributes.get(name).and_then(Value::as_array);
        list.map(|list| list.iter().filter_map(Value::as_str).collect()).unwrap_or_default()
    }

    /// An attribute that is a list of whole numbers.
    pub(crate) fn list(&self, name: &str) -> Option<Vec<i64>> {
        self.attributes
            .get(name)
            .and_then(Value::as_array)
            .map(|list| list.iter().filter_map(Value::as_i64).collect())
    }

    /// An input that is a list of whole numbers.
    pub(crate) fn given_list(&self, input: usize) -> Option<Vec<i64>> {
        let given = self.inputs.get(input)?.as_ref()?;
        Some(given.values().into_iter().map(|value| value as i64).collect())
    }

    /// An input that is one number.
    pub(crate) fn given_number(&self, input: usize) -> Option<f64> {
        self.inputs.get(input)?.as_ref()?.values().first().copied()
    }
}

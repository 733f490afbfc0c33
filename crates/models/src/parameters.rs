//! Where the parameters of a model come from.
//!
//! A model is built by one function, which asks a [`Source`] for each parameter by name and shape. The source reads a file,
//! draws random values, or only notes the shapes. So the names and shapes of a model stand in one place.

use std::collections::{HashMap, HashSet};
use std::fmt;

use highwater_nn::io::Weights;
use highwater_nn::modules::{Embedding, Fans, Init, LayerNorm, Linear, Parameter, RmsNorm};
use highwater_tensor::{
    DType, Device, IntoShape, QuantizedMatrix, Result as TensorResult, Rng, Shape, Tensor,
};

use crate::error::{ModelError, TensorMismatch, TensorShape};

/// The initial values of a parameter without a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Start {
    /// Normally distributed with a small deviation.
    Random,
    Zeros,
    Ones,
}

/// The origin of parameters.
pub(crate) trait Source {
    /// Returns the parameter of this name and shape.
    fn parameter(&mut self, name: &str, shape: &[usize], start: Start) -> Result<Parameter, ModelError>;

    /// Returns the matrix of this name, if it is quantized.
    fn quantized(&mut self, _name: &str) -> Result<Option<QuantizedMatrix>, ModelError> {
        Ok(None)
    }
}

/// The names below a module, of which a source returns the parameters as layers.
pub(crate) struct Path<'s> {
    source: &'s mut dyn Source,
    prefix: String,
}

impl<'s> Path<'s> {
    pub(crate) fn root(source: &'s mut dyn Source) -> Self {
        Self { source, prefix: String::new() }
    }

    /// Returns the names below a part of this module.
    pub(crate) fn part(&mut self, name: impl fmt::Display) -> Path<'_> {
        let prefix = format!("{}{name}.", self.prefix);
        Path { source: &mut *self.source, prefix }
    }

    fn parameter(&mut self, name: &str, shape: &[usize], start: Start) -> Result<Parameter, ModelError> {
        self.source.parameter(&format!("{}{name}", self.prefix), shape, start)
    }

    fn bias(&mut self, outputs: usize, has_bias: bool) -> Result<Option<Parameter>, ModelError> {
        has_bias.then(|| self.parameter("bias", &[outputs], Start::Zeros)).transpose()
    }

    /// Returns the weight of this module, if it is quantized.
    fn quantized(&mut self) -> Result<Option<QuantizedMatrix>, ModelError> {
        self.source.quantized(&format!("{}weight", self.prefix))
    }

    /// Returns a linear layer of PyTorch's shape, `[outputs, inputs]`.
    pub(crate) fn linear(
        &mut self,
        name: &str,
        [inputs, outputs]: [usize; 2],
        has_bias: bool,
    ) -> Result<Linear, ModelError> {
        let mut part = self.part(name);
        if let Some(matrix) = part.quantized()? {
            return Ok(Linear::from_quantized(matrix, part.bias(outputs, has_bias)?)?);
        }
        let weight = part.parameter("weight", &[outputs, inputs], Start::Random)?;
        Ok(Linear::from_pytorch_parameters(weight, part.bias(outputs, has_bias)?)?)
    }

    /// Returns a linear layer of the shape `[inputs, outputs]`, as the type `Conv1D` of `transformers` has it.
    pub(crate) fn conv1d(&mut self, name: &str, [inputs, outputs]: [usize; 2]) -> Result<Linear, ModelError> {
        let mut part = self.part(name);
        let weight = part.parameter("weight", &[inputs, outputs], Start::Random)?;
        let bias = part.parameter("bias", &[outputs], Start::Zeros)?;
        Ok(Linear::from_parameters(weight, Some(bias))?)
    }

    pub(crate) fn embedding(
        &mut self,
        name: &str,
        rows: usize,
        width: usize,
    ) -> Result<Embedding, ModelError> {
        let weight = self.part(name).parameter("weight", &[rows, width], Start::Random)?;
        Ok(Embedding::from_parameter(weight)?)
    }

    /// Returns a table of tokens, which may be quantized.
    pub(crate) fn token_embedding(
        &mut self,
        name: &str,
        rows: usize,
        width: usize,
    ) -> Result<Embedding, ModelError> {
        match self.part(name).quantized()? {
            Some(matrix) => Ok(Embedding::from_quantized(&matrix)),
            None => self.embedding(name, rows, width),
        }
    }

    pub(crate) fn rms_norm(&mut self, name: &str, width: usize, epsilon: f64) -> Result<RmsNorm, ModelError> {
        let weight = self.part(name).parameter("weight", &[width], Start::Ones)?;
        Ok(RmsNorm::from_parameter(weight).with_epsilon(epsilon))
    }

    pub(crate) fn layer_norm(
        &mut self,
        name: &str,
        width: usize,
        epsilon: f64,
    ) -> Result<LayerNorm, ModelError> {
        let mut part = self.part(name);
        let weight = part.parameter("weight", &[width], Start::Ones)?;
        let bias = part.parameter("bias", &[width], Start::Zeros)?;
        Ok(LayerNorm::from_parameters(weight, bias).with_epsilon(epsilon))
    }
}

/// Notes the shapes. Its parameters are views of one element.
struct Shapes {
    element: Tensor,
    found: Vec<TensorShape>,
}

impl Source for Shapes {
    fn parameter(&mut self, name: &str, shape: &[usize], _: Start) -> Result<Parameter, ModelError> {
        let shape = checked(shape)?;
        self.found.push(TensorShape { name: name.to_owned(), shape });
        Ok(Parameter::new(self.element.broadcast_to(shape)?)?)
    }
}

/// Returns the names and shapes of the parameters that `build` asks for.
pub(crate) fn shapes_of(
    device: &Device,
    build: impl FnOnce(&mut dyn Source) -> Result<(), ModelError>,
) -> Result<Vec<TensorShape>, ModelError> {
    let mut shapes = Shapes { element: Tensor::zeros(device, [1])?, found: Vec::new() };
    build(&mut shapes)?;
    Ok(shapes.found)
}

/// Draws random values.
pub(crate) struct Random<'a> {
    pub(crate) device: &'a Device,
    pub(crate) rng: &'a Rng,
}

impl Source for Random<'_> {
    fn parameter(&mut self, _: &str, shape: &[usize], start: Start) -> Result<Parameter, ModelError> {
        let init = match start {
            Start::Random => Init::Normal { mean: 0.0, std: 0.02 },
            Start::Zeros => Init::Zeros,
            Start::Ones => Init::Constant(1.0),
        };
        // The initialization does not depend on the numbers of inputs and outputs.
        let fans = Fans { inputs: 1, outputs: 1 };
        Ok(init.parameter(self.device, checked(shape)?, DType::F32, fans, self.rng)?)
    }
}

/// Reads a file, whose tensors have been compared with the model.
struct File<'a> {
    weights: &'a dyn Weights,
    device: &'a Device,
    names: HashMap<String, String>,
}

impl File<'_> {
    /// The name in the file of a parameter of the model.
    fn in_file<'n>(&'n self, name: &'n str) -> &'n str {
        self.names.get(name).map_or(name, String::as_str)
    }
}

impl Source for File<'_> {
    fn parameter(&mut self, name: &str, _: &[usize], _: Start) -> Result<Parameter, ModelError> {
        let loaded: TensorResult<Tensor> = self.weights.load(self.in_file(name), self.device);
        Ok(Parameter::new(loaded?)?)
    }

    fn quantized(&mut self, name: &str) -> Result<Option<QuantizedMatrix>, ModelError> {
        Ok(self.weights.load_quantized(self.in_file(name), self.device)?)
    }
}

/// How the names of a file may differ from those of the model.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Names {
    /// A prefix of the model's names that files of the same model may lack, and the other way round.
    pub(crate) prefix: &'static str,
    /// Whether the model's own names begin with the prefix.
    pub(crate) has_prefix: bool,
    /// The names of tensors that the model computes itself, or that belong to another head.
    pub(crate) ignored: fn(&str) -> bool,
}

impl Names {
    /// The name in a file that differs by the prefix.
    fn other(&self, name: &str) -> Option<String> {
        if self.has_prefix {
            name.strip_prefix(self.prefix).map(str::to_owned)
        } else {
            Some(format!("{}{name}", self.prefix))
        }
    }
}

/// Compares the tensors of a file with those of a model, and then calls `build` with a source that reads them. Nothing is
/// loaded if they differ.
pub(crate) fn from_file<M>(
    weights: &dyn Weights,
    device: &Device,
    names: Names,
    build: impl Fn(&mut dyn Source) -> Result<M, ModelError>,
) -> Result<M, ModelError> {
    let needed = shapes_of(device, |source| build(source).map(drop))?;
    let in_file = weights.names();
    let all: HashSet<&str> = in_file.iter().copied().collect();
    let renamed: HashMap<String, String> = needed
        .iter()
        .filter(|tensor| !all.contains(tensor.name.as_str()))
        .filter_map(|tensor| Some((tensor.name.clone(), names.other(&tensor.name)?)))
        .filter(|(_, other)| all.contains(other.as_str()))
        .collect();
    let mut mismatch = TensorMismatch {
        path: weights.path().to_owned(),
        missing: Vec::new(),
        mismatched: Vec::new(),
        unsupported: Vec::new(),
        unexpected: Vec::new(),
    };
    let skipped: HashMap<&str, &str> =
        weights.skipped().iter().map(|skipped| (skipped.name.as_str(), skipped.reason.as_str())).collect();
    let mut used = HashSet::new();
    for tensor in needed {
        let name = renamed.get(&tensor.name).unwrap_or(&tensor.name);
        match weights.info(name) {
            Some(info) if info.shape == tensor.shape => {}
            Some(info) => mismatch.mismatched.push((tensor.clone(), info.shape)),
            None => match skipped.get(name.as_str()) {
                Some(reason) => mismatch.unsupported.push((name.clone(), (*reason).to_owned())),
                None => mismatch.missing.push(tensor.clone()),
            },
        }
        used.insert(name.clone());
    }
    let is_unexpected = |name: &&&str| !used.contains(**name) && !(names.ignored)(name);
    mismatch.unexpected = in_file.iter().filter(is_unexpected).map(|name| (*name).to_owned()).collect();
    let TensorMismatch { missing, mismatched, unsupported, unexpected, .. } = &mismatch;
    if !(missing.is_empty() && mismatched.is_empty() && unsupported.is_empty() && unexpected.is_empty()) {
        return Err(mismatch.into());
    }
    build(&mut File { weights, device, names: renamed })
}

fn checked(shape: &[usize]) -> Result<Shape, ModelError> {
    Ok(shape.into_shape()?)
}

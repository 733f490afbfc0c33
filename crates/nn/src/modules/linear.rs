//! The linear layer.

use std::fmt;

use highwater_tensor::{
    Activation, DType, Device, Error, Parameter, Place, Result, Rng, Tensor, error::ShapeRule,
};
use highwater_tracking::ModulePath;

use super::adapter::AdapterSlot;
use super::debug::{dtype, layer, mapping, size, when};
use super::in_layer;
use super::init::{Fans, Init};
use super::module::Module;

/// Linear (fully connected) layer: y = x·W + b, for x of shape `[.., inputs]`.
///
/// W has the shape `[inputs, outputs]`, so forward multiplies without a transpose; backward uses transposed views.
/// PyTorch stores `[outputs, inputs]`: see [`Checkpoint`](crate::checkpoint::Checkpoint#from-pytorch), and
/// [`from_pytorch_parameters`](Self::from_pytorch_parameters) for a layer that keeps this shape.
///
/// ```
/// use highwater::{Device, Rng, Tensor};
/// use highwater::nn::{Linear, Module};
/// let device = Device::cpu()?;
/// let layer = Linear::new(&device, 64, 10, &Rng::new(0))?;
/// assert_eq!(layer.forward(&Tensor::zeros(&device, [32, 64])?)?.dims(), [32, 10]);
/// assert_eq!(layer.parameter_count(), 64 * 10 + 10);
/// # Ok::<(), highwater::Error>(())
/// ```
#[derive(Clone, Module)]
pub struct Linear {
    path: ModulePath,
    weight: Parameter,
    bias: Option<Parameter>,
    activation: Option<Activation>,
    /// Whether the weight has PyTorch's shape, `[outputs, inputs]`.
    is_transposed: bool,
    /// The adapter of the layer, whose parts belong to the layer.
    #[module(rename = "")]
    adapter: AdapterSlot,
}

/// Options of a linear layer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LinearOptions {
    /// Initialization of W.
    pub weight: Init,
    /// Initialization of b; `None` for a layer without a bias.
    pub bias: Option<Init>,
    /// The element type, `f32` or `f64`.
    pub dtype: DType,
}

impl Default for LinearOptions {
    /// Kaiming initialization for W, zeros for b, all in `f32`.
    fn default() -> Self {
        Self { weight: Init::KaimingUniform, bias: Some(Init::Zeros), dtype: DType::F32 }
    }
}

const PER_COLUMN: &ShapeRule = &ShapeRule::Other("the bias must have one element per column of the weight");

const PER_ROW: &ShapeRule = &ShapeRule::Other("the bias must have one element per row of the weight");

impl Linear {
    /// Creates a layer with the default [`LinearOptions`].
    ///
    /// # Errors
    /// [`Error::Allocation`] if there is no memory.
    pub fn new(place: &impl Place, inputs: usize, outputs: usize, rng: &Rng) -> Result<Self> {
        Self::with_options(place, inputs, outputs, LinearOptions::default(), rng)
    }

    /// Creates a layer with options.
    ///
    /// # Errors
    /// See [`Init::parameter`].
    pub fn with_options(
        place: &impl Place,
        inputs: usize,
        outputs: usize,
        options: LinearOptions,
        rng: &Rng,
    ) -> Result<Self> {
        let fans = Fans { inputs, outputs };
        let weight = options.weight.parameter(place, [inputs, outputs], options.dtype, fans, rng)?;
        let bias = options
            .bias
            .map(|init| init.parameter(place, [outputs], options.dtype, fans, rng))
            .transpose()?;
        let (path, adapter) = (ModulePath::new(), AdapterSlot::default());
        Ok(Self { path, weight, bias, activation: None, is_transposed: false, adapter })
    }

    /// Creates a layer from existing parameters, for example to share them between two layers.
    ///
    /// # Errors
    /// [`Error::BadRank`] unless `weight` has two axes and `bias` one, [`Error::ShapeMismatch`] unless both have the
    /// same number of outputs.
    pub fn from_parameters(weight: Parameter, bias: Option<Parameter>) -> Result<Self> {
        Self::with_parameters(weight, bias, false)
    }

    /// Creates a layer from existing parameters of PyTorch's shape: a weight of shape `[outputs, inputs]`. The layer keeps
    /// this shape, so that weights of a file need no copy, and that a state dict of the model has PyTorch's shapes.
    ///
    /// ```
    /// use highwater::{Device, Tensor};
    /// use highwater::nn::{Linear, Module, Parameter};
    /// let device = Device::cpu()?;
    /// let weight = Parameter::new(Tensor::from_slice(&device, &[1.0f32, 2.0, 3.0], [1, 3])?)?;
    /// let layer = Linear::from_pytorch_parameters(weight, None)?;
    /// assert_eq!(layer.forward(&Tensor::ones(&device, [2, 3])?)?.to_vec::<f32>()?, [6.0, 6.0]);
    /// # Ok::<(), highwater::Error>(())
    /// ```
    ///
    /// # Errors
    /// See [`from_parameters`](Self::from_parameters).
    pub fn from_pytorch_parameters(weight: Parameter, bias: Option<Parameter>) -> Result<Self> {
        Self::with_parameters(weight, bias, true)
    }

    fn with_parameters(weight: Parameter, bias: Option<Parameter>, is_transposed: bool) -> Result<Self> {
        const OP: &str = "linear";
        let matrix = *weight.tensor().shape();
        if matrix.rank() != 2 {
            return Err(Error::BadRank { op: OP, expected: "a weight of 2 axes", shape: matrix });
        }
        if let Some(bias) = &bias {
            let vector = *bias.tensor().shape();
            if vector.rank() != 1 {
                return Err(Error::BadRank { op: OP, expected: "a bias of 1 axis", shape: vector });
            }
            if vector[0] != matrix[usize::from(!is_transposed)] {
                return Err(Error::ShapeMismatch {
                    op: OP,
                    lhs: matrix,
                    rhs: vector,
                    rule: if is_transposed { PER_ROW } else { PER_COLUMN },
                });
            }
        }
        let (path, adapter) = (ModulePath::new(), AdapterSlot::default());
        Ok(Self { path, weight, bias, activation: None, is_transposed, adapter })
    }

    /// Fuses an activation into the layer: y = f(x·W + b), as [`Tensor::linear_activation`] computes it. This saves the
    /// memory of x·W + b if no gradient needs it.
    ///
    /// ```
    /// use highwater::{Activation, Device, Rng, Tensor};
    /// use highwater::nn::{Linear, Module};
    /// let device = Device::cpu()?;
    /// let layer = Linear::new(&device, 64, 10, &Rng::new(0))?.with_activation(Activation::Relu);
    /// let y = layer.forward(&Tensor::ones(&device, [32, 64])?)?;
    /// assert!(y.to_vec::<f32>()?.iter().all(|&y| y >= 0.0));
    /// # Ok::<(), highwater::Error>(())
    /// ```
    #[must_use]
    pub fn with_activation(self, activation: Activation) -> Self {
        Self { activation: Some(activation), ..self }
    }

    /// Returns the layer without a bias. A norm after the layer would cancel it.
    ///
    /// ```
    /// use highwater::{Device, Rng};
    /// use highwater::nn::{Linear, Module};
    /// let layer = Linear::new(&Device::cpu()?, 64, 10, &Rng::new(0))?.without_bias();
    /// assert_eq!(layer.parameter_count(), 64 * 10);
    /// # Ok::<(), highwater::Error>(())
    /// ```
    #[must_use]
    pub fn without_bias(self) -> Self {
        Self { bias: None, ..self }
    }

    /// Returns W, of shape `[inputs, outputs]`, or PyTorch's shape in a layer that [keeps
    /// it](Self::from_pytorch_parameters).
    #[must_use]
    pub const fn weight(&self) -> &Parameter {
        &self.weight
    }

    /// Returns b, of shape `[outputs]`, if the layer has one.
    #[must_use]
    pub const fn bias(&self) -> Option<&Parameter> {
        self.bias.as_ref()
    }

    /// Returns W as a tensor of shape `[inputs, outputs]`.
    fn matrix(&self) -> Result<Tensor> {
        let weight = self.weight.tensor();
        if self.is_transposed { weight.t() } else { Ok(weight) }
    }

    fn product(&self, x: &Tensor, activation: Option<Activation>) -> Result<Tensor> {
        let weight = self.matrix()?;
        match (self.bias.as_ref().map(Parameter::tensor), activation) {
            (Some(bias), Some(activation)) => x.linear_activation(&weight, &bias, activation),
            (Some(bias), None) => x.linear(&weight, &bias),
            (None, activation) => x.matmul(&weight)?.activated(activation),
        }
    }

    pub(crate) const fn adapter(&self) -> &AdapterSlot {
        &self.adapter
    }

    /// Returns the weight that an update can be added to, and whether it has PyTorch's shape.
    pub(crate) const fn dense_weight(&self) -> Option<(&Parameter, bool)> {
        Some((&self.weight, self.is_transposed))
    }

    /// Returns the element type and the device of the weight.
    pub(crate) fn place(&self) -> (DType, Device) {
        let weight = self.weight.value();
        (weight.dtype(), weight.device().clone())
    }

    /// Returns the numbers of inputs and outputs.
    pub(crate) fn sizes(&self) -> [usize; 2] {
        [0, 1].map(|axis| size(&self.weight, axis ^ usize::from(self.is_transposed)))
    }
}

impl Module for Linear {
    enters_itself!(path);

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        in_layer(&self.path, &self.weight, || match self.adapter.acting() {
            // The update precedes the activation.
            Some(adapter) => adapter.add_to(self.product(x, None)?, x)?.activated(self.activation),
            None => self.product(x, self.activation),
        })
    }

    fn forward_activated(&self, x: &Tensor, activation: Activation) -> Option<Result<Tensor>> {
        let bias = self.bias.as_ref().filter(|_| self.activation.is_none())?;
        if self.adapter.acting().is_some() {
            return None;
        }
        Some(in_layer(&self.path, &self.weight, || {
            x.linear_activation(&self.matrix()?, &bias.tensor(), activation)
        }))
    }

    fn as_linear(&self) -> Option<&Linear> {
        Some(self)
    }

    fn pytorch_transposes(&self) -> &[&str] {
        if self.is_transposed { &[] } else { &["weight"] }
    }
}

impl fmt::Debug for Linear {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let activation = self.activation.map(|activation| activation.name().to_owned());
        let [inputs, outputs] = self.sizes();
        let adapter = self.adapter.get().map(|adapter| adapter.debug_part());
        let bias = when(self.bias.is_none(), "no bias");
        layer(f, "Linear", [mapping(inputs, outputs), activation, bias, dtype(&self.weight), adapter])
    }
}

//! The linear layer.

use std::fmt;

use highwater_tensor::{
    Activation, BlockFormat, CrossEntropyOptions, DType, Device, Error, LinearCrossEntropyOptions, Parameter,
    Place, QuantizedMatrix, Result, Rng, Shape, Tensor, error::ShapeRule,
};
use highwater_tracking::ModulePath;

use super::adapter::AdapterSlot;
use super::debug::{layer, mapping, when};
use super::in_layer;
use super::init::{Fans, Init};
use super::module::Module;
use super::weight::Weight;

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
    weight: Weight,
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

const OP: &str = "linear";

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
        let weight = Weight::Dense(weight);
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
        let matrix = *weight.tensor().shape();
        if matrix.rank() != 2 {
            return Err(Error::BadRank { op: OP, expected: "a weight of 2 axes", shape: matrix });
        }
        Self::with_weight(Weight::Dense(weight), matrix, bias, is_transposed)
    }

    fn with_weight(
        weight: Weight,
        matrix: Shape,
        bias: Option<Parameter>,
        is_transposed: bool,
    ) -> Result<Self> {
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

    /// Creates a layer from a quantized matrix of `[outputs, inputs]`, which training does not change.
    ///
    /// ```
    /// use highwater::{BlockFormat, Device, QuantizedMatrix, Tensor};
    /// use highwater::nn::{Linear, Module};
    /// let matrix = Tensor::ones(&Device::cpu()?, [8, 64])?;
    /// let layer = Linear::from_quantized(QuantizedMatrix::quantize(&matrix, BlockFormat::Q4_0)?, None)?;
    /// assert_eq!(format!("{layer:?}"), "Linear(64 -> 8, no bias, Q4_0)");
    /// assert_eq!((layer.parameter_count(), layer.buffers().len()), (0, 1));
    /// # Ok::<(), highwater::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::BadRank`] unless `bias` has one axis, [`Error::ShapeMismatch`] unless it has one element per row.
    pub fn from_quantized(weight: QuantizedMatrix, bias: Option<Parameter>) -> Result<Self> {
        Self::with_weight(Weight::quantized(&weight), weight.shape(), bias, true)
    }

    /// Returns the layer with a quantized weight, which training does not change. Its memory is that of the blocks. The
    /// bias and the activation are those of this layer.
    ///
    /// ```
    /// use highwater::{BlockFormat, Device, Rng, Tensor};
    /// use highwater::nn::{Linear, Module};
    /// let device = Device::cpu()?;
    /// let layer = Linear::new(&device, 64, 10, &Rng::new(0))?.quantized(BlockFormat::Nf4)?;
    /// assert_eq!(layer.forward(&Tensor::ones(&device, [3, 64])?)?.dims(), [3, 10]);
    /// assert_eq!(layer.weight().value().elements(), 10 * 36); // bytes
    /// # Ok::<(), highwater::Error>(())
    /// ```
    ///
    /// # Errors
    /// See [`QuantizedMatrix::quantize`].
    pub fn quantized(&self, format: BlockFormat) -> Result<Self> {
        let matrix = match self.weight.matrix()? {
            Some(matrix) if matrix.format() == format => matrix,
            Some(matrix) => QuantizedMatrix::quantize(&matrix.dequantize()?, format)?,
            None => {
                let weight = self.weight.parameter().value();
                let weight = if self.is_transposed { weight } else { weight.t()? };
                QuantizedMatrix::quantize(&weight, format)?
            }
        };
        Ok(Self { activation: self.activation, ..Self::from_quantized(matrix, self.bias.clone())? })
    }

    /// Returns the quantized matrix of `[outputs, inputs]`; `None` for a layer with a dense weight.
    ///
    /// # Errors
    /// [`Error::BadArgument`] if the blocks were replaced by bytes that are no whole blocks.
    pub fn quantized_weight(&self) -> Result<Option<QuantizedMatrix>> {
        self.weight.matrix()
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
    /// it](Self::from_pytorch_parameters). Of a quantized layer, returns the constant of its blocks, u8.
    #[must_use]
    pub const fn weight(&self) -> &Parameter {
        self.weight.parameter()
    }

    /// Returns b, of shape `[outputs]`, if the layer has one.
    #[must_use]
    pub const fn bias(&self) -> Option<&Parameter> {
        self.bias.as_ref()
    }

    /// Returns a dense W as a tensor of shape `[inputs, outputs]`.
    fn matrix(&self) -> Result<Tensor> {
        let weight = self.weight.parameter().operand()?;
        if self.is_transposed { weight.t() } else { Ok(weight) }
    }

    fn product(&self, x: &Tensor, activation: Option<Activation>) -> Result<Tensor> {
        if let Some(weight) = self.weight.matrix()? {
            let bias = self.bias.as_ref().map(Parameter::operand).transpose()?;
            return x.linear_quantized(&weight, bias.as_ref())?.activated(activation);
        }
        let weight = self.matrix()?;
        match (self.bias.as_ref().map(Parameter::operand).transpose()?, activation) {
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
        match &self.weight {
            Weight::Dense(weight) => Some((weight, self.is_transposed)),
            Weight::Quantized { .. } => None,
        }
    }

    /// Returns the element type and the device of the weight; f32 for blocks.
    pub(crate) fn place(&self) -> (DType, Device) {
        (self.weight.dtype(), self.weight.device())
    }

    /// Returns the numbers of inputs and outputs.
    pub(crate) fn sizes(&self) -> [usize; 2] {
        [0, 1].map(|axis| self.weight.size(axis ^ usize::from(self.is_transposed)))
    }
}

impl Module for Linear {
    enters_itself!(path);

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        in_layer(&self.path, self.weight.parameter(), || match self.adapter.acting() {
            // The update precedes the activation.
            Some(adapter) => adapter.add_to(self.product(x, None)?, x)?.activated(self.activation),
            None => self.product(x, self.activation),
        })
    }

    fn forward_activated(&self, x: &Tensor, activation: Activation) -> Option<Result<Tensor>> {
        let bias = self.bias.as_ref().filter(|_| self.activation.is_none())?;
        if self.adapter.acting().is_some() || self.dense_weight().is_none() {
            return None;
        }
        Some(in_layer(&self.path, self.weight.parameter(), || {
            x.linear_activation(&self.matrix()?, &bias.operand()?, activation)
        }))
    }

    fn as_linear(&self) -> Option<&Linear> {
        Some(self)
    }

    fn pytorch_transposes(&self) -> &[&str] {
        if self.is_transposed { &[] } else { &["weight"] }
    }
}

/// # Loss of an output layer
impl Linear {
    /// Computes the cross-entropy of the layer's outputs by chunks of rows, without memory for all outputs: see
    /// [`Tensor::linear_cross_entropy`]. A layer with a bias, an activation or an adapter computes all outputs.
    ///
    /// Shapes: `x` `[.., inputs]`, `targets` `[..]`.
    ///
    /// ```
    /// use highwater::{Device, LinearCrossEntropyOptions, Rng, Tensor};
    /// use highwater::nn::Linear;
    /// let device = Device::cpu()?;
    /// let head = Linear::new(&device, 64, 1000, &Rng::new(0))?.without_bias();
    /// let targets = Tensor::from_slice(&device, &[7i64, 999, 0], [3])?;
    /// let options = LinearCrossEntropyOptions::default();
    /// let loss = head.linear_cross_entropy(&Tensor::ones(&device, [3, 64])?, &targets, options)?;
    /// assert!(loss.backward()?.get(&head.weight().tensor()).is_some());
    /// # Ok::<(), highwater::Error>(())
    /// ```
    ///
    /// # Errors
    /// See [`Tensor::linear_cross_entropy`].
    pub fn linear_cross_entropy(
        &self,
        x: &Tensor,
        targets: &Tensor,
        options: LinearCrossEntropyOptions,
    ) -> Result<Tensor> {
        if self.bias.is_some() || self.activation.is_some() || self.adapter.acting().is_some() {
            return loss_of_logits(&self.forward(x)?, targets, options);
        }
        in_layer(&self.path, self.weight(), || match self.weight.matrix()? {
            Some(weight) => x.linear_cross_entropy(&weight, targets, options),
            None => x.linear_cross_entropy(&self.matrix()?, targets, options),
        })
    }
}

/// Computes the loss of logits `[.., classes]`.
fn loss_of_logits(logits: &Tensor, targets: &Tensor, options: LinearCrossEntropyOptions) -> Result<Tensor> {
    let LinearCrossEntropyOptions { label_smoothing, ignore_index, reduction, .. } = options;
    let classes = logits.dims().last().copied().unwrap_or(1);
    let logits = logits.reshape([targets.elements(), classes])?;
    let options = CrossEntropyOptions { label_smoothing, ignore_index, reduction, class_weights: None };
    logits.cross_entropy_with(&targets.reshape([targets.elements()])?, options)
}

impl fmt::Debug for Linear {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let activation = self.activation.map(|activation| activation.name().to_owned());
        let [inputs, outputs] = self.sizes();
        let adapter = self.adapter.get().map(|adapter| adapter.debug_part());
        let bias = when(self.bias.is_none(), "no bias");
        layer(f, "Linear", [mapping(inputs, outputs), activation, bias, self.weight.debug_part(), adapter])
    }
}

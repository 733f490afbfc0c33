//! The feed-forward layer of Llama.

use highwater_tensor::{Place, Result, Rng, Tensor};

use super::linear::Linear;
use super::module;
use super::module::Module;
use super::transformer::options;

/// Feed-forward layer with a gate (Shazeer 2020): `down(silu(gate(x)) · up(x))`.
///
/// Its parts have the names of Hugging Face's `LlamaMLP`.
///
/// ```
/// use highwater::{Device, Rng, Tensor};
/// use highwater::nn::{Module, SwiGlu};
/// let device = Device::cpu()?;
/// let layer = SwiGlu::new(&device, 16, 44, &Rng::new(0))?;
/// assert_eq!(layer.forward(&Tensor::ones(&device, [2, 5, 16])?)?.dims(), [2, 5, 16]);
/// assert_eq!(layer.parameters()[0].0, "gate_proj.weight");
/// # Ok::<(), highwater::Error>(())
/// ```
#[derive(Clone, Debug, Module)]
pub struct SwiGlu {
    gate_proj: Linear,
    up_proj: Linear,
    down_proj: Linear,
}

impl SwiGlu {
    /// Creates a layer without biases for rows of `width` values (`f32`), with `inside` values between its products.
    ///
    /// # Errors
    /// [`Error::Allocation`](highwater_tensor::Error::Allocation) if there is no memory.
    pub fn new(place: &impl Place, width: usize, inside: usize, rng: &Rng) -> Result<Self> {
        let linear = |inputs, outputs| -> Result<Linear> {
            Ok(Linear::with_options(place, inputs, outputs, options(), rng)?.without_bias())
        };
        Ok(Self::from_layers(linear(width, inside)?, linear(width, inside)?, linear(inside, width)?))
    }

    /// Creates the layer from its parts, for example from those of a file.
    #[must_use]
    pub const fn from_layers(gate_proj: Linear, up_proj: Linear, down_proj: Linear) -> Self {
        Self { gate_proj, up_proj, down_proj }
    }
}

#[module]
impl Module for SwiGlu {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let gate = self.gate_proj.forward(x)?;
        // Without gradients, the product reuses the buffer of the gate.
        self.down_proj.forward(&gate.replaced_by_silu_mul(&self.up_proj.forward(x)?)?)
    }
}

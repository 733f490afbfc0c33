//! The recurrent layer without gates.

use highwater_tensor::{Place, RecurrentCell, Result, Rng, Tensor};

use super::super::module::Module;
use super::stack::{Kind, Stack};
use super::{RecurrentOptions, recurrent_layer};

/// The activation of an [`Rnn`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Nonlinearity {
    /// Hyperbolic tangent.
    #[default]
    Tanh,
    /// ReLU.
    Relu,
}

/// RNN: recurrent layer without gates (Elman 1990). Maps sequences `[n, len, inputs]` to the states after each step,
/// `[n, len, hidden]`.
///
/// With input x and state h: h ← tanh(x·W + h·U), each product with a bias. W is `weight_input`, of shape `[inputs, hidden]`; U is
/// `weight_hidden`, of shape `[hidden, hidden]` (PyTorch's `nn.RNN` keeps the transposes of both:
/// [`Checkpoint::recurrent_from_pytorch`](crate::checkpoint::Checkpoint::recurrent_from_pytorch)). Several layers or directions are as in
/// [`Gru`](super::Gru).
///
/// ```
/// use highwater::{Device, Rng, Tensor};
/// use highwater::nn::{Module, Nonlinearity, Rnn};
/// let device = Device::cpu()?;
/// let rnn = Rnn::new(&device, 4, 8, &Rng::new(0))?.with_nonlinearity(Nonlinearity::Relu);
/// let x = Tensor::ones(&device, [2, 10, 4])?;
/// assert_eq!(rnn.forward(&x)?.dims(), [2, 10, 8]);
/// # Ok::<(), highwater::Error>(())
/// ```
#[derive(Clone)]
pub struct Rnn {
    stack: Stack,
    nonlinearity: Nonlinearity,
}

impl Rnn {
    /// Sets the activation; the hyperbolic tangent by default.
    #[must_use]
    pub const fn with_nonlinearity(mut self, nonlinearity: Nonlinearity) -> Self {
        self.nonlinearity = nonlinearity;
        self
    }

    /// Returns the states of the last layer after each step, and the final states. Starts from `state` or from zeros.
    /// [`Gru::run`](super::Gru::run) describes their shapes.
    ///
    /// # Errors
    /// See [`Gru::run`](super::Gru::run).
    pub fn run(&self, x: &Tensor, state: Option<&Tensor>) -> Result<(Tensor, Tensor)> {
        let _scope = self.enter();
        let (states, [last]) = self.stack.run(self.kind(), x, state.map(|h| [h]))?;
        Ok((states, last))
    }

    const fn kind(&self) -> Kind {
        Kind::Fused(match self.nonlinearity {
            Nonlinearity::Tanh => RecurrentCell::Tanh,
            Nonlinearity::Relu => RecurrentCell::Relu,
        })
    }
}

recurrent_layer!(Rnn: "rnn", 1 gates, nonlinearity: Nonlinearity::default());

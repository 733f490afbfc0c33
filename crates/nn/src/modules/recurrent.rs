//! Recurrent layers: GRU, LSTM and RNN.
//!
//! One op computes all steps of a layer in one direction ([`Tensor::recurrent`]). `stack` runs several layers and both
//! directions.

mod gates;
mod reset_before;
mod rnn;
mod stack;

use highwater_tensor::{DType, Error, Place, RecurrentCell, Result, Rng, Tensor};
pub use rnn::{Nonlinearity, Rnn};
use stack::{Kind, Stack};

use super::module::Module;

/// Options of recurrent layers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RecurrentOptions {
    /// Number of stacked layers.
    pub layers: usize,
    /// Whether each layer also reads the sequence backwards. The states of both directions are then side by side,
    /// forward first: `[n, len, 2·hidden]`.
    pub bidirectional: bool,
    /// Probability of [`Dropout`](super::Dropout) between layers. It does not act after the last layer, and only [in
    /// training](highwater_tensor::is_training).
    pub dropout: f64,
    /// The element type, a float type.
    pub dtype: DType,
}

impl Default for RecurrentOptions {
    /// One layer, forward, in `f32`.
    fn default() -> Self {
        Self { layers: 1, bidirectional: false, dropout: 0.0, dtype: DType::F32 }
    }
}

impl RecurrentOptions {
    /// Returns the path of a layer and direction below the module; empty if there is only one.
    pub(crate) fn path(&self, layer: usize, backward: bool) -> String {
        match (self.layers, self.bidirectional) {
            (1, false) => String::new(),
            (_, false) => format!("layers.{layer}"),
            _ => format!("layers.{layer}.{}", if backward { "backward" } else { "forward" }),
        }
    }
}

/// Implements what all recurrent layers share: constructors and [`Module`]. The type has a field `stack` and the listed ones.
macro_rules! recurrent_layer {
    ($name:ident: $op:literal, $gates:literal gates, $($field:ident: $value:expr),*) => {
        impl $name {
            /// Creates one layer in `f32`. All parameters are uniform in ±1/√hidden.
            ///
            /// # Errors
            /// See [`with_options`](Self::with_options).
            pub fn new(place: &impl Place, inputs: usize, hidden: usize, rng: &Rng) -> Result<Self> {
                Self::with_options(place, inputs, hidden, RecurrentOptions::default(), rng)
            }

            /// Creates layers with options. All parameters are uniform in ±1/√hidden.
            ///
            /// # Errors
            /// [`Error::BadArgument`](highwater_tensor::Error::BadArgument) for a hidden size of 0, no layers, or
            /// unless 0 ≤ dropout < 1; [`Error::UnsupportedDType`](highwater_tensor::Error::UnsupportedDType) unless
            /// the type is a float; [`Error::Allocation`](highwater_tensor::Error::Allocation) if there is no memory.
            pub fn with_options(
                place: &impl Place,
                inputs: usize,
                hidden: usize,
                options: RecurrentOptions,
                rng: &Rng,
            ) -> Result<Self> {
                let stack = Stack::new($op, place, [inputs, hidden, $gates], options, rng)?;
                Ok(Self { stack, $($field: $value),* })
            }
        }

        impl Module for $name {
            enters_itself!(stack.path);

            fn forward(&self, x: &Tensor) -> Result<Tensor> {
                let _scope = self.enter();
                $crate::modules::outputs::output(self.stack.forward(self.kind(), x))
            }
        }

        impl $crate::modules::Parts for $name {
            fn visit_parts(&self, visitor: &mut $crate::modules::PartVisitor<'_>) {
                self.stack.visit_parts(visitor);
            }
        }

        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                self.stack.print(f, stringify!($name))
            }
        }
    };
}

use recurrent_layer;

/// GRU: gated recurrent unit (Cho et al. 2014, in PyTorch's variant). Maps sequences `[n, len, inputs]` to the states
/// after each step, `[n, len, hidden]`.
///
/// With input x and state h: r = σ(x·Wr + h·Ur), z = σ(x·Wz + h·Uz), n = tanh(x·Wn + r·(h·Un)), h ← (1 - z)·n + z·h, each
/// product with a bias. W is `weight_input`, of shape `[inputs, 3·hidden]`, with the gates r, z, n side by side; U is
/// `weight_hidden`, of shape `[hidden, 3·hidden]` (PyTorch keeps the transposes of both:
/// [`Checkpoint::recurrent_from_pytorch`](crate::checkpoint::Checkpoint::recurrent_from_pytorch)).
///
/// One op named `gru` computes all steps of a layer in one direction ([`Tensor::recurrent`]). Each direction of a layer
/// keeps its gates and states for the backward pass.
///
/// [`RecurrentOptions`] select several layers or both directions. The parameters then have the number of the layer and
/// the direction in their paths: `layers.1.weight_input`, `layers.0.backward.bias_hidden`.
///
/// ```
/// use highwater::{Device, Rng, Tensor};
/// use highwater::nn::{Gru, Module, RecurrentOptions};
/// let device = Device::cpu()?;
/// let gru = Gru::new(&device, 4, 8, &Rng::new(0))?;
/// let x = Tensor::ones(&device, [2, 10, 4])?;
/// assert_eq!(gru.forward(&x)?.dims(), [2, 10, 8]);
/// // In two parts, the state handed on.
/// let (_, state) = gru.run(&x.narrow(1, 0, 6)?, None)?;
/// let (_, state) = gru.run(&x.narrow(1, 6, 4)?, Some(&state))?;
/// assert_eq!(state.dims(), [2, 8]);
///
/// let options = RecurrentOptions { layers: 3, bidirectional: true, dropout: 0.1, ..Default::default() };
/// let deep = Gru::with_options(&device, 4, 8, options, &Rng::new(0))?;
/// let (y, state) = deep.run(&x, None)?;
/// assert_eq!((y.dims(), state.dims()), (&[2, 10, 16][..], &[6, 2, 8][..]));
/// # Ok::<(), highwater::Error>(())
/// ```
#[derive(Clone)]
pub struct Gru {
    stack: Stack,
    reset_after: bool,
}

impl Gru {
    /// Selects whether the reset gate acts after the product with Un (the default, as in PyTorch) or before it: n =
    /// tanh(x·Wn + (r·h)·Un), as in Cho et al. Keras calls this option `reset_after`, ONNX `linear_before_reset`; the
    /// default of ONNX is before. Both variants have the same parameters with different meanings. With the reset gate before
    /// the product, each step runs as several ops, which takes more time and memory.
    #[must_use]
    pub const fn with_reset_after(mut self, reset_after: bool) -> Self {
        self.reset_after = reset_after;
        self
    }

    /// Returns the states of the last layer after each step, and the final state of each layer and direction. Starts
    /// from `state` or from zeros.
    ///
    /// The state has the shape `[n, hidden]` for one forward layer, else `[layers · directions, n, hidden]`: layer by
    /// layer, forward first. The final state of the backward direction belongs to the first position.
    ///
    /// # Errors
    /// [`Error::BadRank`](highwater_tensor::Error::BadRank) unless `x` has three axes,
    /// [`Error::ShapeMismatch`](highwater_tensor::Error::ShapeMismatch) if its width or the state's shape differs,
    /// [`Error::DTypeMismatch`](highwater_tensor::Error::DTypeMismatch) if a type differs from that of the parameters,
    /// [`Error::Allocation`](highwater_tensor::Error::Allocation) if there is no memory.
    pub fn run(&self, x: &Tensor, state: Option<&Tensor>) -> Result<(Tensor, Tensor)> {
        let _scope = self.enter();
        let (states, [last]) = self.stack.run(self.kind(), x, state.map(|h| [h]))?;
        Ok((states, last))
    }

    const fn kind(&self) -> Kind {
        if self.reset_after { Kind::Fused(RecurrentCell::Gru) } else { Kind::ResetBefore }
    }
}

recurrent_layer!(Gru: "gru", 3 gates, reset_after: true);

/// LSTM: long short-term memory (Hochreiter and Schmidhuber 1997, with the forget gate of Gers et al. 2000). Maps
/// sequences `[n, len, inputs]` to the states after each step, `[n, len, hidden]`.
///
/// With input x, state h and cell c: (i, f, g, o) = x·W + h·U + biases; c ← σ(f)·c + σ(i)·tanh(g), h ← σ(o)·tanh(c). W is
/// `weight_input`, of shape `[inputs, 4·hidden]`, with the gates side by side in this order; U is `weight_hidden`, of
/// shape `[hidden, 4·hidden]` (as [`Gru`]'s, in PyTorch the transposes). Several layers or directions are as in [`Gru`].
/// One op named `lstm` computes all steps of a layer in one direction ([`Tensor::lstm`]).
///
/// ```
/// use highwater::{Device, Rng, Tensor};
/// use highwater::nn::{Lstm, Module};
/// let device = Device::cpu()?;
/// let lstm = Lstm::new(&device, 4, 8, &Rng::new(0))?;
/// let x = Tensor::ones(&device, [2, 10, 4])?;
/// assert_eq!(lstm.forward(&x)?.dims(), [2, 10, 8]);
/// let (_, state, cell) = lstm.run(&x, None)?;
/// assert_eq!((state.dims(), cell.dims()), (&[2, 8][..], &[2, 8][..]));
/// # Ok::<(), highwater::Error>(())
/// ```
#[derive(Clone)]
pub struct Lstm {
    stack: Stack,
}

impl Lstm {
    /// Returns the states of the last layer after each step, the final states, and the final cells. Starts from states
    /// and cells or from zeros. [`Gru::run`] describes their shapes.
    ///
    /// # Errors
    /// See [`Gru::run`].
    pub fn run(&self, x: &Tensor, state: Option<(&Tensor, &Tensor)>) -> Result<(Tensor, Tensor, Tensor)> {
        let _scope = self.enter();
        let state = state.map(|(h, c)| [h, c]);
        let (states, [last, cell]) = self.stack.run(self.kind(), x, state)?;
        Ok((states, last, cell))
    }

    const fn kind(&self) -> Kind {
        Kind::Fused(RecurrentCell::Lstm)
    }
}

recurrent_layer!(Lstm: "lstm", 4 gates,);

/// Fails if two operands have different element types.
fn same_dtype(op: &'static str, lhs: &Tensor, rhs: &Tensor) -> Result<()> {
    if lhs.dtype() == rhs.dtype() {
        return Ok(());
    }
    Err(Error::DTypeMismatch {
        op,
        lhs: lhs.dtype(),
        rhs: rhs.dtype(),
        lhs_shape: *lhs.shape(),
        rhs_shape: *rhs.shape(),
    })
}

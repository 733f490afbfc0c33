//! Recurrent layers: a state that goes along a sequence.

mod gates;
mod rnn;
mod stack;

use gates::{Gates, OfState};
use highwater_tensor::{DType, Error, Parameter, Place, Result, Rng, Tensor};
pub use rnn::{Nonlinearity, Rnn};
use stack::Stack;

use super::module::Module;

/// What a recurrent module shall be like.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RecurrentOptions {
    /// How many layers, each of which reads the states of the one before it.
    pub layers: usize,
    /// Whether each layer has a second half that reads the sequence from its end. The states of both halves then stand side
    /// by side, those of the one that goes forward first: `[n, len, 2·hidden]`.
    pub bidirectional: bool,
    /// The probability with which a number on its way from one layer to the next is dropped, as [`Dropout`](super::Dropout)
    /// does it: not behind the last layer, and only [in training](highwater_tensor::is_training).
    pub dropout: f64,
    /// The element type, one of the floats.
    pub dtype: DType,
}

impl Default for RecurrentOptions {
    /// One layer, forward, in `f32`.
    fn default() -> Self {
        Self { layers: 1, bidirectional: false, dropout: 0.0, dtype: DType::F32 }
    }
}

impl RecurrentOptions {
    /// The path of a layer's half below the module: empty for the only one.
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
            /// A layer in `f32`. All parameters start uniform in ±1/√hidden.
            ///
            /// # Errors
            /// See [`with_options`](Self::with_options).
            pub fn new(place: &impl Place, inputs: usize, hidden: usize, rng: &Rng) -> Result<Self> {
                Self::with_options(place, inputs, hidden, RecurrentOptions::default(), rng)
            }

            /// Layers with these options, whose parameters start as [`new`](Self::new) says.
            ///
            /// # Errors
            /// [`Error::BadArgument`](highwater_tensor::Error::BadArgument) for a state of no numbers, no layers, or unless 0 ≤ dropout < 1;
            /// [`Error::UnsupportedDType`](highwater_tensor::Error::UnsupportedDType) unless the elements are floats;
            /// [`Error::Allocation`](highwater_tensor::Error::Allocation) if there is no memory.
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
            fn forward(&self, x: &Tensor) -> Result<Tensor> {
                Ok(self.run(x, None)?.0)
            }

            fn visit(&self, visitor: &mut dyn FnMut(&str, &Parameter)) {
                self.stack.visit(visitor);
            }

            fn visit_rngs(&self, visitor: &mut dyn FnMut(&str, &Rng)) {
                self.stack.visit_rngs(visitor);
            }
        }
    };
}

use recurrent_layer;

/// A gated recurrent unit (Cho et al. 2014, as PyTorch has it): from sequences `[n, len, inputs]` to the states after each
/// step, `[n, len, hidden]`.
///
/// With input x and state h: r = σ(x·Wr + h·Ur), z = σ(x·Wz + h·Uz), n = tanh(x·Wn + r·(h·Un)), h ← (1 - z)·n + z·h, each
/// product with a bias. W is `weight_input`, of shape `[inputs, 3·hidden]`, with the gates r, z, n side by side; U is
/// `weight_hidden`, of shape `[hidden, 3·hidden]` (PyTorch keeps the transposes of both:
/// [`Checkpoint::recurrent_from_pytorch`](crate::checkpoint::Checkpoint::recurrent_from_pytorch)).
///
/// With [`RecurrentOptions`] there are several layers over each other, or both directions. Their parameters then bear the
/// layer's number and, where there are two, the direction: `layers.1.weight_input`, `layers.0.backward.bias_hidden`.
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
#[derive(Debug)]
pub struct Gru {
    stack: Stack,
    reset_after: bool,
}

impl Gru {
    /// The same with the state reset after its product with Un, as here and in PyTorch, or before: n = tanh(x·Wn + (r·h)·Un), as
    /// Cho et al. have it. That is `reset_after` in Keras and `linear_before_reset` in ONNX, whose default is before. The parameters
    /// are the same, of other meaning.
    #[must_use]
    pub const fn with_reset_after(mut self, reset_after: bool) -> Self {
        self.reset_after = reset_after;
        self
    }

    /// The states of the last layer after each step, and the last state of each layer in each direction, from such states or
    /// from zeros: `[n, hidden]` for one layer that goes forward, else `[layers · directions, n, hidden]`, layer by layer, with
    /// the one that goes forward first. The last state backward is the one at the first place.
    ///
    /// # Errors
    /// [`Error::BadRank`](highwater_tensor::Error::BadRank) unless `x` has three axes,
    /// [`Error::ShapeMismatch`](highwater_tensor::Error::ShapeMismatch) if its width or the state does not fit,
    /// [`Error::DTypeMismatch`](highwater_tensor::Error::DTypeMismatch) if one of them is of another type than the parameters,
    /// [`Error::Allocation`](highwater_tensor::Error::Allocation) if there is no memory.
    pub fn run(&self, x: &Tensor, state: Option<&Tensor>) -> Result<(Tensor, Tensor)> {
        let state = state.map(|h| [h]);
        let (states, [last]) = if self.reset_after {
            self.stack.run(x, state, &[3], reset_after_step)?
        } else {
            self.stack.run(x, state, &[2, 1], reset_before_step)?
        };
        Ok((states, last))
    }
}

recurrent_layer!(Gru: "gru", 3 gates, reset_after: true);

fn reset_after_step(
    gates: &Gates,
    step: &Tensor,
    of_state: &OfState,
    [h]: [Tensor; 1],
) -> Result<[Tensor; 1]> {
    let (weight, bias) = &of_state[0];
    let inside = h.matmul(weight)?.add(bias)?;
    let both = |index| gates.part(step, index)?.add(&gates.part(&inside, index)?)?.sigmoid();
    let (r, z) = (both(0)?, both(1)?);
    let n = gates.part(step, 2)?.add(&r.mul(&gates.part(&inside, 2)?)?)?.tanh()?;
    mix(&z, &n, &h)
}

fn reset_before_step(
    gates: &Gates,
    step: &Tensor,
    of_state: &OfState,
    [h]: [Tensor; 1],
) -> Result<[Tensor; 1]> {
    let [(weight, bias), (weight_new, bias_new)] = of_state else { unreachable!("there are two products") };
    let inside = h.matmul(weight)?.add(bias)?;
    let both = |index| gates.part(step, index)?.add(&gates.part(&inside, index)?)?.sigmoid();
    let (r, z) = (both(0)?, both(1)?);
    let n = gates.part(step, 2)?.add(&r.mul(&h)?.matmul(weight_new)?.add(bias_new)?)?.tanh()?;
    mix(&z, &n, &h)
}

/// (1 - z)·n + z·h
fn mix(z: &Tensor, n: &Tensor, h: &Tensor) -> Result<[Tensor; 1]> {
    Ok([n.add(&z.mul(&h.sub(n)?)?)?])
}

/// Long short-term memory (Hochreiter and Schmidhuber 1997, with the forget gate of Gers et al. 2000): from sequences
/// `[n, len, inputs]` to the states after each step, `[n, len, hidden]`.
///
/// With input x, state h and cell c: (i, f, g, o) = x·W + h·U + biases; c ← σ(f)·c + σ(i)·tanh(g), h ← σ(o)·tanh(c). W is
/// `weight_input`, of shape `[inputs, 4·hidden]`, with the gates side by side in this order; U is `weight_hidden`, of
/// shape `[hidden, 4·hidden]` (as [`Gru`]'s, in PyTorch the transposes). Several layers or directions are as in [`Gru`].
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
#[derive(Debug)]
pub struct Lstm {
    stack: Stack,
}

impl Lstm {
    /// The states of the last layer after each step, the last states, and the last cells, from states and cells or from zeros:
    /// each of the shape that [`Gru::run`] says.
    ///
    /// # Errors
    /// See [`Gru::run`].
    pub fn run(&self, x: &Tensor, state: Option<(&Tensor, &Tensor)>) -> Result<(Tensor, Tensor, Tensor)> {
        let (states, [last, cell]) = self.stack.run(x, state.map(|(h, c)| [h, c]), &[4], lstm_step)?;
        Ok((states, last, cell))
    }
}

recurrent_layer!(Lstm: "lstm", 4 gates,);

fn lstm_step(gates: &Gates, step: &Tensor, of_state: &OfState, [h, c]: [Tensor; 2]) -> Result<[Tensor; 2]> {
    let (weight, bias) = &of_state[0];
    let all = step.add(&h.matmul(weight)?)?.add(bias)?;
    let [i, f, o] = [0, 1, 3].map(|index| gates.part(&all, index)?.sigmoid());
    let g = gates.part(&all, 2)?.tanh()?;
    let c = f?.mul(&c)?.add(&i?.mul(&g)?)?;
    Ok([o?.mul(&c.tanh()?)?, c])
}

/// Refuses two operands of different element types.
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

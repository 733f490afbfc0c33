//! Recurrent layers: all steps of LSTM, GRU and RNN in one op per layer and direction.
//!
//! | op | cell |
//! |---|---|
//! | `lstm` | c ← σ(f)·c + σ(i)·tanh(g), h ← σ(o)·tanh(c), with i, f, g, o side by side in x·W + h·U |
//! | `gru` | h ← (1 - σ(z))·n + σ(z)·h, n = tanh(x·Wn + σ(r)·(h·Un)), with r, z, n side by side |
//! | `rnn` | h ← tanh(x·W + h·U), or max(x·W + h·U, 0) |
//!
//! One product computes x·W for all steps. Then one kernel runs over the sequence, and replaces the inputs' shares of the
//! gates with their values. Saves the inputs, the gates, the states and one more element per state (the cell of an LSTM,
//! h·Un of a GRU), unless the cell is a plain RNN.
//!
//! The backward kernel runs over the sequence in reverse and replaces the gates with their gradients G. Then ∂L/∂x = G·Wᵀ,
//! ∂L/∂W = xᵀ·G, ∂L/∂U = Hᵀ·G with the previous states H, and ∂L/∂b = Σ G: one product each for all steps.

mod op;

use op::Recurrent;

use super::{mixed_operands, same_dtype, supported};
use crate::autograd::apply;
use crate::backend::RecurrentCell;
use crate::error::{Error, Result, ShapeRule};
use crate::shape::DType;
use crate::tensor::Tensor;

/// The weights and biases of a recurrent layer in one direction, with the gates side by side along the last axis.
#[derive(Clone, Copy, Debug)]
pub struct RecurrentWeights<'a> {
    /// W, of shape `[inputs, gates · hidden]`.
    pub input: &'a Tensor,
    /// U, of shape `[hidden, gates · hidden]`.
    pub hidden: &'a Tensor,
    /// The bias of x·W, of shape `[gates · hidden]`.
    pub input_bias: &'a Tensor,
    /// The bias of h·U, of shape `[gates · hidden]`.
    pub hidden_bias: &'a Tensor,
}

/// The operands of a layer in the 16-bit type of mixed precision.
struct MixedOperands {
    x: Tensor,
    weights: [Tensor; 4],
    initial: Vec<Tensor>,
}

impl MixedOperands {
    /// Returns `None` if there is nothing to convert.
    fn new(x: &Tensor, weights: &RecurrentWeights<'_>, initial: &[&Tensor]) -> Result<Option<Self>> {
        let RecurrentWeights { input, hidden, input_bias, hidden_bias } = *weights;
        let [state, cell] = [initial.first(), initial.get(1)].map(|given| given.copied().unwrap_or(x));
        let operands = mixed_operands([x, input, hidden, input_bias, hidden_bias, state, cell])?;
        Ok(operands.map(|[x, input, hidden, input_bias, hidden_bias, state, cell]| Self {
            x,
            weights: [input, hidden, input_bias, hidden_bias],
            initial: [state, cell].into_iter().take(initial.len()).collect(),
        }))
    }

    const fn weights(&self) -> RecurrentWeights<'_> {
        let [input, hidden, input_bias, hidden_bias] = &self.weights;
        RecurrentWeights { input, hidden, input_bias, hidden_bias }
    }

    fn initial(&self) -> Vec<&Tensor> {
        self.initial.iter().collect()
    }
}

const INPUTS: &ShapeRule =
    &ShapeRule::Other("the last axis of the input must have as many elements as the weight has rows");

const WEIGHTS: &ShapeRule =
    &ShapeRule::Other("the weights must be [inputs, gates · hidden] and [hidden, gates · hidden]");

/// Checks the operands of a layer. Returns the numbers of sequences, steps and elements of a state.
fn check(
    cell: RecurrentCell,
    x: &Tensor,
    weights: &RecurrentWeights<'_>,
    initial: &[&Tensor],
) -> Result<[usize; 3]> {
    let op = cell.name();
    let mismatch = |lhs: &Tensor, rhs: &Tensor, rule| {
        let (lhs, rhs) = (*lhs.shape(), *rhs.shape());
        Err(Error::ShapeMismatch { op, lhs, rhs, rule })
    };
    supported(op, x.dtype(), DType::is_float)?;
    let &[sequences, len, inputs] = x.dims() else {
        let expected = "three axes: batch, position, width";
        return Err(Error::BadRank { op, expected, shape: *x.shape() });
    };
    let RecurrentWeights { input, hidden, input_bias, hidden_bias } = *weights;
    for weight in [input, hidden] {
        if weight.rank() != 2 {
            return Err(Error::BadRank { op, expected: "weights of 2 axes", shape: *weight.shape() });
        }
    }
    if inputs != input.dims()[0] {
        return mismatch(x, input, INPUTS);
    }
    let [size, width] = [hidden.dims()[0], hidden.dims()[1]];
    if input.dims()[1] != width || size.checked_mul(cell.gates()) != Some(width) {
        return mismatch(input, hidden, WEIGHTS);
    }
    for bias in [input_bias, hidden_bias] {
        if bias.dims() != [width] {
            return mismatch(hidden, bias, &ShapeRule::Other("a bias must be [gates · hidden]"));
        }
    }
    for state in initial {
        if state.dims() != [sequences, size] {
            return mismatch(x, state, &ShapeRule::Other("an initial state must be [sequences, hidden]"));
        }
    }
    let weights = [input, hidden, input_bias, hidden_bias];
    weights.iter().chain(initial).try_for_each(|operand| same_dtype(op, x, operand))?;
    if initial.is_empty() || initial.len() == cell.states() {
        return Ok([sequences, len, size]);
    }
    let expected = if cell.states() == 2 { "none, or a state and a cell" } else { "none, or a state" };
    Err(Error::BadArgument { op, argument: "initial", expected, got: initial.len().to_string() })
}

/// # Recurrent layers
impl Tensor {
    /// Runs a recurrent layer in one direction over sequences. Returns the state after each step.
    ///
    /// Shapes: x (`self`) `[sequences, len, inputs]`, result `[sequences, len, hidden]`. `initial` is empty, which stands
    /// for zeros, or holds the initial state and, for an LSTM, the initial cell, each of shape `[sequences, hidden]`.
    /// With `reverse`, the layer reads each sequence from its end; the states keep the order of the inputs.
    ///
    /// ```
    /// use highwater::{Device, RecurrentCell, RecurrentWeights, Tensor};
    /// let device = Device::cpu()?;
    /// let one = Tensor::ones(&device, [1, 1])?;
    /// let zero = Tensor::zeros(&device, [1])?;
    /// let weights = RecurrentWeights { input: &one, hidden: &one, input_bias: &zero, hidden_bias: &zero };
    /// let x = Tensor::from_slice(&device, &[1.0f32, 2.0, -4.0], [1, 3, 1])?;
    /// let y = x.recurrent(RecurrentCell::Relu, weights, &[], false)?;
    /// assert_eq!(y.to_vec::<f32>()?, [1.0, 3.0, 0.0]);
    /// # Ok::<(), highwater::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::BadRank`] unless `x` has three axes and the weights have two, [`Error::ShapeMismatch`] if sizes differ,
    /// [`Error::DTypeMismatch`], [`Error::UnsupportedDType`] unless the elements are floats, [`Error::BadArgument`] for
    /// another number of initial tensors, [`Error::Allocation`] if there is no memory.
    #[doc(alias("gru", "rnn"))]
    pub fn recurrent(
        &self,
        cell: RecurrentCell,
        weights: RecurrentWeights<'_>,
        initial: &[&Self],
        reverse: bool,
    ) -> Result<Self> {
        if let Some(mixed) = MixedOperands::new(self, &weights, initial)? {
            return mixed.x.recurrent(cell, mixed.weights(), &mixed.initial(), reverse);
        }
        let sizes @ [sequences, len, hidden] = check(cell, self, &weights, initial)?;
        if len == 0 {
            return Self::zeros_of(self.device(), [sequences, 0, hidden], self.dtype());
        }
        let op = Recurrent { cell, reverse, len, returns_cell: false };
        self.apply_recurrent(op, weights, initial, sizes)?.reshape([sequences, len, hidden])
    }

    /// Runs an LSTM layer in one direction, as [`recurrent`](Self::recurrent) does. Returns the state after each step, and
    /// the cell after the last step, of shape `[sequences, hidden]`.
    ///
    /// # Errors
    /// See [`recurrent`](Self::recurrent).
    pub fn lstm(
        &self,
        weights: RecurrentWeights<'_>,
        initial: Option<(&Self, &Self)>,
        reverse: bool,
    ) -> Result<(Self, Self)> {
        let cell = RecurrentCell::Lstm;
        let given = initial.map(|(state, cell)| [state, cell]);
        let initial = given.as_ref().map_or(&[][..], |given| &given[..]);
        if let Some(mixed) = MixedOperands::new(self, &weights, initial)? {
            let given = mixed.initial();
            let initial = if let [state, cell] = given[..] { Some((state, cell)) } else { None };
            return mixed.x.lstm(mixed.weights(), initial, reverse);
        }
        let sizes @ [sequences, len, hidden] = check(cell, self, &weights, initial)?;
        if len == 0 {
            let zeros = || Self::zeros_of(self.device(), [sequences, hidden], self.dtype());
            let cell = initial.last().map_or_else(zeros, |&cell| Ok(cell.clone()))?;
            return Ok((Self::zeros_of(self.device(), [sequences, 0, hidden], self.dtype())?, cell));
        }
        let op = Recurrent { cell, reverse, len, returns_cell: true };
        let both = self.apply_recurrent(op, weights, initial, sizes)?;
        let rows = sequences * len;
        let states = both.narrow(0, 0, rows)?.reshape([sequences, len, hidden])?;
        Ok((states, both.narrow(0, rows, sequences)?))
    }

    /// Applies the op to the rows of all sequences.
    fn apply_recurrent(
        &self,
        op: Recurrent,
        weights: RecurrentWeights<'_>,
        initial: &[&Self],
        [sequences, len, _]: [usize; 3],
    ) -> Result<Self> {
        let Some(rows) = sequences.checked_mul(len) else {
            return Err(Error::TooManyElements {
                op: op.cell.name(),
                shape: *self.shape(),
                dtype: self.dtype(),
            });
        };
        let x = self.reshape([rows, self.dims()[2]])?;
        let RecurrentWeights { input, hidden, input_bias, hidden_bias } = weights;
        let mut inputs = vec![&x, input, hidden, input_bias, hidden_bias];
        inputs.extend(initial);
        apply(op, &inputs)
    }
}

//! One recurrent layer in one direction: the weights of the gates.

use highwater_tensor::{DType, Parameter, Place, RecurrentCell, RecurrentWeights, Result, Rng, Tensor};

use super::super::init::{Fans, Init};
use super::super::parts::{ModulePart, PartVisitor};

/// The weights of the gates, side by side along the last axis, common to all recurrent layers.
#[derive(Clone, Debug)]
pub(super) struct Gates {
    weight_input: Parameter,
    weight_hidden: Parameter,
    bias_input: Parameter,
    bias_hidden: Parameter,
}

impl Gates {
    /// The weight of the inputs, of shape `[inputs, gates · hidden]`.
    pub(super) const fn weight_input(&self) -> &Parameter {
        &self.weight_input
    }

    pub(super) fn new(
        place: &impl Place,
        [inputs, hidden, gates]: [usize; 3],
        dtype: DType,
        rng: &Rng,
    ) -> Result<Self> {
        let (bound, wide) = ((hidden as f64).sqrt().recip(), hidden.saturating_mul(gates));
        let (init, fans) = (Init::Uniform { low: -bound, high: bound }, Fans { inputs, outputs: wide });
        Ok(Self {
            weight_input: init.parameter(place, [inputs, wide], dtype, fans, rng)?,
            weight_hidden: init.parameter(place, [hidden, wide], dtype, fans, rng)?,
            bias_input: init.parameter(place, [wide], dtype, fans, rng)?,
            bias_hidden: init.parameter(place, [wide], dtype, fans, rng)?,
        })
    }

    /// Returns the state after each step, `[n, len, hidden]`.
    pub(super) fn states(
        &self,
        cell: RecurrentCell,
        x: &Tensor,
        initial: &[Tensor],
        reverse: bool,
    ) -> Result<Tensor> {
        let initial: Vec<&Tensor> = initial.iter().collect();
        self.with_weights(|weights| x.recurrent(cell, weights, &initial, reverse))
    }

    /// Returns the state of an LSTM after each step, and the cell after the last step.
    pub(super) fn lstm(&self, x: &Tensor, initial: &[Tensor], reverse: bool) -> Result<(Tensor, Tensor)> {
        let initial = match initial {
            [state, cell] => Some((state, cell)),
            _ => None,
        };
        self.with_weights(|weights| x.lstm(weights, initial, reverse))
    }

    fn with_weights<R>(&self, run: impl FnOnce(RecurrentWeights<'_>) -> Result<R>) -> Result<R> {
        let (input, hidden) = (self.weight_input.operand()?, self.weight_hidden.operand()?);
        let (input_bias, hidden_bias) = (self.bias_input.operand()?, self.bias_hidden.operand()?);
        let (input_bias, hidden_bias) = (&input_bias, &hidden_bias);
        run(RecurrentWeights { input: &input, hidden: &hidden, input_bias, hidden_bias })
    }

    /// Returns the current values of the parameters, input weights first.
    pub(super) fn operands(&self) -> Result<[Tensor; 4]> {
        let Self { weight_input, weight_hidden, bias_input, bias_hidden } = self;
        Ok([weight_input.operand()?, weight_hidden.operand()?, bias_input.operand()?, bias_hidden.operand()?])
    }
}

impl ModulePart for Gates {
    fn visit_part(&self, visitor: &mut PartVisitor<'_>) {
        visitor.part("weight_input", &self.weight_input);
        visitor.part("weight_hidden", &self.weight_hidden);
        visitor.part("bias_input", &self.bias_input);
        visitor.part("bias_hidden", &self.bias_hidden);
    }
}

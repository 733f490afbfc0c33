//! One recurrent layer in one direction: the weights of the gates, and the loop over the sequence.

use bfc_core::OwnerId;
use highwater_tensor::{DType, Error, Parameter, Place, Result, Rng, Tensor, error::ShapeRule};

use super::super::init::{Fans, Init};
use super::super::parts::{ModulePart, PartVisitor};

/// The weights of the gates, side by side along the last axis, common to all recurrent layers.
#[derive(Debug)]
pub(super) struct Gates {
    op: &'static str,
    hidden: usize,
    weight_input: Parameter,
    weight_hidden: Parameter,
    bias_input: Parameter,
    bias_hidden: Parameter,
}

/// Weight and bias for each product with the state, read from the parameters once for all steps.
pub(super) type StateWeights = [(Tensor, Tensor)];

/// The number of gates of each product with the state.
pub(super) type Products = [usize];

impl Gates {
    pub(super) fn new(
        op: &'static str,
        place: &impl Place,
        [inputs, hidden, gates]: [usize; 3],
        dtype: DType,
        rng: &Rng,
    ) -> Result<Self> {
        let (bound, wide) = ((hidden as f64).sqrt().recip(), hidden.saturating_mul(gates));
        let (init, fans) = (Init::Uniform { low: -bound, high: bound }, Fans { inputs, outputs: wide });
        Ok(Self {
            op,
            hidden,
            weight_input: init.parameter(place, [inputs, wide], dtype, fans, rng)?,
            weight_hidden: init.parameter(place, [hidden, wide], dtype, fans, rng)?,
            bias_input: init.parameter(place, [wide], dtype, fans, rng)?,
            bias_hidden: init.parameter(place, [wide], dtype, fans, rng)?,
        })
    }

    /// Returns the states after each step, `[n, len, hidden]`, and the values after the last step, of which the state
    /// is the first. Starts with the result of `begin` and goes forward or backward.
    pub(super) fn along<const STATES: usize>(
        &self,
        x: &Tensor,
        backward: bool,
        products: &Products,
        begin: impl FnOnce() -> Result<[Tensor; STATES]>,
        step: impl Fn(&Self, &Tensor, &StateWeights, [Tensor; STATES]) -> Result<[Tensor; STATES]>,
    ) -> Result<(Tensor, [Tensor; STATES])> {
        let mut steps = self.project_inputs(x)?;
        let mut state = begin()?;
        let of_state = self.of_state(products)?;
        let mut states = Vec::with_capacity(steps.len());
        if backward {
            steps.reverse();
        }
        for input in steps {
            state = step(self, &input, &of_state, state)?;
            states.push(state[0].clone());
        }
        if backward {
            states.reverse();
        }
        if states.is_empty() {
            return Ok((Tensor::zeros_of(x.device(), [x.dims()[0], 0, self.hidden], x.dtype())?, state));
        }
        Ok((Tensor::stack(&states.iter().collect::<Vec<_>>(), 1)?, state))
    }

    /// Computes the inputs' contributions to the gates in one product, and returns them step by step: `[n, gates ·
    /// hidden]` each.
    fn project_inputs(&self, x: &Tensor) -> Result<Vec<Tensor>> {
        if x.rank() != 3 {
            let expected = "three axes: batch, position, width";
            return Err(Error::BadRank { op: self.op, expected, shape: *x.shape() });
        }
        let weight = self.weight_input.tensor();
        if x.dims()[2] != weight.dims()[0] {
            return Err(Error::ShapeMismatch {
                op: self.op,
                lhs: *x.shape(),
                rhs: *weight.shape(),
                rule: &ShapeRule::Other(
                    "the last axis of the input must have as many elements as the weight has rows",
                ),
            });
        }
        super::same_dtype(self.op, x, &weight)?;
        let gates = x.matmul(&weight)?.add(&self.bias_input.tensor())?;
        let mut steps = Vec::with_capacity(gates.dims()[1]);
        split(&gates, &mut steps)?;
        Ok(steps)
    }

    fn of_state(&self, products: &Products) -> Result<Vec<(Tensor, Tensor)>> {
        let (weight, bias) = (self.weight_hidden.tensor(), self.bias_hidden.tensor());
        if products.len() == 1 {
            return Ok(vec![(weight, bias)]);
        }
        let mut from = 0;
        let mut part = |gates: &usize| {
            let (begin, len) = (from, gates * self.hidden);
            from += len;
            Ok((weight.narrow(-1, begin, len)?, bias.narrow(-1, begin, len)?))
        };
        products.iter().map(&mut part).collect()
    }

    /// Returns one gate's slice.
    pub(super) fn part(&self, gates: &Tensor, index: usize) -> Result<Tensor> {
        gates.narrow(-1, index * self.hidden, self.hidden)
    }
}

impl ModulePart for Gates {
    fn visit_part(&self, visitor: &mut PartVisitor<'_>) {
        visitor.part("weight_input", &self.weight_input);
        visitor.part("weight_hidden", &self.weight_hidden);
        visitor.part("bias_input", &self.bias_input);
        visitor.part("bias_hidden", &self.bias_hidden);
    }

    fn owner_path(&self) -> Option<OwnerId> {
        None
    }
}

/// Splits along axis 1 into single positions by repeated bisection. The gradient of a part is as large as the tensor
/// from which it was cut, so cutting each position from the whole would take quadratic time.
fn split(x: &Tensor, places: &mut Vec<Tensor>) -> Result<()> {
    match x.dims()[1] {
        0 => Ok(()),
        1 => {
            places.push(x.squeeze(1)?);
            Ok(())
        }
        len => {
            split(&x.narrow(1, 0, len / 2)?, places)?;
            split(&x.narrow(1, len / 2, len - len / 2)?, places)
        }
    }
}

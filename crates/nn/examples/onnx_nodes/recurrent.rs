//! Maps ONNX's GRU, LSTM and RNN to Highwater's layers. ONNX has another order of gates, transposed matrices,
//! both biases in one input, and the sequence axis before the batch axis.

use highwater_nn::modules::{Gru, Lstm, Module, Nonlinearity, RecurrentOptions, Rnn};
use highwater_tensor::{DType, Rng, Tensor};

use crate::mapping::{Node, Outcome, because};

/// The positions of Highwater's gates r, z, n among z, r, h.
const GRU: [usize; 3] = [1, 0, 2];
/// The positions of Highwater's gates i, f, g, o among i, o, f, c.
const LSTM: [usize; 4] = [0, 2, 3, 1];

pub(crate) fn gru(node: &Node<'_>) -> Outcome<Vec<Tensor>> {
    let form = Form::of(node, &["Sigmoid", "Tanh"])?;
    let x = form.sequence_in(node)?;
    let gru = Gru::with_options(x.device(), form.inputs, form.hidden, form.options(x.dtype()), &Rng::new(0))?;
    let gru = gru.with_reset_after(node.case.whole("linear_before_reset", 0) != 0);
    form.give(node, &gru, &GRU)?;
    let state = form.state_in(node.given(5))?;
    let (y, h) = gru.run(&x, state.as_ref())?;
    Ok(vec![form.sequence_out(&y)?, form.state_out(&h)?])
}

pub(crate) fn lstm(node: &Node<'_>) -> Outcome<Vec<Tensor>> {
    let form = Form::of(node, &["Sigmoid", "Tanh", "Tanh"])?;
    node.only("input_forget", 0)?;
    if node.given(7).is_some() {
        return Err(because("peepholes"));
    }
    let x = form.sequence_in(node)?;
    let lstm =
        Lstm::with_options(x.device(), form.inputs, form.hidden, form.options(x.dtype()), &Rng::new(0))?;
    form.give(node, &lstm, &LSTM)?;
    let state = match [form.state_in(node.given(5))?, form.state_in(node.given(6))?] {
        [Some(h), Some(c)] => Some((h, c)),
        [None, None] => None,
        _ => return Err(because("a state without its cell")),
    };
    let (y, h, c) = lstm.run(&x, state.as_ref().map(|(h, c)| (h, c)))?;
    Ok(vec![form.sequence_out(&y)?, form.state_out(&h)?, form.state_out(&c)?])
}

pub(crate) fn rnn(node: &Node<'_>) -> Outcome<Vec<Tensor>> {
    let relu = node.case.words("activations").iter().any(|name| name.eq_ignore_ascii_case("Relu"));
    let (activation, nonlinearity) =
        if relu { ("Relu", Nonlinearity::Relu) } else { ("Tanh", Nonlinearity::Tanh) };
    let form = Form::of(node, &[activation])?;
    let x = form.sequence_in(node)?;
    let rnn = Rnn::with_options(x.device(), form.inputs, form.hidden, form.options(x.dtype()), &Rng::new(0))?;
    let rnn = rnn.with_nonlinearity(nonlinearity);
    form.give(node, &rnn, &[0])?;
    let state = form.state_in(node.given(5))?;
    let (y, h) = rnn.run(&x, state.as_ref())?;
    Ok(vec![form.sequence_out(&y)?, form.state_out(&h)?])
}

/// The sizes and options of a node.
struct Form {
    directions: usize,
    /// Whether a node with one direction reads the sequence backward.
    reverse: bool,
    batch_first: bool,
    batch: usize,
    len: usize,
    inputs: usize,
    hidden: usize,
}

impl Form {
    /// Rejects attributes that Highwater's layers do not support.
    fn of(node: &Node<'_>, activations: &[&str]) -> Outcome<Self> {
        let (case, x, recurrence) = (node.case, node.input(0)?, node.input(2)?);
        let batch_first = case.whole("layout", 0) == 1;
        let (&[first, second, inputs], &[directions, _, hidden]) = (x.dims(), recurrence.dims()) else {
            return Err(because("inputs of another rank"));
        };
        let (batch, len) = if batch_first { (first, second) } else { (second, first) };
        let asked = case.words("activations");
        if asked.iter().zip(activations.iter().cycle()).any(|(asked, ours)| !asked.eq_ignore_ascii_case(ours))
        {
            return Err(because("option activations"));
        }
        if case.float("clip").is_some() {
            return Err(because("option clip"));
        }
        if case.given_list(4).is_some_and(|lens| lens.iter().any(|&of_one| of_one != len as i64)) {
            return Err(because("sequences of several lengths"));
        }
        let reverse = case.word("direction", "forward") == "reverse";
        Ok(Self { directions, reverse, batch_first, batch, len, inputs, hidden })
    }

    fn options(&self, dtype: DType) -> RecurrentOptions {
        RecurrentOptions { bidirectional: self.directions == 2, dtype, ..RecurrentOptions::default() }
    }

    /// Copies the weights of a node into a module. `order` lists the position of each Highwater gate among
    /// ONNX's gates.
    fn give(&self, node: &Node<'_>, module: &dyn Module, order: &[usize]) -> Outcome<()> {
        let rows = order.len() * self.hidden;
        let ordered = |gates: &Tensor| {
            let parts: Vec<Tensor> = order
                .iter()
                .map(|&gate| gates.narrow(0, gate * self.hidden, self.hidden))
                .collect::<Result<_, _>>()?;
            Tensor::concat(&parts.iter().collect::<Vec<_>>(), 0)
        };
        let biases = match node.given(3) {
            Some(biases) => biases.clone(),
            None => Tensor::zeros_of(
                node.input(0)?.device(),
                [self.directions, 2 * rows],
                node.input(0)?.dtype(),
            )?,
        };
        for (direction, parameters) in module.parameters().chunks(4).enumerate() {
            let direction = direction as isize;
            let bias = biases.at(direction)?;
            let values = [
                ordered(&node.input(1)?.at(direction)?)?.t()?,
                ordered(&node.input(2)?.at(direction)?)?.t()?,
                ordered(&bias.narrow(0, 0, rows)?)?,
                ordered(&bias.narrow(0, rows, rows)?)?,
            ];
            for ((_, parameter), value) in parameters.iter().zip(values) {
                parameter.set(&value)?;
            }
        }
        Ok(())
    }

    /// Returns the input as `[n, len, inputs]`, in the order in which the layer reads it.
    fn sequence_in(&self, node: &Node<'_>) -> Outcome {
        let x = node.input(0)?;
        let x = if self.batch_first { x.clone() } else { x.transpose(0, 1)? };
        Ok(if self.reverse { x.flip(1)? } else { x })
    }

    /// `[n, len, directions · hidden]` with an axis for the directions.
    fn sequence_out(&self, y: &Tensor) -> Outcome {
        let y = if self.reverse { y.flip(1)? } else { y.clone() };
        let y = y.reshape([self.batch, self.len, self.directions, self.hidden])?;
        Ok(if self.batch_first { y } else { y.permute([1, 2, 0, 3])? })
    }

    fn state_in(&self, state: Option<&Tensor>) -> Outcome<Option<Tensor>> {
        let Some(state) = state else { return Ok(None) };
        let state = if self.batch_first { state.transpose(0, 1)? } else { state.clone() };
        Ok(Some(if self.directions == 1 { state.squeeze(0)? } else { state }))
    }

    fn state_out(&self, state: &Tensor) -> Outcome {
        let state = state.reshape([self.directions, self.batch, self.hidden])?;
        Ok(if self.batch_first { state.transpose(0, 1)? } else { state })
    }
}

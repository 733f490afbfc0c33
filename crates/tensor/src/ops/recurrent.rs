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

use super::axes::AxisSet;
use super::{if_needed, matmul, reduce, same_dtype, supported};
use crate::autograd::apply_builtin;
use crate::backend::{Kernel, Recurrence, RecurrentCell, Reduce, Workspace};
use crate::error::{Error, Result, ShapeRule};
use crate::layout::Layout;
use crate::op::{Buffer, BuiltinOp, Op, OpContext, Saved};
use crate::shape::{DType, Scalar, Shape};
use crate::storage::{View, ViewMut};
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

/// The op on the rows of all sequences. Its inputs are the rows, W, U, both biases, and optionally the initial state and
/// cell.
#[derive(Debug)]
struct Recurrent {
    cell: RecurrentCell,
    reverse: bool,
    /// The number of steps, at least 1.
    len: usize,
    /// Whether the result has the cells after the last step (LSTM), as further rows below the states.
    returns_cell: bool,
}

/// The numbers of the inputs.
const X: usize = 0;
const INPUT: usize = 1;
const HIDDEN: usize = 2;
const INPUT_BIAS: usize = 3;
const HIDDEN_BIAS: usize = 4;
const INITIAL: usize = 5;

impl Op for Recurrent {
    fn name(&self) -> &'static str {
        self.cell.name()
    }

    fn forward(&self, ctx: &OpContext<'_>, inputs: &[&Tensor]) -> Result<Tensor> {
        let [x, weight, of_state] = [inputs[X], inputs[INPUT], inputs[HIDDEN]];
        let (rows, hidden, dtype) = (x.dims()[0], of_state.dims()[0], x.dtype());
        let sequences = rows / self.len;
        let below = if self.returns_cell { sequences } else { 0 };
        let mut out = ctx.output_saved(&Shape::matrix(rows + below, hidden), dtype)?;
        let mut gates = ctx.temp_saved(&Shape::matrix(rows, weight.dims()[1]), dtype)?;
        let states = Layout::row_major(&Shape::matrix(rows, hidden));
        let has_extra = self.cell.has_extra();
        let mut extra = has_extra.then(|| ctx.temp_saved(states.shape(), dtype)).transpose()?;
        multiply(ctx, Some(inputs[INPUT_BIAS]), [x.view(), weight.view()], gates.view_mut())?;
        let mut workspace = self.workspace(ctx, [sequences, hidden], dtype)?;
        let initial = inputs[INITIAL..].iter().copied();
        ctx.compute(Kernel::Recurrent {
            of: self.recurrence(of_state, initial),
            bias: inputs[HIDDEN_BIAS].view(),
            workspace: workspace.as_mut().map(Buffer::view_mut),
            gates: gates.view_mut(),
            extra: extra.as_mut().map(Buffer::view_mut),
            out: out.view_mut().with_layout(&states),
        })?;
        drop(workspace);
        if let Some(cells) = extra.as_ref().filter(|_| self.returns_cell) {
            let last = self.step(cells.view().layout(), self.len - 1)?;
            let (input, out) = (cells.view(), out.view_mut());
            let input = input.with_layout(&last);
            ctx.compute(Kernel::CopyInto { input, axis: 0, start: rows, step: 1, out })?;
        }
        let out = out.finish();
        ctx.save(of_state);
        ctx.save(&out);
        inputs[INITIAL..].iter().for_each(|initial| ctx.save(initial));
        if x.requires_grad() {
            ctx.save(weight);
        }
        if weight.requires_grad() {
            ctx.save(x);
        }
        if let Some(extra) = extra {
            ctx.save(&extra.finish());
        }
        ctx.save(&gates.finish());
        Ok(out)
    }

    fn backward(&self, ctx: &OpContext<'_>, saved: &Saved, grad: &Tensor) -> Result<Vec<Option<Tensor>>> {
        let (tensors, has_extra) = (saved.tensors.len(), self.cell.has_extra());
        let gates = saved.tensor(tensors - 1)?.clone();
        let extra = has_extra.then(|| saved.tensor(tensors - 2).cloned()).transpose()?;
        self.gradients(ctx, saved, (gates, extra), grad)
    }
}

impl BuiltinOp for Recurrent {
    fn backward_owned(
        &self,
        ctx: &OpContext<'_>,
        saved: &mut Saved,
        grad: Tensor,
    ) -> Result<Vec<Option<Tensor>>> {
        let gates = saved.take_last()?;
        let extra = self.cell.has_extra().then(|| saved.take_last()).transpose()?;
        self.gradients(ctx, saved, (gates, extra), &grad)
    }
}

impl Recurrent {
    fn recurrence<'a>(
        &self,
        weight: &'a Tensor,
        initial: impl IntoIterator<Item = &'a Tensor>,
    ) -> Recurrence<'a> {
        let Self { cell, reverse, len, .. } = *self;
        let mut initial = initial.into_iter().map(Tensor::view);
        Recurrence { cell, reverse, len, weight: weight.view(), initial: [initial.next(), initial.next()] }
    }

    fn workspace(
        &self,
        ctx: &OpContext<'_>,
        [sequences, hidden]: [usize; 2],
        dtype: DType,
    ) -> Result<Option<Buffer>> {
        ctx.workspace(Workspace::Recurrent { cell: self.cell, sizes: [sequences, self.len, hidden], dtype })
    }

    /// Returns the layout of the rows of one step, in the order of the computation, of rows in `layout`.
    fn step(&self, layout: &Layout, step: usize) -> Result<Layout> {
        let first = if self.reverse { self.len - 1 - step } else { step };
        layout.sliced(self.name(), 0, first..layout.shape()[0], self.len)
    }

    /// Computes the gradients, in the buffers of the gates and of `extra` if no other handle shares them.
    fn gradients(
        &self,
        ctx: &OpContext<'_>,
        saved: &Saved,
        (gates, extra): (Tensor, Option<Tensor>),
        grad: &Tensor,
    ) -> Result<Vec<Option<Tensor>>> {
        let mut gates = exclusive(ctx, gates)?;
        let mut extra = extra.map(|extra| exclusive(ctx, extra)).transpose()?;
        let mut gradients = vec![None; saved.inputs()];
        let initial = self.run_back(ctx, saved, (&mut gates, extra.as_mut()), grad)?;
        gradients[INITIAL..].iter_mut().zip(initial).for_each(|(to, gradient)| *to = gradient);
        let is_gru = self.cell == RecurrentCell::Gru;
        // The cells of an LSTM are not read again.
        extra = extra.filter(|_| is_gru);
        // The initial state and cell are saved before the weight and the rows.
        let weight = 2 + saved.inputs() - INITIAL;
        gradients[X] = if_needed(saved, X, || {
            let weight = saved.tensor(weight)?;
            product(ctx, gates.view(), weight.view().with_layout(&weight.layout().transposed()))
        })?;
        gradients[INPUT] = if_needed(saved, INPUT, || {
            let x = saved.tensor(weight + usize::from(saved.needs_grad(X)))?;
            product(ctx, x.view().with_layout(&x.layout().transposed()), gates.view())
        })?;
        gradients[INPUT_BIAS] = if_needed(saved, INPUT_BIAS, || sum_rows(ctx, &gates))?;
        if let Some(inner) = extra.take() {
            // Of the gradients of h·U, only that of gate n differs from that of x·W.
            let (input, start) = (inner.view(), gates.dims()[1] - inner.dims()[1]);
            let out = writable(&mut gates);
            ctx.compute(Kernel::CopyInto { input, axis: 1, start, step: 1, out })?;
        }
        gradients[HIDDEN_BIAS] = match &gradients[INPUT_BIAS] {
            Some(same) if !is_gru => Some(same.clone()).filter(|_| saved.needs_grad(HIDDEN_BIAS)),
            _ => if_needed(saved, HIDDEN_BIAS, || sum_rows(ctx, &gates))?,
        };
        gradients[HIDDEN] = if_needed(saved, HIDDEN, || {
            let before = self.previous_states(ctx, saved, gates.dims()[0])?;
            product(ctx, before.view().with_layout(&before.layout().transposed()), gates.view())
        })?;
        Ok(gradients)
    }

    /// Replaces the gates with their gradients. Returns the gradients of the initial state and cell, if required.
    fn run_back(
        &self,
        ctx: &OpContext<'_>,
        saved: &Saved,
        (gates, extra): (&mut Tensor, Option<&mut Tensor>),
        grad: &Tensor,
    ) -> Result<[Option<Tensor>; 2]> {
        let (weight, out) = (saved.tensor(0)?, saved.tensor(1)?);
        let (rows, hidden, dtype) = (gates.dims()[0], weight.dims()[0], gates.dtype());
        let sequences = rows / self.len;
        let initial = saved.tensors[2..].iter().take(saved.inputs() - INITIAL);
        let of = self.recurrence(weight, initial);
        let part = |tensor: &Tensor, range| tensor.layout().sliced(self.name(), 0, range, 1);
        let (states, of_states) = (part(out, 0..rows)?, part(grad, 0..rows)?);
        let of_cell = self.returns_cell.then(|| part(grad, rows..rows + sequences)).transpose()?;
        let required = |index: usize| saved.needs_grad(INITIAL + index);
        let initial_grad = |index: usize| {
            required(index).then(|| ctx.output(&Shape::matrix(sequences, hidden), dtype)).transpose()
        };
        let (mut state_grad, mut cell_grad) = (initial_grad(0)?, initial_grad(1)?);
        let mut workspace = self.workspace(ctx, [sequences, hidden], dtype)?;
        ctx.compute(Kernel::RecurrentGrad {
            of,
            states: out.view().with_layout(&states),
            grad: grad.view().with_layout(&of_states),
            cell_grad: of_cell.as_ref().map(|layout| grad.view().with_layout(layout)),
            workspace: workspace.as_mut().map(Buffer::view_mut),
            gates: writable(gates),
            extra: extra.map(writable),
            initial_grads: [&mut state_grad, &mut cell_grad].map(|grad| grad.as_mut().map(Buffer::view_mut)),
        })?;
        Ok([state_grad, cell_grad].map(|grad| grad.map(Buffer::finish)))
    }

    /// Returns the state before each step, in the order of the gates' rows.
    fn previous_states(&self, ctx: &OpContext<'_>, saved: &Saved, rows: usize) -> Result<Tensor> {
        let (op, len, out) = (self.name(), self.len, saved.tensor(1)?);
        let hidden = out.dims()[1];
        let cube = Layout::row_major(&Shape::new(&[rows / len, len, hidden])?);
        let mut before = ctx.temp(&Shape::matrix(rows, hidden), out.dtype())?;
        let (others, start, first) = if self.reverse { (1..len, 0, len - 1) } else { (0..len - 1, 1, 0) };
        if saved.inputs() > INITIAL {
            let initial = saved.tensor(2)?;
            let layout = initial.layout().with_axis(1)?;
            let (input, mut out) = (initial.view(), before.view_mut());
            let (input, out) = (input.with_layout(&layout), out.with_layout(&cube));
            ctx.compute(Kernel::CopyInto { input, axis: 1, start: first, step: 1, out })?;
        } else {
            ctx.compute(Kernel::Fill { value: Scalar::Int(0), out: before.view_mut() })?;
        }
        let states = cube.sliced(op, 1, others, 1)?;
        let (input, mut out) = (out.view(), before.view_mut());
        let (input, out) = (input.with_layout(&states), out.with_layout(&cube));
        ctx.compute(Kernel::CopyInto { input, axis: 1, start, step: 1, out })?;
        Ok(before.finish())
    }
}

/// Returns a tensor that no other handle shares: the same one, or a copy.
fn exclusive(ctx: &OpContext<'_>, mut tensor: Tensor) -> Result<Tensor> {
    if tensor.view_mut().is_some() {
        return Ok(tensor);
    }
    let mut copy = ctx.temp(tensor.shape(), tensor.dtype())?;
    ctx.compute(Kernel::Copy { input: tensor.view(), out: copy.view_mut() })?;
    Ok(copy.finish())
}

/// Returns the writable view of an [exclusive] tensor.
fn writable(tensor: &mut Tensor) -> ViewMut<'_> {
    tensor.view_mut().unwrap_or_else(|| unreachable!("the caller has made the tensor exclusive"))
}

/// `out = lhs · rhs + bias`
fn multiply(
    ctx: &OpContext<'_>,
    bias: Option<&Tensor>,
    [lhs, rhs]: [View<'_>; 2],
    out: ViewMut<'_>,
) -> Result<()> {
    let mut workspace = matmul::workspace(ctx, lhs, rhs)?;
    let (bias, workspace) = (bias.map(Tensor::view), workspace.as_mut().map(Buffer::view_mut));
    let precision = ctx.precision(lhs.dtype());
    ctx.compute(Kernel::MatMul { precision, bias, lhs, rhs, activation: None, workspace, out })
}

/// Returns the product of two matrices.
fn product(ctx: &OpContext<'_>, lhs: View<'_>, rhs: View<'_>) -> Result<Tensor> {
    let shape = Shape::matrix(lhs.layout().shape()[0], rhs.layout().shape()[1]);
    let mut out = ctx.output(&shape, lhs.dtype())?;
    multiply(ctx, None, [lhs, rhs], out.view_mut())?;
    Ok(out.finish())
}

/// Returns the sum of all rows.
fn sum_rows(ctx: &OpContext<'_>, matrix: &Tensor) -> Result<Tensor> {
    let mut rows = AxisSet::none(2);
    rows.insert(0);
    let like = (&Shape::row(matrix.dims()[1]), matrix.dtype());
    reduce::share_as(ctx, (Reduce::Sum, 1.0), matrix.view(), &rows, like)
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
            return Err(Error::TooManyElements { op: op.name(), shape: *self.shape(), dtype: self.dtype() });
        };
        let x = self.reshape([rows, self.dims()[2]])?;
        let RecurrentWeights { input, hidden, input_bias, hidden_bias } = weights;
        let mut inputs = vec![&x, input, hidden, input_bias, hidden_bias];
        inputs.extend(initial);
        apply_builtin(op, &inputs)
    }
}

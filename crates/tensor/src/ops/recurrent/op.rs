//! The op: one product for the inputs of all steps, one kernel for the sequence, and the products of the gradients.

use crate::backend::{RecurrentCell, Reduce, kernels};
use crate::error::Result;
use crate::layout::Layout;
use crate::op::{Buffer, Op, OpContext, Saved};
use crate::ops::axes::AxisSet;
use crate::ops::{if_needed, matmul, reduce};
use crate::shape::{DType, Scalar, Shape};
use crate::storage::{View, ViewMut};
use crate::tensor::Tensor;

/// The op on the rows of all sequences. Its inputs are the rows, W, U, both biases, and optionally the initial state and
/// cell.
#[derive(Debug)]
pub(super) struct Recurrent {
    pub(super) cell: RecurrentCell,
    pub(super) reverse: bool,
    /// The number of steps, at least 1.
    pub(super) len: usize,
    /// Whether the result has the cells after the last step (LSTM), as further rows below the states.
    pub(super) returns_cell: bool,
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
        ctx.compute(kernels::Recurrent {
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
            ctx.compute(kernels::CopyInto { input, axis: 0, start: rows, step: 1, out })?;
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

    fn backward(&self, ctx: &OpContext<'_>, saved: &mut Saved, grad: Tensor) -> Result<Vec<Option<Tensor>>> {
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
    ) -> kernels::Recurrence<'a> {
        let Self { cell, reverse, len, .. } = *self;
        let mut initial = initial.into_iter().map(Tensor::view);
        kernels::Recurrence {
            cell,
            reverse,
            len,
            weight: weight.view(),
            initial_state: initial.next(),
            initial_cell: initial.next(),
        }
    }

    fn workspace(
        &self,
        ctx: &OpContext<'_>,
        [sequences, hidden]: [usize; 2],
        dtype: DType,
    ) -> Result<Option<Buffer>> {
        ctx.workspace(kernels::RecurrentWorkspace {
            cell: self.cell,
            sizes: [sequences, self.len, hidden],
            dtype,
        })
    }

    /// Returns the layout of the rows of one step, in the order of the computation, of rows in `layout`.
    fn step(&self, layout: &Layout, step: usize) -> Result<Layout> {
        let first = if self.reverse { self.len - 1 - step } else { step };
        Ok(layout.sliced(self.name(), 0, first..layout.shape()[0], self.len)?)
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
            product(ctx, X, gates.view(), weight.view().with_layout(&weight.layout().transposed()))
        })?;
        gradients[INPUT] = if_needed(saved, INPUT, || {
            let x = saved.tensor(weight + usize::from(saved.needs_grad(X)))?;
            product(ctx, INPUT, x.view().with_layout(&x.layout().transposed()), gates.view())
        })?;
        gradients[INPUT_BIAS] = if_needed(saved, INPUT_BIAS, || sum_rows(ctx, INPUT_BIAS, &gates))?;
        if let Some(inner) = extra.take() {
            // Of the gradients of h·U, only that of gate n differs from that of x·W.
            let (input, start) = (inner.view(), gates.dims()[1] - inner.dims()[1]);
            let out = writable(&mut gates);
            ctx.compute(kernels::CopyInto { input, axis: 1, start, step: 1, out })?;
        }
        gradients[HIDDEN_BIAS] = match &gradients[INPUT_BIAS] {
            Some(same) if !is_gru => Some(same.clone()).filter(|_| saved.needs_grad(HIDDEN_BIAS)),
            _ => if_needed(saved, HIDDEN_BIAS, || sum_rows(ctx, HIDDEN_BIAS, &gates))?,
        };
        gradients[HIDDEN] = if_needed(saved, HIDDEN, || {
            let before = self.previous_states(ctx, saved, gates.dims()[0])?;
            product(ctx, HIDDEN, before.view().with_layout(&before.layout().transposed()), gates.view())
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
            let shape = Shape::matrix(sequences, hidden);
            required(index).then(|| ctx.gradient(INITIAL + index, &shape, dtype)).transpose()
        };
        let (mut state_grad, mut cell_grad) = (initial_grad(0)?, initial_grad(1)?);
        let mut workspace = self.workspace(ctx, [sequences, hidden], dtype)?;
        ctx.compute(kernels::RecurrentGrad {
            of,
            states: out.view().with_layout(&states),
            grad: grad.view().with_layout(&of_states),
            cell_grad: of_cell.as_ref().map(|layout| grad.view().with_layout(layout)),
            workspace: workspace.as_mut().map(Buffer::view_mut),
            gates: writable(gates),
            extra: extra.map(writable),
            initial_state_grad: state_grad.as_mut().map(Buffer::view_mut),
            initial_cell_grad: cell_grad.as_mut().map(Buffer::view_mut),
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
            ctx.compute(kernels::CopyInto { input, axis: 1, start: first, step: 1, out })?;
        } else {
            ctx.compute(kernels::Fill { value: Scalar::Int(0), out: before.view_mut() })?;
        }
        let states = cube.sliced(op, 1, others, 1)?;
        let (input, mut out) = (out.view(), before.view_mut());
        let (input, out) = (input.with_layout(&states), out.with_layout(&cube));
        ctx.compute(kernels::CopyInto { input, axis: 1, start, step: 1, out })?;
        Ok(before.finish())
    }
}

/// Returns a tensor that no other handle shares: the same one, or a copy.
fn exclusive(ctx: &OpContext<'_>, mut tensor: Tensor) -> Result<Tensor> {
    if tensor.view_mut().is_some() {
        return Ok(tensor);
    }
    let mut copy = ctx.temp(tensor.shape(), tensor.dtype())?;
    ctx.compute(kernels::Copy { input: tensor.view(), out: copy.view_mut() })?;
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
    let mut workspace = matmul::workspace(ctx, lhs, rhs, lhs.dtype())?;
    let (bias, workspace) = (bias.map(Tensor::view), workspace.as_mut().map(Buffer::view_mut));
    ctx.compute(kernels::MatMul { bias, lhs, rhs, activation: None, workspace, out })
}

/// Returns the product of two matrices, which is the gradient of an input.
fn product(ctx: &OpContext<'_>, input: usize, lhs: View<'_>, rhs: View<'_>) -> Result<Tensor> {
    let shape = Shape::matrix(lhs.layout().shape()[0], rhs.layout().shape()[1]);
    let mut out = ctx.gradient(input, &shape, lhs.dtype())?;
    multiply(ctx, None, [lhs, rhs], out.view_mut())?;
    Ok(out.finish())
}

/// Returns the sum of all rows, which is the gradient of an input.
fn sum_rows(ctx: &OpContext<'_>, input: usize, matrix: &Tensor) -> Result<Tensor> {
    let mut rows = AxisSet::none(2);
    rows.insert(0);
    let out = ctx.gradient(input, &Shape::row(matrix.dims()[1]), matrix.dtype())?;
    reduce::share_into(ctx, (Reduce::Sum, 1.0), matrix.view(), &rows, out)
}

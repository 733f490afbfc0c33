//! Recurrent layers: all steps of a sequence in one kernel.
//!
//! Sequences are independent of each other, so each thread computes all steps of a group of sequences without waiting
//! for other threads. The groups depend only on the shape. The weight is packed once for all steps, and the states of a
//! group before each step.

mod cells;
mod product;
mod stored;

use bytemuck::cast_slice_mut;
use cells::{Step, StepGrad};
use half::{bf16, f16};
use product::{Panels, multiply, pack_weight};
use stored::Stored;

use super::{Recurrent, RecurrentGrad};
use crate::cpu::dispatch::{host, host_mut, scratch, unsupported};
use crate::cpu::gemm::{COLUMNS, Depth, PackInto, Pair, ROWS, Strided};
use crate::cpu::number::Float;
use crate::cpu::operands::Source;
use crate::cpu::parallel::Workers;
use crate::cpu::simd;
use crate::error::Result;
use crate::families;
use crate::families::{RecurrentCell, RunCpu};
use crate::shape::{DType, RawElement};
use crate::storage::{View, ViewMut};

/// The largest number of sequences of a group. A product of 16 rows uses each loaded panel of the weight often enough.
const GROUP: usize = 16;

/// The sizes of a layer.
#[derive(Clone, Copy, Debug)]
struct Sizes {
    cell: RecurrentCell,
    sequences: usize,
    len: usize,
    hidden: usize,
    /// Whether the elements are 16-bit floats, which steps convert to f32.
    converts: bool,
}

impl Sizes {
    fn new(of: &families::Recurrence<'_>, rows: usize) -> Self {
        let hidden = of.weight.layout().shape().dims().first().copied().unwrap_or(0);
        let (sequences, converts) = (rows.checked_div(of.len).unwrap_or(0), of.weight.dtype().is_half());
        Self { cell: of.cell, sequences, len: of.len, hidden, converts }
    }

    /// The number of elements of the gates of one state.
    const fn width(&self) -> usize {
        self.hidden.saturating_mul(self.cell.gates())
    }

    /// The number of sequences of each group but the last.
    fn group(&self) -> usize {
        let groups = self.sequences.div_ceil(GROUP).max(1);
        self.sequences.div_ceil(groups).max(1)
    }

    /// The number of groups.
    fn groups(&self) -> usize {
        self.sequences.div_ceil(self.group())
    }

    /// The number of elements of the packed weight, in the forward or the backward pass.
    const fn packed(&self) -> usize {
        let [hidden, width] = self.padded();
        let [forward, backward] = [self.hidden.saturating_mul(width), self.width().saturating_mul(hidden)];
        if forward > backward { forward } else { backward }
    }

    /// The columns of a product, which whole panels compute: those of a state and of its gates.
    const fn padded(&self) -> [usize; 2] {
        [self.hidden.next_multiple_of(COLUMNS), self.width().next_multiple_of(COLUMNS)]
    }

    /// The workspace elements of a group: the panels of its states or gates, their product, what a step passes to the next,
    /// and [`converted`](Self::converted) rows.
    fn per_group(&self) -> usize {
        let [_, width] = self.padded();
        let panels = self.group().next_multiple_of(ROWS).saturating_mul(self.width());
        let rows = self.group().saturating_mul(width.saturating_add(self.hidden));
        panels.saturating_add(rows).saturating_add(self.converted())
    }

    /// The elements of the copies of 16-bit floats in a step: a row of gates and four rows of states.
    const fn converted(&self) -> usize {
        if self.converts { self.width().saturating_add(self.hidden.saturating_mul(4)) } else { 0 }
    }

    /// The elements of the whole workspace.
    fn elements(&self) -> usize {
        self.packed().saturating_add(self.groups().saturating_mul(self.per_group()))
    }
}

/// See [`RecurrentWorkspace`](crate::families::RecurrentWorkspace).
pub(crate) fn workspace(cell: RecurrentCell, [sequences, len, hidden]: [usize; 3], dtype: DType) -> usize {
    let sizes = Sizes { cell, sequences, len, hidden, converts: dtype.is_half() };
    if sequences == 0 || len == 0 { 0 } else { sizes.elements().saturating_mul(dtype.computed_as().size()) }
}

/// Calls a function with the element types: in panels, of tensors, and of steps.
macro_rules! by_panels {
    ($op:expr, $dtype:expr, [$P:ident, $S:ident, $T:ident] => $body:expr) => {{
        macro_rules! with {
            ($panel:ty, $stored:ty, $computed:ty) => {{
                type $P = $panel;
                type $S = $stored;
                type $T = $computed;
                $body
            }};
        }
        match $dtype {
            DType::F32 => with!(f32, f32, f32),
            DType::F64 => with!(f64, f64, f64),
            DType::BF16 if Pair::is_supported() => with!(Pair, bf16, f32),
            DType::BF16 => with!(f32, bf16, f32),
            DType::F16 => with!(f32, f16, f32),
            dtype => Err(unsupported($op, dtype)),
        }
    }};
}

/// The values that all groups share.
struct Layer<'a, P, S> {
    sizes: Sizes,
    reverse: bool,
    /// The packed weight, transposed in the backward pass.
    weight: &'a [[P; COLUMNS]],
    /// The initial state and cell.
    initial: [Option<Source<'a, S>>; 2],
}

/// Packs the weight into the workspace. Returns the layer and the rest of the workspace.
fn prepare<'a, P: Depth, S: PackInto<P> + RawElement, T: Float>(
    workers: &Workers,
    op: &'static str,
    of: &'a families::Recurrence<'_>,
    (sizes, transposed): (Sizes, bool),
    scratch: &'a mut [T],
) -> Result<(Layer<'a, P, S>, &'a mut [T])> {
    let layout = of.weight.layout();
    let data = &host::<S>(op, &of.weight)?[layout.offset()..];
    let (down, across) = (layout.strides()[0], layout.strides()[1]);
    let (columns, depth) = (
        Strided { data, lanes: sizes.width(), lane_stride: across, depth_stride: down },
        Strided { data, lanes: sizes.hidden, lane_stride: down, depth_stride: across },
    );
    let source = |initial: Option<View<'a>>| initial.map(|view| Source::<S>::new(op, view)).transpose();
    let initial = [source(of.initial_state)?, source(of.initial_cell)?];
    let (packed, rest) = scratch.split_at_mut(sizes.packed());
    let packed = cast_slice_mut(packed);
    let weight = match transposed {
        false => pack_weight(workers, &columns, sizes.hidden, packed),
        true => pack_weight(workers, &depth, sizes.width(), packed),
    };
    Ok((Layer { sizes, reverse: of.reverse, weight, initial }, rest))
}

impl<P: Depth<Sum = T>, S: Stored<T> + PackInto<P>, T: Float> Layer<'_, P, S> {
    /// The position of a step.
    const fn position(&self, step: usize) -> usize {
        if self.reverse { self.sizes.len - 1 - step } else { step }
    }

    /// Copies the initial state (0) or cell (1) of a sequence; zeros by default.
    fn load_initial(&self, which: usize, sequence: usize, out: &mut [S]) {
        match &self.initial[which] {
            Some(initial) => initial.load(sequence * self.sizes.hidden, out),
            None => out.fill(S::default()),
        }
    }
}

/// See [`Recurrent`](crate::families::Recurrent).
#[inline(never)]
pub(crate) fn forward(
    workers: &Workers,
    op: &'static str,
    of: &families::Recurrence<'_>,
    bias: View<'_>,
    workspace: &mut Option<ViewMut<'_>>,
    (gates, extra, out): (&mut ViewMut<'_>, &mut Option<ViewMut<'_>>, &mut ViewMut<'_>),
) -> Result<()> {
    let sizes = Sizes::new(of, gates.layout().shape()[0]);
    by_panels!(op, out.dtype(), [P, S, T] => {
        let (gates, out) = (host_mut::<S>(op, gates)?, host_mut::<S>(op, out)?);
        let extra = optional::<S>(op, extra.as_mut())?;
        if out.is_empty() {
            return Ok(());
        }
        let (group, hidden) = (sizes.group(), sizes.hidden);
        let scratch = scratch::<T>(op, workspace, sizes.elements())?;
        let bias = Source::<S>::new(op, bias)?;
        let (mut copied, mut converted) = (Vec::new(), vec![T::default(); sizes.converted()]);
        let bias = S::read(bias.part(0..sizes.width(), &mut copied), &mut converted);
        let (layer, scratch) = prepare::<P, S, T>(workers, op, of, (sizes, false), scratch)?;
        let rows = group * sizes.len;
        let chunks = [rows * sizes.width(), rows * hidden, rows * hidden];
        workers.zipped_with([gates, extra, out], chunks, (scratch, sizes.per_group()), |number, slices, scratch| {
            layer.forward(number * group, bias, slices, scratch);
        });
        Ok(())
    })
}

/// The elements of an optional output.
fn optional<'a, T: RawElement>(op: &'static str, view: Option<&'a mut ViewMut<'_>>) -> Result<&'a mut [T]> {
    view.map_or(Ok(&mut [][..]), |view| host_mut::<T>(op, view))
}

impl<P: Depth<Sum = T>, S: Stored<T> + PackInto<P>, T: Float> Layer<'_, P, S> {
    /// Computes all steps of the sequences from number `first` on.
    fn forward(&self, first: usize, bias: &[T], [gates, extra, out]: [&mut [S]; 3], scratch: &mut [T]) {
        let Sizes { cell, len, hidden, .. } = self.sizes;
        let (width, [_, padded]) = (self.sizes.width(), self.sizes.padded());
        let rows = out.len() / (len * hidden);
        let (panels, rest) = scratch.split_at_mut(rows.next_multiple_of(ROWS) * hidden);
        let (product, rest) = rest.split_at_mut(rows * padded);
        let (carry, rest) = rest.split_at_mut(rows * hidden);
        let mut states = Panels::new(cast_slice_mut(panels), rows, hidden);
        // The product is not yet in use.
        let initial = &mut cast_slice_mut::<T, S>(product)[..rows * hidden];
        for which in 0..cell.states() {
            for (row, (initial, carry)) in
                initial.chunks_mut(hidden).zip(carry.chunks_mut(hidden)).enumerate()
            {
                self.load_initial(which, first + row, initial);
                S::load(initial, carry);
            }
            if which == 0 {
                let data = &*initial;
                states.pack(&Strided { data, lanes: rows, lane_stride: hidden, depth_stride: 1 }, 0..hidden);
            }
        }
        product.fill(T::ZERO);
        let converted = if S::CONVERTS { width + 2 * hidden } else { 0 };
        let (of_gates, rest) = rest[..converted].split_at_mut(width.min(converted));
        let (of_extra, of_out) = rest.split_at_mut(hidden.min(rest.len()));
        for step in 0..len {
            if step > 0 || self.initial[0].is_some() {
                multiply(&states, self.weight, product);
            }
            let products = product.chunks(padded).zip(carry.chunks_mut(hidden));
            for (row, (product, carry)) in products.enumerate() {
                let at = row * len + self.position(step);
                let product = &product[..width];
                S::update(&mut gates[at * width..][..width], of_gates, |gates| {
                    S::update(part_mut(extra, at, hidden), of_extra, |extra| {
                        S::update(&mut out[at * hidden..][..hidden], of_out, |out| {
                            simd::run(Step { cell, product, bias, gates, carry, extra, out });
                        });
                    });
                });
            }
            let data = &out[self.position(step) * hidden..];
            let (lane_stride, depth_stride) = (len * hidden, 1);
            states.pack(&Strided { data, lanes: rows, lane_stride, depth_stride }, 0..hidden);
        }
    }
}

/// Row number `at`; nothing of an empty slice.
fn part_mut<T>(data: &mut [T], at: usize, len: usize) -> &mut [T] {
    data.get_mut(at * len..(at + 1) * len).unwrap_or_default()
}

/// See [`RecurrentGrad`](crate::families::RecurrentGrad).
#[inline(never)]
pub(crate) fn backward(
    workers: &Workers,
    op: &'static str,
    of: &families::Recurrence<'_>,
    (states, grad, cell_grad): (View<'_>, View<'_>, Option<View<'_>>),
    workspace: &mut Option<ViewMut<'_>>,
    (gates, extra, initial_grads): (
        &mut ViewMut<'_>,
        &mut Option<ViewMut<'_>>,
        [&mut Option<ViewMut<'_>>; 2],
    ),
) -> Result<()> {
    let sizes = Sizes::new(of, gates.layout().shape()[0]);
    by_panels!(op, gates.dtype(), [P, S, T] => {
        let gates = host_mut::<S>(op, gates)?;
        let extra = optional::<S>(op, extra.as_mut())?;
        let [state_grad, first_cell_grad] = initial_grads;
        let state_grads = optional::<S>(op, state_grad.as_mut())?;
        let first_cell_grads = optional::<S>(op, first_cell_grad.as_mut())?;
        if gates.is_empty() {
            return Ok(());
        }
        let (group, hidden) = (sizes.group(), sizes.hidden);
        let scratch = scratch::<T>(op, workspace, sizes.elements())?;
        let inputs = Inputs {
            states: Source::<S>::new(op, states)?,
            grad: Source::<S>::new(op, grad)?,
            cell_grad: cell_grad.map(|grad| Source::<S>::new(op, grad)).transpose()?,
        };
        let (layer, scratch) = prepare::<P, S, T>(workers, op, of, (sizes, true), scratch)?;
        let rows = group * sizes.len;
        let [of_gates, of_extra] = [rows * sizes.width(), rows * hidden];
        let chunks = [of_gates, of_extra, group * hidden, group * hidden];
        let outputs = [gates, extra, state_grads, first_cell_grads];
        workers.zipped_with(outputs, chunks, (scratch, sizes.per_group()), |number, slices, scratch| {
            layer.backward(number * group, &inputs, slices, scratch);
        });
        Ok(())
    })
}

/// The inputs of the backward pass.
struct Inputs<'a, S> {
    states: Source<'a, S>,
    grad: Source<'a, S>,
    cell_grad: Option<Source<'a, S>>,
}

impl<P: Depth<Sum = T>, S: Stored<T> + PackInto<P>, T: Float> Layer<'_, P, S> {
    /// Computes the gradients of all steps of the sequences from number `first` on.
    fn backward(
        &self,
        first: usize,
        inputs: &Inputs<'_, S>,
        [gates, extra, state_grads, cell_grads]: [&mut [S]; 4],
        scratch: &mut [T],
    ) {
        let Sizes { cell, len, hidden, .. } = self.sizes;
        let (width, [padded, _]) = (self.sizes.width(), self.sizes.padded());
        let rows = gates.len() / (len * width);
        let (panels, rest) = scratch.split_at_mut(rows.next_multiple_of(ROWS) * width);
        let (product, rest) = rest.split_at_mut(rows * padded);
        let (carry, rest) = rest.split_at_mut(rows * hidden);
        let mut grads = Panels::new(cast_slice_mut(panels), rows, width);
        product.fill(T::ZERO);
        carry.fill(T::ZERO);
        let mut buffers = Buffers::default();
        if let Some(grad) = &inputs.cell_grad {
            for (row, carry) in carry.chunks_mut(hidden).enumerate() {
                let start = (first + row) * hidden;
                S::load(grad.part(start..start + hidden, &mut buffers.grad), carry);
            }
        }
        let converted = &mut rest[..self.sizes.converted()];
        for step in (0..len).rev() {
            let products = product.chunks(padded).zip(carry.chunks_mut(hidden));
            for (row, (product, carry)) in products.enumerate() {
                let place = Place {
                    sequence: first + row,
                    start: first * len,
                    row: row * len + self.position(step),
                    previous: (step > 0).then(|| row * len + self.position(step - 1)),
                };
                let gates = &mut gates[place.row * width..][..width];
                let buffers = (&mut buffers, &mut *converted);
                self.step_back(place, inputs, buffers, (&product[..hidden], gates, extra, carry));
            }
            if step > 0 || !state_grads.is_empty() {
                let position = self.position(step);
                let rows_of = |data, columns| Strided::<'_, S> {
                    data,
                    lanes: rows,
                    lane_stride: len * columns,
                    depth_stride: 1,
                };
                // The state's shares of the gates have the gradients of the inputs' shares, except for gate n of a GRU.
                grads.pack(&rows_of(&gates[position * width..], width), 0..width);
                if cell == RecurrentCell::Gru {
                    grads.pack(&rows_of(&extra[position * hidden..], hidden), width - hidden..width);
                }
                multiply(&grads, self.weight, product);
            }
        }
        for (row, (product, carry)) in product.chunks(padded).zip(carry.chunks(hidden)).enumerate() {
            let direct = if cell == RecurrentCell::Gru { carry } else { &[] };
            S::update(part_mut(state_grads, row, hidden), converted, |out| write_sum(product, direct, out));
            S::update(part_mut(cell_grads, row, hidden), converted, |out| write_sum(carry, &[], out));
        }
    }

    /// Computes the gradients of one step of one sequence. `extra` is that of the group.
    fn step_back(
        &self,
        place: Place,
        inputs: &Inputs<'_, S>,
        (buffers, converted): (&mut Buffers<S>, &mut [T]),
        (product, gates, extra, carry): (&[T], &mut [S], &mut [S], &mut [T]),
    ) {
        let (cell, hidden) = (self.sizes.cell, carry.len());
        let of_row = |row: usize| row * hidden..(row + 1) * hidden;
        let mut converted = converted;
        // Empty unless elements are converted.
        let mut space = |elements: usize| converted.split_off_mut(..elements).unwrap_or_default();
        let (of_gates, of_grad, of_before) = (space(gates.len()), space(hidden), space(hidden));
        let (of_after, of_extra) = (space(hidden), space(hidden));
        let grad = S::read(inputs.grad.part(of_row(place.start + place.row), &mut buffers.grad), of_grad);
        buffers.initial.resize(hidden, S::default());
        if place.previous.is_none() && cell.has_extra() {
            self.load_initial(cell.states() - 1, place.sequence, &mut buffers.initial);
        }
        match cell {
            RecurrentCell::Lstm => {
                let before = place.previous.map_or(&*buffers.initial, |row| &extra[of_row(row)]);
                let before = S::read(before, of_before);
                let after = S::read(&extra[of_row(place.row)], of_after);
                S::update(gates, of_gates, |gates| {
                    simd::run(StepGrad { cell, grad, product, before, after, gates, extra: &mut [], carry });
                });
            }
            RecurrentCell::Gru => {
                let before = match place.previous {
                    Some(row) => inputs.states.part(of_row(place.start + row), &mut buffers.state),
                    None => &buffers.initial,
                };
                let before = S::read(before, of_before);
                S::update(&mut extra[of_row(place.row)], of_extra, |extra| {
                    S::update(gates, of_gates, |gates| {
                        simd::run(StepGrad { cell, grad, product, before, after: &[], gates, extra, carry });
                    });
                });
            }
            RecurrentCell::Tanh | RecurrentCell::Relu => {
                let (before, after) = (&[][..], &[][..]);
                S::update(gates, of_gates, |gates| {
                    simd::run(StepGrad { cell, grad, product, before, after, gates, extra: &mut [], carry });
                });
            }
        }
    }
}

/// The rows of one step of one sequence.
#[derive(Clone, Copy)]
struct Place {
    /// The number of the sequence.
    sequence: usize,
    /// The first row of the group.
    start: usize,
    /// The row of the step, within the group.
    row: usize,
    /// The row of the previous step, within the group.
    previous: Option<usize>,
}

/// Copies of rows that are not contiguous.
#[derive(Default)]
struct Buffers<T> {
    grad: Vec<T>,
    state: Vec<T>,
    initial: Vec<T>,
}

/// `out = a + b`, where `b` may be empty and `out` may be empty.
fn write_sum<T: Float>(a: &[T], b: &[T], out: &mut [T]) {
    out.iter_mut().zip(a).for_each(|(out, &a)| *out = a);
    out.iter_mut().zip(b).for_each(|(out, &b)| *out += b);
}

impl RunCpu for Recurrent<'_> {
    fn run_cpu(&mut self, workers: &Workers, op: &'static str) -> Result<()> {
        let outputs = (&mut self.gates, &mut self.extra, &mut self.out);
        forward(workers, op, &self.of, self.bias, &mut self.workspace, outputs)
    }
}

impl RunCpu for RecurrentGrad<'_> {
    fn run_cpu(&mut self, workers: &Workers, op: &'static str) -> Result<()> {
        let inputs = (self.states, self.grad, self.cell_grad);
        let initial_grads = [&mut self.initial_state_grad, &mut self.initial_cell_grad];
        let outputs = (&mut self.gates, &mut self.extra, initial_grads);
        backward(workers, op, &self.of, inputs, &mut self.workspace, outputs)
    }
}

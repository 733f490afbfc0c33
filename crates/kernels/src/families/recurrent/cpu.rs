//! Recurrent layers: all steps of a sequence in one kernel.
//!
//! Sequences are independent of each other, so each thread computes all steps of a group of sequences without waiting
//! for other threads. The groups depend only on the shape. The weight is packed once for all steps, and the states of a
//! group before each step.

mod cells;
mod product;

use bytemuck::{Pod, cast_slice, cast_slice_mut};
use cells::{Step, StepGrad};
use product::{Panels, multiply, pack_weight};

use super::{Recurrent, RecurrentGrad};
use crate::cpu::dispatch::{host, host_mut, scratch, unsupported};
use crate::cpu::gemm::{COLUMNS, Depth, PackInto, Pair, ROWS, Strided, Unrounded};
use crate::cpu::number::Float;
use crate::cpu::operands::Source;
use crate::cpu::parallel::Workers;
use crate::cpu::simd;
use crate::error::Result;
use crate::families;
use crate::families::{RecurrentCell, RunCpu};
use crate::precision::Precision;
use crate::shape::DType;
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
}

impl Sizes {
    fn new(of: &families::Recurrence<'_>, rows: usize) -> Self {
        let hidden = of.weight.layout().shape().dims().first().copied().unwrap_or(0);
        Self { cell: of.cell, sequences: rows.checked_div(of.len).unwrap_or(0), len: of.len, hidden }
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

    /// The workspace elements of a group: the panels of its states or gates, their product, and what a step passes to the
    /// next.
    fn per_group(&self) -> usize {
        let [_, width] = self.padded();
        let panels = self.group().next_multiple_of(ROWS).saturating_mul(self.width());
        panels.saturating_add(self.group().saturating_mul(width.saturating_add(self.hidden)))
    }

    /// The elements of the whole workspace.
    fn elements(&self) -> usize {
        self.packed().saturating_add(self.groups().saturating_mul(self.per_group()))
    }
}

/// See [`RecurrentWorkspace`](crate::families::RecurrentWorkspace).
pub(crate) fn workspace(cell: RecurrentCell, [sequences, len, hidden]: [usize; 3], dtype: DType) -> usize {
    let sizes = Sizes { cell, sequences, len, hidden };
    if sequences == 0 || len == 0 { 0 } else { sizes.elements().saturating_mul(dtype.size()) }
}

/// Calls a function with the element types: in panels, as packed, and as stored.
macro_rules! by_panels {
    ($op:expr, $dtype:expr, $precision:expr, [$P:ident, $A:ident, $T:ident] => $body:expr) => {{
        macro_rules! with {
            ($panel:ty, $packed:ty, $stored:ty) => {{
                type $P = $panel;
                type $A = $packed;
                type $T = $stored;
                $body
            }};
        }
        match ($dtype, $precision) {
            (DType::F32, Precision::Full) => with!(f32, f32, f32),
            (DType::F32, Precision::BF16) if Pair::is_supported() => with!(Pair, f32, f32),
            (DType::F32, Precision::BF16) => with!(f32, Unrounded, f32),
            (DType::F64, _) => with!(f64, f64, f64),
            (dtype, _) => Err(unsupported($op, dtype)),
        }
    }};
}

/// The values that all groups share.
struct Layer<'a, P, T> {
    sizes: Sizes,
    reverse: bool,
    /// The packed weight, transposed in the backward pass.
    weight: &'a [[P; COLUMNS]],
    /// The initial state and cell.
    initial: [Option<Source<'a, T>>; 2],
}

/// Packs the weight into the workspace. Returns the layer and the rest of the workspace.
fn prepare<'a, P: Depth, A: PackInto<P> + Pod, T: Float>(
    workers: &Workers,
    op: &'static str,
    of: &'a families::Recurrence<'_>,
    (sizes, transposed): (Sizes, bool),
    scratch: &'a mut [T],
) -> Result<(Layer<'a, P, T>, &'a mut [T])> {
    let layout = of.weight.layout();
    let data = cast_slice::<T, A>(&host::<T>(op, &of.weight)?[layout.offset()..]);
    let (down, across) = (layout.strides()[0], layout.strides()[1]);
    let (columns, depth) = (
        Strided { data, lanes: sizes.width(), lane_stride: across, depth_stride: down },
        Strided { data, lanes: sizes.hidden, lane_stride: down, depth_stride: across },
    );
    let source = |initial: Option<View<'a>>| initial.map(|view| Source::<T>::new(op, view)).transpose();
    let initial = [source(of.initial_state)?, source(of.initial_cell)?];
    let (packed, rest) = scratch.split_at_mut(sizes.packed());
    let packed = cast_slice_mut(packed);
    let weight = match transposed {
        false => pack_weight(workers, &columns, sizes.hidden, packed),
        true => pack_weight(workers, &depth, sizes.width(), packed),
    };
    Ok((Layer { sizes, reverse: of.reverse, weight, initial }, rest))
}

impl<P: Depth<Sum = T>, T: Float> Layer<'_, P, T> {
    /// The position of a step.
    const fn position(&self, step: usize) -> usize {
        if self.reverse { self.sizes.len - 1 - step } else { step }
    }

    /// Copies the initial state (0) or cell (1) of a sequence; zeros by default.
    fn load_initial(&self, which: usize, sequence: usize, out: &mut [T]) {
        match &self.initial[which] {
            Some(initial) => initial.load(sequence * self.sizes.hidden, out),
            None => out.fill(T::ZERO),
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
    by_panels!(op, out.dtype(), of.precision, [P, A, T] => {
        let (gates, out) = (host_mut::<T>(op, gates)?, host_mut::<T>(op, out)?);
        let extra = optional::<T>(op, extra.as_mut())?;
        if out.is_empty() {
            return Ok(());
        }
        let (group, hidden) = (sizes.group(), sizes.hidden);
        let scratch = scratch::<T>(op, workspace, sizes.elements())?;
        let bias = Source::<T>::new(op, bias)?;
        let mut copied = Vec::new();
        let bias = bias.part(0..sizes.width(), &mut copied);
        let (layer, scratch) = prepare::<P, A, T>(workers, op, of, (sizes, false), scratch)?;
        let rows = group * sizes.len;
        let chunks = [rows * sizes.width(), rows * hidden, rows * hidden, sizes.per_group()];
        workers.zipped([gates, extra, out, scratch], chunks, &|number, slices| {
            layer.forward::<A>(number * group, bias, slices);
        });
        Ok(())
    })
}

/// The elements of an optional output.
fn optional<'a, T: Float>(op: &'static str, view: Option<&'a mut ViewMut<'_>>) -> Result<&'a mut [T]> {
    view.map_or(Ok(&mut [][..]), |view| host_mut::<T>(op, view))
}

impl<P: Depth<Sum = T>, T: Float> Layer<'_, P, T> {
    /// Computes all steps of the sequences from number `first` on.
    fn forward<A: PackInto<P> + Pod>(
        &self,
        first: usize,
        bias: &[T],
        [gates, extra, out, scratch]: [&mut [T]; 4],
    ) {
        let Sizes { cell, len, hidden, .. } = self.sizes;
        let (width, [_, padded]) = (self.sizes.width(), self.sizes.padded());
        let rows = out.len() / (len * hidden);
        let (panels, rest) = scratch.split_at_mut(rows.next_multiple_of(ROWS) * hidden);
        let (product, carry) = rest.split_at_mut(rows * padded);
        let carry = &mut carry[..rows * hidden];
        let mut states = Panels::new(cast_slice_mut(panels), rows, hidden);
        product.fill(T::ZERO);
        for which in 0..cell.states() {
            let carries = carry.chunks_mut(hidden).enumerate();
            carries.for_each(|(row, carry)| self.load_initial(which, first + row, carry));
            if which == 0 {
                states.pack(
                    &Strided {
                        data: cast_slice::<T, A>(carry),
                        lanes: rows,
                        lane_stride: hidden,
                        depth_stride: 1,
                    },
                    0..hidden,
                );
            }
        }
        for step in 0..len {
            if step > 0 || self.initial[0].is_some() {
                multiply(&states, self.weight, product);
            }
            let products = product.chunks(padded).zip(carry.chunks_mut(hidden));
            for (row, (product, carry)) in products.enumerate() {
                let at = row * len + self.position(step);
                simd::run(Step {
                    cell,
                    product: &product[..width],
                    bias,
                    gates: &mut gates[at * width..][..width],
                    carry,
                    extra: part_mut(extra, at, hidden),
                    out: &mut out[at * hidden..][..hidden],
                });
            }
            let data = cast_slice::<T, A>(&out[self.position(step) * hidden..]);
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
    by_panels!(op, gates.dtype(), of.precision, [P, A, T] => {
        let gates = host_mut::<T>(op, gates)?;
        let extra = optional::<T>(op, extra.as_mut())?;
        let [state_grad, first_cell_grad] = initial_grads;
        let state_grads = optional::<T>(op, state_grad.as_mut())?;
        let first_cell_grads = optional::<T>(op, first_cell_grad.as_mut())?;
        if gates.is_empty() {
            return Ok(());
        }
        let (group, hidden) = (sizes.group(), sizes.hidden);
        let scratch = scratch::<T>(op, workspace, sizes.elements())?;
        let inputs = Inputs {
            states: Source::<T>::new(op, states)?,
            grad: Source::<T>::new(op, grad)?,
            cell_grad: cell_grad.map(|grad| Source::<T>::new(op, grad)).transpose()?,
        };
        let (layer, scratch) = prepare::<P, A, T>(workers, op, of, (sizes, true), scratch)?;
        let rows = group * sizes.len;
        let [of_gates, of_extra] = [rows * sizes.width(), rows * hidden];
        let chunks = [of_gates, of_extra, group * hidden, group * hidden, sizes.per_group()];
        let outputs = [gates, extra, state_grads, first_cell_grads, scratch];
        workers.zipped(outputs, chunks, &|number, slices| layer.backward::<A>(number * group, &inputs, slices));
        Ok(())
    })
}

/// The inputs of the backward pass.
struct Inputs<'a, T> {
    states: Source<'a, T>,
    grad: Source<'a, T>,
    cell_grad: Option<Source<'a, T>>,
}

impl<P: Depth<Sum = T>, T: Float> Layer<'_, P, T> {
    /// Computes the gradients of all steps of the sequences from number `first` on.
    fn backward<A: PackInto<P> + Pod>(
        &self,
        first: usize,
        inputs: &Inputs<'_, T>,
        [gates, extra, state_grads, cell_grads, scratch]: [&mut [T]; 5],
    ) {
        let Sizes { cell, len, hidden, .. } = self.sizes;
        let (width, [padded, _]) = (self.sizes.width(), self.sizes.padded());
        let rows = gates.len() / (len * width);
        let (panels, rest) = scratch.split_at_mut(rows.next_multiple_of(ROWS) * width);
        let (product, carry) = rest.split_at_mut(rows * padded);
        let carry = &mut carry[..rows * hidden];
        let mut grads = Panels::new(cast_slice_mut(panels), rows, width);
        product.fill(T::ZERO);
        carry.fill(T::ZERO);
        if let Some(grad) = &inputs.cell_grad {
            let carries = carry.chunks_mut(hidden).enumerate();
            carries.for_each(|(row, carry)| grad.load((first + row) * hidden, carry));
        }
        let mut buffers = Buffers::default();
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
                self.step_back(place, inputs, &mut buffers, (&product[..hidden], gates, extra, carry));
            }
            if step > 0 || !state_grads.is_empty() {
                let position = self.position(step);
                let rows_of = |data, columns| Strided {
                    data: cast_slice::<T, A>(data),
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
            write_sum(product, direct, part_mut(state_grads, row, hidden));
            write_sum(carry, &[], part_mut(cell_grads, row, hidden));
        }
    }

    /// Computes the gradients of one step of one sequence. `extra` is that of the group.
    fn step_back(
        &self,
        place: Place,
        inputs: &Inputs<'_, T>,
        buffers: &mut Buffers<T>,
        (product, gates, extra, carry): (&[T], &mut [T], &mut [T], &mut [T]),
    ) {
        let (cell, hidden) = (self.sizes.cell, carry.len());
        let of_row = |row: usize| row * hidden..(row + 1) * hidden;
        let grad = inputs.grad.part(of_row(place.start + place.row), &mut buffers.grad);
        buffers.initial.resize(hidden, T::ZERO);
        if place.previous.is_none() && cell.has_extra() {
            self.load_initial(cell.states() - 1, place.sequence, &mut buffers.initial);
        }
        match cell {
            RecurrentCell::Lstm => {
                let before = place.previous.map_or(&*buffers.initial, |row| &extra[of_row(row)]);
                let after = &extra[of_row(place.row)];
                simd::run(StepGrad { cell, grad, product, before, after, gates, extra: &mut [], carry });
            }
            RecurrentCell::Gru => {
                let before = match place.previous {
                    Some(row) => inputs.states.part(of_row(place.start + row), &mut buffers.state),
                    None => &buffers.initial,
                };
                let extra = &mut extra[of_row(place.row)];
                simd::run(StepGrad { cell, grad, product, before, after: &[], gates, extra, carry });
            }
            RecurrentCell::Tanh | RecurrentCell::Relu => {
                let (before, after, extra) = (&[][..], &[][..], &mut [][..]);
                simd::run(StepGrad { cell, grad, product, before, after, gates, extra, carry });
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

//! Recurrent layers: for each step a product and an elementwise kernel.

use bfc_cuda::kernels::{Job, JobInput, JobOutput};
use bfc_cuda::{Factor, Product};

use super::{Recurrent, RecurrentGrad};
use crate::cuda::Family;
use crate::cuda::launch::{
    Launcher, element_type, kernel, origin, output, require_float, required_workspace, strided,
};
use crate::error::Result;
use crate::families;
use crate::families::grid::TILE;
use crate::families::{RecurrentCell, RecurrentWorkspace, RunCuda};
use crate::shape::DType;
use crate::storage::{View, ViewMut};
use crate::workspace::Workspace;

/// The flags of the kernels: the step is the first one, or the last one.
const FIRST: u64 = 1;
const LAST: u64 = 2;

/// A layer, with the parts of the workspace.
struct Layer<'a> {
    device: &'a Launcher,
    op: &'static str,
    of: &'a families::Recurrence<'a>,
    dtype: DType,
    sequences: usize,
    hidden: usize,
    /// The address of what a step of the backward pass passes to the next, in the type of computations.
    carry: u64,
    /// The address of the state's shares of all gates of a step.
    shares: u64,
    /// The address of the gradient of a step's state by the next step.
    state_grad: u64,
}

/// A matrix for products: its address and strides.
type Matrix = (u64, [usize; 2]);

impl<'a> Layer<'a> {
    /// Returns `None` if there is nothing to compute.
    fn new(
        device: &'a Launcher,
        op: &'static str,
        of: &'a families::Recurrence<'_>,
        workspace: Option<&ViewMut<'_>>,
        gates: &ViewMut<'_>,
    ) -> Result<Option<Self>> {
        let dtype = gates.dtype();
        require_float(op, dtype)?;
        let (rows, hidden) = (gates.layout().shape()[0], of.weight.layout().shape()[0]);
        if gates.layout().shape().elements() == 0 {
            return Ok(None);
        }
        let sequences = rows / of.len;
        let (size, computed) = (dtype.size(), dtype.computed_as().size());
        let request = RecurrentWorkspace { cell: of.cell, sizes: [sequences, of.len, hidden], dtype };
        let bytes = request.gpu_bytes();
        let carry = required_workspace(op, workspace, bytes)?.storage().address();
        let state = sequences * hidden;
        let shares = carry + (state * computed) as u64;
        let state_grad = shares + (state * of.cell.gates() * size) as u64;
        Ok(Some(Self { device, op, of, dtype, sequences, hidden, carry, shares, state_grad }))
    }

    /// The position of a step in its sequence.
    const fn position(&self, step: usize) -> usize {
        if self.of.reverse { self.of.len - 1 - step } else { step }
    }

    const fn width(&self) -> usize {
        self.hidden * self.of.cell.gates()
    }

    /// Creates the job of a step, whose operand 2 is the initial value that the cell reads.
    fn job(&self, step: usize) -> Job {
        let (len, is_first) = (self.of.len, step == 0);
        let mut job = Job::over((self.sequences * self.hidden) as u64, &[self.sequences, self.hidden]);
        let previous = if is_first { 0 } else { self.position(step - 1) };
        let flags = if is_first { FIRST } else { 0 } | if step + 1 == len { LAST } else { 0 };
        let counts = [self.hidden, len, self.position(step), previous].map(|count| count as u64);
        job.counts[..4].copy_from_slice(&counts);
        job.counts[4] = flags;
        job.function = match self.of.cell {
            RecurrentCell::Lstm => 0,
            RecurrentCell::Gru => 1,
            RecurrentCell::Tanh => 2,
            RecurrentCell::Relu => 3,
        };
        if let Some(initial) = [self.of.initial_state, self.of.initial_cell][self.of.cell.states() - 1] {
            job.inputs[2] = strided(&initial);
        }
        job
    }

    fn launch(&self, name: &'static str, job: &Job) -> Result<()> {
        self.device.launch_threads(self.op, kernel(Family::Recurrent, name, self.dtype), job.count, job)
    }

    /// The rows of one step in a matrix at `address` with one row per sequence and step.
    fn step_rows(&self, address: u64, columns: usize, step: usize) -> Matrix {
        let first = self.position(step) * columns * self.dtype.size();
        (address + first as u64, [self.of.len * columns, 1])
    }

    /// `out = lhs · rhs`, where `out` is contiguous and has a row per sequence.
    fn multiply(&self, lhs: Matrix, rhs: Matrix, [columns, depth]: [usize; 2], out: u64) -> Result<()> {
        let factor = |(address, strides): Matrix, sizes| Factor::new(address, sizes, strides, 0);
        let factors = (factor(lhs, [self.sequences, depth]), factor(rhs, [depth, columns]));
        let sizes = [self.sequences, columns, depth].map(i32::try_from);
        if let ((Some(lhs), Some(rhs)), [Ok(rows), Ok(columns), Ok(depth)]) = (factors, sizes)
            && self.device.has_products()
        {
            let (element, workspace) = (element_type(self.dtype), (0, 0));
            let product = Product {
                element,
                out_element: element,
                rows,
                columns,
                depth,
                batch: 1,
                lhs,
                rhs,
                out,
                accumulate: false,
                workspace,
            };
            if self.device.multiply(self.op, &product)? {
                return Ok(());
            }
        }
        let mut job = Job::over(1, &[]);
        (job.inputs[0], job.inputs[1]) = (JobInput::strided(lhs.0, &[]), JobInput::strided(rhs.0, &[]));
        job.outputs[0] = JobOutput::new(out);
        let [down, across] = lhs.1;
        job.counts = [self.sequences, columns, depth, down, across, rhs.1[0]].map(|count| count as u64);
        job.integers[0] = rhs.1[1] as i64;
        let tiles = self.sequences.div_ceil(TILE) * columns.div_ceil(TILE);
        self.device.launch_blocks(self.op, kernel(Family::Matmul, "matmul", self.dtype), tiles as u64, &job)
    }

    /// Writes the gradient of an initial state or cell: the sum of a product and of what the first step passes on.
    fn write_initial_grad(&self, product: bool, direct: bool, out: &ViewMut<'_>) -> Result<()> {
        let mut job = Job::over((self.sequences * self.hidden) as u64, &[self.sequences, self.hidden]);
        if product {
            job.inputs[0] = JobInput::contiguous(self.state_grad);
        }
        if direct {
            job.inputs[1] = JobInput::contiguous(self.carry).of_floats(true);
        }
        job.outputs[0] = output(out);
        self.launch("recurrent_initial_grad", &job)
    }
}

/// The address and strides of a matrix.
fn matrix(view: &View<'_>) -> Matrix {
    let strides = view.layout().strides();
    (origin(view), [strides[0], strides[1]])
}

impl RunCuda for Recurrent<'_> {
    fn run_cuda(&self, device: &Launcher, op: &'static str) -> Result<()> {
        let Self { ref of, bias, ref gates, ref out, .. } = *self;
        let workspace = self.workspace.as_ref();
        let extra = self.extra.as_ref();
        let Some(layer) = Layer::new(device, op, of, workspace, gates)? else { return Ok(()) };
        let (hidden, width) = (layer.hidden, layer.width());
        let weight = matrix(&of.weight);
        for step in 0..of.len {
            let before = match (step, &of.initial_state) {
                (0, initial) => initial.as_ref().map(matrix),
                (step, _) => Some(layer.step_rows(output(out).address, hidden, step - 1)),
            };
            let mut job = layer.job(step);
            if let Some(before) = before {
                layer.multiply(before, weight, [width, hidden], layer.shares)?;
                job.inputs[0] = JobInput::contiguous(layer.shares);
            }
            job.inputs[1] = strided(&bias);
            (job.outputs[0], job.outputs[2]) = (output(gates), output(out));
            job.outputs[1] = extra.map_or_else(JobOutput::default, output);
            layer.launch("recurrent_step", &job)?;
        }
        Ok(())
    }
}

impl RunCuda for RecurrentGrad<'_> {
    fn run_cuda(&self, device: &Launcher, op: &'static str) -> Result<()> {
        let Self { ref of, states, grad, cell_grad, ref gates, .. } = *self;
        let workspace = self.workspace.as_ref();
        let extra = self.extra.as_ref();
        let initial_grads = [&self.initial_state_grad, &self.initial_cell_grad];
        let Some(layer) = Layer::new(device, op, of, workspace, gates)? else { return Ok(()) };
        let (hidden, width, is_gru) = (layer.hidden, layer.width(), of.cell == RecurrentCell::Gru);
        let [state_grad, first_cell_grad] = initial_grads;
        let (address, [down, across]) = matrix(&of.weight);
        let transposed = (address, [across, down]);
        let (of_states, strides) = matrix(&states);
        for step in (0..of.len).rev() {
            let mut job = layer.job(step);
            job.inputs[0] = strided(&grad);
            if step + 1 < of.len {
                job.inputs[1] = JobInput::contiguous(layer.state_grad);
            }
            job.also = [of_states, layer.carry, if is_gru { layer.shares } else { 0 }, 0];
            job.integers = strides.map(|stride| stride as i64);
            if let Some(cell_grad) = &cell_grad {
                job = job.with_inner(cell_grad.layout().strides());
                job.also[3] = origin(cell_grad);
            }
            job.outputs[..2].copy_from_slice(&[output(gates), extra.map_or_else(JobOutput::default, output)]);
            layer.launch("recurrent_step_grad", &job)?;
            if step > 0 || state_grad.is_some() {
                let shares = match is_gru {
                    true => (layer.shares, [width, 1]),
                    false => layer.step_rows(output(gates).address, width, step),
                };
                layer.multiply(shares, transposed, [hidden, width], layer.state_grad)?;
            }
        }
        if let Some(out) = state_grad {
            layer.write_initial_grad(true, is_gru, out)?;
        }
        first_cell_grad.as_ref().map_or(Ok(()), |out| layer.write_initial_grad(false, true, out))
    }
}

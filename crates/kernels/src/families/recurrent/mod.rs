//! Recurrent layers: all steps in one kernel.

mod cell;
pub(super) mod cpu;
#[cfg(feature = "cuda")]
pub(super) mod cuda;

pub use self::cell::{Recurrence, RecurrentCell};

use super::{Computation, Workspace};
use crate::cost::{Class, Work, times};
use crate::error::Result;
use crate::layout::Layout;
use crate::operands::{CheckedOperand, Rules, checked, field, operands};
use crate::shape::DType;
use crate::storage::{View, ViewMut};

/// All steps of a recurrent layer in one direction (PyTorch's `nn.LSTM`, `nn.GRU` and `nn.RNN`).
/// [`RecurrentCell`](crate::families::RecurrentCell) has the formulas.
#[derive(Debug)]
pub struct Recurrent<'a> {
    /// The cell and the operands that the backward pass shares.
    pub of: Recurrence<'a>,
    /// The bias of the previous state's product, of shape `[gates · hidden]`.
    pub bias: View<'a>,
    /// At least as many bytes as [`RecurrentWorkspace`] requires; `None` if it
    /// requires none.
    pub workspace: Option<ViewMut<'a>>,
    /// Shape `[sequences · len, gates · hidden]`: the inputs' shares of the gates, which their values replace.
    pub gates: ViewMut<'a>,
    /// Required if and only if [`RecurrentCell::has_extra`](crate::families::RecurrentCell::has_extra). Shape
    /// `[sequences · len, hidden]`.
    pub extra: Option<ViewMut<'a>>,
    /// Shape `[sequences · len, hidden]`: the state after each step.
    pub out: ViewMut<'a>,
}

impl<'a> Computation<'a> for Recurrent<'a> {
    operands!(
        Read of.weight, Read of.initial_state, Read of.initial_cell, Read bias,
        Scratch workspace, Update gates, Write extra, Write out,
    );

    fn check(&self, rules: &Rules<'_>) -> Result<()> {
        let (weight, bias, workspace, gates) = checked!(self: of.weight, bias, workspace, gates);
        let (state, cell, extra, out) = checked!(self: of.initial_state, of.initial_cell, extra, out);
        let sizes = Sizes::new(rules, &self.of, weight, gates)?;
        sizes.bias(bias)?;
        sizes.states([Some(out), extra])?;
        sizes.initial([state, cell])?;
        rules.present(field!(self.extra), extra, self.of.cell.has_extra(), gates)?;
        sizes.of_lstm(field!(self.of.initial_cell), cell)?;
        rules.workspace(workspace, &sizes.workspace())
    }

    fn supports_half_on_cpu(&self) -> bool {
        true
    }

    fn work(&self) -> Work {
        work_of(&self.of, self.gates.layout(), Class::Recurrent)
    }
}

/// The gradients of [`Recurrent`].
#[derive(Debug)]
pub struct RecurrentGrad<'a> {
    /// As in the forward pass.
    pub of: Recurrence<'a>,
    /// The output `out` of the forward kernel.
    pub states: View<'a>,
    /// The gradient of `out`.
    pub grad: View<'a>,
    /// The gradient of the cell after the last step of an LSTM, of shape `[sequences, hidden]`.
    pub cell_grad: Option<View<'a>>,
    /// As in the forward pass.
    pub workspace: Option<ViewMut<'a>>,
    /// The output `gates` of the forward kernel, which the gradients of the inputs' shares replace.
    pub gates: ViewMut<'a>,
    /// The output `extra` of the forward kernel. The gradient of `u` replaces it in a GRU.
    pub extra: Option<ViewMut<'a>>,
    /// The gradient of the initial state, of shape `[sequences, hidden]`, if required.
    pub initial_state_grad: Option<ViewMut<'a>>,
    /// The gradient of the initial cell, of shape `[sequences, hidden]`, if required.
    pub initial_cell_grad: Option<ViewMut<'a>>,
}

impl<'a> Computation<'a> for RecurrentGrad<'a> {
    operands!(
        Read of.weight, Read of.initial_state, Read of.initial_cell, Read states, Read grad, Read cell_grad,
        Scratch workspace, Update gates, Update extra, Write initial_state_grad, Write initial_cell_grad,
    );

    fn check(&self, rules: &Rules<'_>) -> Result<()> {
        let (weight, states, grad, workspace) = checked!(self: of.weight, states, grad, workspace);
        let (gates, extra, state, cell) = checked!(self: gates, extra, of.initial_state, of.initial_cell);
        let (state_grad, first_cell_grad, cell_grad) =
            checked!(self: initial_state_grad, initial_cell_grad, cell_grad);
        let sizes = Sizes::new(rules, &self.of, weight, gates)?;
        sizes.states([Some(states), Some(grad), extra])?;
        sizes.initial([state, cell, cell_grad, state_grad, first_cell_grad])?;
        rules.present(field!(self.extra), extra, self.of.cell.has_extra(), gates)?;
        sizes.of_lstm(field!(self.of.initial_cell), cell)?;
        sizes.of_lstm(field!(self.cell_grad), cell_grad)?;
        sizes.of_lstm(field!(self.initial_cell_grad), first_cell_grad)?;
        rules.workspace(workspace, &sizes.workspace())
    }

    fn supports_half_on_cpu(&self) -> bool {
        true
    }

    fn work(&self) -> Work {
        work_of(&self.of, self.gates.layout(), Class::RecurrentGrad)
    }
}

const WEIGHT: &str = "it must be [hidden, gates · hidden]";
const GATES: &str = "it must be [sequences · len, gates · hidden]";
const STATES: &str = "it must be [sequences · len, hidden]";
const BIAS: &str = "it must be [gates · hidden]";
const INITIAL: &str = "it must be [sequences, hidden]";

/// The checked sizes of a layer.
struct Sizes<'r, 'a> {
    rules: &'r Rules<'r>,
    cell: RecurrentCell,
    gates: CheckedOperand<'a>,
    sequences: usize,
    len: usize,
    rows: usize,
    hidden: usize,
    width: usize,
}

impl<'r, 'a> Sizes<'r, 'a> {
    /// Checks the weight and the gates, from which the sizes follow.
    fn new(
        rules: &'r Rules<'r>,
        &Recurrence { cell, len, .. }: &Recurrence<'_>,
        weight: CheckedOperand<'a>,
        gates: CheckedOperand<'a>,
    ) -> Result<Self> {
        let &[hidden, width] = weight.dims() else { return Err(rules.mismatch(&weight, &gates, WEIGHT)) };
        if hidden.checked_mul(cell.gates()) != Some(width) {
            return Err(rules.mismatch(&weight, &gates, WEIGHT));
        }
        rules.same_type(weight, gates)?;
        let rows = match *gates.dims() {
            [rows, columns] if columns == width && (rows.is_multiple_of(len) || rows == 0) => rows,
            _ => return Err(rules.mismatch(&gates, &weight, GATES)),
        };
        let sequences = rows.checked_div(len).unwrap_or(0);
        Ok(Self { rules, cell, gates, sequences, len, rows, hidden, width })
    }

    fn sized(&self, operand: CheckedOperand<'_>, dims: &[usize], rule: &'static str) -> Result<()> {
        self.rules.sized(operand, dims, self.gates, rule)?;
        self.rules.same_type(operand, self.gates)
    }

    fn bias(&self, bias: CheckedOperand<'_>) -> Result<()> {
        self.sized(bias, &[self.width], BIAS)
    }

    /// Checks operands with a row per step.
    fn states<const N: usize>(&self, states: [Option<CheckedOperand<'_>>; N]) -> Result<()> {
        let mut states = states.into_iter().flatten();
        states.try_for_each(|states| self.sized(states, &[self.rows, self.hidden], STATES))
    }

    /// Checks operands with a row per sequence.
    fn initial<const N: usize>(&self, initial: [Option<CheckedOperand<'_>>; N]) -> Result<()> {
        let mut initial = initial.into_iter().flatten();
        initial.try_for_each(|initial| self.sized(initial, &[self.sequences, self.hidden], INITIAL))
    }

    /// Checks that an operand of an LSTM's cell is absent in other layers.
    fn of_lstm(&self, name: &'static str, operand: Option<CheckedOperand<'_>>) -> Result<()> {
        if self.cell.states() > 1 {
            return Ok(());
        }
        self.rules.present(name, operand, false, self.gates)
    }

    const fn workspace(&self) -> RecurrentWorkspace {
        let sizes = [self.sequences, self.len, self.hidden];
        RecurrentWorkspace { cell: self.cell, sizes, dtype: self.gates.dtype() }
    }
}

/// The work of a recurrent layer: a product with the weight for each step, and the functions of the gates.
fn work_of(of: &Recurrence<'_>, gates: &Layout, class: Class) -> Work {
    let [hidden, width] = match *of.weight.layout().shape().dims() {
        [hidden, width] => [hidden, width],
        _ => [0; 2],
    };
    let rows = gates.shape().dims().first().copied().unwrap_or(0);
    let sequences = rows.checked_div(of.len).unwrap_or(0);
    let multiply_adds = times(&[rows, hidden, width]);
    Work {
        is_half: of.weight.dtype().is_half(),
        multiply_adds,
        computed: multiply_adds,
        sides: [sequences, if class == Class::Recurrent { width } else { hidden }],
        elements: gates.shape().elements() as u64,
        ..Work::new(class)
    }
}

/// The workspace of a [`Recurrent`] layer and its gradient.
#[derive(Clone, Copy, Debug)]
pub struct RecurrentWorkspace {
    /// The cell.
    pub cell: RecurrentCell,
    /// The numbers of sequences, of their steps, and of the elements of a state.
    pub sizes: [usize; 3],
    /// The element type.
    pub dtype: DType,
}

impl Workspace for RecurrentWorkspace {
    fn cpu_bytes(&self) -> usize {
        cpu::workspace(self.cell, self.sizes, self.dtype)
    }

    /// For each sequence the gates' product or gradient, the state's gradient, and what a step passes to the next.
    fn gpu_bytes(&self) -> usize {
        let [sequences, len, hidden] = self.sizes;
        let width = hidden.saturating_mul(self.cell.gates() + 2);
        let elements = if len == 0 { 0 } else { sequences.saturating_mul(width) };
        elements.saturating_mul(self.dtype.computed_as().size())
    }
}

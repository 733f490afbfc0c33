//! Checks of recurrent layers.

use super::operand::{CheckedOperand, CheckedOperands, Rules};
use crate::backend::{RecurrentCell, Workspace};
use crate::error::{OperandFault, Result};

const WEIGHT: &str = "it must be [hidden, gates · hidden]";
const GATES: &str = "it must be [sequences · len, gates · hidden]";
const STATES: &str = "it must be [sequences · len, hidden]";
const BIAS: &str = "it must be [gates · hidden]";
const INITIAL: &str = "it must be [sequences, hidden]";

/// Checks the forward or the backward kernel: their operands share names.
pub(super) fn recurrent(
    rules: Rules<'_>,
    operands: &CheckedOperands<'_>,
    (cell, len): (RecurrentCell, usize),
) -> Result<()> {
    let (weight, gates) = (operands.required("weight"), operands.required("gates"));
    let &[hidden, width] = weight.dims() else { return Err(rules.misfit(&weight, &gates, WEIGHT)) };
    if hidden.checked_mul(cell.gates()) != Some(width) {
        return Err(rules.misfit(&weight, &gates, WEIGHT));
    }
    rules.same_type(weight, gates)?;
    let rows = match *gates.dims() {
        [rows, columns] if columns == width && (rows.is_multiple_of(len) || rows == 0) => rows,
        _ => return Err(rules.misfit(&gates, &weight, GATES)),
    };
    let sequences = rows.checked_div(len).unwrap_or(0);
    let of_sizes = |operand: CheckedOperand<'_>, dims: &[usize], rule| {
        rules.sized(operand, dims, gates, rule)?;
        rules.same_type(operand, gates)
    };
    if let Some(bias) = operands.named("bias") {
        of_sizes(bias, &[width], BIAS)?;
    }
    for name in ["out", "states", "grad", "extra"] {
        if let Some(states) = operands.named(name) {
            of_sizes(states, &[rows, hidden], STATES)?;
        }
    }
    for name in ["initial.0", "initial.1", "cell_grad", "initial_grads.0", "initial_grads.1"] {
        if let Some(initial) = operands.named(name) {
            of_sizes(initial, &[sequences, hidden], INITIAL)?;
        }
    }
    present(rules, operands, cell)?;
    let sizes = [sequences, len, hidden];
    rules.workspace(operands, Workspace::Recurrent { cell, sizes, dtype: gates.dtype() })
}

/// Checks that operands of some cells are present only there.
fn present(rules: Rules<'_>, operands: &CheckedOperands<'_>, cell: RecurrentCell) -> Result<()> {
    let fault = |name: &'static str, required: bool| {
        let gates = operands.required("gates").named(name);
        Err(rules.fault(&gates, OperandFault::Presence { required }))
    };
    if operands.named("extra").is_some() != cell.has_extra() {
        return fault("extra", cell.has_extra());
    }
    let of_cells = ["initial.1", "cell_grad", "initial_grads.1"];
    match of_cells.into_iter().find(|name| operands.named(name).is_some()) {
        Some(name) if cell.states() == 1 => fault(name, false),
        _ => Ok(()),
    }
}

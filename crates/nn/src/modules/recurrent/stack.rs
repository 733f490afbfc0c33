//! Stacked recurrent layers, in one or both directions.

use std::fmt;

use highwater_tensor::{Error, Place, RecurrentCell, Result, Rng, Tensor, error::ShapeRule};
use highwater_tracking::{ModulePath, module};

use super::super::debug::{dtype, layer, mapping, size, when};
use super::super::dropout::Dropout;
use super::super::module::Module;
use super::super::parts::PartVisitor;
use super::gates::Gates;
use super::{RecurrentOptions, reset_before};

/// One layer in one direction, and its path in the stack.
#[derive(Clone, Debug)]
struct Cell {
    /// Empty if it is the only one.
    path: String,
    gates: Gates,
}

/// The computation of one layer in one direction.
#[derive(Clone, Copy, Debug)]
pub(super) enum Kind {
    /// One op for all steps.
    Fused(RecurrentCell),
    /// A GRU whose reset gate acts before the product, as several ops for each step.
    ResetBefore,
}

/// All layers of a recurrent module.
#[derive(Clone, Debug)]
pub(super) struct Stack {
    pub(super) path: ModulePath,
    op: &'static str,
    hidden: usize,
    /// Number of cells that read the same input: one or two.
    directions: usize,
    /// Layer by layer; within a layer, forward first.
    cells: Vec<Cell>,
    /// Dropout between layers.
    dropout: Option<Dropout>,
}

impl Stack {
    pub(super) fn new(
        op: &'static str,
        place: &impl Place,
        [inputs, hidden, gates]: [usize; 3],
        options: RecurrentOptions,
        rng: &Rng,
    ) -> Result<Self> {
        for (argument, value) in [("hidden", hidden), ("layers", options.layers)] {
            if value == 0 {
                return Err(Error::BadArgument { op, argument, expected: "above 0", got: "0".to_owned() });
            }
        }
        // Also for a single layer, which has no dropout.
        if !(0.0..1.0).contains(&options.dropout) {
            let (argument, expected, got) =
                ("dropout", "at least 0 and below 1", options.dropout.to_string());
            return Err(Error::BadArgument { op, argument, expected, got });
        }
        let dropout = Dropout::new(options.dropout, &rng.fork(rng.state().sequence).fork(0))?;
        let directions = if options.bidirectional { 2 } else { 1 };
        let mut cells = Vec::new();
        for layer in 0..options.layers {
            let inputs = if layer == 0 { inputs } else { hidden.saturating_mul(directions) };
            for backward in [false, true].into_iter().take(directions) {
                let path = options.path(layer, backward);
                let _scope = module(&path);
                let gates = Gates::new(place, [inputs, hidden, gates], options.dtype, rng)?;
                cells.push(Cell { path, gates });
            }
        }
        let drops = options.dropout > 0.0 && options.layers > 1;
        let (path, dropout) = (ModulePath::new(), drops.then_some(dropout));
        Ok(Self { path, op, hidden, directions, cells, dropout })
    }

    /// Returns the states of the last layer after each step.
    pub(super) fn forward(&self, kind: Kind, x: &Tensor) -> Result<Tensor> {
        self.layers(kind, x, &[], None)
    }

    /// Returns the states of the last layer after each step, and the final values of all layers.
    pub(super) fn run<const STATES: usize>(
        &self,
        kind: Kind,
        x: &Tensor,
        state: Option<[&Tensor; STATES]>,
    ) -> Result<(Tensor, [Tensor; STATES])> {
        let mut left = Vec::with_capacity(self.cells.len());
        let given = state.as_ref().map_or(&[][..], |state| &state[..]);
        let states = self.layers(kind, x, given, Some(&mut left))?;
        Ok((states, self.join(&left)?))
    }

    /// Returns the states of the last layer after each step. Adds the final values of each cell to `left`.
    fn layers(
        &self,
        kind: Kind,
        x: &Tensor,
        state: &[&Tensor],
        mut left: Option<&mut Vec<Vec<Tensor>>>,
    ) -> Result<Tensor> {
        self.check(x, state)?;
        let (mut x, mut count) = (x.clone(), 0);
        for (layer, cells) in self.cells.chunks(self.directions).enumerate() {
            if layer > 0
                && let Some(dropout) = &self.dropout
            {
                x = dropout.forward(&x)?;
            }
            let mut sides = Vec::with_capacity(self.directions);
            for (direction, cell) in cells.iter().enumerate() {
                let _scope = module(&cell.path);
                let initial = self.begin(count, state)?;
                count += 1;
                let (states, last) = cell.run(kind, &x, &initial, (direction == 1, left.is_some()))?;
                if let Some(left) = &mut left {
                    left.push(last);
                }
                sides.push(states);
            }
            x = match &sides[..] {
                [forward, backward] => Tensor::concat(&[forward, backward], -1)?,
                _ => sides.remove(0),
            };
        }
        Ok(x)
    }

    /// Checks the shapes of the initial states against the input.
    fn check(&self, x: &Tensor, states: &[&Tensor]) -> Result<()> {
        let one = [x.dims().first().copied().unwrap_or(0), self.hidden];
        let all = [self.cells.len(), one[0], one[1]];
        let shape = if self.cells.len() == 1 { &one[..] } else { &all };
        if let Some(state) = states.iter().find(|state| state.dims() != shape) {
            return Err(Error::ShapeMismatch {
                op: self.op,
                lhs: *x.shape(),
                rhs: *state.shape(),
                rule: &ShapeRule::Other(
                    "a state must be [n, hidden], or [layers · directions, n, hidden] for several",
                ),
            });
        }
        states.iter().try_for_each(|state| super::same_dtype(self.op, x, state))
    }

    /// Returns the initial values of a cell: its slice of the given states.
    fn begin(&self, cell: usize, given: &[&Tensor]) -> Result<Vec<Tensor>> {
        let only = self.cells.len() == 1;
        given.iter().map(|&state| if only { Ok(state.clone()) } else { state.at(cell as isize) }).collect()
    }

    /// Joins the final values of all cells, in the shape of the initial states. Copies them, so that they do not keep
    /// the states of all steps alive.
    fn join<const STATES: usize>(&self, left: &[Vec<Tensor>]) -> Result<[Tensor; STATES]> {
        let state = |index: usize| {
            let stacked = Tensor::stack(&left.iter().map(|last| &last[index]).collect::<Vec<_>>(), 0)?;
            if left.len() == 1 { stacked.squeeze(0) } else { Ok(stacked) }
        };
        all(std::array::from_fn(state))
    }

    pub(super) fn visit_parts(&self, visitor: &mut PartVisitor<'_>) {
        visitor.part("", &self.path);
        for Cell { path, gates } in &self.cells {
            visitor.part(path, gates);
        }
        visitor.part("dropout", &self.dropout);
    }
}

impl Cell {
    /// Returns the state after each step, and the final values if required.
    fn run(
        &self,
        kind: Kind,
        x: &Tensor,
        initial: &[Tensor],
        (reverse, wants_last): (bool, bool),
    ) -> Result<(Tensor, Vec<Tensor>)> {
        let cell = match kind {
            Kind::ResetBefore => {
                let (states, last) = reset_before::run(&self.gates, x, initial.first(), reverse)?;
                return Ok((states, vec![last]));
            }
            Kind::Fused(cell) => cell,
        };
        if !wants_last {
            return Ok((self.gates.states(cell, x, initial, reverse)?, Vec::new()));
        }
        let (states, cell) = match cell {
            RecurrentCell::Lstm => {
                let (states, cell) = self.gates.lstm(x, initial, reverse)?;
                (states, Some(cell))
            }
            cell => (self.gates.states(cell, x, initial, reverse)?, None),
        };
        let last = match (states.dims(), initial.first()) {
            ([_, 0, _], Some(initial)) => initial.clone(),
            (&[n, 0, hidden], None) => Tensor::zeros_of(x.device(), [n, hidden], x.dtype())?,
            _ => states.select(1, if reverse { 0 } else { -1 })?,
        };
        Ok((states, std::iter::once(last).chain(cell).collect()))
    }
}

/// Returns all values, or the first error.
fn all<const N: usize>(results: [Result<Tensor>; N]) -> Result<[Tensor; N]> {
    let values = results.into_iter().collect::<Result<Vec<_>>>()?;
    Ok(<[Tensor; N]>::try_from(values)
        .unwrap_or_else(|_| unreachable!("there are as many values as results")))
}

impl Stack {
    /// Writes the layer of this name: its sizes and the options that are not the default.
    pub(super) fn print(&self, f: &mut fmt::Formatter<'_>, name: &str) -> fmt::Result {
        let weight = self.cells.first().map(|cell| cell.gates.weight_input());
        let layers = self.cells.len() / self.directions.max(1);
        let parts = [
            mapping(weight.map_or(0, |weight| size(weight, 0)), self.hidden),
            when(layers > 1, format!("layers {layers}")),
            when(self.directions > 1, "bidirectional"),
            self.dropout.as_ref().map(Dropout::debug_part),
            weight.and_then(dtype),
        ];
        layer(f, name, parts)
    }
}

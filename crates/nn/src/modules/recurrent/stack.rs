//! Stacked recurrent layers, in one or both directions.

use bfc_core::OwnerId;
use highwater_tensor::{Error, Place, Result, Rng, Tensor, error::ShapeRule};
use highwater_tracking::{ModulePath, module};

use super::super::dropout::Dropout;
use super::super::module::Module;
use super::super::parts::PartVisitor;
use super::RecurrentOptions;
use super::gates::{Gates, Products, StateWeights};

/// One layer in one direction, and its path in the stack.
#[derive(Debug)]
struct Cell {
    /// Empty if it is the only one.
    path: String,
    gates: Gates,
}

/// All layers of a recurrent module.
#[derive(Debug)]
pub(super) struct Stack {
    path: ModulePath,
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
        let dropout = Dropout::new(options.dropout, &rng.fork(rng.state().sequence).fork(0));
        let directions = if options.bidirectional { 2 } else { 1 };
        let mut cells = Vec::new();
        for layer in 0..options.layers {
            let inputs = if layer == 0 { inputs } else { hidden.saturating_mul(directions) };
            for backward in [false, true].into_iter().take(directions) {
                let path = options.path(layer, backward);
                let _scope = module(&path);
                let gates = Gates::new(op, place, [inputs, hidden, gates], options.dtype, rng)?;
                cells.push(Cell { path, gates });
            }
        }
        let drops = options.dropout > 0.0 && options.layers > 1;
        let (path, dropout) = (ModulePath::new(), drops.then_some(dropout));
        Ok(Self { path, op, hidden, directions, cells, dropout })
    }

    /// Returns the states of the last layer after each step, and the final values of all layers.
    pub(super) fn run<const STATES: usize>(
        &self,
        x: &Tensor,
        state: Option<[&Tensor; STATES]>,
        products: &Products,
        step: impl Fn(&Gates, &Tensor, &StateWeights, [Tensor; STATES]) -> Result<[Tensor; STATES]>,
    ) -> Result<(Tensor, [Tensor; STATES])> {
        self.check(x, state.as_ref().map_or(&[], |state| &state[..]))?;
        let mut x = x.clone();
        let mut left = Vec::with_capacity(self.cells.len());
        for (layer, cells) in self.cells.chunks(self.directions).enumerate() {
            if layer > 0
                && let Some(dropout) = &self.dropout
            {
                x = dropout.forward(&x)?;
            }
            let mut sides = Vec::with_capacity(self.directions);
            for (direction, cell) in cells.iter().enumerate() {
                let _scope = module(&cell.path);
                let begin = || self.begin(&x, left.len(), state);
                let (states, last) = cell.gates.along(&x, direction == 1, products, begin, &step)?;
                left.push(last);
                sides.push(states);
            }
            x = match &sides[..] {
                [forward, backward] => Tensor::concat(&[forward, backward], -1)?,
                _ => sides.remove(0),
            };
        }
        Ok((x, self.join(left)?))
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

    /// Returns the initial values of a cell: its slice of the given states, or zeros.
    fn begin<const STATES: usize>(
        &self,
        x: &Tensor,
        cell: usize,
        given: Option<[&Tensor; STATES]>,
    ) -> Result<[Tensor; STATES]> {
        let state = |index: usize| match given {
            None => Tensor::zeros_of(x.device(), [x.dims()[0], self.hidden], x.dtype()),
            Some(given) if self.cells.len() == 1 => Ok(given[index].clone()),
            Some(given) => given[index].at(cell as isize),
        };
        all(std::array::from_fn(state))
    }

    /// Joins the final values of all cells, in the shape of the initial states.
    fn join<const STATES: usize>(&self, mut left: Vec<[Tensor; STATES]>) -> Result<[Tensor; STATES]> {
        if self.cells.len() == 1 {
            return Ok(left.remove(0));
        }
        let state =
            |index: usize| Tensor::stack(&left.iter().map(|last| &last[index]).collect::<Vec<_>>(), 0);
        all(std::array::from_fn(state))
    }

    pub(super) fn visit_parts(&self, visitor: &mut PartVisitor<'_>) {
        visitor.part("", &self.path);
        for Cell { path, gates } in &self.cells {
            visitor.part(path, gates);
        }
        visitor.part("dropout", &self.dropout);
    }

    pub(super) fn path(&self) -> Option<OwnerId> {
        self.path.get()
    }
}

/// Returns all values, or the first error.
fn all<const N: usize>(results: [Result<Tensor>; N]) -> Result<[Tensor; N]> {
    let values = results.into_iter().collect::<Result<Vec<_>>>()?;
    Ok(<[Tensor; N]>::try_from(values)
        .unwrap_or_else(|_| unreachable!("there are as many values as results")))
}

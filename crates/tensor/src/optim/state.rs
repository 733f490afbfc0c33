//! The state of optimisers as arrays by name, out and in.

use std::collections::{BTreeMap, HashSet};

use super::slots::Slots;
use super::{LEARNING_RATE, learning_rate_of, not_negative};
use crate::error::{Error, Result};
use crate::io::{Array, Arrays, Mismatch};
use crate::op::Buffer;
use crate::shape::{DType, Shape};

/// A part of what an optimiser keeps for a parameter.
pub(super) enum Part<'a> {
    /// As many numbers as the parameter has, of the type that it is computed with.
    Mean(&'a Buffer),
    /// A count.
    Count(u64),
}

/// The same, to be written.
pub(super) enum PartMut<'a> {
    Mean(&'a mut Buffer),
    Count(&'a mut u64),
}

/// What an optimiser keeps for a parameter, part by part, under the same names in both ways.
pub(super) trait SlotState {
    fn parts(&self) -> Vec<(&'static str, Part<'_>)>;

    fn parts_mut(&mut self) -> Vec<(&'static str, PartMut<'_>)>;
}

impl<S: SlotState> Slots<S> {
    /// All parts of all parameters, and the learning rate.
    pub(super) fn state(&self, learning_rate: f64) -> Result<Arrays> {
        self.check_paths()?;
        let mut arrays = Arrays::new();
        arrays.insert(LEARNING_RATE.to_owned(), Array::from_slice(&[learning_rate], Shape::SCALAR)?);
        for slot in self.iter() {
            let device = slot.parameter.tensor().device().clone();
            if device.is_dry() {
                let device = device.to_string();
                return Err(crate::error::Error::NoData { op: self.op, device });
            }
            for (name, part) in slot.state.parts() {
                let array = match part {
                    Part::Mean(buffer) => Array::download(self.op, &device, buffer.view())?,
                    // A count of steps that passes 2^63 is not reached in the life of a machine.
                    Part::Count(count) => Array::from_slice(&[count as i64], Shape::SCALAR)?,
                };
                arrays.insert(format!("{}.{name}", slot.path), array);
            }
        }
        Ok(arrays)
    }

    /// One state cannot stand for two parameters: two networks may have a `fc1.weight` each.
    fn check_paths(&self) -> Result<()> {
        let mut paths = HashSet::new();
        match self.iter().find(|slot| !paths.insert(&slot.path)) {
            None => Ok(()),
            Some(slot) => Err(Error::BadArgument {
                op: self.op,
                argument: "parameters",
                expected: "called each by a name of its own, under which its state is kept",
                got: format!("{} twice", slot.path),
            }),
        }
    }

    pub(super) fn check_state(&self, state: &Arrays) -> Result<()> {
        self.check_paths()?;
        let mut expected = BTreeMap::new();
        expected.insert(LEARNING_RATE.to_owned(), (DType::F64, Shape::SCALAR));
        for slot in self.iter() {
            for (name, part) in slot.state.parts() {
                let like = match part {
                    Part::Mean(buffer) => (buffer.view().dtype(), *buffer.view().layout().shape()),
                    Part::Count(_) => (DType::I64, Shape::SCALAR),
                };
                expected.insert(format!("{}.{name}", slot.path), like);
            }
        }
        Mismatch::check(self.op, &expected, state)?;
        not_negative(self.op, "lr", learning_rate_of(state))?;
        for slot in self.iter() {
            for (name, part) in slot.state.parts() {
                if matches!(part, Part::Count(_)) {
                    count_of(self.op, state, &format!("{}.{name}", slot.path))?;
                }
            }
        }
        Ok(())
    }

    /// Takes all parts in; returns the learning rate.
    pub(super) fn load_state(&mut self, state: &Arrays) -> Result<f64> {
        self.check_state(state)?;
        let op = self.op;
        for slot in self.iter_mut() {
            let device = slot.parameter.tensor().device().clone();
            for (name, part) in slot.state.parts_mut() {
                let Some(array) = state.get(&format!("{}.{name}", slot.path)) else { continue };
                match part {
                    PartMut::Mean(buffer) => array.upload(op, &device, buffer.view_mut())?,
                    PartMut::Count(count) => {
                        *count = count_of(op, state, &format!("{}.{name}", slot.path))?;
                    }
                }
            }
        }
        Ok(learning_rate_of(state))
    }
}

/// The count of steps under a name, whose type and shape were checked.
///
/// # Errors
/// [`Error::BadArgument`] for one below 0, which only a damaged file has.
fn count_of(op: &'static str, state: &Arrays, name: &str) -> Result<u64> {
    let count = state.get(name).and_then(Array::item::<i64>).unwrap_or(0);
    count.try_into().map_err(|_| Error::BadArgument {
        op,
        argument: "steps",
        expected: "a count",
        got: format!("{count} in {name}"),
    })
}

#[cfg(test)]
mod tests {
    use crate::device::Runtime;
    use crate::error::Error;
    use crate::io::Array;
    use crate::nn::{Linear, Module};
    use crate::optim::{Adam, Optimizer};
    use crate::tensor::{Rng, Tensor};

    #[test]
    fn a_negative_count_of_steps_is_refused_by_name() {
        let device = Runtime::builder().threads(1).build().unwrap().cpu().unwrap();
        let layer = Linear::new(&device, 2, 2, &Rng::new(0)).unwrap();
        let mut adam = Adam::new(layer.parameters(), 0.1).unwrap();
        let mut state = adam.state().unwrap();
        let name = state.keys().find(|name| name.ends_with("steps")).unwrap().clone();
        let negative = Tensor::from_slice(&device, &[-1i64], []).unwrap();
        state.insert(name.clone(), Array::of(&negative).unwrap());
        let refused = adam.load_state(&state).unwrap_err();
        assert!(matches!(&refused, Error::BadArgument { argument: "steps", got, .. } if got.contains(&name)));
    }
}

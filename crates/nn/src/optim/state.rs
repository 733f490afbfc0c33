//! Optimizer state in checkpoints: arrays by name.
//!
//! A parameter that has been frozen from the beginning has no state. Its only array is a number of steps of 0.

use std::collections::{BTreeMap, HashSet};

use highwater_tensor::{DType, Error, Result, Shape};

use super::parameter_set::ParameterSet;
use super::{LEARNING_RATE, learning_rate_of, not_negative};
use crate::io::{Array, Arrays, mismatch};

/// The name of the number of steps.
const STEPS: &str = "steps";

impl ParameterSet {
    /// Returns the state of all parameters, and the learning rate.
    pub(super) fn state(&self, learning_rate: f64) -> Result<Arrays> {
        self.check_paths()?;
        let mut arrays = Arrays::new();
        arrays.insert(LEARNING_RATE.to_owned(), Array::from_slice(&[learning_rate], Shape::SCALAR)?);
        for slot in self.iter() {
            let device = slot.parameter.tensor().device().clone();
            if device.is_dry() {
                return Err(Error::NoData { op: self.op, device: device.to_string() });
            }
            for (state, tensor) in self.states.iter().zip(&slot.state.tensors) {
                let Some(tensor) = tensor else { continue };
                let array = Array::download(self.op, &device, tensor.view())?;
                arrays.insert(format!("{}.{}", slot.path, state.name), array);
            }
            let lacks_state = self.has_state() && !slot.state.is_allocated();
            if self.saves_steps || lacks_state {
                // The count stays below 2⁶³.
                let steps = if lacks_state { 0 } else { slot.state.steps as i64 };
                let steps = Array::from_slice(&[steps], Shape::SCALAR)?;
                arrays.insert(format!("{}.{STEPS}", slot.path), steps);
            }
        }
        Ok(arrays)
    }

    /// Whether the options require any state tensor.
    fn has_state(&self) -> bool {
        self.states.iter().any(|state| state.initial.is_some())
    }

    /// Checks that all paths differ: two networks may both have a `fc1.weight`.
    fn check_paths(&self) -> Result<()> {
        let mut paths = HashSet::new();
        match self.iter().find(|slot| !paths.insert(&slot.path)) {
            None => Ok(()),
            Some(slot) => Err(Error::BadArgument {
                op: self.op,
                argument: "parameters",
                expected: "parameters with unique paths",
                got: format!("{} twice", slot.path),
            }),
        }
    }

    pub(super) fn check_state(&self, state: &Arrays) -> Result<()> {
        self.check_paths()?;
        let mut expected = BTreeMap::new();
        expected.insert(LEARNING_RATE.to_owned(), (DType::F64, Shape::SCALAR));
        for slot in self.iter() {
            let is_untrained = self.is_untrained(&slot.path, state);
            let states = self.states.iter().zip(&slot.state.tensors);
            for (state, tensor) in states.filter(|(state, _)| state.initial.is_some() && !is_untrained) {
                let value = slot.parameter.value();
                let of_value = || (value.dtype().computed_as(), *value.shape());
                let tensor = tensor.as_ref().map(|tensor| tensor.view());
                let of_tensor = tensor.map(|tensor| (tensor.dtype(), *tensor.layout().shape()));
                expected.insert(format!("{}.{}", slot.path, state.name), of_tensor.unwrap_or_else(of_value));
            }
            if self.saves_steps || is_untrained {
                expected.insert(format!("{}.{STEPS}", slot.path), (DType::I64, Shape::SCALAR));
            }
        }
        mismatch::check(self.op, &expected, state)?;
        not_negative(self.op, "lr", learning_rate_of(state))?;
        self.iter().try_for_each(|slot| self.steps_of(&slot.path, state).map(drop))
    }

    /// Whether a saved parameter had no state, because it was frozen.
    fn is_untrained(&self, path: &str, state: &Arrays) -> bool {
        let steps = state.get(&format!("{path}.{STEPS}")).and_then(Array::item::<i64>);
        let prefix = format!("{path}.");
        let names = state.range(prefix.clone()..).map_while(|(name, _)| name.strip_prefix(&prefix));
        // Others are those of parameters with longer paths.
        let is_alone = names.filter(|name| !name.contains('.')).count() == 1;
        self.has_state() && steps == Some(0) && is_alone
    }

    /// Loads the state of all parameters. Returns the learning rate.
    pub(super) fn load_state(&mut self, state: &Arrays) -> Result<f64> {
        self.check_state(state)?;
        let steps = self.iter().map(|slot| self.steps_of(&slot.path, state)).collect::<Result<Vec<_>>>()?;
        let untrained: HashSet<String> = self
            .iter()
            .map(|slot| &slot.path)
            .filter(|path| self.is_untrained(path, state))
            .cloned()
            .collect();
        self.allocate(|slot| !untrained.contains(&slot.path), || Ok(()))?;
        let (op, states) = (self.op, self.states);
        for (slot, steps) in self.iter_mut().zip(steps) {
            slot.state.steps = steps.unwrap_or(slot.state.steps);
            if untrained.contains(&slot.path) {
                slot.state.tensors = Default::default();
            }
            let device = slot.parameter.tensor().device().clone();
            for (kept, tensor) in states.iter().zip(&mut slot.state.tensors) {
                let array = state.get(&format!("{}.{}", slot.path, kept.name));
                let (Some(tensor), Some(array)) = (tensor, array) else { continue };
                array.upload(op, &device, tensor.view_mut())?;
            }
        }
        Ok(learning_rate_of(state))
    }

    /// Returns the number of steps of a parameter with checked type and shape; `None` if the state does not contain it.
    ///
    /// # Errors
    /// [`Error::BadArgument`] for a negative number, which only a damaged file contains.
    fn steps_of(&self, path: &str, state: &Arrays) -> Result<Option<u64>> {
        let name = format!("{path}.{STEPS}");
        let Some(steps) = state.get(&name) else { return Ok(None) };
        let steps = steps.item::<i64>().unwrap_or(0);
        match steps.try_into() {
            Ok(steps) => Ok(Some(steps)),
            Err(_) => Err(Error::BadArgument {
                op: self.op,
                argument: STEPS,
                expected: "a count",
                got: format!("{steps} in {name}"),
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::io::Array;
    use crate::modules::{Linear, Module};
    use crate::optim::{Adam, Optimizer};
    use highwater_tensor::{Error, Rng, Runtime, Tensor};

    #[test]
    fn a_negative_count_of_steps_is_refused_by_name() {
        let device = Runtime::builder().threads(1).build().unwrap().cpu().unwrap();
        let layer = Linear::new(&device, 2, 2, &Rng::new(0)).unwrap();
        let mut adam = Adam::new(layer.parameters(), 0.1).unwrap();
        let mut state = adam.state().unwrap();
        let name = state.keys().find(|name| name.ends_with("steps")).unwrap().clone();
        let negative = Tensor::from_slice(&device, &[-1i64], ()).unwrap();
        state.insert(name.clone(), Array::of(&negative).unwrap());
        let refused = adam.load_state(&state).unwrap_err();
        assert!(matches!(&refused, Error::BadArgument { argument: "steps", got, .. } if got.contains(&name)));
    }
}

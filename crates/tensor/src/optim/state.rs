//! The state of optimisers as arrays by name, out and in.

use std::collections::BTreeMap;

use super::slots::Slots;
use super::{LEARNING_RATE, learning_rate_of, not_negative};
use crate::context::Buffer;
use crate::dtype::DType;
use crate::error::Result;
use crate::io::{Array, Arrays, Mismatch};
use crate::shape::Shape;

/// A part of what an optimiser keeps for a parameter.
pub(super) enum Part<'a> {
    /// As many numbers as the parameter has, of its type.
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
        let mut arrays = Arrays::new();
        arrays.insert(LEARNING_RATE.to_owned(), Array::from_slice(&[learning_rate], Shape::SCALAR)?);
        for slot in &self.slots {
            let device = slot.parameter.tensor().device().clone();
            if device.is_dry() {
                let device = device.to_string();
                return Err(crate::error::Error::NoData { op: self.op, device });
            }
            for (name, part) in slot.state.parts() {
                let array = match part {
                    Part::Mean(buffer) => Array::download(self.op, device.backend(), buffer.view())?,
                    // A count of steps that passes 2^63 is not reached in the life of a machine.
                    Part::Count(count) => Array::from_slice(&[count as i64], Shape::SCALAR)?,
                };
                arrays.insert(format!("{}.{name}", slot.path), array);
            }
        }
        Ok(arrays)
    }

    pub(super) fn check_state(&self, state: &Arrays) -> Result<()> {
        let mut expected = BTreeMap::from([(LEARNING_RATE.to_owned(), (DType::F64, Shape::SCALAR))]);
        for slot in &self.slots {
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
        Ok(())
    }

    /// Takes all parts in; returns the learning rate.
    pub(super) fn load_state(&mut self, state: &Arrays) -> Result<f64> {
        self.check_state(state)?;
        for slot in &mut self.slots {
            let device = slot.parameter.tensor().device().clone();
            for (name, part) in slot.state.parts_mut() {
                let Some(array) = state.get(&format!("{}.{name}", slot.path)) else { continue };
                match part {
                    PartMut::Mean(buffer) => array.upload(self.op, device.backend(), buffer.view_mut())?,
                    // A negative count, which only a hostile file has, is as good as none.
                    PartMut::Count(count) => {
                        *count = array.item::<i64>().and_then(|count| count.try_into().ok()).unwrap_or(0);
                    }
                }
            }
        }
        Ok(learning_rate_of(state))
    }
}

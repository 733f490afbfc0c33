//! The objects of a pickle that its opcodes recall by number.

use std::collections::HashMap;

use super::heap::{Heap, Value};
use crate::lean::TooMuchHeld;

/// The largest cost of a hash table entry, while the table grows.
const SPARSE_BYTES: u64 = 96;

/// The objects that opcodes can recall by number. Python's writers number them from 0 in order.
#[derive(Debug, Default)]
pub(super) struct Memo {
    in_order: Vec<Value>,
    /// Objects with other numbers.
    sparse: HashMap<u32, Value>,
}

impl Memo {
    #[inline]
    pub(super) fn get(&self, index: u32) -> Option<Value> {
        match self.in_order.get(index as usize) {
            Some(&value) => Some(value),
            None => self.sparse.get(&index).copied(),
        }
    }

    #[inline]
    pub(super) fn len(&self) -> usize {
        self.in_order.len() + self.sparse.len()
    }

    #[inline]
    pub(super) fn set(&mut self, index: u32, value: Value, heap: &mut Heap) -> Result<(), TooMuchHeld> {
        let place = index as usize;
        if place == self.in_order.len() && self.sparse.is_empty() {
            return heap.account.push(&mut self.in_order, value);
        }
        self.set_out_of_order(index, value, heap)
    }

    #[cold]
    fn set_out_of_order(&mut self, index: u32, value: Value, heap: &mut Heap) -> Result<(), TooMuchHeld> {
        let place = index as usize;
        if let Some(slot) = self.in_order.get_mut(place) {
            *slot = value;
        } else if place == self.in_order.len() {
            heap.account.push(&mut self.in_order, value)?;
            self.sparse.remove(&index);
        } else {
            heap.account.charge(SPARSE_BYTES)?;
            self.sparse.insert(index, value);
        }
        Ok(())
    }
}

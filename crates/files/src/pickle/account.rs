//! The memory account of a pickle's objects, exact to the byte and limited.

use crate::lean::{HeldMemory, TooMuchHeld};

/// The smallest capacity of a vector that grows.
const MIN_CAPACITY: usize = 4;

/// A vector of this capacity grows by a quarter, so that it wastes little memory. A smaller one doubles.
const LARGE: usize = 1024;

/// The bytes of vectors and texts, including unused capacity.
#[derive(Debug, Default)]
pub(super) struct Account {
    pub(super) memory: HeldMemory,
}

impl Account {
    pub(super) const fn too_much(&self) -> TooMuchHeld {
        self.memory.error()
    }

    /// Charges for bytes before the caller allocates them.
    pub(super) fn charge(&mut self, bytes: u64) -> Result<(), TooMuchHeld> {
        self.memory.charge(bytes)
    }

    /// Charges for copies of values before the caller makes them.
    pub(super) fn charge_for_copies<T>(&mut self, count: usize) -> Result<(), TooMuchHeld> {
        self.charge((count as u64).saturating_mul(size_of::<T>() as u64))
    }

    /// Reserves capacity for more items.
    #[inline]
    pub(super) fn reserve<T>(&mut self, items: &mut Vec<T>, more: usize) -> Result<(), TooMuchHeld> {
        if items.capacity() - items.len() >= more { Ok(()) } else { self.grow(items, more) }
    }

    /// Reserves capacity. A growing vector is copied, so both copies have to fit.
    #[cold]
    fn grow<T>(&mut self, items: &mut Vec<T>, more: usize) -> Result<(), TooMuchHeld> {
        let before = items.capacity();
        // Many collections have only a few items.
        let least = if before == 0 && more > 1 { more } else { MIN_CAPACITY };
        let grown = before.saturating_add(if before < LARGE { before } else { before / 4 });
        let capacity = items.len().saturating_add(more).max(grown).max(least);
        let bytes = |capacity: usize| (capacity as u64).saturating_mul(size_of::<T>() as u64);
        self.memory.check(bytes(capacity))?;
        items.try_reserve_exact(capacity - items.len()).map_err(|_| self.too_much())?;
        self.charge(bytes(items.capacity() - before))
    }

    #[inline]
    pub(super) fn push<T>(&mut self, items: &mut Vec<T>, item: T) -> Result<(), TooMuchHeld> {
        self.reserve(items, 1)?;
        items.push(item);
        Ok(())
    }

    #[inline]
    pub(super) fn extend<T: Copy>(&mut self, items: &mut Vec<T>, more: &[T]) -> Result<(), TooMuchHeld> {
        self.reserve(items, more.len())?;
        items.extend_from_slice(more);
        Ok(())
    }
}

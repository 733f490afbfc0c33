//! The items of lists and the values of dictionaries, in large chunks.
//!
//! ```text
//! chunk 0 │ items of a list │ values │ values │ ... │   Spans { start, len } count from the first chunk on
//! chunk 1 │ ...
//! long 0  │ a list that grew, or that no chunk can hold
//! ```
//!
//! Most objects of a pickle are complete once they are made: they cost no allocation. A chunk is never copied, so that
//! growing takes no second copy of the items.

use super::account::Account;
use super::heap::Value;
use crate::lean::TooMuchHeld;

/// The number of values in a chunk.
const CHUNK: usize = 1 << 13;

/// The place of a collection's items.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Place {
    /// The number of the first item over all chunks, or the number of a long collection.
    start: u32,
    /// The number of items, or [`LONG`].
    count: u32,
}

/// Marks a long collection.
const LONG: u32 = u32::MAX;

/// The items of all collections.
#[derive(Debug, Default)]
pub(super) struct Store {
    /// Each is full or the last. The last one of several has the capacity of a complete chunk.
    chunks: Vec<Vec<Value>>,
    long: Vec<Vec<Value>>,
}

impl Store {
    /// Returns the items at a place.
    #[inline]
    pub(super) fn items(&self, place: Place) -> &[Value] {
        if place.count == LONG {
            return self.long.get(place.start as usize).map_or(&[], Vec::as_slice);
        }
        let (chunk, start) = (place.start as usize / CHUNK, place.start as usize % CHUNK);
        let items = self.chunks.get(chunk).and_then(|chunk| chunk.get(start..start + place.count as usize));
        items.unwrap_or_default()
    }

    /// Adds a collection.
    #[inline]
    pub(super) fn add(
        &mut self,
        account: &mut Account,
        items: impl ExactSizeIterator<Item = Value>,
    ) -> Result<Place, TooMuchHeld> {
        let count = items.len();
        if count == 0 {
            return Ok(Place::default());
        }
        if count > CHUNK / 4 {
            return self.add_long(account, items);
        }
        let room = self.chunks.last().map_or(0, |chunk| CHUNK - chunk.len());
        if room < count {
            self.add_chunk(account)?;
        }
        let chunk = self.chunks.len() - 1;
        let items_of_chunk = &mut self.chunks[chunk];
        // Only the first chunk grows.
        account.reserve(items_of_chunk, count)?;
        let start = u32::try_from(chunk * CHUNK + items_of_chunk.len()).map_err(|_| account.too_much())?;
        items_of_chunk.extend(items);
        Ok(Place { start, count: count as u32 })
    }

    #[cold]
    fn add_chunk(&mut self, account: &mut Account) -> Result<(), TooMuchHeld> {
        let mut chunk = Vec::new();
        if !self.chunks.is_empty() {
            account.reserve(&mut chunk, CHUNK)?;
        }
        account.push(&mut self.chunks, chunk)
    }

    #[cold]
    fn add_long(
        &mut self,
        account: &mut Account,
        items: impl ExactSizeIterator<Item = Value>,
    ) -> Result<Place, TooMuchHeld> {
        let mut long = Vec::new();
        account.reserve(&mut long, items.len())?;
        long.extend(items);
        let start = u32::try_from(self.long.len()).map_err(|_| account.too_much())?;
        account.push(&mut self.long, long)?;
        Ok(Place { start, count: LONG })
    }

    /// Appends to a collection. It becomes a long one if it has items.
    pub(super) fn extend(
        &mut self,
        account: &mut Account,
        place: Place,
        more: &[Value],
    ) -> Result<Place, TooMuchHeld> {
        if place.count == 0 {
            return self.add(account, more.iter().copied());
        }
        let place = if place.count == LONG {
            place
        } else {
            let chunk = place.start as usize / CHUNK;
            let start = place.start as usize % CHUNK;
            let mut long = Vec::new();
            account.reserve(&mut long, place.count as usize + more.len())?;
            long.extend_from_slice(&self.chunks[chunk][start..start + place.count as usize]);
            let start = u32::try_from(self.long.len()).map_err(|_| account.too_much())?;
            account.push(&mut self.long, long)?;
            Place { start, count: LONG }
        };
        account.extend(&mut self.long[place.start as usize], more)?;
        Ok(place)
    }
}

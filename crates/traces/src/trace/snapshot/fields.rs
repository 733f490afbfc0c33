//! The entries of a dictionary in a snapshot.

use highwater_files::pickle::{Heap, Value};

use super::SnapshotProblem;

/// The most entries of a dictionary that is searched for every event. Real ones have about ten. The limit bounds the
/// cost of a long one that many events share.
const MOST_ENTRIES: usize = 64;

/// A dictionary that is small enough to be searched repeatedly.
pub(super) struct Fields<'a> {
    heap: &'a Heap,
    value: Value,
}

impl<'a> Fields<'a> {
    pub(super) fn of(heap: &'a Heap, value: Value, what: &'static str) -> Result<Self, SnapshotProblem> {
        match heap.entries(value) {
            Some(0..=MOST_ENTRIES) => Ok(Self { heap, value }),
            Some(_) => Err(SnapshotProblem::Shape { what, expected: "a dictionary of up to 64 entries" }),
            None => Err(SnapshotProblem::Shape { what, expected: "a dictionary" }),
        }
    }

    pub(super) fn get(&self, key: &str) -> Option<Value> {
        self.heap.get(self.value, key)
    }

    pub(super) fn text(&self, key: &str) -> Option<&'a str> {
        self.get(key).and_then(|value| self.heap.as_text(value))
    }

    pub(super) fn list(&self, key: &str) -> Option<&'a [Value]> {
        self.get(key).and_then(|value| self.heap.as_list(value))
    }

    pub(super) fn number(&self, key: &str) -> Option<u64> {
        match self.get(key) {
            Some(Value::Natural(number)) => Some(number),
            _ => None,
        }
    }

    /// Returns a pair of numbers, such as the id of a pool.
    pub(super) fn pair(&self, key: &str) -> Option<(u64, u64)> {
        match self.list(key)? {
            &[Value::Natural(first), Value::Natural(second)] => Some((first, second)),
            _ => None,
        }
    }

    pub(super) fn truth(&self, key: &str) -> bool {
        matches!(self.get(key), Some(Value::Bool(true) | Value::Natural(1..)))
    }

    pub(super) fn address_and_bytes(&self) -> Result<(u64, u64), SnapshotProblem> {
        let field = |key, what| {
            self.number(key).ok_or(SnapshotProblem::Shape { what, expected: "an integer below 2^64" })
        };
        Ok((field("addr", "an event's `addr`")?, field("size", "an event's `size`")?))
    }
}

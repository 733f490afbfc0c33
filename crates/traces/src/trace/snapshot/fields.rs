//! The entries of a dictionary in a snapshot.
//!
//! Most events have the same keys in the same order. The position of each key is looked up once per order.

use std::collections::HashMap;

use highwater_files::lean::{HeldMemory, TooMuchHeld};
use highwater_files::pickle::{Heap, Value};

use super::SnapshotProblem;

/// The most entries of a dictionary that is searched for every event. Real ones have about ten. The limit bounds the
/// cost of a long one that many events share.
const MOST_ENTRIES: usize = 64;

/// The cost of a layout in the table of layouts, including unused capacity.
const LAYOUT_BYTES: u64 = 2 * size_of::<(u32, Layout)>() as u64;

macro_rules! keys {
    ($($key:ident = $name:literal),* $(,)?) => {
        /// A key of a dictionary.
        #[derive(Clone, Copy, Debug)]
        pub(super) enum Key {
            $($key,)*
        }

        /// The names of the keys, by their numbers.
        const NAMES: &[&str] = &[$($name),*];
    };
}

keys! {
    Action = "action",
    Addr = "addr",
    Address = "address",
    Blocks = "blocks",
    Category = "category",
    Device = "device",
    Filename = "filename",
    Frames = "frames",
    History = "history",
    IsExpandable = "is_expandable",
    Line = "line",
    Name = "name",
    PoolId = "pool_id",
    RequestedSize = "requested_size",
    SegmentPoolId = "segment_pool_id",
    SegmentType = "segment_type",
    Size = "size",
    Stage = "stage",
    State = "state",
    Stream = "stream",
    TimeUs = "time_us",
    TotalSize = "total_size",
    UserMetadata = "user_metadata",
}

/// The position of each key in the dictionaries of a shape; [`ABSENT`] if they lack it.
type Layout = [u8; NAMES.len()];

const ABSENT: u8 = u8::MAX;

/// The layouts of the shapes so far.
#[derive(Debug, Default)]
pub(super) struct Layouts {
    of_shapes: HashMap<u32, Layout>,
    last: Option<(u32, Layout)>,
}

impl Layouts {
    /// Returns the entries of a dictionary, with the positions of its keys.
    #[inline]
    pub(super) fn fields<'a>(
        &mut self,
        heap: &'a Heap,
        value: Value,
        what: &'static str,
        memory: &mut HeldMemory,
    ) -> Result<Fields<'a>, FieldsProblem> {
        let Some((shape, values)) = heap.record(value).filter(|(_, values)| values.len() <= MOST_ENTRIES)
        else {
            return Ok(Fields::of(heap, value, what)?);
        };
        let layout = match self.last {
            Some((last, layout)) if last == shape => layout,
            _ => self.find(heap, shape, memory)?,
        };
        Ok(Fields { heap, value, record: Some((values, layout)) })
    }

    fn find(&mut self, heap: &Heap, shape: u32, memory: &mut HeldMemory) -> Result<Layout, TooMuchHeld> {
        let layout = match self.of_shapes.get(&shape) {
            Some(&known) => known,
            None => {
                memory.charge(LAYOUT_BYTES)?;
                let mut layout = [ABSENT; NAMES.len()];
                // For a duplicate key, the last value counts.
                for (position, key) in (0..).zip(heap.keys_of_shape(shape)) {
                    if let Some(index) = NAMES.iter().position(|name| *name == key) {
                        layout[index] = position;
                    }
                }
                self.of_shapes.insert(shape, layout);
                layout
            }
        };
        self.last = Some((shape, layout));
        Ok(layout)
    }
}

/// The reason why a dictionary cannot be read.
pub(super) enum FieldsProblem {
    Shape(SnapshotProblem),
    TooMuchHeld(TooMuchHeld),
}

impl From<SnapshotProblem> for FieldsProblem {
    fn from(problem: SnapshotProblem) -> Self {
        Self::Shape(problem)
    }
}

impl From<TooMuchHeld> for FieldsProblem {
    fn from(problem: TooMuchHeld) -> Self {
        Self::TooMuchHeld(problem)
    }
}

/// A dictionary that is small enough to be searched repeatedly.
pub(super) struct Fields<'a> {
    heap: &'a Heap,
    value: Value,
    /// The values and the positions of the keys, if they are known.
    record: Option<(&'a [Value], Layout)>,
}

impl<'a> Fields<'a> {
    pub(super) fn of(heap: &'a Heap, value: Value, what: &'static str) -> Result<Self, SnapshotProblem> {
        match heap.entries(value) {
            Some(0..=MOST_ENTRIES) => Ok(Self { heap, value, record: None }),
            Some(_) => Err(SnapshotProblem::Shape { what, expected: "a dictionary of up to 64 entries" }),
            None => Err(SnapshotProblem::Shape { what, expected: "a dictionary" }),
        }
    }

    #[inline]
    pub(super) fn get(&self, key: Key) -> Option<Value> {
        match &self.record {
            Some((values, layout)) => values.get(usize::from(layout[key as usize])).copied(),
            None => self.heap.get(self.value, NAMES[key as usize]),
        }
    }

    #[inline]
    pub(super) fn text(&self, key: Key) -> Option<&'a str> {
        self.get(key).and_then(|value| self.heap.as_text(value))
    }

    pub(super) fn list(&self, key: Key) -> Option<&'a [Value]> {
        self.get(key).and_then(|value| self.heap.as_list(value))
    }

    #[inline]
    pub(super) fn number(&self, key: Key) -> Option<u64> {
        match self.get(key) {
            Some(Value::Natural(number)) => Some(number),
            _ => None,
        }
    }

    /// Returns a pair of numbers, such as the id of a pool.
    #[inline]
    pub(super) fn pair(&self, key: Key) -> Option<(u64, u64)> {
        match self.list(key)? {
            &[Value::Natural(first), Value::Natural(second)] => Some((first, second)),
            _ => None,
        }
    }

    pub(super) fn truth(&self, key: Key) -> bool {
        matches!(self.get(key), Some(Value::Bool(true) | Value::Natural(1..)))
    }

    #[inline]
    pub(super) fn address_and_bytes(&self) -> Result<(u64, u64), SnapshotProblem> {
        let field = |key, what| {
            self.number(key).ok_or(SnapshotProblem::Shape { what, expected: "an integer below 2^64" })
        };
        Ok((field(Key::Addr, "an event's `addr`")?, field(Key::Size, "an event's `size`")?))
    }
}

//! Reads a JSON snapshot into the objects of a pickle, so that one reader and one memory limit serve both formats.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::fmt;
use std::io::{BufRead, BufReader};

use highwater_files::lean::{HeldMemory, TooMuchHeld};
use highwater_files::pickle::{Heap, Value};
use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};

use super::read::Counted;
use super::snapshot::SnapshotProblem;
use super::{TraceError, TracePlace, TraceProblem};

/// The most texts that are stored once, and their greatest length. They include the keys. Each other text is stored
/// separately.
const MAX_KEPT: usize = 4096;
const MAX_KEPT_BYTES: usize = 64;

/// Reads a JSON text. Returns its objects and its value.
pub(super) fn read(reader: impl BufRead, memory: HeldMemory) -> Result<(Heap, Value), TraceError> {
    let bytes = Cell::new(0);
    let reader = BufReader::new(Counted { reader, bytes: &bytes });
    let state = KeptValues {
        heap: Heap::new(memory),
        kept: HashMap::new(),
        stack: Vec::new(),
        noted: 0,
        problem: None,
    };
    let node = Node { state: &RefCell::new(state), bytes: &bytes };
    let mut parser = serde_json::Deserializer::from_reader(reader);
    let read = node.deserialize(&mut parser).and_then(|root| parser.end().map(|()| root));
    let state = node.state.replace(KeptValues::default());
    match (read, state.problem) {
        (Ok(root), _) => Ok((state.heap, root)),
        (Err(_), Some(problem)) => Err(TracePlace::Snapshot.of(problem)),
        (Err(error), None) if error.is_io() => Err(TracePlace::Snapshot.of(std::io::Error::from(error))),
        (Err(error), None) if error.is_eof() => {
            Err(TracePlace::Byte(bytes.get()).of(SnapshotProblem::Truncated))
        }
        (Err(error), None) => Err(TracePlace::Snapshot.of(TraceProblem::Json { message: error.to_string() })),
    }
}

#[derive(Default)]
struct KeptValues {
    heap: Heap,
    kept: HashMap<String, Value>,
    /// The items of the collections that are not complete yet.
    stack: Vec<Value>,
    /// The bytes of input that the memory limit includes.
    noted: u64,
    /// The error of the heap, which the parser cannot return.
    problem: Option<TooMuchHeld>,
}

/// A JSON value that becomes an object while it is parsed.
#[derive(Clone, Copy)]
struct Node<'a> {
    state: &'a RefCell<KeptValues>,
    bytes: &'a Cell<u64>,
}

impl Node<'_> {
    /// Changes the objects.
    fn change<T, E: Error>(self, change: impl FnOnce(&mut Heap) -> Result<T, TooMuchHeld>) -> Result<T, E> {
        self.change_with_stack(|heap, _| change(heap))
    }

    /// Changes the objects and the stack.
    fn change_with_stack<T, E: Error>(
        self,
        change: impl FnOnce(&mut Heap, &mut Vec<Value>) -> Result<T, TooMuchHeld>,
    ) -> Result<T, E> {
        let state = &mut *self.state.borrow_mut();
        let bytes = self.bytes.get();
        state.heap.note_input(bytes - std::mem::replace(&mut state.noted, bytes));
        change(&mut state.heap, &mut state.stack).map_err(|problem| {
            let error = E::custom(problem);
            state.problem = Some(problem);
            error
        })
    }

    fn height(self) -> usize {
        self.state.borrow().stack.len()
    }

    fn push<E: Error>(self, items: &[Value]) -> Result<(), E> {
        self.change_with_stack(|heap, stack| heap.push_to(stack, items))
    }

    /// Makes a collection of the items from `start` on.
    fn collect<E: Error>(
        self,
        start: usize,
        collect: impl FnOnce(&mut Heap, &[Value]) -> Result<Value, TooMuchHeld>,
    ) -> Result<Value, E> {
        self.change_with_stack(|heap, stack| {
            let collected = collect(heap, &stack[start..])?;
            stack.truncate(start);
            Ok(collected)
        })
    }
}

impl<'de> DeserializeSeed<'de> for Node<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Node<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E: Error>(self) -> Result<Value, E> {
        Ok(Value::None)
    }

    fn visit_bool<E: Error>(self, truth: bool) -> Result<Value, E> {
        Ok(Value::Bool(truth))
    }

    fn visit_f64<E: Error>(self, number: f64) -> Result<Value, E> {
        Ok(Value::Float(number))
    }

    fn visit_i64<E: Error>(self, _: i64) -> Result<Value, E> {
        Ok(Value::Integer)
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<Value, E> {
        Ok(Value::Natural(number))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Value, E> {
        if let Some(&kept) = self.state.borrow().kept.get(text) {
            return Ok(kept);
        }
        let value = self.change(|heap| heap.text(text))?;
        let kept = &mut self.state.borrow_mut().kept;
        if kept.len() < MAX_KEPT && text.len() <= MAX_KEPT_BYTES {
            kept.insert(text.to_owned(), value);
        }
        Ok(value)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let start = self.height();
        while let Some(item) = items.next_element_seed(self)? {
            self.push(&[item])?;
        }
        self.collect(start, |heap, items| heap.list(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let start = self.height();
        while let Some((key, value)) = entries.next_entry_seed(self, self)? {
            self.push(&[key, value])?;
        }
        self.collect(start, |heap, pairs| heap.dict(pairs))
    }
}

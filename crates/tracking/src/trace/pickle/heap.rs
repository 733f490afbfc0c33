//! The objects of a pickle, all in one place, and what they take.

use crate::trace::TraceProblem;

/// An object, or the number of one in its pickle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Value {
    /// A whole number from 0 to 2⁶⁴ - 1.
    Natural(u64),
    /// A text.
    Text(u32),
    /// A list or a tuple.
    List(u32),
    /// A dictionary.
    Dict(u32),
    /// Something that could be called.
    Global(u32),
    /// A call that is not made.
    Call(u32),
    /// Something that is kept outside.
    Persistent(u32),
    /// Something that nobody needs: nothing, a truth value, bytes, another number.
    Other,
}

/// Charges for objects in bytes, with what the vectors below may hold in reserve.
const TEXT_BYTES: u64 = 40;
const CONTAINER_BYTES: u64 = 48;
const ITEM_BYTES: u64 = 32;

/// All texts, lists and dictionaries.
#[derive(Debug, Default)]
pub(in crate::trace) struct Heap {
    texts: Vec<String>,
    lists: Vec<Vec<Value>>,
    /// Keys and values by turns, in the order in which they were set.
    dicts: Vec<Vec<Value>>,
    /// Modules and names.
    globals: Vec<(String, String)>,
    /// What would be called, and its arguments.
    calls: Vec<(Value, Value)>,
    /// What names each.
    persistents: Vec<Value>,
    held: u64,
    limit: u64,
}

impl Heap {
    pub(super) fn new(limit: u64) -> Self {
        Self { limit, ..Self::default() }
    }

    /// Counts bytes that are about to be taken.
    pub(super) fn charge(&mut self, bytes: u64) -> Result<(), TraceProblem> {
        self.held = self.held.saturating_add(bytes);
        if self.held > self.limit { Err(TraceProblem::TooMuchHeld { limit: self.limit }) } else { Ok(()) }
    }

    /// A text, whose length was charged for already.
    pub(super) fn text(&mut self, text: String) -> Result<Value, TraceProblem> {
        self.charge(TEXT_BYTES)?;
        self.texts.push(text);
        self.number_of(self.texts.len()).map(Value::Text)
    }

    pub(super) fn list(&mut self, items: Vec<Value>) -> Result<Value, TraceProblem> {
        self.charge(CONTAINER_BYTES + ITEM_BYTES * items.len() as u64)?;
        self.lists.push(items);
        self.number_of(self.lists.len()).map(Value::List)
    }

    pub(super) fn dict(&mut self) -> Result<Value, TraceProblem> {
        self.charge(CONTAINER_BYTES)?;
        self.dicts.push(Vec::new());
        self.number_of(self.dicts.len()).map(Value::Dict)
    }

    /// Something to call, the length of whose names was charged for already.
    pub(super) fn global(&mut self, module: String, name: String) -> Result<Value, TraceProblem> {
        self.charge(2 * TEXT_BYTES + (module.len() + name.len()) as u64)?;
        self.globals.push((module, name));
        self.number_of(self.globals.len()).map(Value::Global)
    }

    pub(super) fn call(&mut self, function: Value, arguments: Value) -> Result<Value, TraceProblem> {
        self.charge(2 * ITEM_BYTES)?;
        self.calls.push((function, arguments));
        self.number_of(self.calls.len()).map(Value::Call)
    }

    pub(super) fn persistent(&mut self, id: Value) -> Result<Value, TraceProblem> {
        self.charge(ITEM_BYTES)?;
        self.persistents.push(id);
        self.number_of(self.persistents.len()).map(Value::Persistent)
    }

    /// Appends to a list; `false` if the value is none.
    pub(super) fn extend(&mut self, list: Value, items: &[Value]) -> Result<bool, TraceProblem> {
        self.charge(ITEM_BYTES * items.len() as u64)?;
        let Value::List(number) = list else { return Ok(false) };
        let Some(list) = self.lists.get_mut(number as usize) else { return Ok(false) };
        list.extend_from_slice(items);
        Ok(true)
    }

    /// Sets keys and values, by turns, of a dictionary; `false` if the value is none.
    pub(super) fn set(&mut self, dict: Value, items: &[Value]) -> Result<bool, TraceProblem> {
        self.charge(ITEM_BYTES * items.len() as u64)?;
        let Value::Dict(number) = dict else { return Ok(false) };
        let Some(dict) = self.dicts.get_mut(number as usize) else { return Ok(false) };
        dict.extend_from_slice(items);
        Ok(true)
    }

    /// A text's letters.
    pub(in crate::trace) fn as_text(&self, value: Value) -> Option<&str> {
        let Value::Text(number) = value else { return None };
        self.texts.get(number as usize).map(String::as_str)
    }

    /// A list's or tuple's items.
    pub(in crate::trace) fn as_list(&self, value: Value) -> Option<&[Value]> {
        let Value::List(number) = value else { return None };
        self.lists.get(number as usize).map(Vec::as_slice)
    }

    /// How often a dictionary was given a value.
    pub(in crate::trace) fn entries(&self, value: Value) -> Option<usize> {
        self.pairs(value).map(|pairs| pairs.len() / 2)
    }

    /// What a dictionary holds under a key, last set first, as in Python.
    pub(in crate::trace) fn get(&self, value: Value, key: &str) -> Option<Value> {
        let mut pairs = self.pairs(value)?.rchunks_exact(2);
        pairs.find(|pair| self.as_text(pair[0]) == Some(key)).map(|pair| pair[1])
    }

    /// A module and a name in it.
    pub(super) fn as_global(&self, value: Value) -> Option<(&str, &str)> {
        let Value::Global(number) = value else { return None };
        self.globals.get(number as usize).map(|(module, name)| (module.as_str(), name.as_str()))
    }

    /// What would be called, and its arguments.
    pub(super) fn as_call(&self, value: Value) -> Option<(Value, Value)> {
        let Value::Call(number) = value else { return None };
        self.calls.get(number as usize).copied()
    }

    /// What names something outside.
    pub(super) fn as_persistent(&self, value: Value) -> Option<Value> {
        let Value::Persistent(number) = value else { return None };
        self.persistents.get(number as usize).copied()
    }

    /// A dictionary's keys and values, by turns.
    pub(super) fn pairs(&self, value: Value) -> Option<&[Value]> {
        let Value::Dict(number) = value else { return None };
        self.dicts.get(number as usize).map(Vec::as_slice)
    }

    /// The number of the last of `length` objects.
    fn number_of(&self, length: usize) -> Result<u32, TraceProblem> {
        u32::try_from(length - 1).map_err(|_| TraceProblem::TooMuchHeld { limit: self.limit })
    }
}

//! The heap of a pickle's objects, with an account of their memory.

use super::account::Account;
use crate::lean::{HeldMemory, TooMuchHeld};

/// A simple value, or the index of an object in its pickle.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Value {
    /// `None`.
    None,
    /// A boolean.
    Bool(bool),
    /// An integer from 0 to 2⁶⁴ - 1.
    Natural(u64),
    /// A negative integer, or one from 2⁶⁴ on.
    Integer,
    /// A float.
    Float(f64),
    /// Bytes, whose contents are skipped.
    Bytes,
    /// A text.
    Text(u32),
    /// A list.
    List(u32),
    /// A tuple.
    Tuple(u32),
    /// A dictionary.
    Dict(u32),
    /// A set, whose items are skipped.
    Set,
    /// A function or a class.
    Global(u32),
    /// A call that is not made, or an object that is not created.
    Call(u32),
    /// A reference to an object outside of the pickle.
    Persistent(u32),
}

/// All texts, lists, tuples and dictionaries.
#[derive(Debug, Default)]
pub struct Heap {
    pub(super) account: Account,
    texts: Vec<String>,
    /// Lists and tuples.
    lists: Vec<Vec<Value>>,
    /// Alternating keys and values, in the order in which they were set.
    dicts: Vec<Vec<Value>>,
    /// Modules and names.
    globals: Vec<(String, String)>,
    /// Functions or classes, and their arguments.
    calls: Vec<(Value, Value)>,
    /// The ids of objects outside.
    persistents: Vec<Value>,
}

/// Adds an object to those of its kind and returns its index.
fn add<T>(account: &mut Account, objects: &mut Vec<T>, object: T) -> Result<u32, TooMuchHeld> {
    let number = u32::try_from(objects.len()).map_err(|_| account.too_much())?;
    account.push(objects, object)?;
    Ok(number)
}

impl Heap {
    /// Creates an empty heap whose objects fit into `memory`.
    #[must_use]
    pub fn new(memory: HeldMemory) -> Self {
        Self { account: Account { memory }, ..Self::default() }
    }

    /// Counts bytes of the file. The memory limit may be a multiple of them.
    pub const fn note_input(&mut self, bytes: u64) {
        self.account.memory.note_input(bytes);
    }

    /// Returns the bytes of the memory limit that are reserved for results that are made from the objects.
    #[must_use]
    pub const fn reserved(&self) -> u64 {
        self.account.memory.reserved()
    }

    /// Drops all objects, and returns the memory account of the file with no bytes charged. All of its limit is free for
    /// results.
    #[must_use]
    pub fn into_memory(self) -> HeldMemory {
        self.account.memory.emptied()
    }

    /// Charges for bytes before the caller allocates them.
    ///
    /// # Errors
    /// [`TooMuchHeld`], as for each object that does not fit.
    pub fn charge(&mut self, bytes: u64) -> Result<(), TooMuchHeld> {
        self.account.charge(bytes)
    }

    /// Adds a text, whose length was charged before.
    ///
    /// # Errors
    /// [`TooMuchHeld`].
    pub fn text(&mut self, text: String) -> Result<Value, TooMuchHeld> {
        add(&mut self.account, &mut self.texts, text).map(Value::Text)
    }

    /// Adds a list.
    ///
    /// # Errors
    /// [`TooMuchHeld`].
    pub fn list(&mut self, items: &[Value]) -> Result<Value, TooMuchHeld> {
        self.add_items(items).map(Value::List)
    }

    pub(super) fn tuple(&mut self, items: &[Value]) -> Result<Value, TooMuchHeld> {
        self.add_items(items).map(Value::Tuple)
    }

    fn add_items(&mut self, items: &[Value]) -> Result<u32, TooMuchHeld> {
        let mut own = Vec::new();
        self.account.extend(&mut own, items)?;
        add(&mut self.account, &mut self.lists, own)
    }

    /// Adds a dictionary of alternating keys and values.
    ///
    /// # Errors
    /// [`TooMuchHeld`].
    pub fn dict(&mut self, pairs: &[Value]) -> Result<Value, TooMuchHeld> {
        let mut own = Vec::new();
        self.account.extend(&mut own, pairs)?;
        add(&mut self.account, &mut self.dicts, own).map(Value::Dict)
    }

    /// Adds a function or class, whose names were charged before.
    pub(super) fn global(&mut self, module: String, name: String) -> Result<Value, TooMuchHeld> {
        add(&mut self.account, &mut self.globals, (module, name)).map(Value::Global)
    }

    pub(super) fn call(&mut self, function: Value, arguments: Value) -> Result<Value, TooMuchHeld> {
        add(&mut self.account, &mut self.calls, (function, arguments)).map(Value::Call)
    }

    pub(super) fn persistent(&mut self, id: Value) -> Result<Value, TooMuchHeld> {
        add(&mut self.account, &mut self.persistents, id).map(Value::Persistent)
    }

    /// Appends to a list. Returns `false` if the value is not a list.
    ///
    /// # Errors
    /// [`TooMuchHeld`].
    pub fn extend(&mut self, list: Value, items: &[Value]) -> Result<bool, TooMuchHeld> {
        let Value::List(number) = list else { return Ok(false) };
        let Some(list) = self.lists.get_mut(number as usize) else { return Ok(false) };
        self.account.extend(list, items).map(|()| true)
    }

    /// Sets alternating keys and values of a dictionary. Returns `false` if the value is not a dictionary.
    ///
    /// # Errors
    /// [`TooMuchHeld`].
    pub fn set(&mut self, dict: Value, items: &[Value]) -> Result<bool, TooMuchHeld> {
        let Value::Dict(number) = dict else { return Ok(false) };
        let Some(dict) = self.dicts.get_mut(number as usize) else { return Ok(false) };
        self.account.extend(dict, items).map(|()| true)
    }

    /// Returns the contents of a text.
    #[must_use]
    pub fn as_text(&self, value: Value) -> Option<&str> {
        let Value::Text(number) = value else { return None };
        self.texts.get(number as usize).map(String::as_str)
    }

    /// Returns the items of a list or tuple.
    #[must_use]
    pub fn as_list(&self, value: Value) -> Option<&[Value]> {
        let (Value::List(number) | Value::Tuple(number)) = value else { return None };
        self.lists.get(number as usize).map(Vec::as_slice)
    }

    /// Returns the number of entries that were set in a dictionary.
    #[must_use]
    pub fn entries(&self, value: Value) -> Option<usize> {
        self.alternating(value).map(|pairs| pairs.len() / 2)
    }

    /// Returns the value of a dictionary for a key. The last value counts, as in Python.
    #[must_use]
    pub fn get(&self, value: Value, key: &str) -> Option<Value> {
        let mut pairs = self.alternating(value)?.rchunks_exact(2);
        pairs.find(|pair| self.as_text(pair[0]) == Some(key)).map(|pair| pair[1])
    }

    /// Returns a module and a name in it.
    pub(super) fn as_global(&self, value: Value) -> Option<(&str, &str)> {
        let Value::Global(number) = value else { return None };
        self.globals.get(number as usize).map(|(module, name)| (module.as_str(), name.as_str()))
    }

    /// Returns the function of a call and its arguments.
    pub(super) fn as_call(&self, value: Value) -> Option<(Value, Value)> {
        let Value::Call(number) = value else { return None };
        self.calls.get(number as usize).copied()
    }

    /// Returns the id of an external object.
    pub(super) fn as_persistent(&self, value: Value) -> Option<Value> {
        let Value::Persistent(number) = value else { return None };
        self.persistents.get(number as usize).copied()
    }

    /// Returns the keys and values of a dictionary, in the order in which they were set. For a duplicate key, the last
    /// value counts.
    #[must_use]
    pub fn pairs(&self, value: Value) -> Option<impl DoubleEndedIterator<Item = (Value, Value)>> {
        Some(self.alternating(value)?.chunks_exact(2).map(|pair| (pair[0], pair[1])))
    }

    /// Returns the alternating keys and values of a dictionary.
    pub(super) fn alternating(&self, value: Value) -> Option<&[Value]> {
        let Value::Dict(number) = value else { return None };
        self.dicts.get(number as usize).map(Vec::as_slice)
    }

    /// Returns the ids of all external objects, in the order in which they appear.
    pub(super) fn persistents(&self) -> &[Value] {
        &self.persistents
    }
}

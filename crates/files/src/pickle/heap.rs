//! The heap of a pickle's objects, with an account of their memory.

use super::account::Account;
use super::shapes::Shapes;
use super::store::{Place, Store};
use super::texts::Texts;
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
    texts: Texts,
    store: Store,
    /// The items of lists and tuples.
    lists: Vec<Place>,
    dicts: Vec<Dict>,
    shapes: Shapes,
    /// Modules and names.
    globals: Vec<(String, String)>,
    /// Functions or classes, and their arguments.
    calls: Vec<(Value, Value)>,
    /// The ids of objects outside.
    persistents: Vec<Value>,
}

/// The contents of a dictionary.
#[derive(Clone, Copy, Debug, Default)]
struct Dict {
    /// The number of its shape. [`MIXED`] for a dictionary with other keys than texts, or one that was filled in several
    /// parts.
    shape: u32,
    /// The values, or alternating keys and values in the order in which they were set.
    items: Place,
}

/// Marks a dictionary without a shape.
const MIXED: u32 = u32::MAX;

/// Adds an object to those of its kind and returns its index.
#[inline]
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

    /// Appends to a stack of the caller, whose memory belongs to the same account.
    ///
    /// # Errors
    /// [`TooMuchHeld`].
    pub fn push_to(&mut self, stack: &mut Vec<Value>, items: &[Value]) -> Result<(), TooMuchHeld> {
        self.account.extend(stack, items)
    }

    /// Adds a text. Short texts that repeat are stored once.
    ///
    /// # Errors
    /// [`TooMuchHeld`].
    pub fn text(&mut self, text: &str) -> Result<Value, TooMuchHeld> {
        if let Some(known) = self.recent_text(text.as_bytes()) {
            return Ok(known);
        }
        self.charge(text.len() as u64)?;
        self.add_text(text.into())
    }

    /// Returns a short text that was added recently.
    #[inline]
    pub(super) fn recent_text(&self, bytes: &[u8]) -> Option<Value> {
        self.texts.recent(bytes).map(Value::Text)
    }

    /// Adds a text, whose length was charged before.
    pub(super) fn add_text(&mut self, text: Box<str>) -> Result<Value, TooMuchHeld> {
        self.texts.add(&mut self.account, text).map(Value::Text)
    }

    /// Adds a list.
    ///
    /// # Errors
    /// [`TooMuchHeld`].
    #[inline]
    pub fn list(&mut self, items: &[Value]) -> Result<Value, TooMuchHeld> {
        self.add_items(items).map(Value::List)
    }

    #[inline]
    pub(super) fn tuple(&mut self, items: &[Value]) -> Result<Value, TooMuchHeld> {
        self.add_items(items).map(Value::Tuple)
    }

    #[inline]
    fn add_items(&mut self, items: &[Value]) -> Result<u32, TooMuchHeld> {
        let place = self.store.add(&mut self.account, items.iter().copied())?;
        add(&mut self.account, &mut self.lists, place)
    }

    /// Adds a dictionary of alternating keys and values.
    ///
    /// # Errors
    /// [`TooMuchHeld`].
    #[inline]
    pub fn dict(&mut self, pairs: &[Value]) -> Result<Value, TooMuchHeld> {
        let dict = self.filled(pairs)?;
        add(&mut self.account, &mut self.dicts, dict).map(Value::Dict)
    }

    /// Stores the contents of a dictionary.
    #[inline]
    fn filled(&mut self, pairs: &[Value]) -> Result<Dict, TooMuchHeld> {
        let account = &mut self.account;
        Ok(match self.shapes.of(account, pairs)? {
            Some(shape) => {
                let values = pairs.chunks_exact(2).map(|pair| pair[1]);
                Dict { shape, items: self.store.add(account, values)? }
            }
            None => Dict { shape: MIXED, items: self.store.add(account, pairs.iter().copied())? },
        })
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
    #[inline]
    pub fn extend(&mut self, list: Value, items: &[Value]) -> Result<bool, TooMuchHeld> {
        let Value::List(number) = list else { return Ok(false) };
        let Some(list) = self.lists.get_mut(number as usize) else { return Ok(false) };
        *list = self.store.extend(&mut self.account, *list, items)?;
        Ok(true)
    }

    /// Sets alternating keys and values of a dictionary. Returns `false` if the value is not a dictionary.
    ///
    /// # Errors
    /// [`TooMuchHeld`].
    #[inline]
    pub fn set(&mut self, dict: Value, items: &[Value]) -> Result<bool, TooMuchHeld> {
        let Value::Dict(number) = dict else { return Ok(false) };
        let Some(&before) = self.dicts.get(number as usize) else { return Ok(false) };
        let after = if self.store.items(before.items).is_empty() {
            self.filled(items)?
        } else {
            self.set_more(before, items)?
        };
        self.dicts[number as usize] = after;
        Ok(true)
    }

    /// Adds to a dictionary that has entries.
    #[cold]
    fn set_more(&mut self, dict: Dict, more: &[Value]) -> Result<Dict, TooMuchHeld> {
        let items = if dict.shape == MIXED {
            dict.items
        } else {
            let count = self.store.items(dict.items).len();
            self.account.charge_for_copies::<Value>(2 * count)?;
            let mut pairs = Vec::with_capacity(2 * count);
            let values = self.store.items(dict.items).iter();
            for (&key, &value) in self.shapes.keys(dict.shape).iter().zip(values) {
                pairs.extend([Value::Text(key), value]);
            }
            self.store.add(&mut self.account, pairs.into_iter())?
        };
        Ok(Dict { shape: MIXED, items: self.store.extend(&mut self.account, items, more)? })
    }

    /// Returns the contents of a text.
    #[inline]
    #[must_use]
    pub fn as_text(&self, value: Value) -> Option<&str> {
        let Value::Text(number) = value else { return None };
        self.texts.get(number)
    }

    /// Returns the items of a list or tuple.
    #[inline]
    #[must_use]
    pub fn as_list(&self, value: Value) -> Option<&[Value]> {
        let (Value::List(number) | Value::Tuple(number)) = value else { return None };
        self.lists.get(number as usize).map(|&place| self.store.items(place))
    }

    /// Returns the number of entries that were set in a dictionary.
    #[must_use]
    pub fn entries(&self, value: Value) -> Option<usize> {
        let dict = self.as_dict(value)?;
        let items = self.store.items(dict.items).len();
        Some(if dict.shape == MIXED { items / 2 } else { items })
    }

    /// Returns the value of a dictionary for a key. The last value counts, as in Python.
    #[must_use]
    pub fn get(&self, value: Value, key: &str) -> Option<Value> {
        let mut pairs = self.pairs(value)?.rev();
        pairs.find(|&(found, _)| self.as_text(found) == Some(key)).map(|(_, value)| value)
    }

    /// Returns the keys and values of a dictionary, in the order in which they were set. For a duplicate key, the last
    /// value counts.
    #[must_use]
    pub fn pairs(&self, value: Value) -> Option<impl DoubleEndedIterator<Item = (Value, Value)> + '_> {
        let dict = self.as_dict(value)?;
        let (items, keys) = (self.store.items(dict.items), self.shapes.keys(dict.shape));
        let count = if dict.shape == MIXED { items.len() / 2 } else { items.len().min(keys.len()) };
        let pair = move |index: usize| match dict.shape {
            MIXED => (items[2 * index], items[2 * index + 1]),
            _ => (Value::Text(keys[index]), items[index]),
        };
        Some((0..count).map(pair))
    }

    /// Returns the number of a dictionary's shape and its values in the order of the shape's keys. Dictionaries with the
    /// same keys in the same order have the same shape. `None` for dictionaries without a shape: empty ones, those with
    /// keys other than texts, and those that were filled in several parts.
    #[inline]
    #[must_use]
    pub fn record(&self, value: Value) -> Option<(u32, &[Value])> {
        let dict = self.as_dict(value).filter(|dict| dict.shape != MIXED)?;
        Some((dict.shape, self.store.items(dict.items)))
    }

    /// Returns the keys of a shape from [`record`](Self::record), in the order of the values.
    pub fn keys_of_shape(&self, shape: u32) -> impl DoubleEndedIterator<Item = &str> + ExactSizeIterator {
        self.shapes.keys(shape).iter().map(|&key| self.texts.get(key).unwrap_or_default())
    }

    #[inline]
    fn as_dict(&self, value: Value) -> Option<Dict> {
        let Value::Dict(number) = value else { return None };
        self.dicts.get(number as usize).copied()
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

    /// Returns the ids of all external objects, in the order in which they appear.
    pub(super) fn persistents(&self) -> &[Value] {
        &self.persistents
    }
}

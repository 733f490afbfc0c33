//! Python's pickles, as far as they hold plain data: numbers, texts, lists, tuples, dictionaries.
//!
//! A pickle is a program for a small stack machine that may call any function. This machine calls nothing. It runs the instructions
//! of protocols 2 to 5 that make plain data and refuses the rest by name. For files that contain more, it [notes](Pickle) each call
//! and object with its arguments instead.
//!
//! Shared objects stay shared, since a copy for each reference would turn a few hundred bytes into more objects than fit in memory.
//! All objects live in one [`Heap`] and refer to each other by number, so depth costs nothing. An account counts every byte that they
//! take and stops at a limit.
//!
//! Source: the opcodes' descriptions in Python's `pickletools`.

use std::io::BufRead;

use super::{TraceError, TraceLimits};

mod account;
mod heap;
mod input;
mod machine;
mod memo;
mod opcode;

pub(super) use heap::Heap;
pub use heap::Value;
use machine::run;

/// The first byte of a pickle of protocol 2 or later.
pub(super) const MAGIC: u8 = 0x80;

/// Why a pickle cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PickleProblem {
    /// The pickle is of an unknown protocol.
    #[error("pickle protocol {protocol}, expected 2 to 5")]
    Protocol {
        /// The protocol it names.
        protocol: u8,
    },
    /// An instruction that makes something else than plain data, or none at all.
    #[error("pickle opcode {opcode:#04x} ({name}) is refused: only plain data is read")]
    Refused {
        /// The instruction's code.
        opcode: u8,
        /// Its name in Python's `pickletools`.
        name: &'static str,
    },
    /// The file ends before the pickle does.
    #[error("the pickle ends too early")]
    Truncated,
    /// An instruction found less on the stack than it needs, or something of another type.
    #[error("{opcode} needs {needs} on the stack")]
    Stack {
        /// The instruction's name.
        opcode: &'static str,
        /// What it needs.
        needs: &'static str,
    },
    /// An instruction recalls what was never kept.
    #[error("nothing was kept under number {index}")]
    Memo {
        /// The number recalled.
        index: u32,
    },
    /// The name of something to call is longer than any real one.
    #[error("a name of more than {most} bytes")]
    LongName {
        /// The longest that is read.
        most: usize,
    },
    /// A whole number of more bytes than any real one has.
    #[error("a whole number of {bytes} bytes")]
    LongNumber {
        /// Its length in bytes.
        bytes: u64,
    },
}

/// A pickle of plain data, calls and objects. No call is made and no object is created: their names and arguments are data too. The
/// dictionaries of Python's `collections` are dictionaries.
///
/// ```
/// use highwater_tracking::pickle::{Pickle, Value};
/// // {"size": torch.Size((2, 3))}
/// let bytes = b"\x80\x02}X\x04\0\0\0sizectorch\nSize\nK\x02K\x03\x86\x85Rs.";
/// let pickle = Pickle::read(&bytes[..], 1 << 20)?;
/// let entries = pickle.entries(pickle.root()).expect("a dictionary");
/// let (name, size) = (entries[0], entries[1]);
/// assert_eq!(pickle.text(name), Some("size"));
/// let (function, arguments) = pickle.call(size).expect("a call");
/// assert_eq!(pickle.global(function), Some(("torch", "Size")));
/// let items = pickle.items(pickle.items(arguments).expect("a tuple")[0]);
/// assert_eq!(items, Some(&[Value::Natural(2), Value::Natural(3)][..]));
/// # Ok::<(), highwater_tracking::TraceError>(())
/// ```
#[derive(Debug)]
pub struct Pickle {
    heap: Heap,
    root: Value,
}

impl Pickle {
    /// Reads a pickle whose objects take at most `held_bytes` of memory, and nothing behind it.
    ///
    /// # Errors
    /// [`TraceError`] with the byte and what is wrong there: see [`PickleProblem`].
    pub fn read(source: impl BufRead, held_bytes: u64) -> Result<Self, TraceError> {
        run(source, held_bytes, true).map(|(heap, root)| Self { heap, root })
    }

    /// What the pickle stands for.
    #[must_use]
    pub const fn root(&self) -> Value {
        self.root
    }

    /// A text's letters.
    #[must_use]
    pub fn text(&self, value: Value) -> Option<&str> {
        self.heap.as_text(value)
    }

    /// A list's or tuple's items.
    #[must_use]
    pub fn items(&self, value: Value) -> Option<&[Value]> {
        self.heap.as_list(value)
    }

    /// A dictionary's alternating keys and values, in the order in which they were set. For a duplicate key, the last value counts.
    #[must_use]
    pub fn entries(&self, value: Value) -> Option<&[Value]> {
        self.heap.pairs(value)
    }

    /// The module and the name of a function or class.
    #[must_use]
    pub fn global(&self, value: Value) -> Option<(&str, &str)> {
        self.heap.as_global(value)
    }

    /// The function or class of a call or object, and the tuple of its arguments.
    #[must_use]
    pub fn call(&self, value: Value) -> Option<(Value, Value)> {
        self.heap.as_call(value)
    }

    /// The id of an object outside of the pickle.
    #[must_use]
    pub fn persistent(&self, value: Value) -> Option<Value> {
        self.heap.as_persistent(value)
    }

    /// The ids of all objects outside of the pickle, in the order in which they appear.
    #[must_use]
    pub fn persistent_ids(&self) -> &[Value] {
        self.heap.persistents()
    }

    /// The class of a value, as Python names it: `int`, `argparse.Namespace`. For a call, the function; for a function or class, its own
    /// name.
    ///
    /// ```
    /// use highwater_tracking::pickle::Pickle;
    /// // argparse.Namespace()
    /// let pickle = Pickle::read(&b"\x80\x02cargparse\nNamespace\n)\x81."[..], 1 << 20)?;
    /// assert_eq!(pickle.class(pickle.root()), "argparse.Namespace");
    /// # Ok::<(), highwater_tracking::TraceError>(())
    /// ```
    #[must_use]
    pub fn class(&self, value: Value) -> String {
        let class = match value {
            Value::None => "NoneType",
            Value::Bool(_) => "bool",
            Value::Natural(_) | Value::Integer => "int",
            Value::Float => "float",
            Value::Bytes => "bytes",
            Value::Text(_) => "str",
            Value::List(_) => "list",
            Value::Tuple(_) => "tuple",
            Value::Dict(_) => "dict",
            Value::Set => "set",
            Value::Persistent(_) => "persistent object",
            Value::Global(_) => return self.class_name(value),
            Value::Call(_) => return self.class_of_call(value),
        };
        class.to_owned()
    }

    fn class_of_call(&self, value: Value) -> String {
        let Some((function, arguments)) = self.call(value) else { return "object".to_owned() };
        match self.global(function) {
            // How protocol 2 writes bytes.
            Some(("_codecs", "encode")) => "bytes".to_owned(),
            Some(("copyreg" | "copy_reg", "_reconstructor" | "__newobj__")) => {
                let class = self.items(arguments).and_then(|items| items.first());
                self.class_name(class.copied().unwrap_or(function))
            }
            _ => self.class_name(function),
        }
    }

    fn class_name(&self, value: Value) -> String {
        match self.global(value) {
            Some(("builtins" | "__builtin__", name)) => name.to_owned(),
            Some((module, name)) => format!("{module}.{name}"),
            None => "object".to_owned(),
        }
    }
}

/// Reads a pickle of plain data: its objects, and the one that it stands for.
pub(super) fn read(reader: impl BufRead, limits: &TraceLimits) -> Result<(Heap, Value), TraceError> {
    run(reader, limits.held_bytes, false)
}

#[cfg(test)]
mod tests;

//! Reads Python pickles of plain data: numbers, texts, lists, tuples and dictionaries.
//!
//! A pickle is a program for a small stack machine that may call any function. This machine makes no calls. It runs the
//! opcodes of protocols 2 to 5 that make plain data, and rejects the others by name. For files that contain more, it
//! [notes](Pickle) each call and object with its arguments instead.
//!
//! Shared objects stay shared. Copies would expand a few hundred bytes to more objects than fit in memory. All objects
//! live in one [`Heap`] and refer to each other by number, so nesting costs nothing. An account counts all their memory
//! and enforces a limit.
//!
//! Source: the descriptions of opcodes in Python's `pickletools`.

use std::io::{self, BufRead};

use crate::lean::{HeldMemory, TooMuchHeld};

mod account;
mod heap;
mod input;
mod machine;
mod memo;
pub mod opcode;
mod shapes;
mod store;
mod texts;

pub use heap::{Heap, Value};
use machine::{Mode, run};

/// The first byte of a pickle of protocol 2 or later.
pub const MAGIC: u8 = opcode::PROTO;

/// A file that is not a readable pickle.
#[derive(thiserror::Error)]
#[error("byte {offset}: {problem}")]
pub struct PickleError {
    /// The offset of the opcode in bytes.
    pub offset: u64,
    /// The problem.
    pub problem: PickleProblem,
}

bfc_core::debug_as_message!(PickleError);

/// The reason why a pickle cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PickleProblem {
    /// The file could not be read.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The objects need more memory than the limit.
    #[error(transparent)]
    TooMuchHeld(#[from] TooMuchHeld),
    /// The pickle is of an unknown protocol.
    #[error("pickle protocol {protocol}, expected 2 to 5")]
    Protocol {
        /// The stated protocol.
        protocol: u8,
    },
    /// An opcode is unknown or makes something other than plain data.
    #[error("pickle opcode {opcode:#04x} ({name}) is not supported: only plain data is")]
    Refused {
        /// The opcode.
        opcode: u8,
        /// Its name in Python's `pickletools`.
        name: &'static str,
    },
    /// The file ends before the pickle does.
    #[error("the pickle ends too early")]
    Truncated,
    /// An opcode found too few values on the stack, or one of another type.
    #[error("{opcode} needs {needs} on the stack")]
    Stack {
        /// The opcode's name.
        opcode: &'static str,
        /// The required values.
        needs: &'static str,
    },
    /// An opcode recalls a number without a stored object.
    #[error("no object is stored under number {index}")]
    Memo {
        /// The number.
        index: u32,
    },
    /// The name of a function or class is too long.
    #[error("a name of more than {most} bytes")]
    LongName {
        /// The limit.
        most: usize,
    },
    /// An integer has too many bytes.
    #[error("an integer of {bytes} bytes")]
    LongNumber {
        /// Its length in bytes.
        bytes: u64,
    },
}

/// A pickle of plain data, calls and objects. Calls and objects become data: their names and arguments. Nothing is
/// called or created. The dictionaries of Python's `collections` become dictionaries.
///
/// ```
/// use highwater_files::pickle::{Pickle, Value};
/// // {"size": torch.Size((2, 3))}
/// let bytes = b"\x80\x02}X\x04\0\0\0sizectorch\nSize\nK\x02K\x03\x86\x85Rs.";
/// let pickle = Pickle::read(&bytes[..], 1 << 20)?;
/// let mut entries = pickle.entries(pickle.root()).expect("a dictionary");
/// let (name, size) = entries.next().expect("one entry");
/// assert_eq!(pickle.text(name), Some("size"));
/// let (function, arguments) = pickle.call(size).expect("a call");
/// assert_eq!(pickle.global(function), Some(("torch", "Size")));
/// let items = pickle.items(pickle.items(arguments).expect("a tuple")[0]);
/// assert_eq!(items, Some(&[Value::Natural(2), Value::Natural(3)][..]));
/// # Ok::<(), highwater_files::pickle::PickleError>(())
/// ```
#[derive(Debug)]
pub struct Pickle {
    heap: Heap,
    root: Value,
}

impl Pickle {
    /// Reads a pickle whose objects need at most `held_bytes` of memory. Ignores bytes after it.
    ///
    /// # Errors
    /// [`PickleError`] with the offset and the [`PickleProblem`].
    pub fn read(mut source: impl BufRead, held_bytes: u64) -> Result<Self, PickleError> {
        let mode = Mode { notes_calls: true, counts_input: false };
        run(&mut source, HeldMemory::new(held_bytes), mode).map(|(heap, root)| Self { heap, root })
    }

    /// Returns the value of the pickle.
    #[must_use]
    pub const fn root(&self) -> Value {
        self.root
    }

    /// Returns the contents of a text.
    #[must_use]
    pub fn text(&self, value: Value) -> Option<&str> {
        self.heap.as_text(value)
    }

    /// Returns the items of a list or tuple.
    #[must_use]
    pub fn items(&self, value: Value) -> Option<&[Value]> {
        self.heap.as_list(value)
    }

    /// Returns the keys and values of a dictionary, in the order in which they were set. For a duplicate key, the last
    /// value counts.
    #[must_use]
    pub fn entries(&self, value: Value) -> Option<impl DoubleEndedIterator<Item = (Value, Value)> + '_> {
        self.heap.pairs(value)
    }

    /// Returns the module and the name of a function or class.
    #[must_use]
    pub fn global(&self, value: Value) -> Option<(&str, &str)> {
        self.heap.as_global(value)
    }

    /// Returns the function or class of a call or object, and the tuple of its arguments.
    #[must_use]
    pub fn call(&self, value: Value) -> Option<(Value, Value)> {
        self.heap.as_call(value)
    }

    /// Returns the id of an object outside of the pickle.
    #[must_use]
    pub fn persistent(&self, value: Value) -> Option<Value> {
        self.heap.as_persistent(value)
    }

    /// Returns the ids of all objects outside of the pickle, in the order in which they appear.
    #[must_use]
    pub fn persistent_ids(&self) -> &[Value] {
        self.heap.persistents()
    }

    /// Returns the class of a value by its Python name: `int`, `argparse.Namespace`. Returns the function for a call,
    /// and the own name for a function or class.
    ///
    /// ```
    /// use highwater_files::pickle::Pickle;
    /// // argparse.Namespace()
    /// let pickle = Pickle::read(&b"\x80\x02cargparse\nNamespace\n)\x81."[..], 1 << 20)?;
    /// assert_eq!(pickle.class(pickle.root()), "argparse.Namespace");
    /// # Ok::<(), highwater_files::pickle::PickleError>(())
    /// ```
    #[must_use]
    pub fn class(&self, value: Value) -> String {
        let class = match value {
            Value::None => "NoneType",
            Value::Bool(_) => "bool",
            Value::Natural(_) | Value::Integer => "int",
            Value::Float(_) => "float",
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
            // The encoding of bytes in protocol 2.
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

/// Reads a pickle of plain data, whose objects fit into `memory`. Returns its objects and its value.
///
/// # Errors
/// [`PickleError`], also for calls and objects.
pub fn read(mut reader: impl BufRead, memory: HeldMemory) -> Result<(Heap, Value), PickleError> {
    run(&mut reader, memory, Mode::default())
}

/// Reads a pickle of plain data as [`read`], and counts the bytes that it reads. The memory limit may be a
/// multiple of them.
///
/// # Errors
/// [`PickleError`], also for calls and objects.
pub fn read_counted(mut reader: impl BufRead, memory: HeldMemory) -> Result<(Heap, Value), PickleError> {
    run(&mut reader, memory, Mode { notes_calls: false, counts_input: true })
}

#[cfg(test)]
mod tests;

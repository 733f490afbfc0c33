//! Python's pickles, as far as they hold plain data: numbers, texts, lists, tuples, dictionaries.
//!
//! A pickle is a program for a small stack machine that may also call any function there is. This one never does: it
//! knows the instructions of protocols 2 to 5 that make plain data, and refuses the rest by name; or, for files that cannot do
//! without, it [notes](Pickle) what would have been called with what, and calls nothing. It is our own because a
//! shared object must stay shared: a reader that copies what a pickle refers to again turns a file of a few hundred
//! bytes into more objects than there is memory for. All objects live in one [`Heap`] and refer to each other by number, so
//! depth costs nothing, neither while reading nor when they are dropped, and what they take is added up and limited.
//!
//! Source: the opcodes' descriptions in Python's `pickletools`.

use std::collections::HashMap;
use std::io::{self, BufRead, ErrorKind, Read};
use std::string::FromUtf8Error;

use super::{TraceError, TraceLimits, TracePlace, TraceProblem};

mod heap;
mod opcode;

pub(super) use heap::Heap;
pub use heap::Value;
use opcode::Opcode;

/// The first byte of a pickle of protocol 2 or later.
pub(super) const MAGIC: u8 = 0x80;

/// The protocols that can be read.
const PROTOCOLS: std::ops::RangeInclusive<u8> = 2..=5;

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

/// A pickle of plain data and calls, of which none is made: what would be called, and with what, is data too. An
/// `collections.OrderedDict` is a dictionary.
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
    /// Reads a pickle whose objects take at most `held_bytes` of memory.
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

    /// A dictionary's keys and values, by turns, in the order in which they were set; of a key that is there twice the last
    /// counts.
    #[must_use]
    pub fn entries(&self, value: Value) -> Option<&[Value]> {
        self.heap.pairs(value)
    }

    /// The module and the name of something that could be called.
    #[must_use]
    pub fn global(&self, value: Value) -> Option<(&str, &str)> {
        self.heap.as_global(value)
    }

    /// What would be called, and the tuple of its arguments.
    #[must_use]
    pub fn call(&self, value: Value) -> Option<(Value, Value)> {
        self.heap.as_call(value)
    }

    /// What names something that is kept outside of the pickle.
    #[must_use]
    pub fn persistent(&self, value: Value) -> Option<Value> {
        self.heap.as_persistent(value)
    }
}

/// Reads a pickle of plain data: its objects, and the one that it stands for.
pub(super) fn read(reader: impl BufRead, limits: &TraceLimits) -> Result<(Heap, Value), TraceError> {
    run(reader, limits.held_bytes, false)
}

fn run(reader: impl BufRead, held_bytes: u64, notes_calls: bool) -> Result<(Heap, Value), TraceError> {
    let heap = Heap::new(held_bytes);
    let input = Input { reader, offset: 0 };
    let (stack, marks, memo) = (Vec::new(), Vec::new(), HashMap::new());
    let mut machine = Machine { input, heap, stack, marks, memo, notes_calls };
    loop {
        let offset = machine.input.offset;
        match machine.step() {
            Ok(None) => {}
            Ok(Some(value)) => return Ok((machine.heap, value)),
            Err(problem) => return Err(TracePlace::Byte(offset).of(problem)),
        }
    }
}

/// Where the instructions come from.
struct Input<R> {
    reader: R,
    offset: u64,
}

impl<R: BufRead> Input<R> {
    fn exact<const N: usize>(&mut self) -> Result<[u8; N], TraceProblem> {
        let mut bytes = [0; N];
        self.reader.read_exact(&mut bytes).map_err(truncated)?;
        self.offset += N as u64;
        Ok(bytes)
    }

    fn byte(&mut self) -> Result<u8, TraceProblem> {
        self.exact::<1>().map(|[byte]| byte)
    }

    /// So many bytes; what is taken from memory follows what is really there.
    fn bytes(&mut self, length: u64) -> Result<Vec<u8>, TraceProblem> {
        let mut bytes = Vec::new();
        let read = (&mut self.reader).take(length).read_to_end(&mut bytes)?;
        self.offset += read as u64;
        if (read as u64) < length { Err(PickleProblem::Truncated.into()) } else { Ok(bytes) }
    }
}

fn truncated(error: io::Error) -> TraceProblem {
    match error.kind() {
        ErrorKind::UnexpectedEof if error.get_ref().is_none() => PickleProblem::Truncated.into(),
        _ => error.into(),
    }
}

/// Bytes on the stack and in the memo, as [`Heap::charge`] counts.
const STACK_BYTES: u64 = 32;
const MEMO_BYTES: u64 = 64;

struct Machine<R> {
    input: Input<R>,
    heap: Heap,
    stack: Vec<Value>,
    /// How high the stack was at each open mark.
    marks: Vec<usize>,
    memo: HashMap<u32, Value>,
    /// Whether calls are noted. Else they are refused.
    notes_calls: bool,
}

impl<R: BufRead> Machine<R> {
    /// Does one instruction; a value when that was the last.
    fn step(&mut self) -> Result<Option<Value>, TraceProblem> {
        let code = self.input.byte()?;
        let opcode = Opcode::of(code)
            .or_else(|| Opcode::of_call(code).filter(|_| self.notes_calls))
            .ok_or_else(|| PickleProblem::Refused { opcode: code, name: opcode::name_of_refused(code) })?;
        match opcode {
            Opcode::Proto => self.check_protocol()?,
            Opcode::Frame => drop(self.input.exact::<8>()?),
            Opcode::Stop => return self.pop("STOP", "a value").map(Some),
            Opcode::Mark => {
                self.heap.charge(STACK_BYTES)?;
                self.marks.push(self.stack.len());
            }
            Opcode::Pop => {
                // At an open mark, it is the mark that goes.
                if self.pop("POP", "a value").is_err() {
                    self.take_mark("POP")?;
                }
            }
            Opcode::PopMark => drop(self.since_mark("POP_MARK")?),
            Opcode::Dup => {
                let value = self.top("DUP", "a value")?;
                self.push(value)?;
            }
            Opcode::None | Opcode::Bool => self.push(Value::Other)?,
            Opcode::Float => {
                self.input.exact::<8>()?;
                self.push(Value::Other)?;
            }
            Opcode::Int { bytes } => {
                let number = self.int(bytes)?;
                self.push(number)?;
            }
            Opcode::Long { length } => {
                let number = self.long(length)?;
                self.push(number)?;
            }
            Opcode::Text { length } => {
                let length = self.length(length)?;
                self.heap.charge(length)?;
                let bytes = self.input.bytes(length)?;
                // Python's texts may hold halves of surrogate pairs, which are no letters.
                let lossy = |error: FromUtf8Error| String::from_utf8_lossy(error.as_bytes()).into_owned();
                let text = self.heap.text(String::from_utf8(bytes).unwrap_or_else(lossy))?;
                self.push(text)?;
            }
            Opcode::Bytes { length } => {
                let length = self.length(length)?;
                self.heap.charge(length)?;
                drop(self.input.bytes(length)?);
                self.push(Value::Other)?;
            }
            Opcode::EmptyList => self.push_list(Vec::new())?,
            Opcode::Tuple { items } => {
                let mut tuple = Vec::with_capacity(items);
                for _ in 0..items {
                    tuple.push(self.pop("TUPLE1, 2 or 3", "its items")?);
                }
                tuple.reverse();
                self.push_list(tuple)?;
            }
            Opcode::ListOfMarked => {
                let items = self.since_mark("LIST or TUPLE")?;
                self.push_list(items)?;
            }
            Opcode::Append => {
                let item = self.pop("APPEND", "an item")?;
                self.append("APPEND", &[item])?;
            }
            Opcode::Appends => {
                let items = self.since_mark("APPENDS")?;
                self.append("APPENDS", &items)?;
            }
            Opcode::EmptyDict => self.push_dict()?,
            Opcode::DictOfMarked => {
                let items = self.since_mark("DICT")?;
                self.push_dict()?;
                self.set_items("DICT", &items)?;
            }
            Opcode::SetItem => {
                let value = self.pop("SETITEM", "a value")?;
                let key = self.pop("SETITEM", "a key")?;
                self.set_items("SETITEM", &[key, value])?;
            }
            Opcode::SetItems => {
                let items = self.since_mark("SETITEMS")?;
                self.set_items("SETITEMS", &items)?;
            }
            Opcode::Recall { bytes } => {
                let index = self.index(bytes)?;
                let value = *self.memo.get(&index).ok_or(PickleProblem::Memo { index })?;
                self.push(value)?;
            }
            Opcode::Keep { bytes } => {
                let index = self.index(bytes)?;
                self.keep(index)?;
            }
            Opcode::Global => {
                let (module, name) = (self.line()?, self.line()?);
                let global = self.heap.global(module, name)?;
                self.push(global)?;
            }
            Opcode::StackGlobal => {
                let name = self.pop("STACK_GLOBAL", "a name")?;
                let module = self.pop("STACK_GLOBAL", "a module")?;
                let text = |value| self.heap.as_text(value).map(str::to_owned);
                let (Some(module), Some(name)) = (text(module), text(name)) else {
                    return Err(PickleProblem::Stack { opcode: "STACK_GLOBAL", needs: "two texts" }.into());
                };
                let global = self.heap.global(module, name)?;
                self.push(global)?;
            }
            Opcode::Reduce => {
                let arguments = self.pop("REDUCE", "arguments")?;
                let function = self.pop("REDUCE", "something to call")?;
                self.note_call(function, arguments)?;
            }
            Opcode::Build => {
                // What an object keeps beside what it is: nothing that is data.
                self.pop("BUILD", "a state")?;
                self.top("BUILD", "an object")?;
            }
            Opcode::PersistentId => {
                let id = self.pop("BINPERSID", "a name")?;
                let outside = self.heap.persistent(id)?;
                self.push(outside)?;
            }
            Opcode::KeepNext => {
                // Each entry is charged for, so there are never 2^32 of them.
                let index = u32::try_from(self.memo.len()).unwrap_or(u32::MAX);
                self.keep(index)?;
            }
        }
        Ok(None)
    }

    fn note_call(&mut self, function: Value, arguments: Value) -> Result<(), TraceProblem> {
        let (global, items) = (self.heap.as_global(function), self.heap.as_list(arguments));
        match (global, items) {
            (Some(("collections", "OrderedDict")), Some([])) => self.push_dict(),
            (Some(_), Some(_)) => {
                let call = self.heap.call(function, arguments)?;
                self.push(call)
            }
            _ => Err(PickleProblem::Stack { opcode: "REDUCE", needs: "a global and a tuple" }.into()),
        }
    }

    /// The text up to the end of the line, of a length that names have.
    fn line(&mut self) -> Result<String, TraceProblem> {
        const MOST: usize = 256;
        let mut line = Vec::new();
        loop {
            match self.input.byte()? {
                b'\n' => break,
                _ if line.len() == MOST => return Err(PickleProblem::LongName { most: MOST }.into()),
                byte => line.push(byte),
            }
        }
        self.heap.charge(line.len() as u64)?;
        Ok(String::from_utf8_lossy(&line).into_owned())
    }

    fn check_protocol(&mut self) -> Result<(), TraceProblem> {
        let protocol = self.input.byte()?;
        if PROTOCOLS.contains(&protocol) { Ok(()) } else { Err(PickleProblem::Protocol { protocol }.into()) }
    }

    fn push(&mut self, value: Value) -> Result<(), TraceProblem> {
        // What the stack has room for was charged when it first rose so high.
        if self.stack.len() == self.stack.capacity() {
            self.heap.charge(STACK_BYTES * self.stack.capacity().max(4) as u64)?;
        }
        self.stack.push(value);
        Ok(())
    }

    fn push_list(&mut self, items: Vec<Value>) -> Result<(), TraceProblem> {
        let list = self.heap.list(items)?;
        self.push(list)
    }

    fn push_dict(&mut self) -> Result<(), TraceProblem> {
        let dict = self.heap.dict()?;
        self.push(dict)
    }

    /// The height that the stack must not fall below: that of the last open mark.
    fn floor(&self) -> usize {
        self.marks.last().copied().unwrap_or(0)
    }

    fn top(&self, opcode: &'static str, needs: &'static str) -> Result<Value, TraceProblem> {
        let above = self.stack.get(self.floor()..).and_then(<[Value]>::last);
        above.copied().ok_or_else(|| PickleProblem::Stack { opcode, needs }.into())
    }

    fn pop(&mut self, opcode: &'static str, needs: &'static str) -> Result<Value, TraceProblem> {
        let value = self.top(opcode, needs)?;
        self.stack.pop();
        Ok(value)
    }

    fn take_mark(&mut self, opcode: &'static str) -> Result<usize, TraceProblem> {
        self.marks.pop().ok_or_else(|| PickleProblem::Stack { opcode, needs: "a mark" }.into())
    }

    /// Takes everything above the last mark, and the mark.
    fn since_mark(&mut self, opcode: &'static str) -> Result<Vec<Value>, TraceProblem> {
        let mark = self.take_mark(opcode)?;
        Ok(self.stack.split_off(mark.min(self.stack.len())))
    }

    fn append(&mut self, opcode: &'static str, items: &[Value]) -> Result<(), TraceProblem> {
        let list = self.top(opcode, "a list")?;
        if self.heap.extend(list, items)? {
            return Ok(());
        }
        Err(PickleProblem::Stack { opcode, needs: "a list" }.into())
    }

    fn set_items(&mut self, opcode: &'static str, items: &[Value]) -> Result<(), TraceProblem> {
        let dict = self.top(opcode, "a dictionary")?;
        if items.len().is_multiple_of(2) && self.heap.set(dict, items)? {
            return Ok(());
        }
        Err(PickleProblem::Stack { opcode, needs: "a dictionary and pairs" }.into())
    }

    fn keep(&mut self, index: u32) -> Result<(), TraceProblem> {
        let value = self.top("a memo opcode", "a value")?;
        if self.memo.insert(index, value).is_none() {
            self.heap.charge(MEMO_BYTES)?;
        }
        Ok(())
    }

    /// An unsigned number of 1 or 4 bytes that names something kept.
    fn index(&mut self, bytes: usize) -> Result<u32, TraceProblem> {
        if bytes == 1 { self.input.byte().map(u32::from) } else { self.input.exact().map(u32::from_le_bytes) }
    }

    /// A length of 1, 4 or 8 bytes.
    fn length(&mut self, bytes: usize) -> Result<u64, TraceProblem> {
        match bytes {
            1 => self.input.byte().map(u64::from),
            4 => self.input.exact().map(|bytes| u32::from_le_bytes(bytes).into()),
            _ => self.input.exact().map(u64::from_le_bytes),
        }
    }

    /// A number of 1 or 2 bytes without a sign, or of 4 with one.
    fn int(&mut self, bytes: usize) -> Result<Value, TraceProblem> {
        Ok(match bytes {
            1 => Value::Natural(self.input.byte()?.into()),
            2 => Value::Natural(u16::from_le_bytes(self.input.exact()?).into()),
            _ => {
                let number = i32::from_le_bytes(self.input.exact()?);
                u64::try_from(number).map_or(Value::Other, Value::Natural)
            }
        })
    }

    /// A number of any length, little-endian with the sign in the highest bit.
    fn long(&mut self, length: usize) -> Result<Value, TraceProblem> {
        const MOST: u64 = 1 << 10;
        let length = self.length(length)?;
        if length > MOST {
            return Err(PickleProblem::LongNumber { bytes: length }.into());
        }
        let bytes = self.input.bytes(length)?;
        let negative = bytes.last().is_some_and(|&last| last >= 0x80);
        let (low, high) = bytes.split_at(bytes.len().min(8));
        if negative || high.iter().any(|&byte| byte != 0) {
            return Ok(Value::Other);
        }
        let mut number = [0; 8];
        number.iter_mut().zip(low).for_each(|(to, &from)| *to = from);
        Ok(Value::Natural(u64::from_le_bytes(number)))
    }
}

#[cfg(test)]
mod tests;

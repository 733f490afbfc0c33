//! The stack machine that runs a pickle.

use std::io::BufRead;

use super::heap::{Heap, Value};
use super::input::Input;
use super::memo::Memo;
use super::opcode;
use super::{PickleError, PickleProblem};
use crate::lean::HeldMemory;

/// The supported protocols.
const PROTOCOLS: std::ops::RangeInclusive<u8> = 2..=5;

/// The longest name of a module, function or class.
const MAX_NAME_BYTES: usize = 256;

/// How a pickle is run.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Mode {
    /// Whether calls and objects become data. Otherwise they are errors.
    pub(super) notes_calls: bool,
    /// Whether the memory limit grows with the bytes that were read.
    pub(super) counts_input: bool,
}

/// The number of bytes after which the memory limit grows.
const COUNTED: u64 = 1 << 14;

/// Runs a pickle whose objects fit into `memory`. Returns its objects and its value.
pub(super) fn run(
    reader: &mut dyn BufRead,
    memory: HeldMemory,
    mode: Mode,
) -> Result<(Heap, Value), PickleError> {
    let heap = Heap::new(memory);
    let input = Input::new(reader);
    let (stack, marks, memo) = (Vec::new(), Vec::new(), Memo::default());
    let mut machine = Machine { input, heap, stack, marks, floor: 0, memo, code: opcode::STOP, mode };
    let mut counted = 0;
    loop {
        let offset = machine.input.offset();
        if mode.counts_input && offset - counted >= COUNTED {
            machine.heap.note_input(offset - counted);
            counted = offset;
        }
        match machine.step() {
            Ok(None) => {}
            Ok(Some(value)) => {
                machine.input.release();
                if mode.counts_input {
                    machine.heap.note_input(machine.input.offset() - counted);
                }
                return Ok((machine.heap, value));
            }
            Err(problem) => return Err(PickleError { offset, problem }),
        }
    }
}

struct Machine<'r> {
    input: Input<'r>,
    heap: Heap,
    stack: Vec<Value>,
    /// The height of the stack at each open mark.
    marks: Vec<usize>,
    /// The minimum height of the stack: that of the last open mark.
    floor: usize,
    memo: Memo,
    /// The current opcode.
    code: u8,
    mode: Mode,
}

impl Machine<'_> {
    /// Executes one opcode. Returns the value after the last one.
    #[inline]
    fn step(&mut self) -> Result<Option<Value>, PickleProblem> {
        self.code = self.input.byte()?;
        if self.code == opcode::STOP {
            return self.pop("a value").map(Some);
        }
        if let Some(value) = self.value()? {
            self.push(value)?;
        } else if !(self.change()? || self.mode.notes_calls && self.call()?) {
            return Err(PickleProblem::Refused { opcode: self.code, name: opcode::name(self.code) });
        }
        Ok(None)
    }

    /// Returns the value that an opcode of plain data pushes; `None` for other opcodes.
    #[inline]
    fn value(&mut self) -> Result<Option<Value>, PickleProblem> {
        Ok(Some(match self.code {
            opcode::NONE => Value::None,
            opcode::NEWTRUE => Value::Bool(true),
            opcode::NEWFALSE => Value::Bool(false),
            opcode::BINFLOAT => Value::Float(f64::from_be_bytes(self.input.exact()?)),
            opcode::BININT1 => Value::Natural(self.input.byte()?.into()),
            opcode::BININT2 => Value::Natural(u16::from_le_bytes(self.input.exact()?).into()),
            opcode::BININT => {
                let number = i32::from_le_bytes(self.input.exact()?);
                u64::try_from(number).map_or(Value::Integer, Value::Natural)
            }
            opcode::LONG1 | opcode::LONG4 => self.long()?,
            opcode::SHORT_BINSTRING
            | opcode::BINSTRING
            | opcode::SHORT_BINUNICODE
            | opcode::BINUNICODE
            | opcode::BINUNICODE8 => {
                let length = self.length()?;
                self.text(length)?
            }
            opcode::SHORT_BINBYTES | opcode::BINBYTES | opcode::BINBYTES8 | opcode::BYTEARRAY8 => {
                let length = self.length()?;
                self.input.skip(length)?;
                Value::Bytes
            }
            opcode::EMPTY_LIST => self.heap.list(&[])?,
            opcode::EMPTY_TUPLE => self.heap.tuple(&[])?,
            opcode::EMPTY_DICT => self.heap.dict(&[])?,
            opcode::TUPLE1..=opcode::TUPLE3 => {
                let items = usize::from(self.code - opcode::TUPLE1) + 1;
                let start = self.stack.len().checked_sub(items).filter(|&start| start >= self.floor);
                self.tuple_from(start.ok_or_else(|| self.needs("its items"))?)?
            }
            opcode::TUPLE => {
                let mark = self.take_mark()?;
                self.tuple_from(mark)?
            }
            opcode::LIST => {
                let mark = self.take_mark()?;
                let list = self.heap.list(&self.stack[mark..])?;
                self.stack.truncate(mark);
                list
            }
            opcode::DICT => {
                let mark = self.take_mark()?;
                if (self.stack.len() - mark) % 2 != 0 {
                    return Err(self.needs("a dictionary and pairs"));
                }
                let dict = self.heap.dict(&self.stack[mark..])?;
                self.stack.truncate(mark);
                dict
            }
            opcode::DUP => self.top("a value")?,
            opcode::BINGET | opcode::LONG_BINGET => {
                let index = self.index()?;
                self.memo.get(index).ok_or(PickleProblem::Memo { index })?
            }
            _ => return Ok(None),
        }))
    }

    /// Executes an opcode that changes the stack, a value or the memo. Returns `false` for other opcodes.
    #[inline]
    fn change(&mut self) -> Result<bool, PickleProblem> {
        match self.code {
            opcode::PROTO => self.check_protocol()?,
            opcode::FRAME => drop(self.input.exact::<8>()?),
            opcode::MARK => {
                self.floor = self.stack.len();
                self.heap.account.push(&mut self.marks, self.floor)?;
            }
            opcode::POP => {
                // At an open mark, pops the mark.
                if self.pop("a value").is_err() {
                    self.take_mark()?;
                }
            }
            opcode::POP_MARK => {
                let mark = self.take_mark()?;
                self.stack.truncate(mark);
            }
            opcode::APPEND => {
                self.top("an item")?;
                self.append(self.stack.len() - 1)?;
            }
            opcode::APPENDS => {
                let mark = self.take_mark()?;
                self.append(mark)?;
            }
            opcode::SETITEM => {
                let (value, key) = (self.pop("a value")?, self.pop("a key")?);
                let start = self.stack.len();
                self.stack.extend([key, value]);
                self.set_items(start)?;
            }
            opcode::SETITEMS => {
                let mark = self.take_mark()?;
                self.set_items(mark)?;
            }
            opcode::BINPUT | opcode::LONG_BINPUT => {
                let index = self.index()?;
                self.keep(index)?;
            }
            opcode::MEMOIZE => {
                // Each entry is charged, so there are never 2^32 of them.
                let index = u32::try_from(self.memo.len()).unwrap_or(u32::MAX);
                self.keep(index)?;
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Notes a call, an object, a set or a reference. Returns `false` for other opcodes.
    #[cold]
    fn call(&mut self) -> Result<bool, PickleProblem> {
        let noted = match self.code {
            opcode::GLOBAL => {
                let (module, name) = (self.line()?, self.line()?);
                self.heap.global(module, name)?
            }
            opcode::STACK_GLOBAL => {
                let (name, module) = (self.pop("a name")?, self.pop("a module")?);
                let (Some(module), Some(name)) = (self.heap.as_text(module), self.heap.as_text(name)) else {
                    return Err(self.needs("two texts"));
                };
                if module.len().max(name.len()) > MAX_NAME_BYTES {
                    return Err(PickleProblem::LongName { most: MAX_NAME_BYTES });
                }
                let (module, name) = (module.to_owned(), name.to_owned());
                self.heap.account.charge((module.len() + name.len()) as u64)?;
                self.heap.global(module, name)?
            }
            opcode::REDUCE | opcode::NEWOBJ | opcode::NEWOBJ_EX => {
                if self.code == opcode::NEWOBJ_EX {
                    self.pop("keyword arguments")?;
                }
                let (arguments, function) = (self.pop("arguments")?, self.pop("something to call")?);
                self.noted_call(function, arguments)?
            }
            opcode::BUILD => {
                // The attributes of an object, which no reader needs.
                self.pop("a state")?;
                self.top("an object")?;
                return Ok(true);
            }
            opcode::OBJ => {
                let mark = self.take_mark()?;
                let class = *self.stack.get(mark).ok_or_else(|| self.needs("a class"))?;
                let arguments = self.tuple_from(mark + 1)?;
                self.stack.truncate(mark);
                self.noted_call(class, arguments)?
            }
            opcode::INST => {
                let (module, name) = (self.line()?, self.line()?);
                let class = self.heap.global(module, name)?;
                let mark = self.take_mark()?;
                let arguments = self.tuple_from(mark)?;
                self.noted_call(class, arguments)?
            }
            opcode::EMPTY_SET => Value::Set,
            opcode::ADDITEMS => {
                let mark = self.take_mark()?;
                self.stack.truncate(mark);
                self.top("a set")?;
                return Ok(true);
            }
            opcode::FROZENSET => {
                let mark = self.take_mark()?;
                self.stack.truncate(mark);
                Value::Set
            }
            opcode::BINPERSID => {
                let id = self.pop("a name")?;
                self.heap.persistent(id)?
            }
            _ => return Ok(false),
        };
        self.push(noted).map(|()| true)
    }

    /// Returns the value that stands for a call.
    fn noted_call(&mut self, function: Value, arguments: Value) -> Result<Value, PickleProblem> {
        let (Value::Global(_) | Value::Call(_), Some(items)) = (function, self.heap.as_list(arguments))
        else {
            return Err(self.needs("a global and a tuple"));
        };
        if let Some(("collections", "OrderedDict" | "defaultdict" | "Counter")) =
            self.heap.as_global(function)
        {
            if let Some(dict) = self.dict_of(items.last().copied())? {
                return Ok(dict);
            }
        }
        Ok(self.heap.call(function, arguments)?)
    }

    /// Returns the dictionary that a class of `collections` builds from its last argument. That is nothing, a function
    /// for missing values, a dictionary, or a list of pairs from Python 2. `None` for another argument.
    fn dict_of(&mut self, contents: Option<Value>) -> Result<Option<Value>, PickleProblem> {
        match contents {
            None | Some(Value::None | Value::Global(_)) => Ok(Some(self.heap.dict(&[])?)),
            Some(dict @ Value::Dict(_)) => Ok(Some(dict)),
            Some(list @ Value::List(_)) => {
                let length = self.heap.as_list(list).map_or(0, <[Value]>::len);
                self.heap.account.charge_for_copies::<Value>(2 * length)?;
                let mut pairs = Vec::with_capacity(2 * length);
                for &item in self.heap.as_list(list).unwrap_or_default() {
                    let Some(pair @ [_, _]) = self.heap.as_list(item) else { return Ok(None) };
                    pairs.extend_from_slice(pair);
                }
                Ok(Some(self.heap.dict(&pairs)?))
            }
            Some(_) => Ok(None),
        }
    }

    /// Reads a text of this many bytes. Lone surrogates, which Python's texts may contain, become replacement
    /// characters.
    #[inline]
    fn text(&mut self, length: u64) -> Result<Value, PickleProblem> {
        if let Some(bytes) = self.input.peek(length) {
            if let Some(known) = self.heap.recent_text(bytes) {
                self.input.skip_copied(length as usize);
                return Ok(known);
            }
        }
        self.new_text(length)
    }

    fn new_text(&mut self, length: u64) -> Result<Value, PickleProblem> {
        self.heap.account.charge(length)?;
        let text = match String::from_utf8(self.input.bytes(length)?) {
            Ok(text) => text,
            Err(error) => {
                // A replacement character takes three bytes.
                self.heap.account.charge(length.saturating_mul(3))?;
                String::from_utf8_lossy(error.as_bytes()).into_owned()
            }
        };
        Ok(self.heap.add_text(text.into_boxed_str())?)
    }

    /// Reads the text up to the end of the line, within the limit on names.
    fn line(&mut self) -> Result<String, PickleProblem> {
        let mut line = Vec::new();
        loop {
            match self.input.byte()? {
                b'\n' => break,
                _ if line.len() == MAX_NAME_BYTES => {
                    return Err(PickleProblem::LongName { most: MAX_NAME_BYTES });
                }
                byte => line.push(byte),
            }
        }
        let line = String::from_utf8_lossy(&line).into_owned();
        self.heap.account.charge(line.len() as u64)?;
        Ok(line)
    }

    fn check_protocol(&mut self) -> Result<(), PickleProblem> {
        let protocol = self.input.byte()?;
        if PROTOCOLS.contains(&protocol) { Ok(()) } else { Err(PickleProblem::Protocol { protocol }) }
    }

    #[inline]
    fn push(&mut self, value: Value) -> Result<(), PickleProblem> {
        Ok(self.heap.account.push(&mut self.stack, value)?)
    }

    /// Takes the items of the stack from `start` on as a tuple.
    #[inline]
    fn tuple_from(&mut self, start: usize) -> Result<Value, PickleProblem> {
        let tuple = self.heap.tuple(self.stack.get(start..).unwrap_or_default())?;
        self.stack.truncate(start);
        Ok(tuple)
    }

    /// Returns the error of an opcode that does not find these values on the stack.
    #[cold]
    fn needs(&self, needs: &'static str) -> PickleProblem {
        PickleProblem::Stack { opcode: opcode::name(self.code), needs }
    }

    #[inline]
    fn top(&self, needs: &'static str) -> Result<Value, PickleProblem> {
        let above = self.stack.get(self.floor..).and_then(<[Value]>::last);
        above.copied().ok_or_else(|| self.needs(needs))
    }

    #[inline]
    fn pop(&mut self, needs: &'static str) -> Result<Value, PickleProblem> {
        let value = self.top(needs)?;
        self.stack.pop();
        Ok(value)
    }

    #[inline]
    fn take_mark(&mut self) -> Result<usize, PickleProblem> {
        let mark = self.marks.pop().ok_or_else(|| self.needs("a mark"))?;
        self.floor = self.marks.last().copied().unwrap_or(0);
        Ok(mark)
    }

    /// Appends the items of the stack from `start` on to the list below them.
    #[inline]
    fn append(&mut self, start: usize) -> Result<(), PickleProblem> {
        let list = self.below(start, "a list")?;
        let items = self.stack.get(start..).unwrap_or_default();
        if !self.heap.extend(list, items)? && !self.is_object(list) {
            return Err(self.needs("a list"));
        }
        self.stack.truncate(start);
        Ok(())
    }

    /// Sets the alternating keys and values of the stack from `start` on in the dictionary below them.
    #[inline]
    fn set_items(&mut self, start: usize) -> Result<(), PickleProblem> {
        let dict = self.below(start, "a dictionary and pairs")?;
        let items = self.stack.get(start..).unwrap_or_default();
        let is_set = items.len() % 2 == 0 && (self.heap.set(dict, items)? || self.is_object(dict));
        if !is_set {
            return Err(self.needs("a dictionary and pairs"));
        }
        self.stack.truncate(start);
        Ok(())
    }

    /// Returns the value below position `start` of the stack, within the last open mark.
    #[inline]
    fn below(&self, start: usize, needs: &'static str) -> Result<Value, PickleProblem> {
        let place = start.checked_sub(1).filter(|&place| place >= self.floor);
        let value = place.and_then(|place| self.stack.get(place));
        value.copied().ok_or_else(|| self.needs(needs))
    }

    /// Returns whether a value is an object of a class, whose items and entries no reader needs.
    const fn is_object(&self, value: Value) -> bool {
        self.mode.notes_calls && matches!(value, Value::Call(_))
    }

    #[inline]
    fn keep(&mut self, index: u32) -> Result<(), PickleProblem> {
        let value = self.top("a value")?;
        Ok(self.memo.set(index, value, &mut self.heap)?)
    }

    /// Reads the number of a stored object.
    #[inline]
    fn index(&mut self) -> Result<u32, PickleProblem> {
        match self.code {
            opcode::BINGET | opcode::BINPUT => self.input.byte().map(u32::from),
            _ => self.input.exact().map(u32::from_le_bytes),
        }
    }

    /// Reads the length of the data of this opcode.
    #[inline]
    fn length(&mut self) -> Result<u64, PickleProblem> {
        match self.code {
            opcode::LONG1 | opcode::SHORT_BINSTRING | opcode::SHORT_BINUNICODE | opcode::SHORT_BINBYTES => {
                self.input.byte().map(u64::from)
            }
            opcode::BINUNICODE8 | opcode::BINBYTES8 | opcode::BYTEARRAY8 => {
                self.input.exact().map(u64::from_le_bytes)
            }
            _ => self.input.exact().map(|bytes| u32::from_le_bytes(bytes).into()),
        }
    }

    /// Reads a signed little-endian integer of any length.
    fn long(&mut self) -> Result<Value, PickleProblem> {
        const MOST: u64 = 1 << 10;
        let length = self.length()?;
        if length > MOST {
            return Err(PickleProblem::LongNumber { bytes: length });
        }
        let bytes = &mut [0; MOST as usize][..length as usize];
        self.input.fill(bytes)?;
        let negative = bytes.last().is_some_and(|&last| last >= 0x80);
        let (low, high) = bytes.split_at(bytes.len().min(8));
        if negative || high.iter().any(|&byte| byte != 0) {
            return Ok(Value::Integer);
        }
        let mut number = [0; 8];
        number.iter_mut().zip(low).for_each(|(to, &from)| *to = from);
        Ok(Value::Natural(u64::from_le_bytes(number)))
    }
}

//! The stack machine that runs a pickle.

use std::io::BufRead;

use super::PickleProblem;
use super::heap::{Heap, Value};
use super::input::Input;
use super::memo::Memo;
use super::opcode::{self, Opcode};
use crate::trace::{TraceError, TracePlace, TraceProblem};

/// The supported protocols.
const PROTOCOLS: std::ops::RangeInclusive<u8> = 2..=5;

/// The longest name of a module, function or class.
const MAX_NAME_BYTES: usize = 256;

/// Runs a pickle whose objects need at most `held_bytes`. Returns its objects and its value.
pub(super) fn run(
    reader: impl BufRead,
    held_bytes: u64,
    notes_calls: bool,
) -> Result<(Heap, Value), TraceError> {
    let heap = Heap::new(held_bytes);
    let input = Input { reader, offset: 0 };
    let (stack, marks, memo) = (Vec::new(), Vec::new(), Memo::default());
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

struct Machine<R> {
    input: Input<R>,
    heap: Heap,
    stack: Vec<Value>,
    /// The height of the stack at each open mark.
    marks: Vec<usize>,
    memo: Memo,
    /// Whether calls and objects become data. Otherwise they are errors.
    notes_calls: bool,
}

impl<R: BufRead> Machine<R> {
    /// Executes one opcode. Returns the value after the last one.
    fn step(&mut self) -> Result<Option<Value>, TraceProblem> {
        let code = self.input.byte()?;
        let opcode = Opcode::of(code)
            .or_else(|| Opcode::of_call(code).filter(|_| self.notes_calls))
            .ok_or_else(|| PickleProblem::Refused { opcode: code, name: opcode::name_of_refused(code) })?;
        match opcode {
            Opcode::Proto => self.check_protocol()?,
            Opcode::Frame => drop(self.input.exact::<8>()?),
            Opcode::Stop => return self.pop("STOP", "a value").map(Some),
            Opcode::Mark => self.heap.account.push(&mut self.marks, self.stack.len())?,
            Opcode::Pop => {
                // At an open mark, pops the mark.
                if self.pop("POP", "a value").is_err() {
                    self.take_mark("POP")?;
                }
            }
            Opcode::PopMark => {
                let mark = self.take_mark("POP_MARK")?;
                self.stack.truncate(mark);
            }
            Opcode::Dup => {
                let value = self.top("DUP", "a value")?;
                self.push(value)?;
            }
            Opcode::None => self.push(Value::None)?,
            Opcode::Bool(value) => self.push(Value::Bool(value))?,
            Opcode::Float => {
                self.input.exact::<8>()?;
                self.push(Value::Float)?;
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
                let text = self.text(length)?;
                let text = self.heap.text(text)?;
                self.push(text)?;
            }
            Opcode::Bytes { length } => {
                let length = self.length(length)?;
                self.input.skip(length)?;
                self.push(Value::Bytes)?;
            }
            Opcode::EmptyList => self.push_list(0)?,
            Opcode::Tuple { items } => {
                let start = self.stack.len().checked_sub(items).filter(|&start| start >= self.floor());
                let needs = PickleProblem::Stack { opcode: "TUPLE1, 2 or 3", needs: "its items" };
                self.push_tuple(start.ok_or(needs)?)?;
            }
            Opcode::ListOfMarked => {
                let mark = self.take_mark("LIST")?;
                let items = self.stack.len().saturating_sub(mark);
                self.push_list(items)?;
            }
            Opcode::TupleOfMarked => {
                let mark = self.take_mark("TUPLE")?;
                self.push_tuple(mark)?;
            }
            Opcode::Append => {
                self.top("APPEND", "an item")?;
                self.append("APPEND", self.stack.len() - 1)?;
            }
            Opcode::Appends => {
                let mark = self.take_mark("APPENDS")?;
                self.append("APPENDS", mark)?;
            }
            Opcode::EmptyDict => self.push_dict(&[])?,
            Opcode::DictOfMarked => {
                let mark = self.take_mark("DICT")?;
                if !(self.stack.len() - mark).is_multiple_of(2) {
                    return Err(
                        PickleProblem::Stack { opcode: "DICT", needs: "a dictionary and pairs" }.into()
                    );
                }
                let dict = self.heap.dict(&self.stack[mark..])?;
                self.stack.truncate(mark);
                self.push(dict)?;
            }
            Opcode::SetItem => {
                let value = self.pop("SETITEM", "a value")?;
                let key = self.pop("SETITEM", "a key")?;
                let start = self.stack.len();
                self.stack.extend([key, value]);
                self.set_items("SETITEM", start)?;
            }
            Opcode::SetItems => {
                let mark = self.take_mark("SETITEMS")?;
                self.set_items("SETITEMS", mark)?;
            }
            Opcode::Recall { bytes } => {
                let index = self.index(bytes)?;
                let value = self.memo.get(index).ok_or(PickleProblem::Memo { index })?;
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
                let (Some(module), Some(name)) = (self.heap.as_text(module), self.heap.as_text(name)) else {
                    return Err(PickleProblem::Stack { opcode: "STACK_GLOBAL", needs: "two texts" }.into());
                };
                if module.len().max(name.len()) > MAX_NAME_BYTES {
                    return Err(PickleProblem::LongName { most: MAX_NAME_BYTES }.into());
                }
                let (module, name) = (module.to_owned(), name.to_owned());
                self.heap.account.charge((module.len() + name.len()) as u64)?;
                let global = self.heap.global(module, name)?;
                self.push(global)?;
            }
            Opcode::Reduce => {
                let arguments = self.pop("REDUCE", "arguments")?;
                let function = self.pop("REDUCE", "something to call")?;
                self.note_call("REDUCE", function, arguments)?;
            }
            Opcode::Build => {
                // The attributes of an object, which no reader needs.
                self.pop("BUILD", "a state")?;
                self.top("BUILD", "an object")?;
            }
            Opcode::NewObject => {
                let arguments = self.pop("NEWOBJ", "arguments")?;
                let class = self.pop("NEWOBJ", "a class")?;
                self.note_call("NEWOBJ", class, arguments)?;
            }
            Opcode::NewObjectWithKeywords => {
                self.pop("NEWOBJ_EX", "keyword arguments")?;
                let arguments = self.pop("NEWOBJ_EX", "arguments")?;
                let class = self.pop("NEWOBJ_EX", "a class")?;
                self.note_call("NEWOBJ_EX", class, arguments)?;
            }
            Opcode::ObjectOfMarked => {
                let mark = self.take_mark("OBJ")?;
                let needs = PickleProblem::Stack { opcode: "OBJ", needs: "a class" };
                let class = *self.stack.get(mark).ok_or(needs)?;
                self.push_tuple(mark + 1)?;
                let arguments = self.pop("OBJ", "arguments")?;
                self.stack.truncate(mark);
                self.note_call("OBJ", class, arguments)?;
            }
            Opcode::Instance => {
                let (module, name) = (self.line()?, self.line()?);
                let class = self.heap.global(module, name)?;
                let mark = self.take_mark("INST")?;
                self.push_tuple(mark)?;
                let arguments = self.pop("INST", "arguments")?;
                self.note_call("INST", class, arguments)?;
            }
            Opcode::EmptySet => self.push(Value::Set)?,
            Opcode::AddItems => {
                let mark = self.take_mark("ADDITEMS")?;
                self.stack.truncate(mark);
                self.top("ADDITEMS", "a set")?;
            }
            Opcode::FrozenSet => {
                let mark = self.take_mark("FROZENSET")?;
                self.stack.truncate(mark);
                self.push(Value::Set)?;
            }
            Opcode::PersistentId => {
                let id = self.pop("BINPERSID", "a name")?;
                let outside = self.heap.persistent(id)?;
                self.push(outside)?;
            }
            Opcode::KeepNext => {
                // Each entry is charged, so there are never 2^32 of them.
                let index = u32::try_from(self.memo.len()).unwrap_or(u32::MAX);
                self.keep(index)?;
            }
        }
        Ok(None)
    }

    fn note_call(
        &mut self,
        opcode: &'static str,
        function: Value,
        arguments: Value,
    ) -> Result<(), TraceProblem> {
        let (Value::Global(_) | Value::Call(_), Some(items)) = (function, self.heap.as_list(arguments))
        else {
            return Err(PickleProblem::Stack { opcode, needs: "a global and a tuple" }.into());
        };
        if let Some(("collections", "OrderedDict" | "defaultdict" | "Counter")) =
            self.heap.as_global(function)
            && let Some(dict) = self.dict_of(items.last().copied())?
        {
            return self.push(dict);
        }
        let call = self.heap.call(function, arguments)?;
        self.push(call)
    }

    /// Returns the dictionary that a class of `collections` builds from its last argument. That is nothing, a function
    /// for missing values, a dictionary, or a list of pairs from Python 2. `None` for another argument.
    fn dict_of(&mut self, contents: Option<Value>) -> Result<Option<Value>, TraceProblem> {
        match contents {
            None | Some(Value::None | Value::Global(_)) => self.heap.dict(&[]).map(Some),
            Some(dict @ Value::Dict(_)) => Ok(Some(dict)),
            Some(list @ Value::List(_)) => {
                let length = self.heap.as_list(list).map_or(0, <[Value]>::len);
                self.heap.account.charge_for_copies::<Value>(2 * length)?;
                let mut pairs = Vec::with_capacity(2 * length);
                for &item in self.heap.as_list(list).unwrap_or_default() {
                    let Some(pair @ [_, _]) = self.heap.as_list(item) else { return Ok(None) };
                    pairs.extend_from_slice(pair);
                }
                self.heap.dict(&pairs).map(Some)
            }
            Some(_) => Ok(None),
        }
    }

    /// Reads a text of this many bytes. Lone surrogates, which Python's texts may contain, become replacement
    /// characters.
    fn text(&mut self, length: u64) -> Result<String, TraceProblem> {
        self.heap.account.charge(length)?;
        match String::from_utf8(self.input.bytes(length)?) {
            Ok(text) => Ok(text),
            Err(error) => {
                // A replacement character takes three bytes.
                self.heap.account.charge(length.saturating_mul(3))?;
                Ok(String::from_utf8_lossy(error.as_bytes()).into_owned())
            }
        }
    }

    /// Reads the text up to the end of the line, within the limit on names.
    fn line(&mut self) -> Result<String, TraceProblem> {
        let mut line = Vec::new();
        loop {
            match self.input.byte()? {
                b'\n' => break,
                _ if line.len() == MAX_NAME_BYTES => {
                    return Err(PickleProblem::LongName { most: MAX_NAME_BYTES }.into());
                }
                byte => line.push(byte),
            }
        }
        let line = String::from_utf8_lossy(&line).into_owned();
        self.heap.account.charge(line.len() as u64)?;
        Ok(line)
    }

    fn check_protocol(&mut self) -> Result<(), TraceProblem> {
        let protocol = self.input.byte()?;
        if PROTOCOLS.contains(&protocol) { Ok(()) } else { Err(PickleProblem::Protocol { protocol }.into()) }
    }

    fn push(&mut self, value: Value) -> Result<(), TraceProblem> {
        self.heap.account.push(&mut self.stack, value)
    }

    /// Replaces the last items of the stack with a list of them.
    fn push_list(&mut self, items: usize) -> Result<(), TraceProblem> {
        let start = self.stack.len() - items;
        let list = self.heap.list(&self.stack[start..])?;
        self.stack.truncate(start);
        self.push(list)
    }

    /// Replaces the items of the stack from `start` on with a tuple of them.
    fn push_tuple(&mut self, start: usize) -> Result<(), TraceProblem> {
        let tuple = self.heap.tuple(self.stack.get(start..).unwrap_or_default())?;
        self.stack.truncate(start);
        self.push(tuple)
    }

    fn push_dict(&mut self, pairs: &[Value]) -> Result<(), TraceProblem> {
        let dict = self.heap.dict(pairs)?;
        self.push(dict)
    }

    /// Returns the minimum height of the stack: that of the last open mark.
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

    /// Appends the items of the stack from `start` on to the list below them.
    fn append(&mut self, opcode: &'static str, start: usize) -> Result<(), TraceProblem> {
        let list = self.below(opcode, start, "a list")?;
        let items = self.stack.get(start..).unwrap_or_default();
        if !self.heap.extend(list, items)? && !self.is_object(list) {
            return Err(PickleProblem::Stack { opcode, needs: "a list" }.into());
        }
        self.stack.truncate(start);
        Ok(())
    }

    /// Sets the alternating keys and values of the stack from `start` on in the dictionary below them.
    fn set_items(&mut self, opcode: &'static str, start: usize) -> Result<(), TraceProblem> {
        let dict = self.below(opcode, start, "a dictionary and pairs")?;
        let items = self.stack.get(start..).unwrap_or_default();
        let is_set = items.len().is_multiple_of(2) && (self.heap.set(dict, items)? || self.is_object(dict));
        if !is_set {
            return Err(PickleProblem::Stack { opcode, needs: "a dictionary and pairs" }.into());
        }
        self.stack.truncate(start);
        Ok(())
    }

    /// Returns the value below position `start` of the stack, within the last open mark.
    fn below(&self, opcode: &'static str, start: usize, needs: &'static str) -> Result<Value, TraceProblem> {
        let place = start.checked_sub(1).filter(|&place| place >= self.floor());
        let value = place.and_then(|place| self.stack.get(place));
        value.copied().ok_or_else(|| PickleProblem::Stack { opcode, needs }.into())
    }

    /// Returns whether a value is an object of a class, whose items and entries no reader needs.
    const fn is_object(&self, value: Value) -> bool {
        self.notes_calls && matches!(value, Value::Call(_))
    }

    fn keep(&mut self, index: u32) -> Result<(), TraceProblem> {
        let value = self.top("a memo opcode", "a value")?;
        self.memo.set(index, value, &mut self.heap)
    }

    /// Reads an unsigned number of 1 or 4 bytes that names a stored object.
    fn index(&mut self, bytes: usize) -> Result<u32, TraceProblem> {
        if bytes == 1 { self.input.byte().map(u32::from) } else { self.input.exact().map(u32::from_le_bytes) }
    }

    /// Reads a length of 1, 4 or 8 bytes.
    fn length(&mut self, bytes: usize) -> Result<u64, TraceProblem> {
        match bytes {
            1 => self.input.byte().map(u64::from),
            4 => self.input.exact().map(|bytes| u32::from_le_bytes(bytes).into()),
            _ => self.input.exact().map(u64::from_le_bytes),
        }
    }

    /// Reads an unsigned number of 1 or 2 bytes, or a signed one of 4 bytes.
    fn int(&mut self, bytes: usize) -> Result<Value, TraceProblem> {
        Ok(match bytes {
            1 => Value::Natural(self.input.byte()?.into()),
            2 => Value::Natural(u16::from_le_bytes(self.input.exact()?).into()),
            _ => {
                let number = i32::from_le_bytes(self.input.exact()?);
                u64::try_from(number).map_or(Value::Integer, Value::Natural)
            }
        })
    }

    /// Reads a signed little-endian integer of any length.
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
            return Ok(Value::Integer);
        }
        let mut number = [0; 8];
        number.iter_mut().zip(low).for_each(|(to, &from)| *to = from);
        Ok(Value::Natural(u64::from_le_bytes(number)))
    }
}

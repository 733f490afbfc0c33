//! The call stacks of a snapshot, each stored once.
//!
//! PyTorch's files share the dictionaries of frames, and repeat the list of frames for each event. Equal lists become
//! one stack.

use std::collections::HashMap;
use std::hash::{BuildHasher, BuildHasherDefault, Hasher, RandomState};

use highwater_files::boundary::floor_boundary;
use highwater_files::lean::{self, HeldMemory, TooMuchHeld};
use highwater_files::pickle::{Heap, Value};

use super::fields::{Fields, Key};
use crate::trace::builder::MAX_LABEL;

/// The most frames of a stack. Real ones have fewer than a hundred.
pub(super) const MOST_FRAMES: usize = 256;

/// The most bytes of a text of a frame: of a function at its beginning, of a path at its end.
const MOST_TEXT_BYTES: usize = 4 * MAX_LABEL;

/// The cost of a map entry, including unused capacity.
const ENTRY_BYTES: u64 = 40;

/// The number of a missing stack or frame.
pub(super) const NONE: u32 = u32::MAX;

/// A line of a stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Frame<'a> {
    /// The path of the source file; empty if unknown.
    pub(crate) file: &'a str,
    /// The line; 0 if unknown.
    pub(crate) line: u64,
    /// The name of the function.
    pub(crate) name: &'a str,
}

/// All stacks of a snapshot.
#[derive(Debug, Default)]
pub(crate) struct Stacks {
    texts: Vec<Box<str>>,
    /// The file, the line and the name.
    frames: Vec<(u32, u64, u32)>,
    /// The frames of all stacks, one stack after the other.
    lines: Vec<u32>,
    /// The end of each stack in `lines`.
    ends: Vec<u32>,
}

impl Stacks {
    /// Returns the number of stacks.
    pub(crate) fn len(&self) -> usize {
        self.ends.len()
    }

    /// Returns the number of frames.
    pub(crate) fn frame_count(&self) -> usize {
        self.frames.len()
    }

    /// Returns the numbers of a stack's frames, innermost first. Empty for [`NONE`].
    pub(crate) fn frames_of(&self, stack: u32) -> &[u32] {
        let Some(&end) = self.ends.get(stack as usize) else { return &[] };
        let start = if stack == 0 { 0 } else { self.ends[stack as usize - 1] };
        &self.lines[start as usize..end as usize]
    }

    /// Returns a frame by its number.
    ///
    /// # Panics
    /// If there is none. The numbers of [`frames_of`](Self::frames_of) are valid.
    pub(crate) fn frame(&self, number: u32) -> Frame<'_> {
        let (file, line, name) = self.frames[number as usize];
        Frame { file: &self.texts[file as usize], line, name: &self.texts[name as usize] }
    }

    /// Returns the lines of a stack, innermost first.
    pub(crate) fn lines(&self, stack: u32) -> impl Iterator<Item = Frame<'_>> {
        self.frames_of(stack).iter().map(|&frame| self.frame(frame))
    }
}

/// Interns the stacks of a heap.
#[derive(Debug)]
pub(super) struct StackReader {
    pub(super) stacks: Stacks,
    /// By the number of a list in the heap, because events share lists.
    of_lists: Vec<u32>,
    /// By the number of a dictionary in the heap, because stacks share frames.
    of_dicts: Vec<u32>,
    /// By the number of a text in the heap.
    of_texts: HashMap<u32, u32>,
    /// By the hash of the frames.
    of_frames: HashMap<u64, u32, BuildHasherDefault<Unhashed>>,
    /// The frames of the stack that is read.
    current: Vec<u32>,
    /// The start of hashes, so that no file can choose stacks with equal ones.
    seed: u64,
}

impl Default for StackReader {
    fn default() -> Self {
        Self {
            stacks: Stacks::default(),
            of_lists: Vec::new(),
            of_dicts: Vec::new(),
            of_texts: HashMap::new(),
            of_frames: HashMap::default(),
            current: Vec::new(),
            seed: RandomState::new().hash_one(0),
        }
    }
}

impl StackReader {
    /// Returns the stack in the field `frames`; [`NONE`] without any frame.
    pub(super) fn stack(
        &mut self,
        heap: &Heap,
        frames: Option<Value>,
        memory: &mut HeldMemory,
    ) -> Result<u32, TooMuchHeld> {
        let Some(Value::List(list)) = frames else { return Ok(NONE) };
        match self.of_lists.get(list as usize) {
            None | Some(&UNREAD) => {}
            Some(&known) => return Ok(known),
        }
        let mut current = std::mem::take(&mut self.current);
        current.clear();
        for &frame in heap.as_list(Value::List(list)).unwrap_or_default().iter().take(MOST_FRAMES) {
            let frame = self.frame(heap, frame, memory)?;
            if frame != NONE {
                current.push(frame);
            }
        }
        let stack = if current.is_empty() { NONE } else { self.intern(&current, memory)? };
        self.current = current;
        remember(&mut self.of_lists, list, stack, memory)?;
        Ok(stack)
    }

    fn intern(&mut self, frames: &[u32], memory: &mut HeldMemory) -> Result<u32, TooMuchHeld> {
        let mut hash = hash_of(self.seed, frames);
        while let Some(&found) = self.of_frames.get(&hash) {
            if self.stacks.frames_of(found) == frames {
                return Ok(found);
            }
            hash = hash.wrapping_add(1);
        }
        memory.charge(ENTRY_BYTES + lean::cost::<u32>() * (1 + frames.len() as u64))?;
        let Ok(end) = u32::try_from(self.stacks.lines.len() + frames.len()) else { return Ok(NONE) };
        let number = self.stacks.ends.len() as u32;
        for &frame in frames {
            lean::push(&mut self.stacks.lines, frame);
        }
        lean::push(&mut self.stacks.ends, end);
        self.of_frames.insert(hash, number);
        Ok(number)
    }

    /// Reads a frame; [`NONE`] for an invalid one.
    fn frame(&mut self, heap: &Heap, value: Value, memory: &mut HeldMemory) -> Result<u32, TooMuchHeld> {
        let Value::Dict(dict) = value else { return Ok(NONE) };
        match self.of_dicts.get(dict as usize) {
            None | Some(&UNREAD) => {}
            Some(&known) => return Ok(known),
        }
        let number = self.new_frame(heap, value, memory)?.unwrap_or(NONE);
        remember(&mut self.of_dicts, dict, number, memory)?;
        Ok(number)
    }

    fn new_frame(
        &mut self,
        heap: &Heap,
        value: Value,
        memory: &mut HeldMemory,
    ) -> Result<Option<u32>, TooMuchHeld> {
        let Ok(fields) = Fields::of(heap, value, "a frame") else { return Ok(None) };
        let Some(name) = fields.get(Key::Name) else { return Ok(None) };
        let Some(name) = self.text(heap, name, memory)? else { return Ok(None) };
        let file = match fields.get(Key::Filename) {
            Some(file) => self.text(heap, file, memory)?,
            None => None,
        };
        let file = match file {
            Some(file) => file,
            None => self.add_text("", memory)?,
        };
        memory.charge(lean::cost::<(u32, u64, u32)>())?;
        let number = self.stacks.frames.len() as u32;
        lean::push(&mut self.stacks.frames, (file, fields.number(Key::Line).unwrap_or(0), name));
        Ok(Some(number))
    }

    fn text(
        &mut self,
        heap: &Heap,
        value: Value,
        memory: &mut HeldMemory,
    ) -> Result<Option<u32>, TooMuchHeld> {
        let (Value::Text(number), Some(text)) = (value, heap.as_text(value)) else { return Ok(None) };
        if let Some(&known) = self.of_texts.get(&number) {
            return Ok(Some(known));
        }
        let added = self.add_text(text, memory)?;
        memory.charge(ENTRY_BYTES)?;
        self.of_texts.insert(number, added);
        Ok(Some(added))
    }

    fn add_text(&mut self, text: &str, memory: &mut HeldMemory) -> Result<u32, TooMuchHeld> {
        let text = &text[..floor_boundary(text, MOST_TEXT_BYTES)];
        memory.charge(lean::cost::<Box<str>>() + text.len() as u64)?;
        lean::push(&mut self.stacks.texts, text.into());
        Ok(self.stacks.texts.len() as u32 - 1)
    }
}

/// Marks an object of the heap that was not read yet.
const UNREAD: u32 = u32::MAX - 1;

/// Stores the number of an object by its number in the heap.
fn remember(
    numbers: &mut Vec<u32>,
    index: u32,
    number: u32,
    memory: &mut HeldMemory,
) -> Result<(), TooMuchHeld> {
    let needed = index as usize + 1;
    if numbers.len() < needed {
        // Objects are read almost in the order of their numbers, so the vector grows by a quarter.
        let grown = needed.max(numbers.capacity().saturating_add(numbers.capacity() / 4));
        if numbers.capacity() < needed {
            memory.charge(((grown - numbers.capacity()) * size_of::<u32>()) as u64)?;
            numbers.reserve_exact(grown - numbers.len());
        }
        numbers.resize(needed, UNREAD);
    }
    numbers[index as usize] = number;
    Ok(())
}

fn hash_of(seed: u64, frames: &[u32]) -> u64 {
    const ODD: u64 = 0x9e37_79b9_7f4a_7c15;
    let mix = |hash: u64, &frame: &u32| (hash.rotate_left(5) ^ u64::from(frame)).wrapping_mul(ODD);
    let hash = frames.iter().fold(seed, mix);
    hash ^ hash >> 32
}

/// Passes a hash on.
#[derive(Clone, Copy, Debug, Default)]
struct Unhashed(u64);

impl Hasher for Unhashed {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.0 = self.0 << 8 | u64::from(byte);
        }
    }

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }
}

//! The labels of blocks: the frame of the stack that names the origin, and the metadata that the program set.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};

use highwater_files::lean::{HeldMemory, TooMuchHeld};

use super::frame::Rank;
use super::stacks::{NONE, Stacks};
use crate::trace::TraceLimits;
use crate::trace::builder::MAX_LABEL;

/// The label of blocks beyond the limit on labels.
const OTHER: &str = "(other)";

/// The label of blocks without a stack that are older than the first event.
const EARLIER: &str = "(allocated before the log)";

/// The most bytes of all labels. Further blocks have the label [`OTHER`].
const MOST_BYTES: usize = 8 << 20;

/// The costs of a label besides its letters, and of an index entry.
const TEXT_BYTES: u64 = 64;
const ENTRY_BYTES: u64 = 40;

/// The distinct labels.
#[derive(Debug, Default)]
pub(super) struct Labels {
    pub(super) texts: Vec<String>,
    /// By the hash of the text.
    numbers: HashMap<u64, u32>,
    hasher: RandomState,
    /// By the stack and the metadata, because many events share them.
    of_stacks: HashMap<(u32, u32), u32>,
    /// The rank of each frame.
    ranks: Vec<Rank>,
    bytes: usize,
    most: usize,
}

impl Labels {
    pub(super) fn new(limits: &TraceLimits) -> Self {
        Self { most: limits.labels as usize, ..Self::default() }
    }

    /// Returns the label of a stack: the innermost line of Python, otherwise the node of the backward pass, the op or
    /// the innermost frame, otherwise `other`. The metadata follows in brackets; `key` identifies its text.
    pub(super) fn of_stack(
        &mut self,
        stacks: &Stacks,
        stack: u32,
        (key, metadata): (u32, Option<&str>),
        other: Option<&str>,
        memory: &mut HeldMemory,
    ) -> Result<u32, TooMuchHeld> {
        if stack == NONE {
            return self.made(metadata.or(other).unwrap_or("unknown"), memory);
        }
        if let Some(&known) = self.of_stacks.get(&(stack, key)) {
            return Ok(known);
        }
        while self.ranks.len() < stacks.frame_count() {
            memory.charge(size_of::<Rank>() as u64 * 2)?;
            self.ranks.push(stacks.frame(self.ranks.len() as u32).rank());
        }
        let frames = stacks.frames_of(stack);
        // Of equal frames the innermost counts.
        let best = frames.iter().min_by_key(|&&frame| self.ranks[frame as usize]);
        let text = best.map_or_else(String::new, |&frame| stacks.frame(frame).label());
        let label = match metadata {
            None => self.made(&text, memory)?,
            Some(metadata) => {
                let metadata: String = metadata.chars().take(MAX_LABEL / 4).collect();
                self.made(&format!("{text} [{metadata}]"), memory)?
            }
        };
        memory.charge(ENTRY_BYTES)?;
        self.of_stacks.insert((stack, key), label);
        Ok(label)
    }

    /// Returns the label of a block that is older than the first event.
    pub(super) fn earlier(&mut self, memory: &mut HeldMemory) -> Result<u32, TooMuchHeld> {
        self.made(EARLIER, memory)
    }

    /// Returns the number of a label: shortened, without control characters, and one for all beyond the limit.
    fn made(&mut self, text: &str, memory: &mut HeldMemory) -> Result<u32, TooMuchHeld> {
        let clean = |letter: char| if letter.is_control() { ' ' } else { letter };
        let text: String = text.chars().take(MAX_LABEL).map(clean).collect();
        let text = match text.trim() {
            "" => "unknown",
            text => text,
        };
        if let Ok(known) = self.find(text) {
            return Ok(known);
        }
        // Reserves space for the two labels that stand for many blocks.
        let has_room = self.texts.len() + 2 < self.most && self.bytes + text.len() <= MOST_BYTES;
        let text = if has_room || text == EARLIER { text } else { OTHER };
        let hash = match self.find(text) {
            Ok(known) => return Ok(known),
            Err(hash) => hash,
        };
        memory.charge(TEXT_BYTES + ENTRY_BYTES + text.len() as u64)?;
        let number = self.texts.len() as u32;
        self.bytes += text.len();
        self.texts.push(text.to_owned());
        self.numbers.insert(hash, number);
        Ok(number)
    }

    /// Returns the number of a label, or the hash under which it can be stored.
    fn find(&self, text: &str) -> Result<u32, u64> {
        let mut hash = self.hasher.hash_one(text);
        while let Some(&number) = self.numbers.get(&hash) {
            if self.texts[number as usize] == text {
                return Ok(number);
            }
            hash = hash.wrapping_add(1);
        }
        Err(hash)
    }
}

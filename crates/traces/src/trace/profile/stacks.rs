//! Owners for call stacks.
//!
//! The holder of a block is the innermost frame of the user's code: an op `function file.py:12`. The frames above it are
//! its modules. Frames of libraries are omitted, because many users share them, unless the stack has no others.
//!
//! A name may be long, and many stacks may contain it. Therefore [`Frames`] reads each text once and looks up owners by
//! numbers, so that a frame of a stack costs one look-up.

use bfc_core::OwnerId;
use highwater_files::lean;
use highwater_tracking::{BlockProblem, Composer, OwnerName, Phase};

/// The most frames of a stack. Outer ones are omitted.
pub(in crate::trace) const MOST_FRAMES: usize = OwnerId::MAX_DEPTH as usize;

/// The most letters of a function's name.
const MOST_LETTERS: usize = 200;

/// The cost of a frame in [`Frames`].
pub(in crate::trace) const FRAME_BYTES: u64 = lean::cost::<Frame>();

/// The cost of a text in [`Frames`].
pub(in crate::trace) fn text_bytes(text: &str) -> u64 {
    // A letter has at most four bytes.
    lean::cost::<Text>() + 2 * text.len().min(4 * MOST_LETTERS) as u64
}

/// Parts of the paths of libraries, and the beginnings of others.
const LIBRARY_PARTS: &[&str] =
    &["site-packages/", "dist-packages/", "/lib/python3", "/go/src/runtime/", "/rustc/"];
const LIBRARY_STARTS: &[&str] = &[
    "<frozen ",
    "/usr/include/",
    "/usr/lib/",
    "/lib/",
    "/lib64/",
    "../csu/",
    "../sysdeps/",
    "./elf/",
    "./malloc/",
];

/// Functions that start a program.
const STARTS: &[&str] = &["_start", "__libc_start_main", "__libc_start_main_impl"];

/// The parts of a text that frames need.
#[derive(Debug, Default)]
struct Text {
    /// As the name of a function: its first letters.
    function: Box<str>,
    /// As the path of a file: the name of the file.
    file: Box<str>,
    /// Whether the path is that of a library.
    is_library: bool,
}

impl Text {
    fn of(text: &str) -> Self {
        let is_library = LIBRARY_PARTS.iter().any(|part| text.contains(part))
            || LIBRARY_STARTS.iter().any(|start| text.starts_with(start));
        let file = text.rsplit(['/', '\\']).next().unwrap_or_default();
        Self { function: first_letters(text).into(), file: first_letters(file).into(), is_library }
    }
}

/// Cuts a name to its first letters.
pub(in crate::trace) fn first_letters(text: &str) -> &str {
    let end = text.char_indices().nth(MOST_LETTERS).map_or(text.len(), |(index, _)| index);
    &text[..end]
}

/// A line of a stack.
#[derive(Clone, Copy, Debug)]
struct Frame {
    /// Numbers of texts.
    function: u32,
    file: u32,
    /// The line; 0 if unknown.
    line: u64,
    is_library: bool,
    /// The names as a module and as a holder, since their first use.
    module: Option<OwnerName>,
    holder: Option<OwnerName>,
}

/// The frames of stacks, and their texts. Both have numbers in the order of their addition.
#[derive(Debug)]
pub(in crate::trace) struct Frames {
    texts: Vec<Text>,
    frames: Vec<Frame>,
}

impl Default for Frames {
    /// Contains only text 0, which is empty.
    fn default() -> Self {
        Self { texts: vec![Text::default()], frames: Vec::new() }
    }
}

impl Frames {
    /// The number of an unknown text.
    pub(in crate::trace) const NO_TEXT: u32 = 0;

    /// Returns the number of frames.
    pub(in crate::trace) fn len(&self) -> u32 {
        self.frames.len() as u32
    }

    /// Returns the first letters of a text.
    pub(in crate::trace) fn function(&self, text: u32) -> &str {
        &self.text(text).function
    }

    /// Returns the name of the file at the end of a path.
    pub(in crate::trace) fn file(&self, text: u32) -> &str {
        &self.text(text).file
    }

    /// Returns the number of texts.
    pub(in crate::trace) fn texts(&self) -> usize {
        self.texts.len()
    }

    /// Adds the name of a function or the path of a file. The caller charges for [`text_bytes`].
    pub(in crate::trace) fn add_text(&mut self, text: &str) -> u32 {
        lean::push(&mut self.texts, Text::of(text));
        (self.texts.len() - 1) as u32
    }

    /// Adds a line of a function, given by the numbers of its texts. Line 0 is unknown. The caller charges for
    /// [`FRAME_BYTES`].
    pub(in crate::trace) fn add(&mut self, function: u32, file: u32, line: u64) -> u32 {
        let is_library = self.text(file).is_library || STARTS.contains(&&*self.text(function).function);
        lean::push(&mut self.frames, Frame { function, file, line, is_library, module: None, holder: None });
        (self.frames.len() - 1) as u32
    }

    pub(in crate::trace) fn is_library(&self, frame: u32) -> bool {
        self.frames[frame as usize].is_library
    }

    /// Returns the module of a frame below `parent`, or `parent` if there is no deeper one.
    pub(in crate::trace) fn module(
        &mut self,
        composer: &mut Composer,
        parent: u32,
        frame: u32,
    ) -> Result<u32, BlockProblem> {
        // One level is left for the holder.
        if composer.depth(parent) + 1 >= OwnerId::MAX_DEPTH {
            return Ok(parent);
        }
        let name = match self.frames[frame as usize].module {
            Some(name) => name,
            None => composer.name(&self.name(frame))?,
        };
        self.frames[frame as usize].module = Some(name);
        composer.owner(parent, name, None)
    }

    /// Returns the holder of the blocks that a frame allocates, below its modules.
    pub(in crate::trace) fn holder(
        &mut self,
        composer: &mut Composer,
        modules: u32,
        frame: u32,
    ) -> Result<u32, BlockProblem> {
        let name = match self.frames[frame as usize].holder {
            Some(name) => name,
            None => composer.name(&self.label(frame))?,
        };
        self.frames[frame as usize].holder = Some(name);
        composer.owner(modules, name, Some(Phase::Unknown))
    }

    /// Returns the owner of a block that was allocated by this stack, the innermost frame first. An empty stack has the
    /// root.
    pub(in crate::trace) fn owner_of(
        &mut self,
        composer: &mut Composer,
        stack: &[u32],
    ) -> Result<u32, BlockProblem> {
        let stack = &stack[..stack.len().min(MOST_FRAMES)];
        let is_user = stack.iter().any(|&frame| !self.is_library(frame));
        let counts = |frames: &Self, frame: u32| !is_user || !frames.is_library(frame);
        let Some(holder) = stack.iter().position(|&frame| counts(self, frame)) else { return Ok(0) };
        let mut owner = 0;
        for &frame in stack[holder + 1..].iter().rev() {
            if counts(self, frame) {
                owner = self.module(composer, owner, frame)?;
            }
        }
        self.holder(composer, owner, stack[holder])
    }

    /// The function; for an unknown one, the file.
    fn name(&self, frame: u32) -> String {
        let Frame { function, file, .. } = self.frames[frame as usize];
        match (&*self.text(function).function, &*self.text(file).file) {
            ("", "") => "unknown".to_owned(),
            ("", file) => format!("{file} (no symbol)"),
            (function, _) => function.to_owned(),
        }
    }

    /// The function with its file and line.
    fn label(&self, frame: u32) -> String {
        let Frame { file, line, .. } = self.frames[frame as usize];
        match (line, &*self.text(file).file) {
            (0, _) | (_, "") => self.name(frame),
            (line, file) => format!("{} {file}:{line}", self.name(frame)),
        }
    }

    fn text(&self, number: u32) -> &Text {
        &self.texts[number as usize]
    }
}

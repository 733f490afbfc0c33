//! Owners for call stacks.
//!
//! The holder of a block is the innermost frame of the user's code: an op `function file.py:12`. The frames above it are
//! its modules. Frames of libraries are omitted, because many users share them, unless the stack has no others.

use crate::record::{BlockProblem, Composer, MAX_DEPTH};
use crate::scope::Phase;
use crate::trace::TraceProblem;

/// A line of a stack. All texts may be empty.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Frame<'a> {
    pub(super) function: &'a str,
    pub(super) file: &'a str,
    /// The line; 0 if unknown.
    pub(super) line: u64,
}

/// The most frames of a stack. Outer ones are omitted.
pub(super) const MOST_FRAMES: usize = MAX_DEPTH as usize;

/// The most letters of a function's name.
const MOST_LETTERS: usize = 200;

/// Parts of the paths of libraries, and the beginnings of others.
const LIBRARY_PARTS: [&str; 5] =
    ["site-packages/", "dist-packages/", "/lib/python3", "/go/src/runtime/", "/rustc/"];
const LIBRARY_STARTS: [&str; 9] = [
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
const STARTS: [&str; 3] = ["_start", "__libc_start_main", "__libc_start_main_impl"];

impl Frame<'_> {
    fn is_library(&self) -> bool {
        LIBRARY_PARTS.iter().any(|part| self.file.contains(part))
            || LIBRARY_STARTS.iter().any(|start| self.file.starts_with(start))
            || STARTS.contains(&self.function)
    }

    /// The function; for an unknown one, the file.
    fn name(&self) -> String {
        let function: String = self.function.chars().take(MOST_LETTERS).collect();
        match (function.is_empty(), file_name(self.file)) {
            (false, _) => function,
            (true, "") => "unknown".to_owned(),
            (true, file) => format!("{file} (no symbol)"),
        }
    }

    /// The function with its file and line.
    fn label(&self) -> String {
        match (self.line, file_name(self.file)) {
            (0, _) | (_, "") => self.name(),
            (line, file) => format!("{} {file}:{line}", self.name()),
        }
    }
}

/// Returns the part of a path after its last separator, shortened.
fn file_name(path: &str) -> &str {
    let name = path.rsplit(['/', '\\']).next().unwrap_or_default();
    let end = name.char_indices().nth(MOST_LETTERS).map_or(name.len(), |(index, _)| index);
    &name[..end]
}

/// Returns the owner of a block that was allocated by this stack, the innermost frame first. An empty stack has the root.
pub(super) fn owner_of(composer: &mut Composer, stack: &[Frame<'_>]) -> Result<u32, TraceProblem> {
    let stack = &stack[..stack.len().min(MOST_FRAMES)];
    let is_user = stack.iter().any(|frame| !frame.is_library());
    let mut frames = stack.iter().filter(|frame| !(is_user && frame.is_library()));
    let Some(holder) = frames.next() else { return Ok(0) };
    let mut modules: Vec<&Frame<'_>> = frames.collect();
    modules.truncate(MOST_FRAMES - 1);
    let owner = modules
        .iter()
        .rev()
        .try_fold(0, |parent, module| composer.owner(parent, &module.name(), None))
        .and_then(|parent| composer.owner(parent, &holder.label(), Some(Phase::Forward)));
    owner.map_err(|problem: BlockProblem| problem.into())
}

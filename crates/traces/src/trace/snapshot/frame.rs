//! The frame of a stack that names its blocks.

use highwater_files::boundary::ceil_boundary;

use super::stacks::Frame;
use crate::trace::builder::MAX_LABEL;

/// The most characters to search in the name of a file or function.
const MOST_LETTERS: usize = MAX_LABEL;

/// Functions of PyTorch's allocator and of its stack traces, which say nothing about the caller.
const INTERNAL: &[&str] =
    &["torch::unwind", "torch::CapturedTraceback", "torch::cuda::", "c10::", "at::detail::", "std::"];

/// The beginning of the nodes of PyTorch's backward pass, and that of its ops.
const NODES: &str = "torch::autograd::generated::";
const OPS: &str = "at::_ops::";

/// How well a frame names a block. Of equal frames the innermost counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Rank {
    /// A line of Python.
    Python,
    /// A node of the backward pass, such as `AddmmBackward0`.
    Node,
    /// An op, such as `aten::mm`.
    Op,
    Other,
    Internal,
}

impl<'a> Frame<'a> {
    pub(super) fn rank(&self) -> Rank {
        let starts = |start: &&str| self.name.starts_with(*start);
        match () {
            () if file_name(self.file).ends_with(".py") => Rank::Python,
            () if self.node().is_some() => Rank::Node,
            () if self.op().is_some() => Rank::Op,
            () if INTERNAL.iter().any(starts) => Rank::Internal,
            () => Rank::Other,
        }
    }

    /// The node of the backward pass whose `apply` this is.
    fn node(&self) -> Option<&'a str> {
        let (node, rest) = self.name.strip_prefix(NODES)?.split_once("::")?;
        rest.starts_with("apply(").then_some(node)
    }

    /// The op that this is a call of.
    fn op(&self) -> Option<&'a str> {
        let (op, _) = self.name.strip_prefix(OPS)?.split_once("::")?;
        Some(op)
    }

    pub(super) fn label(&self) -> String {
        if let Some(node) = self.node() {
            return node.chars().take(MOST_LETTERS / 2).collect();
        }
        if let Some(op) = self.op() {
            return format!("aten::{}", op.chars().take(MOST_LETTERS / 2).collect::<String>());
        }
        let function: String = self.name.chars().take(MOST_LETTERS / 2).collect();
        let function = without_address(function);
        match self.line {
            // PyTorch writes such lines for unknown ones.
            0 => function,
            line => match file_name(self.file) {
                "" => function,
                file => format!("{function} {file}:{line}"),
            },
        }
    }
}

/// Removes the address of a Python object, which differs between runs.
fn without_address(mut function: String) -> String {
    const MARK: &str = " object at 0x";
    if let Some(start) = function.find(MARK) {
        let digits = function[start + MARK.len()..].bytes().take_while(u8::is_ascii_hexdigit).count();
        function.replace_range(start..start + MARK.len() + digits, "");
    }
    function
}

/// Returns the part of a path after its last separator; empty if that is too long.
fn file_name(path: &str) -> &str {
    let start = ceil_boundary(path, path.len().saturating_sub(MOST_LETTERS + 1));
    let tail = &path[start..];
    match tail.rsplit_once(['/', '\\']) {
        Some((_, name)) => name,
        None if tail.len() > MOST_LETTERS || start > 0 => "",
        None => tail,
    }
}

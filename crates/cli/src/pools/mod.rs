//! The pools that `replay` and `what-if` run traces through: their policies and their options on the command line.

pub(crate) mod policies;
pub(crate) mod spec;

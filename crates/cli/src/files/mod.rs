//! The files that commands read and write.
//!
//! `-` stands for standard input or output. Readers take limits from the command line and name the option that raises a
//! limit. Outputs are written atomically.

pub(crate) mod input;
pub(crate) mod output;
pub(crate) mod read;

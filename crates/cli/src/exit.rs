//! Exit codes.

use std::fmt::Display;
use std::io::{self, Write};
use std::process::ExitCode;

/// A replay failed, or the result could not be written.
pub(crate) const FAILED: u8 = 1;
/// The command line is invalid, or a file cannot be read; clap uses the same code.
pub(crate) const BAD_FILE: u8 = 2;

/// Prints an error and returns its exit code.
pub(crate) fn fail(error: &dyn Display, code: u8) -> io::Result<ExitCode> {
    writeln!(io::stderr(), "highwater: {error}")?;
    Ok(ExitCode::from(code))
}

//! `Debug` of errors as text for people.
//!
//! A `main` that returns an error prints it with `Debug`, and so does `unwrap`. The errors that programs return therefore
//! print their message and its causes. The data inside of them derives `Debug`. `tests/suite/error_chains.rs` lists the
//! errors of the first kind.

use std::error::Error;
use std::fmt;

use super::printable::printable_lines;

/// Writes the message of an error, and each of its causes on a separate line. Escapes control characters, because causes
/// may be errors of other crates.
///
/// # Errors
/// Fails if the formatter fails.
pub fn write_error(error: &dyn Error, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    write!(f, "{}", printable_lines(error))?;
    let mut cause = error.source();
    while let Some(error) = cause {
        write!(f, "\n  caused by: {}", printable_lines(error))?;
        cause = error.source();
    }
    Ok(())
}

/// Implements `Debug` for error types that programs return from `main`: the message of the error and its causes.
///
/// ```
/// #[derive(thiserror::Error)]
/// #[error("no model named {0}")]
/// struct NoModel(String);
/// bfc_core::debug_as_message!(NoModel);
///
/// assert_eq!(format!("{:?}", NoModel("gpt".to_owned())), "no model named gpt");
/// ```
#[macro_export]
macro_rules! debug_as_message {
    ($($error:ty),+ $(,)?) => {$(
        impl ::std::fmt::Debug for $error {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                $crate::write_error(self, f)
            }
        }
    )+};
}

//! `Debug` of errors as text for people.
//!
//! A `main` that returns an error prints it with `Debug`, and so does `unwrap`. The error types of this workspace
//! therefore print their message instead of their fields. Two macros implement that, and `tests/suite/error_chains.rs`
//! finds error types without it.

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

/// Implements `Debug` for error types: the message of the error and its causes.
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

/// Implements `Debug` for an error type that may contain an [`OomReport`](crate::OomReport), as its method
/// `out_of_memory` returns: the message of the error, its causes and the complete report. The alternate form `{:#?}`
/// prints the variant with its fields, which the macro therefore lists.
#[macro_export]
macro_rules! debug_as_report {
    ($error:ident { $($variant:ident $(($value:ident))? $({ $($field:ident),+ $(,)? })?),+ $(,)? }) => {
        impl ::std::fmt::Debug for $error {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                if f.alternate() {
                    return match self {
                        $(Self::$variant $(($value))? $({ $($field),+ })? => f
                            .debug_struct(stringify!($variant))
                            $(.field(stringify!($value), $value))?
                            $($(.field(stringify!($field), $field))+)?
                            .finish(),)+
                    };
                }
                $crate::write_error(self, f)?;
                match self.out_of_memory() {
                    Some(report) => write!(f, "\n\n{}", report.details()),
                    None => Ok(()),
                }
            }
        }
    };
}

//! The exported functions and their types, under the names of the header. Comments address C programmers, because the
//! header contains them.
//!
//! All functions share the rules at the top of the header: texts end with NUL, results go through pointers to live
//! variables, and nothing uses a block after it was freed. Everything else is checked.
#![expect(clippy::missing_safety_doc, reason = "the header states the rules of all functions once")]
#![allow(non_camel_case_types, reason = "the names of the header")]

mod blocks;
mod errors;
mod figures;
mod pools;
mod recordings;
mod scopes;
mod version;

pub use blocks::*;
pub use errors::*;
pub use figures::*;
pub use pools::*;
pub use recordings::*;
pub use scopes::*;
pub use version::*;

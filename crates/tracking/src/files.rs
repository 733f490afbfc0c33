//! What readers and writers of files share, below everything else in this crate.
//!
//! - [`atomic_file`]: files that appear under their name only when they are complete.
//! - [`file_kind`]: what a file seems to be, from its first bytes, for error messages.
//! - [`gzip`]: decompression within a ratio.
//! - [`lean`]: bounds and containers for readers whose memory is limited.
//! - [`usable`]: how much memory this process may use, as the system and its control group tell.

mod atomic_file;
mod file_kind;
pub mod gzip;
pub(crate) mod lean;
mod usable;

pub use atomic_file::AtomicFile;
pub use file_kind::FileKind;
pub use usable::{MemoryBound, UsableMemory};

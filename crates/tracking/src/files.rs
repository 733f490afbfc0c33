//! Shared parts of the readers and writers of files, below everything else in this crate.
//!
//! - [`atomic_file`]: files that appear under their name only when they are complete.
//! - [`boundary`]: character boundaries of texts that are cut.
//! - [`file_kind`]: the detected kind of a file, for error messages.
//! - [`gzip`]: decompression within a ratio.
//! - [`lean`]: bounds and containers for readers whose memory is limited.
//! - [`markup`]: text from a file in HTML and XML.
//! - [`usable`]: the memory available to this process, according to the system and its control group.

mod atomic_file;
pub(crate) mod boundary;
mod file_kind;
pub mod gzip;
pub(crate) mod lean;
mod markup;
mod usable;

pub use atomic_file::AtomicFile;
pub use file_kind::FileKind;
pub(crate) use markup::escaped;
pub use usable::{MemoryBound, UsableMemory};

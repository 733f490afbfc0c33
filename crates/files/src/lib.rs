//! Files of Highwater: atomic writes, bounded readers, and the detection of formats.
//!
//! The crate knows no tensors, ops or traces. Readers accept untrusted files: they limit the size of their input and
//! their memory, and every error names its place.
//!
//! - [`AtomicFile`]: a file that appears under its name only when it is complete.
//! - [`FileKind`]: the detected kind of a file, for error messages.
//! - [`gzip`]: decompression within a ratio.
//! - [`pickle`]: a reader of Python pickles that calls no code from them.
//! - [`parse_packing`], [`write_packing`]: the packing of a training step as text.
//! - [`lines`], [`lean`], [`varint`], [`boundary`], [`markup`]: parts of readers and writers.
//!
//! ```
//! use std::io::{Read, Write};
//! use highwater_files::{AtomicFile, FileKind, gzip::{Gzip, RATIO}};
//! # let folder = tempfile::tempdir()?;
//! # let path = folder.path().join("step.packing");
//! let mut file = AtomicFile::create(&path)?;
//! file.write_all(b"highwater-packing 1\n")?;
//! file.commit()?;
//! assert_eq!(FileKind::of(&std::fs::read(&path)?), Some(FileKind::Packing));
//!
//! let mut text = String::new();
//! let damaged = Gzip::new(&b"\x1f\x8b\x08"[..], RATIO).read_to_string(&mut text);
//! assert!(damaged.is_err());
//! # Ok::<(), std::io::Error>(())
//! ```

mod atomic_file;
pub mod boundary;
mod file_kind;
pub mod gzip;
pub mod lean;
pub mod lines;
pub mod markup;
mod packing_text;
pub mod pickle;
pub mod varint;

pub use atomic_file::AtomicFile;
pub use file_kind::FileKind;
pub use packing_text::{PackingLimits, PackingTextError, PackingTextProblem, parse_packing, write_packing};

/// The examples of the README compile and run.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

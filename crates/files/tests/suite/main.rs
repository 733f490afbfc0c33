//! Tests of the public interface of files.

#![allow(clippy::unwrap_used, reason = "these are tests")]

mod atomic_file;

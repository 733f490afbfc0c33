//! Tests of the public interface of reports and recordings.

#![allow(clippy::unwrap_used, reason = "these are tests")]

mod collections;
mod guarded;
mod report_threads;
mod wrappers;

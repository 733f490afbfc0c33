//! Tests of the public interface of reports and traces.

#![allow(clippy::unwrap_used, reason = "these are tests")]

mod collections;
mod control_characters;
mod foreign_traces;
mod guarded;
mod heap_profiles;
mod other_runtimes;
mod report_threads;
mod traces;

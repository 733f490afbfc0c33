//! Tests of the public interface of traces.

#![allow(clippy::unwrap_used, reason = "these are tests")]

mod categories;
mod collections;
mod control_characters;
mod error_chains;
mod foreign_traces;
mod heap_profiles;
mod other_runtimes;
mod recordings;
mod snapshots;
mod traces;

//! Environment variables, and the pools that they configure. The function checks the invariants; the tests of
//! `bfc-core` also call it.

#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../../crates/bfc-core/tests/common/mod.rs"]
mod common;

fuzz_target!(|data: &[u8]| common::environment::run_variables(data));

//! Environment variables, and the pools that they choose. What must hold is said in the function, which the tests of
//! `bfc-core` share.

#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../../crates/bfc-core/tests/common/mod.rs"]
mod common;

fuzz_target!(|data: &[u8]| common::environment::run_variables(data));

//! Steps on a pool of any policy. What must hold after each is said in the interpreter, which the tests of `bfc-core` share.

#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../../crates/bfc-core/tests/common/mod.rs"]
mod common;

fuzz_target!(|data: &[u8]| {
    common::scenario::run_bytes(data);
});

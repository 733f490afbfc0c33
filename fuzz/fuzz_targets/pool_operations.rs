//! Steps on a pool of any policy. The interpreter checks the invariants after each operation; the tests of
//! `bfc-core` also run it.

#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../../crates/bfc-core/tests/common/mod.rs"]
mod common;

fuzz_target!(|data: &[u8]| {
    common::scenario::run_bytes(data);
});

//! A packing as text. The invariants are in `highwater_traces::fuzz`.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| highwater_traces::fuzz::packing(data));

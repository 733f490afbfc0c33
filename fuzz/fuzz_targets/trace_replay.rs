//! Highwater's text format, replayed through pools of every policy. The invariants are in
//! `highwater_traces::fuzz`.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| highwater_traces::fuzz::replayed(data));

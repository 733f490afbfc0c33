//! A file of weights or data, for the reader that the first byte selects. The invariants are in `highwater_nn::fuzz`.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| highwater_nn::fuzz::files(data));

//! A plan as text. What must hold is said in `highwater_tracking::fuzz`.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| highwater_tracking::fuzz::plan(data));

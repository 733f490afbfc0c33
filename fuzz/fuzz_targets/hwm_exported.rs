//! All else that people see of a recording: exports, a run that is followed. What must hold is said in
//! `highwater_tracking::fuzz`.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| highwater_tracking::fuzz::hwm_exported(data));

//! Exports of a recording, and a reader that follows a growing recording. The invariants are in
//! `highwater_traces::fuzz` and `highwater_tracking::fuzz`.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    highwater_tracking::fuzz::hwm_followed(data);
    highwater_traces::fuzz::hwm_exported(data);
});

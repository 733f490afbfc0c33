//! A PyTorch state dict. The invariants are in `highwater_nn::fuzz`.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| highwater_nn::fuzz::state_dict(data));

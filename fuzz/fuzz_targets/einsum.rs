//! An equation, after four bytes with the sizes of its letters. The invariants are in
//! `highwater_tensor::fuzz`.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| highwater_tensor::fuzz::einsum(data));

//! Tests under the `shuttle` checker, which runs threads in many orders:
//! `RUSTFLAGS="--cfg shuttle" cargo test -p bfc-core --test shuttle`

#![cfg(shuttle)]
#![allow(clippy::unwrap_used, reason = "these are tests")]

#[path = "../common/mod.rs"]
mod common;
mod pool;
mod retry;
mod spin;
mod streams;

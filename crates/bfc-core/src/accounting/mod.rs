//! Records of blocks and calling threads, independent of placement.
//!
//! [`accounts`] holds one record per live block and posts every change to the ledger, [`callers`] counts the threads
//! that use a pool and the calls under way, and [`retry`] lets a failed request wait for a free.
//! Pools and wrappers share this folder, so that a block without a placement policy is accounted in the same way.

pub(crate) mod account;
pub(crate) mod accounts;
pub(crate) mod callers;
pub(crate) mod number;
pub(crate) mod retry;

pub use retry::*;

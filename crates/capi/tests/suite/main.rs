//! The exported functions, called as C programs call them.

#![allow(clippy::unwrap_used, reason = "helpers of tests may panic as tests may")]

mod arguments;
mod blocks;
mod figures;
mod scopes;
mod support;
mod threads;

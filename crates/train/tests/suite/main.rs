//! Tests of the training loop and its parts.

#![allow(clippy::unwrap_used, reason = "these are tests")]

mod adapters;
mod averages;
mod dry_runs;
mod early_stopping;
mod metrics;
mod mixed;
mod objectives;
mod options;
mod peaks;
mod ranks;
mod resume;
mod steps;
mod support;

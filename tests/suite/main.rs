//! Tests of the examples, the facade and the messages that users see.

#![allow(clippy::unwrap_used, reason = "these are tests")]

mod bad_input;
mod book;
mod built;
mod checkpointed_transformer;
mod digits;
mod dry_runs;
#[cfg(feature = "text")]
mod embed;
mod error_chains;
mod finetune;
mod fit;
mod golden_step;
mod half_memory;
mod metrics;
mod out_of_memory;
mod outside;
mod prelude;
mod recording;
#[path = "../../crates/tracking/tests/suite/same_report.rs"]
mod same_report;
mod scale_out;
mod sources;
mod train_chargpt;
mod train_digits;

use highwater::tracking;

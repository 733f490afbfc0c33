//! Tests of the public interface of reports and recordings.

#![allow(clippy::unwrap_used, reason = "these are tests")]

mod accounts;
mod collections;
mod guarded;
mod report_threads;
mod same_report;
mod wrappers;

use highwater_tracking as tracking;

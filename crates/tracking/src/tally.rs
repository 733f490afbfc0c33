//! The tallies of a run, and the report that follows from them. Each column of a report has one definition, here.
//!
//! A live run and a recording fill the same tallies: a tracker while ops run, and the events of a recording afterwards
//! ([`record`](crate::record)).
//!
//! - [`Counts`] has the bytes of one running call, [`CallTotals`] the sums over finished calls.
//! - [`SavedTotals`] has the memory that is kept for backward passes.
//! - A [`Ledger`](bfc_core::Ledger) for each pool has live bytes and marks, by owner and by category.
//! - [`Tallies`] makes the rows of a [`Report`](crate::report::Report) of them.

mod call;
mod report;
mod saved;

pub use call::CallTotals;
pub(crate) use call::{Counts, Figures};
pub(crate) use report::{OpTally, PeakTally, PoolTally, Tallies, thread_row};
pub(crate) use saved::SavedTotals;

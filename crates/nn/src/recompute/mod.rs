//! Selective recomputation: the blocks of a chain that a training step runs again in the backward pass.
//!
//! A chain is a [`Sequential`](crate::modules::Sequential) or a slice of blocks in [`chain`](crate::modules::chain). A
//! [`Recomputation`] says which of its segments save only their input. [`Recompute`] has the recomputations of a model, and applies
//! to a thread like mixed precision. So it changes no module and no path, and the results are the same to the bit.
//!
//! [`observe`] measures the blocks of each chain in a dry run, and [`trade_offs`] returns the fastest recomputations for each
//! peak of memory: the optimal algorithm for chains of different blocks by Beaumont, Eyraud-Dubois, Herrmann, Joly and
//! Shilova (2019).

mod active;
mod chains;
mod costs;
mod front;
mod model;
mod observe;
mod optimum;
mod parse;
mod recomputation;
mod run;

pub use chains::{Recompute, RecomputeGuard};
pub use costs::{AfterCosts, BlockCosts, Observed, ObservedChain};
pub(crate) use observe::note_batch_norm;
pub use observe::observe;
pub use optimum::{TradeOff, trade_offs};
pub use parse::ParseRecomputationError;
pub use recomputation::{Recomputation, Segment};
pub(crate) use run::{Input, run};

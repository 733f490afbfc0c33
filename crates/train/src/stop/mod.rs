//! Reasons to end training before the last epoch.

mod early;
mod signal;

pub(crate) use early::EarlyState;
pub use early::{Direction, EarlyStopping};
pub use signal::StopSignal;

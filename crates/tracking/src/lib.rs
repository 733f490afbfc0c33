//! Which op took which bytes.

mod allocator;
mod bin;
mod context;
mod local;
mod log;
mod scope;
mod totals;
mod tracker;

pub use allocator::{Record, Sizes, TrackingAllocator};
pub use context::{Context, ContextGuard, capture};
pub use log::{Event, EventLog};
pub use scope::{ModuleGuard, Phase, PhaseGuard, Place, PlaceGuard, here, module, phase};
pub use totals::OpTotals;
pub use tracker::{OpRun, Tracker};

//! A part of a pool that is a step's own.
//!
//! A step that runs again and again asks for the same blocks each time. A pool that can keep such parts is told when a run begins
//! and ends, and says what was asked for in it; from that a [plan](crate::Plan) is made, for which it then keeps a part of its
//! memory: each run finds its blocks at the same addresses, and nobody else is served from there, also between the runs.
//!
//! The part is the pool's own memory all the same: its blocks are in the pool's ledger and figures like all others, and what is
//! free in it is free memory of the pool, which others may not have. It goes back to all when the step is forgotten.

use crate::allocator::error::AllocError;
use crate::plan::{Lifetime, Plan, PlanError, PlanOptions};

/// How much work a step's plan may take: some tens of milliseconds, as the program waits for it, once.
const EFFORT: u64 = 1_000_000;

/// What a run of a step asked a pool for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StepRequests {
    /// In order, with time counted in requests and frees of the step's own blocks.
    lifetimes: Vec<Lifetime>,
    /// Whether each can be planned: was free again when the run ended, and asked for nothing but bytes.
    planned: Vec<bool>,
}

impl StepRequests {
    /// The lifetime of each block, and whether it can be planned.
    pub(crate) const fn new(lifetimes: Vec<Lifetime>, planned: Vec<bool>) -> Self {
        Self { lifetimes, planned }
    }

    /// How many requests there were.
    #[must_use]
    pub fn len(&self) -> usize {
        self.lifetimes.len()
    }

    /// Whether there was none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.lifetimes.is_empty()
    }

    /// A place for each block that the run gave back; those that outlive it are left to the pool.
    ///
    /// # Errors
    /// If there are more bytes than numbers for them.
    pub fn plan(&self) -> Result<Plan, PlanError> {
        let options = PlanOptions::default().with_effort(EFFORT);
        Plan::solve_some(&self.lifetimes, |index| self.planned[index], &options, &mut |_| true)
    }
}

/// Parts of a pool that are steps' own: [`Allocator::step_memory`](crate::Allocator::step_memory). A pool keeps one at a time, for the step
/// that came first, by a number that its caller chooses.
///
/// While a run is open, requests of all threads are taken for its own; those that are not in the plan are served as ever.
pub trait StepMemory {
    /// A run of the step begins. False, and nothing has begun, if the pool is at another one's, or at another run of it.
    fn begin_run(&self, step: u64) -> bool;

    /// The run ends: what was asked for in it. `None` if the step has its part already, or no run was open.
    fn end_run(&self, step: u64) -> Option<StepRequests>;

    /// Keeps a part of the pool for the step, of [`Plan::capacity`] bytes, between two runs. False if the pool cannot follow the plan: it has
    /// too many blocks or none to place, or the pool is at another step's.
    ///
    /// # Errors
    /// [`AllocError::OutOfMemory`] and others of a request for so many bytes, which waits for nobody. Nothing is kept then.
    fn keep(&self, step: u64, plan: &Plan) -> Result<bool, AllocError>;

    /// Gives the part back, once nothing lies in it any more, and takes the next step that comes.
    fn forget(&self, step: u64);
}

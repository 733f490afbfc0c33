//! Errors of a search.

use std::fmt;

use bfc_core::{Bytes, printable};
use highwater_tensor::Error;

use super::objective::Indivisible;
use super::plan::Plan;

/// An error of [`fit`](super::fit()).
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum FitError {
    /// An error of the program or of the device.
    #[error(transparent)]
    Highwater(#[from] Error),
    /// No plan fits.
    #[error(transparent)]
    NothingFits(#[from] Box<NothingFits>),
    /// A choice of the space is empty or 0, or contradicts another one.
    #[error("the space of plans is invalid: {choice} {problem}")]
    InvalidSpace {
        /// The choice, such as the batch or a method of [`Space`](super::Space).
        choice: &'static str,
        /// The problem.
        problem: &'static str,
    },
    /// The space has no plan.
    #[error("there is no plan: no micro-batch and number of ranks of the space divides the batch of {batch}")]
    NoPlan {
        /// The examples of a step.
        batch: usize,
    },
    /// The batch cannot be divided, but all plans divide it.
    #[error("no plan of the space has the whole batch of {batch} as its micro-batch, but {reason}")]
    NoWholeBatch {
        /// The examples of a step.
        batch: usize,
        /// Why the batch cannot be divided.
        reason: Indivisible,
    },
    /// The times of steps cannot be estimated.
    #[error(
        "the speed of {device} is unknown, so that its fastest plan is too: use a GPU by name, such as rtx-4090, or state \
         its speed with DeviceProfile::with_speed", device = printable(device)
    )]
    NoSpeed {
        /// The device.
        device: String,
    },
    /// The program makes other requests for memory in each run.
    #[error("the program needs another amount of memory in each run with the plan \"{plan}\"")]
    Varies {
        /// The plan.
        plan: Box<Plan>,
    },
    /// The program computes no gradients.
    #[error("the program has no training step: it ran no backward pass with the plan \"{plan}\"")]
    NoStep {
        /// The plan.
        plan: Box<Plan>,
    },
}

bfc_core::debug_as_message!(FitError);

impl AsRef<dyn std::error::Error + 'static> for FitError {
    fn as_ref(&self) -> &(dyn std::error::Error + 'static) {
        self
    }
}

/// No plan fits into the device's memory. The source is the out-of-memory error of the smallest plan, whose report names what
/// holds the memory.
#[derive(Clone, thiserror::Error)]
#[non_exhaustive]
pub struct NothingFits {
    /// The device.
    pub device: String,
    /// The limit of its pool, in bytes, if there is one.
    pub limit_bytes: Option<u64>,
    /// The plan that uses the least memory.
    pub plan: Plan,
    /// The smallest pool in which that plan trains, in bytes.
    pub required_bytes: u64,
    /// The smallest number of ranks with which a plan fits, for programs with ranks; `None` if it is unknown.
    pub ranks: Option<usize>,
    /// Why no smaller micro-batch was tried, if there is a reason.
    pub indivisible: Option<Indivisible>,
    /// Why the plan does not fit, with the report of what holds the memory.
    pub error: Error,
}

bfc_core::debug_as_message!(NothingFits);

impl fmt::Display for NothingFits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no plan fits on {}", printable(&self.device))?;
        if let Some(limit) = self.limit_bytes {
            write!(f, " in {}", Bytes(limit))?;
        }
        let required = Bytes(self.required_bytes);
        write!(f, ": the smallest, {}, needs {required} ({} bytes)", self.plan, required.get())?;
        if let Some(ranks) = self.ranks {
            write!(f, ", or {ranks} ranks that divide the optimizer's state and the gradients")?;
        }
        if let Some(reason) = &self.indivisible {
            write!(f, "; {reason}")?;
        }
        write!(f, ": {}", self.error)
    }
}

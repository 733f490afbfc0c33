//! What placement policies return, in a form that accounts and errors can hold without depending on policies.

/// Where a policy has put a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placement {
    /// Where it starts, aligned as asked.
    pub address: u64,
    /// Bytes granted: at least those asked for.
    pub bytes: u64,
    /// The policy's own number for it, unlike that of any other live block; small, and used again after a free.
    pub slot: u32,
}

/// A policy's bookkeeping does not hold together: a fault in the policy, or its memory was overwritten.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{policy}: {detail}")]
pub struct Inconsistent {
    /// The policy's name.
    pub policy: &'static str,
    /// What does not hold, and where.
    pub detail: String,
}

/// How much of what was asked for went by the plan.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PlanCounts {
    /// Steps begun.
    pub steps: u64,
    /// Allocations placed by the plan.
    pub planned: u64,
    /// Allocations that the plan expected and leaves to the fallback.
    pub left: u64,
    /// Allocations that the plan expected, and whose place was occupied, or outside of the memory there was.
    pub refused: u64,
    /// Allocations that the plan did not expect.
    pub unexpected: u64,
}

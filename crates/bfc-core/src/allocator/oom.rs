//! Out-of-memory reports: the cause, the holders and the remedies.

mod details;
mod holding;
mod pending;
mod regions;
#[cfg(feature = "serde")]
mod serial;
mod what_if;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::allocator::{Contents, Request};
use crate::base::ledger::Tag;
use crate::base::owner::OwnerId;
use crate::base::printable::printable;
use crate::base::units::Bytes;

pub use holding::{Holding, Holdings};
pub use pending::PendingFrees;
pub use regions::RegionUse;
pub use what_if::{CheckpointedScope, WhatIf};

/// The number of owners that a report lists as the largest holders.
pub(crate) const HOLDERS: usize = 5;

/// The cause of a failed request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "lowercase"))]
#[non_exhaustive]
pub enum Verdict {
    /// The request alone exceeds the limit of the pool.
    #[cfg_attr(feature = "serde", serde(rename = "over the limit"))]
    OverLimit,
    /// Live memory leaves too few bytes, in any arrangement.
    Exhausted,
    /// Enough bytes are free or reservable, but not contiguous.
    Fragmented,
    /// Pending work still uses freed memory that would suffice.
    #[cfg_attr(feature = "serde", serde(rename = "pinned by pending work"))]
    Pinned,
    /// Free memory that would suffice serves other requests only, such as those of another stream.
    #[cfg_attr(feature = "serde", serde(rename = "free for other requests only"))]
    Separated,
    /// The request would exceed the budget of its scope.
    #[cfg_attr(feature = "serde", serde(rename = "over the budget of its scope"))]
    OverBudget,
}

impl Verdict {
    /// Returns the name of the verdict for tables and JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::OverLimit => "over the limit",
            Self::Exhausted => "exhausted",
            Self::Fragmented => "fragmented",
            Self::Pinned => "pinned by pending work",
            Self::Separated => "free for other requests only",
            Self::OverBudget => "over the budget of its scope",
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// An exceeded limit on the live bytes of one scope, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct ExceededBudget {
    /// The scope. The budget covers all owners below it.
    pub scope: OwnerId,
    /// The most bytes that may be live.
    pub limit: u64,
    /// The bytes that were live.
    pub live: u64,
}

/// Returns the name of a scope in sentences.
pub(crate) fn scope_name(scope: OwnerId) -> String {
    if scope == OwnerId::ROOT { "all ops".to_owned() } else { scope.to_string() }
}

/// The array that a request was for: its shape and element type.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Subject {
    /// The elements along each axis.
    pub extents: Vec<usize>,
    /// The element type.
    pub element: String,
}

impl From<Contents<'_>> for Subject {
    fn from(contents: Contents<'_>) -> Self {
        Self { extents: contents.extents.to_vec(), element: contents.element.to_owned() }
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} of {}", self.extents, printable(&self.element))
    }
}

/// The state of a pool when a request failed. All sizes are in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct OomReport {
    /// The allocator's name.
    pub allocator: String,
    /// The owner and category of the request.
    pub tag: Tag,
    /// The array that the memory was for, if the request named it.
    pub subject: Option<Subject>,
    /// The requested bytes.
    pub requested: u64,
    /// The requested bytes, rounded up to the pool's granularity.
    pub rounded: u64,
    /// The requested alignment.
    pub alignment: u64,
    /// The most bytes that the pool may reserve, if limited.
    pub limit: Option<u64>,
    /// The origin of the limit, if known.
    pub limit_origin: Option<Arc<str>>,
    /// Bytes that the pool holds from its source.
    pub reserved: u64,
    /// Bytes of live blocks.
    pub in_use: u64,
    /// Reserved bytes that are free.
    pub free: u64,
    /// The largest free block that the request could use.
    pub largest_free: u64,
    /// Free bytes in regions that serve other requests only, such as those of another stream.
    #[cfg_attr(feature = "serde", serde(default))]
    pub unusable: u64,
    /// The regions, if the pool can have several.
    #[cfg_attr(feature = "serde", serde(default))]
    pub regions: Option<RegionUse>,
    /// The cause.
    pub verdict: Verdict,
    /// The largest holders and their bytes, in descending order.
    pub holders: Vec<(OwnerId, u64)>,
    /// Live bytes by owner and category, in descending order. Their sum is `in_use`, or the live bytes of the scope
    /// whose budget was exceeded. Empty if the allocator keeps no accounts.
    pub holdings: Holdings,
    /// Freed blocks that pending work still uses.
    pub pending: PendingFrees,
    /// Device bytes held by other pools or processes, if the source of memory reports them.
    pub reserved_by_others: Option<u64>,
    /// The exceeded budget, if the [verdict](Self::verdict) is [`Verdict::OverBudget`].
    pub budget: Option<ExceededBudget>,
    /// Which changes would have made room.
    pub what_if: WhatIf,
    /// The time that the request waited for frees. Serialized as `waited_ms`.
    #[cfg_attr(feature = "serde", serde(rename = "waited_ms", with = "serial::milliseconds"))]
    pub waited: Duration,
    /// The number of retries after a [`LastResort`](crate::LastResort) freed memory.
    pub retries: u32,
}

impl fmt::Display for OomReport {
    /// One line for an error message. See [`OomReport::details`] for the complete report.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}: out of memory ({}): {} requested",
            printable(&self.allocator),
            self.verdict,
            Bytes(self.requested)
        )?;
        if let Some(ExceededBudget { scope, limit, live }) = self.budget {
            let (owner, live, limit) = (self.tag.owner, Bytes(live), Bytes(limit));
            return write!(
                f,
                " by {owner}, {live} in use of the budget of {limit} for {}",
                scope_name(scope)
            );
        }
        if self.tag.owner != OwnerId::ROOT {
            write!(f, " by {}", self.tag.owner)?;
        }
        write!(f, ", {} in use", Bytes(self.in_use))?;
        if let Some(limit) = self.limit {
            write!(f, " of {}", Bytes(limit))?;
        }
        write!(f, ", {} free", Bytes(self.free))?;
        write!(f, ", largest free block {}", Bytes(self.largest_free))
    }
}

impl OomReport {
    /// A hint on finding a batch that fits. Ends the texts of reports about tensors. A report cannot compute that
    /// batch: it depends on later requests and their placement.
    pub const BATCH_HINT: &'static str = "largest_fit finds the largest batch that fits, by dry runs";

    /// Creates the report of a failed request, for third-party allocators. They fill in the other fields, which are 0
    /// or empty.
    #[must_use]
    pub fn new(allocator: impl Into<String>, request: &Request<'_>, verdict: Verdict) -> Self {
        Self {
            allocator: allocator.into(),
            tag: request.tag,
            subject: request.contents.map(Subject::from),
            requested: request.bytes,
            rounded: request.bytes,
            alignment: request.alignment,
            limit: None,
            limit_origin: None,
            reserved: 0,
            in_use: 0,
            free: 0,
            largest_free: 0,
            unusable: 0,
            regions: None,
            verdict,
            holders: Vec::new(),
            holdings: Holdings::default(),
            pending: PendingFrees::default(),
            reserved_by_others: None,
            budget: None,
            what_if: WhatIf::default(),
            waited: Duration::ZERO,
            retries: 0,
        }
    }
}

//! Why there was no memory, said so that one can act on it.

mod details;
mod holding;
mod pending;
#[cfg(feature = "serde")]
mod serial;
mod what_if;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::allocator::{Contents, Request};
use crate::base::ledger::Tag;
use crate::base::owner::OwnerId;
use crate::base::units::Bytes;

pub use holding::{Holding, Holdings};
pub use pending::PendingFrees;
pub use what_if::{Checkpoint, WhatIf};

/// How many owners a report names as the largest holders.
pub(crate) const HOLDERS: usize = 5;

/// Why a request could not be met.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Verdict {
    /// The request alone is larger than the pool may ever be.
    OverLimit,
    /// Live memory leaves too few bytes, however they were arranged.
    Exhausted,
    /// Enough bytes are free or may still be reserved, but not in one piece.
    Fragmented,
    /// There would be room, but work under way still uses memory that was given back.
    Pinned,
    /// The scope that asked has a budget, and the request would take it beyond that.
    OverBudget,
}

impl Verdict {
    /// The verdict's name in tables and JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::OverLimit => "over the limit",
            Self::Exhausted => "exhausted",
            Self::Fragmented => "fragmented",
            Self::Pinned => "pinned by pending work",
            Self::OverBudget => "over the budget of its scope",
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A limit on what the owners of one scope may hold together, as it stood when it was reached. In bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct ExceededBudget {
    /// The scope: the owner that all those stand below.
    pub scope: OwnerId,
    /// The most that may be live.
    pub limit: u64,
    /// What was live.
    pub live: u64,
}

/// A scope as it stands in sentences.
pub(crate) fn scope_name(scope: OwnerId) -> String {
    if scope == OwnerId::ROOT { "all ops".to_owned() } else { scope.path() }
}

/// What a request was to hold: an array of so many elements along each axis.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Subject {
    /// Elements along each axis.
    pub extents: Vec<usize>,
    /// The type of the elements.
    pub element: String,
}

impl From<Contents<'_>> for Subject {
    fn from(contents: Contents<'_>) -> Self {
        Self { extents: contents.extents.to_vec(), element: contents.element.to_owned() }
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} of {}", self.extents, self.element)
    }
}

/// The state of a pool when it had to refuse. All sizes in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct OomReport {
    /// The allocator's name.
    pub allocator: String,
    /// Who asked, and what for.
    pub tag: Tag,
    /// What the memory was for, if the request said so.
    pub subject: Option<Subject>,
    /// Bytes asked for.
    pub requested: u64,
    /// The same, rounded to the pool's granularity.
    pub rounded: u64,
    /// The alignment asked for.
    pub alignment: u64,
    /// The most the pool may reserve, if there is a limit.
    pub limit: Option<u64>,
    /// Where the limit comes from, if the pool knows that.
    pub limit_origin: Option<Arc<str>>,
    /// Bytes the pool holds from its source.
    pub reserved: u64,
    /// Granted bytes alive.
    pub in_use: u64,
    /// Reserved bytes that are free.
    pub free: u64,
    /// The largest free block that the request may have.
    pub largest_free: u64,
    /// Why.
    pub verdict: Verdict,
    /// Those who hold most, in falling order of bytes.
    pub holders: Vec<(OwnerId, u64)>,
    /// Live bytes by owner and category, in falling order; their sum is what is in use, or what is live in the scope
    /// whose budget was reached. Empty if the allocator keeps no accounts.
    pub holdings: Holdings,
    /// What was given back, but is still used by work under way.
    pub pending: PendingFrees,
    /// Bytes of the device that neither this pool nor nobody has: those of other pools and other processes, where the
    /// source of memory tells.
    pub reserved_by_others: Option<u64>,
    /// The budget that was reached, if the [verdict](Self::verdict) is [`Verdict::OverBudget`].
    pub budget: Option<ExceededBudget>,
    /// What would have made room.
    pub what_if: WhatIf,
    /// How long the request waited for frees. Serialized as `waited_ms`.
    #[cfg_attr(feature = "serde", serde(rename = "waited_ms", with = "serial::milliseconds"))]
    pub waited: Duration,
    /// How often the request was made again, as somebody [freed memory](crate::LastResort) for it.
    pub retries: u32,
}

impl fmt::Display for OomReport {
    /// One line, fit for an error message; see [`OomReport::details`] for the whole.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}: out of memory ({}): {} requested",
            self.allocator,
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
    /// Says how to find a batch that fits. The texts of reports about tensors end with it. A report cannot know the answer,
    /// which depends on where blocks will lie and on later requests.
    pub const BATCH_HINT: &'static str = "largest_fit finds the largest batch that fits, by dry runs";

    /// The report of a refused request, for allocators written outside of this crate: what they know of themselves
    /// is theirs to fill in, and 0 until then.
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

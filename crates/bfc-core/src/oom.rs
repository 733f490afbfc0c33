//! Why there was no memory, said so that one can act on it.

use std::fmt;
use std::time::Duration;

use crate::ledger::Tag;
use crate::owner::OwnerId;
use crate::units::Bytes;

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
}

impl Verdict {
    /// The verdict's name in tables and JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::OverLimit => "over the limit",
            Self::Exhausted => "exhausted",
            Self::Fragmented => "fragmented",
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The state of a pool when it had to refuse. All sizes in bytes.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct OomReport {
    /// The allocator's name.
    pub allocator: String,
    /// Who asked, and what for.
    pub tag: Tag,
    /// Bytes asked for.
    pub requested: u64,
    /// The same, rounded to the pool's granularity.
    pub rounded: u64,
    /// The alignment asked for.
    pub alignment: u64,
    /// The most the pool may reserve, if there is a limit.
    pub limit: Option<u64>,
    /// Bytes the pool holds from its source.
    pub reserved: u64,
    /// Granted bytes alive.
    pub in_use: u64,
    /// Reserved bytes that are free.
    pub free: u64,
    /// The largest free block.
    pub largest_free: u64,
    /// Why.
    pub verdict: Verdict,
    /// Those who hold most, in falling order of bytes.
    pub holders: Vec<(OwnerId, u64)>,
    /// How long the request waited for frees.
    pub waited: Duration,
}

impl fmt::Display for OomReport {
    /// One line, fit for an error message; see [`OomReport::details`] for the whole.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: out of memory ({}): {} asked for", self.allocator, self.verdict, Bytes(self.requested))?;
        if self.tag.owner != OwnerId::ROOT {
            write!(f, " by {}", self.tag.owner)?;
        }
        write!(f, ", {} in use", Bytes(self.in_use))?;
        if let Some(limit) = self.limit {
            write!(f, " of {}", Bytes(limit))?;
        }
        write!(f, ", {} free, largest free block {}", Bytes(self.free), Bytes(self.largest_free))
    }
}

impl OomReport {
    /// The report in full, several aligned lines without a newline at the end.
    #[must_use]
    pub fn details(&self) -> String {
        let asked_by =
            if self.tag.owner == OwnerId::ROOT { String::new() } else { format!("  by {}", self.tag.owner) };
        let mut lines = vec![
            format!("out of memory in {}: {}", self.allocator, self.advice()),
            format!("  requested      {:>12}{asked_by}", Bytes(self.requested).to_string()),
            format!("  rounded        {:>12}", Bytes(self.rounded).to_string()),
            format!("  in use         {:>12}", Bytes(self.in_use).to_string()),
            format!("  free           {:>12}", Bytes(self.free).to_string()),
            format!("  largest free   {:>12}", Bytes(self.largest_free).to_string()),
            format!("  reserved       {:>12}", Bytes(self.reserved).to_string()),
        ];
        if let Some(limit) = self.limit {
            lines.push(format!("  limit          {:>12}", Bytes(limit).to_string()));
        }
        if !self.waited.is_zero() {
            lines.push(format!("  waited         {:>9} ms", self.waited.as_millis()));
        }
        if !self.holders.is_empty() {
            lines.push("  held by".to_owned());
            for (owner, bytes) in &self.holders {
                lines.push(format!("    {:>12}  {owner}", Bytes(*bytes).to_string()));
            }
        }
        lines.join("\n")
    }

    /// The verdict as a sentence that names the figure to change.
    fn advice(&self) -> String {
        match self.verdict {
            Verdict::OverLimit => {
                let limit = Bytes(self.limit.unwrap_or(self.reserved));
                format!("the request alone is over the limit of {limit}")
            }
            Verdict::Exhausted => {
                let obtainable = self.limit.map_or(self.free, |limit| limit.saturating_sub(self.in_use));
                let missing = Bytes(self.rounded.saturating_sub(obtainable));
                format!("exhausted, {missing} short")
            }
            Verdict::Fragmented => {
                format!("fragmented, {} are free but not in one piece", Bytes(self.free))
            }
        }
    }
}

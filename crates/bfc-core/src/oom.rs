//! Why there was no memory, said so that one can act on it.

use std::fmt;
use std::time::Duration;

use crate::allocator::Request;
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
    /// The largest free block that the request may have.
    pub largest_free: u64,
    /// Free bytes that the request may not have, as they lie between blocks of the other [end](crate::End) of the pool;
    /// 0 in pools that keep no two [`Ends`](crate::Ends) apart.
    pub other_end: u64,
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
        write!(
            f,
            "{}: out of memory ({}): {} asked for",
            self.allocator,
            self.verdict,
            Bytes(self.requested)
        )?;
        if self.tag.owner != OwnerId::ROOT {
            write!(f, " by {}", self.tag.owner)?;
        }
        write!(f, ", {} in use", Bytes(self.in_use))?;
        if let Some(limit) = self.limit {
            write!(f, " of {}", Bytes(limit))?;
        }
        write!(f, ", {} free", Bytes(self.free))?;
        if self.other_end > 0 {
            write!(f, " ({} at the other end)", Bytes(self.other_end))?;
        }
        write!(f, ", largest free block {}", Bytes(self.largest_free))
    }
}

impl OomReport {
    /// The report of a refused request, for allocators written outside of this crate: what they know of themselves
    /// is theirs to fill in, and 0 until then.
    #[must_use]
    pub fn new(allocator: impl Into<String>, request: &Request<'_>, verdict: Verdict) -> Self {
        Self {
            allocator: allocator.into(),
            tag: request.tag,
            requested: request.bytes,
            rounded: request.bytes,
            alignment: request.alignment,
            limit: None,
            reserved: 0,
            in_use: 0,
            free: 0,
            largest_free: 0,
            other_end: 0,
            verdict,
            holders: Vec::new(),
            waited: Duration::ZERO,
        }
    }

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
                let below_limit = self.limit.map_or(u64::MAX, |limit| limit.saturating_sub(self.in_use));
                if below_limit < self.rounded {
                    format!("exhausted, {} more than the limit leaves", Bytes(self.rounded - below_limit))
                } else if self.free < self.rounded {
                    let missing = Bytes(self.rounded - self.free);
                    format!("exhausted, {missing} short, and the source of memory has no more")
                } else {
                    "exhausted, what is free is still used by work under way".to_owned()
                }
            }
            Verdict::Fragmented if self.free >= self.rounded && self.other_end > 0 => {
                let (free, kept) = (Bytes(self.free), Bytes(self.other_end));
                format!("fragmented, {free} are free, but {kept} of them between blocks of the other end")
            }
            Verdict::Fragmented if self.free >= self.rounded => {
                format!("fragmented, {} are free but not in one piece", Bytes(self.free))
            }
            Verdict::Fragmented => {
                let unreserved = Bytes(self.limit.map_or(0, |limit| limit.saturating_sub(self.reserved)));
                let free = Bytes(self.free);
                format!("fragmented, {free} are free and {unreserved} not yet reserved, but not in one piece")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::MIB;

    fn report(verdict: Verdict, rounded: u64, in_use: u64, reserved: u64) -> OomReport {
        OomReport {
            allocator: "pool".to_owned(),
            tag: Tag { owner: OwnerId::intern(OwnerId::ROOT, "oom-test"), ..Tag::default() },
            requested: rounded,
            rounded,
            alignment: 256,
            limit: Some(8 * MIB),
            reserved,
            in_use,
            free: reserved - in_use,
            largest_free: 0,
            other_end: 0,
            verdict,
            holders: vec![(OwnerId::ROOT, in_use)],
            waited: Duration::from_millis(20),
        }
    }

    #[test]
    fn the_advice_names_the_figure_that_stood_in_the_way() {
        let cases = [
            (report(Verdict::OverLimit, 9 * MIB, 0, 0), "over the limit of 8.00 MiB"),
            (report(Verdict::Exhausted, 3 * MIB, 6 * MIB, 8 * MIB), "1.00 MiB more than the limit leaves"),
            (report(Verdict::Exhausted, 3 * MIB, MIB, 2 * MIB), "2.00 MiB short, and the source"),
            (report(Verdict::Exhausted, 3 * MIB, MIB, 6 * MIB), "still used by work under way"),
            (report(Verdict::Fragmented, 3 * MIB, MIB, 6 * MIB), "5.00 MiB are free but not in one piece"),
            (report(Verdict::Fragmented, 3 * MIB, 4 * MIB, 6 * MIB), "2.00 MiB not yet reserved"),
        ];
        for (report, expected) in cases {
            let details = report.details();
            assert!(details.contains(expected), "{details}");
        }
    }

    #[test]
    fn the_report_names_who_asked_how_long_it_waited_and_who_holds_the_memory() {
        let report = report(Verdict::Exhausted, 3 * MIB, 6 * MIB, 8 * MIB);
        assert!(report.to_string().contains("3.00 MiB asked for by oom-test, 6.00 MiB in use of 8.00 MiB"));
        let details = report.details();
        for part in ["20 ms", "held by", "6.00 MiB  (no owner)"] {
            assert!(details.contains(part), "{details}");
        }
    }
}

//! An out-of-memory report for people, in full.

use super::{Budget, OomReport, Verdict, scope_name};
use crate::base::owner::OwnerId;
use crate::base::units::Bytes;

/// How many holders of each kind are told.
const TOLD: usize = 5;

impl OomReport {
    /// The report in full, several aligned lines without a newline at the end.
    #[must_use]
    pub fn details(&self) -> String {
        let asked_by =
            if self.tag.owner == OwnerId::ROOT { String::new() } else { format!("  by {}", self.tag.owner) };
        let subject = self.subject.as_ref().map_or(String::new(), |subject| format!("  for {subject}"));
        let mut lines = vec![format!("out of memory in {}: {}", self.allocator, self.advice())];
        let mut row = |name: &str, bytes: u64, more: &str| {
            lines.push(format!("  {name:<14} {:>12}{more}", Bytes(bytes).to_string()));
        };
        row("requested", self.requested, &format!("{asked_by}{subject}"));
        row("rounded", self.rounded, "");
        if let Some(Budget { scope, limit, live }) = self.budget {
            row("budget", limit, &format!("  of {}", scope_name(scope)));
            row("used of it", live, "");
        }
        row("in use", self.in_use, "");
        row("free", self.free, "");
        row("largest free", self.largest_free, "");
        if self.pending.bytes > 0 {
            row("pending", self.pending.bytes, &format!("  in {} blocks", self.pending.blocks));
        }
        if self.pending.stranded_bytes > 0 {
            row("stranded", self.pending.stranded_bytes, "");
        }
        row("reserved", self.reserved, "");
        if let Some(limit) = self.limit {
            let origin = self.limit_origin.as_ref().map_or(String::new(), |origin| format!("  {origin}"));
            row("limit", limit, &origin);
        }
        if let Some(others) = self.reserved_by_others {
            row("others have", others, "");
        }
        if !self.waited.is_zero() {
            lines.push(format!("  waited         {:>9} ms", self.waited.as_millis()));
        }
        if self.retries > 0 {
            lines.push(format!("  retried        {:>9} times", self.retries));
        }
        self.tell_holders(&mut lines);
        let answers = self.what_if.answers();
        if !answers.is_empty() {
            lines.push("  it would fit".to_owned());
            lines.extend(answers.iter().map(|(what, fits)| {
                let answer = if *fits { "yes" } else { "no" };
                format!("    {answer:>12}  {what}")
            }));
        }
        if self.subject.is_some() {
            lines.push(format!("  {}", Self::BATCH_HINT));
        }
        lines.join("\n")
    }

    fn tell_holders(&self, lines: &mut Vec<String>) {
        let mut tell = |title: &str, holders: Vec<(String, u64)>| {
            if !holders.is_empty() {
                lines.push(format!("  {title}"));
                let told = holders.iter().take(TOLD);
                lines.extend(
                    told.map(|(name, bytes)| format!("    {:>12}  {name}", Bytes(*bytes).to_string())),
                );
            }
        };
        let owners = if self.holdings.is_empty() { self.holders.clone() } else { self.holdings.by_owner() };
        tell("held by", owners.into_iter().map(|(owner, bytes)| (owner.to_string(), bytes)).collect());
        let scopes = self.holdings.by_scope();
        let named = |scope: OwnerId| match scope {
            OwnerId::ROOT => "(outside of modules)".to_owned(),
            scope => scope.path(),
        };
        tell("in modules", scopes.into_iter().map(|(scope, bytes)| (named(scope), bytes)).collect());
        let categories = self.holdings.by_category();
        tell(
            "as",
            categories.into_iter().map(|(category, bytes)| (category.name().to_owned(), bytes)).collect(),
        );
    }

    /// The verdict as a sentence that names the figure to change.
    #[must_use]
    pub fn advice(&self) -> String {
        match self.verdict {
            Verdict::OverLimit => {
                let limit = Bytes(self.limit.unwrap_or(self.reserved));
                format!("the request alone is over the limit of {limit}")
            }
            Verdict::Exhausted => {
                let below_limit = self.limit.map_or(u64::MAX, |limit| limit.saturating_sub(self.in_use));
                if below_limit < self.rounded {
                    format!("exhausted, {} more than the limit leaves", Bytes(self.rounded - below_limit))
                } else {
                    let missing = Bytes(self.rounded.saturating_sub(self.free));
                    format!("exhausted, {missing} short, and the source of memory has no more")
                }
            }
            Verdict::Pinned => {
                let pinned = Bytes(self.pending.bytes.saturating_add(self.pending.stranded_bytes));
                format!("pinned, {pinned} were given back but are still used by work under way")
            }
            Verdict::OverBudget => match self.budget {
                Some(Budget { scope, limit, live }) => {
                    let over = Bytes(live.saturating_add(self.rounded).saturating_sub(limit));
                    format!("{over} over the budget of {}", scope_name(scope))
                }
                None => "over the budget of its scope".to_owned(),
            },
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
    use std::time::Duration;

    use super::*;
    use crate::allocator::oom::PendingFrees;
    use crate::allocator::oom::{Checkpoint, Holdings};
    use crate::allocator::{Contents, Request};
    use crate::base::ledger::{Category, Tag};
    use crate::base::units::MIB;

    fn report(verdict: Verdict, rounded: u64, in_use: u64, reserved: u64) -> OomReport {
        let owner = OwnerId::intern(OwnerId::ROOT, "oom-test");
        let tag = Tag { owner, category: Category::Activation };
        let contents = Contents { extents: &[64, 256], element: "f32" };
        OomReport {
            limit: Some(8 * MIB),
            reserved,
            in_use,
            free: reserved - in_use,
            holdings: Holdings::sum([(tag, in_use)]),
            waited: Duration::from_millis(20),
            ..OomReport::new("pool", &Request::new(rounded).with_tag(tag).with_contents(contents), verdict)
        }
    }

    #[test]
    fn the_advice_names_the_figure_that_stood_in_the_way() {
        let budget = Budget { scope: OwnerId::intern(OwnerId::ROOT, "small"), limit: 4 * MIB, live: 3 * MIB };
        let pending = PendingFrees { bytes: 2 * MIB, blocks: 1, stranded_bytes: MIB };
        let cases = [
            (report(Verdict::OverLimit, 9 * MIB, 0, 0), "over the limit of 8.00 MiB"),
            (report(Verdict::Exhausted, 3 * MIB, 6 * MIB, 8 * MIB), "1.00 MiB more than the limit leaves"),
            (report(Verdict::Exhausted, 3 * MIB, MIB, 2 * MIB), "2.00 MiB short, and the source"),
            (report(Verdict::Fragmented, 3 * MIB, MIB, 6 * MIB), "5.00 MiB are free but not in one piece"),
            (report(Verdict::Fragmented, 3 * MIB, 4 * MIB, 6 * MIB), "2.00 MiB not yet reserved"),
            (
                OomReport { pending, ..report(Verdict::Pinned, 3 * MIB, 6 * MIB, 8 * MIB) },
                "3.00 MiB were given back but",
            ),
            (
                OomReport { budget: Some(budget), ..report(Verdict::OverBudget, 3 * MIB, 6 * MIB, 8 * MIB) },
                "2.00 MiB over the budget of small",
            ),
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
        for part in [
            "by oom-test  for [64, 256] of f32",
            "20 ms",
            "held by",
            "6.00 MiB  oom-test",
            "in modules",
            "6.00 MiB  (outside of modules)",
            "6.00 MiB  activation",
            "\n  largest_fit finds the largest batch that fits",
        ] {
            assert!(details.contains(part), "{part} is not in {details}");
        }
    }

    #[test]
    fn what_would_have_made_room_is_told_with_what_would_not() {
        let mut report = report(Verdict::Fragmented, 3 * MIB, MIB, 6 * MIB);
        let scope = OwnerId::intern(OwnerId::ROOT, "block0");
        report.what_if.compacted = Some(true);
        report.what_if.split = vec![("always", false)];
        report.what_if.checkpointed = Some(Checkpoint { scope, bytes: MIB, fits: true });
        let details = report.details();
        for part in [
            "yes  with live blocks moved together",
            "no  with blocks split by the rule \"always\"",
            "yes  without the activations of block0 (1.00 MiB)",
        ] {
            assert!(details.contains(part), "{part} is not in {details}");
        }
        assert!(!details.contains("idle regions"), "what is not known is not told: {details}");
    }
}

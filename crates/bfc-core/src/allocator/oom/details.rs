//! Out-of-memory reports as text.

use super::{ExceededBudget, OomReport, Verdict, scope_name};
use crate::base::owner::OwnerId;
use crate::base::printable::printable;
use crate::base::units::Bytes;

/// The most holders of each kind in the text.
const MAX_HOLDERS: usize = 5;

impl OomReport {
    /// The complete report: several aligned lines without a newline at the end.
    #[must_use]
    pub fn details(&self) -> String {
        let mut text =
            format!("out of memory in {}: {}\n{}", printable(&self.allocator), self.advice(), self.request());
        for (name, figure, note) in self.figures() {
            text += format!("\n  {name:<16} {figure:>12}  {}", printable(note)).trim_end();
        }
        for (kind, holders) in self.held_by() {
            if !holders.is_empty() {
                text += &format!("\n  held by {kind}");
            }
            for (name, bytes) in holders.iter().take(MAX_HOLDERS) {
                text += &format!("\n    {:>12}  {}", Bytes(*bytes).to_string(), printable(name));
            }
        }
        let answers = self.what_if.answers();
        if !answers.is_empty() {
            text += "\n  it would fit";
        }
        for (what, fits) in answers {
            text += &format!("\n    {:>12}  {}", if fits { "yes" } else { "no" }, printable(what));
        }
        if self.subject.is_some() {
            text += &format!("\n  {}", Self::BATCH_HINT);
        }
        text
    }

    /// Returns the request as a line: its size, category, owner and array.
    #[must_use]
    pub fn request(&self) -> String {
        let mut line = format!("{} ({}) requested", Bytes(self.requested), self.tag.category.name());
        if self.tag.owner != OwnerId::ROOT {
            line += &format!(" by {}", self.tag.owner);
        }
        if let Some(subject) = &self.subject {
            line += &format!(" for {subject}");
        }
        line
    }

    /// Returns the figures that apply to the request, each with its name and a note.
    #[must_use]
    pub fn figures(&self) -> Vec<(&'static str, String, String)> {
        let mut figures = Vec::new();
        let mut add = |name, figure: String, note: String| figures.push((name, figure, note));
        let none = String::new;
        let bytes = |bytes: u64| Bytes(bytes).to_string();
        add("rounded", bytes(self.rounded), none());
        if let Some(ExceededBudget { scope, limit, live }) = self.budget {
            add("budget", bytes(limit), format!("of {}", scope_name(scope)));
            add("used of it", bytes(live), none());
        }
        add("in use", bytes(self.in_use), none());
        add("free", bytes(self.free), none());
        add("largest free", bytes(self.largest_free), none());
        if self.unusable > 0 {
            add("not usable", bytes(self.unusable), "free in regions for other streams or sizes".to_owned());
        }
        if self.pending.bytes > 0 {
            add("pending frees", bytes(self.pending.bytes), format!("in {} blocks", self.pending.blocks));
        }
        if self.pending.stranded_bytes > 0 {
            add("stranded", bytes(self.pending.stranded_bytes), none());
        }
        add("reserved", bytes(self.reserved), none());
        if let Some((regions, note)) = self.region_figure() {
            add("regions", regions, note);
        }
        if let Some(limit) = self.limit {
            add("limit", bytes(limit), self.limit_origin.as_deref().unwrap_or("").to_owned());
        }
        if let Some(others) = self.reserved_by_others {
            add("held elsewhere", bytes(others), none());
        }
        if !self.waited.is_zero() {
            add("waited", format!("{} ms", self.waited.as_millis()), none());
        }
        if self.retries > 0 {
            add("retried", format!("{} times", self.retries), none());
        }
        figures
    }

    /// Returns the holders by op, by module and by category, each kind in descending order of bytes.
    #[must_use]
    pub fn held_by(&self) -> [(&'static str, Vec<(String, u64)>); 3] {
        let named = |rows: Vec<(OwnerId, u64)>, kind: &str| {
            let name = |owner: OwnerId| match owner {
                OwnerId::ROOT => format!("(outside of {kind})"),
                owner => owner.path(),
            };
            rows.into_iter().map(|(owner, bytes)| (name(owner), bytes)).collect()
        };
        let owners = if self.holdings.is_empty() { self.holders.clone() } else { self.holdings.by_owner() };
        let categories = self.holdings.by_category().into_iter();
        [
            ("ops", named(owners, "ops")),
            ("modules", named(self.holdings.by_scope(), "modules")),
            (
                "categories",
                categories.map(|(category, bytes)| (category.name().replace('_', " "), bytes)).collect(),
            ),
        ]
    }

    /// Returns the verdict as a sentence that names the figure to change.
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
                format!("pinned, {pinned} are freed but still in use on another stream")
            }
            Verdict::Separated => {
                let (free, unusable) = (Bytes(self.free), Bytes(self.unusable));
                format!("{free} are free, {unusable} of them in regions for other streams or sizes")
            }
            Verdict::OverBudget => match self.budget {
                Some(ExceededBudget { scope, limit, live }) => {
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
    use crate::allocator::oom::{CheckpointedScope, Holdings};
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
    fn the_advice_names_the_limiting_figure() {
        let budget =
            ExceededBudget { scope: OwnerId::intern(OwnerId::ROOT, "small"), limit: 4 * MIB, live: 3 * MIB };
        let pending = PendingFrees { bytes: 2 * MIB, blocks: 1, stranded_bytes: MIB };
        let cases = [
            (report(Verdict::OverLimit, 9 * MIB, 0, 0), "over the limit of 8.00 MiB"),
            (report(Verdict::Exhausted, 3 * MIB, 6 * MIB, 8 * MIB), "1.00 MiB more than the limit leaves"),
            (report(Verdict::Exhausted, 3 * MIB, MIB, 2 * MIB), "2.00 MiB short, and the source"),
            (report(Verdict::Fragmented, 3 * MIB, MIB, 6 * MIB), "5.00 MiB are free but not in one piece"),
            (report(Verdict::Fragmented, 3 * MIB, 4 * MIB, 6 * MIB), "2.00 MiB not yet reserved"),
            (
                OomReport { pending, ..report(Verdict::Pinned, 3 * MIB, 6 * MIB, 8 * MIB) },
                "3.00 MiB are freed but still in use on another stream",
            ),
            (
                OomReport { unusable: 2 * MIB, ..report(Verdict::Separated, 3 * MIB, 4 * MIB, 8 * MIB) },
                "4.00 MiB are free, 2.00 MiB of them in regions for other streams or sizes",
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
    fn the_report_names_the_requester_and_the_holders() {
        let report = report(Verdict::Exhausted, 3 * MIB, 6 * MIB, 8 * MIB);
        assert!(report.to_string().contains("3.00 MiB requested by oom-test, 6.00 MiB in use of 8.00 MiB"));
        let details = report.details();
        for part in [
            "3.00 MiB (activation) requested by oom-test for [64, 256] of f32",
            "20 ms",
            "held by ops",
            "6.00 MiB  oom-test",
            "held by modules",
            "6.00 MiB  (outside of modules)",
            "6.00 MiB  activation",
            "\n  largest_fit finds the largest batch that fits",
        ] {
            assert!(details.contains(part), "{part} is not in {details}");
        }
    }

    #[test]
    fn the_details_list_what_would_have_made_room_and_what_not() {
        let mut report = report(Verdict::Fragmented, 3 * MIB, MIB, 6 * MIB);
        let scope = OwnerId::intern(OwnerId::ROOT, "block0");
        report.what_if.compacted = Some(true);
        report.what_if.split = vec![("always".into(), false)];
        report.what_if.checkpointed = Some(CheckpointedScope { scope, bytes: MIB, fits: true });
        let details = report.details();
        for part in [
            "yes  with live blocks moved together",
            "no  with blocks split by the rule \"always\"",
            "yes  without the activations of block0 (1.00 MiB)",
        ] {
            assert!(details.contains(part), "{part} is not in {details}");
        }
        assert!(!details.contains("idle regions"), "unknown answers are omitted: {details}");
    }
}

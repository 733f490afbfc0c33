//! A request that found no memory, as plain data: for files, for other programs, and for a page.

mod html;

use std::fmt;

use bfc_core::{Bytes, OomReport, OwnerId};
use serde::{Deserialize, Serialize};

/// All that is known of a request that found no memory. Sizes are bytes. Prints as text for people;
/// [`to_json`](Self::to_json) and [`to_html`](Self::to_html) tell the same.
///
/// ```
/// use std::sync::Arc;
/// use bfc_core::{AddressOnlyMemory, Allocator, BfcAllocator, BfcConfig, Bytes, MIB, Request};
/// use highwater_tracking::{OutOfMemory, Tracker, module};
/// let pool = BfcAllocator::new("pool", Arc::new(AddressOnlyMemory::new()), BfcConfig::new(Bytes::mib(8)));
/// let pool: Arc<dyn Allocator> = Arc::new(pool);
/// let tracker = Tracker::new();
/// let error = {
///     let _scope = module("net.fc1");
///     tracker.begin("matmul").track(&pool).allocate(&Request::new(9 * MIB)).unwrap_err()
/// };
/// let report = OutOfMemory::from(error.out_of_memory().unwrap());
/// assert_eq!((&report.scope[..], &report.op[..], &report.verdict[..]), ("net.fc1", "matmul", "over the limit"));
/// assert!(report.to_json().contains(r#""requested": 9437184"#));
/// assert!(report.to_html().starts_with("<!doctype html>"));
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct OutOfMemory {
    /// The allocator's name.
    pub allocator: String,
    /// Why, in a word or two: see [`Verdict`](bfc_core::Verdict).
    pub verdict: String,
    /// Why, as a sentence that names the figure to change.
    pub advice: String,
    /// The op that asked, with its phase unless that is forward; empty if none did.
    pub op: String,
    /// The module that the op ran in; empty outside of all.
    pub scope: String,
    /// What the memory was for.
    pub category: String,
    /// Elements along each axis of what was to lie there, if that is known.
    pub shape: Option<Vec<usize>>,
    /// The type of the elements.
    pub dtype: Option<String>,
    /// Bytes asked for.
    pub requested: u64,
    /// The same, rounded to the pool's granularity.
    pub rounded: u64,
    /// The alignment asked for.
    pub alignment: u64,
    /// The most the pool may reserve, if there is a limit.
    pub limit: Option<u64>,
    /// Where the limit comes from, if the pool knows that.
    pub limit_origin: Option<String>,
    /// Bytes the pool holds from its source.
    pub reserved: u64,
    /// Granted bytes alive.
    pub in_use: u64,
    /// Reserved bytes that are free.
    pub free: u64,
    /// The largest free block that the request may have.
    pub largest_free: u64,
    /// Blocks that were given back but are still used by work under way.
    pub pending_blocks: u64,
    /// Their bytes.
    pub pending_bytes: u64,
    /// Bytes that are never given back, because the driver could not say when their use ends.
    pub stranded_bytes: u64,
    /// Bytes of the device that others have, where that is known.
    pub reserved_by_others: Option<u64>,
    /// The budget that was reached, if one was. Holders are then those of its scope.
    pub budget: Option<BudgetRow>,
    /// Ops by what they held, in falling order, with the module they ran in.
    pub ops: Vec<Holder>,
    /// Modules by what their ops held.
    pub scopes: Vec<Holder>,
    /// Categories by what was held for them.
    pub categories: Vec<Holder>,
    /// What would have made room, and what not.
    pub what_if: Vec<Answer>,
    /// How long the request waited for frees, in milliseconds.
    pub waited_ms: u64,
    /// How often it was made again after somebody freed memory for it.
    pub retries: u32,
}

/// A budget that was reached, in bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct BudgetRow {
    /// The module that it is of.
    pub scope: String,
    /// The most that may be live there.
    pub limit: u64,
    /// What was live.
    pub live: u64,
}

/// One who held memory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Holder {
    /// Who; empty outside of all ops and modules.
    pub name: String,
    /// Bytes.
    pub bytes: u64,
}

/// Whether something would have made room.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Answer {
    /// What.
    pub what: String,
    /// Whether.
    pub fits: bool,
}

impl From<&OomReport> for OutOfMemory {
    fn from(report: &OomReport) -> Self {
        let by_owner = |rows: Vec<(OwnerId, u64)>| {
            rows.into_iter().map(|(owner, bytes)| Holder { name: owner.path(), bytes }).collect()
        };
        let holdings = &report.holdings;
        let owners = if holdings.is_empty() { report.holders.clone() } else { holdings.by_owner() };
        let categories = holdings.by_category().into_iter();
        let answers = report.what_if.answers().into_iter();
        Self {
            allocator: report.allocator.clone(),
            verdict: report.verdict.name().to_owned(),
            advice: report.advice(),
            op: report.tag.owner.name().to_string(),
            scope: report.tag.owner.parent().path(),
            category: report.tag.category.name().to_owned(),
            shape: report.subject.as_ref().map(|subject| subject.extents.clone()),
            dtype: report.subject.as_ref().map(|subject| subject.element.clone()),
            requested: report.requested,
            rounded: report.rounded,
            alignment: report.alignment,
            limit: report.limit,
            limit_origin: report.limit_origin.as_deref().map(str::to_owned),
            reserved: report.reserved,
            in_use: report.in_use,
            free: report.free,
            largest_free: report.largest_free,
            pending_blocks: report.pending.blocks as u64,
            pending_bytes: report.pending.bytes,
            stranded_bytes: report.pending.stranded_bytes,
            reserved_by_others: report.reserved_by_others,
            budget: report.budget.map(|budget| BudgetRow {
                scope: budget.scope.path(),
                limit: budget.limit,
                live: budget.live,
            }),
            ops: by_owner(owners),
            scopes: by_owner(holdings.by_scope()),
            categories: categories
                .map(|(category, bytes)| Holder { name: category.name().to_owned(), bytes })
                .collect(),
            what_if: answers.map(|(what, fits)| Answer { what, fits }).collect(),
            waited_ms: u64::try_from(report.waited.as_millis()).unwrap_or(u64::MAX),
            retries: report.retries,
        }
    }
}

impl OutOfMemory {
    /// All of it as a JSON object, on several lines.
    #[must_use]
    pub fn to_json(&self) -> String {
        // Plain data with names for keys has no way to fail.
        serde_json::to_string_pretty(self).unwrap_or_default()
    }

    /// The same with at most so many holders of each kind, on one line of at most `most_bytes` bytes; `None` if that is
    /// not to be had.
    pub(crate) fn to_short_json(&self, holders: usize, most_bytes: usize) -> Option<String> {
        let mut short = self.clone();
        for holders_left in [holders, 1, 0] {
            for rows in [&mut short.ops, &mut short.scopes, &mut short.categories] {
                rows.truncate(holders_left);
            }
            let json = serde_json::to_string(&short).ok()?;
            if json.len() <= most_bytes {
                return Some(json);
            }
        }
        None
    }

    /// All of it as a page for a browser that needs nothing else.
    #[must_use]
    pub fn to_html(&self) -> String {
        html::page(self)
    }

    /// The figures with their names, those that say something.
    fn figures(&self) -> Vec<(&'static str, String)> {
        let bytes = |bytes: u64| Bytes(bytes).to_string();
        let mut figures = vec![("requested", bytes(self.requested)), ("rounded", bytes(self.rounded))];
        let mut add = |name, shown: bool, text: String| figures.extend(shown.then_some((name, text)));
        if let Some(BudgetRow { scope, limit, live }) = &self.budget {
            let scope = if scope.is_empty() { "all ops" } else { scope };
            add("budget", true, format!("{} of {scope}", bytes(*limit)));
            add("used of it", true, bytes(*live));
        }
        add("in use", true, bytes(self.in_use));
        add("free", true, bytes(self.free));
        add("largest free", true, bytes(self.largest_free));
        let pending = format!("{} in {} blocks", bytes(self.pending_bytes), self.pending_blocks);
        add("pending frees", self.pending_bytes > 0, pending);
        add("stranded", self.stranded_bytes > 0, bytes(self.stranded_bytes));
        add("reserved", true, bytes(self.reserved));
        let origin = self.limit_origin.as_ref().map_or(String::new(), |origin| format!(", {origin}"));
        add("limit", self.limit.is_some(), format!("{}{origin}", bytes(self.limit.unwrap_or(0))));
        add("others have", self.reserved_by_others.is_some(), bytes(self.reserved_by_others.unwrap_or(0)));
        add("waited", self.waited_ms > 0, format!("{} ms", self.waited_ms));
        add("made again", self.retries > 0, format!("{} times", self.retries));
        figures
    }

    /// Who asked for what, as a line.
    fn asked(&self) -> String {
        let mut line = format!("{} ({}) asked of {}", Bytes(self.requested), self.category, self.allocator);
        if !self.op.is_empty() {
            let dot = if self.scope.is_empty() { "" } else { "." };
            line += &format!(" by {}{dot}{}", self.scope, self.op);
        }
        if let (Some(shape), Some(dtype)) = (&self.shape, &self.dtype) {
            line += &format!(" for {shape:?} of {dtype}");
        }
        line
    }

    /// The holders of each kind, by the kind's name.
    fn holders(&self) -> [(&'static str, &[Holder]); 3] {
        [("ops", &self.ops), ("modules", &self.scopes), ("categories", &self.categories)]
    }
}

impl Holder {
    /// The holder's name. An empty name stands for memory outside of all holders of this kind.
    fn shown(&self, kind: &str) -> String {
        if self.name.is_empty() { format!("(outside of {kind})") } else { self.name.clone() }
    }
}

impl fmt::Display for OutOfMemory {
    /// The whole, several aligned lines without a newline at the end.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "out of memory: {}\n{}", self.advice, self.asked())?;
        for (name, figure) in self.figures() {
            write!(f, "\n  {name:<16} {figure:>12}")?;
        }
        for (kind, holders) in self.holders() {
            if !holders.is_empty() {
                write!(f, "\n  held by {kind}")?;
            }
            for holder in holders {
                write!(f, "\n    {:>12}  {}", Bytes(holder.bytes).to_string(), holder.shown(kind))?;
            }
        }
        if !self.what_if.is_empty() {
            write!(f, "\n  it would fit")?;
        }
        for Answer { what, fits } in &self.what_if {
            write!(f, "\n    {:>12}  {what}", if *fits { "yes" } else { "no" })?;
        }
        self.shape.as_ref().map_or(Ok(()), |_| write!(f, "\n  {}", OomReport::BATCH_HINT))
    }
}

#[cfg(test)]
mod tests;

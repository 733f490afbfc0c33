//! What changed between two runs: what grew, and what moved the peak.

use std::collections::BTreeMap;

use serde::Serialize;

use super::usage::{OpUsage, ScopeUsage, Usage};
use crate::scope::Phase;

/// A figure in two runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Change {
    /// In the first run.
    pub before: u64,
    /// In the second.
    pub after: u64,
}

impl Change {
    /// By how much it grew; negative if it shrank. Held at the ends of 64 bits.
    #[must_use]
    pub const fn growth(self) -> i64 {
        let size = self.before.abs_diff(self.after);
        let size = if size > i64::MAX as u64 { i64::MAX } else { size as i64 };
        if self.after >= self.before { size } else { -size }
    }
}

/// What changed between two runs. All sizes are granted bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct UsageDiff {
    /// The peak over all pools.
    pub peak_bytes: Change,
    /// Bytes live at the peak by category, where they changed; by falling change.
    pub categories: Vec<CategoryChange>,
    /// Ops in their modules, where any figure changed; by falling change of what they held at the peak, then of their
    /// high-water marks.
    pub places: Vec<PlaceChange>,
    /// Modules with everything below them, where any figure changed; in the order of the second run, those that are only
    /// in the first at the end.
    pub scopes: Vec<ScopeChange>,
}

/// What changed of an op in a module.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PlaceChange {
    /// The module's path.
    pub scope: String,
    /// The op's name.
    pub op: String,
    /// The phase.
    pub phase: Phase,
    /// Executions.
    pub calls: Change,
    /// Bytes granted.
    pub granted_bytes: Change,
    /// The most that one execution held at a time.
    pub high_water_bytes: Change,
    /// Bytes held at the peak of the run.
    pub peak_bytes: Change,
}

/// What changed of a module and everything below it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ScopeChange {
    /// The module's path; empty for the whole.
    pub scope: String,
    /// Bytes granted.
    pub granted_bytes: Change,
    /// The most that was charged to it at a time.
    pub high_water_bytes: Change,
    /// Bytes held at the peak of the run.
    pub peak_bytes: Change,
}

/// What changed of a category.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CategoryChange {
    /// The category's name.
    pub category: &'static str,
    /// Bytes live at the peak of the run.
    pub peak_bytes: Change,
    /// The most that was live of it at a time.
    pub high_water_bytes: Change,
}

impl UsageDiff {
    /// What changed from one run to another.
    #[must_use]
    pub fn between(before: &Usage, after: &Usage) -> Self {
        let peak = |usage: &Usage| usage.peak.as_ref().map_or(0, |peak| peak.bytes);
        Self {
            peak_bytes: Change { before: peak(before), after: peak(after) },
            categories: categories(before, after),
            places: places(before, after),
            scopes: scopes(before, after),
        }
    }

    /// Whether the runs have the same figures.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.peak_bytes.growth() == 0
            && self.categories.is_empty()
            && self.places.is_empty()
            && self.scopes.is_empty()
    }
}

fn categories(before: &Usage, after: &Usage) -> Vec<CategoryChange> {
    let pairs = before.categories.iter().zip(&after.categories);
    let change = |(a, b): (&super::usage::CategoryUsage, &super::usage::CategoryUsage)| CategoryChange {
        category: b.category,
        peak_bytes: Change { before: a.peak_bytes, after: b.peak_bytes },
        high_water_bytes: Change { before: a.high_water_bytes, after: b.high_water_bytes },
    };
    let changed = |row: &CategoryChange| row.peak_bytes.growth() != 0 || row.high_water_bytes.growth() != 0;
    let mut rows: Vec<CategoryChange> = pairs.map(change).filter(changed).collect();
    rows.sort_by_key(|row| std::cmp::Reverse(row.peak_bytes.growth().unsigned_abs()));
    rows
}

fn places(before: &Usage, after: &Usage) -> Vec<PlaceChange> {
    let mut rows: BTreeMap<(&str, &str, Phase), PlaceChange> = BTreeMap::new();
    type Side = fn(&mut Change) -> &mut u64;
    let sides: [(&Usage, Side); 2] =
        [(before, |change| &mut change.before), (after, |change| &mut change.after)];
    for (usage, side) in sides {
        for place in &usage.places {
            let OpUsage { op, phase, .. } = place;
            let scope = place.scope.as_deref().unwrap_or_default();
            let row = rows.entry((scope, op, *phase)).or_insert_with(|| PlaceChange {
                scope: scope.to_owned(),
                op: op.clone(),
                phase: *phase,
                ..PlaceChange::default()
            });
            *side(&mut row.calls) = place.calls;
            *side(&mut row.granted_bytes) = place.granted_bytes;
            *side(&mut row.high_water_bytes) = place.high_water_bytes;
            *side(&mut row.peak_bytes) = place.peak_bytes;
        }
    }
    let changed = |row: &PlaceChange| {
        let figures = [row.calls, row.granted_bytes, row.high_water_bytes, row.peak_bytes];
        figures.iter().any(|figure| figure.growth() != 0)
    };
    let mut rows: Vec<PlaceChange> = rows.into_values().filter(changed).collect();
    rows.sort_by_key(|row| {
        let size = |change: Change| std::cmp::Reverse(change.growth().unsigned_abs());
        (size(row.peak_bytes), size(row.high_water_bytes), size(row.granted_bytes))
    });
    rows
}

fn by_path(usage: &Usage) -> BTreeMap<&str, &ScopeUsage> {
    usage.scopes.iter().map(|row| (row.scope.as_str(), row)).collect()
}

fn scopes(before: &Usage, after: &Usage) -> Vec<ScopeChange> {
    let none = ScopeUsage::default();
    let change = |a: &ScopeUsage, b: &ScopeUsage, scope: &str| ScopeChange {
        scope: scope.to_owned(),
        granted_bytes: Change { before: a.granted_bytes, after: b.granted_bytes },
        high_water_bytes: Change { before: a.high_water_bytes, after: b.high_water_bytes },
        peak_bytes: Change { before: a.peak_bytes, after: b.peak_bytes },
    };
    let (by_path, known) = (by_path(before), by_path(after));
    let both = after
        .scopes
        .iter()
        .map(|row| change(by_path.get(row.scope.as_str()).copied().unwrap_or(&none), row, &row.scope));
    let gone = before.scopes.iter().filter(|row| !known.contains_key(row.scope.as_str()));
    let changed = |row: &ScopeChange| {
        [row.granted_bytes, row.high_water_bytes, row.peak_bytes].iter().any(|figure| figure.growth() != 0)
    };
    both.chain(gone.map(|row| change(row, &none, &row.scope))).filter(changed).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn usage(rows: &[(&str, u64)]) -> Usage {
        let place = |(scope, bytes): &(&str, u64)| OpUsage {
            scope: Some((*scope).to_owned()),
            op: "matmul".to_owned(),
            calls: 1,
            granted_bytes: *bytes,
            high_water_bytes: *bytes,
            peak_bytes: *bytes,
            ..OpUsage::default()
        };
        let scope = |(scope, bytes): &(&str, u64)| ScopeUsage {
            scope: (*scope).to_owned(),
            granted_bytes: *bytes,
            ..ScopeUsage::default()
        };
        let places = rows.iter().map(place).collect();
        Usage { places, scopes: rows.iter().map(scope).collect(), ..Usage::default() }
    }

    #[test]
    fn what_grew_most_comes_first_and_what_stayed_is_left_out() {
        let diff = UsageDiff::between(
            &usage(&[("a", 10), ("b", 5), ("gone", 7)]),
            &usage(&[("a", 11), ("b", 5), ("new", 50)]),
        );
        let growth: Vec<_> =
            diff.places.iter().map(|row| (row.scope.as_str(), row.peak_bytes.growth())).collect();
        assert_eq!(growth, [("new", 50), ("gone", -7), ("a", 1)]);
        let scopes: Vec<_> = diff.scopes.iter().map(|row| row.scope.as_str()).collect();
        assert_eq!(scopes, ["a", "new", "gone"]);
    }

    #[test]
    fn a_run_does_not_differ_from_itself() {
        let run = usage(&[("a", 10), ("b", 5)]);
        assert!(UsageDiff::between(&run, &run).is_empty());
    }

    #[test]
    fn growth_beyond_64_bits_is_held_at_their_ends() {
        assert_eq!(Change { before: 0, after: u64::MAX }.growth(), i64::MAX);
        assert_eq!(Change { before: u64::MAX, after: 0 }.growth(), -i64::MAX);
    }
}

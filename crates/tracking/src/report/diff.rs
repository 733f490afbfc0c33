//! The difference between two reports: rows whose figures changed, the largest changes first.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use serde::Serialize;

use super::{CategoryRow, OpRow, Report, ScopeRow};

/// A row of two reports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Change<T> {
    /// The row of the first report.
    pub before: T,
    /// The row of the second report.
    pub after: T,
}

impl<T> Change<T> {
    /// The change of one figure of the rows.
    #[must_use]
    pub fn of(&self, figure: impl Fn(&T) -> u64) -> Change<u64> {
        Change { before: figure(&self.before), after: figure(&self.after) }
    }
}

impl Change<u64> {
    /// How much the figure grew; negative if it shrank. Clamped to 64 bits.
    #[must_use]
    pub const fn growth(&self) -> i64 {
        let growth = self.after as i128 - self.before as i128;
        if growth > i64::MAX as i128 {
            i64::MAX
        } else if growth < -(i64::MAX as i128) {
            -i64::MAX
        } else {
            growth as i64
        }
    }

    const fn size(&self) -> u64 {
        self.growth().unsigned_abs()
    }
}

/// The changes from one run to another. Rows without a change are omitted. A row that one run lacks is all zero there.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[non_exhaustive]
pub struct ReportDiff {
    /// The peak of each run.
    pub peak_bytes: Change<u64>,
    /// Categories, by falling change of their bytes at the peak.
    pub categories: Vec<Change<CategoryRow>>,
    /// Ops in modules, by falling change of their bytes at the peak, then of their other figures.
    pub places: Vec<Change<OpRow>>,
    /// Modules in the order of the second run, then those that only the first run has.
    pub scopes: Vec<Change<ScopeRow>>,
}

impl ReportDiff {
    /// Compares two runs.
    #[must_use]
    pub fn between(before: &Report, after: &Report) -> Self {
        let peak = |report: &Report| report.peak.as_ref().map_or(0, |peak| peak.bytes);

        let mut categories = pair(
            &before.categories,
            &after.categories,
            |row| &row.category,
            |row| CategoryRow { category: row.category.clone(), ..CategoryRow::default() },
        );
        categories.retain(|row| row.before != row.after);
        categories.sort_by_key(|row| Reverse(row.of(|row| row.peak_bytes).size()));

        let mut places = pair(
            &before.places,
            &after.places,
            // A row without a known phase has the name of a row of the forward phase.
            |row| (&row.scope, &row.op, row.phase.suffix()),
            |row| OpRow {
                scope: row.scope.clone(),
                op: row.op.clone(),
                phase: row.phase,
                ..OpRow::default()
            },
        );
        let figures: [fn(&OpRow) -> u64; 4] =
            [|row| row.peak_bytes, |row| row.high_water_bytes, |row| row.total_bytes, |row| row.calls];
        places.retain(|row| figures.iter().any(|figure| row.of(figure).growth() != 0));
        places.sort_by_key(|row| Reverse(figures.map(|figure| row.of(figure).size())));

        let mut scopes = pair(
            &before.scopes,
            &after.scopes,
            |row| &row.scope,
            |row| ScopeRow { scope: row.scope.clone(), ..ScopeRow::default() },
        );
        let figures: [fn(&ScopeRow) -> u64; 3] =
            [|row| row.peak_bytes, |row| row.high_water_bytes, |row| row.total_bytes];
        scopes.retain(|row| figures.iter().any(|figure| row.of(figure).growth() != 0));
        Self { peak_bytes: Change { before: peak(before), after: peak(after) }, categories, places, scopes }
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

/// Pairs rows of the same key: those of the second report in order, then those that only the first one has. `empty` makes
/// the row of the same key without figures. If a report has several rows with one key, the first is paired with the first.
fn pair<'a, T: Clone, K: Ord + Copy + 'a>(
    before: &'a [T],
    after: &'a [T],
    key: impl Fn(&'a T) -> K,
    empty: impl Fn(&T) -> T,
) -> Vec<Change<T>> {
    let mut left: BTreeMap<(K, usize), &T> = numbered(before, &key).collect();
    let mut rows: Vec<Change<T>> = numbered(after, &key)
        .map(|(key, row)| {
            let before = left.remove(&key).cloned().unwrap_or_else(|| empty(row));
            Change { before, after: row.clone() }
        })
        .collect();
    let gone = numbered(before, &key).filter(|(key, _)| left.contains_key(key));
    rows.extend(gone.map(|(_, row)| Change { before: row.clone(), after: empty(row) }));
    rows
}

/// Returns each row with its key, and with its number among the rows of that key.
fn numbered<'a, T, K: Ord + Copy>(
    rows: &'a [T],
    key: &impl Fn(&'a T) -> K,
) -> impl Iterator<Item = ((K, usize), &'a T)> {
    let mut counts = BTreeMap::new();
    rows.iter().map(move |row| {
        let key = key(row);
        let count = counts.entry(key).or_insert(0);
        *count += 1;
        ((key, *count), row)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scope::Phase;

    fn report(rows: &[(&str, u64)]) -> Report {
        let place = |(scope, bytes): &(&str, u64)| OpRow {
            scope: Some((*scope).to_owned()),
            op: "matmul".to_owned(),
            calls: 1,
            total_bytes: *bytes,
            high_water_bytes: *bytes,
            peak_bytes: *bytes,
            ..OpRow::default()
        };
        let scope = |(scope, bytes): &(&str, u64)| ScopeRow {
            scope: (*scope).to_owned(),
            total_bytes: *bytes,
            ..ScopeRow::default()
        };
        let (places, scopes) = (rows.iter().map(place).collect(), rows.iter().map(scope).collect());
        Report { places, scopes, ..Report::default() }
    }

    #[test]
    fn the_largest_change_is_first_and_equal_rows_are_left_out() {
        let diff = ReportDiff::between(
            &report(&[("a", 10), ("b", 5), ("gone", 7)]),
            &report(&[("a", 11), ("b", 5), ("new", 50)]),
        );
        let growth: Vec<_> = diff
            .places
            .iter()
            .map(|row| (row.after.scope.as_deref().unwrap(), row.of(|row| row.peak_bytes).growth()))
            .collect();
        assert_eq!(growth, [("new", 50), ("gone", -7), ("a", 1)]);
        let scopes: Vec<_> = diff.scopes.iter().map(|row| row.after.scope.as_str()).collect();
        assert_eq!(scopes, ["a", "new", "gone"]);
    }

    #[test]
    fn a_run_does_not_differ_from_itself() {
        let mut run = report(&[("a", 10), ("b", 5)]);
        assert!(ReportDiff::between(&run, &run).is_empty());
        // The same op in a known and in an unknown phase.
        run.places.push(OpRow { phase: Phase::Unknown, calls: 3, ..run.places[0].clone() });
        assert!(ReportDiff::between(&run, &run).is_empty());
        let change = ReportDiff::between(&run, &report(&[("a", 10), ("b", 5)]));
        assert_eq!(
            change.places.iter().map(|row| row.of(|row| row.calls).growth()).collect::<Vec<_>>(),
            [-3]
        );
    }

    #[test]
    fn growth_is_clamped_to_64_bits() {
        assert_eq!(Change { before: 0, after: u64::MAX }.growth(), i64::MAX);
        assert_eq!(Change { before: u64::MAX, after: 0 }.growth(), -i64::MAX);
    }
}

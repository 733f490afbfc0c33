//! The totals of a tracker's finished calls, by op and scope and by thread.

use std::hash::{Hash, Hasher};

use bfc_core::OwnerId;
use rustc_hash::FxHashMap;

use super::steps::StepCount;
use crate::scope::{Phase, ScopePath};
use crate::tally::{CallTotals, Figures};

/// The finished calls of one op in one scope.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct OpTotals {
    /// The owner of the op's allocations: below `module`, named after the op and the phase.
    pub owner: OwnerId,
    /// The module of the op.
    pub module: OwnerId,
    /// The op's name.
    pub op: &'static str,
    /// The phase of the op.
    pub phase: Phase,
    /// The figures of the calls.
    pub totals: CallTotals,
}

/// The finished calls that one thread began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ThreadTotals {
    /// The thread's number in the process.
    pub thread: u64,
    /// The figures of the calls.
    pub totals: CallTotals,
}

/// The key of a row.
#[derive(Clone, Copy, Debug, Eq)]
struct RowKey {
    place: ScopePath,
    op: &'static str,
}

impl PartialEq for RowKey {
    /// An op usually has the same name at the same address. Then nothing compares the letters.
    #[inline]
    fn eq(&self, other: &Self) -> bool {
        self.place == other.place && (std::ptr::eq(self.op, other.op) || self.op == other.op)
    }
}

impl Hash for RowKey {
    /// Covers only the length of the op's name, because a scope contains few ops with names of one length.
    fn hash<H: Hasher>(&self, state: &mut H) {
        let ScopePath { module, phase } = self.place;
        state.write_usize((module.index() << 8 | self.op.len()) << 2 | phase as usize);
    }
}

/// The mean time below which only some calls of an op are timed: reading the clock twice takes 20 ns.
const SHORT_NS: u64 = 4_000;

/// Calls of which all are timed.
const ALWAYS_TIMED: u64 = 32;

/// Untimed calls after a timed call of a short op. One more is a prime number, so that the timed calls do not always hit
/// the same call of a step.
const UNTIMED_CALLS: u8 = 16;

/// The calls of an op that are not timed, because it is short.
#[derive(Clone, Copy, Debug, Default)]
struct Untimed {
    /// Calls until the next timed one.
    left: u8,
    /// Calls that the next timed one also stands for.
    before: u8,
}

/// The totals of a tracker, by op and scope.
#[derive(Debug, Default)]
pub(crate) struct Totals {
    rows: Vec<OpTotals>,
    /// By row.
    untimed: Vec<Untimed>,
    index: FxHashMap<RowKey, usize>,
    /// In ascending order of their numbers.
    threads: Vec<ThreadTotals>,
    pub(super) steps: StepCount,
}

impl Totals {
    /// Returns the row of an op in a scope, and its owner. Creates the row on first use.
    pub(crate) fn row(&mut self, place: ScopePath, op: &'static str) -> (usize, OwnerId) {
        match self.index.get(&RowKey { place, op }) {
            Some(&row) => (row, self.rows[row].owner),
            None => self.add_row(place, op),
        }
    }

    #[cold]
    fn add_row(&mut self, place: ScopePath, op: &'static str) -> (usize, OwnerId) {
        let owner = OwnerId::intern(place.module, &leaf_name(op, place.phase));
        let row = self.rows.len();
        let ScopePath { module, phase } = place;
        self.rows.push(OpTotals { owner, module, op, phase, totals: CallTotals::default() });
        self.untimed.push(Untimed::default());
        self.index.insert(RowKey { place, op }, row);
        (row, owner)
    }

    /// Begins a call. Returns the number of calls that its time stands for, or 0 if it is not timed.
    #[inline]
    pub(crate) fn begin_call(&mut self, row: usize) -> u64 {
        let untimed = &mut self.untimed[row];
        match untimed.left.checked_sub(1) {
            Some(left) => {
                untimed.left = left;
                0
            }
            None => {
                let CallTotals { calls, time_ns, .. } = self.rows[row].totals;
                let calls_before = std::mem::take(&mut untimed.before);
                if calls >= ALWAYS_TIMED && time_ns < calls.saturating_mul(SHORT_NS) {
                    *untimed = Untimed { left: UNTIMED_CALLS, before: UNTIMED_CALLS };
                }
                1 + u64::from(calls_before)
            }
        }
    }

    /// Adds a finished execution to its row and to the totals of its thread.
    pub(crate) fn fold(&mut self, row: usize, thread: u64, figures: &Figures) {
        self.rows[row].totals.add_call(figures);
        let found = self.threads.binary_search_by_key(&thread, |known| known.thread);
        let index = found.unwrap_or_else(|index| {
            self.threads.insert(index, ThreadTotals { thread, ..ThreadTotals::default() });
            index
        });
        self.threads[index].totals.add_call(figures);
    }

    /// Sets all figures to zero. Rows and owners stay, because running ops refer to them.
    pub(crate) fn reset(&mut self) {
        self.rows.iter_mut().for_each(|row| row.totals = CallTotals::default());
        self.untimed.fill(Untimed::default());
        self.threads.iter_mut().for_each(|thread| thread.totals = CallTotals::default());
    }

    /// Returns the threads that have finished an execution since the last reset.
    pub(crate) fn threads(&self) -> Vec<ThreadTotals> {
        self.threads.iter().filter(|thread| thread.totals.calls > 0).copied().collect()
    }

    pub(crate) fn rows(&self) -> &[OpTotals] {
        &self.rows
    }
}

/// Returns the owner's name of an op in a phase.
fn leaf_name(op: &str, phase: Phase) -> String {
    format!("{op}{}", phase.suffix())
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    #[test]
    fn the_time_of_short_ops_is_estimated_from_some_calls() {
        let mut totals = Totals::default();
        // Each step calls the short op twice, with different times.
        let mut timed = HashMap::new();
        for step in 0..3000_u64 {
            for (op, time_ns) in [("short", 500), ("short", 1500), ("long", 5000 + step % 7)] {
                let (row, _) = totals.row(ScopePath::default(), op);
                let calls = totals.begin_call(row);
                *timed.entry(op).or_insert(0) += u64::from(calls > 0);
                totals.fold(row, 1, &Figures { time_ns: time_ns * calls, ..Figures::default() });
            }
        }
        let [short, long] = [totals.rows()[0].totals, totals.rows()[1].totals];
        assert_eq!((short.calls, long.calls, timed["long"]), (6000, 3000, 3000));
        assert_eq!(long.time_ns, (0..3000).map(|step| 5000 + step % 7).sum::<u64>());
        assert!((5_950_000..=6_050_000).contains(&short.time_ns), "{}", short.time_ns);
        assert!((380..420).contains(&timed["short"]), "{}", timed["short"]);
        assert_eq!(totals.threads()[0].totals.time_ns, short.time_ns + long.time_ns);
    }

    #[test]
    fn an_op_has_one_row_for_each_place() {
        let mut random = 7_u64;
        let mut below = |bound: usize| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) as usize % bound
        };
        let (mut totals, mut expected) = (Totals::default(), HashMap::new());
        // Two names are equal at different addresses.
        let again = &"matmul, again"[..6];
        let ops = ["matmul", "relu", "add", again];
        for round in 0..4000 {
            if round == 2000 {
                totals.reset();
            }
            // In a fixed order for a while, as in a loop; then in random order.
            let at = if round / 100 % 2 == 0 { round % 24 } else { below(24) };
            let module = OwnerId::intern(OwnerId::ROOT, &format!("totals-{}", at % 3));
            // Each op of a module occurs in both phases.
            let phase = if at < 12 { Phase::Forward } else { Phase::Backward };
            let (place, op) = (ScopePath { module, phase }, ops[at % ops.len()]);
            let (row, owner) = totals.row(place, op);
            let next = expected.len();
            assert_eq!(row, *expected.entry((place, op)).or_insert(next));
            assert_eq!((totals.rows()[row].owner, totals.rows()[row].op), (owner, op));
            assert_eq!((totals.rows()[row].module, totals.rows()[row].phase), (module, phase));
        }
        assert_eq!(expected.len(), 18);
        assert_eq!(totals.rows().len(), expected.len());
    }
}

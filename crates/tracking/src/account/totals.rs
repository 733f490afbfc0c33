//! The totals of finished op executions.

use std::hash::{Hash, Hasher};

use bfc_core::OwnerId;
use rustc_hash::FxHashMap;

use super::steps::StepCount;
pub(crate) use crate::report::Class;
use crate::scope::{Phase, ScopePath};

/// The totals of all finished executions of one op in one scope. Sizes are granted bytes and include nested ops.
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
    /// The number of finished executions.
    pub calls: u64,
    /// The time that the host spent in them, in nanoseconds, including nested ops. 0 on a dry device. If an op takes less
    /// than 4 µs on average, every 17th call is timed.
    pub time_ns: u64,
    /// Bytes requested by all executions.
    pub requested_bytes: u64,
    /// Bytes allocated by all executions.
    pub total_bytes: u64,
    /// The most bytes that one execution held at a time, of its own allocations.
    pub high_water_bytes: u64,
    /// Bytes that were live when the execution that allocated them returned, of all executions together.
    pub outliving_bytes: u64,
    /// The most bytes that were still live when one execution returned.
    pub max_outliving_bytes: u64,
    /// The most bytes that were live in the pools of an execution when it first used them.
    pub live_before_bytes: u64,
    /// Bytes allocated as temporaries and workspaces.
    pub temporary_bytes: u64,
    /// Bytes allocated for results: outputs, activations, gradients, inputs.
    pub output_bytes: u64,
    /// Bytes allocated for state that persists between steps: parameters and optimizer state.
    pub persistent_bytes: u64,
}

impl OpTotals {
    const fn new(owner: OwnerId, place: ScopePath, op: &'static str) -> Self {
        Self {
            owner,
            module: place.module,
            op,
            phase: place.phase,
            calls: 0,
            time_ns: 0,
            requested_bytes: 0,
            total_bytes: 0,
            high_water_bytes: 0,
            outliving_bytes: 0,
            max_outliving_bytes: 0,
            live_before_bytes: 0,
            temporary_bytes: 0,
            output_bytes: 0,
            persistent_bytes: 0,
        }
    }

    /// Adds one finished execution.
    fn fold(&mut self, figures: &Figures) {
        let [temporary, output, persistent] = figures.classes;
        self.calls += 1;
        self.time_ns = self.time_ns.saturating_add(figures.time_ns);
        self.requested_bytes = self.requested_bytes.saturating_add(figures.requested());
        self.total_bytes = self.total_bytes.saturating_add(figures.total());
        self.high_water_bytes = self.high_water_bytes.max(figures.high_water);
        self.outliving_bytes = self.outliving_bytes.saturating_add(figures.outliving);
        self.max_outliving_bytes = self.max_outliving_bytes.max(figures.outliving);
        self.live_before_bytes = self.live_before_bytes.max(figures.live_before);
        self.temporary_bytes = self.temporary_bytes.saturating_add(temporary);
        self.output_bytes = self.output_bytes.saturating_add(output);
        self.persistent_bytes = self.persistent_bytes.saturating_add(persistent);
    }
}

/// The totals of all finished executions that one thread began. Sizes are granted bytes unless stated otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ThreadTotals {
    /// The thread's number in the process.
    pub thread: u64,
    /// The number of finished executions.
    pub calls: u64,
    /// The time that the host spent in them, in nanoseconds, including nested ops. 0 on a dry device.
    pub time_ns: u64,
    /// Bytes requested by all executions.
    pub requested_bytes: u64,
    /// Bytes allocated by all executions.
    pub total_bytes: u64,
    /// The most bytes that one execution held at a time, of its own allocations.
    pub high_water_bytes: u64,
    /// Bytes that were live when the execution that allocated them returned, of all executions together.
    pub outliving_bytes: u64,
}

impl ThreadTotals {
    /// Adds one finished execution.
    fn fold(&mut self, figures: &Figures) {
        self.calls += 1;
        self.time_ns = self.time_ns.saturating_add(figures.time_ns);
        self.requested_bytes = self.requested_bytes.saturating_add(figures.requested());
        self.total_bytes = self.total_bytes.saturating_add(figures.total());
        self.high_water_bytes = self.high_water_bytes.max(figures.high_water);
        self.outliving_bytes = self.outliving_bytes.saturating_add(figures.outliving);
    }
}

/// The figures of one execution, over all allocators that it used.
///
/// The high-water marks of several allocators are added. The sum is exact for one allocator and an upper bound for
/// several, because their marks may come from different moments.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Figures {
    pub(crate) time_ns: u64,
    pub(crate) high_water: u64,
    pub(crate) outliving: u64,
    pub(crate) live_before: u64,
    /// Granted bytes that were not requested.
    pub(crate) rounding: u64,
    pub(crate) classes: [u64; Class::COUNT],
}

impl Figures {
    fn total(&self) -> u64 {
        self.classes.iter().fold(0, |sum, bytes| sum.saturating_add(*bytes))
    }

    fn requested(&self) -> u64 {
        self.total().saturating_sub(self.rounding)
    }
}

/// The key of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct RowKey {
    place: ScopePath,
    op: &'static str,
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
        self.rows.push(OpTotals::new(owner, place, op));
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
                let OpTotals { calls, time_ns, .. } = self.rows[row];
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
        self.rows[row].fold(figures);
        let found = self.threads.binary_search_by_key(&thread, |known| known.thread);
        let index = found.unwrap_or_else(|index| {
            self.threads.insert(index, ThreadTotals { thread, ..ThreadTotals::default() });
            index
        });
        self.threads[index].fold(figures);
    }

    /// Sets all figures to zero. Rows and owners stay, because running ops refer to them.
    pub(crate) fn reset(&mut self) {
        for row in &mut self.rows {
            let place = ScopePath { module: row.module, phase: row.phase };
            *row = OpTotals::new(row.owner, place, row.op);
        }
        self.untimed.fill(Untimed::default());
        for thread in &mut self.threads {
            *thread = ThreadTotals { thread: thread.thread, ..ThreadTotals::default() };
        }
    }

    /// Returns the threads that have finished an execution since the last reset.
    pub(crate) fn threads(&self) -> Vec<ThreadTotals> {
        self.threads.iter().filter(|thread| thread.calls > 0).copied().collect()
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
        let [short, long] = [totals.rows()[0], totals.rows()[1]];
        assert_eq!((short.calls, long.calls, timed["long"]), (6000, 3000, 3000));
        assert_eq!(long.time_ns, (0..3000).map(|step| 5000 + step % 7).sum::<u64>());
        assert!((5_950_000..=6_050_000).contains(&short.time_ns), "{}", short.time_ns);
        assert!((380..420).contains(&timed["short"]), "{}", timed["short"]);
        assert_eq!(totals.threads()[0].time_ns, short.time_ns + long.time_ns);
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

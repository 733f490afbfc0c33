//! What the finished executions of ops add up to.

use bfc_core::OwnerId;
use bfc_core::sync::ThreadNumber;
use rustc_hash::FxHashMap;

use super::allocator::Sizes;
use crate::scope::{Phase, Place};

/// All finished executions of one op in one place. Sizes are granted bytes; what is nested in an execution is part
/// of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpTotals {
    /// The owner that the op's allocations are charged to: below `module`, called after the op and the phase.
    pub owner: OwnerId,
    /// The module that the op ran in.
    pub module: OwnerId,
    /// The op's name.
    pub op: &'static str,
    /// The phase that the op ran in.
    pub phase: Phase,
    /// How many executions have finished.
    pub calls: u64,
    /// Bytes that all executions together asked for.
    pub requested_bytes: u64,
    /// Bytes that all executions together took.
    pub total_bytes: u64,
    /// The most that one execution held at a time, of what it took itself.
    pub high_water_bytes: u64,
    /// Bytes that were still live when their execution returned, of all executions together.
    pub outliving_bytes: u64,
    /// The most bytes that were still live when one execution returned.
    pub max_outliving_bytes: u64,
    /// The most that was live in its pools, whoever held it, when an execution first turned to them.
    pub live_before_bytes: u64,
    /// Bytes taken as temporaries and workspaces.
    pub temporary_bytes: u64,
    /// Bytes taken for results: outputs, activations, gradients, inputs.
    pub output_bytes: u64,
    /// Bytes taken for what stays between steps: parameters and optimiser state.
    pub persistent_bytes: u64,
}

impl OpTotals {
    const fn new(owner: OwnerId, place: Place, op: &'static str) -> Self {
        Self {
            owner,
            module: place.module,
            op,
            phase: place.phase,
            calls: 0,
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

    /// Whether it is that of an op in a place, seen by where its name lies.
    #[inline]
    fn is_of(&self, place: Place, op: &'static str) -> bool {
        self.module == place.module && self.phase == place.phase && std::ptr::eq(self.op, op)
    }

    /// Adds one finished execution.
    fn fold(&mut self, figures: &Figures) {
        let [temporary, output, persistent] = figures.classes;
        self.calls += 1;
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

/// All finished executions that one thread began. Sizes are granted bytes unless they say otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ThreadTotals {
    /// The thread's number in the process.
    pub thread: u64,
    /// How many executions have finished.
    pub calls: u64,
    /// Bytes that all executions together asked for.
    pub requested_bytes: u64,
    /// Bytes that all executions together took.
    pub total_bytes: u64,
    /// The most that one execution held at a time, of what it took itself.
    pub high_water_bytes: u64,
    /// Bytes that were still live when their execution returned, of all executions together.
    pub outliving_bytes: u64,
}

impl ThreadTotals {
    /// Adds one finished execution.
    fn fold(&mut self, figures: &Figures) {
        self.calls += 1;
        self.requested_bytes = self.requested_bytes.saturating_add(figures.requested());
        self.total_bytes = self.total_bytes.saturating_add(figures.total());
        self.high_water_bytes = self.high_water_bytes.max(figures.high_water);
        self.outliving_bytes = self.outliving_bytes.saturating_add(figures.outliving);
    }
}

/// What one execution came to, over all allocators that it used.
///
/// The high-water marks of several allocators are added: exact for one memory, an upper bound for several, whose marks
/// need not fall on the same moment.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Figures {
    pub(crate) high_water: u64,
    pub(crate) outliving: u64,
    pub(crate) live_before: u64,
    /// Bytes granted that were not asked for.
    pub(crate) rounding: u64,
    pub(crate) classes: [u64; Class::COUNT],
}

impl Figures {
    /// Adds what one allocator counted.
    pub(crate) fn add(
        &mut self,
        sizes: &Sizes,
        live_before: u64,
        rounding: u64,
        classes: &[u64; Class::COUNT],
    ) {
        self.high_water = self.high_water.saturating_add(sizes.high_water_bytes);
        self.outliving = self.outliving.saturating_add(sizes.live_bytes);
        self.live_before = self.live_before.saturating_add(live_before);
        self.rounding = self.rounding.saturating_add(rounding);
        for (sum, bytes) in self.classes.iter_mut().zip(classes) {
            *sum = sum.saturating_add(*bytes);
        }
    }

    fn total(&self) -> u64 {
        self.classes.iter().fold(0, |sum, bytes| sum.saturating_add(*bytes))
    }

    fn requested(&self) -> u64 {
        self.total().saturating_sub(self.rounding)
    }
}

/// What an op takes memory for, as upstream tells it: scratch, results, or state that persists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    Temporary,
    Output,
    Persistent,
}

impl Class {
    pub(crate) const COUNT: usize = 3;

    pub(crate) const fn of(category: bfc_core::Category) -> Self {
        use bfc_core::Category::{
            Activation, Gradient, Input, OptimizerState, Output, Parameter, Temporary, Workspace,
        };
        match category {
            Temporary | Workspace => Self::Temporary,
            Output | Activation | Gradient | Input => Self::Output,
            Parameter | OptimizerState => Self::Persistent,
        }
    }
}

/// How many pairs of rows are known by where their names lie.
const KNOWN: usize = 256;

#[derive(Clone, Copy, Debug)]
struct KnownRow {
    place: Place,
    op: &'static str,
    row: usize,
    owner: OwnerId,
}

impl KnownRow {
    #[inline]
    fn is_of(&self, place: Place, op: &'static str) -> bool {
        self.place == place && std::ptr::eq(self.op, op)
    }
}

/// Rows that were asked for, each in the pair that its place and name say, until two others have taken that: a model's ops take
/// turns, and of a table of single rows two that share one would both be looked for in every step.
#[derive(Debug)]
struct Known(Box<[[Option<KnownRow>; 2]; KNOWN]>);

impl Known {
    #[inline]
    fn pair(&mut self, place: Place, op: &'static str) -> &mut [Option<KnownRow>; 2] {
        let name = op.as_ptr().addr() as u64;
        let key = name ^ ((place.module.index() as u64) << 34) ^ ((place.phase as u64) << 32);
        // Fibonacci hashing.
        let at = key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - KNOWN.ilog2());
        &mut self.0[at as usize]
    }
}

impl Default for Known {
    fn default() -> Self {
        Self(Box::new([[None; 2]; KNOWN]))
    }
}

/// The totals of a tracker, by op and place.
#[derive(Debug, Default)]
pub(crate) struct Totals {
    rows: Vec<OpTotals>,
    /// For each row two that came after it, the one that was last seen to be missing here first: ops of a loop come in the same order each
    /// time round, and one that runs twice is followed by itself and by another. Row 0 where there is none: whoever reads them checks.
    followers: Vec<[u32; 2]>,
    /// The row that was asked for last, and by which thread. What one thread asks for says nothing of what another one will: they
    /// would only fetch each other's rows.
    last_row: usize,
    last_asker: u64,
    index: FxHashMap<(Place, &'static str), usize>,
    /// Some of the index, by where the names lie: these are found without a look at their letters.
    known: Known,
    /// By rising number.
    threads: Vec<ThreadTotals>,
    /// Where the thread stands that finished an op last.
    last_thread: usize,
}

impl Totals {
    /// The row of an op in a place, made on first use, and its owner.
    #[inline]
    pub(crate) fn row(&mut self, place: Place, op: &'static str) -> (usize, OwnerId) {
        let asker = ThreadNumber::current().get();
        if self.last_asker != asker {
            self.last_asker = asker;
            let (row, owner) = self.find_known(place, op);
            self.last_row = row;
            return (row, owner);
        }
        for follower in self.followers.get(self.last_row).copied().unwrap_or_default() {
            let follower = follower as usize;
            if let Some(row) = self.rows.get(follower).filter(|row| row.is_of(place, op)) {
                self.last_row = follower;
                return (follower, row.owner);
            }
        }
        let (row, owner) = self.find_known(place, op);
        if let (Some(followers), Ok(row)) = (self.followers.get_mut(self.last_row), u32::try_from(row)) {
            // An op whose name lies in two places comes here each time, and is to take one place alone.
            if followers[0] != row {
                *followers = [row, followers[0]];
            }
        }
        self.last_row = row;
        (row, owner)
    }

    /// The same, whatever came before.
    #[inline(never)]
    fn find_known(&mut self, place: Place, op: &'static str) -> (usize, OwnerId) {
        for known in self.known.pair(place, op).iter().flatten() {
            if known.is_of(place, op) {
                return (known.row, known.owner);
            }
        }
        let (row, owner) = self.find_row(place, op);
        let pair = self.known.pair(place, op);
        *pair = [Some(KnownRow { place, op, row, owner }), pair[0]];
        (row, owner)
    }

    fn find_row(&mut self, place: Place, op: &'static str) -> (usize, OwnerId) {
        if let Some(&row) = self.index.get(&(place, op)) {
            return (row, self.rows[row].owner);
        }
        let owner = OwnerId::intern(place.module, &leaf_name(op, place.phase));
        let row = self.rows.len();
        self.rows.push(OpTotals::new(owner, place, op));
        self.followers.push([0; 2]);
        self.index.insert((place, op), row);
        (row, owner)
    }

    /// Adds a finished execution to its row, and to that of the thread that began it.
    pub(crate) fn fold(&mut self, row: usize, thread: u64, figures: &Figures) {
        self.rows[row].fold(figures);
        if self.threads.get(self.last_thread).is_none_or(|last| last.thread != thread) {
            let found = self.threads.binary_search_by_key(&thread, |known| known.thread);
            self.last_thread = found.unwrap_or_else(|place| {
                self.threads.insert(place, ThreadTotals { thread, ..ThreadTotals::default() });
                place
            });
        }
        self.threads[self.last_thread].fold(figures);
    }

    /// Sets all figures to zero; rows and owners stay, as running ops refer to them.
    pub(crate) fn reset(&mut self) {
        for row in &mut self.rows {
            let place = Place { module: row.module, phase: row.phase };
            *row = OpTotals::new(row.owner, place, row.op);
        }
        for thread in &mut self.threads {
            *thread = ThreadTotals { thread: thread.thread, ..ThreadTotals::default() };
        }
    }

    /// Threads that have finished an execution since the last reset.
    pub(crate) fn threads(&self) -> Vec<ThreadTotals> {
        self.threads.iter().filter(|thread| thread.calls > 0).copied().collect()
    }

    pub(crate) fn rows(&self) -> &[OpTotals] {
        &self.rows
    }
}

/// The name of the owner of an op's allocations. Forward ops keep the plain name, as most ops are forward ops.
fn leaf_name(op: &str, phase: Phase) -> String {
    match phase {
        Phase::Forward => op.to_owned(),
        Phase::Backward | Phase::Optimizer => format!("{op}:{phase}"),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    /// Against a map, which knows nothing of the order.
    #[test]
    fn an_op_has_one_row_for_each_place_in_whatever_order_they_are_asked_for() {
        let mut random = 7_u64;
        let mut below = |bound: usize| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) as usize % bound
        };
        let (mut totals, mut expected) = (Totals::default(), HashMap::new());
        // Two of them have one name at two addresses.
        let again = &"matmul, again"[..6];
        let ops = ["matmul", "relu", "add", again];
        for round in 0..4000 {
            if round == 2000 {
                totals.reset();
            }
            // The same way round for a while, as in a loop; then any.
            let at = if round / 100 % 2 == 0 { round % 24 } else { below(24) };
            let module = OwnerId::intern(OwnerId::ROOT, &format!("totals-{}", at % 3));
            // Each op of a module comes in both.
            let phase = if at < 12 { Phase::Forward } else { Phase::Backward };
            let (place, op) = (Place { module, phase }, ops[at % ops.len()]);
            let (row, owner) = if round % 17 == 0 {
                std::thread::scope(|scope| scope.spawn(|| totals.row(place, op)).join()).unwrap()
            } else {
                totals.row(place, op)
            };
            let next = expected.len();
            assert_eq!(row, *expected.entry((place, op)).or_insert(next));
            assert_eq!((totals.rows()[row].owner, totals.rows()[row].op), (owner, op));
            assert_eq!((totals.rows()[row].module, totals.rows()[row].phase), (module, phase));
        }
        assert_eq!(expected.len(), 18);
        assert_eq!((totals.rows().len(), totals.followers.len()), (expected.len(), expected.len()));
    }
}

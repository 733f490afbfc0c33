//! Counts the events of a recording into the [tallies](crate::tally) that the tracker of the run had.
//!
//! The caller passes each event once, in order, for a complete recording or for one that still grows. Owners, pools and
//! threads have the numbers of the recording. Memory grows with the number of owners, not with the number of events.
//!
//! A recording also shows what a tracker does not know: the levels of all pools together, blocks by op and by thread,
//! and how long each block was kept.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use bfc_core::{Category, Ledger, OwnerId, Tag};

use super::path::path;
use super::recording::Owner;
use crate::report::{OpRow, Report, StreamRow, ThreadRow, sum};
use crate::tally::{
    CallTotals, Counts, Figures, OpTally, PeakTally, PoolTally, SavedTotals, Tallies, thread_row,
};

/// The most running calls whose memory is counted. Only an invalid file has more.
const MAX_RUNNING: usize = 4096;

/// The time and the context of an event. The thread and the pool are indices.
#[derive(Clone, Copy, Debug)]
pub(super) struct At {
    pub(super) now: u64,
    pub(super) thread: usize,
    pub(super) pool: usize,
    pub(super) stream: u32,
}

/// A live block, as far as its account needs it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Charge {
    pub(super) bytes: u64,
    pub(super) owner: u32,
    pub(super) category: Category,
    /// The pool, as an index.
    pub(super) pool: usize,
    /// The device stream; 0 on the host.
    pub(super) stream: u32,
    /// The thread that began the call that allocated the block, as an index, and the number of the call.
    pub(super) thread: usize,
    pub(super) call: u32,
    /// When the block was saved for a backward pass; `u64::MAX` if it never was.
    pub(super) saved_at: u64,
}

impl Charge {
    fn tag(&self) -> Tag {
        Tag { owner: OwnerId::from_index(self.owner as usize), category: self.category }
    }

    fn is_saved(&self) -> bool {
        self.category == Category::Activation
    }
}

/// The number of no call.
pub(super) const NO_CALL: u32 = u32::MAX;

/// A call that runs.
#[derive(Clone, Copy, Debug)]
struct Running {
    number: u32,
    owner: u32,
    entered: u64,
    live_before: u64,
    counts: Counts,
}

/// The figures of an owner.
#[derive(Clone, Copy, Debug, Default)]
struct OfOwner {
    totals: CallTotals,
    allocations: u64,
    live_peak: u64,
}

#[derive(Clone, Debug, Default)]
struct OfThread {
    totals: CallTotals,
    allocations: u64,
    frees: u64,
    /// The innermost call is the last one.
    running: Vec<Running>,
    /// Running calls that are not counted, inside of the others.
    uncounted: u64,
}

#[derive(Debug, Default)]
struct OfPool {
    ledger: Ledger,
    peak: PeakTally,
}

/// The tallies of the events so far.
#[derive(Debug, Default)]
pub(super) struct Recount {
    owners: Vec<OfOwner>,
    pools: Vec<OfPool>,
    threads: Vec<OfThread>,
    saved: SavedTotals,
    longest_held_ns: u64,
    category_totals: [u64; Category::COUNT],
    /// The rows by pool and stream, in the order of their first blocks, and their numbers by pool and stream.
    streams: Vec<StreamRow>,
    stream_numbers: BTreeMap<(usize, u32), usize>,
    /// Live bytes of all pools together. Its owners are the rows of `streams`.
    all: Ledger,
    total_peak: PeakTally,
    calls: u32,
    running: usize,
}

impl Recount {
    /// Returns the live bytes of all pools.
    pub(super) fn live(&self) -> u64 {
        self.all.owner(OwnerId::ROOT).live
    }

    /// Counts an allocation. Live bytes must not exceed 64 bits with it.
    pub(super) fn allocate(
        &mut self,
        owners: &[Owner],
        at: At,
        (owner, category): (u32, Category),
        [requested, bytes]: [u64; 2],
    ) -> Charge {
        let At { now, thread, pool, stream } = at;
        let total = &mut self.category_totals[category.index()];
        *total = total.saturating_add(bytes);
        self.of_owner(owner).allocations += 1;
        let row = self.stream(pool, stream);
        let row = &mut self.streams[row];
        row.allocations += 1;
        row.requested_bytes = row.requested_bytes.saturating_add(requested);
        row.total_bytes = row.total_bytes.saturating_add(bytes);

        let of_thread = at_index(&mut self.threads, thread);
        of_thread.allocations += 1;
        let call = match of_thread.running.last_mut() {
            Some(call) => {
                call.counts.add(bytes, requested, category, true);
                call.number
            }
            None => {
                let mut counts = Counts::default();
                counts.add(bytes, requested, category, true);
                of_thread.totals.add_outside(&counts);
                self.of_owner(owner).totals.add_outside(&counts);
                NO_CALL
            }
        };
        let mut block = Charge { bytes, owner, category, pool, stream, thread, call, saved_at: u64::MAX };
        self.charge(owners, &block, now);
        if block.is_saved() {
            block.saved_at = now;
            self.saved.add(block.tag().owner, bytes, now);
        }
        block
    }

    /// Counts that a block is freed.
    pub(super) fn free(&mut self, block: &Charge, at: At) {
        at_index(&mut self.threads, at.thread).frees += 1;
        let row = self.stream_tag(block);
        self.all.remove(row, block.bytes);
        self.pools[block.pool].ledger.remove(block.tag(), block.bytes);
        if block.is_saved() {
            self.saved.remove(block.tag().owner, block.bytes, at.now);
            self.end_saved(block, at.now);
        }
    }

    /// Counts that a block gets another owner and category.
    pub(super) fn retag(
        &mut self,
        owners: &[Owner],
        block: &mut Charge,
        (owner, category): (u32, Category),
        now: u64,
    ) {
        let before = *block;
        (block.owner, block.category) = (owner, category);
        let (from, to, bytes) = (before.tag(), block.tag(), block.bytes);
        let [row_from, row_to] = [self.stream_tag(&before), self.stream_tag(block)];
        self.all.retag(row_from, row_to, bytes);
        let pool = &mut self.pools[block.pool];
        open(&mut pool.ledger, owners, to.owner);
        pool.ledger.retag(from, to, bytes);
        let running = self.threads.get_mut(block.thread).map(|thread| thread.running.iter_mut().rev());
        if let Some(call) = running.into_iter().flatten().find(|call| call.number == block.call) {
            call.counts.reclass(bytes, before.category, category);
        }
        match [before.is_saved(), block.is_saved()] {
            [false, true] => {
                block.saved_at = now;
                self.saved.add(to.owner, bytes, now);
            }
            [true, false] => {
                self.saved.remove(from.owner, bytes, now);
                self.end_saved(&before, now);
            }
            [true, true] if from.owner != to.owner => self.saved.charge_to(from.owner, to.owner, bytes, now),
            _ => {}
        }
    }

    /// Counts that an op begins.
    pub(super) fn enter(&mut self, owner: u32, at: At) {
        let live_before = self.pools.get(at.pool).map_or(0, |pool| pool.ledger.owner(OwnerId::ROOT).live);
        let thread = at_index(&mut self.threads, at.thread);
        if self.running >= MAX_RUNNING || thread.uncounted > 0 {
            thread.uncounted += 1;
            return;
        }
        let (number, entered) = (self.calls, at.now);
        self.calls = self.calls.wrapping_add(1) % NO_CALL;
        self.running += 1;
        thread.running.push(Running { number, owner, entered, live_before, counts: Counts::default() });
    }

    /// Counts that the innermost op of a thread ends. `live_peak` is the highest level of all pools meanwhile, if known.
    /// `is_timed` says whether it computed something.
    pub(super) fn leave(&mut self, at: At, marks: &Marks) {
        let thread = at_index(&mut self.threads, at.thread);
        if let Some(left) = thread.uncounted.checked_sub(1) {
            thread.uncounted = left;
            return;
        }
        let Some(call) = thread.running.pop() else { return };
        self.running -= 1;
        let mut figures = Figures::default();
        call.counts.add_to(&mut figures);
        let figures = Figures {
            time_ns: if marks.is_timed { at.now.saturating_sub(call.entered) } else { 0 },
            high_water: marks.high_water,
            outliving: marks.outliving,
            live_before: call.live_before,
            ..figures
        };
        thread.totals.add_call(&figures);
        let owner = self.of_owner(call.owner);
        owner.totals.add_call(&figures);
        owner.live_peak = owner.live_peak.max(marks.live_peak);
    }

    /// Counts how long a block was kept for backward. Blocks that are live at the end count up to there.
    pub(super) fn end_saved(&mut self, block: &Charge, now: u64) {
        self.longest_held_ns = self.longest_held_ns.max(now.saturating_sub(block.saved_at));
    }

    /// Counts the time of the bytes that are still kept.
    pub(super) fn advance(&mut self, now: u64) {
        self.saved.advance(now);
    }

    fn charge(&mut self, owners: &[Owner], block: &Charge, now: u64) {
        let row = self.stream_tag(block);
        self.all.add(row, block.bytes);
        let (tag, at_ns) = (block.tag(), Some(now));
        if self.all.peak() > self.total_peak.bytes {
            self.total_peak = PeakTally { bytes: self.all.peak(), owner: tag.owner, at_ns };
        }
        let pool = at_index(&mut self.pools, block.pool);
        open(&mut pool.ledger, owners, tag.owner);
        pool.ledger.add(tag, block.bytes);
        if pool.ledger.peak() > pool.peak.bytes {
            pool.peak = PeakTally { bytes: pool.ledger.peak(), owner: tag.owner, at_ns };
        }
    }

    fn of_owner(&mut self, owner: u32) -> &mut OfOwner {
        at_index(&mut self.owners, owner as usize)
    }

    /// Returns the row of a pool's memory for a stream.
    fn stream(&mut self, pool: usize, stream: u32) -> usize {
        let next = self.streams.len();
        let row = *self.stream_numbers.entry((pool, stream)).or_insert(next);
        if row == next {
            self.streams.push(StreamRow { stream, ..StreamRow::default() });
            self.all.open_below(stream_owner(row), |_| OwnerId::ROOT);
        }
        row
    }

    fn stream_tag(&mut self, block: &Charge) -> Tag {
        Tag { owner: stream_owner(self.stream(block.pool, block.stream)), category: block.category }
    }

    /// The peak, categories and saved blocks: the parts of a report whose size does not depend on the owners.
    pub(super) fn summary(&self, owners: &[Owner], pools: &[&str]) -> Report {
        let mut report = Report::default();
        self.with_tallies(owners, pools, |tallies| {
            tallies.fill_summary(&mut report);
            self.add_recorded(&mut report, tallies);
        });
        report
    }

    /// All rows.
    pub(super) fn report(&self, owners: &[Owner], pools: &[&str], threads: &[u64]) -> Report {
        let mut report = Report::default();
        self.with_tallies(owners, pools, |tallies| {
            tallies.fill(&mut report);
            self.add_recorded(&mut report, tallies);
        });
        let thread = |(number, thread): (&u64, &OfThread)| ThreadRow {
            allocations: thread.allocations,
            frees: thread.frees,
            ..thread_row(*number, &thread.totals)
        };
        report.threads = threads.iter().zip(&self.threads).map(thread).collect();
        let stream = |(&(pool, _), &number): (&(usize, u32), &usize)| {
            let (row, owner) = (self.streams[number].clone(), stream_owner(number));
            let bytes = self.all.owner(owner);
            let row = StreamRow {
                pool: pools[pool].to_owned(),
                high_water_bytes: bytes.peak,
                live_bytes: bytes.own,
                peak_bytes: self.all.own_at_peak(owner),
                ..row
            };
            (number, row)
        };
        let streams: BTreeMap<usize, StreamRow> = self.stream_numbers.iter().map(stream).collect();
        report.streams = streams.into_values().collect();
        report
    }

    /// The owners that hold most now, then those that held most at the peak; also modules that hold memory outside of
    /// ops. Only these owners get a path, because the paths of a hostile file may be long.
    pub(super) fn largest(&self, owners: &[Owner], pools: &[&str], most: usize) -> Vec<OpRow> {
        self.with_tallies(owners, pools, |tallies| {
            let mut found: Vec<_> = (0..owners.len())
                .filter_map(|number| {
                    let (owner, is_op) = (OwnerId::from_index(number), owners[number].is_op());
                    let now = sum(tallies.accounts(owner).map(|account| account.own));
                    let peak = sum(tallies.accounts(owner).map(|account| account.peak));
                    let at_peak = tallies.own_at_peak(owner);
                    let calls = self.owners.get(number).map_or(0, |owner| owner.totals.calls);
                    let is_used = now.max(at_peak) > 0 || (is_op && (calls > 0 || peak > 0));
                    is_used.then_some((Reverse((now, at_peak, peak)), number))
                })
                .collect();
            found.sort_unstable();
            let largest = found.into_iter().take(most);
            largest
                .map(|(Reverse((now, ..)), number)| tallies.op_row(&self.op(owners, number), now))
                .collect()
        })
    }

    /// Adds what only a recording knows.
    fn add_recorded(&self, report: &mut Report, tallies: &Tallies<'_>) {
        report.saved.longest_held_ns = self.longest_held_ns;
        for (row, total) in report.categories.iter_mut().zip(self.category_totals) {
            row.total_bytes = total;
        }
        let used = self.pools.iter().filter(|pool| pool.peak.bytes > 0).count();
        report.total_peak = (used > 1).then(|| tallies.peak_row("", &self.total_peak));
    }

    fn with_tallies<R>(&self, owners: &[Owner], pools: &[&str], make: impl FnOnce(&Tallies<'_>) -> R) -> R {
        let ops = (0..owners.len()).filter(|&number| owners[number].is_op());
        let pools = self.pools.iter().zip(pools).map(|(OfPool { ledger, peak }, name)| PoolTally {
            name,
            ledger,
            in_use: ledger.total(),
            peak: *peak,
        });
        make(&Tallies {
            ops: ops.map(|number| self.op(owners, number)).collect(),
            pools: pools.collect(),
            saved: &self.saved,
            parent: &|owner| parent(owners, owner),
            path: &|owner| path(owners, owner.index() as u32),
        })
    }

    /// Returns the tally of an op, or of a module's memory outside of ops.
    fn op<'a>(&'a self, owners: &'a [Owner], number: usize) -> OpTally<'a> {
        static UNUSED: OfOwner = OfOwner { totals: CallTotals::NONE, allocations: 0, live_peak: 0 };
        let (owner, found) = (OwnerId::from_index(number), &owners[number]);
        let OfOwner { totals, allocations, live_peak } = self.owners.get(number).unwrap_or(&UNUSED);
        OpTally {
            owner,
            module: if found.is_op() { parent(owners, owner) } else { owner },
            op: if found.is_op() { found.op_name() } else { "" },
            phase: found.phase.unwrap_or_default(),
            totals,
            allocations: *allocations,
            live_peak: *live_peak,
        }
    }
}

/// The figures of a call that the event of its end has.
#[derive(Clone, Copy, Debug)]
pub(super) struct Marks {
    pub(super) high_water: u64,
    pub(super) outliving: u64,
    /// The highest level of all pools during the call; 0 if it is unknown.
    pub(super) live_peak: u64,
    /// Whether the call computed something.
    pub(super) is_timed: bool,
}

/// The owner of a row of streams in the ledger over all pools.
const fn stream_owner(row: usize) -> OwnerId {
    OwnerId::from_index(row + 1)
}

fn parent(owners: &[Owner], owner: OwnerId) -> OwnerId {
    OwnerId::from_index(owners[owner.index()].parent as usize)
}

fn open(ledger: &mut Ledger, owners: &[Owner], owner: OwnerId) {
    ledger.open_below(owner, |owner| parent(owners, owner));
}

/// Returns an element, and grows the list if necessary.
fn at_index<T: Default>(list: &mut Vec<T>, index: usize) -> &mut T {
    if list.len() <= index {
        list.resize_with(index + 1, T::default);
    }
    &mut list[index]
}

#[cfg(test)]
mod tests;

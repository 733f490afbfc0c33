//! Steps on a device: work is held back as long as it is that of an earlier run, and given as a graph.
//!
//! A program runs each of its steps as it always does: it asks for memory, checks shapes, makes jobs. While it does what it did
//! in an earlier run, nothing is given to the device; where the host comes in (it copies, reads, or the step ends), all
//! that was held back is given at once. What is different is found by comparing: a kernel's job may change from run to
//! run, as learning rates, random keys and addresses do; where anything else departs from the record, what was held back is given
//! one by one, and so is the rest, which is the record of another variant. So there is nothing that a step must not do, and
//! no value that is frozen.
//!
//! The device does the same work in the same order as without steps. Work that was held back and then cannot be given is lost, although
//! those who gave it were told that all is well: from then on the run takes nothing more, and all who come are told, until it
//! has ended.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, ThreadId};
use std::time::Duration;

use super::record::{Prepared, Record, Variant};
use super::work::{Issue, Work};
use crate::compute::ComputeError;
use crate::compute::{StepCounts, StepId};

/// The most kernels and products of a run that are remembered: what goes beyond is given one by one.
const MOST_WORK: usize = 1 << 14;
/// The fewest kernels and products that are worth a graph.
const FEWEST: usize = 4;
/// How long another thread's copy waits for the run to come to a point where it settles anyway. It may never do so before the
/// copy is done: it may wait for that thread.
const PATIENCE: Duration = Duration::from_millis(10);

/// A device, and what is held back from it.
pub(crate) struct Held<D: Issue> {
    // Before the device, to which graphs belong.
    state: Mutex<State<D::Graph>>,
    /// Told when a run has settled.
    settled: Condvar,
    device: D,
}

struct State<G> {
    /// Of all steps but the one that runs.
    records: HashMap<StepId, Record<G>>,
    run: Option<Run<G>>,
    /// How often something was settled, and how many wait for that.
    settlements: u64,
    waiting: usize,
}

/// A step that runs.
struct Run<G> {
    id: StepId,
    thread: ThreadId,
    record: Record<G>,
    /// Which of the record's stretches of work this is.
    stretch: usize,
    /// The stretch so far: held back, or given already if it `departed` from the record.
    work: Vec<Work>,
    departed: bool,
    /// Whether that is all of the stretch, and none of it failed.
    whole: bool,
    /// The variants that the stretch may still become.
    candidates: Vec<usize>,
    /// How much more work is remembered.
    room: usize,
    /// Why the device did not do what was held back, once it did not.
    lost: Option<ComputeError>,
    /// Whether the device had no memory for a graph.
    lacks_room: bool,
}

impl<D: Issue> Held<D> {
    pub(crate) fn new(device: D) -> Self {
        let state = State { records: HashMap::new(), run: None, settlements: 0, waiting: 0 };
        Self { state: Mutex::new(state), settled: Condvar::new(), device }
    }

    /// The device itself, for what is not held back; who orders that after other work [`settle`](Self::settle)s first.
    pub(crate) const fn device(&self) -> &D {
        &self.device
    }

    #[cfg(feature = "emulator")]
    pub(crate) const fn device_mut(&mut self) -> &mut D {
        &mut self.device
    }

    fn state(&self) -> MutexGuard<'_, State<D::Graph>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives the device something to do, or holds it back. False for a product that the device does not know.
    ///
    /// # Safety
    /// As [`Issue::give`].
    pub(crate) unsafe fn give(&self, work: Work) -> Result<bool, ComputeError> {
        // SAFETY: as the caller says.
        match unsafe { self.give_once(work) } {
            // Without our lock: whoever gives memory back has us settle before.
            Err(error) if error.is_out_of_memory() && self.device.make_room() => {
                // SAFETY: as the caller says; the device has not done it.
                unsafe { self.give_once(work) }
            }
            given => given,
        }
    }

    /// # Safety
    /// As [`give`](Self::give).
    unsafe fn give_once(&self, work: Work) -> Result<bool, ComputeError> {
        let mut state = self.state();
        let Some(run) = &mut state.run else {
            // Threads need not wait for each other.
            drop(state);
            // SAFETY: as the caller says.
            return unsafe { self.device.give(&work) };
        };
        let holding = run.is_holding();
        // SAFETY: as the caller says.
        let given = unsafe { run.give(&self.device, work) };
        if holding && !run.is_holding() {
            self.tell(&mut state);
        }
        given
    }

    /// Gives the device all that is held back.
    pub(crate) fn settle(&self) -> Result<(), ComputeError> {
        self.settle_in(&mut self.state())
    }

    /// The same for those who cannot do anything about a failure: whoever comes next is told.
    pub(crate) fn settle_unheard(&self) {
        // The run keeps it.
        let _ = self.settle();
    }

    /// The same before this thread copies to memory that is its own: what is held back may have used it before. Another thread's
    /// run is not divided by that if it settles soon.
    pub(crate) fn settle_for_copy(&self) -> Result<(), ComputeError> {
        let mut state = self.state();
        match &state.run {
            Some(run) if run.thread == thread::current().id() => return self.settle_in(&mut state),
            Some(run) if run.is_holding() => {}
            Some(run) => return run.check(),
            None => return Ok(()),
        }
        let before = state.settlements;
        state.waiting += 1;
        let held = |state: &mut State<_>| state.settlements == before;
        let waited = self.settled.wait_timeout_while(state, PATIENCE, held);
        let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        state.waiting -= 1;
        // What has been held back since then has nothing to do with that memory.
        if state.settlements == before { self.settle_in(&mut state) } else { Ok(()) }
    }

    fn settle_in(&self, state: &mut State<D::Graph>) -> Result<(), ComputeError> {
        let Some(run) = &mut state.run else { return Ok(()) };
        let settled = run.settle(&self.device);
        self.tell(state);
        settled
    }

    /// Tells those who wait that nothing of what was held back is any more.
    fn tell(&self, state: &mut State<D::Graph>) {
        state.settlements += 1;
        if state.waiting > 0 {
            self.settled.notify_all();
        }
    }

    /// Begins a run. False if one runs already: then this one's work becomes part of that.
    pub(crate) fn begin(&self, id: StepId) -> bool {
        let state = &mut *self.state();
        if state.run.is_some() {
            return false;
        }
        let record = state.records.remove(&id).unwrap_or_default();
        let mut run = Run {
            id,
            thread: thread::current().id(),
            record,
            stretch: 0,
            work: Vec::new(),
            departed: false,
            whole: true,
            candidates: Vec::new(),
            room: MOST_WORK,
            lost: None,
            lacks_room: false,
        };
        run.open_stretch();
        state.run = Some(run);
        true
    }

    /// Ends the run, and gives the device what was held back.
    pub(crate) fn end(&self) -> Result<(), ComputeError> {
        let mut guard = self.state();
        let state = &mut *guard;
        let settled = self.settle_in(state);
        let mut lacks_room = false;
        if let Some(mut run) = state.run.take() {
            run.record.counts.runs += 1;
            lacks_room = run.lacks_room;
            state.records.insert(run.id, run.record);
        }
        drop(guard);
        if lacks_room {
            // For the next run: this one's work is given.
            self.device.make_room();
        }
        settled
    }

    /// Forgets a step that is not run any more.
    pub(crate) fn forget(&self, id: StepId) {
        let forgotten = self.state().records.remove(&id);
        drop(forgotten);
    }

    pub(crate) fn counts(&self, id: StepId) -> StepCounts {
        let state = self.state();
        let running = state.run.as_ref().filter(|run| run.id == id).map(|run| &run.record);
        running.or(state.records.get(&id)).map(|record| record.counts.clone()).unwrap_or_default()
    }
}

impl<G> Run<G> {
    /// Whether there is something that the device was not given yet.
    fn is_holding(&self) -> bool {
        !self.departed && !self.work.is_empty()
    }

    fn open_stretch(&mut self) {
        (self.departed, self.whole) = (false, true);
        self.candidates.clear();
        self.candidates.extend(0..self.record.variants(self.stretch).len());
    }

    /// Fails once work of this run is lost: what comes after it would compute on what is not there.
    fn check(&self) -> Result<(), ComputeError> {
        self.lost.clone().map_or(Ok(()), Err)
    }

    /// # Safety
    /// As [`Issue::give`].
    unsafe fn give<D: Issue<Graph = G>>(&mut self, device: &D, work: Work) -> Result<bool, ComputeError> {
        self.check()?;
        if !self.departed {
            let (variants, place) = (self.record.variants(self.stretch), self.work.len());
            let at = |variant: &usize| variants.get(*variant).and_then(|variant| variant.work.get(place));
            self.candidates.retain(|variant| at(variant).is_some_and(|there| there.fits(&work)));
            if let Some(there) = self.candidates.first().and_then(at) {
                let known = there.is_known();
                self.work.push(work.answered(known));
                return Ok(known);
            }
            self.depart(device)?;
        }
        // SAFETY: as the caller says.
        let known = unsafe { device.give(&work) }.inspect_err(|_| self.whole = false)?;
        self.record.counts.singly += u64::from(known);
        if self.whole && self.work.len() < self.room {
            self.work.push(work.answered(known));
        } else {
            (self.work, self.whole) = (Vec::new(), false);
        }
        Ok(known)
    }

    /// Gives the device what is held back, one by one. From now on the stretch is given as it comes.
    fn depart<D: Issue<Graph = G>>(&mut self, device: &D) -> Result<(), ComputeError> {
        self.departed = true;
        for work in &self.work {
            if work.is_known() {
                // SAFETY: who gave it vouched for it until the device has done what it is given later, and nothing has been given since.
                if let Err(error) = unsafe { device.give(work) } {
                    self.whole = false;
                    return Err(self.lost.insert(error).clone());
                }
                self.record.counts.singly += 1;
            }
        }
        Ok(())
    }

    /// Ends the stretch: gives the device what is held back, as a graph if it is all that a variant has.
    fn settle<D: Issue<Graph = G>>(&mut self, device: &D) -> Result<(), ComputeError> {
        self.check()?;
        if self.work.is_empty() && self.whole {
            return Ok(());
        }
        let variants = self.record.variants(self.stretch);
        let whole = |variant: &usize| variants.get(*variant).is_some_and(|v| v.work.len() == self.work.len());
        let followed = self.candidates.iter().copied().find(whole).filter(|_| !self.departed);
        let settled = match followed {
            Some(variant) => self.follow(device, variant),
            None if self.departed => Ok(()),
            None => self.depart(device),
        };
        let work = std::mem::take(&mut self.work);
        self.room = self.room.saturating_sub(work.len());
        if followed.is_none() && self.whole && settled.is_ok() {
            self.record.add(self.stretch, work);
        }
        self.stretch += 1;
        self.open_stretch();
        settled
    }

    /// Gives the device what is held back, which is all of a variant but for some jobs.
    fn follow<D: Issue<Graph = G>>(&mut self, device: &D, variant: usize) -> Result<(), ComputeError> {
        let Some(found) = self.record.touch(self.stretch, variant) else { return self.depart(device) };
        let changed = match prepare(device, found, &self.work) {
            Ok(Some(changed)) => changed,
            Ok(None) => return self.depart(device),
            Err(error) => {
                // Once more with the memory that is given back when the run has ended.
                let again = error.is_out_of_memory() && matches!(found.prepared, Prepared::NotYet);
                found.prepared = if again { Prepared::Again } else { Prepared::Never };
                self.lacks_room |= again;
                self.record.counts.refused = Some(error.to_string());
                return self.depart(device);
            }
        };
        let Prepared::Graph(graph) = &found.prepared else { return self.depart(device) };
        // SAFETY: the graph is the work held back, for which those vouch who gave it.
        if let Err(error) = unsafe { device.start(graph) } {
            return Err(self.lost.insert(error).clone());
        }
        let counts = &mut self.record.counts;
        counts.graphs += 1;
        counts.in_graphs += self.work.iter().filter(|work| work.is_known()).count() as u64;
        match changed {
            Some(changed) => counts.replaced += changed,
            None => counts.prepared += 1,
        }
        Ok(())
    }
}

/// Makes the graph of a variant, or makes it the one of this work. None if it shall have no graph; else how many kernels got
/// another job, or none if the graph is new.
fn prepare<D: Issue>(
    device: &D,
    variant: &mut Variant<D::Graph>,
    work: &[Work],
) -> Result<Option<Option<u64>>, ComputeError> {
    if work.len() < FEWEST {
        return Ok(None);
    }
    match &mut variant.prepared {
        Prepared::Never => Ok(None),
        Prepared::NotYet | Prepared::Again => {
            // SAFETY: those who gave it vouch for the work, and it was given before when the variant was recorded.
            variant.prepared = Prepared::Graph(unsafe { device.prepare(work) }?);
            variant.work.copy_from_slice(work);
            Ok(Some(None))
        }
        Prepared::Graph(graph) => {
            let mut changed = 0;
            for (place, (work, before)) in work.iter().zip(&mut variant.work).enumerate() {
                if !work.is_same(before) {
                    // SAFETY: as above.
                    unsafe { device.replace(graph, place, work) }?;
                    *before = *work;
                    changed += 1;
                }
            }
            Ok(Some(Some(changed)))
        }
    }
}

impl<D: Issue> fmt::Debug for Held<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Held").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;

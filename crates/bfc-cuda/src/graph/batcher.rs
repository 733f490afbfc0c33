//! Batches the work of repeated steps into graphs.
//!
//! A program runs each step as usual: it allocates, checks shapes and submits kernels. While the step repeats an earlier
//! run, the batcher holds its commands. Where the host needs the device (a copy, a read, the end of the step), it submits
//! the held commands as one graph. Such a stretch of commands is a segment; a segment may have several variants.
//!
//! Kernel arguments may differ between runs, as learning rates, random keys and addresses do. If anything else differs, the
//! batcher submits the held commands and the rest of the segment one by one and records them as another variant. A step
//! therefore has no restrictions, and no value is frozen.
//!
//! The device executes the same commands in the same order as without steps. If submitting held commands fails, their
//! callers have already been told that they succeeded. The run then refuses all further commands until it ends.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, ThreadId};
use std::time::Duration;

use crate::compute::{ComputeError, GraphCounts, StepId};

use super::command::{Command, Executor};
use super::record::{GraphState, StepRecord, Variant};

/// The most commands of a run that are recorded. Later commands are submitted one by one.
const MAX_COMMANDS: usize = 1 << 14;
/// The smallest segment that becomes a graph.
const MIN_GRAPH_COMMANDS: usize = 4;
/// How long a copy by another thread waits for the run to flush by itself. The run may be waiting for that thread.
const COPY_PATIENCE: Duration = Duration::from_millis(10);

/// A device and the commands that are held back from it.
pub(crate) struct GraphBatcher<D: Executor> {
    // Dropped before the device, to which its graphs belong.
    state: Mutex<RecordedSteps<D::Graph>>,
    /// Notified when a run has flushed.
    flushed: Condvar,
    device: D,
}

struct RecordedSteps<G> {
    /// The records of all steps except the running one.
    records: HashMap<StepId, StepRecord<G>>,
    run: Option<RunningStep<G>>,
    /// Flushes so far, and threads that wait for the next one.
    flushes: u64,
    waiting: usize,
}

/// A running step.
struct RunningStep<G> {
    id: StepId,
    thread: ThreadId,
    record: StepRecord<G>,
    /// The index of the current segment in the record.
    segment: usize,
    /// The commands of the segment so far. They are held, or already submitted if the segment has `diverged`.
    commands: Vec<Command>,
    diverged: bool,
    /// Whether `commands` is the whole segment and none of it failed.
    complete: bool,
    /// The variants that match the segment so far.
    candidates: Vec<usize>,
    /// How many more commands may be recorded.
    capacity: usize,
    /// Why held commands could not be submitted.
    failure: Option<ComputeError>,
    /// Whether the device had no memory for a graph.
    lacks_memory: bool,
}

impl<D: Executor> GraphBatcher<D> {
    pub(crate) fn new(device: D) -> Self {
        let state = RecordedSteps { records: HashMap::new(), run: None, flushes: 0, waiting: 0 };
        Self { state: Mutex::new(state), flushed: Condvar::new(), device }
    }

    /// The device itself. A caller that orders work after held commands must [`flush`](Self::flush) first.
    pub(crate) const fn device(&self) -> &D {
        &self.device
    }

    #[cfg(feature = "emulator")]
    pub(crate) const fn device_mut(&mut self) -> &mut D {
        &mut self.device
    }

    fn state(&self) -> MutexGuard<'_, RecordedSteps<D::Graph>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Submits a command or holds it. Returns false for a product that the device does not support.
    ///
    /// # Safety
    /// As [`Executor::submit`].
    pub(crate) unsafe fn submit(&self, command: Command) -> Result<bool, ComputeError> {
        // SAFETY: as the caller says.
        match unsafe { self.submit_once(command.clone()) } {
            // Called without the lock: releasing memory flushes this batcher.
            Err(error) if error.is_out_of_memory() && self.device.release_memory() => {
                // SAFETY: as the caller says; the device has not executed the command.
                unsafe { self.submit_once(command) }
            }
            submitted => submitted,
        }
    }

    /// # Safety
    /// As [`submit`](Self::submit).
    unsafe fn submit_once(&self, command: Command) -> Result<bool, ComputeError> {
        let mut state = self.state();
        let Some(run) = &mut state.run else {
            // Outside of steps, threads need not wait for each other.
            drop(state);
            // SAFETY: as the caller says.
            return unsafe { self.device.submit(&command) };
        };
        let was_holding = run.is_holding();
        // SAFETY: as the caller says.
        let submitted = unsafe { run.submit(&self.device, command) };
        if was_holding && !run.is_holding() {
            self.notify(&mut state);
        }
        submitted
    }

    /// Submits all held commands.
    pub(crate) fn flush(&self) -> Result<(), ComputeError> {
        self.flush_locked(&mut self.state())
    }

    /// Submits all held commands. The run keeps an error and returns it to its next caller.
    pub(crate) fn flush_keeping_error(&self) {
        let _ = self.flush();
    }

    /// Flushes before this thread copies to its own memory, which held commands may use. If another thread's run holds
    /// commands, this waits briefly for it to flush by itself, so that its segment stays whole.
    pub(crate) fn flush_before_copy(&self) -> Result<(), ComputeError> {
        let mut state = self.state();
        match &state.run {
            Some(run) if run.thread == thread::current().id() => return self.flush_locked(&mut state),
            Some(run) if run.is_holding() => {}
            Some(run) => return run.check(),
            None => return Ok(()),
        }
        let before = state.flushes;
        state.waiting += 1;
        let is_holding = |state: &mut RecordedSteps<_>| state.flushes == before;
        let waited = self.flushed.wait_timeout_while(state, COPY_PATIENCE, is_holding);
        let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        state.waiting -= 1;
        // Commands held since then cannot use the memory that is about to be filled.
        if state.flushes == before { self.flush_locked(&mut state) } else { Ok(()) }
    }

    fn flush_locked(&self, state: &mut RecordedSteps<D::Graph>) -> Result<(), ComputeError> {
        let Some(run) = &mut state.run else { return Ok(()) };
        let flushed = run.flush(&self.device);
        self.notify(state);
        flushed
    }

    /// Wakes the threads that wait for a flush.
    fn notify(&self, state: &mut RecordedSteps<D::Graph>) {
        state.flushes += 1;
        if state.waiting > 0 {
            self.flushed.notify_all();
        }
    }

    /// Begins a run. Returns false if another run is active: this one's commands then become part of that run.
    pub(crate) fn begin(&self, id: StepId) -> bool {
        let state = &mut *self.state();
        if state.run.is_some() {
            return false;
        }
        let record = state.records.remove(&id).unwrap_or_default();
        let mut run = RunningStep {
            id,
            thread: thread::current().id(),
            record,
            segment: 0,
            commands: Vec::new(),
            diverged: false,
            complete: true,
            candidates: Vec::new(),
            capacity: MAX_COMMANDS,
            failure: None,
            lacks_memory: false,
        };
        run.open_segment();
        state.run = Some(run);
        true
    }

    /// Flushes and ends the run.
    pub(crate) fn end(&self) -> Result<(), ComputeError> {
        let mut guard = self.state();
        let state = &mut *guard;
        let flushed = self.flush_locked(state);
        let mut lacks_memory = false;
        if let Some(mut run) = state.run.take() {
            run.record.counts.runs += 1;
            lacks_memory = run.lacks_memory;
            state.records.insert(run.id, run.record);
        }
        drop(guard);
        if lacks_memory {
            // For the next run: this one's commands are submitted.
            self.device.release_memory();
        }
        flushed
    }

    /// Drops the record of a step that will not run again.
    pub(crate) fn forget(&self, id: StepId) {
        let forgotten = self.state().records.remove(&id);
        drop(forgotten);
    }

    pub(crate) fn counts(&self, id: StepId) -> GraphCounts {
        let state = self.state();
        let running = state.run.as_ref().filter(|run| run.id == id).map(|run| &run.record);
        running.or(state.records.get(&id)).map(|record| record.counts.clone()).unwrap_or_default()
    }
}

impl<G> RunningStep<G> {
    /// Whether commands are held back.
    fn is_holding(&self) -> bool {
        !self.diverged && !self.commands.is_empty()
    }

    fn open_segment(&mut self) {
        (self.diverged, self.complete) = (false, true);
        self.candidates.clear();
        self.candidates.extend(0..self.record.variants(self.segment).len());
    }

    /// Fails once held commands were lost: later commands would compute on missing results.
    fn check(&self) -> Result<(), ComputeError> {
        self.failure.clone().map_or(Ok(()), Err)
    }

    /// # Safety
    /// As [`Executor::submit`].
    unsafe fn submit<D: Executor<Graph = G>>(
        &mut self,
        device: &D,
        command: Command,
    ) -> Result<bool, ComputeError> {
        self.check()?;
        if !self.diverged {
            let (variants, index) = (self.record.variants(self.segment), self.commands.len());
            let recorded =
                |variant: &usize| variants.get(*variant).and_then(|variant| variant.commands.get(index));
            self.candidates
                .retain(|variant| recorded(variant).is_some_and(|recorded| recorded.can_become(&command)));
            if let Some(recorded) = self.candidates.first().and_then(recorded) {
                let supported = recorded.is_supported();
                self.commands.push(command.with_support(supported));
                return Ok(supported);
            }
            self.diverge(device)?;
        }
        // SAFETY: as the caller says.
        let supported = unsafe { device.submit(&command) }.inspect_err(|_| self.complete = false)?;
        self.record.counts.singly += u64::from(supported);
        if self.complete && self.commands.len() < self.capacity {
            self.commands.push(command.with_support(supported));
        } else {
            (self.commands, self.complete) = (Vec::new(), false);
        }
        Ok(supported)
    }

    /// Submits the held commands one by one. The rest of the segment is submitted directly.
    fn diverge<D: Executor<Graph = G>>(&mut self, device: &D) -> Result<(), ComputeError> {
        self.diverged = true;
        for command in &self.commands {
            if command.is_supported() {
                // SAFETY: the caller of `submit` vouched for the command, and nothing was submitted since.
                if let Err(error) = unsafe { device.submit(command) } {
                    self.complete = false;
                    return Err(self.failure.insert(error).clone());
                }
                self.record.counts.singly += 1;
            }
        }
        Ok(())
    }

    /// Ends the segment: submits the held commands, as a graph if they are a whole variant.
    fn flush<D: Executor<Graph = G>>(&mut self, device: &D) -> Result<(), ComputeError> {
        self.check()?;
        if self.commands.is_empty() && self.complete {
            return Ok(());
        }
        let variants = self.record.variants(self.segment);
        let is_whole =
            |index: &usize| variants.get(*index).is_some_and(|v| v.commands.len() == self.commands.len());
        let matched = self.candidates.iter().copied().find(is_whole).filter(|_| !self.diverged);
        let flushed = match matched {
            Some(variant) => self.launch_variant(device, variant),
            None if self.diverged => Ok(()),
            None => self.diverge(device),
        };
        let commands = std::mem::take(&mut self.commands);
        self.capacity = self.capacity.saturating_sub(commands.len());
        if matched.is_none() && self.complete && flushed.is_ok() {
            self.record.add(self.segment, commands);
        }
        self.segment += 1;
        self.open_segment();
        flushed
    }

    /// Launches the graph of a variant with the arguments of the held commands.
    fn launch_variant<D: Executor<Graph = G>>(
        &mut self,
        device: &D,
        variant: usize,
    ) -> Result<(), ComputeError> {
        let Some(found) = self.record.touch(self.segment, variant) else { return self.diverge(device) };
        let prepared = match prepare(device, found, &self.commands) {
            Ok(Some(prepared)) => prepared,
            Ok(None) => return self.diverge(device),
            Err(error) => {
                // Try once more with the memory that is released when the run ends.
                let again = error.is_out_of_memory() && matches!(found.graph, GraphState::NotBuilt);
                found.graph = if again { GraphState::Retry } else { GraphState::Unavailable };
                self.lacks_memory |= again;
                self.record.counts.refused = Some(error.to_string());
                return self.diverge(device);
            }
        };
        let GraphState::Ready(graph) = &found.graph else { return self.diverge(device) };
        // SAFETY: the graph consists of the held commands, for which their callers vouched.
        if let Err(error) = unsafe { device.launch_graph(graph) } {
            return Err(self.failure.insert(error).clone());
        }
        let counts = &mut self.record.counts;
        counts.graphs += 1;
        counts.in_graphs += self.commands.iter().filter(|command| command.is_supported()).count() as u64;
        match prepared {
            Prepared::Built => counts.prepared += 1,
            Prepared::Updated(kernels) => counts.replaced += kernels,
        }
        Ok(())
    }
}

/// How a graph was made ready.
enum Prepared {
    Built,
    /// So many kernels got new arguments.
    Updated(u64),
}

/// Builds or updates the graph of a variant for these commands. Returns `None` if the variant gets no graph.
fn prepare<D: Executor>(
    device: &D,
    variant: &mut Variant<D::Graph>,
    commands: &[Command],
) -> Result<Option<Prepared>, ComputeError> {
    if commands.len() < MIN_GRAPH_COMMANDS {
        return Ok(None);
    }
    match &mut variant.graph {
        GraphState::Unavailable => Ok(None),
        GraphState::NotBuilt | GraphState::Retry => {
            // SAFETY: the callers vouched for the commands, which were submitted when the variant was recorded.
            variant.graph = GraphState::Ready(unsafe { device.build_graph(commands) }?);
            variant.commands.clone_from_slice(commands);
            Ok(Some(Prepared::Built))
        }
        GraphState::Ready(graph) => {
            let mut updated = 0;
            for (index, (command, recorded)) in commands.iter().zip(&mut variant.commands).enumerate() {
                if !command.is_identical(recorded) {
                    // SAFETY: as above.
                    unsafe { device.update_kernel(graph, index, command) }?;
                    recorded.clone_from(command);
                    updated += 1;
                }
            }
            Ok(Some(Prepared::Updated(updated)))
        }
    }
}

impl<D: Executor> fmt::Debug for GraphBatcher<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GraphBatcher").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;

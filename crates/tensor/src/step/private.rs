//! A part of the device's pool that a step has for itself.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use bfc_core::{StepMemory, StepRequests};

use crate::device::Device;

/// What became of a step's wish for memory of its own.
#[derive(Debug)]
enum Course {
    /// It is watched until two runs have asked for the same, one after the other: what the last one has asked for.
    Learning(Option<StepRequests>),
    /// There is a part, of so many bytes.
    Kept(u64),
    /// There is none, and why.
    Shared(String),
}

/// The memory of one step.
#[derive(Debug)]
pub(super) struct Private {
    course: Mutex<Course>,
    /// Whether the pool was another step's, or at another run, when the last run began.
    refused: AtomicBool,
}

/// A run during which requests are the step's own.
pub(super) struct Open<'a> {
    private: &'a Private,
    memory: &'a dyn StepMemory,
    step: u64,
}

impl Private {
    /// Memory of the device, if its pool keeps parts for steps.
    pub(super) fn of(device: &Device) -> Self {
        let course = match memory(device) {
            Some(_) => Course::Learning(None),
            None => Course::Shared(format!(
                "the pool of {device} keeps no part for a step: it is not a planned one, or has a plan already"
            )),
        };
        Self { course: Mutex::new(course), refused: AtomicBool::new(false) }
    }

    fn course(&self) -> MutexGuard<'_, Course> {
        self.course.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins a run. None if the step has no part and will get none, or another step has the pool's.
    pub(super) fn begin<'a>(&'a self, device: &'a Device, step: u64) -> Option<Open<'a>> {
        if matches!(*self.course(), Course::Shared(_)) {
            return None;
        }
        let memory = memory(device)?;
        let begun = memory.begin_run(step);
        self.refused.store(!begun, Ordering::Relaxed);
        begun.then_some(Open { private: self, memory, step })
    }

    /// The bytes of the part, or why there is none.
    pub(super) fn outcome(&self) -> (u64, Option<String>) {
        match &*self.course() {
            Course::Learning(_) if self.refused.load(Ordering::Relaxed) => {
                (0, Some("the pool is at the run of another step, or keeps a part for it".to_owned()))
            }
            Course::Learning(_) => (0, None),
            Course::Kept(bytes) => (*bytes, None),
            Course::Shared(why) => (0, Some(why.clone())),
        }
    }

    /// Gives the part back.
    pub(super) fn forget(&self, device: &Device, step: u64) {
        if let Some(memory) = memory(device) {
            memory.forget(step);
        }
    }

    /// Takes in what a whole run has asked for: the second time that it is the same, the step gets its part.
    fn learn(&self, memory: &dyn StepMemory, step: u64, requests: StepRequests) {
        let requests = match &mut *self.course() {
            Course::Learning(Some(before)) if *before == requests => requests,
            Course::Learning(before) => {
                *before = Some(requests);
                return;
            }
            Course::Kept(_) | Course::Shared(_) => return,
        };
        // Without the lock: a pool that grows calls its visitors, which may ask for the counts of this step.
        let course = keep(memory, step, &requests);
        if matches!(course, Course::Shared(_)) {
            memory.forget(step);
        }
        *self.course() = course;
    }
}

impl Open<'_> {
    /// The run has ended as it should.
    pub(super) fn end(self) {
        if let Some(requests) = self.memory.end_run(self.step) {
            self.private.learn(self.memory, self.step, requests);
        }
    }
}

impl Drop for Open<'_> {
    /// After a failure: nothing is learnt. After the end there is nothing to do.
    fn drop(&mut self) {
        let _ = self.memory.end_run(self.step);
    }
}

fn memory(device: &Device) -> Option<&dyn StepMemory> {
    device.default_allocator().ok()?.step_memory()
}

fn keep(memory: &dyn StepMemory, step: u64, requests: &StepRequests) -> Course {
    let plan = match requests.plan() {
        Ok(plan) => plan,
        Err(error) => return Course::Shared(error.to_string()),
    };
    match memory.keep(step, &plan) {
        Ok(true) => Course::Kept(plan.capacity()),
        Ok(false) => Course::Shared(format!(
            "the step asks for nothing that it gives back, or for too many blocks: {}",
            requests.len()
        )),
        Err(error) => Course::Shared(error.to_string()),
    }
}

//! The thread that sums buckets while the backward pass continues.
//!
//! The training thread sends a job for each bucket, in the order of the buckets, and receives the results in the same
//! order. It allocates and frees all memory: the thread only borrows regions, and returns each with the result.

use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;

use super::error::ParallelError;
use super::region::Region;
use super::status::{Stage, exchange};
use crate::collective::Reduce;
use crate::world::World;

/// A bucket to sum.
pub(crate) struct Job {
    pub(crate) stage: Stage,
    /// The gradients that this rank has.
    pub(crate) present: Vec<bool>,
    /// The most gradients of a bucket, which is the length of messages.
    pub(crate) most: usize,
    /// The data; `None` if this rank has no gradient of the bucket.
    pub(crate) data: Option<JobData>,
    /// Whether the ranks have already exchanged their stages, and other ranks wait for this one's data.
    pub(crate) is_agreed: bool,
}

/// The data of a bucket.
pub(crate) struct JobData {
    pub(crate) region: Arc<Region>,
    pub(crate) elements: usize,
    /// The part of each rank, if each keeps only its own sums.
    pub(crate) parts: Vec<std::ops::Range<usize>>,
    pub(crate) workspace: Arc<Region>,
    pub(crate) workspace_bytes: usize,
    pub(crate) reduce: Reduce,
}

/// The result of a job.
pub(crate) struct Done {
    /// The gradients that any rank has.
    pub(crate) present: Result<Vec<bool>, ParallelError>,
    /// Whether the gradients are sums. Otherwise another rank has gradients that this rank has none of.
    pub(crate) is_summed: bool,
    /// The memory returns to the training thread, so that only that thread frees it.
    _data: Option<JobData>,
}

/// The thread and its queues.
#[derive(Debug)]
pub(crate) struct Reducer {
    jobs: Option<Sender<Job>>,
    results: Receiver<Done>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Reducer {
    pub(crate) fn start(world: World) -> std::io::Result<Self> {
        let (jobs, inbox) = mpsc::channel::<Job>();
        let (outbox, results) = mpsc::channel();
        let thread = thread::Builder::new().name("gradients".into()).spawn(move || {
            // After a failure, the jobs of the same pass fail with the same error.
            let mut failure: Option<ParallelError> = None;
            for job in inbox {
                if job.stage == Stage::Bucket(0) {
                    failure = None;
                }
                let done = match &failure {
                    Some(error) => Done { present: Err(error.clone()), is_summed: false, _data: job.data },
                    None => perform(&world, job),
                };
                failure = done.present.as_ref().err().cloned();
                if outbox.send(done).is_err() {
                    return;
                }
            }
        })?;
        Ok(Self { jobs: Some(jobs), results, thread: Some(thread) })
    }

    pub(crate) fn submit(&self, job: Job) {
        // The thread lives as long as this value, unless it panics; then `wait` reports it.
        if let Some(jobs) = &self.jobs {
            let _ = jobs.send(job);
        }
    }

    /// Waits for the result of the oldest job; `None` if the thread has ended.
    pub(crate) fn wait(&self) -> Option<Done> {
        self.results.recv().ok()
    }
}

impl Drop for Reducer {
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Runs a job.
pub(crate) fn perform(world: &World, job: Job) -> Done {
    let present =
        if job.is_agreed { Ok(job.present) } else { exchange(world, job.stage, &job.present, job.most) };
    let wants_data = job.is_agreed || present.as_ref().is_ok_and(|present| present.contains(&true));
    let (true, Some(data)) = (wants_data, &job.data) else {
        return Done { is_summed: !wants_data, present, _data: job.data };
    };
    let summed = sum(world, data);
    Done { present: summed.and(present), is_summed: true, _data: job.data }
}

/// Sums the data of a bucket.
fn sum(world: &World, data: &JobData) -> Result<(), ParallelError> {
    // SAFETY: the pass that sent this job holds all gradients of the bucket and does not use them before the result.
    let values = unsafe { data.region.slice_mut(0..data.elements) };
    // SAFETY: only this thread uses the workspace.
    let workspace = unsafe { data.workspace.slice_mut(0..data.workspace_bytes) };
    // Memory of dry devices has no values.
    let (Some(values), Some(crate::collective::SliceMut::Bytes(workspace))) = (values, workspace) else {
        return Ok(());
    };
    let collective = world.collective();
    if data.parts.is_empty() {
        collective.all_reduce(values, data.reduce, workspace)?;
    } else {
        collective.reduce_scatter(values, &data.parts, workspace)?;
    }
    Ok(())
}

//! The thread that sums buckets while backward passes continue. A world has one such thread, so that all ranks run the
//! same operations in the same order.
//!
//! A training thread sends a job for each bucket and receives its result. Training threads allocate and free all memory.
//! The reducer only borrows regions, and returns each with the result.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Mutex};
use std::thread;

use bfc_core::{Stream, sync};

use super::error::ParallelError;
use super::region::Region;
use super::status::{Stage, exchange};
use crate::agree::Fingerprint;
use crate::collective::{Collective, SliceMut, SumOrder};
#[cfg(feature = "cuda")]
use crate::nccl::Nccl;
#[cfg(feature = "cuda")]
use crate::operation::CollectiveOperation;

/// The connections of a rank.
#[derive(Clone, Debug)]
pub(crate) struct Ranks {
    pub(crate) collective: Arc<dyn Collective>,
    /// The operations on memory of GPUs.
    #[cfg(feature = "cuda")]
    pub(crate) nccl: Option<Arc<Nccl>>,
}

/// A bucket to sum.
pub(crate) struct Job {
    pub(crate) stage: Stage,
    pub(crate) fingerprint: Fingerprint,
    /// For each gradient of the bucket, whether this rank has it.
    pub(crate) present: Vec<bool>,
    /// The data; `None` if this rank has no gradient of the bucket.
    pub(crate) data: Option<JobData>,
    /// Whether the ranks have already exchanged their stages, and other ranks wait for this one's data.
    pub(crate) is_agreed: bool,
    pub(crate) reply: Sender<Done>,
}

/// The data of a bucket.
pub(crate) struct JobData {
    pub(crate) region: Arc<Region>,
    pub(crate) elements: usize,
    /// The part of each rank, if each keeps only its own sums.
    pub(crate) parts: Vec<Range<usize>>,
    /// `None` on GPUs.
    pub(crate) workspace: Option<(Arc<Region>, usize)>,
    pub(crate) reduce: SumOrder,
    /// The stream that writes the gradients; `None` if they are in host memory.
    pub(crate) stream: Option<Arc<Stream>>,
}

/// The result of a job.
pub(crate) struct Done {
    /// For each gradient of the bucket, whether at least one rank has it.
    pub(crate) present: Result<Vec<bool>, ParallelError>,
    /// Whether the sums are complete. `false` if other ranks have gradients of the bucket and this rank sent no data.
    pub(crate) is_summed: bool,
    /// The memory returns to the training thread, so that only that thread frees it.
    _data: Option<JobData>,
}

enum Message {
    Job(Box<Job>),
    /// Drops the sender once all earlier jobs have ended.
    Flush(Sender<()>),
}

/// The thread and its queue.
#[derive(Debug)]
pub(crate) struct Reducer {
    messages: Option<Sender<Message>>,
    shared: Arc<Shared>,
    thread: Option<thread::JoinHandle<()>>,
}

/// The state that the reducer shares with training threads.
#[derive(Debug)]
struct Shared {
    ranks: Ranks,
    /// The number of jobs that are queued or running.
    waiting: AtomicUsize,
    /// The error of this pass. All ranks fail at the same job, and skip the later ones.
    failure: Mutex<Option<ParallelError>>,
}

impl Reducer {
    pub(crate) fn start(ranks: Ranks) -> std::io::Result<Self> {
        let (messages, inbox) = mpsc::channel();
        let shared = Arc::new(Shared { ranks, waiting: AtomicUsize::new(0), failure: Mutex::default() });
        let of_thread = Arc::clone(&shared);
        let thread = thread::Builder::new().name("gradients".into()).spawn(move || {
            for message in inbox {
                let job = match message {
                    Message::Job(job) => *job,
                    Message::Flush(sender) => {
                        drop(sender);
                        continue;
                    }
                };
                let reply = job.reply.clone();
                let done = of_thread.run(job);
                of_thread.waiting.fetch_sub(1, Ordering::Release);
                let _ = reply.send(done);
            }
        })?;
        Ok(Self { messages: Some(messages), shared, thread: Some(thread) })
    }

    /// Begins a pass: jobs run again after a failure. The jobs of earlier passes have ended.
    pub(crate) fn begin(&self) {
        *sync::lock(&self.shared.failure) = None;
    }

    /// Returns whether a job has failed since the pass began, so that all ranks discard it.
    pub(crate) fn has_failed(&self) -> bool {
        sync::lock(&self.shared.failure).is_some()
    }

    /// Queues a job.
    pub(crate) fn submit(&self, job: Job) {
        self.shared.waiting.fetch_add(1, Ordering::Relaxed);
        self.send(Message::Job(Box::new(job)));
    }

    /// Waits until all jobs have ended, before a training thread runs an operation itself: all ranks run operations in the
    /// order of the program.
    pub(crate) fn flush(&self) {
        if self.shared.waiting.load(Ordering::Acquire) > 0 {
            let (sender, ended) = mpsc::channel();
            self.send(Message::Flush(sender));
            let _ = ended.recv();
        }
    }

    fn send(&self, message: Message) {
        // Fails only if the thread has panicked. The receiver of the result then returns an error.
        if let Some(messages) = &self.messages {
            let _ = messages.send(message);
        }
    }

    /// Runs a job on the calling thread if the queue is empty, which avoids two context switches; otherwise queues it.
    pub(crate) fn run(&self, job: Job) {
        if self.shared.waiting.load(Ordering::Acquire) > 0 {
            return self.submit(job);
        }
        let reply = job.reply.clone();
        let _ = reply.send(self.shared.run(job));
    }
}

impl Shared {
    fn run(&self, job: Job) -> Done {
        let failure = sync::lock(&self.failure).clone();
        let done = match failure {
            Some(error) => Done { present: Err(error), is_summed: false, _data: job.data },
            None => perform(&self.ranks, job),
        };
        if let Err(error) = &done.present {
            *sync::lock(&self.failure) = Some(error.clone());
        }
        done
    }
}

impl Drop for Reducer {
    fn drop(&mut self) {
        self.messages = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Runs a job.
fn perform(ranks: &Ranks, job: Job) -> Done {
    let present = match job.is_agreed {
        true => Ok(job.present),
        false => exchange(&*ranks.collective, job.stage, &job.fingerprint, &job.present),
    };
    let wants_data = job.is_agreed || present.as_ref().is_ok_and(|present| present.contains(&true));
    let (true, Some(data)) = (wants_data, &job.data) else {
        return Done { is_summed: !wants_data, present, _data: job.data };
    };
    let summed = sum(ranks, data);
    Done { present: summed.and(present), is_summed: true, _data: job.data }
}

/// Sums the data of a bucket.
fn sum(ranks: &Ranks, data: &JobData) -> Result<(), ParallelError> {
    if let Some(stream) = &data.stream {
        return sum_on_device(ranks, data, stream);
    }
    // SAFETY: the pass that sent this job holds all gradients of the bucket and does not use them before the result.
    let values = unsafe { data.region.slice_mut(0..data.elements) };
    let workspace = data.workspace.as_ref().and_then(|(workspace, bytes)| {
        // SAFETY: only one job at a time uses the workspace: jobs run one after the other.
        unsafe { workspace.slice_mut(0..*bytes) }
    });
    // Memory of dry devices has no values.
    let (Some(values), Some(SliceMut::Bytes(workspace))) = (values, workspace) else { return Ok(()) };
    let collective = &*ranks.collective;
    if data.parts.is_empty() {
        collective.all_reduce(values, data.reduce, workspace)?;
    } else {
        collective.reduce_scatter(values, &data.parts, workspace)?;
    }
    Ok(())
}

/// Sums the data of a bucket in the memory of a GPU, after the work that `stream` has, and waits for the end.
#[cfg(feature = "cuda")]
fn sum_on_device(ranks: &Ranks, data: &JobData, stream: &Stream) -> Result<(), ParallelError> {
    let Some(nccl) = &ranks.nccl else { return Ok(()) };
    let (address, dtype, elements) = (data.region.address(), data.region.dtype(), data.elements);
    if data.parts.is_empty() {
        nccl.after(CollectiveOperation::AllReduce, stream, |stream| {
            // SAFETY: as in `sum`: the memory is live, and no later work uses it before the result. The optimizer was made
            // for this GPU.
            unsafe { nccl.all_reduce(address, elements, dtype, stream) }
        })?;
    } else {
        nccl.after(CollectiveOperation::ReduceScatter, stream, |stream| {
            // SAFETY: as above.
            unsafe { nccl.reduce_scatter(address, elements, dtype, &data.parts, stream) }
        })?;
    }
    Ok(())
}

#[cfg(not(feature = "cuda"))]
fn sum_on_device(_: &Ranks, _: &JobData, _: &Stream) -> Result<(), ParallelError> {
    Ok(())
}

//! Steps that are run again and again, given to a GPU as graphs.

mod private;

use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::backend::{StepCounts, Steps};
use crate::device::Device;
use crate::error::{Error, Result};

use self::private::Private;

/// A step that is run many times, such as one of training: a GPU is given its work as graphs, which takes the host much less time
/// than kernel by kernel.
///
/// The step is the program that it is anyway. It runs each time, makes the same requests for memory and the same errors; only
/// the kernels are held back while they are those of an earlier run, until the host copies or reads values, or the run ends:
/// then all are given to the device at once, as a graph that was prepared in that earlier run. Learning rates, random numbers
/// and addresses may be others each time: these are changed in the graph. Where a run takes another way, its kernels are given one
/// by one as without a graph, and the next such run has a graph of its own. So nothing is frozen, nothing is forbidden, and
/// results are the same to the bit.
///
/// Memory is the pool's, as for every op, and accounted for as ever. Where the same requests find the pool in the same state,
/// they get the same addresses, so that nothing needs to be changed in the graph; a part of the pool that the step has [for
/// itself](Self::with_private_memory) gives it the same addresses whatever else is in the pool. What the driver takes for graphs is its own,
/// beside the pool.
///
/// Graphs pay where a step has many small kernels. The device begins with them once the host has gone through the step, so that
/// a value read in the middle of a step divides it in two. On devices without graphs the step just runs.
///
/// ```
/// use highwater_tensor::nn::{Linear, Module};
/// use highwater_tensor::optim::{Optimizer, Sgd};
/// use highwater_tensor::{Device, Error, Reduction, Rng, StepGraph, Tensor};
///
/// let device = Device::best()?;
/// let model = Linear::new(&device, 4, 1, &Rng::new(0))?;
/// let mut optimizer = Sgd::new(model.parameters(), 0.1)?;
/// let step = StepGraph::new(&device);
/// let mut losses = Vec::new();
/// for _ in 0..10 {
///     let (x, y) = (Tensor::ones(&device, [8, 4])?, Tensor::ones(&device, [8, 1])?);
///     let loss = step.run(|| {
///         let loss = model.forward(&x)?.mse_loss(&y, Reduction::Mean)?;
///         optimizer.step(loss.backward()?)?;
///         Ok::<_, Error>(loss)
///     })?;
///     losses.push(loss.item::<f32>()?);
/// }
/// assert!(losses[9] < losses[0]);
/// # Ok::<(), Error>(())
/// ```
#[derive(Debug)]
pub struct StepGraph {
    device: Device,
    number: u64,
    private: Option<Private>,
}

impl StepGraph {
    /// A step of which nothing is known yet.
    #[must_use]
    pub fn new(device: &Device) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self { device: device.clone(), number: NEXT.fetch_add(1, Ordering::Relaxed), private: None }
    }

    /// The same step, whose memory is a part of the pool that nobody else has: each run finds its blocks at the addresses of the run
    /// before, whatever the rest of the program does to the pool between, so that only other numbers and what comes from outside of
    /// the step are changed in graphs.
    ///
    /// The pool has to be one that keeps such parts: a [planned](bfc_core::AllocatorChoice::Planned) one that has no plan yet, on any
    /// device. Once two runs, one after the other, have asked for the same, the places of their blocks are planned, and as much memory as
    /// the plan takes is kept for the step until it is dropped; the plan is the least that was found for blocks that live at the same time, and
    /// no two of these overlap. What lives longer than a run, as new parameters and results that are kept, lies beside the part, and so does
    /// what a run asks for otherwise than planned. Each block is in the accounts as without; what is free in the part is reserved
    /// memory of the pool, which other requests do not get, even where they fail without it.
    ///
    /// Where the pool keeps no parts, has one for another step, or has no room for this one, the step runs in the memory of all, and
    /// [`StepCounts::no_private_memory`] says why.
    ///
    /// ```
    /// use bfc_core::{AllocatorChoice, DeviceId};
    /// use highwater_tensor::{Error, Runtime, StepGraph, Tensor};
    ///
    /// let runtime = Runtime::builder().allocator(DeviceId::CPU, AllocatorChoice::Planned).build()?;
    /// let device = runtime.cpu()?;
    /// let x = Tensor::ones(&device, [64, 64])?;
    /// let step = StepGraph::new(&device).with_private_memory();
    /// for _ in 0..3 {
    ///     let sum = step.run(|| x.matmul(&x)?.relu()?.sum_all())?;
    ///     assert_eq!(sum.item::<f32>()?, 262144.0);
    /// }
    /// // The product and its activation.
    /// assert_eq!(step.counts().private_bytes, 2 * 64 * 64 * 4);
    /// # Ok::<(), Error>(())
    /// ```
    #[must_use]
    pub fn with_private_memory(mut self) -> Self {
        self.private.get_or_insert_with(|| Private::of(&self.device));
        self
    }

    /// Runs the step once. While another step runs on the device, in this thread or in another one, this one's work
    /// becomes part of that.
    ///
    /// # Errors
    /// What the step says; else [`Error::Device`] if the device fails with what was held back: then values computed in the step are
    /// not there.
    pub fn run<T, E: From<Error>>(&self, step: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
        let run = match self.device.backend().steps() {
            Some(steps) if steps.begin(self.number) => Some(Run(steps)),
            // Part of a run that has begun.
            Some(_) => return step(),
            None => None,
        };
        let memory = self.private.as_ref().and_then(|private| private.begin(&self.device, self.number));
        let outcome = step()?;
        run.map_or(Ok(()), Run::end)?;
        if let Some(memory) = memory {
            memory.end();
        }
        Ok(outcome)
    }

    /// How the work was given so far.
    #[must_use]
    pub fn counts(&self) -> StepCounts {
        let counts = self.device.backend().steps().map(|steps| steps.counts(self.number));
        let (private_bytes, no_private_memory) =
            self.private.as_ref().map(Private::outcome).unwrap_or_default();
        StepCounts { private_bytes, no_private_memory, ..counts.unwrap_or_default() }
    }
}

impl Drop for StepGraph {
    fn drop(&mut self) {
        if let Some(steps) = self.device.backend().steps() {
            steps.forget(self.number);
        }
        if let Some(private) = &self.private {
            private.forget(&self.device, self.number);
        }
    }
}

/// A run that has begun.
struct Run<'a>(&'a dyn Steps);

impl Run<'_> {
    fn end(self) -> Result<()> {
        ManuallyDrop::new(self).0.end()
    }
}

impl Drop for Run<'_> {
    /// The step has failed or panicked: what it has computed is given to the device all the same, since others may have seen it.
    fn drop(&mut self) {
        // The step's own failure is what is reported.
        let _ = self.0.end();
    }
}

//! Steps that are run again and again, given to a GPU as graphs.

use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::backend::{StepCounts, StepGraphs};
use crate::device::Device;
use crate::error::{Error, Result};

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
/// they get the same addresses, so that nothing needs to be changed in the graph; a [plan](crate::RuntimeBuilder::plan) gives
/// the step a part of the pool of its own. What the driver takes for graphs is its own, beside the pool.
///
/// Graphs pay where a step has many small kernels. The device begins with them once the host has gone through the step, so that
/// a value read in the middle of a step divides it in two. On devices without graphs the step just runs.
///
/// ```
/// use highwater::{Device, Error, Reduction, Rng, StepGraph, Tensor};
/// use highwater::nn::{Linear, Module};
/// use highwater::optim::{Optimizer, Sgd};
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
}

impl StepGraph {
    /// A step of which nothing is known yet.
    #[must_use]
    pub fn new(device: &Device) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self { device: device.clone(), number: NEXT.fetch_add(1, Ordering::Relaxed) }
    }

    /// Runs the step once. While another step runs on the device, in this thread or in another one, this one's work
    /// becomes part of that.
    ///
    /// # Errors
    /// What the step says; else [`Error::Device`] if the device fails with what was held back: then values computed in the step are
    /// not there.
    pub fn run<T, E: From<Error>>(&self, step: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
        let steps = self.device.backend().step_graphs();
        let Some(steps) = steps.filter(|steps| steps.begin(self.number)) else { return step() };
        let run = Run(steps);
        let outcome = step()?;
        run.end()?;
        Ok(outcome)
    }

    /// How the work was given so far.
    #[must_use]
    pub fn counts(&self) -> StepCounts {
        self.device.backend().step_graphs().map(|steps| steps.counts(self.number)).unwrap_or_default()
    }
}

impl Drop for StepGraph {
    fn drop(&mut self) {
        if let Some(steps) = self.device.backend().step_graphs() {
            steps.forget(self.number);
        }
    }
}

/// A run that has begun.
struct Run<'a>(&'a dyn StepGraphs);

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

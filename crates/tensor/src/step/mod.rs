//! Step graphs: submit the work of a repeated training step to a GPU as graphs.

use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::backend::{StepCounts, StepGraphs};
use crate::device::Device;
use crate::error::{Error, Result};

/// A step that runs many times, such as a training step. A GPU receives its work as graphs, which costs the
/// host much less time than separate kernel launches.
///
/// The step is ordinary code. Each run executes it, with the same memory requests and errors. Kernels are
/// deferred as long as they match an earlier run. When the host copies or reads values, or the run ends, all
/// deferred kernels are launched as the graph of that earlier run. Learning rates, random numbers and
/// addresses may change; they are updated in the graph. If a run deviates, its kernels are launched one by
/// one, and the next run like it has a graph of its own. Results are bit-identical to those without graphs.
///
/// Memory comes from the pool and is accounted for as usual. The same requests in the same state of the pool
/// get the same addresses, so the graph needs no update. A [packing](crate::RuntimeBuilder::packing) reserves a
/// part of the pool for the step. The driver's own memory for graphs is outside of the pool.
///
/// Graphs pay off for steps with many small kernels. The device starts a graph when the host has issued the
/// whole step; reading a value in the middle splits the step. On devices without graphs the step runs as
/// usual.
///
/// ```
/// use highwater::{Device, Error, Rng, StepGraph, Tensor};
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
///         let loss = model.forward(&x)?.mse_loss(&y)?;
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
    /// Returns a step without recorded graphs.
    #[must_use]
    pub fn new(device: &Device) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self { device: device.clone(), number: NEXT.fetch_add(1, Ordering::Relaxed) }
    }

    /// Runs the step once. If another step is running on the device, in any thread, this one becomes part of
    /// it.
    ///
    /// # Errors
    /// The error of the step; otherwise [`Error::Device`] if the device fails to run deferred kernels. Values
    /// computed in the step are invalid then.
    pub fn run<T, E: From<Error>>(&self, step: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
        let steps = self.device.backend().step_graphs();
        let Some(steps) = steps.filter(|steps| steps.begin(self.number)) else { return step() };
        let run = StepInProgress(steps);
        let outcome = step()?;
        run.end()?;
        Ok(outcome)
    }

    /// Returns the numbers of runs with and without graphs.
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

/// A run in progress.
struct StepInProgress<'a>(&'a dyn StepGraphs);

impl StepInProgress<'_> {
    fn end(self) -> Result<()> {
        Ok(ManuallyDrop::new(self).0.end()?)
    }
}

impl Drop for StepInProgress<'_> {
    /// Submits the computed work after an error or a panic of the step, because other code may use its
    /// tensors.
    fn drop(&mut self) {
        // The caller receives the error of the step, not this one.
        let _ = self.0.end();
    }
}

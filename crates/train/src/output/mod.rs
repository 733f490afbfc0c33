//! The output of a run: every finished step goes to the progress bar, to logs and to observers of the program.

mod json_log;
mod page;
mod progress;
mod tensorboard;

pub use json_log::JsonLog;
#[cfg(feature = "cli")]
pub(crate) use page::read_run;
pub use page::write_run_page;
pub use progress::ProgressBar;
pub use tensorboard::TensorBoard;

use std::fmt;
use std::sync::Arc;

use highwater_tensor::{Device, Error, Result, StepGraph, StepTime, Tensor};

use crate::figures::Figures;
use crate::metrics::read;

/// The start of a run, for observers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RunStart {
    /// The number of steps that earlier runs completed.
    pub completed: u64,
    /// The number of steps in total, if known.
    pub total: Option<u64>,
}

/// A finished step, for observers.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct StepRecord {
    /// The number of the step, from 0.
    pub step: u64,
    /// The loss; `None` on a dry device.
    pub loss: Option<f64>,
    /// Further values: the learning rate, and the results of an evaluation after this step.
    pub figures: Figures,
    /// The bytes in use in the device's default pool after the step.
    pub bytes_in_use: u64,
    /// The peak of those bytes.
    pub peak_bytes_in_use: u64,
    /// The estimated time of the step, on a dry device whose profile has a [speed](highwater_tensor::DeviceProfile::speed).
    /// `None` for the first step of a loop that has not called [`Output::start_step`].
    pub estimated: Option<StepTime>,
}

/// Receives the steps of a run: a log, a progress bar, or a part of the program.
///
/// ```
/// use highwater::train::{Observer, StepRecord};
/// struct Lowest(Option<f64>);
/// impl Observer for Lowest {
///     fn step(&mut self, record: &StepRecord) -> highwater::Result<()> {
///         self.0 = record.loss.into_iter().chain(self.0).reduce(f64::min);
///         Ok(())
///     }
/// }
/// ```
pub trait Observer {
    /// Called before the first step.
    ///
    /// # Errors
    /// An error ends the run.
    fn begin(&mut self, start: &RunStart) -> Result<()> {
        let _ = start;
        Ok(())
    }

    /// Called after each step.
    ///
    /// # Errors
    /// An error ends the run.
    fn step(&mut self, record: &StepRecord) -> Result<()>;

    /// Called after the last step.
    ///
    /// # Errors
    /// The first error of a log that could not be written: such errors do not stop the training.
    fn finish(&mut self) -> Result<()> {
        Ok(())
    }
}

/// Counts the steps of a run and passes each to the observers. [`Trainer`](crate::Trainer) uses it, and so can any loop.
///
/// ```
/// use highwater::{Device, Tensor};
/// use highwater::train::{Output, ProgressBar};
/// let device = Device::cpu()?;
/// let mut output = Output::default().with(ProgressBar::new());
/// output.begin(0, Some(10))?;
/// while output.steps() < 10 {
///     let loss = Tensor::ones(&device, ())?; // the step
///     output.step(&loss, [("learning_rate", 0.1)])?;
/// }
/// output.finish()?;
/// assert_eq!(output.loss(), Some(1.0));
/// # Ok::<(), highwater::Error>(())
/// ```
#[derive(Default)]
pub struct Output<'a> {
    observers: Vec<Box<dyn Observer + 'a>>,
    graph: Option<Arc<StepGraph>>,
    steps: u64,
    loss: Option<f64>,
    /// The estimated time of a dry device until the current step began.
    before_step: Option<StepTime>,
}

impl<'a> Output<'a> {
    /// Adds an observer.
    #[must_use]
    pub fn with(mut self, observer: impl Observer + 'a) -> Self {
        self.observers.push(Box::new(observer));
        self
    }

    /// Lets [`run`](Self::run) submit each step as graphs.
    #[must_use]
    pub fn with_graph(mut self, graph: Arc<StepGraph>) -> Self {
        self.graph = Some(graph);
        self
    }

    /// Begins the run after this number of completed steps. `total` includes them.
    ///
    /// # Errors
    /// The errors of observers.
    pub fn begin(&mut self, completed: u64, total: Option<u64>) -> Result<()> {
        self.steps = completed;
        let start = RunStart { completed, total };
        self.observers.iter_mut().try_for_each(|observer| observer.begin(&start))
    }

    /// Drops all observers.
    pub(crate) fn silence(&mut self) {
        self.observers.clear();
    }

    /// Returns the number of completed steps.
    #[must_use]
    pub const fn steps(&self) -> u64 {
        self.steps
    }

    /// Returns the loss of the last step; `None` before the first step and on a dry device.
    #[must_use]
    pub const fn loss(&self) -> Option<f64> {
        self.loss
    }

    /// Runs a step, as graphs if there is a [graph](Self::with_graph).
    ///
    /// # Errors
    /// The error of the step; see [`StepGraph::run`].
    pub fn run<T, E: From<Error>>(&self, step: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
        match &self.graph {
            Some(graph) => graph.run(step),
            None => step(),
        }
    }

    /// Counts a step and passes it to the observers.
    ///
    /// # Errors
    /// See [`Tensor::item`], and the errors of observers.
    pub fn step(&mut self, loss: &Tensor, figures: impl Into<Figures>) -> Result<()> {
        let record = self.record(loss.device(), read(loss)?, figures.into())?;
        self.emit(&record)
    }

    /// Counts a step and returns its record, which includes the memory in use now.
    pub(crate) fn record(
        &mut self,
        device: &Device,
        loss: Option<f64>,
        figures: Figures,
    ) -> Result<StepRecord> {
        let memory = device.default_allocator()?.stats();
        let (step, bytes_in_use, peak_bytes_in_use) =
            (self.steps, memory.bytes_in_use, memory.peak_bytes_in_use);
        (self.loss, self.steps) = (loss, self.steps + 1);
        let before = self.before_step;
        self.start_step(device);
        let estimated = self.before_step.zip(before).map(|(after, before)| after - before);
        Ok(StepRecord { step, loss, figures, bytes_in_use, peak_bytes_in_use, estimated })
    }

    /// Begins the next step: its [estimated time](StepRecord::estimated) does not contain the work of the dry device so far.
    /// Call it before the first step, and after other work between steps, such as an evaluation. A
    /// [`Trainer`](crate::Trainer) does this itself.
    ///
    /// ```
    /// use highwater::prelude::*;
    /// use highwater::train::{Observer, Output, StepRecord};
    /// use highwater::{DeviceProfile, Runtime};
    /// struct Times<'a>(&'a mut Vec<f64>);
    /// impl Observer for Times<'_> {
    ///     fn step(&mut self, record: &StepRecord) -> highwater::Result<()> {
    ///         self.0.extend(record.estimated.map(|time| time.seconds));
    ///         Ok(())
    ///     }
    /// }
    /// let gpu = DeviceProfile::gpu("h100-80g").ok_or("there is no such profile")?;
    /// let device = Runtime::builder().dry_profile(gpu).build()?.dry()?;
    /// let work = |size: usize| Tensor::ones(&device, [size, size])?.square()?.mean_all();
    /// let mut times = Vec::new();
    /// let mut output = Output::default().with(Times(&mut times));
    /// for _ in 0..2 {
    ///     work(4096)?; // an evaluation
    ///     output.start_step(&device);
    ///     output.step(&work(64)?, [("learning_rate", 0.1)])?;
    /// }
    /// drop(output);
    /// assert!(times.len() == 2 && (times[0] - times[1]).abs() < 1e-9);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn start_step(&mut self, device: &Device) {
        self.before_step = device.estimated_time();
    }

    /// Passes a record to the observers.
    pub(crate) fn emit(&mut self, record: &StepRecord) -> Result<()> {
        self.observers.iter_mut().try_for_each(|observer| observer.step(record))
    }

    /// Ends the run: completes logs and leaves the progress bar as it is.
    ///
    /// # Errors
    /// The first error of an observer. All observers finish.
    pub fn finish(&mut self) -> Result<()> {
        // All of them, before the first error ends the iteration.
        let finished: Vec<Result<()>> =
            self.observers.drain(..).map(|mut observer| observer.finish()).collect();
        finished.into_iter().collect()
    }
}

impl fmt::Debug for Output<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut output = f.debug_struct("Output");
        output.field("observers", &self.observers.len()).field("graph", &self.graph);
        output.field("steps", &self.steps).field("loss", &self.loss).finish()
    }
}

//! The training loop.
//!
//! ```text
//! epoch ─ step: batches → loss → backward → update      step.rs: the only place that runs a step
//!       ├ evaluation, early stopping, save              training.rs: the order of events
//!       └ output: progress bar, logs, observers
//! ```

mod draws;
mod outcome;
mod step;
mod training;

pub use outcome::{Ended, Outcome};

use std::fmt;

use highwater_distributed::World;
use highwater_nn::modules::Module;
use highwater_nn::optim::{Ema, LossScaler, Optimizer, ReduceOnPlateau, Schedule};
use highwater_tensor::{DType, Error, Result, Tensor};

use crate::figures::Figures;
use crate::fit::Plan;
use crate::output::{Observer, Output};
use crate::position::{Every, Position};
use crate::saves::Saves;
use crate::stop::EarlyStopping;
use step::Stepper;
use training::Training;

/// Trains a model: epochs, gradient accumulation, clipping, schedules, evaluation, early stopping and checkpoints.
///
/// The loss is a closure from a batch to a tensor with one element. The batches are any iterator, for example that of a
/// data set. All options have defaults: one epoch, no output, no files.
///
/// ```
/// use highwater::prelude::*;
/// use highwater::train::{Accuracy, Direction, EarlyStopping, Ended, Every, Saves, Trainer, evaluate};
///
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("run.safetensors");
/// let (device, rng) = (Device::cpu()?, Rng::new(0));
/// let data = ArrayDataset::new(vec![0.0, 0.1, 0.9, 1.0], vec![0, 0, 1, 1], 1)?;
/// let model = Linear::new(&device, 1, 2, &rng)?;
/// let mut optimizer = AdamW::new(model.parameters(), 0.1)?;
/// let outcome = Trainer::new(&model, &mut optimizer)
///     .epochs(100)
///     .schedule(Schedule::Cosine { start: 0.1, end: 0.0, steps: 200 })
///     .clip_norm(1.0)
///     .evaluate(|| evaluate(data.batches(4, &device)?, |x| model.forward(x), &mut [&mut Accuracy::default()]))
///     .early_stopping(EarlyStopping::new("accuracy").direction(Direction::Maximize).patience(5))
///     .saves(Saves::to(&path).every(Every::Epochs(10)))
///     .train(
///         |epoch| Ok(data.batches(2, &device)?.shuffled(0, epoch)),
///         |(x, y)| model.forward(x)?.cross_entropy(y),
///     )?;
/// assert_eq!(outcome.ended, Ended::StoppedEarly);
/// assert!(path.exists() && outcome.steps < 200);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Resuming
///
/// A run that [continues](Saves::resume) from a checkpoint gives the same values, bit for bit, as a run without
/// interruption: parameters, optimizer state, averages, loss scale, random generators of modules, position, early stopping and
/// the state of a plateau are restored. This requires batches that depend only on the epoch, such as
/// `shuffled(seed, epoch)`. A checkpoint may also lie within an epoch, for example after a signal. The loop then skips the
/// batches that are done, which costs their preparation; a step-indexed source ([`train_steps`](Self::train_steps)) skips
/// nothing.
///
/// # Dry runs
///
/// On a dry device the loop makes the same requests as on a real one. There are no losses and figures, so early stopping
/// never ends a run, no learning rate falls on a plateau, and nothing is saved. [`short_dry_runs`](Self::short_dry_runs)
/// leaves out epochs that repeat the second.
///
/// # Signals
///
/// After the first SIGINT (Ctrl-C) or SIGTERM the loop completes the step, saves and returns [`Ended::Interrupted`]. A second
/// signal ends the process.
pub struct Trainer<'a> {
    model: &'a dyn Module,
    stepper: Stepper<'a>,
    epochs: Option<u64>,
    learning_rate: LearningRate<'a>,
    ema: Option<&'a mut Ema>,
    evaluation: Option<Box<dyn FnMut() -> Result<Figures> + 'a>>,
    evaluate_every: Every,
    early_stopping: Option<EarlyStopping>,
    saves: Saves,
    notes: Vec<(String, String)>,
    precision: Option<DType>,
    output: Output<'a>,
    listens: bool,
    allows_nan: bool,
    short_dry_runs: bool,
    plan: Option<Plan>,
}

impl<'a> Trainer<'a> {
    /// Creates a loop that trains this model's parameters with this optimizer.
    #[must_use]
    pub fn new(model: &'a dyn Module, optimizer: &'a mut dyn Optimizer) -> Self {
        Self {
            model,
            stepper: Stepper::new(optimizer),
            epochs: None,
            learning_rate: LearningRate::OfOptimizer,
            ema: None,
            evaluation: None,
            evaluate_every: Every::Epochs(1),
            early_stopping: None,
            saves: Saves::default(),
            notes: Vec::new(),
            precision: None,
            output: Output::default(),
            listens: true,
            allows_nan: false,
            short_dry_runs: false,
            plan: None,
        }
    }

    /// Sets the number of epochs of [`train`](Self::train). A resumed run counts the epochs of earlier runs.
    #[must_use]
    pub const fn epochs(mut self, epochs: u64) -> Self {
        self.epochs = Some(epochs);
        self
    }

    /// Sets the learning rate of each step by a schedule. The last call of a method that sets learning rates counts.
    #[must_use]
    pub fn schedule(mut self, schedule: Schedule) -> Self {
        self.learning_rate = LearningRate::Schedule(schedule);
        self
    }

    /// Sets the learning rate of each step by a function, for example of the epoch.
    #[must_use]
    pub fn schedule_by(mut self, learning_rate: impl FnMut(Position) -> f64 + 'a) -> Self {
        self.learning_rate = LearningRate::Function(Box::new(learning_rate));
        self
    }

    /// Reduces the learning rate when a figure of the [evaluation](Self::evaluate) no longer improves. Checkpoints include the
    /// state. A run that continues has its own options, but requires the figure and the direction of the checkpoint.
    ///
    /// ```
    /// use highwater::prelude::*;
    /// use highwater::optim::ReduceOnPlateau;
    /// use highwater::train::{Mean, Trainer, evaluate};
    /// let device = Device::cpu()?;
    /// let model = Linear::new(&device, 1, 1, &Rng::new(0))?;
    /// let mut optimizer = Sgd::new(model.parameters(), 1.0)?;
    /// let plateau = ReduceOnPlateau::new().with_factor(0.5)?.with_patience(0);
    /// let x = Tensor::ones(&device, [4, 1])?;
    /// let loss = |x: &Tensor| model.forward(x)?.abs()?.mean_all();
    /// let outcome = Trainer::new(&model, &mut optimizer)
    ///     .epochs(4)
    ///     .evaluate(|| Ok([("validation_loss", f64::from(loss(&x)?.item::<f32>()?))].into()))
    ///     .reduce_on_plateau("validation_loss", plateau)
    ///     .train(|_| Ok([Ok(x.clone())]), loss)?;
    /// assert!(outcome.epochs == 4 && optimizer.learning_rate() < 1.0);
    /// # Ok::<(), highwater::Error>(())
    /// ```
    #[must_use]
    pub fn reduce_on_plateau(mut self, figure: impl Into<String>, plateau: ReduceOnPlateau) -> Self {
        self.learning_rate = LearningRate::OnPlateau { figure: figure.into(), plateau };
        self
    }

    /// Updates these averages after each step, and evaluates with them in place of the parameters. Checkpoints include them,
    /// and [`EarlyStopping::restore_best`] restores them too.
    ///
    /// ```
    /// use highwater::prelude::*;
    /// use highwater::optim::Ema;
    /// use highwater::train::Trainer;
    /// let device = Device::cpu()?;
    /// let model = Linear::new(&device, 1, 1, &Rng::new(0))?;
    /// let mut optimizer = Sgd::new(model.parameters(), 0.1)?;
    /// let mut ema = Ema::new(model.parameters(), 0.9)?;
    /// let x = Tensor::ones(&device, [4, 1])?;
    /// let loss = |x: &Tensor| model.forward(x)?.square()?.mean_all();
    /// let trainer = Trainer::new(&model, &mut optimizer).ema(&mut ema).epochs(3);
    /// let outcome = trainer.train(|_| Ok([Ok(x.clone())]), loss)?;
    /// let averaged = ema.with_averages(|| loss(&x)?.item::<f32>())?;
    /// assert!(outcome.steps == 3 && averaged > loss(&x)?.item::<f32>()?);
    /// # Ok::<(), highwater::Error>(())
    /// ```
    #[must_use]
    pub fn ema(mut self, ema: &'a mut Ema) -> Self {
        self.ema = Some(ema);
        self
    }

    /// Accumulates the gradients of this number of batches per step (at least 1) and steps along their mean. The last step
    /// of an epoch may have fewer.
    ///
    /// The mean is over all examples: a smaller batch counts less, if the loss is a mean over elements. If the loss ignores targets,
    /// a batch counts by its other targets. Losses that divide by another number of their data, such as a sum of class weights, do
    /// not have the gradients of the whole batch.
    #[must_use]
    pub fn accumulate(mut self, batches: u64) -> Self {
        self.stepper.accumulate = batches.max(1);
        self
    }

    /// Trains with all ranks of a world. The optimizer is one of [`World::data_parallel`] or [`World::sharded`].
    ///
    /// A step has one batch per rank, or as many as it [accumulates](Self::accumulate). The loss is the mean over all ranks,
    /// so that all end at the same step, as they do after a signal to one of them. Only rank 0 writes files and calls
    /// observers. All ranks evaluate the model and load the checkpoint.
    ///
    /// The values are those of one process that accumulates the same batches, bit for bit, if the number of batches of an
    /// epoch is a multiple of the ranks. [`train`](Self::train) requires batches of this rank only: see
    /// [`Batches::sharded`](highwater_nn::data::Batches::sharded). [`train_steps`](Self::train_steps) divides the numbers of
    /// batches among the ranks.
    ///
    /// A model with buffers, such as the moving averages of batch normalization, is refused: their values would differ
    /// between the ranks.
    #[must_use]
    pub fn world(mut self, world: &World) -> Self {
        self.stepper.world = world.clone();
        self
    }

    /// Trains with a plan of [`fit`](crate::fit()): its accumulation, precision and recomputed blocks. The batches must have the
    /// plan's [micro-batch](Plan::micro_batch), and the world its ranks.
    ///
    /// Unless its [extent](Plan::extent) is the whole training, the run ends after few steps. It writes no files, calls no
    /// observers and ignores signals then.
    #[must_use]
    pub fn plan(mut self, plan: &Plan) -> Self {
        self.stepper.accumulate = plan.accumulate.max(1);
        self.plan = Some(plan.clone());
        self
    }

    /// Limits the norm of the gradients of each step, and logs it as `gradient_norm`.
    #[must_use]
    pub const fn clip_norm(mut self, max: f64) -> Self {
        self.stepper.clip_norm = Some(max);
        self
    }

    /// Runs the steps and evaluations in [mixed precision](highwater_tensor::mixed()) of bf16 or f16: activations and their
    /// gradients are 16-bit. Parameters, their gradients, the optimizer's state, averages and checkpoints stay f32. With f32
    /// or `None`, the tensors of the model define the types.
    ///
    /// f16 requires a loss scaler. Without [`scaler`](Self::scaler), the loop uses [`LossScaler::dynamic`], also if a
    /// [plan](Self::plan) or a guard of the caller sets f16.
    ///
    /// ```
    /// use highwater::prelude::*;
    /// use highwater::train::Trainer;
    /// let device = Device::cpu()?;
    /// let model = Linear::new(&device, 4, 1, &Rng::new(0))?;
    /// let mut optimizer = AdamW::new(model.parameters(), 0.01)?;
    /// let trainer = Trainer::new(&model, &mut optimizer).precision(DType::BF16);
    /// let loss = |x: &Tensor| {
    ///     let y = model.forward(x)?;
    ///     assert_eq!(y.dtype(), DType::BF16);
    ///     y.square()?.mean_all()
    /// };
    /// let outcome = trainer.train_steps(3, |_| Tensor::ones(&device, [8, 4]), loss)?;
    /// assert_eq!((outcome.steps, model.weight().tensor().dtype()), (3, DType::F32));
    /// # Ok::<(), highwater::Error>(())
    /// ```
    #[must_use]
    pub fn precision(mut self, dtype: impl Into<Option<DType>>) -> Self {
        self.precision = dtype.into().filter(|dtype| *dtype != DType::F32);
        self
    }

    /// Scales losses so that 16-bit gradients do not underflow. The scaler skips steps with gradients that are not finite.
    #[must_use]
    pub fn scaler(mut self, scaler: impl Into<Option<LossScaler>>) -> Self {
        self.stepper.scaler = scaler.into();
        self
    }

    /// Evaluates the model after every epoch and at the end. The closure runs under `no_grad`, so networks are in evaluation
    /// mode, and in the module scope `validation`. The figures are logged with the step before.
    ///
    /// An evaluation at the end that is not due by the [interval](Self::evaluate_every) changes no learning rate and no saved
    /// state of early stopping, so that a run that continues is not changed by it.
    #[must_use]
    pub fn evaluate(mut self, evaluation: impl FnMut() -> Result<Figures> + 'a) -> Self {
        self.evaluation = Some(Box::new(evaluation));
        self
    }

    /// Changes the interval of evaluations.
    #[must_use]
    pub const fn evaluate_every(mut self, every: Every) -> Self {
        self.evaluate_every = every;
        self
    }

    /// Ends training once a figure of the evaluation no longer improves.
    #[must_use]
    pub fn early_stopping(mut self, stopping: EarlyStopping) -> Self {
        self.early_stopping = Some(stopping);
        self
    }

    /// Sets where the run saves, and the checkpoint that it continues from.
    #[must_use]
    pub fn saves(mut self, saves: Saves) -> Self {
        self.saves = saves;
        self
    }

    /// Adds a [note](highwater_nn::checkpoint::Checkpoint::with_note) to every checkpoint.
    #[must_use]
    pub fn note(mut self, name: &str, text: &str) -> Self {
        self.notes.push((name.to_owned(), text.to_owned()));
        self
    }

    /// Adds an observer of the steps, such as a [`ProgressBar`](crate::ProgressBar) or a [`JsonLog`](crate::JsonLog).
    #[must_use]
    pub fn observe(mut self, observer: impl Observer + 'a) -> Self {
        self.output = self.output.with(observer);
        self
    }

    /// Sets the output of the run, which replaces all observers.
    #[must_use]
    pub fn output(mut self, output: Output<'a>) -> Self {
        self.output = output;
        self
    }

    /// Ignores signals, for programs that handle them themselves.
    #[must_use]
    pub const fn ignore_signals(mut self) -> Self {
        self.listens = false;
        self
    }

    /// Continues after a loss that is NaN or infinite. Otherwise such a loss ends the run.
    #[must_use]
    pub const fn allow_nan(mut self, allow: bool) -> Self {
        self.allows_nan = allow;
        self
    }

    /// Limits dry runs to two epochs, or two steps of [`train_steps`](Self::train_steps). The second one includes the optimizer's
    /// state and has the peak of all later ones, if batches keep their sizes.
    #[must_use]
    pub const fn short_dry_runs(mut self) -> Self {
        self.short_dry_runs = true;
        self
    }

    /// Trains for a number of [epochs](Self::epochs). `batches` returns the batches of an epoch, and `loss` the loss of a
    /// batch.
    ///
    /// # Errors
    /// The errors of both closures, of the evaluation, the optimizer and the observers, and:
    ///
    /// - [`Error::File`](highwater_tensor::Error::File) if a checkpoint cannot be read or written.
    /// - [`Error::Mismatch`](highwater_tensor::Error::Mismatch) for a checkpoint of another model.
    /// - [`Error::BadArgument`](highwater_tensor::Error::BadArgument) before the first step for options that contradict each
    ///   other or are out of range: early stopping or a plateau without [`evaluate`](Self::evaluate), [`Saves::best`] without
    ///   early stopping, intervals of 0, an invalid [schedule](Schedule::check), and a [`precision`](Self::precision) other
    ///   than bf16, f16 and f32.
    /// - [`Error::BadArgument`](highwater_tensor::Error::BadArgument) for early stopping or a plateau on a figure that the
    ///   evaluation does not return.
    pub fn train<B, I: IntoIterator<Item = Result<B>>>(
        self,
        mut batches: impl FnMut(u64) -> Result<I>,
        loss: impl FnMut(&B) -> Result<Tensor>,
    ) -> Result<Outcome> {
        let epochs = self.epochs.unwrap_or(1);
        let size = self.stepper.world.size() as u64;
        let training = Training::begin(self, epochs, u64::MAX)?;
        training.run(|at| Ok((batches(at.epoch)?.into_iter(), at.batch / size)), loss)
    }

    /// Trains for a number of steps on batches by number, without epochs. `batch` returns the batch of a number. With
    /// [accumulation](Self::accumulate), a step uses several.
    ///
    /// # Errors
    /// See [`train`](Self::train).
    pub fn train_steps<B>(
        self,
        steps: u64,
        batch: impl Fn(u64) -> Result<B>,
        loss: impl FnMut(&B) -> Result<Tensor>,
    ) -> Result<Outcome> {
        let (rank, size) = (self.stepper.world.rank() as u64, self.stepper.world.size());
        let (training, batch) = (Training::begin(self, u64::MAX, steps)?, &batch);
        training.run(|at| Ok(((at.batch + rank..u64::MAX).step_by(size).map(batch), 0)), loss)
    }
}

/// The source of the learning rate.
enum LearningRate<'a> {
    /// The optimizer's rate, which stays.
    OfOptimizer,
    Schedule(Schedule),
    Function(Box<dyn FnMut(Position) -> f64 + 'a>),
    OnPlateau {
        figure: String,
        plateau: ReduceOnPlateau,
    },
}

impl LearningRate<'_> {
    /// Returns the rate of a step, if it depends on the step.
    fn at(&mut self, position: Position) -> Option<f64> {
        match self {
            Self::OfOptimizer | Self::OnPlateau { .. } => None,
            Self::Schedule(schedule) => Some(schedule.learning_rate(position.step)),
            Self::Function(rate) => Some(rate(position)),
        }
    }

    /// Returns the plateau, with the figure that it watches.
    const fn plateau(&self) -> Option<(&String, &ReduceOnPlateau)> {
        match self {
            Self::OnPlateau { figure, plateau } => Some((figure, plateau)),
            _ => None,
        }
    }
}

impl Trainer<'_> {
    /// Checks the options before the first step.
    fn check(&self) -> Result<()> {
        let bad = |argument, expected, got: String| {
            Err(Error::BadArgument { op: "train", argument, expected, got })
        };
        let watches = "used with Trainer::evaluate, which returns the figure that it watches";
        if let Some(stopping) = &self.early_stopping {
            stopping.check()?;
            if self.evaluation.is_none() {
                return bad("early_stopping", watches, format!("no evaluation for {:?}", stopping.figure()));
            }
        }
        match &self.learning_rate {
            LearningRate::OnPlateau { figure, .. } if self.evaluation.is_none() => {
                return bad("reduce_on_plateau", watches, format!("no evaluation for {figure:?}"));
            }
            LearningRate::Schedule(schedule) => schedule.check()?,
            _ => {}
        }
        if self.saves.best_path().is_some() && self.early_stopping.is_none() {
            let expected = "used with early stopping, which defines the best evaluation";
            return bad("best", expected, "no early stopping".to_owned());
        }
        let intervals =
            [("evaluate_every", Some(self.evaluate_every)), ("Saves::every", self.saves.interval())];
        for (argument, every) in intervals {
            if let Some(every @ (Every::Epochs(0) | Every::Steps(0))) = every {
                return bad(argument, "an interval of at least 1", every.to_string());
            }
        }
        match self.stepper.clip_norm {
            Some(max) if !(max.is_finite() && max > 0.0) => {
                bad("clip_norm", "finite and above 0", max.to_string())
            }
            _ => Ok(()),
        }
    }
}

impl fmt::Debug for Trainer<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut trainer = f.debug_struct("Trainer");
        trainer.field("epochs", &self.epochs).field("evaluate_every", &self.evaluate_every);
        trainer
            .field("precision", &self.precision)
            .field("early_stopping", &self.early_stopping)
            .field("saves", &self.saves);
        trainer.finish_non_exhaustive()
    }
}

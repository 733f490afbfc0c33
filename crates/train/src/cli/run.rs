//! A run with the options of the command line.

use std::cell::RefCell;
use std::collections::HashSet;
use std::fs::File;
use std::io::{self, BufReader, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use bfc_core::{
    AllocatorAttributes, Bytes, Damage, DeviceId, DeviceKind, DeviceScope, Environment, RegistryError,
    printable, printable_json,
};
use highwater_distributed::{DataParallel, ParallelError, Shard, SumOrder, World, WorldError};
use highwater_nn::optim::{Optimizer, ParameterGroup};
use highwater_tensor::error::FileError;
use highwater_tensor::{
    Device, DeviceProfile, DryRun, DryRunOptions, Error, Parameter, Runtime, StepGraph, StepTime, THREADS,
};
use highwater_tracking::{
    PackingLimits, PackingTextError, PlanChart, Report, RunFacts, parse_packing, write_page_with_plans,
    write_trace,
};
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::files::{OutputFile, Source};
use super::fit;
use super::options::Options;
use super::ranks::{RankPeak, peaks_text};
use super::report::{graphs, say, tables};
use crate::fit::{Fit, FitError, Plan, exchange_seconds};
use crate::output::{JsonLog, Observer, Output, ProgressBar, StepRecord, TensorBoard, read_run};

/// The memory limit for the events of `--trace`; each takes about seven bytes.
const TRACE_MEMORY: Bytes = Bytes::mib(256);

/// An error of a run's files, devices or memory.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// An error of the library.
    #[error(transparent)]
    Highwater(#[from] Error),
    /// The pool cannot be created.
    #[error(transparent)]
    Pool(#[from] RegistryError),
    /// The ranks cannot be connected.
    #[error(transparent)]
    World(#[from] WorldError),
    /// The packing is invalid.
    #[error("{}: {error}", printable(path.display()))]
    Packing {
        /// The file.
        path: PathBuf,
        /// The problem.
        error: PackingTextError,
    },
    /// No plan of `--fit` can be used.
    #[error(transparent)]
    Fit(#[from] FitError),
    /// A program wrote outside of its blocks.
    #[error("memory was corrupted {count} times; the first: {first}")]
    Damaged {
        /// The number of damaged blocks.
        count: usize,
        /// The first one.
        first: Box<Damage>,
    },
}

bfc_core::debug_as_message!(RunError);

impl AsRef<dyn std::error::Error + 'static> for RunError {
    fn as_ref(&self) -> &(dyn std::error::Error + 'static) {
        self
    }
}

impl From<FileError> for RunError {
    fn from(error: FileError) -> Self {
        Self::Highwater(error.into())
    }
}

/// A run with the options of the command line: its device, its output, and the report at its end.
#[derive(Debug)]
pub struct Run {
    name: &'static str,
    device: Device,
    /// The device's display name.
    place: String,
    options: Options,
    runtime: Runtime,
    /// The training step as a graph, if requested.
    graph: Option<Arc<StepGraph>>,
    /// The logs, until the first output takes them.
    logs: RefCell<Option<(Option<JsonLog>, Option<TensorBoard>)>>,
    json: Option<OutputFile>,
    trace: Option<OutputFile>,
    page: Option<OutputFile>,
    recording: Option<Source>,
    log: Option<Source>,
    world: World,
    /// The peaks of the ranks after this one, in a dry run of several ranks.
    peaks: Vec<RankPeak>,
    /// The plans of `--fit`, once they are known.
    found: RefCell<Option<Fit>>,
    /// The longest step of a dry run so far.
    longest_step: LongestStep,
    started: Instant,
}

impl Run {
    /// Opens the device and all output files: a run should not start if its results cannot be written.
    ///
    /// # Errors
    /// [`RunError`] if the device is missing, or a file cannot be opened.
    pub fn open(name: &'static str, options: &Options) -> Result<Self, RunError> {
        Self::open_in(name, options, options.ranks.connect()?, Vec::new())
    }

    /// Opens the run of one rank.
    pub(super) fn open_in(
        name: &'static str,
        options: &Options,
        world: World,
        peaks: Vec<RankPeak>,
    ) -> Result<Self, RunError> {
        let options = &options.for_rank(&world);
        if options.graphs && world.size() > 1 {
            let (argument, expected) = ("--graphs", "used with one process");
            let got = format!("{} ranks", world.size());
            return Err(Error::BadArgument { op: "options", argument, expected, got }.into());
        }
        let runtime = runtime(options, &world)?;
        let dry = DeviceId::new(DeviceKind::Dry, 0);
        let choice = runtime.choose(match options.dry_profile() {
            Some(_) => Some(dry),
            None => options.device.or(world.gpu()),
        })?;
        if options.log_placement {
            log_placement(&runtime, &format!("device {}: {}", choice.device, choice.reason));
        }
        let device = choice.device;
        let [json, trace, page] =
            [&options.json, &options.trace, &options.html].map(|path| OutputFile::open(path.as_deref()));
        let (json, trace, page) = (json?, trace?, page?);
        let recording = Source::new(options.record.as_deref(), page.is_some())?;
        let log = Source::new(options.log.as_deref(), page.is_some())?;
        if trace.is_some() {
            runtime.tracker().start_log(TRACE_MEMORY);
        }
        let place = options.dry_profile().map_or_else(|| device.to_string(), dry_name);
        if let Some(source) = &recording {
            let pool = runtime.registry().allocator(device.id(), AllocatorAttributes::default(), None)?;
            let facts = RunFacts::new(name)
                .with("device", &place)
                .with("allocator", pool.options.allocator.unwrap_or_default())
                .with("pool", pool.options)
                .with("threads", runtime.threads())
                .with("seed", options.seed);
            let facts = match world.size() {
                1 => facts,
                size => facts
                    .with("rank", world.rank())
                    .with("ranks", size)
                    .with("reduce", options.ranks.reduce.name())
                    .with("exchange", options.ranks.exchange),
            };
            let facts =
                options.precision.into_iter().fold(facts, |facts, dtype| facts.with("precision", dtype));
            let file = |path: &Path| runtime.tracker().start_recording(File::create(path)?, &facts);
            file(source.path()).map_err(|error| FileError::io(source.path(), &error))?;
        }
        // After the recording starts, so that both share one time axis.
        let jsonl = log.as_ref().map(|log| JsonLog::create(log.path())).transpose()?;
        let board = options.tensorboard.as_ref().map(TensorBoard::create).transpose()?;
        Ok(Self {
            name,
            place,
            options: options.clone(),
            graph: options.graphs.then(|| Arc::new(StepGraph::new(&device))),
            device,
            runtime,
            logs: RefCell::new(Some((jsonl, board))),
            json,
            trace,
            page,
            recording,
            log,
            world,
            peaks,
            found: RefCell::new(None),
            longest_step: LongestStep::default(),
            started: Instant::now(),
        })
    }

    /// Returns the device to compute on.
    #[must_use]
    pub const fn device(&self) -> &Device {
        &self.device
    }

    /// Returns the random seed.
    #[must_use]
    pub const fn seed(&self) -> u64 {
        self.options.seed
    }

    /// Returns the ranks of `--world`.
    #[must_use]
    pub const fn world(&self) -> &World {
        &self.world
    }

    /// Returns what the ranks divide among themselves, for [`World::sharded`].
    #[must_use]
    pub const fn shard(&self) -> Shard {
        self.options.ranks.shard
    }

    /// Wraps the optimizer that `make` creates from the parameters of this rank, as `--world`, `--shard`, `--reduce` and
    /// `--exchange` say. In a world of one rank, nothing changes.
    ///
    /// # Errors
    /// See [`World::sharded`].
    pub fn parallel<O: Optimizer>(
        &self,
        parameters: Vec<(String, Parameter)>,
        make: impl FnOnce(ParameterGroup) -> Result<O, Error>,
    ) -> Result<DataParallel<O>, Error> {
        self.parallel_in(&self.world, self.shard(), parameters, make)
    }

    /// Like [`parallel`](Self::parallel), for a rank of another world, such as the same rank in a dry run, and the division of
    /// memory of a [plan](Plan::shard).
    ///
    /// # Errors
    /// See [`World::sharded`].
    pub fn parallel_in<O: Optimizer>(
        &self,
        world: &World,
        shard: Shard,
        parameters: Vec<(String, Parameter)>,
        make: impl FnOnce(ParameterGroup) -> Result<O, Error>,
    ) -> Result<DataParallel<O>, Error> {
        let ranks = &self.options.ranks;
        world.sharded(shard, parameters, make)?.reduce(ranks.reduce).exchange_dtype(ranks.exchange)
    }

    /// Returns the batches of each rank per step, for [`Trainer::accumulate`](crate::Trainer::accumulate).
    #[must_use]
    pub const fn accumulate(&self) -> u64 {
        self.options.ranks.accumulate
    }

    /// Returns the plan that trains with this batch per step and rank at once, multiplied by `--accumulate`.
    #[must_use]
    pub fn whole_batch(&self, batch_size: usize) -> Plan {
        self.options.whole_batch(batch_size, &self.world)
    }

    /// Returns the plan to train with: the fastest one that fits, if `--fit` is given, else the whole batch at once.
    ///
    /// `batch_size` is the batch of a step and rank, which `--accumulate` multiplies. `program` trains a new model on any device with
    /// any plan, as the program does, but without output of its own: see [`fit`](crate::fit()). Its world is that of its rank.
    ///
    /// ```no_run
    /// # use highwater::prelude::*;
    /// # use highwater::train::{Run, RunError, Trainer};
    /// fn train(run: &Run) -> Result<(), RunError> {
    ///     let train = |device: &Device, plan: &highwater::fit::Plan| {
    ///         let model = Linear::new(device, 4, 1, &Rng::new(run.seed()))?;
    ///         let mut optimizer = AdamW::new(model.parameters(), 0.01)?;
    ///         Trainer::new(&model, &mut optimizer).plan(plan).output(run.output_of(plan)).train_steps(
    ///             100,
    ///             |step| Tensor::full(device, [plan.micro_batch, 4], step as f64 / 100.0),
    ///             |x| model.forward(x)?.square()?.mean_all(),
    ///         )
    ///     };
    ///     let plan = run.plan(64, |device, plan, _| train(device, plan).map(drop))?;
    ///     let outcome = train(run.device(), &plan)?;
    ///     run.finish(&outcome.to_string(), serde_json::json!({ "loss": outcome.loss }))
    /// }
    /// ```
    ///
    /// # Errors
    /// [`RunError::Fit`] if no plan fits. Errors of the program.
    pub fn plan(
        &self,
        batch_size: usize,
        program: impl FnMut(&Device, &Plan, &World) -> Result<(), Error>,
    ) -> Result<Plan, RunError> {
        let (world, threads) = (&self.world, self.runtime.threads());
        // Measurements must not count in the run's report.
        let device = || {
            let runtime = runtime(&self.options, world).map_err(|error| match error {
                RunError::Highwater(error) => error,
                other => Error::Custom { op: "fit", message: other.to_string() },
            })?;
            Ok(runtime.choose(self.options.device)?.device)
        };
        let (plan, found) = fit::find(&self.options, (batch_size, world, threads), device, program)?;
        *self.found.borrow_mut() = found;
        Ok(plan)
    }

    /// Returns the peak of the device's pool so far, in bytes.
    pub(super) fn peak(&self) -> Result<u64, RunError> {
        Ok(self.device.default_allocator()?.stats().peak_bytes_in_use)
    }

    /// Returns the peak of each rank; none in a world of one rank.
    fn rank_peaks(&self) -> Result<Vec<RankPeak>, RunError> {
        let (own, size) = (self.peak()?, self.world.size());
        if size == 1 {
            return Ok(Vec::new());
        }
        if self.world.is_rehearsal() {
            let own = RankPeak { rank: self.world.rank(), peak_bytes: own };
            return Ok([own].into_iter().chain(self.peaks.iter().copied()).collect());
        }
        // Exact below 2⁵³ bytes.
        let all =
            self.world.all_gather_f64([own as f64]).map_err(ParallelError::from).map_err(Error::from)?;
        Ok(all.iter().enumerate().map(|(rank, [peak])| RankPeak { rank, peak_bytes: *peak as u64 }).collect())
    }

    /// Returns the pool limit, if given.
    #[must_use]
    pub fn pool(&self) -> Option<Bytes> {
        self.options.pool_limit()
    }

    /// Returns options for dry runs: the device of `--dry-run`, else this machine.
    #[must_use]
    pub fn dry_run_options(&self) -> DryRunOptions {
        self.options.dry_run_options()
    }

    /// Returns the output of a training loop: a progress bar, and the requested logs. The first call takes the logs.
    #[must_use]
    pub fn output(&self) -> Output<'static> {
        let mut output = Output::default();
        // The ranks of a dry run follow each other.
        if !self.world.is_rehearsal() {
            output = output.with(ProgressBar::new());
        }
        if let Some((json, board)) = self.logs.borrow_mut().take() {
            output = json.into_iter().fold(output, Output::with);
            output = board.into_iter().fold(output, Output::with);
        }
        if self.options.dry_profile().is_some() {
            output = output.with(self.longest_step.clone());
        }
        self.graph.iter().fold(output, |output, graph| output.with_graph(Arc::clone(graph)))
    }

    /// Returns the estimated time of a step in a dry run for a device with a known speed, with the exchange of gradients between
    /// the ranks. `None` if the loop had no [output](Self::output).
    fn estimated_step(&self, report: &Report) -> Option<StepTime> {
        let mut step = self.longest_step.get()?;
        let gradients = self.options.ranks.exchange.size() as f64 / size_of::<f32>() as f64;
        let share = match self.shard() {
            Shard::None => gradients,
            // One way reduced gradients, the other way parameters.
            Shard::Optimizer | Shard::Gradients => (gradients + 1.0) / 2.0,
        };
        let seconds = exchange_seconds(self.options.dry_profile()?, report, self.world.size(), share);
        step.seconds += seconds;
        step.memory_seconds += seconds;
        Some(step)
    }

    /// Returns the [output](Self::output) for a run with a plan; none for a [trial](Plan::is_trial).
    #[must_use]
    pub fn output_of(&self, plan: &Plan) -> Output<'static> {
        if plan.is_trial() { Output::default() } else { self.output() }
    }

    /// Prints the result and the memory report, and writes the requested files. `results` are further fields of the JSON
    /// object: a struct, a map or the macro `json!`.
    ///
    /// # Errors
    /// [`RunError`] if a file cannot be written, and if a guard finds damaged memory.
    pub fn finish(&self, summary: &str, results: impl Serialize) -> Result<(), RunError> {
        self.finish_real(Some(summary), &|| serde_json::to_value(&results))
    }

    /// Like [`finish`](Self::finish), for a program whose output is its result: prints nothing, unless the run is a dry run
    /// or the user asks for the report with `--full`.
    ///
    /// # Errors
    /// See [`finish`](Self::finish).
    pub fn finish_quietly(&self, summary: &str, results: impl Serialize) -> Result<(), RunError> {
        let is_printed = self.options.full || self.options.dry_profile().is_some();
        self.finish_real(is_printed.then_some(summary), &|| serde_json::to_value(&results))
    }

    /// Not generic, so that it is compiled once and not in each program.
    fn finish_real(
        &self,
        summary: Option<&str>,
        results: &dyn Fn() -> serde_json::Result<Value>,
    ) -> Result<(), RunError> {
        let mut pools = vec![Arc::clone(self.device.default_allocator()?)];
        if self.device.external_memory().num_allocs > 0 {
            pools.push(self.device.external_allocator());
        }
        self.world.report_outside(self.device.tracker());
        let report = Report::new(self.device.tracker(), &pools);
        self.finish_with(summary, &report, &self.device.to_string(), &self.place, results)
    }

    /// Like [`finish`](Self::finish), for a dry run that the program made itself.
    ///
    /// # Errors
    /// See [`finish`](Self::finish).
    pub fn finish_dry<T>(
        &self,
        summary: &str,
        run: &DryRun<T>,
        results: impl Serialize,
    ) -> Result<(), RunError> {
        let results = || serde_json::to_value(&results);
        self.finish_with(Some(summary), &run.report, "dry:0", &dry_name(&run.profile), &results)
    }

    /// Not generic, so that it is compiled once and not in each program. Prints nothing without a summary.
    fn finish_with(
        &self,
        summary: Option<&str>,
        report: &Report,
        device: &str,
        place: &str,
        results: &dyn Fn() -> serde_json::Result<Value>,
    ) -> Result<(), RunError> {
        let (seconds, threads) = (self.started.elapsed().as_secs_f64(), self.runtime.threads());
        let plural = if threads == 1 { "" } else { "s" };
        let tables = tables(report, self.options.full);
        let name = self.name;
        let peaks = self.rank_peaks()?;
        let ranks = match self.world.size() {
            1 => String::new(),
            size => match self.options.ranks.reduce {
                SumOrder::Ordered => format!("rank {} of {size} of ", self.world.rank()),
                SumOrder::Library => format!("rank {} of {size}, sums in any order, of ", self.world.rank()),
            },
        };
        let say = |text: &str| if self.world.is_main() && summary.is_some() { say(text) } else { Ok(()) };
        say(&format!(
            "{ranks}{name} on {place} with {threads} thread{plural}, {seconds:.1} s: {}\n\n{tables}",
            summary.unwrap_or_default()
        ))?;
        if !peaks.is_empty() {
            say(&peaks_text(&peaks))?;
        }
        let found = self.found.borrow();
        let plans = found.as_ref().map(|found| self.peak().map(|peak| (found, peak))).transpose()?;
        if let Some((found, peak)) = plans {
            say(&fit::text(found, peak))?;
        }
        // The plans of a search have their own estimates.
        let estimated = self.estimated_step(report).filter(|_| found.is_none());
        if let Some(step) = estimated {
            say(&format!("\nestimated time of a step: {step}\n"))?;
        }
        if let Some(counts) = self.device.default_allocator()?.packing_counts() {
            say(&format!(
                "\npacked allocations: {} in {} steps; by best fit {}, unexpected {}, refused {}\n",
                counts.packed, counts.steps, counts.left, counts.unexpected, counts.refused
            ))?;
        }
        if let Some(graph) = &self.graph {
            say(&graphs(&graph.counts(), device))?;
        }
        let fields = json!({
            "example": name,
            "device": device,
            "seed": self.options.seed,
            "worker_threads": threads,
            "seconds": seconds,
        });
        let fields = match (fields, self.world.size()) {
            (Value::Object(mut fields), size) if size > 1 => {
                fields.insert("rank".into(), self.world.rank().into());
                fields.insert("shard".into(), self.shard().name().into());
                fields.insert("reduce".into(), self.options.ranks.reduce.name().into());
                fields.insert("exchange".into(), self.options.ranks.exchange.name().into());
                fields.insert("ranks".into(), json!(peaks));
                Value::Object(fields)
            }
            (fields, _) => fields,
        };
        let fields = match (fields, estimated) {
            (Value::Object(mut fields), Some(step)) => {
                let mut step_fields = json!(step);
                step_fields["limited_by"] = json!(step.limit().to_string());
                fields.insert("estimated_step".into(), step_fields);
                Value::Object(fields)
            }
            (fields, _) => fields,
        };
        let plan_fields = plans.map_or_else(Default::default, |(found, peak)| fit::fields(found, peak));
        self.write_json(fields, (plan_fields, results), report)?;
        self.write_trace()?;
        self.write_recording(plans.map(|(found, peak)| fit::chart(found, peak)).as_ref(), estimated)?;
        let damage = self.device.default_allocator()?.find_damage().unwrap_or_default();
        match damage.first() {
            Some(first) => Err(RunError::Damaged { count: damage.len(), first: Box::new(*first) }),
            None => Ok(()),
        }
    }

    fn write_json(
        &self,
        fields: Value,
        (plans, results): (Map<String, Value>, &dyn Fn() -> serde_json::Result<Value>),
        report: &Report,
    ) -> Result<(), FileError> {
        let Some(output) = &self.json else { return Ok(()) };
        output.write(|file| {
            let mut all = Map::new();
            for part in [fields, Value::Object(plans), results()?, serde_json::to_value(report)?] {
                if let Value::Object(part) = part {
                    all.extend(part);
                }
            }
            writeln!(file, "{}", printable_json(serde_json::to_string_pretty(&all)?))
        })
    }

    fn write_trace(&self) -> Result<(), RunError> {
        let Some(output) = &self.trace else { return Ok(()) };
        let log = self.runtime.tracker().take_log();
        let header = format!("trace: {} on {}, seed {}", self.name, self.device, self.options.seed);
        Ok(output.write(|file| write_trace(&log, &[header], file))?)
    }

    /// Completes the recording, and writes the page from it.
    fn write_recording(
        &self,
        plans: Option<&PlanChart>,
        estimated: Option<StepTime>,
    ) -> Result<(), RunError> {
        let Some(recording) = &self.recording else { return Ok(()) };
        let pools = [Arc::clone(self.device.default_allocator()?)];
        let finished = self.runtime.tracker().finish_recording(&pools);
        finished.map_err(|error| FileError::io(recording.path(), &error))?;
        let Some(page) = &self.page else { return Ok(()) };
        let (mut recording, log) = read_run(recording.path(), self.log.as_ref().map(Source::path))?;
        if let Some(step) = estimated {
            recording = recording.with_fact("estimated step", step);
        }
        Ok(page.write(|out| write_page_with_plans(&recording, log.as_ref(), plans, out))?)
    }
}

/// Keeps the estimated time of the longest step: the last batch of an epoch may be smaller than the others.
#[derive(Clone, Debug, Default)]
struct LongestStep(Arc<Mutex<Option<StepTime>>>);

impl LongestStep {
    fn get(&self) -> Option<StepTime> {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Observer for LongestStep {
    fn step(&mut self, record: &StepRecord) -> Result<(), Error> {
        let mut longest = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let times = longest.iter().chain(&record.estimated);
        *longest = times.copied().max_by(|one, other| one.seconds.total_cmp(&other.seconds));
        Ok(())
    }
}

/// The display name of a dry device.
fn dry_name(profile: &DeviceProfile) -> String {
    format!("dry:0 ({profile})")
}

fn runtime(options: &Options, world: &World) -> Result<Runtime, RunError> {
    let pool = options.pool_options();
    let mut builder = Runtime::builder().pool_options(DeviceScope::All, pool);
    if let Some(profile) = options.dry_profile() {
        builder = builder.dry_profile(profile.clone());
    }
    if let Some(limit) = options.pool_limit() {
        builder = builder.pool(limit);
    }
    if let Some(path) = &options.packing {
        builder = builder.packing(DeviceScope::All, Arc::new(read_packing(path)?));
    }
    // Takes precedence over the allocator of the plan.
    if let Some(allocator) = pool.allocator {
        builder = builder.allocator(DeviceScope::All, allocator);
    }
    if let Some(tf32) = options.tf32 {
        builder = builder.tf32(tf32);
    }
    if let Some(threads) = options.threads {
        builder = builder.threads(usize::try_from(threads).unwrap_or(usize::MAX));
    } else if world.size() > 1 && !world.is_rehearsal() {
        // A number that the user has set is that of each rank.
        let environment = Environment::read().map_err(Error::from)?;
        if environment.number(&THREADS).map_err(Error::from)?.is_none() {
            builder = builder.threads(world.threads());
        }
    }
    Ok(builder.build()?)
}

fn read_packing(path: &Path) -> Result<bfc_core::Packing, RunError> {
    let file = File::open(path).map_err(|error| FileError::io(path, &error))?;
    let packing = parse_packing(BufReader::new(file), &PackingLimits::default());
    packing.map_err(|error| RunError::Packing { path: path.to_owned(), error })
}

/// Prints each distinct placement once: training steps repeat.
fn log_placement(runtime: &Runtime, choice: &str) {
    let told = Mutex::new(HashSet::new());
    let tell = move |line: String| {
        if told.lock().unwrap_or_else(PoisonError::into_inner).insert(line.clone()) {
            let _ = writeln!(io::stderr(), "{}", printable(line));
        }
    };
    tell(choice.to_owned());
    runtime.on_placement(move |placement| tell(placement.to_string()));
}

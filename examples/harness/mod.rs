//! Shared parts of the examples: options, the device, progress, saved files and the final report.

#[allow(dead_code, reason = "not every example takes pictures")]
pub(crate) mod idx;
mod metrics;
mod options;
mod output;
mod page;
#[allow(dead_code, reason = "not every example trains in the same way")]
mod progress;
#[allow(dead_code, reason = "not every example keeps a model")]
mod saves;

use std::collections::HashSet;
use std::fs::File;
use std::io::{self, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use anyhow::{Context, bail};
use clap::{Args, FromArgMatches, Parser};
use highwater::alloc::{AllocatorAttributes, Bytes, DeviceId, DeviceKind, DeviceScope, Plan};
use highwater::io::write_atomically;
use highwater::tracking::{PlanLimits, RunFacts, Trace, oom_page, parse_plan};
use highwater::{Device, DeviceProfile, DryRun, DryRunOptions, Report, Runtime, StepGraph, memory_report};
use serde_json::Value;

use metrics::Metrics;
#[allow(unused_imports, reason = "not every example logs figures that may be infinite")]
pub(crate) use metrics::number;
use options::Options;
#[allow(unused_imports, reason = "not every example writes a file of its own")]
pub(crate) use options::file_to_write;
use output::{Output, merge, name, say};
use page::Page;
#[allow(unused_imports, reason = "not every example names it")]
pub(crate) use progress::Progress;
#[allow(unused_imports, reason = "not every example keeps a model")]
pub(crate) use saves::Saves;

/// The memory limit for the events of `--trace`; each takes about seven bytes.
const TRACE_MEMORY: Bytes = Bytes::mib(256);

/// The display name of a dry device.
fn dry_name(profile: &DeviceProfile) -> String {
    format!("dry:0 ({profile})")
}

/// Parses the command line (the example's own options and the shared ones), runs the example, and reports errors. The
/// exit code shows failure.
pub(crate) fn main<A: Parser>(
    example: &'static str,
    run: impl FnOnce(&A, &Session) -> anyhow::Result<()>,
) -> ExitCode {
    let (args, options) = parse::<A>();
    let result = Session::open(example, &options).and_then(|session| run(&args, &session));
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // There is no way left to report an error here.
            let _ = complain(&error, options.oom_report.as_deref());
            ExitCode::FAILURE
        }
    }
}

/// Parses the command line, or prints the usage and exits.
fn parse<A: Parser>() -> (A, Options) {
    let mut command = Options::augment_args(A::command());
    let matches = command.get_matches_mut();
    let both =
        A::from_arg_matches(&matches).and_then(|args| Ok((args, Options::from_arg_matches(&matches)?)));
    both.unwrap_or_else(|error| error.format(&mut command).exit())
}

/// Prints the error in one line, and the whole report if memory ran out, also to a file if requested.
fn complain(error: &anyhow::Error, file: Option<&Path>) -> io::Result<()> {
    let mut stderr = io::stderr().lock();
    writeln!(stderr, "error: {}", with_causes(error))?;
    let Some(report) = error.downcast_ref::<highwater::Error>().and_then(highwater::Error::out_of_memory)
    else {
        return Ok(());
    };
    writeln!(stderr, "\n{}", report.details())?;
    let Some(file) = file else { return Ok(()) };
    let html = file.extension().is_some_and(|extension| extension == "html");
    let text = if html { oom_page(report) } else { serde_json::to_string_pretty(report)? };
    let written = write_atomically(file, |out| out.write_all(text.as_bytes()));
    written.or_else(|error| writeln!(stderr, "error: {error}"))
}

/// An error with its causes in one line. Skips a cause that the text already contains, as with some libraries.
fn with_causes(error: &anyhow::Error) -> String {
    error.chain().map(ToString::to_string).fold(String::new(), |text, cause| match text.as_str() {
        "" => cause,
        before if before.contains(&cause) => text,
        before => format!("{before}: {cause}"),
    })
}

/// One run of an example.
pub(crate) struct Session {
    /// The device to compute on.
    pub(crate) device: Device,
    /// The device's display name.
    place: String,
    /// The random seed.
    pub(crate) seed: u64,
    options: Options,
    runtime: Runtime,
    metrics: Metrics,
    /// The training step as a graph, if requested.
    graph: Option<Arc<StepGraph>>,
    example: &'static str,
    json: Option<Output>,
    trace: Option<Output>,
    record: Option<PathBuf>,
    page: Option<Page>,
    started: Instant,
}

impl Session {
    fn open(example: &'static str, options: &Options) -> anyhow::Result<Self> {
        let mut builder = Runtime::builder();
        if let Some(profile) = &options.dry_run {
            builder = builder.dry_profile(profile.clone());
        }
        if let Some(limit) = options.pool {
            builder = builder.pool(limit);
        }
        if let Some(path) = &options.plan {
            builder = builder.plan(DeviceScope::All, Arc::new(read_plan(path)?));
        }
        if let Some(allocator) = options.allocator {
            builder = builder.allocator(DeviceScope::All, allocator);
        }
        if let Some(threads) = options.threads {
            builder = builder.threads(threads.into());
        }
        let runtime = builder.build()?;
        let dry = DeviceId::new(DeviceKind::Dry, 0);
        let choice = runtime.choose(if options.dry_run.is_some() { Some(dry) } else { options.device })?;
        if options.log_placement {
            log_placement(&runtime, &format!("device {}: {}", choice.device, choice.reason));
        }
        // Open the files first: a run should not start if its results cannot be written.
        let (json, trace) = (Output::open(options.json.as_deref())?, Output::open(options.trace.as_deref())?);
        let page = Page::open(options.html.as_deref(), options.record.as_deref(), options.log.as_deref())?;
        let log = page.as_ref().map(|page| page.log.path()).or(options.log.as_deref());
        let record = page.as_ref().map(|page| page.recording.path()).or(options.record.as_deref());
        if trace.is_some() {
            runtime.tracker().start_log(TRACE_MEMORY);
        }
        if let Some(path) = record {
            let pool =
                runtime.registry().allocator(choice.device.id(), AllocatorAttributes::default(), None)?;
            let facts = RunFacts::new(example)
                .with("device", options.dry_run.as_ref().map_or_else(|| choice.device.to_string(), dry_name))
                .with("allocator", pool.options.allocator.unwrap_or_default())
                .with("pool", pool.options)
                .with("threads", runtime.threads())
                .with("seed", options.seed);
            let file = File::create(path).with_context(|| name(path))?;
            runtime.tracker().start_recording(file, &facts).with_context(|| name(path))?;
        }
        // After the recording starts, so that both share one time axis.
        let metrics = Metrics::open(log)?;
        let (device, seed, started) = (choice.device, options.seed, Instant::now());
        let place = options.dry_run.as_ref().map_or_else(|| device.to_string(), dry_name);
        let (options, record) = (options.clone(), record.map(Path::to_owned));
        let graph = options.graphs.then(|| Arc::new(StepGraph::new(&device)));
        Ok(Self {
            device,
            place,
            seed,
            options,
            runtime,
            metrics,
            graph,
            example,
            json,
            trace,
            record,
            page,
            started,
        })
    }

    /// The pool limit, if given.
    #[allow(dead_code, reason = "only an example that runs out of memory asks")]
    pub(crate) fn pool(&self) -> Option<Bytes> {
        self.options.pool
    }

    /// The progress of a training run with this number of steps.
    #[allow(dead_code, reason = "not every example trains")]
    pub(crate) fn progress(&self, steps: u64) -> Progress {
        Progress::new(&self.device, steps, self.metrics.clone(), self.graph.clone())
    }

    /// Options for dry runs: the device of --dry-run, else this machine.
    #[allow(dead_code, reason = "not every example makes some")]
    pub(crate) fn dry_run_options(&self) -> DryRunOptions {
        self.options.dry_run_options()
    }

    /// Prints the result and the memory report, and writes the requested files. `results` are further fields of the
    /// JSON object.
    pub(crate) fn finish(&self, summary: &str, results: Value) -> anyhow::Result<()> {
        let (report, device) = (memory_report(&self.device)?, self.device.to_string());
        self.finish_with(summary, &report, &device, &self.place, results)
    }

    /// Like [`finish`](Self::finish), for a dry run that the example made itself.
    #[allow(dead_code, reason = "not every example makes some")]
    pub(crate) fn finish_dry(&self, summary: &str, run: &DryRun<()>, results: Value) -> anyhow::Result<()> {
        self.finish_with(summary, &run.report, "dry:0", &dry_name(&run.profile), results)
    }

    fn finish_with(
        &self,
        summary: &str,
        report: &Report,
        device: &str,
        place: &str,
        results: Value,
    ) -> anyhow::Result<()> {
        let seconds = self.started.elapsed().as_secs_f64();
        let threads = self.runtime.threads();
        let plural = if threads == 1 { "" } else { "s" };
        say(&format!(
            "{} on {place} with {threads} thread{plural}, {seconds:.1} s: {summary}\n\n{report}",
            self.example
        ))?;
        if let Some(counts) = self.device.default_allocator()?.plan_counts() {
            say(&format!(
                "\nplanned allocations: {} in {} steps; by best fit {}, unexpected {}, refused {}\n",
                counts.planned, counts.steps, counts.left, counts.unexpected, counts.refused
            ))?;
        }
        match self.graph.as_ref().map(|graph| graph.counts()) {
            None => {}
            Some(counts) if counts.runs == 0 => say(&format!("\ngraphs: {device} has none\n"))?,
            Some(counts) => {
                let refused =
                    counts.refused.map_or_else(String::new, |reason| format!("; refused: {reason}"));
                say(&format!(
                    "\ngraphs: {} kernels in {} launches of {} graphs, {} with new arguments; {} kernels one by one{refused}\n",
                    counts.in_graphs, counts.graphs, counts.prepared, counts.replaced, counts.singly
                ))?;
            }
        }
        self.metrics.finish()?;
        if let Some(output) = &self.json {
            let mut fields = serde_json::json!({
                "example": self.example,
                "device": device,
                "seed": self.seed,
                "worker_threads": threads,
                "seconds": seconds,
            });
            merge(&mut fields, results);
            merge(&mut fields, serde_json::to_value(report)?);
            output.write(|file| {
                serde_json::to_writer_pretty(&mut *file, &fields)?;
                writeln!(file)
            })?;
        }
        if let Some(output) = &self.trace {
            let log = self.runtime.tracker().take_log();
            let mut trace = Trace::from_recording(&log)?;
            trace.add_header(&format!("trace: {} on {}, seed {}", self.example, self.device, self.seed));
            trace.add_header(&format!("events: {}", trace.events().len()));
            trace.add_header(&format!("peak_live_bytes: {}", trace.peak_live_bytes()));
            if log.overflowed() {
                trace.add_header(&format!("events lost at the beginning: {}", log.lost_events()));
            }
            output.write(|file| trace.write(file))?;
        }
        if let Some(path) = &self.record {
            let pools = [Arc::clone(self.device.default_allocator()?)];
            self.runtime.tracker().finish_recording(&pools).with_context(|| name(path))?;
        }
        if let Some(page) = &self.page {
            page.write()?;
        }
        let damage = self.device.default_allocator()?.find_damage();
        if let Some(first) = damage.first() {
            bail!("memory was corrupted {} times; the first: {first}", damage.len());
        }
        Ok(())
    }
}

fn read_plan(path: &Path) -> anyhow::Result<Plan> {
    let file = File::open(path).with_context(|| name(path))?;
    parse_plan(BufReader::new(file), &PlanLimits::default()).with_context(|| name(path))
}

/// Prints each distinct placement once: training steps repeat.
fn log_placement(runtime: &Runtime, choice: &str) {
    let told = Mutex::new(HashSet::new());
    let tell = move |line: String| {
        if told.lock().unwrap_or_else(PoisonError::into_inner).insert(line.clone()) {
            let _ = writeln!(io::stderr(), "{line}");
        }
    };
    tell(choice.to_owned());
    runtime.on_placement(move |placement| tell(placement.to_string()));
}

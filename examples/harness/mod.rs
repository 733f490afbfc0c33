//! What the examples share: options, a runtime made from them, and what is said at the end.

#[allow(dead_code, reason = "not every example takes pictures")]
pub(crate) mod idx;
#[allow(dead_code, reason = "not every example trains")]
mod metrics;

use std::collections::HashSet;
use std::fs::File;
use std::io::{self, BufReader, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use anyhow::{Context, bail};
use clap::{Args, Parser};
use flate2::Compression;
use flate2::write::GzEncoder;
use highwater::alloc::{
    AllocatorAttributes, AllocatorChoice, Bytes, DeviceId, DeviceKind, DeviceScope, MIB, Plan, PoolOptions,
};
use highwater::tracking::{OutOfMemory, PlanLimits, RunFacts, Trace, parse_plan};
use highwater::{Device, DeviceProfile, DryRun, DryRunOptions, Report, Runtime, memory_report};
use serde_json::Value;

pub(crate) use metrics::Metrics;

/// The most memory that the events of `--trace` take until they are written; each takes some seven bytes.
const TRACE_MEMORY: Bytes = Bytes::mib(256);

/// The options of every example.
#[derive(Args, Clone, Debug)]
pub(crate) struct Options {
    /// Where to compute: auto, cpu, dry, or cuda:N
    #[arg(long, default_value = "auto", value_parser = parse_device)]
    device: Wanted,

    /// Compute nothing: find out how much memory the run takes, here or on a device that is not here, such as a100-80g,
    /// rtx-4090,limit=90% or cpu,memory=8GiB
    #[arg(long, value_name = "PROFILE", num_args = 0..=1, require_equals = true, default_missing_value = "this")]
    #[arg(conflicts_with = "device")]
    dry_run: Option<DeviceProfile>,

    /// The most memory the run may take, in MiB, or with a unit as in 1536KiB or 1610496B
    #[arg(long, value_name = "MIB", value_parser = parse_pool)]
    pub(crate) pool: Option<Bytes>,

    /// How memory is handed out: bfc, bfc-tensorflow, buddy, auto-growth, planned, guard or passthrough [default: bfc, or as
    /// the environment says]
    #[arg(long, value_name = "NAME")]
    allocator: Option<AllocatorChoice>,

    /// Run on the plan in this file, made by `highwater plan` from a trace of this example
    #[arg(long, value_name = "FILE")]
    plan: Option<PathBuf>,

    /// Threads that compute; the results do not depend on it [default: one per core]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,

    /// The seed of everything random
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) seed: u64,

    /// Write the results and the memory report to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,

    /// Write every allocation and free to this file, one a line
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,

    /// Write a line of JSON for every training step to this file: loss, time and memory
    #[arg(long, value_name = "FILE.jsonl")]
    log: Option<PathBuf>,

    /// Record every allocation, free and op in this file, for `highwater report`
    #[arg(long, value_name = "FILE.hwm", conflicts_with = "trace")]
    record: Option<PathBuf>,

    /// If memory runs out, write the report on it to this file, as JSON or, if it is called .html, as a page
    #[arg(long, value_name = "FILE")]
    oom_report: Option<PathBuf>,

    /// Say which device each op runs on, and why
    #[arg(long)]
    log_placement: bool,
}

impl Options {
    /// How a dry run of this example is to be, on the device asked for by --dry-run, else on this machine.
    #[allow(dead_code, reason = "not every example looks for a size that fits")]
    pub(crate) fn dry_run_options(&self) -> DryRunOptions {
        let options = DryRunOptions::new(self.dry_run.clone().unwrap_or_default());
        match self.allocator {
            Some(allocator) => options.pool_options(PoolOptions::default().with_allocator(allocator)),
            None => options,
        }
    }
}

/// A dry device, for people.
fn dry_name(profile: &DeviceProfile) -> String {
    format!("dry:0 ({profile})")
}

/// A number alone is one of MiB.
fn parse_pool(text: &str) -> Result<Bytes, String> {
    let bytes = match text.parse::<u64>() {
        Ok(mib) => mib.checked_mul(MIB).map(Bytes),
        Err(_) => text.parse().ok(),
    };
    bytes
        .filter(|bytes| bytes.get() > 0)
        .ok_or_else(|| "expected MiB, as in 64, or a size, as in 1750KiB".into())
}

/// The device asked for; `None` leaves the choice to the runtime.
type Wanted = Option<DeviceId>;

fn parse_device(text: &str) -> Result<Wanted, String> {
    if text == "auto" {
        Ok(None)
    } else {
        text.parse().map(Some).map_err(|_| "expected auto, cpu, dry or cuda:N".into())
    }
}

/// Parses the command line, runs the example, and says what went wrong, if anything did, in the exit code too.
pub(crate) fn main<A: Parser + AsRef<Options>>(
    example: &'static str,
    run: impl FnOnce(&A, Session) -> anyhow::Result<()>,
) -> ExitCode {
    let args = A::parse();
    let result = Session::open(example, args.as_ref()).and_then(|session| run(&args, session));
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Nobody is left to tell if this fails too.
            let _ = complain(&error, args.as_ref().oom_report.as_deref());
            ExitCode::FAILURE
        }
    }
}

/// One line for the error, and the whole report if memory ran out, also in a file if one was asked for.
fn complain(error: &anyhow::Error, file: Option<&Path>) -> io::Result<()> {
    let mut stderr = io::stderr().lock();
    writeln!(stderr, "error: {error:#}")?;
    let Some(report) = error.downcast_ref::<highwater::Error>().and_then(highwater::Error::out_of_memory)
    else {
        return Ok(());
    };
    writeln!(stderr, "\n{}", report.details())?;
    let Some(file) = file else { return Ok(()) };
    let report = OutOfMemory::from(report);
    let html = file.extension().is_some_and(|extension| extension == "html");
    let text = if html { report.to_html() } else { report.to_json() };
    std::fs::write(file, text).or_else(|error| writeln!(stderr, "error: {}: {error}", file.display()))
}

/// One run of an example.
pub(crate) struct Session {
    /// Where to compute.
    pub(crate) device: Device,
    /// Where that is, for people.
    place: String,
    runtime: Runtime,
    /// What `--log` asks for.
    pub(crate) metrics: Metrics,
    example: &'static str,
    seed: u64,
    json: Option<Output>,
    trace: Option<Output>,
    record: Option<PathBuf>,
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
        // Files are opened first: a run whose results cannot be kept should not begin.
        let (json, trace) = (Output::open(&options.json)?, Output::open(&options.trace)?);
        let metrics = Metrics::open(options.log.as_deref())?;
        if trace.is_some() {
            runtime.tracker().start_log(TRACE_MEMORY);
        }
        if let Some(path) = &options.record {
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
        let (device, seed, started) = (choice.device, options.seed, Instant::now());
        let record = options.record.clone();
        let place = options.dry_run.as_ref().map_or_else(|| device.to_string(), dry_name);
        Ok(Self { device, place, runtime, metrics, example, seed, json, trace, record, started })
    }

    /// Prints what came out and what memory it took, and writes the files that were asked for. `results` are further
    /// fields of the JSON object.
    pub(crate) fn finish(self, summary: &str, results: Value) -> anyhow::Result<()> {
        let (report, device) = (memory_report(&self.device)?, self.device.to_string());
        let place = self.place.clone();
        self.finish_with(summary, &report, &device, &place, results)
    }

    /// The same of dry runs that this example has made by itself.
    #[allow(dead_code, reason = "not every example makes some")]
    pub(crate) fn finish_dry(self, summary: &str, run: &DryRun<()>, results: Value) -> anyhow::Result<()> {
        self.finish_with(summary, &run.report, "dry:0", &dry_name(&run.profile), results)
    }

    fn finish_with(
        self,
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
                "\nby the plan: {} allocations in {} steps; left to best fit {}, unexpected {}, refused {}\n",
                counts.planned, counts.steps, counts.left, counts.unexpected, counts.refused
            ))?;
        }
        self.metrics.finish()?;
        if let Some(output) = self.json {
            let mut fields = serde_json::json!({
                "example": self.example,
                "device": device,
                "seed": self.seed,
                "threads": threads,
                "seconds": seconds,
            });
            merge(&mut fields, results);
            merge(&mut fields, serde_json::to_value(report)?);
            output.write(|file| {
                serde_json::to_writer_pretty(&mut *file, &fields)?;
                writeln!(file)
            })?;
        }
        if let Some(output) = self.trace {
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
        let damage = self.device.default_allocator()?.find_damage();
        if let Some(first) = damage.first() {
            bail!("memory was damaged {} times; the first: {first}", damage.len());
        }
        Ok(())
    }
}

fn read_plan(path: &Path) -> anyhow::Result<Plan> {
    let file = File::open(path).with_context(|| name(path))?;
    parse_plan(BufReader::new(file), &PlanLimits::default()).with_context(|| name(path))
}

/// Says each different placement once: a training step repeats itself.
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

/// Prints to standard output. That nobody reads on, as in `... | head`, is no error.
fn say(text: &str) -> anyhow::Result<()> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error).context("standard output"),
        _ => Ok(()),
    }
}

/// Puts the fields of one JSON object into another.
fn merge(into: &mut Value, from: Value) {
    if let (Some(into), Value::Object(from)) = (into.as_object_mut(), from) {
        into.extend(from);
    }
}

/// A file to be written at the end; compressed if it is called `.gz`.
struct Output {
    path: PathBuf,
    file: File,
}

impl Output {
    fn open(path: &Option<PathBuf>) -> anyhow::Result<Option<Self>> {
        let open = |path: &PathBuf| {
            let file = File::create(path).with_context(|| name(path))?;
            Ok(Self { path: path.clone(), file })
        };
        path.as_ref().map(open).transpose()
    }

    fn write(self, write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> anyhow::Result<()> {
        let mut file = BufWriter::new(self.file);
        let written = if self.path.extension().is_some_and(|extension| extension == "gz") {
            let mut encoder = GzEncoder::new(&mut file, Compression::best());
            write(&mut encoder).and_then(|()| encoder.finish().map(drop))
        } else {
            write(&mut file)
        };
        written.and_then(|()| file.flush()).with_context(|| name(&self.path))
    }
}

fn name(path: &Path) -> String {
    path.display().to_string()
}

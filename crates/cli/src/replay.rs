//! `highwater replay`: replays recorded traces through other pools.

mod measure;
pub(crate) mod smallest;
mod table;

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use bfc_core::{DEFAULT_ALIGNMENT, Plan, PlanOptions};
use clap::Args;
use highwater_tracking::Replayer;

use crate::exit;
use crate::files::input;
use crate::files::plan::{self as plan_file, PlanFileError};
use crate::files::recording::report_cut;
use crate::files::trace::ReadArguments;
use crate::pools::policies::{self, Policy};
use crate::pools::spec::{Knob, PoolArguments, PoolSpec, PoolSpecError};
use crate::progress::Progress;
use measure::{Measurement, measure};

/// The arguments of `highwater replay`.
#[derive(Args, Clone, Debug)]
#[command(after_help = policies::help())]
pub(crate) struct ReplayArguments {
    /// Recordings (.hwm), Highwater traces, PyTorch snapshots, RMM logs or MiniMalloc problems, also .gz or -
    #[arg(required = true, value_name = "TRACE")]
    traces: Vec<PathBuf>,

    /// The policies to replay through, separated by commas
    #[arg(long, value_name = "NAMES", value_delimiter = ',', default_value = "bfc")]
    policy: Vec<Policy>,

    /// Find the smallest single-region pool that serves the trace
    #[arg(long)]
    find_min: bool,

    /// The plan of the policy `planned` [default: computed from each trace]
    #[arg(long, value_name = "PLAN")]
    plan: Option<PathBuf>,

    /// The alignment of offsets of `planned`, a power of two [default: 256]
    #[arg(long, value_name = "BYTES", conflicts_with = "plan", value_parser = power_of_two)]
    granule: Option<u64>,

    /// The number of warm replays; each stretch of events counts with its best time
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    repeat: u32,

    /// Write JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    pool: PoolArguments,

    #[command(flatten)]
    read: ReadArguments,
}

/// Parses a number of bytes that is a power of two.
pub(crate) fn power_of_two(text: &str) -> Result<u64, String> {
    let bytes = text.parse().ok().filter(|bytes: &u64| bytes.is_power_of_two());
    bytes.ok_or_else(|| "expected a power of two".to_owned())
}

/// The reason why nothing can be replayed.
#[derive(Debug, thiserror::Error)]
enum UsageError {
    #[error(transparent)]
    Pool(#[from] PoolSpecError),
    #[error(transparent)]
    Plan(#[from] PlanFileError),
}

fn prepare(arguments: &ReplayArguments) -> Result<(PoolSpec, Option<Arc<Plan>>), UsageError> {
    let spec = PoolSpec::new(&arguments.pool)?;
    let granule = arguments.granule.map(|_| Knob::Granule);
    let knobs: Vec<Knob> = arguments.pool.knobs().into_iter().chain(granule).collect();
    policies::check(&arguments.policy, &knobs)?;
    let plan = arguments.plan.as_deref().map(plan_file::read).transpose()?;
    Ok((spec, plan.map(Arc::new)))
}

/// Replays each trace through each policy. Reads one trace at a time to bound memory.
pub(crate) fn run(arguments: &ReplayArguments) -> io::Result<ExitCode> {
    let (spec, plan) = match prepare(arguments) {
        Ok(prepared) => prepared,
        Err(error) => {
            return exit::fail(&error, exit::BAD_FILE);
        }
    };
    let progress = Progress::new(arguments.traces.len() * arguments.policy.len());
    let mut measurements: Vec<Measurement> = Vec::new();
    let granule = arguments.granule.unwrap_or(PlanOptions::default().granule);
    let (mut unreadable, mut cuts, mut skipped) = (Vec::new(), Vec::new(), Vec::new());
    for path in &arguments.traces {
        progress.say(&format!("{}: reading", path.display()));
        let trace = match arguments.read.read(path) {
            Ok(trace) => trace,
            Err(error) => {
                unreadable.push(error);
                progress.done(arguments.policy.len());
                continue;
            }
        };
        cuts.extend(trace.cut().cloned().map(|cut| (path, cut)));
        let name = path.display().to_string();
        skipped.extend(trace.skipped().iter().map(|what| (path, what.clone())));
        let mut replayer = Replayer::new(&trace);
        if let Some(granule) = arguments.granule {
            // The plan serves requests of this alignment.
            replayer = replayer.with_alignment(granule.min(DEFAULT_ALIGNMENT));
        }
        for policy in &arguments.policy {
            let say = |what: &str| progress.say(&format!("{name}, {}: {what}", policy.name));
            say("replaying");
            let pool = match policy.prepare(&trace, plan.as_ref(), granule) {
                Ok(pool) => pool,
                Err(error) => {
                    measurements.push(Measurement::not_begun(
                        &name,
                        policy.name,
                        &replayer,
                        error.to_string(),
                    ));
                    progress.done(1);
                    continue;
                }
            };
            let mut measurement = measure(&name, policy.name, &mut replayer, &pool, spec, arguments.repeat);
            if arguments.find_min {
                measurement.smallest = Some(smallest::smallest_pool(&mut replayer, &pool, spec, &say));
            }
            measurements.push(measurement);
            progress.done(1);
        }
    }
    progress.clear();
    print(arguments, &measurements)?;
    for (path, what) in &skipped {
        writeln!(io::stderr(), "highwater: {}: skipped {what}", input::name(path).display())?;
    }
    for (path, cut) in &cuts {
        report_cut(path, Some(cut))?;
    }
    for error in &unreadable {
        writeln!(io::stderr(), "highwater: {error}")?;
    }
    Ok(match () {
        () if !unreadable.is_empty() => ExitCode::from(exit::BAD_FILE),
        () if measurements.iter().any(|measurement| measurement.failed_at.is_some()) => {
            ExitCode::from(exit::FAILED)
        }
        () => ExitCode::SUCCESS,
    })
}

fn print(arguments: &ReplayArguments, measurements: &[Measurement]) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    if arguments.json {
        serde_json::to_writer_pretty(&mut stdout, measurements)?;
        writeln!(stdout)?;
    } else if !measurements.is_empty() {
        write!(stdout, "{}", table::table(measurements))?;
    }
    stdout.flush()
}

//! `highwater replay`: replays recorded traces through other pools.

mod measure;
pub(crate) mod smallest;
mod table;

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use bfc_core::{DEFAULT_ALIGNMENT, PackingOptions, printable};
use clap::Args;
use highwater_traces::Replayer;

use crate::error::{self, CommandError};
use crate::files::input::remark;
use crate::files::output::print;
use crate::files::read::{self, ReadArguments, trace_remarks};
use crate::pools::policies::{self, Policy};
use crate::pools::spec::{PoolArguments, PoolSpec, remark_without_effect};
use crate::progress::Progress;
use measure::{Measurement, measure};

/// The arguments of `highwater replay`.
#[derive(Args, Clone, Debug)]
#[command(after_help = policies::help())]
pub(crate) struct ReplayArguments {
    /// Recordings (.hwm), Highwater traces or files of other tools, also .gz or -
    #[arg(required = true, value_name = "TRACE")]
    traces: Vec<PathBuf>,

    /// The policies to replay through, separated by commas
    #[arg(long, value_name = "NAMES", value_delimiter = ',', default_value = "bfc")]
    policy: Vec<Policy>,

    /// Find the smallest single-region pool that serves the trace
    #[arg(long)]
    find_min: bool,

    /// The packing of the policy `packed` [default: computed from each trace]
    #[arg(long, value_name = "PACKING")]
    packing: Option<PathBuf>,

    /// The alignment of offsets of `packed`, a power of two [default: 256]
    #[arg(long, value_name = "BYTES", conflicts_with = "packing", value_parser = power_of_two)]
    granule: Option<u64>,

    /// The number of warm replays; each stretch of events counts with its best time
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    repeat: u32,

    /// Show every column, however wide the table
    #[arg(long)]
    wide: bool,

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

/// Replays each trace through each policy. Reads one trace at a time to bound memory.
pub(crate) fn run(arguments: &ReplayArguments) -> Result<ExitCode, CommandError> {
    let spec = PoolSpec::new(&arguments.pool)?;
    let granule_option = arguments.granule.map(|_| "--granule");
    let given: Vec<&str> = arguments.pool.given().into_iter().chain(granule_option).collect();
    policies::check(&arguments.policy, &given)?;
    remark_without_effect(&arguments.pool.alloc_conf)?;
    let packing = read::packing(arguments.packing.as_deref())?;
    let progress = Progress::new(arguments.traces.len() * arguments.policy.len());
    let mut measurements: Vec<Measurement> = Vec::new();
    let granule = arguments.granule.unwrap_or(PackingOptions::default().granule);
    let (mut unreadable, mut remarks) = (Vec::new(), Vec::new());
    for path in &arguments.traces {
        progress.say(&format!("{}: reading", path.display()));
        let trace = match arguments.read.trace(path) {
            Ok(trace) => trace,
            Err(error) => {
                unreadable.push(error);
                progress.done(arguments.policy.len());
                continue;
            }
        };
        remarks.push((path, trace_remarks(&trace).collect::<Vec<_>>()));
        let name = path.display().to_string();
        let mut replayer = Replayer::new(&trace);
        if let Some(granule) = arguments.granule {
            // The packing serves requests of this alignment.
            replayer = replayer.with_alignment(granule.min(DEFAULT_ALIGNMENT));
        }
        for policy in &arguments.policy {
            let say = |what: &str| progress.say(&format!("{name}, {}: {what}", policy.name));
            say("replaying");
            let mut measurement = Measurement::new(&name, policy.name, &trace);
            match policy.prepare(&trace, packing.as_ref(), granule) {
                Ok(pool) => {
                    measure(&mut measurement, &mut replayer, &pool, spec, arguments.repeat);
                    if arguments.find_min {
                        let smallest = smallest::smallest_pool(&mut replayer, &pool, spec, &say);
                        measurement.smallest = Some(smallest);
                    }
                }
                Err(error) => measurement.fail(0, error.to_string()),
            }
            measurements.push(measurement);
            progress.done(1);
        }
    }
    progress.clear();
    let text =
        || if measurements.is_empty() { String::new() } else { table::table(&measurements, arguments.wide) };
    print(&measurements, arguments.json, text)?;
    for (path, remarks) in remarks {
        remark(path, remarks)?;
    }
    for error in &unreadable {
        writeln!(io::stderr(), "highwater: {}", printable(error))?;
    }
    let has_failed = measurements.iter().any(|measurement| measurement.failed_at.is_some());
    Ok(if !unreadable.is_empty() {
        ExitCode::from(error::BAD_FILE)
    } else if has_failed {
        ExitCode::from(error::FAILED)
    } else {
        ExitCode::SUCCESS
    })
}

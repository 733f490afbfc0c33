//! `highwater what-if`: predicts the memory of a recorded run with other pools.

mod outcome;
mod selection;
mod table;
mod variation;

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use bfc_core::{Bytes, CutRule, JoinRule, Plan, SplitChoice};
use clap::Args;
use highwater_tracking::{Recording, TraceProblem};

use crate::exit;
use crate::files::plan::{self as plan_file, PlanFileError};
use crate::files::recording::{ReadArguments, ReadError, report_cut};
use crate::pools::policies::{self, Policy};
use crate::pools::spec::{Growth, PoolSpecError};
use crate::progress::Progress;
use outcome::Outcome;
use selection::{PoolSelection, UnknownPool};
use variation::Variation;

/// The arguments of `highwater what-if`.
#[derive(Args, Clone, Debug)]
#[command(after_help = policies::help())]
pub(crate) struct WhatIfArguments {
    /// The recorded run, or - for standard input
    #[arg(value_name = "RUN.hwm")]
    run: PathBuf,

    /// Policies to try, separated by commas [default: all, and other rules for the recorded one]
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    policy: Vec<Policy>,

    /// When to split chunks: always, twice or twice:WASTE in bytes or % of --pool
    #[arg(long, value_name = "RULES", value_delimiter = ',')]
    split: Vec<SplitChoice>,

    /// Which end of a chunk a block takes: low or large-high
    #[arg(long, value_name = "RULES", value_delimiter = ',')]
    cut: Vec<CutRule>,

    /// When to join freed blocks with free neighbors: at-once or deferred
    #[arg(long, value_name = "RULES", value_delimiter = ',')]
    join: Vec<JoinRule>,

    /// How the pool grows: fixed, regions or extend
    #[arg(long, value_name = "HOWS", value_delimiter = ',', hide_possible_values = true)]
    growth: Vec<Growth>,

    /// The limit of the pool, such as 512MiB,1GiB
    #[arg(long, value_name = "SIZES", value_delimiter = ',')]
    pool: Vec<Bytes>,

    /// The plan of the policy `planned` [default: computed from the run]
    #[arg(long, value_name = "PLAN")]
    plan: Option<PathBuf>,

    /// Use only this pool of the run
    #[arg(long, value_name = "NAME")]
    of: Option<String>,

    /// Write JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    read: ReadArguments,
}

/// The reason why there is no answer.
#[derive(Debug, thiserror::Error)]
enum WhatIfError {
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error(transparent)]
    Pool(#[from] PoolSpecError),
    #[error(transparent)]
    Plan(#[from] PlanFileError),
    #[error("{}: {error}", path.display())]
    UnknownPool { path: PathBuf, error: UnknownPool },
    #[error("{}: {problem}", path.display())]
    Trace { path: PathBuf, problem: TraceProblem },
}

pub(crate) fn run(arguments: &WhatIfArguments) -> io::Result<ExitCode> {
    let (recording, outcomes) = match answer(arguments) {
        Ok(answer) => answer,
        Err(error) => {
            return exit::fail(&error, exit::BAD_FILE);
        }
    };
    let mut stdout = io::stdout().lock();
    if arguments.json {
        serde_json::to_writer_pretty(&mut stdout, &outcomes)?;
        writeln!(stdout)?;
    } else {
        write!(stdout, "{}{}", table::heading(&recording), table::table(&outcomes))?;
    }
    stdout.flush()?;
    report_cut(&arguments.run, recording.cut())?;
    // A variation that runs out of memory is a result, not an error.
    Ok(ExitCode::SUCCESS)
}

fn answer(arguments: &WhatIfArguments) -> Result<(Recording, Vec<Outcome>), WhatIfError> {
    let plan: Option<Arc<Plan>> = arguments.plan.as_deref().map(plan_file::read).transpose()?.map(Arc::new);
    let recording = arguments.read.read(&arguments.run)?;
    let path = || arguments.run.clone();
    let selection = PoolSelection::new(&recording, arguments.of.as_deref())
        .map_err(|error| WhatIfError::UnknownPool { path: path(), error })?;
    let variations = Variation::requested(arguments, &recording, &selection)?;
    let progress = Progress::new(variations.len());
    let mut outcomes = Vec::new();
    for variation in &variations {
        progress.say(&variation.what);
        let traces = selection
            .traces(&recording, variation.grouping)
            .map_err(|problem| WhatIfError::Trace { path: path(), problem })?;
        outcomes.push(Outcome::of(variation, &traces, plan.as_ref(), &progress));
        progress.done(1);
    }
    progress.clear();
    Ok((recording, outcomes))
}

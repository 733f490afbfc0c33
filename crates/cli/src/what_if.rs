//! `highwater what-if`: what would a recorded run have taken, had its pool been another?

mod lanes;
mod outcome;
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
use crate::files::recording::{ReadArguments, ReadError, tell_cut};
use crate::pools::policies::{self, Policy};
use crate::pools::spec::{Growth, PoolSpecError};
use crate::progress::Progress;
use lanes::{Lanes, UnknownPool};
use outcome::Outcome;
use variation::Variation;

/// The arguments of `highwater what-if`.
#[derive(Args, Clone, Debug)]
#[command(after_help = policies::help())]
pub(crate) struct WhatIfArguments {
    /// The recorded run, or - for standard input
    #[arg(value_name = "RUN.hwm")]
    run: PathBuf,

    /// Policies to try, separated by commas [default: all, with other rules for the one recorded]
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    policy: Vec<Policy>,

    /// When chunks are split: always, twice or twice:WASTE in bytes or % of --pool
    #[arg(long, value_name = "RULES", value_delimiter = ',')]
    split: Vec<SplitChoice>,

    /// The end of a chunk that blocks are cut from: low or large-high
    #[arg(long, value_name = "RULES", value_delimiter = ',')]
    cut: Vec<CutRule>,

    /// When freed blocks are joined with what is free beside them: at-once or deferred
    #[arg(long, value_name = "RULES", value_delimiter = ',')]
    join: Vec<JoinRule>,

    /// How it grows: fixed, regions or extend
    #[arg(long, value_name = "HOWS", value_delimiter = ',', hide_possible_values = true)]
    growth: Vec<Growth>,

    /// The most bytes that the pool may take, such as 512MiB,1GiB
    #[arg(long, value_name = "SIZES", value_delimiter = ',')]
    pool: Vec<Bytes>,

    /// The plan that the policy `planned` follows [default: one made from the run]
    #[arg(long, value_name = "PLAN")]
    plan: Option<PathBuf>,

    /// Look at this pool of the run alone
    #[arg(long, value_name = "NAME")]
    of: Option<String>,

    /// Write JSON, for programs
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    read: ReadArguments,
}

/// Why the question cannot be answered.
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
            writeln!(io::stderr(), "highwater: {error}")?;
            return Ok(ExitCode::from(exit::BAD_FILE));
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
    tell_cut(&arguments.run, recording.cut())?;
    // That something would not have fitted is an answer, no failure.
    Ok(ExitCode::SUCCESS)
}

fn answer(arguments: &WhatIfArguments) -> Result<(Recording, Vec<Outcome>), WhatIfError> {
    let plan: Option<Arc<Plan>> = arguments.plan.as_deref().map(plan_file::read).transpose()?.map(Arc::new);
    let recording = arguments.read.read(&arguments.run)?;
    let path = || arguments.run.clone();
    let lanes = Lanes::new(&recording, arguments.of.as_deref())
        .map_err(|error| WhatIfError::UnknownPool { path: path(), error })?;
    let variations = Variation::asked(arguments, &recording, &lanes)?;
    let progress = Progress::new(variations.len());
    let mut outcomes = Vec::new();
    for variation in &variations {
        progress.say(&variation.what);
        let traces = lanes
            .traces(&recording, variation.grouping)
            .map_err(|problem| WhatIfError::Trace { path: path(), problem })?;
        outcomes.push(Outcome::of(variation, &traces, plan.as_ref(), &progress));
        progress.done(1);
    }
    progress.clear();
    Ok((recording, outcomes))
}

//! `highwater what-if`: predicts the memory of a recorded run with other pools.

mod outcome;
mod selection;
mod table;
mod variation;

use std::path::PathBuf;

use bfc_core::setting::{CUT, JOIN, SPLIT};
use bfc_core::{Bytes, CutRule, JoinRule, PytorchOptions, SplitChoice, printable};
use clap::Args;

use crate::error::CommandError;
use crate::files::input::remark;
use crate::files::output::print;
use crate::files::read::{self, ReadArguments, cut_remark};
use crate::pools::policies::{self, Policy};
use crate::pools::spec::{Growth, help, remark_without_effect};
use crate::progress::Progress;
use outcome::Outcome;
use selection::PoolSelection;
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

    #[arg(long, value_name = "RULES", value_delimiter = ',', help = help(&SPLIT))]
    split: Vec<SplitChoice>,

    #[arg(long, value_name = "RULES", value_delimiter = ',', help = help(&CUT))]
    cut: Vec<CutRule>,

    #[arg(long, value_name = "RULES", value_delimiter = ',', help = help(&JOIN))]
    join: Vec<JoinRule>,

    /// How the pool grows: fixed, regions or extend
    #[arg(long, value_name = "HOWS", value_delimiter = ',', hide_possible_values = true)]
    growth: Vec<Growth>,

    /// Settings of PyTorch's allocator, separated by semicolons [default: the usual ones]
    #[arg(long, value_name = "SETTINGS", value_delimiter = ';')]
    alloc_conf: Vec<PytorchOptions>,

    /// The limit of the pool, such as 512MiB,1GiB
    #[arg(long, value_name = "SIZES", value_delimiter = ',')]
    pool: Vec<Bytes>,

    /// The packing of the policy `packed` [default: computed from the run]
    #[arg(long, value_name = "PACKING")]
    packing: Option<PathBuf>,

    /// Use only this pool of the run
    #[arg(long, value_name = "NAME")]
    of: Option<String>,

    /// Show complete names, however wide the table
    #[arg(long)]
    wide: bool,

    /// Write JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    read: ReadArguments,
}

pub(crate) fn run(arguments: &WhatIfArguments) -> Result<(), CommandError> {
    remark_without_effect(&arguments.alloc_conf)?;
    let packing = read::packing(arguments.packing.as_deref())?;
    let recording = arguments.read.recording(&arguments.run)?;
    let selection = PoolSelection::new(&recording, arguments.of.as_deref())
        .map_err(|error| CommandError::read(&arguments.run, &error))?;
    let variations = Variation::requested(arguments, &recording, &selection)?;
    let progress = Progress::new(variations.len());
    let mut outcomes = Vec::new();
    for variation in &variations {
        progress.say(&variation.what);
        let traces = selection
            .traces(&recording, variation.grouping)
            .map_err(|problem| CommandError::read(&arguments.run, &problem))?;
        outcomes.push(Outcome::of(variation, &traces, packing.as_ref(), &progress));
        progress.done(1);
    }
    progress.clear();
    outcome::compare_settings(&mut outcomes);
    let text = || format!("{}{}", table::heading(&recording), table::table(&outcomes, arguments.wide));
    // A variation that runs out of memory is a result, not an error.
    print(&outcomes, arguments.json, text)?;
    let unknown = variation::recorded_settings(&recording).err();
    let unknown = unknown.map(|error| format!("ignored the recorded settings: {}", printable(&error)));
    Ok(remark(&arguments.run, recording.cut().map(cut_remark).into_iter().chain(unknown))?)
}

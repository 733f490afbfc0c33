//! `highwater pack`: computes offsets for the blocks of a recorded step.

use std::io::{self, Write};
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Instant;

use bfc_core::{Bytes, Packing, PackingOptions, printable};
use clap::Args;
use highwater_traces::{NoPacking, Step, Trace, packing_of};
use highwater_tracking::write_packing;
use serde::Serialize;

use crate::error::{CommandError, STANDARD};
use crate::files::input::remark;
use crate::files::output::{OutputFile, print};
use crate::files::read::{ReadArguments, trace_remarks};
use crate::progress::Progress;
use crate::replay::power_of_two;

/// The arguments of `highwater pack`.
#[derive(Args, Clone, Debug)]
pub(crate) struct PackArguments {
    /// A trace of any format that `replay` reads, or - for standard input
    #[arg(value_name = "TRACE")]
    trace: PathBuf,

    /// The file to write, or - for standard output
    #[arg(short, long, value_name = "PACKING")]
    output: PathBuf,

    /// The step to pack: whole, repeating, FROM..TO in events, or marks:FROM..TO
    #[arg(long, value_name = "STEP", default_value = "whole")]
    step: StepArgument,

    /// The effort of the search; one second is about 20 million
    #[arg(long, value_name = "N", default_value_t = PackingOptions::default().effort)]
    effort: u64,

    /// The alignment of offsets, a power of two [default: 256; 1 for MiniMalloc]
    #[arg(long, value_name = "BYTES", value_parser = power_of_two)]
    granule: Option<u64>,

    /// Write JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    read: ReadArguments,
}

/// A step as written on the command line.
#[derive(Clone, Debug, PartialEq, Eq)]
struct StepArgument(Step);

/// The text is not a step.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid step {text:?}: expected whole, repeating, FROM..TO in events, or marks:FROM..TO")]
struct NoStep {
    text: String,
}

impl FromStr for StepArgument {
    type Err = NoStep;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let between = || match text.strip_prefix("marks:") {
            Some(marks) => {
                let (from, to) = marks.split_once("..")?;
                let named = !from.is_empty() && !to.is_empty();
                named.then(|| Step::Marks { from: from.to_owned(), to: to.to_owned() })
            }
            None => {
                let (from, to) = text.split_once("..")?;
                Some(Step::Events(from.parse().ok()?..to.parse().ok()?))
            }
        };
        match text {
            "whole" => Ok(Self(Step::Whole)),
            "repeating" => Ok(Self(Step::Repeating)),
            _ => between().map(Self).ok_or_else(|| NoStep { text: text.chars().take(64).collect() }),
        }
    }
}

/// The result; the object of `--json`. All sizes in bytes.
#[derive(Clone, Debug, Serialize)]
struct Summary {
    trace: String,
    packing: String,
    blocks: usize,
    /// Blocks with an offset; the others outlive the step.
    packed_blocks: usize,
    capacity_bytes: u64,
    /// The lower bound of every packing: the peak of live bytes.
    lower_bound_bytes: u64,
    /// `capacity_bytes / lower_bound_bytes`.
    waste: Option<f64>,
    seconds: f64,
}

pub(crate) fn run(arguments: &PackArguments) -> Result<(), CommandError> {
    let prints_packing = arguments.output.as_os_str() == STANDARD;
    if arguments.json && prints_packing {
        let problem = "--json and the packing cannot both use standard output: name a file with --output";
        return Err(CommandError::Usage(problem.to_owned()));
    }
    let progress = Progress::new(1);
    progress.say(&format!("{}: reading", arguments.trace.display()));
    let mut output = OutputFile::open(&arguments.output, &[&arguments.trace])?;
    let trace = arguments.read.trace(&arguments.trace)?;
    let start = Instant::now();
    let packing = solve(arguments, &trace, &progress)
        .map_err(|error| CommandError::no_result(&arguments.trace, &error))?;
    let summary = Summary::new(arguments, &packing, start.elapsed().as_secs_f64());
    let written = write_packing(&packing, &mut output);
    output.finish(written)?;
    progress.clear();
    if prints_packing {
        writeln!(io::stderr(), "{}", printable(summary.sentence()))?;
    } else {
        print(&summary, arguments.json, || format!("{}\n", summary.sentence()))?;
    }
    Ok(remark(&arguments.trace, trace_remarks(&trace))?)
}

fn solve(arguments: &PackArguments, trace: &Trace, progress: &Progress) -> Result<Packing, NoPacking> {
    let options = PackingOptions::default().with_effort(arguments.effort);
    let granule = arguments.granule.or(trace.granule()).unwrap_or(options.granule);
    let options = options.with_granule(granule);
    let StepArgument(step) = &arguments.step;
    packing_of(trace, step, &options, &mut |so_far| {
        let (capacity, bound) = (Bytes(so_far.capacity), Bytes(so_far.lower_bound));
        progress.say(&format!("packing: {capacity} so far, at least {bound}"));
        true
    })
}

impl Summary {
    fn new(arguments: &PackArguments, packing: &Packing, seconds: f64) -> Self {
        let (capacity, bound) = (packing.capacity(), packing.lower_bound());
        Self {
            trace: arguments.trace.display().to_string(),
            packing: arguments.output.display().to_string(),
            blocks: packing.blocks().len(),
            packed_blocks: packing.packed_blocks(),
            capacity_bytes: capacity,
            lower_bound_bytes: bound,
            waste: (bound > 0).then(|| capacity as f64 / bound as f64),
            seconds,
        }
    }

    fn sentence(&self) -> String {
        // The lower bound may be unreachable.
        let at_most = if self.capacity_bytes == self.lower_bound_bytes { "" } else { "at most " };
        let waste = self
            .waste
            .map_or_else(String::new, |waste| format!(", {at_most}{waste:.4} times the lower bound"));
        format!(
            "{}: {} of {} blocks in {}{waste}, packed in {:.2} s",
            self.packing,
            self.packed_blocks,
            self.blocks,
            Bytes(self.capacity_bytes),
            self.seconds
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_read_and_anything_else_is_refused() {
        let step = |text: &str| text.parse::<StepArgument>().map(|StepArgument(step)| step);
        assert_eq!(step("whole"), Ok(Step::Whole));
        assert_eq!(step("repeating"), Ok(Step::Repeating));
        assert_eq!(step("10..25"), Ok(Step::Events(10..25)));
        let marks = |from: &str, to: &str| Ok(Step::Marks { from: from.to_owned(), to: to.to_owned() });
        assert_eq!(step("marks:epoch 1..epoch 2"), marks("epoch 1", "epoch 2"));
        assert_eq!(step("marks:1..2"), marks("1", "2"));
        for text in ["", "..", "1..", "x..y", "-1..2", "all", "marks:", "marks:x", "marks:x..", "marks:..y"] {
            assert_eq!(step(text), Err(NoStep { text: text.to_owned() }));
        }
    }
}

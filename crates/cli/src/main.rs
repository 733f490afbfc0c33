//! The `highwater` command.

mod devices;
mod diff;
mod error;
mod export;
mod files;
mod pack;
mod pools;
mod progress;
mod replay;
mod report;
mod settings;
mod top;
mod what_if;

use std::io::{self, Write};
use std::process::ExitCode;

use bfc_core::{printable, printable_lines};
use clap::{Parser, Subcommand};

use error::{BAD_FILE, CommandError};

/// How to create a recording, and the exit codes: see [`error`].
const AFTER_HELP: &str = "\
A recording is made by a program with `Tracker::start_recording`, or by an example:
  cargo run --release --example train_digits -- --record run.hwm
  highwater report run.hwm

Exit codes:
  0  success, also if the reader of the output has closed it
  1  a replay failed, one of several ranks cannot be read, the input has no such result, or an output cannot be written
  2  the command line is invalid, or an input cannot be read";

/// Explains the memory of training runs: of Highwater, PyTorch and other programs.
#[derive(Debug, Parser)]
#[command(name = "highwater", version, arg_required_else_help = true, after_help = AFTER_HELP)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Show where the memory of a recorded run went: by op, module and category; or compare its ranks
    Report(report::ReportArguments),
    /// Follow a run while it is recorded: bytes in use now, their holders, and the peak
    Top(top::TopArguments),
    /// Compare two recorded runs: what grew, and what changed the peak
    Diff(diff::DiffArguments),
    /// Convert a recorded run for other tools: PyTorch's memory viewer, Perfetto, pprof
    Export(export::ExportArguments),
    /// Predict the memory of a recorded run with another policy, split rule, pool or packing
    WhatIf(what_if::WhatIfArguments),
    /// Replay recorded allocations through other pools and compare their memory
    Replay(replay::ReplayArguments),
    /// Compute offsets for the blocks of a recorded step, so that later steps need the least memory
    Pack(pack::PackArguments),
    /// List all settings with their values, and whether each is a default or set by a variable or an option
    Settings(settings::SettingsArguments),
    /// List the devices of this machine, and why some are unavailable
    Devices {
        /// Write JSON
        #[arg(long)]
        json: bool,
    },
}

fn main() -> ExitCode {
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        // Help and version.
        Err(message) if !message.use_stderr() => message.exit(),
        Err(error) => {
            // Without the colors of a terminal, because the message quotes the command line.
            let _ = write!(io::stderr(), "{}", printable_lines(error.render()));
            return ExitCode::from(BAD_FILE);
        }
    };
    match run(arguments.command) {
        Ok(code) => code,
        Err(error) if error.is_closed_pipe() => ExitCode::SUCCESS,
        Err(error) => {
            // If stderr fails too, only the exit code remains.
            let _ = writeln!(io::stderr(), "highwater: {}", printable(&error));
            ExitCode::from(error.code())
        }
    }
}

fn run(command: Command) -> Result<ExitCode, CommandError> {
    match command {
        Command::Replay(arguments) => return replay::run(&arguments),
        Command::Report(arguments) => return report::run(&arguments),
        Command::Devices { json } => devices::run(json)?,
        Command::WhatIf(arguments) => what_if::run(&arguments)?,
        Command::Diff(arguments) => diff::run(&arguments)?,
        Command::Export(arguments) => export::run(&arguments)?,
        Command::Pack(arguments) => pack::run(&arguments)?,
        Command::Settings(arguments) => settings::run(&arguments)?,
        Command::Top(arguments) => top::run(&arguments)?,
    }
    Ok(ExitCode::SUCCESS)
}

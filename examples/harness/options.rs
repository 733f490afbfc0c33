//! The options of every example.

use std::path::PathBuf;

use clap::Args;
use clap::builder::{PathBufValueParser, TypedValueParser};
use highwater::alloc::{AllocatorChoice, Bytes, DeviceId, MIB};
use highwater::{DeviceProfile, DryRunOptions, alloc::PoolOptions};

// Not a doc comment: clap would print it above the example's help.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Options of every example")]
pub(crate) struct Options {
    /// The device: auto, cpu, dry, or cuda:N
    #[arg(long, default_value = "auto", value_parser = parse_device)]
    pub(super) device: Wanted,

    /// Predict the memory without computing, for this machine or another device, such as a100-80g, rtx-4090,limit=90%
    /// or cpu,memory=8GiB
    #[arg(long, value_name = "PROFILE", num_args = 0..=1, require_equals = true, default_missing_value = "this")]
    #[arg(conflicts_with = "device")]
    pub(super) dry_run: Option<DeviceProfile>,

    /// The pool limit, in MiB or with a unit, such as 1536KiB or 1610496B
    #[arg(long, value_name = "MIB", value_parser = parse_pool)]
    pub(super) pool: Option<Bytes>,

    /// The allocator: bfc, bfc-tensorflow, buddy, auto-growth, planned, guard or passthrough [default: bfc, or as set
    /// in the environment]
    #[arg(long, value_name = "NAME")]
    pub(super) allocator: Option<AllocatorChoice>,

    /// Submit each training step to a GPU as graphs; the results do not change
    #[arg(long)]
    pub(super) graphs: bool,

    /// Use the plan in this file, made by `highwater plan` from a trace of this example
    #[arg(long, value_name = "FILE")]
    pub(super) plan: Option<PathBuf>,

    /// Compute threads; the results do not depend on it [default: one per core]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(super) threads: Option<u16>,

    /// The random seed
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(super) seed: u64,

    /// Write the results and the memory report as JSON to this file
    #[arg(long, value_name = "FILE", value_parser = file_to_write())]
    pub(super) json: Option<PathBuf>,

    /// Write an HTML page to this file: the training curves and the memory report
    #[arg(long, value_name = "FILE.html", value_parser = file_to_write(), conflicts_with = "trace")]
    pub(super) html: Option<PathBuf>,

    /// Write one JSON line per training step to this file: loss, time and memory
    #[arg(long, value_name = "FILE.jsonl", value_parser = file_to_write())]
    pub(super) log: Option<PathBuf>,

    /// Record every allocation, free and op to this file, for `highwater report`
    #[arg(long, value_name = "FILE.hwm", value_parser = file_to_write(), conflicts_with = "trace")]
    pub(super) record: Option<PathBuf>,

    /// Write every allocation and free to this text file, one per line
    #[arg(long, value_name = "FILE", value_parser = file_to_write())]
    pub(super) trace: Option<PathBuf>,

    /// If memory runs out, write the report to this file: JSON, or HTML if it ends in .html
    #[arg(long, value_name = "FILE", value_parser = file_to_write())]
    pub(super) oom_report: Option<PathBuf>,

    /// Print which device each op runs on, and why
    #[arg(long)]
    pub(super) log_placement: bool,
}

impl Options {
    /// Options for dry runs: the device of --dry-run, else this machine.
    pub(super) fn dry_run_options(&self) -> DryRunOptions {
        let options = DryRunOptions::new(self.dry_run.clone().unwrap_or_default());
        match self.allocator {
            Some(allocator) => options.pool_options(PoolOptions::default().with_allocator(allocator)),
            None => options,
        }
    }
}

/// A plain number means MiB.
fn parse_pool(text: &str) -> Result<Bytes, String> {
    let bytes = match text.parse::<u64>() {
        Ok(mib) => mib.checked_mul(MIB).map(Bytes),
        Err(_) => text.parse().ok(),
    };
    bytes
        .filter(|bytes| bytes.get() > 0)
        .ok_or_else(|| "expected MiB, as in 64, or a size, as in 1750KiB".into())
}

/// A path of an output file. Standard output is reserved for the results.
pub(crate) fn file_to_write() -> impl TypedValueParser<Value = PathBuf> {
    PathBufValueParser::new().try_map(|path| match path.to_str() {
        Some("-") => Err("results are said on standard output; for a file of this name say ./-"),
        _ => Ok(path),
    })
}

/// The requested device; `None` lets the runtime choose.
pub(super) type Wanted = Option<DeviceId>;

fn parse_device(text: &str) -> Result<Wanted, String> {
    if text == "auto" {
        Ok(None)
    } else {
        text.parse().map(Some).map_err(|_| "expected auto, cpu, dry or cuda:N".into())
    }
}

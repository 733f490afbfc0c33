//! The options.

use std::path::PathBuf;
use std::process::ExitCode;

use bfc_core::setting::{ALLOC_CONF, ALLOCATOR, DEVICE, Setting};
use bfc_core::{AllocatorChoice, Bytes, DeviceId, MIB, OptionError, PoolOptions, PytorchOptions};
use clap::Args;
use clap::builder::{PathBufValueParser, PossibleValuesParser, TypedValueParser};
use highwater_distributed::World;
use highwater_tensor::{DType, DeviceProfile, DryRunOptions, TF32, THREADS, mixed};

use super::fit::FitTarget;
use super::ranks::{RankOptions, RankPeak, rank_path};
use super::report::complain;
use super::run::{Run, RunError};
use crate::position::Every;
use crate::saves::Saves;

/// The end of every program's help.
const EXIT_CODES: &str = "Exit codes: 0 after success, 1 after an error, 2 for wrong options";

// The types have no doc comments: clap would print them above the program's help.

#[allow(missing_docs, reason = "clap would print the text")]
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Run options", after_help = EXIT_CODES)]
pub struct Options {
    #[arg(long, default_value = "auto", help = help(&DEVICE), hide_default_value = true)]
    #[arg(value_parser = |text: &str| DEVICE.device(text))]
    pub(super) device: WantedDevice,

    /// Predict the memory without computing, for this machine or another device, such as a100-80g, rtx-4090,limit=90%
    /// or cpu,memory=8GiB
    #[arg(long, value_name = "PROFILE", num_args = 0..=1, require_equals = true, default_missing_value = "this")]
    #[arg(conflicts_with = "device")]
    pub(super) dry_run: Option<DeviceProfile>,

    /// The most bytes that the pool reserves, in MiB or with a unit, such as 1536KiB or 1610496B [env: HIGHWATER_POOL_LIMIT]
    #[arg(long, value_name = "MIB", value_parser = parse_pool)]
    pub(super) pool: Option<Bytes>,

    #[arg(long, value_name = "NAME", help = help(&ALLOCATOR))]
    pub(super) allocator: Option<AllocatorChoice>,

    #[arg(long, value_name = "SETTINGS", help = help(&ALLOC_CONF))]
    pub(super) alloc_conf: Option<PytorchOptions>,

    /// Set any option of the pool, such as thread_cache=on or split=twice:5%; may be repeated. `highwater settings` lists
    /// the options
    #[arg(long, value_name = "NAME=VALUE", value_parser = parse_pool_option)]
    pub(super) pool_option: Vec<PoolOptions>,

    /// Train in mixed precision of bf16 or f16: activations are 16-bit, parameters and the optimizer's state stay f32
    #[arg(long, value_name = "TYPE", alias = "autocast", value_parser = parse_precision())]
    pub(super) precision: Option<DType>,

    /// Submit each training step to a GPU as graphs; the results do not change
    #[arg(long)]
    pub(super) graphs: bool,

    /// Use the packing in this file, made by `highwater pack` from a trace of this program
    #[arg(long, value_name = "FILE")]
    pub(super) packing: Option<PathBuf>,

    #[arg(long, value_name = "N", help = help(&THREADS), value_parser = |text: &str| THREADS.number(text))]
    pub(super) threads: Option<u64>,

    #[arg(long, value_name = "SWITCH", help = help(&TF32), value_parser = |text: &str| TF32.switch(text))]
    #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "on")]
    pub(super) tf32: Option<bool>,

    /// The random seed
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(super) seed: u64,

    /// Print all rows and columns of the memory report
    #[arg(long)]
    pub(super) full: bool,

    /// Write the results and the memory report as JSON to this file
    #[arg(long, value_name = "FILE", value_parser = output_path())]
    pub(super) json: Option<PathBuf>,

    /// Write an HTML page to this file: the training curves and the memory report
    #[arg(long, value_name = "FILE.html", value_parser = output_path(), conflicts_with = "trace")]
    pub(super) html: Option<PathBuf>,

    /// Write one JSON line per training step to this file: loss, time and memory
    #[arg(long, value_name = "FILE.jsonl", value_parser = output_path())]
    pub(super) log: Option<PathBuf>,

    /// Write the training curves for TensorBoard to a new file in this folder
    #[arg(long, value_name = "FOLDER", value_parser = output_path())]
    pub(super) tensorboard: Option<PathBuf>,

    /// Record every allocation, free and op to this file, for `highwater report`
    #[arg(long, value_name = "FILE.hwm", value_parser = output_path(), conflicts_with = "trace")]
    pub(super) record: Option<PathBuf>,

    /// Write every allocation and free to this text file, one per line
    #[arg(long, value_name = "FILE", value_parser = output_path())]
    pub(super) trace: Option<PathBuf>,

    /// If memory runs out, write the report to this file: JSON, or HTML if it ends in .html
    #[arg(long, value_name = "FILE", value_parser = output_path())]
    pub(super) oom_report: Option<PathBuf>,

    /// Print which device each op runs on, and why
    #[arg(long)]
    pub(super) log_placement: bool,

    #[command(flatten)]
    pub(super) ranks: RankOptions,

    /// That of [`FitOptions`].
    #[arg(skip)]
    pub(super) fit: Option<FitTarget>,
}

impl Options {
    /// Opens a run, calls the program in [mixed precision](highwater_tensor::mixed()) if requested, and prints its error: an
    /// out-of-memory error with its report, also to the file of `--oom-report`. Returns the exit code: 0, or 1 after an error.
    ///
    /// With `--world-size N`, the program runs N times: as each rank, from the last to the first.
    ///
    /// The program's errors are [`RunError`], `Box<dyn std::error::Error>` or those of `anyhow` and `eyre`.
    pub fn run<E: AsRef<dyn std::error::Error + 'static> + From<RunError>>(
        &self,
        name: &'static str,
        program: impl Fn(&Run) -> Result<(), E>,
    ) -> ExitCode {
        let one = |world: World, peaks: Vec<RankPeak>| {
            let open = || {
                let run = Run::open_in(name, self, world, peaks)?;
                // With `--fit`, the plan says.
                let dtype = self.mixed_precision().filter(|_| self.fit.is_none());
                let guard = dtype.map(mixed).transpose().map_err(RunError::from)?;
                Ok((run, guard))
            };
            let (run, _guard) = open().map_err(E::from)?;
            program(&run)?;
            run.peak().map_err(E::from)
        };
        let all = || {
            let Some(size) = self.ranks.world_size.map(usize::from) else {
                let world = self.ranks.connect().map_err(RunError::from).map_err(E::from)?;
                return one(world, Vec::new()).map(drop);
            };
            let mut peaks = Vec::new();
            for rank in (0..size).rev() {
                let world = World::rehearsal(rank, size).map_err(RunError::from).map_err(E::from)?;
                let peak_bytes = one(world, peaks.clone())?;
                peaks.insert(0, RankPeak { rank, peak_bytes });
            }
            Ok(())
        };
        match all() {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                // There is no way left to report an error here.
                let _ = complain(error.as_ref(), self.oom_report.as_deref());
                ExitCode::FAILURE
            }
        }
    }

    /// The 16-bit type of `--precision`; `None` for f32.
    pub(super) fn mixed_precision(&self) -> Option<DType> {
        self.precision.filter(|dtype| *dtype != DType::F32)
    }

    /// The options of one rank: its files, and logs on rank 0 only.
    pub(super) fn for_rank(&self, world: &World) -> Self {
        let mut own = self.clone();
        let files = [&mut own.json, &mut own.html, &mut own.record, &mut own.trace, &mut own.oom_report];
        for file in files {
            *file = file.as_deref().and_then(|path| rank_path(path, world));
        }
        for log in [&mut own.log, &mut own.tensorboard] {
            *log = log.take().filter(|_| world.is_main());
        }
        own
    }

    /// Options for dry runs: the [device](Self::dry_profile) of this one, else this machine.
    pub(super) fn dry_run_options(&self) -> DryRunOptions {
        let options = DryRunOptions::new(self.dry_profile().cloned().unwrap_or_default());
        options.pool_options(self.pool_options())
    }

    /// The options of the pool: of `--allocator`, of `--alloc-conf`, and of each `--pool-option`. The last one of a name counts.
    pub(super) fn pool_options(&self) -> PoolOptions {
        let options = self.pool_option.iter().fold(PoolOptions::default(), |all, later| later.or(all));
        let options = self.alloc_conf.map_or(options, |settings| options.with_alloc_conf(settings));
        self.allocator.map_or(options, |allocator| options.with_allocator(allocator))
    }
}

#[allow(missing_docs, reason = "clap would print the text")]
#[derive(Args, Clone, Debug)]
pub struct SaveOptions {
    /// Write a checkpoint of the model and the optimizer to this file at the end, and on Ctrl-C
    #[arg(long, value_name = "FILE", value_parser = output_path())]
    save: Option<PathBuf>,

    /// Write the checkpoint after every N epochs, or steps if there are no epochs
    #[arg(long, value_name = "N", requires = "save", value_parser = clap::value_parser!(u64).range(1..))]
    save_every: Option<u64>,

    /// Continue from a file written by --save, with the same other options
    #[arg(long, value_name = "FILE")]
    resume: Option<PathBuf>,
}

impl SaveOptions {
    /// Returns the options for a [`Trainer`](crate::Trainer). `unit` is the unit of the interval: [`Every::Epochs`] or
    /// [`Every::Steps`].
    #[must_use]
    pub fn saves(&self, unit: fn(u64) -> Every) -> Saves {
        let saves = self.save.as_ref().map_or_else(Saves::default, Saves::to);
        let saves = self.save_every.map(unit).map_or(saves.clone(), |every| saves.every(every));
        match &self.resume {
            Some(path) => saves.resume(path),
            None => saves,
        }
    }
}

fn parse_precision() -> impl TypedValueParser<Value = DType> {
    PossibleValuesParser::new(["bf16", "f16", "f32"]).map(|name| match name.as_str() {
        "bf16" => DType::BF16,
        "f16" => DType::F16,
        _ => DType::F32,
    })
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

/// Returns a parser of paths of output files. It refuses `-`: standard output is reserved for the results.
#[must_use]
pub fn output_path() -> impl TypedValueParser<Value = PathBuf> {
    PathBufValueParser::new().try_map(|path| match path.to_str() {
        Some("-") => Err("standard output is reserved for the results; use ./- for a file of this name"),
        _ => Ok(path),
    })
}

/// The requested device; `None` lets the runtime choose.
pub(super) type WantedDevice = Option<DeviceId>;

fn parse_pool_option(pair: &str) -> Result<PoolOptions, OptionError> {
    let mut options = PoolOptions::default();
    options.set_pair(pair)?;
    Ok(options)
}

/// The help of an option that sets a setting: what it does, its values, its default and its environment variable.
fn help(setting: &Setting) -> String {
    let variable = setting.variable.map(|name| format!(" [env: {name}]")).unwrap_or_default();
    format!("{} [default: {}]{variable}", setting.help_text(), setting.default)
}

#[cfg(test)]
mod tests {
    use bfc_core::Bytes;
    use clap::{Args, CommandFactory, Parser};
    use highwater_tensor::{DType, settings};

    use super::Options;

    #[derive(Parser)]
    struct Program {
        #[command(flatten)]
        options: Options,
    }

    fn parse(arguments: &[&str]) -> Result<Options, String> {
        let program = Program::try_parse_from([&["program"], arguments].concat());
        program.map(|program| program.options).map_err(|error| error.to_string())
    }

    #[test]
    fn the_help_has_every_setting_with_an_option() {
        let command = Options::augment_args(Program::command());
        for setting in settings().iter().filter(|setting| setting.option.is_some()) {
            let (option, variable) = (setting.option.unwrap(), setting.variable.unwrap());
            let argument = command.get_arguments().find(|argument| argument.get_long() == option.get(2..));
            let argument = argument.unwrap_or_else(|| panic!("no option {option}"));
            let help = argument.get_help().unwrap().to_string();
            let first = setting.help.split('.').next().unwrap();
            assert!(help.starts_with(first) && help.contains(variable), "{option}: {help}");
        }
    }

    #[test]
    fn any_option_of_the_pool_can_be_set() {
        let options = parse(&["--pool-option", "split=twice:5%", "--pool-option", "split=always"]).unwrap();
        assert_eq!(options.pool_options().text("split").as_deref(), Some("always"));
        let options = parse(&["--pool-option", "limit=1GiB", "--allocator", "guard"]).unwrap().pool_options();
        assert_eq!(
            (options.limit, options.text("allocator")),
            (Some(Bytes::gib(1).into()), Some("guard".into()))
        );
        for (pair, expected) in [
            ("splt=always", "there is no pool option \"splt\" (did you mean split?)"),
            ("split=alwys", "(did you mean always?)"),
            ("split", "is not NAME=VALUE"),
        ] {
            let error = parse(&["--pool-option", pair]).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn a_precision_of_f32_is_none() {
        let precision = |name| parse(&["--precision", name]).unwrap().mixed_precision();
        assert_eq!(["bf16", "f16", "f32"].map(precision), [Some(DType::BF16), Some(DType::F16), None]);
        assert_eq!(parse(&[]).unwrap().mixed_precision(), None);
        assert!(parse(&["--precision", "f64"]).unwrap_err().contains("[possible values: bf16, f16, f32]"));
    }

    #[test]
    fn invalid_values_are_refused_with_the_valid_ones() {
        for (arguments, expected) in [
            (["--threads", "0"], "expected a whole number from 1 to 1024"),
            (["--tf32=offf", "--full"], "expected on or off (did you mean off?)"),
            (["--device", "cpuu"], "expected auto, or a device, as in cpu or cuda:1 (did you mean cpu?)"),
            (["--allocator", "gaurd"], "(did you mean guard?)"),
        ] {
            let error = parse(&arguments).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
        assert_eq!(parse(&["--tf32", "--full"]).unwrap().tf32, Some(true));
        assert_eq!(parse(&["--tf32=off"]).unwrap().tf32, Some(false));
    }
}

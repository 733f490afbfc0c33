//! The option `--fit`: finds a plan by dry runs before the program trains with it.

use std::cmp::Ordering;
use std::time::Duration;

use bfc_core::{Amount, Bytes, DeviceKind};
use clap::Args;
use highwater_distributed::{Shard, World};
use highwater_tensor::{Device, DeviceProfile, DeviceSpeed, Error, Result};
use highwater_tracking::PlanChart;
use indicatif::ProgressBar;
use serde_json::{Map, Value, json};

use super::options::Options;
use super::run::RunError;
use crate::fit::{Candidate, Fit, Plan, Space, fit_ranks};

/// The device that `--fit` finds a plan for.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum FitTarget {
    /// The device of the run, with this limit of its pool.
    Present(Option<Bytes>),
    /// A device that this machine need not have.
    Profile(Box<DeviceProfile>),
}

// The type has no doc comment: clap would print it above the program's help.

#[allow(missing_docs, reason = "clap would print the text")]
#[derive(Args, Clone, Debug)]
pub struct FitOptions {
    /// Find the fastest way to train on a device, such as rtx-4090 or h100-80g,limit=90%, or within this memory of this
    /// machine, such as 24MiB, and train so: the micro-batch, the blocks that are recomputed in the backward pass and,
    /// with --precision, the precision
    #[arg(long, value_name = "DEVICE or MEMORY", value_parser = parse_target)]
    #[arg(conflicts_with_all = ["dry_run", "pool", "graphs", "packing"])]
    fit: Option<FitTarget>,
}

fn parse_target(text: &str) -> std::result::Result<FitTarget, String> {
    if text == "this" {
        return Ok(FitTarget::Present(None));
    }
    if text.parse::<u64>().is_ok() {
        return Err(format!("expected memory with a unit, as in {text}MiB or {text}GiB"));
    }
    if let Some(bytes) = text.parse::<Bytes>().ok().filter(|bytes| bytes.get() > 0) {
        return Ok(FitTarget::Present(Some(bytes)));
    }
    match text.parse() {
        Ok(profile) => Ok(FitTarget::Profile(Box::new(profile))),
        Err(error) => {
            Err(format!("expected memory, as in 24MiB, \"this\" for this machine, or a device: {error}"))
        }
    }
}

impl FitOptions {
    /// Whether the option is given.
    #[must_use]
    pub const fn is_given(&self) -> bool {
        self.fit.is_some()
    }
}

impl Options {
    /// Adds `--fit`, for a program that asks for its [plan](crate::Run::plan). Its target limits the pool, or is the device of a dry run.
    #[must_use]
    pub fn with_fit(mut self, fit: &FitOptions) -> Self {
        self.fit.clone_from(&fit.fit);
        self
    }

    /// The limit of the pool: of `--pool`, or of the target of `--fit`.
    pub(super) fn pool_limit(&self) -> Option<Bytes> {
        match &self.fit {
            Some(FitTarget::Present(limit)) => *limit,
            // With a GPU of this machine, the profile describes it.
            Some(FitTarget::Profile(profile)) if self.uses_gpu() => match profile.limit() {
                Some(Amount::Bytes(limit)) => Some(limit),
                _ => None,
            },
            Some(FitTarget::Profile(_)) => None,
            None => self.pool,
        }
    }

    /// The device of a dry run: of `--dry-run`, or the target of `--fit` unless a GPU of this machine trains.
    pub(super) fn dry_profile(&self) -> Option<&DeviceProfile> {
        match &self.fit {
            Some(FitTarget::Profile(profile)) if !self.uses_gpu() => Some(profile),
            Some(_) => None,
            None => self.dry_run.as_ref(),
        }
    }

    /// Whether `--device` asks for a GPU.
    fn uses_gpu(&self) -> bool {
        self.device.is_some_and(|device| device.kind == DeviceKind::Cuda)
    }

    /// The plan without a search.
    pub(super) fn whole_batch(&self, batch_size: usize, world: &World) -> Plan {
        let mut plan = Plan::new(batch_size);
        (plan.accumulate, plan.precision) = (self.ranks.accumulate, self.mixed_precision());
        (plan.ranks, plan.shard) = (world.size(), self.ranks.shard);
        plan
    }

    /// The plans that `--fit` may choose from.
    fn space(&self, plain: &Plan) -> Space {
        let space = Space::new(plain.batch()).ranks([plain.ranks]);
        // Without permission, results keep their precision.
        let space = match self.mixed_precision() {
            Some(dtype) => space.precisions([None, Some(dtype)]),
            None => space,
        };
        match plain.shard {
            Shard::None => space,
            shard => space.shards([shard]),
        }
    }
}

/// Finds a plan for the device of a run. Shows a spinner on standard error if it is a terminal.
pub(super) fn find(
    options: &Options,
    (batch_size, world, threads): (usize, &World, usize),
    device: impl FnMut() -> Result<Device>,
    mut program: impl FnMut(&Device, &Plan, &World) -> Result<()>,
) -> Result<(Plan, Option<Fit>), RunError> {
    let plain = options.whole_batch(batch_size, world);
    let Some(target) = &options.fit else { return Ok((plain, None)) };
    if world.size() > 1 && !world.is_rehearsal() {
        let (argument, expected) = ("--fit", "used with one process, or with --world-size");
        let got = format!("{} processes", world.size());
        return Err(Error::BadArgument { op: "options", argument, expected, got }.into());
    }
    if plain.shard != Shard::None && plain.ranks < 2 {
        let (argument, expected) = ("--shard", "used with several ranks: add --dry-run and --world-size");
        let got = format!("{} and one rank", plain.shard.name());
        return Err(Error::BadArgument { op: "options", argument, expected, got }.into());
    }
    let bar = ProgressBar::new_spinner();
    bar.enable_steady_tick(Duration::from_millis(100));
    let found = search(options, (target, &plain), (world, threads), (device, &mut program), &bar);
    bar.finish_and_clear();
    let found = found?;
    Ok((found.chosen().plan.clone(), Some(found)))
}

/// Searches, and measures real steps if the device is present.
fn search(
    options: &Options,
    (target, plain): (&FitTarget, &Plan),
    (world, threads): (&World, usize),
    (device, program): (
        impl FnMut() -> Result<Device>,
        &mut impl FnMut(&Device, &Plan, &World) -> Result<()>,
    ),
    bar: &ProgressBar,
) -> Result<Fit, RunError> {
    let mut dry = options.dry_run_options();
    match target {
        FitTarget::Profile(profile) => dry = dry.on(DeviceProfile::clone(profile)),
        FitTarget::Present(_) if options.uses_gpu() => {
            let (argument, expected) = ("--fit", "the name of the GPU, such as rtx-4090");
            return Err(Error::BadArgument { op: "options", argument, expected, got: "memory".into() }.into());
        }
        FitTarget::Present(limit) => {
            bar.set_message("measuring the speed of this machine, once");
            let speed = DeviceSpeed::of_this_machine(threads)?;
            let profile = dry.profile().clone().with_threads(threads).with_speed(speed);
            dry = dry.on(profile);
            if let Some(limit) = *limit {
                dry = dry.limit(limit);
            }
        }
    }
    bar.set_message("looking for the fastest plan, by dry runs");
    let mut found = fit_ranks(&dry, &options.space(plain), &mut *program)?;
    if options.dry_profile().is_none() {
        let alone = |device: &Device, plan: &Plan| program(device, plan, world);
        found.measure(device, alone, |measured| {
            bar.set_message(format!("measuring real steps of plan {}", measured + 1));
        })?;
    }
    if found.chosen().smallest_pool_bytes.is_none() {
        bar.set_message("looking for the smallest pool of the plan, by dry runs");
        found.find_smallest_pool(&dry, program)?;
    }
    Ok(found)
}

/// The rows of a run's plans, with the peak of the run.
pub(super) fn chart(found: &Fit, peak_bytes: u64) -> PlanChart {
    found.chart().with_measured(peak_bytes, None)
}

/// The table of the plans, and the peak of the run next to the predicted one.
pub(super) fn text(found: &Fit, peak_bytes: u64) -> String {
    let (runs, seconds) = (found.runs, found.search_seconds);
    let predicted = found.chosen().peak_bytes;
    let compared = match peak_bytes.cmp(&predicted) {
        Ordering::Equal => "as predicted".to_owned(),
        _ => format!("predicted: {predicted} bytes"),
    };
    let found_by = format!("found by {runs} dry runs in {seconds:.2} s");
    format!("\n{found}\n{found_by}; peak of this run: {peak_bytes} bytes, {compared}\n")
}

/// The fields of the JSON file.
pub(super) fn fields(found: &Fit, peak_bytes: u64) -> Map<String, Value> {
    let plan = |candidate: &Candidate| {
        json!({
            "plan": candidate.plan,
            "text": candidate.plan.to_string(),
            "peak_bytes": candidate.peak_bytes,
            "smallest_pool_bytes": candidate.smallest_pool_bytes,
            "seconds": candidate.seconds,
            "is_measured": candidate.is_measured,
            "samples_per_second": candidate.samples_per_second(),
            "limited_by": candidate.work.limit().to_string(),
            "fits": candidate.fits,
        })
    };
    let plans = |plans: &[Candidate]| plans.iter().map(plan).collect::<Vec<_>>();
    let fields = json!({
        "plans": plans(&found.plans),
        "other_plans": plans(&found.others),
        "chosen": 0,
        "whole_batch_reason": found.indivisible,
        "notes": found.notes(),
        "limit_bytes": found.limit_bytes,
        "predicted_peak_bytes": found.chosen().peak_bytes,
        "peak_bytes": peak_bytes,
        "search_seconds": found.search_seconds,
        "dry_runs": found.runs,
    });
    match fields {
        Value::Object(fields) => fields,
        _ => Map::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_is_memory_this_machine_or_a_device() {
        assert_eq!(parse_target("24MiB"), Ok(FitTarget::Present(Some(Bytes::mib(24)))));
        assert_eq!(parse_target("this"), Ok(FitTarget::Present(None)));
        assert!(matches!(parse_target("h100-80g,limit=90%"), Ok(FitTarget::Profile(_))));
        for wrong in ["0", "24", "0MiB", "", "h101", "-1"] {
            let error = parse_target(wrong).unwrap_err();
            assert!(error.starts_with("expected memory"), "{wrong}: {error}");
        }
    }
}

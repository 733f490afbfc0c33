//! Measured step times: a few real steps of the plans that may be the fastest.

use std::time::Duration;

use highwater_tensor::{DType, Device, Result, record_passes};

use super::error::FitError;
use super::found::{Candidate, Fit};
use super::plan::Plan;
use super::time::passes_per_micro_batch;

/// Plans that differ only in recomputation from a measured one are measured while their corrected estimate is at most this many
/// times the fastest measured step: estimates of second runs are good.
const MARGIN: f64 = 1.03;

/// The same for plans with another micro-batch or precision than all measured ones.
const MARGIN_OF_OTHERS: f64 = 1.6;

/// The most plans to measure.
const MOST: usize = 16;

/// The time that the steps of a measurement should take together, in seconds.
const MEASURED: f64 = 0.3;

/// The fewest and the most steps of a measurement. The first step allocates, and is not counted.
const STEPS: (u64, u64) = (3, 200);

impl Fit {
    /// Trains a few steps on the device with each of the plans that may be the fastest, and sorts the plans by the measured
    /// times. Estimates of the other plans are multiplied by the ratio of measured to estimated times.
    ///
    /// `device` returns the device with the limit of the search. `program` is that of [`fit`](super::fit()), and `progress`
    /// receives the number of measured plans before each measurement.
    ///
    /// # Errors
    /// The errors of the closures. A plan that runs out of memory is no error: it no longer fits.
    pub fn measure(
        &mut self,
        mut device: impl FnMut() -> Result<Device>,
        mut program: impl FnMut(&Device, &Plan) -> Result<()>,
        mut progress: impl FnMut(usize),
    ) -> Result<(), FitError> {
        for measured in 0..MOST {
            let Some((plan, estimate)) = self.next_to_measure() else { break };
            progress(measured);
            let seconds = measure(&device()?, &plan, &mut program, estimate)?;
            for candidate in self.plans.iter_mut().chain(&mut self.others) {
                if candidate.plan == plan {
                    (candidate.is_measured, candidate.fits) = (seconds.is_some(), seconds.is_some());
                    candidate.seconds = seconds.unwrap_or(candidate.seconds);
                }
            }
        }
        let ratios = self.ratios();
        for candidate in self.plans.iter_mut().chain(&mut self.others).filter(|plan| !plan.is_measured) {
            candidate.seconds = ratios.correct(candidate);
        }
        self.sort();
        Ok(())
    }

    /// Returns the plan that is most likely the fastest of those that are not measured yet, and its estimated seconds.
    fn next_to_measure(&self) -> Option<(Plan, f64)> {
        let all = || self.plans.iter().chain(&self.others).filter(|candidate| candidate.fits);
        let measured = all().filter(|candidate| candidate.is_measured);
        let fastest = measured.map(|candidate| candidate.seconds).fold(f64::INFINITY, f64::min);
        let ratios = self.ratios();
        let open = all().filter(|candidate| !candidate.is_measured).filter_map(|candidate| {
            let seconds = ratios.correct(candidate);
            let margin = if ratios.know(&candidate.plan) { MARGIN } else { MARGIN_OF_OTHERS };
            (seconds <= fastest * margin).then_some((candidate, seconds))
        });
        let next = open.min_by(|(_, one), (_, other)| one.total_cmp(other));
        next.map(|(candidate, seconds)| (candidate.plan.clone(), seconds))
    }

    fn ratios(&self) -> Ratios {
        let measured = self.plans.iter().chain(&self.others).filter(|candidate| candidate.is_measured);
        let ratio =
            |candidate: &Candidate| (family(&candidate.plan), candidate.seconds / candidate.work.seconds);
        Ratios(measured.map(ratio).collect())
    }
}

/// The properties that plans share if they differ only in recomputation.
fn family(plan: &Plan) -> (usize, Option<DType>) {
    (plan.micro_batch, plan.precision)
}

/// The ratios of measured to estimated seconds, by family.
struct Ratios(Vec<((usize, Option<DType>), f64)>);

impl Ratios {
    fn know(&self, plan: &Plan) -> bool {
        self.0.iter().any(|(known, _)| *known == family(plan))
    }

    /// The estimated seconds of a plan times the smallest ratio of its family, or of all if its family has none.
    fn correct(&self, candidate: &Candidate) -> f64 {
        let own = family(&candidate.plan);
        let smallest = |of: &mut dyn Iterator<Item = f64>| of.fold(f64::INFINITY, f64::min);
        let mut ratio =
            smallest(&mut self.0.iter().filter(|(family, _)| *family == own).map(|(_, ratio)| *ratio));
        if !ratio.is_finite() {
            ratio = smallest(&mut self.0.iter().map(|(_, ratio)| *ratio));
        }
        if ratio.is_finite() { candidate.work.seconds * ratio } else { candidate.seconds }
    }
}

/// Returns the seconds of the fastest step; `None` if memory runs out.
fn measure(
    device: &Device,
    plan: &Plan,
    program: &mut impl FnMut(&Device, &Plan) -> Result<()>,
    estimated: f64,
) -> Result<Option<f64>, FitError> {
    // A saturating cast: tiny estimates ask for many steps.
    let steps = ((MEASURED / estimated) as u64).clamp(STEPS.0, STEPS.1);
    let plan = plan.for_measurement(steps);
    let (result, passes) = record_passes(|| {
        let _plan = plan.enter()?;
        program(device, &plan)
    });
    match result {
        Err(error) if error.needs_more_memory() => return Ok(None),
        result => result?,
    }
    let per_micro_batch = passes_per_micro_batch(passes.len(), steps, plan.accumulate);
    let of_step = usize::try_from(plan.accumulate).unwrap_or(usize::MAX).saturating_mul(per_micro_batch);
    let ends: Vec<_> = passes.iter().skip(of_step - 1).step_by(of_step).map(|pass| pass.at).collect();
    let steps = ends.windows(2).map(|pair| pair[1].duration_since(pair[0]));
    match steps.min() {
        Some(fastest) => Ok(Some(fastest.max(Duration::from_nanos(1)).as_secs_f64())),
        None => Err(FitError::NoStep { plan: Box::new(plan) }),
    }
}

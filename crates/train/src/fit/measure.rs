//! Measured step times: a few real steps of the plans that may be the fastest.

use std::time::Duration;

use highwater_tensor::{Device, Result, record_passes};

use super::error::FitError;
use super::found::Fit;
use super::plan::Plan;

/// Plans are measured while their estimated step takes at most this many times as long as the fastest measured one.
const MARGIN: f64 = 1.15;

/// The most plans to measure.
const MOST: usize = 8;

/// The time that the steps of a measurement should take together, in seconds.
const MEASURED: f64 = 0.3;

/// The fewest and the most steps of a measurement. The first step allocates, and is not counted.
const STEPS: (u64, u64) = (3, 200);

impl Fit {
    /// Trains a few steps on the device with each of the plans that may be the fastest, and sorts the plans by the measured
    /// times. Estimates of the other plans are multiplied by the ratio of the measured to the estimated times.
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
            let all = self.plans.iter().chain(&self.others).filter(|candidate| candidate.fits);
            let fastest =
                all.clone().filter(|candidate| candidate.is_measured).map(|candidate| candidate.seconds);
            let bound = fastest.fold(f64::INFINITY, f64::min) * MARGIN;
            let open = all.filter(|candidate| !candidate.is_measured && candidate.seconds <= bound);
            let next = open.min_by(|one, other| one.seconds.total_cmp(&other.seconds));
            let Some(plan) = next.map(|candidate| candidate.plan.clone()) else { break };
            progress(measured);
            let seconds = measure(&device()?, &plan, &mut program, next.map_or(0.0, |next| next.seconds));
            self.note(&plan, seconds?);
        }
        Ok(())
    }

    /// Notes the measured seconds of a plan, or `None` if it does not fit, and corrects the estimates of the others.
    fn note(&mut self, plan: &Plan, seconds: Option<f64>) {
        let all = || self.plans.iter().chain(&self.others);
        let before =
            all().find(|candidate| candidate.plan == *plan).map_or(f64::NAN, |found| found.work.seconds);
        let is_first = !all().any(|candidate| candidate.is_measured);
        let ratio = seconds.map_or(1.0, |seconds| seconds / before);
        for candidate in self.plans.iter_mut().chain(&mut self.others) {
            if candidate.plan == *plan {
                candidate.is_measured = seconds.is_some();
                candidate.fits = seconds.is_some();
                candidate.seconds = seconds.unwrap_or(candidate.seconds);
            } else if is_first && ratio.is_finite() {
                // The fastest plan is measured first; the others resemble it.
                candidate.seconds = candidate.work.seconds * ratio;
            }
        }
        self.sort();
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
    let micro_batches = usize::try_from(plan.accumulate).unwrap_or(usize::MAX);
    let ends: Vec<_> =
        passes.iter().skip(micro_batches - 1).step_by(micro_batches).map(|pass| pass.at).collect();
    let steps = ends.windows(2).map(|pair| pair[1].duration_since(pair[0]));
    match steps.min() {
        Some(fastest) => Ok(Some(fastest.max(Duration::from_nanos(1)).as_secs_f64())),
        None => Err(FitError::NoStep { plan: Box::new(plan) }),
    }
}

//! Estimated and measured times of training steps.

use std::time::Instant;

use highwater::prelude::*;
use highwater::{DeviceSpeed, Runtime, StepTime};

use super::{Options, start, start_on};
use crate::Program;
use crate::workload::Workload;

/// One way to run a workload.
struct Case {
    name: String,
    estimate: StepTime,
    program: Program,
    steps: usize,
    seconds: f64,
}

/// Prints a table of estimated and measured times: f32 and autocast, on one thread and on `threads`.
pub fn compare(
    workloads: &[Workload],
    threads: usize,
    rounds: usize,
    options: Options,
) -> anyhow::Result<()> {
    let mut counts = vec![1, threads];
    counts.dedup();
    for &threads in &counts {
        let start = Instant::now();
        let speed = DeviceSpeed::of_this_machine(threads)?;
        println!("{threads} threads: {speed}; found in {:.2} s", start.elapsed().as_secs_f64());
    }
    println!("\n| step | estimated, ms | measured, ms | error | limit |\n|---|---|---|---|---|");
    for &workload in workloads {
        // The cases of a workload are interleaved, and the fastest step of each counts.
        let mut cases = Vec::new();
        for &threads in &counts {
            for autocast in [false, true] {
                cases.push(Case::new(workload, threads, Options { autocast, ..options })?);
            }
        }
        for _ in 0..rounds {
            cases.iter_mut().try_for_each(|case| case.measure(workload))?;
        }
        cases.iter().for_each(Case::print);
    }
    Ok(())
}

impl Case {
    fn new(workload: Workload, threads: usize, options: Options) -> anyhow::Result<Self> {
        let precision = if options.autocast { "autocast" } else { "f32" };
        let name = format!("{workload:?}, {precision}, {threads} threads").to_lowercase();
        let estimate = estimate(workload, threads, options)?;
        let program = start(workload, threads, options)?;
        Ok(Self { name, estimate, program, steps: 0, seconds: f64::INFINITY })
    }

    /// Runs a block of steps after one that is not counted, as other cases have emptied the caches.
    fn measure(&mut self, workload: Workload) -> anyhow::Result<()> {
        let steps = workload.steps_per_block();
        for number in 0..=steps {
            let start = Instant::now();
            (self.program.step)(self.steps)?;
            self.steps += 1;
            if number > 0 {
                self.seconds = self.seconds.min(start.elapsed().as_secs_f64());
            }
        }
        Ok(())
    }

    fn print(&self) {
        let [estimated, measured] = [self.estimate.seconds, self.seconds].map(|seconds| seconds * 1e3);
        let error = (estimated / measured - 1.0) * 100.0;
        let limit = self.estimate.limit();
        println!("| {} | {estimated:.3} | {measured:.3} | {error:+.0} % | {limit} |", self.name);
    }
}

/// Returns the estimated time of a step, from a dry run.
fn estimate(workload: Workload, threads: usize, options: Options) -> anyhow::Result<StepTime> {
    let profile =
        DeviceProfile::this_machine().with_threads(threads).with_speed(DeviceSpeed::of_this_machine(threads)?);
    let runtime = Runtime::builder().dry_profile(profile).dry_values(|_| Some(0.5.into())).build()?;
    let device = runtime.dry()?;
    let mut program = start_on(workload, device.clone(), options)?;
    // The first step also creates the state of the optimizer.
    (program.step)(0)?;
    let before = device.estimated_time().unwrap_or_default();
    (program.step)(1)?;
    Ok(device.estimated_time().unwrap_or_default() - before)
}

//! The speed of this machine's CPU, measured with small training steps and cached on disk.
//!
//! ```text
//! programs → kernels with their work and time → rates per class of kernels and size (rates)
//! ```

mod cache;
mod programs;
mod rates;

use std::sync::Arc;
use std::time::{Duration, Instant};

use bfc_core::{DeviceId, DeviceKind, HostMemory};
use highwater_kernels::backend::timed::{KernelTime, TimedBackend};

use self::cache::SpeedCache;
use self::programs::{Program, programs};
use crate::autograd::mixed;
use crate::backend::DeviceSpeed;
use crate::device::{Device, Runtime};
use crate::error::Result;
use crate::shape::DType;

/// The device of the measurement.
const MEASURED: DeviceId = DeviceId::new(DeviceKind::Cpu, 1);

/// The time for each program, and the fewest and most steps.
const BUDGET: Duration = Duration::from_millis(30);
const STEPS: [usize; 2] = [3, 400];

impl DeviceSpeed {
    /// Returns the speed of this machine's CPU with `threads` compute threads.
    ///
    /// The first call measures it for about three seconds: small training steps run, and the fastest one of each
    /// kind counts. The result is cached in `$XDG_CACHE_HOME/highwater`, else `~/.cache/highwater`, under the model of the CPU,
    /// its instruction set, the threads and the version of this crate. Without a writable folder each process measures.
    ///
    /// # Errors
    /// If the threads or the memory are unavailable.
    pub fn of_this_machine(threads: usize) -> Result<Self> {
        let cache = SpeedCache::of_user(threads);
        if let Some(speed) = cache.get() {
            return Ok(speed);
        }
        let speed = measure(threads)?;
        cache.put(&speed);
        Ok(speed)
    }

    /// Returns whether [`of_this_machine`](Self::of_this_machine) finds a cached measurement, so that it takes no time.
    #[must_use]
    pub fn is_cached(threads: usize) -> bool {
        SpeedCache::of_user(threads).get().is_some()
    }
}

/// Measures the speed of this machine's CPU.
fn measure(threads: usize) -> Result<DeviceSpeed> {
    let backend = Arc::new(TimedBackend::new(threads)?);
    let runtime = Runtime::builder()
        .device(MEASURED, Arc::clone(&backend) as _, Arc::new(HostMemory::new()))
        .threads(threads)
        .build()?;
    let [measured, plain] = [runtime.device(MEASURED)?, runtime.cpu()?];
    let mut samples = Vec::new();
    for (program, multiplies) in programs() {
        samples.extend(fastest(&backend, &measured, program)?);
        if multiplies {
            let _guard = mixed(DType::BF16)?;
            samples.extend(fastest(&backend, &measured, program)?);
        }
    }
    let small = fastest(&backend, &measured, programs::SMALL)?;
    let launch = launch(&small, step_seconds(&plain, programs::SMALL)?);
    Ok(rates::speed(&samples, launch, &cache::machine(threads)))
}

/// Runs the steps of a program. Returns the samples of the fastest step.
fn fastest(backend: &TimedBackend, device: &Device, program: Program) -> Result<Vec<KernelTime>> {
    let mut step = program(device)?;
    step()?;
    backend.take();
    let (mut fastest, mut shortest) = (Vec::<KernelTime>::new(), f64::INFINITY);
    let start = Instant::now();
    for number in 0..STEPS[1] {
        if number >= STEPS[0] && start.elapsed() > BUDGET {
            break;
        }
        step()?;
        let samples = backend.take();
        let seconds: f64 = samples.iter().map(|sample| sample.seconds).sum();
        if seconds < shortest {
            (fastest, shortest) = (samples, seconds);
        }
    }
    // Short kernels take no longer than reading the clock.
    let timer = timer_seconds();
    for sample in &mut fastest {
        sample.seconds = (sample.seconds - timer).max(sample.seconds / 4.0);
    }
    Ok(fastest)
}

/// Returns the fastest time of a step, in seconds.
fn step_seconds(device: &Device, program: Program) -> Result<f64> {
    let mut step = program(device)?;
    let (mut fastest, start) = (f64::INFINITY, Instant::now());
    while start.elapsed() < BUDGET {
        let step_start = Instant::now();
        step()?;
        fastest = fastest.min(step_start.elapsed().as_secs_f64());
    }
    Ok(fastest)
}

/// Returns the seconds that a kernel takes besides its computation: the op, its accounts and its memory.
fn launch(samples: &[KernelTime], step: f64) -> f64 {
    let kernels = samples.iter().filter(|sample| sample.work.is_some()).count().max(1) as f64;
    let computed: f64 = samples.iter().map(|sample| sample.seconds).sum();
    ((step - computed) / kernels).max(0.0)
}

/// Returns the seconds that a measured time contains for reading the clock.
fn timer_seconds() -> f64 {
    let pairs = (0..1000).map(|_| Instant::now().elapsed());
    pairs.min().unwrap_or_default().as_secs_f64()
}

#[cfg(test)]
mod tests {
    use super::*;
    use highwater_kernels::cost::Class;

    /// Kernels without a rate would take no time. All of them occur in the programs.
    #[test]
    fn a_measurement_finds_a_rate_for_each_class() {
        let speed = measure(1).unwrap();
        assert!(speed.is_valid() && speed.seconds_per_kernel() > 0.0 && speed.link_bytes_per_second() > 0.0);
        for (class, [rates, _]) in speed.classes.iter().enumerate() {
            let has_rate = rates.products.rate(1e6).or(rates.elements.rate(1e6)).is_some();
            assert!(has_rate || class == Class::Arithmetic as usize, "class {class}");
        }
        let [single, half] = speed.multiply_adds_per_second();
        assert!(single > 0.0 && half > 0.0 && speed.bytes_per_second() > 0.0, "{speed}");
    }
}

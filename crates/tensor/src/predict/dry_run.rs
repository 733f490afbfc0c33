//! Dry runs: run a program without computing, and measure its memory.

use std::fmt;
use std::sync::Arc;

use bfc_core::{Bytes, DeviceId, DeviceKind, Environment, PoolOptions, Stats};
use highwater_tracking::Report;

use crate::backend::{DeviceRules, StepTime};
use crate::device::{Device, DeviceProfile, DryRead, DryValues, Runtime, page_locked, with_device};
use crate::error::Result;
use crate::shape::Scalar;

/// The device of a dry run.
const DRY: DeviceId = DeviceId::new(DeviceKind::Dry, 0);

/// Runs a program as a dry run, and returns the memory that it requires on the device of the profile.
///
/// The program receives the device, which [`Device::best`] also returns during the run. Its result may
/// contain live tensors.
///
/// ```
/// use highwater::alloc::Bytes;
/// use highwater::{DeviceProfile, Tensor, dry_run};
///
/// // Two tensors of 48 GB on a GPU that this machine does not have.
/// let card = DeviceProfile::gpu("a100-80g").expect("a known GPU");
/// let run = dry_run(card, |device| {
///     let x = Tensor::zeros(device, [110_000, 110_000])?;
///     x.relu().map(drop)
/// });
/// assert!(run.is_err_and(|error| error.out_of_memory().is_some()));
///
/// let run = dry_run(DeviceProfile::this_machine(), |device| {
///     let x = Tensor::zeros(device, [1000, 1000])?;
///     x.relu().map(drop)
/// })?;
/// assert_eq!(run.peak.requested, 8_000_000);
/// println!("{run}");
/// # Ok::<(), highwater::Error>(())
/// ```
///
/// # Errors
/// The errors of the program and of [`RuntimeBuilder::build`](crate::RuntimeBuilder::build). The program
/// fails with an out-of-memory error if the device has too little memory. It fails with
/// [`Error::NoData`](crate::Error::NoData) if it reads a value that is not [defined](DryRunOptions::values).
pub fn dry_run<R>(
    options: impl Into<DryRunOptions>,
    program: impl FnOnce(&Device) -> Result<R>,
) -> Result<DryRun<R>> {
    options.into().run(program)
}

/// Options of a dry run, created from a [`DeviceProfile`]. The profile determines the allocation rules, so a
/// number of bytes alone is not enough. `DeviceProfile::this_machine().with_limit(Bytes::mib(64))` is a pool
/// of 64 MiB on this machine.
#[derive(Clone, Debug)]
pub struct DryRunOptions {
    profile: DeviceProfile,
    pool: PoolOptions,
    environment: Option<Environment>,
    values: DryValues,
}

impl DryRunOptions {
    /// Returns the default options for this device.
    #[must_use]
    pub fn new(profile: DeviceProfile) -> Self {
        Self { profile, pool: PoolOptions::default(), environment: None, values: DryValues::default() }
    }

    /// Returns the options for another device.
    #[must_use]
    pub fn on(self, profile: DeviceProfile) -> Self {
        Self { profile, ..self }
    }

    /// Returns the options for a device of this kind with 8 TiB of memory and no limit, on which every program has a peak.
    #[must_use]
    pub fn unlimited(mut self) -> Self {
        self.profile = self.profile.without_limit().with_memory(Bytes::gib(8 << 10));
        self.pool.limit = None;
        self
    }

    /// Sets options of the pool, as [`RuntimeBuilder::pool_options`](crate::RuntimeBuilder::pool_options)
    /// does. Later options take precedence.
    #[must_use]
    pub fn pool_options(self, options: PoolOptions) -> Self {
        Self { pool: options.or(self.pool), ..self }
    }

    /// Limits the pool, as [`RuntimeBuilder::pool`](crate::RuntimeBuilder::pool): the pool is one region, unless
    /// options ask for growth.
    #[must_use]
    pub fn limit(self, limit: Bytes) -> Self {
        self.pool_options(PoolOptions::default().with_limit(limit))
    }

    /// Uses this environment instead of the process's variables.
    #[must_use]
    pub fn environment(self, environment: Environment) -> Self {
        Self { environment: Some(environment), ..self }
    }

    /// Defines the values that reads return, for instance of a loss. `answer` returns the value of all
    /// elements of the tensor, or `None` for an error.
    ///
    /// ```
    /// use highwater::{DeviceProfile, DryRunOptions, Tensor};
    ///
    /// let options = DryRunOptions::new(DeviceProfile::this_machine()).values(|read| Some(0.5.into()));
    /// let run = options.run(|device| {
    ///     let loss = Tensor::zeros(device, [8, 8])?.mean_all()?;
    ///     loss.item::<f32>()
    /// })?;
    /// assert_eq!(run.result, 0.5);
    /// # Ok::<(), highwater::Error>(())
    /// ```
    #[must_use]
    pub fn values(self, answer: impl Fn(&DryRead<'_>) -> Option<Scalar> + Send + Sync + 'static) -> Self {
        Self { values: DryValues::new(answer), ..self }
    }

    /// Returns the profile of the device.
    #[must_use]
    pub const fn profile(&self) -> &DeviceProfile {
        &self.profile
    }

    /// Runs a program as [`dry_run`] does.
    ///
    /// # Errors
    /// As [`dry_run`].
    pub fn run<R>(&self, program: impl FnOnce(&Device) -> Result<R>) -> Result<DryRun<R>> {
        let device = self.device()?;
        let result = with_device(&device, || program(&device))?;
        let DryRun { result: (), profile, peak, page_locked, time, report } = self.figures(&device)?;
        Ok(DryRun { result, profile, peak, page_locked, time, report })
    }

    /// The device without memory that the program runs on.
    fn device(&self) -> Result<Device> {
        let mut builder = Runtime::builder()
            .dry_profile(self.profile.clone())
            .dry_values_of(self.values.clone())
            .pool_options(DRY, self.pool);
        if let Some(environment) = &self.environment {
            builder = builder.environment(environment.clone());
        }
        builder.build()?.dry()
    }

    /// The figures of a program that ran on the device.
    fn figures(&self, device: &Device) -> Result<DryRun<()>> {
        let pool = Arc::clone(device.default_allocator()?);
        let mut pools = vec![Arc::clone(&pool)];
        if device.external_memory().num_allocs > 0 {
            pools.push(device.external_allocator());
        }
        let report = Report::new(device.tracker(), &pools);
        let peak = DryPeak::of(&pool.stats());
        let page_locked = match self.profile.rules() {
            DeviceRules::Cpu => None,
            DeviceRules::Cuda { .. } => {
                Some(DryPeak::of(&device.allocator(page_locked())?.allocator().stats()))
            }
        };
        let time = device.estimated_time();
        Ok(DryRun { result: (), profile: self.profile.clone(), peak, page_locked, time, report })
    }
}

impl From<DeviceProfile> for DryRunOptions {
    fn from(profile: DeviceProfile) -> Self {
        Self::new(profile)
    }
}

impl From<&DeviceProfile> for DryRunOptions {
    fn from(profile: &DeviceProfile) -> Self {
        Self::new(profile.clone())
    }
}

impl From<&DryRunOptions> for DryRunOptions {
    fn from(options: &DryRunOptions) -> Self {
        options.clone()
    }
}

/// The result of a dry run.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct DryRun<R> {
    /// The result of the program.
    pub result: R,
    /// The profile of the device.
    pub profile: DeviceProfile,
    /// The peak of the device's pool.
    pub peak: DryPeak,
    /// The peak of the pool of page-locked memory, which a GPU uses for uploads; `None` for CPUs.
    pub page_locked: Option<DryPeak>,
    /// The estimated time of all kernels and uploads; `None` unless the profile has a
    /// [speed](DeviceProfile::speed).
    pub time: Option<StepTime>,
    /// The figures by op, module and category. Live bytes are those after the program returned.
    pub report: Report,
}

/// The peak of a pool in a dry run, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct DryPeak {
    /// Requested bytes of the live blocks at the peak of `in_use`.
    pub requested: u64,
    /// Allocated bytes: requests rounded up.
    pub in_use: u64,
    /// Bytes that the pool reserved from the device.
    pub reserved: u64,
    /// The limit of the pool; `None` without a limit.
    pub limit: Option<u64>,
}

impl DryPeak {
    const fn of(stats: &Stats) -> Self {
        Self {
            requested: stats.peak_bytes_requested,
            in_use: stats.peak_bytes_in_use,
            reserved: stats.peak_bytes_reserved,
            limit: stats.bytes_limit,
        }
    }
}

impl fmt::Display for DryPeak {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { requested, in_use, reserved, limit } = *self;
        write!(f, "{} requested, {} in use, {} reserved", Bytes(requested), Bytes(in_use), Bytes(reserved))?;
        limit.map_or(Ok(()), |limit| write!(f, " of {}", Bytes(limit)))
    }
}

impl<R> fmt::Display for DryRun<R> {
    /// Prints the report's tables, then the peak on one line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.report)?;
        write!(f, "on {}: {}", self.profile, self.peak)?;
        match self.page_locked.filter(|page_locked| page_locked.in_use > 0) {
            Some(page_locked) => write!(f, "\npage-locked for uploads: {page_locked}"),
            None => Ok(()),
        }
    }
}

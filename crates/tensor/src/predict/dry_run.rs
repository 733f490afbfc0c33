//! A program run dry, and what it would have taken.

use std::fmt;
use std::sync::Arc;

use bfc_core::{Bytes, DeviceId, DeviceKind, Environment, PoolOptions, Stats};
use highwater_tracking::Report;

use crate::backend::DeviceRules;
use crate::device::{Device, DeviceProfile, DryRead, DryValues, Runtime, page_locked, with_device};
use crate::error::Result;
use crate::shape::Scalar;

/// The device that a dry run takes place on.
const DRY: DeviceId = DeviceId::new(DeviceKind::Dry, 0);

/// Runs a program on a device that computes nothing, and says what memory it takes on the device that the profile describes.
///
/// The program gets the device, on which [`Device::best`] answers it too; what it leaves alive on return may be part of its result.
///
/// ```
/// use highwater::alloc::Bytes;
/// use highwater::{DeviceProfile, Tensor, dry_run};
///
/// // Twice 48 GB of numbers on a card that is not here.
/// let card = DeviceProfile::gpu("a100-80g").expect("it is a known one");
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
/// What the program returns: among others an out-of-memory error, if the device has not enough, and
/// [`Error::NoData`](crate::Error::NoData) where it reads a value that nobody [scripted](DryRunOptions::values). Those of
/// [`RuntimeBuilder::build`](crate::RuntimeBuilder::build).
pub fn dry_run<R>(
    options: impl Into<DryRunOptions>,
    program: impl FnOnce(&Device) -> Result<R>,
) -> Result<DryRun<R>> {
    options.into().run(program)
}

/// How a dry run is to be, made from a [`DeviceProfile`]. The profile says whose allocation rules apply, so there is no dry run of
/// a number of bytes alone: `DeviceProfile::this_machine().with_limit(Bytes::mib(64))` is a pool of 64 MiB on this machine.
#[derive(Clone, Debug)]
pub struct DryRunOptions {
    profile: DeviceProfile,
    pool: PoolOptions,
    environment: Option<Environment>,
    values: DryValues,
}

impl DryRunOptions {
    /// A dry run on this device.
    #[must_use]
    pub fn new(profile: DeviceProfile) -> Self {
        Self { profile, pool: PoolOptions::default(), environment: None, values: DryValues::default() }
    }

    /// The same on a pool of which something is chosen, as by [`RuntimeBuilder::pool_options`](crate::RuntimeBuilder::pool_options).
    /// What is said here counts before what was said before.
    #[must_use]
    pub fn pool_options(self, options: PoolOptions) -> Self {
        Self { pool: options.or(self.pool), ..self }
    }

    /// The same with the limit of the pool.
    #[must_use]
    pub fn limit(self, limit: Bytes) -> Self {
        self.pool_options(PoolOptions::default().with_limit(limit))
    }

    /// The same in this environment instead of the process's.
    #[must_use]
    pub fn environment(self, environment: Environment) -> Self {
        Self { environment: Some(environment), ..self }
    }

    /// The same with an answer for a program that reads values, as when it looks at its loss: a number that all elements of
    /// the tensor read then are, or `None` for an error.
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

    /// The device that the run is to be on.
    #[must_use]
    pub const fn profile(&self) -> &DeviceProfile {
        &self.profile
    }

    /// See [`dry_run`].
    ///
    /// # Errors
    /// As [`dry_run`].
    pub fn run<R>(&self, program: impl FnOnce(&Device) -> Result<R>) -> Result<DryRun<R>> {
        let mut builder = Runtime::builder()
            .dry_profile(self.profile.clone())
            .dry_values_of(self.values.clone())
            .pool_options(DRY, self.pool);
        if let Some(environment) = &self.environment {
            builder = builder.environment(environment.clone());
        }
        let device = builder.build()?.dry()?;
        let result = with_device(&device, || program(&device))?;
        let pool = Arc::clone(device.default_allocator()?);
        let report = Report::new(device.tracker(), std::slice::from_ref(&pool));
        let peak = DryPeak::of(&pool.stats());
        let page_locked = match self.profile.rules() {
            DeviceRules::Cpu => None,
            DeviceRules::Cuda { .. } => {
                Some(DryPeak::of(&device.allocator(page_locked())?.allocator().stats()))
            }
        };
        Ok(DryRun { result, profile: self.profile.clone(), peak, page_locked, report })
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

/// What a dry run came to.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct DryRun<R> {
    /// What the program returned.
    pub result: R,
    /// The device that the run stood for.
    pub profile: DeviceProfile,
    /// The most that the device's pool held at a time.
    pub peak: DryPeak,
    /// The most that the pool of page-locked memory of a GPU held, through which its uploads go; `None` for processors.
    pub page_locked: Option<DryPeak>,
    /// The figures by op, by module and by category. Live bytes are those when the program had returned.
    pub report: Report,
}

/// The most that the pool of a dry run held at a time, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct DryPeak {
    /// Asked for by what was live when most was in use.
    pub requested: u64,
    /// Granted to it: requests rounded up.
    pub in_use: u64,
    /// Taken by the pool from the device, used or not.
    pub reserved: u64,
    /// What the pool could have taken; `None` without a limit.
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
    /// The report's tables, then the peak in a line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.report)?;
        write!(f, "on {}: {}", self.profile, self.peak)?;
        match self.page_locked.filter(|page_locked| page_locked.in_use > 0) {
            Some(page_locked) => write!(f, "\npage-locked for uploads: {page_locked}"),
            None => Ok(()),
        }
    }
}

//! The builder of a runtime: options, and the registration of the devices' memory.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock, RwLock};

use bfc_core::sim::SimDevice;
use bfc_core::{
    AllocatorChoice, BfcConfig, Bytes, DeviceId, DeviceScope, Environment, EnvironmentError, HostMemory,
    JoinRule, MemoryKind, Packing, Pool, PoolOptions, PoolSettings, Registry, Span, SubAllocator,
    default_reserve,
};
use highwater_tracking::{Tracker, UsableMemory};

use super::environment::read_environment;
use super::limit::{custom_device_config, host_addresses, host_config, with_environment_limit};
use super::{DRY, Inner, Runtime};
use crate::backend::{Backend, DeviceRules};
use crate::device::{DeviceProfile, DryRead, DryValues};
use crate::error::{Error, Result};
use crate::settings::{TF32, THREADS};
use crate::shape::Scalar;

/// Options of a [`Runtime`].
///
/// Options that the code does not set come from [environment variables](bfc_core::environment) such as
/// `HIGHWATER_ALLOCATOR` and `HIGHWATER_POOL_LIMIT`, or else have defaults.
///
/// ```
/// use highwater::alloc::{AllocatorChoice, Bytes, DeviceId};
/// use highwater::{Runtime, Tensor};
///
/// // Guards every tensor of cpu:0 with canaries.
/// let runtime = Runtime::builder().pool(Bytes::gib(1)).allocator(DeviceId::CPU, AllocatorChoice::Guard).build()?;
/// let device = runtime.cpu()?;
/// drop(Tensor::zeros(&device, [1000])?);
/// assert!(device.default_allocator()?.find_damage().is_some_and(|found| found.is_empty()));
/// # Ok::<(), highwater::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct RuntimeBuilder {
    pools: PoolSettings,
    config: Option<BfcConfig>,
    packings: BTreeMap<DeviceScope, Arc<Packing>>,
    environment: Option<Environment>,
    threads: Option<usize>,
    registry: Option<Arc<Registry>>,
    devices: Vec<CustomDevice>,
    tracker: Option<Arc<Tracker>>,
    dry_profile: Option<DeviceProfile>,
    dry_values: DryValues,
    tf32: Option<bool>,
}

/// A device that the program adds.
#[derive(Clone, Debug)]
struct CustomDevice {
    id: DeviceId,
    backend: Arc<dyn Backend>,
    memory: Arc<dyn SubAllocator>,
}

impl RuntimeBuilder {
    /// Limits each device's pool. The first request takes the whole limit as one region. That costs host
    /// memory only where it is used, but reserves the memory of a GPU at once. With
    /// [`PoolOptions::with_allow_growth`] the pool starts small and grows up to the limit.
    ///
    /// Default for host memory: all memory available to this process, less a small reserve
    /// ([`UsableMemory`]); 64 GiB if the system does not report it. Out-of-memory reports name the origin of
    /// the limit.
    #[must_use]
    pub fn pool(self, limit: Bytes) -> Self {
        self.pool_options(DeviceScope::All, PoolOptions::default().with_limit(limit))
    }

    /// Sets all options of each device's pool except the allocator.
    #[must_use]
    pub fn pool_config(mut self, config: BfcConfig) -> Self {
        self.pools.choose(DeviceScope::All, PoolOptions::all_of(&config));
        self.config = Some(config);
        self
    }

    /// Sets options for the pools of one device, of all devices of a kind, or of all devices. Options for
    /// fewer devices take precedence.
    #[must_use]
    pub fn pool_options(mut self, devices: impl Into<DeviceScope>, options: PoolOptions) -> Self {
        self.pools.choose(devices, options);
        self
    }

    /// Selects the allocator of some devices. Default: [`AllocatorChoice::Bfc`].
    #[must_use]
    pub fn allocator(self, devices: impl Into<DeviceScope>, choice: AllocatorChoice) -> Self {
        self.pool_options(devices, PoolOptions::default().with_allocator(choice))
    }

    /// Places blocks by the packing of a training step. Requests outside of the packing use best fit with
    /// coalescing. Selects [`AllocatorChoice::Packed`] for these devices; a later
    /// [`allocator`](Self::allocator) takes precedence. If a pool grows, its first region is large enough for
    /// the packing.
    ///
    /// [`packing_counts`](bfc_core::PoolView::packing_counts) of the device's allocator counts the blocks that
    /// follow the packing. A step that follows the packing to its end restarts the packing. Other steps restart it
    /// with [`begin_step`](bfc_core::PoolView::begin_step).
    ///
    /// ```
    /// use highwater::alloc::{Bytes, DeviceId, PackingOptions};
    /// use highwater::{Device, Runtime, Tensor};
    /// use highwater::traces::{Step, Trace, packing_of};
    /// use std::sync::Arc;
    ///
    /// fn step(device: &Device) -> highwater::Result<()> {
    ///     let x = Tensor::ones(device, [64, 64])?;
    ///     let y = x.matmul(&x)?.relu()?;
    ///     y.matmul(&x).map(drop)
    /// }
    ///
    /// // Record a step in a dry run.
    /// let dry = Runtime::builder().build()?.dry()?;
    /// dry.tracker().start_log(Bytes::mib(1));
    /// step(&dry)?;
    /// let trace = Trace::from_recording(&dry.tracker().take_log())?;
    /// let packing = packing_of(&trace, &Step::Whole, &PackingOptions::default(), &mut |_| true)?;
    ///
    /// let device = Runtime::builder().packing(DeviceId::CPU, Arc::new(packing)).build()?.cpu()?;
    /// for _ in 0..3 {
    ///     step(&device)?;
    /// }
    /// let counts = device.default_allocator()?.packing_counts().expect("the pool has a packing");
    /// assert_eq!((counts.steps, counts.unexpected), (3, 0));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn packing(mut self, devices: impl Into<DeviceScope>, packing: Arc<Packing>) -> Self {
        let devices = devices.into();
        self.packings.insert(devices, packing);
        self.allocator(devices, AllocatorChoice::Packed)
    }

    /// Uses this environment instead of the process's variables. `Environment::default()` sets nothing.
    #[must_use]
    pub fn environment(mut self, environment: Environment) -> Self {
        self.environment = Some(environment);
        self
    }

    /// Sets the number of compute threads, at least 1. Default: the variable `HIGHWATER_THREADS`, else one per core.
    /// Results do not depend on it.
    #[must_use]
    pub const fn threads(mut self, threads: usize) -> Self {
        self.threads = Some(threads);
        self
    }

    /// Keeps the accounts of ops in `tracker`. Default: a new tracker.
    #[must_use]
    pub fn tracker(mut self, tracker: Arc<Tracker>) -> Self {
        self.tracker = Some(tracker);
        self
    }

    /// Registers memory in `registry`, which must not contain `cpu:0` or `dry:0` yet.
    #[must_use]
    pub fn registry(mut self, registry: Arc<Registry>) -> Self {
        self.registry = Some(registry);
        self
    }

    /// Sets the profile of `dry:0`. Default: this machine's CPU.
    ///
    /// Pool options for `dry:0` and [`threads`](Self::threads) take precedence over the profile.
    ///
    /// ```
    /// use highwater::{DeviceProfile, Runtime};
    /// let profile = DeviceProfile::gpu("t4").expect("a known GPU");
    /// let card = Runtime::builder().dry_profile(profile).build()?.dry()?;
    /// let limit = card.default_allocator()?.stats().bytes_limit;
    /// assert!(limit.is_some_and(|limit| limit > 13 << 30 && limit < 14 << 30));
    /// # Ok::<(), highwater::Error>(())
    /// ```
    #[must_use]
    pub fn dry_profile(mut self, profile: DeviceProfile) -> Self {
        self.dry_profile = Some(profile);
        self
    }

    /// Defines the values that reads on `dry:0` return, by [`Tensor::to_vec`](crate::Tensor::to_vec) or
    /// [`Tensor::item`](crate::Tensor::item). `answer` returns the value of all elements, or `None` for
    /// [`Error::NoData`], which is the default.
    ///
    /// ```
    /// use highwater::{Runtime, Tensor};
    /// let dry = Runtime::builder().dry_values(|read| Some(1.into())).build()?.dry()?;
    /// assert_eq!(Tensor::zeros(&dry, [2])?.to_vec::<f32>()?, [1.0, 1.0]);
    /// # Ok::<(), highwater::Error>(())
    /// ```
    #[must_use]
    pub fn dry_values(self, answer: impl Fn(&DryRead<'_>) -> Option<Scalar> + Send + Sync + 'static) -> Self {
        self.dry_values_of(DryValues::new(answer))
    }

    pub(crate) fn dry_values_of(mut self, values: DryValues) -> Self {
        self.dry_values = values;
        self
    }

    /// Allows CUDA devices to round the factors of f32 matrix products to TF32 (11 significant bits), which
    /// tensor cores multiply several times faster. Sums stay in f32. Default: the variable `HIGHWATER_TF32`, else off.
    #[must_use]
    pub const fn tf32(mut self, tf32: bool) -> Self {
        self.tf32 = Some(tf32);
        self
    }

    /// Adds or replaces a device with one of the [backends](crate::backend) and custom memory. The trait [`Backend`] is
    /// sealed. The device has a pool like any other. If the backend supports step graphs, the pool joins freed blocks at
    /// once ([`JoinRule`]).
    ///
    /// The backend must be able to address the memory: [`CpuBackend`](crate::backend::cpu::CpuBackend) requires host memory, a backend of a
    /// GPU requires memory of that GPU. Otherwise [`build`](Self::build) fails with [`Error::WrongMemory`].
    #[must_use]
    pub fn device(mut self, id: DeviceId, backend: Arc<dyn Backend>, memory: Arc<dyn SubAllocator>) -> Self {
        self.devices.retain(|device| device.id != id);
        self.devices.push(CustomDevice { id, backend, memory });
        self
    }

    /// Builds the runtime.
    ///
    /// # Errors
    /// [`Error::Environment`] if an environment variable is invalid; [`Error::Registry`] if the registry
    /// already contains the devices; [`Error::WrongMemory`] if the backend of a [custom device](Self::device)
    /// cannot address its memory.
    pub fn build(mut self) -> Result<Runtime> {
        let environment = match self.environment.take() {
            Some(environment) => environment,
            None => read_environment()?,
        };
        self.build_in(&environment, None)
    }

    pub(super) fn build_in(
        self,
        environment: &Environment,
        environment_error: Option<EnvironmentError>,
    ) -> Result<Runtime> {
        let profile = self.dry_profile.unwrap_or_default();
        let threads_of_environment =
            environment.number(&THREADS)?.map(|threads| usize::try_from(threads).unwrap_or(usize::MAX));
        let tf32 = self.tf32.or(environment.switch(&TF32)?).unwrap_or(false);
        let threads = self
            .threads
            .or(profile.threads())
            .or(threads_of_environment)
            .unwrap_or_else(|| std::thread::available_parallelism().map_or(1, std::num::NonZero::get))
            .max(1);
        let usable = UsableMemory::of_this_process();
        let config = self.config.clone().unwrap_or_else(|| host_config(usable.as_ref()));
        // Checked before the registry changes.
        for device in &self.devices {
            let kind = device.memory.memory_kind();
            if !device.backend.addresses(kind, device.memory.address_space()) {
                let name = device.id.to_string();
                return Err(Error::WrongMemory { device: name.clone(), kind, allocator: name });
            }
        }
        let registry = self.registry.unwrap_or_else(|| Arc::new(Registry::new()));
        let pool = |id: DeviceId, source: Arc<dyn SubAllocator>, profile: PoolOptions, config: BfcConfig| {
            let by_code = self.pools.options(id).or(profile);
            let by_user = environment.settings().options(id);
            let options = by_code.or(by_user);
            let config = match (by_code.limit, by_user.limit) {
                (None, Some(limit)) => with_environment_limit(config, limit, usable.as_ref()),
                _ => config,
            };
            let (name, index) = (id.to_string(), id.ordinal as usize);
            match packing_for(&self.packings, id) {
                Some(packing) => Pool::packed(name, source, index, config, packing),
                None => Pool::new(name, source, index, config),
            }
            .with_options(options)
        };
        let host = match &usable {
            Some(usable) => HostMemory::new().with_total(usable.bytes),
            None => HostMemory::new(),
        };
        registry.register(
            DeviceId::CPU,
            [pool(DeviceId::CPU, Arc::new(host), PoolOptions::default(), config.clone())],
        )?;
        let profile_options = profile
            .limit()
            .map_or_else(PoolOptions::default, |limit| PoolOptions::default().with_limit(limit));
        let dry_kind = match profile.rules() {
            DeviceRules::Cpu => {
                let source = Arc::new(host_addresses(&profile));
                let config = self.config.clone().unwrap_or_else(|| host_config(profile.usable().as_ref()));
                registry.register(DRY, [pool(DRY, source, profile_options, config)])?;
                MemoryKind::AddressOnly
            }
            DeviceRules::Cuda { compute_capability: (generation, _) } => {
                // Uses the same function as the registration of a real device.
                let memory = profile.memory().unwrap_or_default();
                let device = SimDevice::new(memory).with_name(profile.name());
                let by_code = self.pools.options(DRY).or(profile_options);
                let options = by_code.or(environment.settings().options(DRY));
                let reserve = default_reserve(memory, generation);
                registry.register_device(
                    DRY,
                    Arc::new(device),
                    reserve,
                    options,
                    packing_for(&self.packings, DRY),
                )?;
                MemoryKind::Device
            }
        };
        for device in &self.devices {
            let memory = Arc::clone(&device.memory);
            let config = match &self.config {
                Some(config) => config.clone(),
                None => custom_device_config(&*memory, usable.as_ref()),
            };
            // As for devices with streams, so that each run of a step graph finds the same addresses.
            let config = match device.backend.step_graphs() {
                Some(_) => config.with_join_rule(JoinRule::AtOnce),
                None => config,
            };
            registry.register(device.id, [pool(device.id, memory, PoolOptions::default(), config)])?;
        }
        let tracker = self.tracker.clone().unwrap_or_else(Tracker::new);
        record_regions(&tracker, &registry, DeviceId::CPU, MemoryKind::Host)?;
        record_regions(&tracker, &registry, DRY, dry_kind)?;
        for device in &self.devices {
            record_regions(&tracker, &registry, device.id, device.memory.memory_kind())?;
        }
        Ok(Runtime(Arc::new(Inner {
            registry,
            tracker,
            placement: Arc::default(),
            threads,
            devices: RwLock::default(),
            pools: [self.pools.clone(), environment.settings().clone()],
            packings: self.packings,
            dry_rules: profile.rules(),
            dry_speed: profile.speed().cloned(),
            dry_values: self.dry_values,
            tf32,
            environment_device: environment.device(),
            gpu: OnceLock::new(),
            custom: self.devices.iter().map(|device| (device.id, Arc::clone(&device.backend))).collect(),
            environment_error,
        })))
    }
}

/// Returns the packing of a device's pool. Scopes are sorted: the scope with the fewest devices comes first.
pub(super) fn packing_for(
    packings: &BTreeMap<DeviceScope, Arc<Packing>>,
    id: DeviceId,
) -> Option<Arc<Packing>> {
    packings.iter().find(|(scope, _)| scope.includes(id)).map(|(_, packing)| Arc::clone(packing))
}

/// Records the regions that a device's pool reserves and releases.
pub(super) fn record_regions(
    tracker: &Arc<Tracker>,
    registry: &Registry,
    id: DeviceId,
    kind: MemoryKind,
) -> Result<()> {
    let record = |is_reserved| {
        // A weak reference, because the registry may outlive the runtime.
        let (tracker, name) = (Arc::downgrade(tracker), id.to_string());
        move |region: Span, _: usize| {
            if let Some(tracker) = tracker.upgrade() {
                tracker.record_region(&name, kind, region, is_reserved);
            }
        }
    };
    registry.on_alloc(id, kind, record(true))?;
    registry.on_free(id, kind, record(false))?;
    Ok(())
}

//! The runtime: devices with their memories and accounts, as one value.

mod choice;
#[cfg(feature = "cuda")]
mod cuda;
mod environment;
mod limit;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, OnceLock, PoisonError, RwLock};

use bfc_core::sim::SimDevice;
use bfc_core::{
    AllocatorAttributes, AllocatorChoice, BfcConfig, Bytes, DeviceId, DeviceKind, DeviceScope, Environment,
    EnvironmentError, HostMemory, JoinRule, MemoryKind, Plan, Pool, PoolOptions, PoolSettings, Registry,
    Span, SubAllocator, default_reserve,
};
use highwater_tracking::{Tracker, UsableMemory};

use crate::backend::Backend;
use crate::backend::DeviceRules;
use crate::backend::cpu::CpuBackend;
use crate::backend::dry::DryBackend;
use crate::device::{Device, DeviceProfile, DryRead, DryValues, Placement, PlacementLog};
use crate::error::{DeviceFault, Error, Result};
use crate::shape::Scalar;

pub use self::choice::Choice;
use self::environment::read_environment;
use self::limit::{by_environment, config_of, host_addresses, host_config};

/// The devices of a program, with their pools, their threads and one book of accounts.
///
/// Most programs use [`Runtime::global`] through [`Device::best`]. One's own is for other limits or for isolation:
///
/// ```
/// use highwater::alloc::Bytes;
/// use highwater::{Runtime, Tensor};
///
/// let runtime = Runtime::builder().pool(Bytes::mib(1)).threads(1).build()?;
/// let error = Tensor::zeros(&runtime.cpu()?, [1024, 1024]).unwrap_err();
/// assert!(error.out_of_memory().is_some());
/// # Ok::<(), highwater::Error>(())
/// ```
#[derive(Clone)]
pub struct Runtime(Arc<Inner>);

struct Inner {
    registry: Arc<Registry>,
    tracker: Arc<Tracker>,
    placement: Arc<PlacementLog>,
    threads: usize,
    devices: RwLock<Vec<Device>>,
    /// What is chosen for the pools of devices that are opened when they are first asked for.
    #[cfg_attr(not(feature = "cuda"), expect(dead_code, reason = "all others are opened at once"))]
    pools: [PoolSettings; 2],
    /// The plans that such pools follow.
    #[cfg_attr(not(feature = "cuda"), expect(dead_code, reason = "all others are opened at once"))]
    plans: BTreeMap<DeviceScope, Arc<Plan>>,
    /// Whose kernels `dry:0` stands for.
    dry_rules: DeviceRules,
    /// What is read on `dry:0`.
    dry_values: DryValues,
    #[cfg_attr(not(feature = "cuda"), expect(dead_code, reason = "only GPUs multiply so"))]
    tf32: bool,
    /// Who computes on the devices that the runtime was given.
    own: Vec<(DeviceId, Arc<dyn Backend>)>,
    /// The device that is chosen where the program leaves it open.
    wanted: Option<DeviceId>,
    /// Whether `cuda:0` may be chosen automatically: found out once, so that a program is given the same device each time.
    gpu: OnceLock<Result<(), Error>>,
    /// Why no device can be opened: only in the process-wide runtime, which cannot fail when it is made.
    unusable: Option<EnvironmentError>,
}

/// What a [`Runtime`] shall be like.
///
/// What is not said here may be said by the program's user, in [environment variables](bfc_core::environment) such as
/// `HIGHWATER_ALLOCATOR` and `HIGHWATER_POOL_LIMIT`; what neither says has a default.
///
/// ```
/// use highwater::alloc::{AllocatorChoice, Bytes, DeviceId};
/// use highwater::{Runtime, Tensor};
///
/// // Every tensor of cpu:0 between canaries.
/// let runtime = Runtime::builder().pool(Bytes::gib(1)).allocator(DeviceId::CPU, AllocatorChoice::Guard).build()?;
/// let device = runtime.cpu()?;
/// drop(Tensor::zeros(&device, [1000])?);
/// assert!(device.default_allocator()?.find_damage().is_empty());
/// # Ok::<(), highwater::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct RuntimeBuilder {
    pools: PoolSettings,
    config: Option<BfcConfig>,
    plans: BTreeMap<DeviceScope, Arc<Plan>>,
    environment: Option<Environment>,
    threads: Option<usize>,
    registry: Option<Arc<Registry>>,
    devices: Vec<OwnDevice>,
    tracker: Option<Arc<Tracker>>,
    dry_profile: Option<DeviceProfile>,
    dry_values: DryValues,
    tf32: bool,
}

/// A device that the runtime does not find by itself.
#[derive(Clone, Debug)]
struct OwnDevice {
    id: DeviceId,
    backend: Arc<dyn Backend>,
    memory: Arc<dyn SubAllocator>,
}

impl RuntimeBuilder {
    /// Limits each device's pool. A limit is no reservation: pools start small and grow as needed.
    ///
    /// Default for host memory: all that this process may use, less a small reserve ([`UsableMemory`]). Out-of-memory reports
    /// name where that comes from. Where the system does not tell: 64 GiB.
    #[must_use]
    pub fn pool(self, limit: Bytes) -> Self {
        self.pool_options(DeviceScope::All, PoolOptions::default().with_limit(limit))
    }

    /// Sets all of each device's pool, but for the sort of allocator.
    #[must_use]
    pub fn pool_config(mut self, config: BfcConfig) -> Self {
        self.pools.choose(DeviceScope::All, PoolOptions::all_of(&config));
        self.config = Some(config);
        self
    }

    /// Chooses for the pools of a device, of all devices of a kind, or of all devices. What is said for fewer devices
    /// counts before what is said for more.
    #[must_use]
    pub fn pool_options(mut self, devices: impl Into<DeviceScope>, options: PoolOptions) -> Self {
        self.pools.choose(devices, options);
        self
    }

    /// Chooses how the memory of some devices is handed out. Default: [`AllocatorChoice::Bfc`].
    #[must_use]
    pub fn allocator(self, devices: impl Into<DeviceScope>, choice: AllocatorChoice) -> Self {
        self.pool_options(devices, PoolOptions::default().with_allocator(choice))
    }

    /// Runs training steps on the plan of one: blocks lie where it says, and best fit with coalescing serves what
    /// departs from it. Chooses [`AllocatorChoice::Planned`] for these devices; an [`allocator`](Self::allocator) chosen
    /// afterwards counts before that. Where a pool grows, its first region is large enough for the plan.
    ///
    /// What went by the plan is told by [`plan_counts`](bfc_core::Inspection::plan_counts) of the device's allocator. A step
    /// that follows the plan to its end begins anew by itself; [`begin_step`](bfc_core::Upkeep::begin_step) says so for
    /// others.
    ///
    /// ```
    /// use highwater::alloc::{Bytes, DeviceId, PlanOptions};
    /// use highwater::{Device, Runtime, Tensor};
    /// use highwater::tracking::{Step, Trace, plan_of};
    /// use std::sync::Arc;
    ///
    /// fn step(device: &Device) -> highwater::Result<()> {
    ///     let x = Tensor::ones(device, [64, 64])?;
    ///     let y = x.matmul(&x)?.relu()?;
    ///     y.matmul(&x).map(drop)
    /// }
    ///
    /// // A step is recorded without computing anything.
    /// let dry = Runtime::builder().build()?.dry()?;
    /// dry.tracker().start_log(Bytes::mib(1));
    /// step(&dry)?;
    /// let trace = Trace::from_recording(&dry.tracker().take_log())?;
    /// let plan = plan_of(&trace, &Step::Whole, &PlanOptions::default(), &mut |_| true)?;
    ///
    /// let device = Runtime::builder().plan(DeviceId::CPU, Arc::new(plan)).build()?.cpu()?;
    /// for _ in 0..3 {
    ///     step(&device)?;
    /// }
    /// let counts = device.default_allocator()?.plan_counts().expect("it follows a plan");
    /// assert_eq!((counts.steps, counts.unexpected), (3, 0));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn plan(mut self, devices: impl Into<DeviceScope>, plan: Arc<Plan>) -> Self {
        let devices = devices.into();
        self.plans.insert(devices, plan);
        self.allocator(devices, AllocatorChoice::Planned)
    }

    /// Takes this for the environment instead of reading the process's variables; `Environment::default()` is one that
    /// chooses nothing.
    #[must_use]
    pub fn environment(mut self, environment: Environment) -> Self {
        self.environment = Some(environment);
        self
    }

    /// Threads that compute, at least 1. Default: one per core. Results do not depend on it.
    #[must_use]
    pub const fn threads(mut self, threads: usize) -> Self {
        self.threads = Some(threads);
        self
    }

    /// Keeps the accounts of ops with `tracker`; by default with a new one.
    #[must_use]
    pub fn tracker(mut self, tracker: Arc<Tracker>) -> Self {
        self.tracker = Some(tracker);
        self
    }

    /// Takes memories from `registry`, in which `cpu:0` and `dry:0` must not be registered yet.
    #[must_use]
    pub fn registry(mut self, registry: Arc<Registry>) -> Self {
        self.registry = Some(registry);
        self
    }

    /// Lets `dry:0` stand for this device. Default: this machine's processor.
    ///
    /// What is chosen for the pools of `dry:0` counts before what the profile says, and the number of
    /// [`threads`](Self::threads) too.
    ///
    /// ```
    /// use highwater::{DeviceProfile, Runtime};
    /// let profile = DeviceProfile::gpu("t4").expect("it is a known one");
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

    /// Answers a program that reads values on `dry:0`, by [`Tensor::to_vec`](crate::Tensor::to_vec) or
    /// [`Tensor::item`](crate::Tensor::item): with a number that all elements then are, or with `None` for
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

    /// Lets products of f32 matrices on CUDA devices round their factors to 11 significant bits, which tensor cores multiply at a
    /// multiple of the speed; sums stay f32. Default: no.
    #[must_use]
    pub const fn tf32(mut self, tf32: bool) -> Self {
        self.tf32 = tf32;
        self
    }

    /// Adds a device of one's own, or takes the place of one that the runtime would find: who computes, and on which
    /// memory. It gets a pool like any other, which joins freed blocks at once ([`JoinRule`]) where the device takes steps as graphs.
    ///
    /// The backend has to be able to address the memory: host memory for [`CpuBackend`], for a backend of a GPU the memory of that
    /// GPU. Else [`build`](Self::build) fails with [`Error::WrongMemory`].
    #[must_use]
    pub fn device(mut self, id: DeviceId, backend: Arc<dyn Backend>, memory: Arc<dyn SubAllocator>) -> Self {
        self.devices.retain(|device| device.id != id);
        self.devices.push(OwnDevice { id, backend, memory });
        self
    }

    /// The runtime.
    ///
    /// # Errors
    /// [`Error::Environment`] if an environment variable cannot be followed; an error of the registry if it has the
    /// devices already; [`Error::WrongMemory`] for a [device of one's own](Self::device) whose backend cannot address its memory.
    pub fn build(mut self) -> Result<Runtime> {
        let environment = match self.environment.take() {
            Some(environment) => environment,
            None => read_environment()?,
        };
        self.build_in(&environment, None)
    }

    fn build_in(self, environment: &Environment, unusable: Option<EnvironmentError>) -> Result<Runtime> {
        let profile = self.dry_profile.unwrap_or_default();
        let threads = self
            .threads
            .or(profile.threads())
            .unwrap_or_else(|| std::thread::available_parallelism().map_or(1, std::num::NonZero::get))
            .max(1);
        let usable = UsableMemory::of_this_process();
        let config = self.config.clone().unwrap_or_else(|| host_config(usable.as_ref()));
        // Before the registry changes.
        for device in &self.devices {
            let kind = device.memory.memory_kind();
            if !device.backend.addresses(kind, device.memory.address_space()) {
                let name = device.id.to_string();
                return Err(Error::WrongMemory { device: name.clone(), kind, allocator: name });
            }
        }
        let registry = self.registry.unwrap_or_else(|| Arc::new(Registry::new()));
        let pool = |id: DeviceId, source: Arc<dyn SubAllocator>, said: PoolOptions, config: BfcConfig| {
            let (by_code, by_user) = (self.pools.options(id).or(said), environment.settings().options(id));
            let options = by_code.or(by_user);
            let config = match (by_code.limit, by_user.limit) {
                (None, Some(limit)) => by_environment(config, limit, usable.as_ref()),
                _ => config,
            };
            let (name, index) = (id.to_string(), id.ordinal as usize);
            match plan_for(&self.plans, id) {
                Some(plan) => Pool::planned(name, source, index, config, plan),
                None => Pool::new(name, source, index, config),
            }
            .with_defaults(options)
        };
        let host = match &usable {
            Some(usable) => HostMemory::new().with_total(usable.bytes),
            None => HostMemory::new(),
        };
        registry.register(
            DeviceId::CPU,
            [pool(DeviceId::CPU, Arc::new(host), PoolOptions::default(), config.clone())],
        )?;
        let said = profile
            .limit()
            .map_or_else(PoolOptions::default, |limit| PoolOptions::default().with_limit(limit));
        let dry_kind = match profile.rules() {
            DeviceRules::Cpu => {
                let source = Arc::new(host_addresses(&profile));
                let config = self.config.clone().unwrap_or_else(|| host_config(profile.usable().as_ref()));
                registry.register(DRY, [pool(DRY, source, said, config)])?;
                MemoryKind::AddressOnly
            }
            DeviceRules::Cuda { compute_capability: (generation, _) } => {
                // Registered by the very function that registers the device itself.
                let memory = profile.memory().unwrap_or_default();
                let device = SimDevice::new(memory).with_name(profile.name());
                let options = self.pools.options(DRY).or(said).or(environment.settings().options(DRY));
                let reserve = default_reserve(memory, generation);
                registry.register_device(
                    DRY,
                    Arc::new(device),
                    reserve,
                    options,
                    plan_for(&self.plans, DRY),
                )?;
                MemoryKind::Device
            }
        };
        for device in &self.devices {
            let memory = Arc::clone(&device.memory);
            let config = match &self.config {
                Some(config) => config.clone(),
                None => config_of(&*memory, usable.as_ref()),
            };
            // As for devices with streams: steps given as graphs are to find the same addresses each time.
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
            plans: self.plans,
            dry_rules: profile.rules(),
            dry_values: self.dry_values,
            tf32: self.tf32,
            wanted: environment.device(),
            gpu: OnceLock::new(),
            own: self.devices.iter().map(|own| (own.id, Arc::clone(&own.backend))).collect(),
            unusable,
        })))
    }
}

/// The plan that a device's pool follows. Scopes are ordered: the one for the fewest devices comes first.
fn plan_for(plans: &BTreeMap<DeviceScope, Arc<Plan>>, id: DeviceId) -> Option<Arc<Plan>> {
    plans.iter().find(|(scope, _)| scope.includes(id)).map(|(_, plan)| Arc::clone(plan))
}

/// Lets recordings of a tracker tell of the regions that a device's pool takes and gives back.
fn record_regions(tracker: &Arc<Tracker>, registry: &Registry, id: DeviceId, kind: MemoryKind) -> Result<()> {
    let record = |taken| {
        // The registry may outlive the runtime.
        let (tracker, name) = (Arc::downgrade(tracker), id.to_string());
        move |region: Span, _: usize| {
            if let Some(tracker) = tracker.upgrade() {
                tracker.record_region(&name, kind, region, taken);
            }
        }
    };
    registry.on_alloc(id, kind, record(true))?;
    registry.on_free(id, kind, record(false))?;
    Ok(())
}

/// What the memory of a device is asked for in which its uploads wait.
pub(crate) fn page_locked() -> AllocatorAttributes {
    AllocatorAttributes::default().with_on_host(true).with_gpu_compatible(true)
}

/// What is asked of a device before it is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Care {
    /// Nothing: it was asked for, and what it cannot do is told by those who use it.
    AsAsked,
    /// That it computes, and the right numbers.
    #[cfg_attr(not(feature = "cuda"), allow(dead_code, reason = "all others are known to"))]
    Checked,
}

const DRY: DeviceId = DeviceId::new(DeviceKind::Dry, 0);

impl Runtime {
    /// What a runtime shall be like, starting from the defaults.
    #[must_use]
    pub fn builder() -> RuntimeBuilder {
        RuntimeBuilder::default()
    }

    /// The process-wide runtime, over the process-wide registry; made on first use with the defaults and what the
    /// [environment](bfc_core::environment) says. If the environment cannot be followed, each device that is asked for is an
    /// [`Error::Environment`].
    #[must_use]
    pub fn global() -> &'static Self {
        static GLOBAL: OnceLock<Runtime> = OnceLock::new();
        GLOBAL.get_or_init(|| {
            let (environment, unusable) = match read_environment() {
                Ok(environment) => (environment, None),
                Err(error) => (Environment::default(), Some(error)),
            };
            let shared =
                RuntimeBuilder { registry: Some(Arc::clone(Registry::global())), ..Default::default() };
            // Whoever registered these devices first keeps them to himself; the default runtime then has its own.
            shared
                .build_in(&environment, unusable.clone())
                .or_else(|_| Self::builder().build_in(&environment, unusable))
                .unwrap_or_else(|_| unreachable!("a fresh registry"))
        })
    }

    /// The accounts of all ops run on this runtime's devices.
    #[must_use]
    pub fn tracker(&self) -> &Arc<Tracker> {
        &self.0.tracker
    }

    /// The memories of this runtime's devices.
    #[must_use]
    pub fn registry(&self) -> &Arc<Registry> {
        &self.0.registry
    }

    /// Threads that compute.
    #[must_use]
    pub fn threads(&self) -> usize {
        self.0.threads
    }

    /// `cpu:0`.
    ///
    /// # Errors
    /// If its threads cannot be started.
    pub fn cpu(&self) -> Result<Device> {
        self.device(DeviceId::CPU)
    }

    /// `dry:0`: makes the requests for memory that the device would make which it [stands for](RuntimeBuilder::dry_profile), and
    /// computes nothing.
    ///
    /// # Errors
    /// As [`Runtime::device`].
    pub fn dry(&self) -> Result<Device> {
        self.device(DRY)
    }

    /// A device by its id. All handles to one device share its memory and its backend.
    ///
    /// # Errors
    /// [`Error::NoDevice`] if there is none or it cannot compute. From the process-wide runtime, [`Error::Environment`] if
    /// an environment variable cannot be followed.
    pub fn device(&self, id: DeviceId) -> Result<Device> {
        self.open(id, Care::AsAsked)
    }

    /// The same, opened as carefully as said if it is not open yet.
    fn open(&self, id: DeviceId, care: Care) -> Result<Device> {
        if let Some(error) = &self.0.unusable {
            return Err(Error::Environment(error.clone()));
        }
        let known = |devices: &[Device]| devices.iter().find(|device| device.id() == id).cloned();
        if let Some(device) = known(&self.0.devices.read().unwrap_or_else(PoisonError::into_inner)) {
            return Ok(device);
        }
        #[cfg(not(feature = "cuda"))]
        let _ = care;
        let mut devices = self.0.devices.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(device) = known(&devices) {
            return Ok(device);
        }
        let own = self.0.own.iter().find(|(own, _)| *own == id).map(|(_, backend)| Arc::clone(backend));
        let backend: Arc<dyn Backend> = match (own, id) {
            (Some(backend), _) => backend,
            (None, DeviceId::CPU) => Arc::new(CpuBackend::new(self.0.threads)?),
            (None, DRY) => Arc::new(self.dry_backend()?),
            #[cfg(feature = "cuda")]
            (None, DeviceId { kind: DeviceKind::Cuda, .. }) => {
                let failed = |reason| Error::NoDevice { device: id.to_string(), reason };
                self.open_cuda(id, care).map_err(failed)?
            }
            _ => return Err(Error::NoDevice { device: id.to_string(), reason: why_not(id) }),
        };
        let device = Device::new(
            id,
            backend,
            Arc::clone(&self.0.registry),
            Arc::clone(&self.0.tracker),
            Arc::clone(&self.0.placement),
            self.0.dry_values.clone(),
        );
        devices.push(device.clone());
        Ok(device)
    }

    /// Who computes nothing on `dry:0`, with the memory in which the uploads of a GPU wait.
    fn dry_backend(&self) -> Result<DryBackend> {
        let backend = DryBackend::of(self.0.dry_rules);
        match self.0.dry_rules {
            DeviceRules::Cpu => Ok(backend),
            DeviceRules::Cuda { .. } => {
                Ok(backend.with_pinned(self.0.registry.allocator(DRY, page_locked(), None)?.allocator))
            }
        }
    }

    /// Gives memory that nobody uses back, on all devices that were opened; how much that was.
    ///
    /// # Errors
    /// If a device's memory cannot be had.
    pub fn empty_cache(&self) -> Result<Bytes> {
        let devices = self.0.devices.read().unwrap_or_else(PoisonError::into_inner).clone();
        devices
            .iter()
            .try_fold(Bytes(0), |sum, device| Ok(Bytes(sum.0.saturating_add(device.empty_cache()?.0))))
    }

    /// Tells `listener` of every op from now on: which op, which device, why there. It is not told of ops that it runs
    /// itself.
    ///
    /// ```
    /// use highwater::{Runtime, Tensor};
    /// let runtime = Runtime::builder().threads(1).build()?;
    /// runtime.on_placement(|placement| eprintln!("{placement}"));
    /// Tensor::zeros(&runtime.cpu()?, [2])?; // zeros on cpu:0: asked for
    /// # Ok::<(), highwater::Error>(())
    /// ```
    pub fn on_placement(&self, listener: impl Fn(&Placement<'_>) + Send + Sync + 'static) {
        self.0.placement.listen(Some(Arc::new(listener)));
    }
}

impl fmt::Debug for Runtime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Runtime").field("threads", &self.0.threads).finish_non_exhaustive()
    }
}

/// Why a device that is not `cpu:0` or `dry:0` cannot be used.
const fn why_not(id: DeviceId) -> DeviceFault {
    match id.kind {
        #[cfg(not(feature = "cuda"))]
        DeviceKind::Cuda => DeviceFault::WithoutCuda,
        _ => DeviceFault::NoSuchDevice,
    }
}

#[cfg(test)]
mod tests;

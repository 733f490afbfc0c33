//! The runtime: devices with their memory and accounts.

mod builder;
mod choice;
#[cfg(feature = "cuda")]
mod cuda;
mod environment;
mod limit;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, OnceLock, PoisonError, RwLock};

use bfc_core::{
    AllocatorAttributes, Bytes, DeviceId, DeviceKind, DeviceScope, Environment, EnvironmentError, Packing,
    PoolSettings, Registry,
};
use highwater_tracking::Tracker;

use crate::backend::cpu::CpuBackend;
use crate::backend::dry::DryBackend;
use crate::backend::{Backend, DeviceRules, DeviceSpeed};
use crate::device::{Device, DryValues, OpPlacement, PlacementLog};
use crate::error::{DeviceFault, Error, Result};

pub use self::builder::RuntimeBuilder;
pub use self::choice::Choice;
use self::environment::read_environment;

/// The devices of a program, with their pools, threads and a common tracker.
///
/// Most programs use [`Runtime::global`] through [`Device::best`]. Another runtime provides other limits, or
/// isolation:
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
    /// The pool settings, from code and from the environment, of devices that open on first use.
    #[cfg_attr(not(feature = "cuda"), expect(dead_code, reason = "only GPUs open on first use"))]
    pools: [PoolSettings; 2],
    /// The packings of such pools.
    #[cfg_attr(not(feature = "cuda"), expect(dead_code, reason = "only GPUs open on first use"))]
    packings: BTreeMap<DeviceScope, Arc<Packing>>,
    /// The rules that `dry:0` follows.
    dry_rules: DeviceRules,
    /// The speed of the imitated device.
    dry_speed: Option<DeviceSpeed>,
    /// The values that reads on `dry:0` return.
    dry_values: DryValues,
    #[cfg_attr(not(feature = "cuda"), expect(dead_code, reason = "only GPUs support TF32"))]
    tf32: bool,
    /// The backends of custom devices.
    custom: Vec<(DeviceId, Arc<dyn Backend>)>,
    /// The device that `HIGHWATER_DEVICE` names.
    environment_device: Option<DeviceId>,
    /// Whether `cuda:0` may be chosen automatically. Checked once, so that every automatic choice is the
    /// same.
    gpu: OnceLock<Result<(), Error>>,
    /// The error of every opened device: only in the process-wide runtime, whose creation cannot fail.
    environment_error: Option<EnvironmentError>,
}

/// Returns the attributes of the page-locked memory for a device's uploads.
pub(crate) fn page_locked() -> AllocatorAttributes {
    AllocatorAttributes::default().with_on_host(true).with_gpu_compatible(true)
}

/// The check of a device while it opens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OpenCheck {
    /// No check: the program requested the device, and its ops report errors.
    None,
    /// The self-check: the device computes correct results.
    #[cfg_attr(not(feature = "cuda"), allow(dead_code, reason = "only GPUs need it"))]
    SelfCheck,
}

const DRY: DeviceId = DeviceId::new(DeviceKind::Dry, 0);

impl Runtime {
    /// Returns a builder with the default options.
    #[must_use]
    pub fn builder() -> RuntimeBuilder {
        RuntimeBuilder::default()
    }

    /// Returns the process-wide runtime with the process-wide registry. The first call creates it from
    /// defaults and the [environment](bfc_core::environment). If an environment variable is invalid, opening
    /// any device fails with [`Error::Environment`].
    #[must_use]
    pub fn global() -> &'static Self {
        static GLOBAL: OnceLock<Runtime> = OnceLock::new();
        GLOBAL.get_or_init(|| {
            let (environment, environment_error) = match read_environment() {
                Ok(environment) => (environment, None),
                Err(error) => (Environment::default(), Some(error)),
            };
            let shared = Self::builder().registry(Arc::clone(Registry::global()));
            // If the program has already registered these devices, the runtime uses a registry of its own.
            shared
                .build_in(&environment, environment_error.clone())
                .or_else(|_| Self::builder().build_in(&environment, environment_error))
                .unwrap_or_else(|_| unreachable!("a new registry has no devices"))
        })
    }

    /// Returns the tracker of all ops on this runtime's devices.
    #[must_use]
    pub fn tracker(&self) -> &Arc<Tracker> {
        &self.0.tracker
    }

    /// Returns the registry of the devices' memory.
    #[must_use]
    pub fn registry(&self) -> &Arc<Registry> {
        &self.0.registry
    }

    /// Returns the number of compute threads.
    #[must_use]
    pub fn threads(&self) -> usize {
        self.0.threads
    }

    /// Returns `cpu:0`.
    ///
    /// # Errors
    /// If its threads cannot start.
    pub fn cpu(&self) -> Result<Device> {
        self.device(DeviceId::CPU)
    }

    /// Returns `dry:0`. It makes the same memory requests as the device of its
    /// [profile](RuntimeBuilder::dry_profile), but computes nothing.
    ///
    /// # Errors
    /// As [`Runtime::device`].
    pub fn dry(&self) -> Result<Device> {
        self.device(DRY)
    }

    /// Returns a device by its identifier. All handles to one device share its memory and backend.
    ///
    /// # Errors
    /// [`Error::NoDevice`] if the device does not exist or is unusable. From the process-wide runtime,
    /// [`Error::Environment`] if an environment variable is invalid.
    pub fn device(&self, id: DeviceId) -> Result<Device> {
        self.open(id, OpenCheck::None)
    }

    /// Opens a device with this check, or returns it if it is already open.
    fn open(&self, id: DeviceId, check: OpenCheck) -> Result<Device> {
        if let Some(error) = &self.0.environment_error {
            return Err(Error::Environment(error.clone()));
        }
        let find = |devices: &[Device]| devices.iter().find(|device| device.id() == id).cloned();
        if let Some(device) = find(&self.0.devices.read().unwrap_or_else(PoisonError::into_inner)) {
            return Ok(device);
        }
        #[cfg(not(feature = "cuda"))]
        let _ = check;
        let mut devices = self.0.devices.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(device) = find(&devices) {
            return Ok(device);
        }
        let custom = self.0.custom.iter().find(|(custom, _)| *custom == id);
        let custom = custom.map(|(_, backend)| Arc::clone(backend));
        let backend: Arc<dyn Backend> = match (custom, id) {
            (Some(backend), _) => backend,
            (None, DeviceId::CPU) => Arc::new(CpuBackend::new(self.0.threads)?),
            (None, DRY) => Arc::new(self.dry_backend()?),
            #[cfg(feature = "cuda")]
            (None, DeviceId { kind: DeviceKind::Cuda, .. }) => {
                let failed = |reason| Error::NoDevice { device: id.to_string(), reason };
                self.open_cuda(id, check).map_err(failed)?
            }
            _ => return Err(Error::NoDevice { device: id.to_string(), reason: open_fault(id) }),
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

    /// Returns the backend of `dry:0`, with page-locked memory if it simulates a GPU.
    fn dry_backend(&self) -> Result<DryBackend> {
        let backend = DryBackend::of(self.0.dry_rules);
        let backend = match &self.0.dry_speed {
            Some(speed) => backend.with_speed(speed.clone()),
            None => backend,
        };
        match self.0.dry_rules {
            DeviceRules::Cpu => Ok(backend),
            DeviceRules::Cuda { .. } => {
                Ok(backend.with_pinned(self.0.registry.allocator(DRY, page_locked(), None)?.allocator))
            }
        }
    }

    /// Returns the unused memory of all open devices to the system or the drivers. Returns the number of
    /// released bytes.
    ///
    /// # Errors
    /// If a device's memory is unavailable.
    pub fn empty_cache(&self) -> Result<Bytes> {
        let devices = self.0.devices.read().unwrap_or_else(PoisonError::into_inner).clone();
        devices
            .iter()
            .try_fold(Bytes(0), |sum, device| Ok(Bytes(sum.0.saturating_add(device.empty_cache()?.0))))
    }

    /// Calls `listener` with the op, the device and the reason for each op from now on. Skips ops that the
    /// listener itself runs.
    ///
    /// ```
    /// use highwater::{Runtime, Tensor};
    /// let runtime = Runtime::builder().threads(1).build()?;
    /// runtime.on_placement(|placement| eprintln!("{placement}"));
    /// Tensor::zeros(&runtime.cpu()?, [2])?; // zeros on cpu:0: requested
    /// # Ok::<(), highwater::Error>(())
    /// ```
    pub fn on_placement(&self, listener: impl Fn(&OpPlacement<'_>) + Send + Sync + 'static) {
        self.0.placement.set_listener(Some(Arc::new(listener)));
    }
}

impl fmt::Debug for Runtime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Runtime").field("threads", &self.0.threads).finish_non_exhaustive()
    }
}

/// Returns the reason why a device other than `cpu:0` and `dry:0` is unavailable.
const fn open_fault(id: DeviceId) -> DeviceFault {
    match id.kind {
        #[cfg(not(feature = "cuda"))]
        DeviceKind::Cuda => DeviceFault::WithoutCuda,
        _ => DeviceFault::NoSuchDevice,
    }
}

#[cfg(test)]
mod tests;

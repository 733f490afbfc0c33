//! Selects the allocator of a device's memory from attributes, and creates it on first use.
//!
//! The rules are those of TensorFlow's `ProcessState` and `GPUProcessState`: the first caller's size wins, and all users
//! of a device share its allocators. A [`Registry`] is a value that a runtime owns, not a singleton; the process has a
//! default one. [`environment`] reads the variables that override a registration, and [`setting`] lists them.

mod build;
pub(crate) mod choice;
mod device;
mod device_id;
pub mod environment;
mod error;
mod options;
mod pool;
mod rules;
pub mod setting;
mod settings;

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};

use crate::allocator::Allocator;
use crate::allocator::attributes::AllocatorAttributes;
use crate::base::memory::{MemoryKind, Span};
use crate::base::sync::{Condvar, Mutex, ThreadNumber, lock, wait};
use crate::base::units::Bytes;
use crate::source::error::VisitorError;
use crate::source::visitors::Visitors;

pub use build::PoolError;
pub use choice::{AllocatorChoice, ParseChoiceError};
pub use device::{default_reserve, device_source};
pub use device_id::{DeviceId, DeviceKind, ParseDeviceError};
pub use environment::{Environment, EnvironmentError, UnknownVariable};
pub use error::RegistryError;
pub use pool::{IgnoredOptions, Pool, PoolFactory};
pub use rules::{CacheChoice, ParseRuleError, SplitChoice};
pub use setting::{OptionError, PoolOptions};
pub use settings::{DeviceScope, PoolSettings};

/// The registered devices, their memories, and the allocators created so far.
///
/// ```
/// use std::sync::Arc;
/// use bfc_core::{AllocatorAttributes, BfcConfig, Bytes, DeviceId, HostMemory, Pool, PoolOptions, Registry};
///
/// let registry = Registry::new();
/// let memory = Pool::new("cpu_bfc", Arc::new(HostMemory::new()), 0, BfcConfig::new(Bytes::gib(1)));
/// registry.register(DeviceId::CPU, [memory])?;
///
/// let small = PoolOptions::default().with_limit(Bytes::mib(64));
/// let first = registry.allocator(DeviceId::CPU, AllocatorAttributes::default(), Some(small))?;
/// let pinned = AllocatorAttributes::default().with_on_host(true).with_gpu_compatible(true);
/// let second = registry.allocator(DeviceId::CPU, pinned, None)?;
/// assert!(Arc::ptr_eq(&first.allocator, &second.allocator)); // a CPU has one memory
/// # Ok::<(), bfc_core::RegistryError>(())
/// ```
#[derive(Debug, Default)]
pub struct Registry {
    devices: Mutex<BTreeMap<DeviceId, Arc<Device>>>,
}

/// The memories of a device, at most one of each kind.
#[derive(Debug)]
struct Device {
    memories: Vec<Memory>,
}

/// One memory of a device.
#[derive(Debug)]
struct Memory {
    pool: Pool,
    state: Mutex<AllocatorSlot>,
    /// Notified when the thread that creates the allocator has succeeded or failed.
    made: Condvar,
}

/// The state of a memory.
#[derive(Debug)]
enum AllocatorSlot {
    /// Not created yet. These visitors will receive its regions.
    Unused(Visitors),
    /// The thread that creates the allocator now, without the lock.
    Making(u64),
    /// Created, and shared by all callers.
    Made { allocator: Arc<dyn Allocator>, options: PoolOptions },
}

/// The allocator that matches the attributes.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Resolved {
    /// Shared by all callers with the same memory of the same device.
    pub allocator: Arc<dyn Allocator>,
    /// The options of its creation.
    pub options: PoolOptions,
    /// The requested options that are ignored, because the allocator existed already.
    pub ignored: Option<IgnoredOptions>,
}

impl Registry {
    /// Creates a registry without devices.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the process-wide default registry. It starts without devices: the code that opens a device registers it.
    #[must_use]
    pub fn global() -> &'static Arc<Self> {
        static GLOBAL: LazyLock<Arc<Registry>> = LazyLock::new(|| Arc::new(Registry::new()));
        &GLOBAL
    }

    /// Registers a device with one pool for each of its kinds of memory. Allocates no memory yet.
    ///
    /// # Errors
    /// [`RegistryError::DeviceExists`] if the device is registered; [`RegistryError::MemoryExists`] for a duplicate
    /// kind.
    pub fn register(
        &self,
        device: DeviceId,
        pools: impl IntoIterator<Item = Pool>,
    ) -> Result<(), RegistryError> {
        let mut memories: Vec<Memory> = Vec::new();
        for pool in pools {
            let kind = pool.kind();
            if memories.iter().any(|memory| memory.pool.kind() == kind) {
                return Err(RegistryError::MemoryExists { device: device.to_string(), kind });
            }
            let state = Mutex::new(AllocatorSlot::Unused(Visitors::new()));
            memories.push(Memory { pool, state, made: Condvar::new() });
        }
        let mut devices = lock(&self.devices);
        if devices.contains_key(&device) {
            return Err(RegistryError::DeviceExists { device: device.to_string() });
        }
        devices.insert(device, Arc::new(Device { memories }));
        Ok(())
    }

    /// Removes a device. Returns whether it was registered. Its allocators continue to serve their owners.
    pub fn unregister(&self, device: DeviceId) -> bool {
        let forgotten = lock(&self.devices).remove(&device);
        // The drop happens without the lock, because it may call the driver.
        forgotten.is_some()
    }

    /// Returns the idle regions of all allocators of a device to their sources. Returns the bytes released; 0 for
    /// unknown devices.
    pub fn trim(&self, device: DeviceId) -> u64 {
        let Ok(entry) = self.device(device) else { return 0 };
        let made = |memory: &Memory| match &*lock(&memory.state) {
            AllocatorSlot::Made { allocator, .. } => Some(Arc::clone(allocator)),
            AllocatorSlot::Unused(_) | AllocatorSlot::Making(_) => None,
        };
        let made: Vec<_> = entry.memories.iter().filter_map(made).collect();
        made.iter().map(|allocator| allocator.trim(Bytes(0))).sum()
    }

    /// Returns the registered devices, in order of kind and index.
    #[must_use]
    pub fn devices(&self) -> Vec<DeviceId> {
        lock(&self.devices).iter().map(|(&device, _)| device).collect()
    }

    /// Returns the allocator for memory of `device` with these attributes, and creates it on first use.
    ///
    /// The first of these memories that the device has is chosen:
    ///
    /// | attributes | memories |
    /// |---|---|
    /// | none | device, address only, host |
    /// | `on_host` | host, address only |
    /// | `on_host` and `gpu_compatible` or `nic_compatible` | pinned host, host, address only |
    ///
    /// A device without host memory shares that of `cpu:0`. Scopes and device-specific bits do not affect the choice.
    ///
    /// The options apply when the allocator is created. Later calls with different options get the same allocator, and
    /// the differences are [reported](Resolved::ignored). If several threads race, one creates the allocator and the
    /// others wait. A failure leaves it uncreated, so that the next call retries.
    ///
    /// # Errors
    /// [`RegistryError::Reentrant`] if a factory requests the memory that it is creating; [`RegistryError::NoDevice`],
    /// [`RegistryError::NoMemory`]; [`RegistryError::Source`], [`RegistryError::Pool`] and [`RegistryError::WrongKind`]
    /// if the pool cannot be created.
    pub fn allocator(
        &self,
        device: DeviceId,
        attributes: AllocatorAttributes,
        options: Option<PoolOptions>,
    ) -> Result<Resolved, RegistryError> {
        let kinds = preference(attributes);
        let entry = self.device(device)?;
        if let Some(memory) = entry.first_of(kinds) {
            return memory.resolve(device, options);
        }
        let no_memory = || RegistryError::NoMemory { device: device.to_string(), kind: kinds[0] };
        if !attributes.on_host() {
            return Err(no_memory());
        }
        let cpu = self.device(DeviceId::CPU).map_err(|_| no_memory())?;
        cpu.first_of(&[MemoryKind::Host]).ok_or_else(no_memory)?.resolve(DeviceId::CPU, options)
    }

    /// Adds a visitor that runs right after a region of the memory is taken, after the visitors added before it.
    ///
    /// # Errors
    /// [`RegistryError::Visitor`] once the memory is in use; [`RegistryError::NoDevice`], [`RegistryError::NoMemory`].
    pub fn on_alloc(
        &self,
        device: DeviceId,
        kind: MemoryKind,
        visitor: impl Fn(Span, usize) + Send + Sync + 'static,
    ) -> Result<(), RegistryError> {
        self.change_visitors(device, kind, |visitors| visitors.on_alloc(visitor))
    }

    /// Adds a visitor that runs right before a region of the memory is returned, before the visitors added before it.
    ///
    /// # Errors
    /// As [`on_alloc`](Self::on_alloc).
    pub fn on_free(
        &self,
        device: DeviceId,
        kind: MemoryKind,
        visitor: impl Fn(Span, usize) + Send + Sync + 'static,
    ) -> Result<(), RegistryError> {
        self.change_visitors(device, kind, |visitors| visitors.on_free(visitor))
    }

    fn change_visitors(
        &self,
        device: DeviceId,
        kind: MemoryKind,
        change: impl FnOnce(&mut Visitors),
    ) -> Result<(), RegistryError> {
        let entry = self.device(device)?;
        let no_memory = || RegistryError::NoMemory { device: device.to_string(), kind };
        let memory = entry.first_of(&[kind]).ok_or_else(no_memory)?;
        match &mut *lock(&memory.state) {
            AllocatorSlot::Unused(visitors) => change(visitors),
            AllocatorSlot::Making(_) | AllocatorSlot::Made { .. } => {
                return Err(RegistryError::Visitor { device: device.to_string(), kind, error: VisitorError });
            }
        }
        Ok(())
    }

    fn device(&self, device: DeviceId) -> Result<Arc<Device>, RegistryError> {
        let devices = lock(&self.devices);
        devices.get(&device).cloned().ok_or_else(|| RegistryError::NoDevice { device: device.to_string() })
    }
}

impl Device {
    fn first_of(&self, kinds: &[MemoryKind]) -> Option<&Memory> {
        kinds.iter().find_map(|&kind| self.memories.iter().find(|memory| memory.pool.kind() == kind))
    }
}

impl Memory {
    /// Returns the allocator, created on first use. One thread calls the factory, without the lock, and the others
    /// wait.
    fn resolve(&self, device: DeviceId, asked: Option<PoolOptions>) -> Result<Resolved, RegistryError> {
        let thread = ThreadNumber::current().get();
        let mut state = lock(&self.state);
        let visitors = loop {
            match &mut *state {
                AllocatorSlot::Made { allocator, options } => {
                    let asked = asked.map(|asked| asked.settled(self.pool.kind()));
                    let ignored = asked.and_then(|asked| IgnoredOptions::of(asked, *options));
                    return Ok(Resolved { allocator: Arc::clone(allocator), options: *options, ignored });
                }
                AllocatorSlot::Making(own) if *own == thread => {
                    return Err(RegistryError::Reentrant {
                        device: device.to_string(),
                        kind: self.pool.kind(),
                    });
                }
                AllocatorSlot::Making(_) => state = wait(&self.made, state, None),
                AllocatorSlot::Unused(visitors) => break std::mem::take(visitors),
            }
        };
        *state = AllocatorSlot::Making(thread);
        drop(state);
        // Its drop wakes the waiting threads. After a failure, it first resets the memory to unused.
        let making = Making { memory: self, visitors };
        let options = self.pool.settled(asked);
        let allocator = self
            .pool
            .make(&options, &making.visitors)
            .map_err(|error| RegistryError::of_pool(device.to_string(), error))?;
        let (kind, found) = (self.pool.kind(), allocator.memory_kind());
        if found != kind {
            return Err(RegistryError::WrongKind { device: device.to_string(), kind, found });
        }
        *lock(&self.state) = AllocatorSlot::Made { allocator: Arc::clone(&allocator), options };
        Ok(Resolved { allocator, options, ignored: None })
    }
}

/// A memory whose allocator is being created.
struct Making<'a> {
    memory: &'a Memory,
    visitors: Visitors,
}

impl Drop for Making<'_> {
    fn drop(&mut self) {
        let mut state = lock(&self.memory.state);
        if matches!(*state, AllocatorSlot::Making(_)) {
            *state = AllocatorSlot::Unused(std::mem::take(&mut self.visitors));
        }
        drop(state);
        self.memory.made.notify_all();
        // Drops the visitors of a created memory without the lock, because their captures may use the registry.
    }
}

/// Returns the kinds of memory that match the attributes, best first.
const fn preference(attributes: AllocatorAttributes) -> &'static [MemoryKind] {
    use MemoryKind::{AddressOnly, Device, Host, PinnedHost};
    match (attributes.on_host(), attributes.gpu_compatible() || attributes.nic_compatible()) {
        (false, _) => &[Device, AddressOnly, Host],
        (true, false) => &[Host, AddressOnly],
        (true, true) => &[PinnedHost, Host, AddressOnly],
    }
}

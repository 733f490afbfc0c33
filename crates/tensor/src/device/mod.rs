//! Devices: each holds tensors and computes on them.

mod dry_values;
pub(crate) mod external;
mod gpus;
mod memory;
mod placement;
mod profile;
mod runtime;

use std::fmt;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

use bfc_core::{
    Allocator, AllocatorAttributes, DeviceId, MemoryKind, Registry, Stream, ThreadVariable, thread_scoped,
};
use highwater_tracking::{AccountedPool, Tracker};

use crate::backend::{Backend, DeviceRef, StepTime, check};
use crate::error::{Error, Result};
use crate::storage::{View, ViewMut};

pub use self::dry_values::DryRead;
pub(crate) use self::dry_values::DryValues;
use self::external::ExternalAccount;
pub(crate) use self::placement::PlacementLog;
pub use self::placement::{OpPlacement, PlacementReason};
pub use self::profile::DeviceProfile;
pub(crate) use self::runtime::page_locked;
pub use self::runtime::{Choice, Runtime, RuntimeBuilder};

/// A handle to a device with its backend, memory and accounts. Clones refer to the same device.
///
/// ```
/// use highwater::Device;
/// let device = Device::best()?;
/// println!("computing on {device}");
/// # Ok::<(), highwater::Error>(())
/// ```
#[derive(Clone)]
pub struct Device(Arc<Inner>);

struct Inner {
    id: DeviceId,
    /// Unique among all devices of the process, across runtimes.
    serial: u32,
    backend: Arc<dyn Backend>,
    registry: Arc<Registry>,
    tracker: Arc<Tracker>,
    placement: Arc<PlacementLog>,
    dry_values: DryValues,
    /// The allocator of outputs. The registry selects it from the default attributes.
    default_allocator: OnceLock<AccountedPool>,
    external: Arc<ExternalAccount>,
}

thread_scoped! {
    /// The device that the innermost `with_device` has selected.
    static SELECTED: Option<Device> = None;
}

/// Runs `program` with `device` as the result of [`Device::best`] on this thread.
///
/// ```
/// use highwater::{Device, with_device};
/// let dry = Device::dry()?;
/// with_device(&dry, || assert_eq!(Device::best().unwrap(), dry));
/// # Ok::<(), highwater::Error>(())
/// ```
pub fn with_device<R>(device: &Device, program: impl FnOnce() -> R) -> R {
    SELECTED.within(Some(device.clone()), program)
}

impl Device {
    pub(crate) fn new(
        id: DeviceId,
        backend: Arc<dyn Backend>,
        registry: Arc<Registry>,
        tracker: Arc<Tracker>,
        placement: Arc<PlacementLog>,
        dry_values: DryValues,
    ) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        Self(Arc::new(Inner {
            id,
            serial: NEXT.fetch_add(1, Ordering::Relaxed),
            backend,
            registry,
            tracker,
            placement,
            dry_values,
            default_allocator: OnceLock::new(),
            external: ExternalAccount::new(id),
        }))
    }

    /// Returns the device that [`with_device`] selected, or else the best device of the process-wide runtime.
    /// That is the device named by `HIGHWATER_DEVICE`, or else `cuda:0` if it exists and passes a self-check,
    /// or else `cpu:0`. [`Runtime::choose`] also returns the reason.
    ///
    /// # Errors
    /// [`Error::Environment`] if an environment variable is invalid; [`Error::NoDevice`] if the named device
    /// is unusable.
    pub fn best() -> Result<Self> {
        match SELECTED.read(Clone::clone) {
            Some(device) => Ok(device),
            None => Runtime::global().best(),
        }
    }

    /// Returns `cpu:0` of the process-wide runtime.
    ///
    /// # Errors
    /// If the device's memory is unavailable.
    pub fn cpu() -> Result<Self> {
        Runtime::global().cpu()
    }

    /// Returns `dry:0` of the process-wide runtime. It makes the same memory requests as `cpu:0`, but
    /// computes nothing and stores no data.
    ///
    /// # Errors
    /// If the device's memory is unavailable.
    pub fn dry() -> Result<Self> {
        Runtime::global().dry()
    }

    /// Returns `dry:0` of a new runtime, for a device of this profile. It makes the same memory requests as
    /// that device, but computes nothing. [`Runtime::builder`] offers more options.
    ///
    /// ```
    /// use highwater::{Device, DeviceProfile, Tensor};
    /// let card = Device::dry_as(DeviceProfile::gpu("t4").expect("a known GPU"))?;
    /// let x = Tensor::zeros(&card, [2usize << 30])?;
    /// assert!(x.add(&x).is_err(), "8 GiB more do not fit");
    /// # Ok::<(), highwater::Error>(())
    /// ```
    ///
    /// # Errors
    /// If the device's memory is unavailable.
    pub fn dry_as(profile: DeviceProfile) -> Result<Self> {
        Runtime::builder().dry_profile(profile).build()?.dry()
    }

    /// Returns the device's identifier.
    #[must_use]
    pub fn id(&self) -> DeviceId {
        self.0.id
    }

    /// Returns the number by which buffers identify their device.
    #[inline(always)]
    pub(crate) fn serial(&self) -> u32 {
        self.0.serial
    }

    /// Returns the device as the kernel checks use it.
    #[inline(always)]
    pub(crate) fn as_ref(&self) -> DeviceRef<'_> {
        // SAFETY: a device accepts only allocators whose memory its backend can access.
        unsafe { DeviceRef::new(self.0.id, self.0.serial, &*self.0.backend) }
    }

    /// Returns whether the device is a GPU, or a dry device that stands for one.
    #[must_use]
    pub fn is_gpu(&self) -> bool {
        self.0.backend.is_gpu()
    }

    /// Submits all kernels so far, and returns the stream that runs them, to order other work after them. `None` on devices
    /// without streams.
    #[must_use]
    pub fn stream(&self) -> Option<Arc<Stream>> {
        self.0.backend.stream()
    }

    /// Returns whether the device is dry, which means that it computes nothing.
    #[must_use]
    pub fn is_dry(&self) -> bool {
        self.0.backend.is_dry()
    }

    /// Returns the estimated time of all kernels and uploads so far; `None` unless the device is dry and its
    /// [profile](DeviceProfile::speed) has a speed. The difference of two readings is the time between them.
    ///
    /// ```
    /// use highwater::{Device, DeviceProfile, Tensor};
    /// let card = Device::dry_as(DeviceProfile::gpu("t4").expect("a known GPU"))?;
    /// let x = Tensor::zeros(&card, [1024, 1024])?;
    /// let before = card.estimated_time().expect("named GPUs have a speed");
    /// x.matmul(&x)?;
    /// let product = card.estimated_time().expect("as before") - before;
    /// assert_eq!((product.kernels, product.multiply_adds), (1, 1 << 30));
    /// # Ok::<(), highwater::Error>(())
    /// ```
    #[must_use]
    pub fn estimated_time(&self) -> Option<StepTime> {
        self.0.backend.estimated_time()
    }

    /// Returns the device's backend.
    #[must_use]
    pub fn backend(&self) -> &dyn Backend {
        self.0.backend.as_ref()
    }

    /// Returns the accounts of ops, which the devices of one runtime share.
    #[must_use]
    pub fn tracker(&self) -> &Arc<Tracker> {
        &self.0.tracker
    }

    /// Reports to the listener of [`Runtime::on_placement`] that `op` runs here. [`apply`](crate::apply) does
    /// this automatically.
    pub fn log_placement(&self, op: &'static str, reason: PlacementReason) {
        self.placement().notify(op, self, reason);
    }

    /// Copies values from the host to memory of this device, as raw bytes of the element type in logical
    /// order.
    ///
    /// # Errors
    /// [`Error::Operand`] for memory of another device; [`Error::ElementCount`] for another number of values;
    /// [`Error::Device`] if the transfer fails.
    pub fn upload(&self, op: &'static str, values: &[u8], out: ViewMut<'_>) -> Result<()> {
        Ok(check::upload(self.as_ref(), op, values, out)?)
    }

    /// Copies values from this device to the host, as raw bytes of the element type in logical order.
    ///
    /// # Errors
    /// [`Error::NoData`] on a dry device; otherwise as [`upload`](Self::upload).
    pub fn download(&self, op: &'static str, input: View<'_>, values: &mut [u8]) -> Result<()> {
        Ok(check::download(self.as_ref(), op, input, values)?)
    }

    /// Returns the values that the program defines for reads.
    pub(crate) fn dry_values(&self) -> &DryValues {
        &self.0.dry_values
    }

    pub(crate) fn placement(&self) -> &PlacementLog {
        &self.0.placement
    }

    /// Returns whether the device computes on ordinary host memory.
    pub(crate) fn reads_host_memory(&self) -> bool {
        self.0.backend.addresses(MemoryKind::Host, None)
    }

    /// Returns whether tensors of this device can refer to a [`MappedFile`](crate::MappedFile) without a copy:
    /// on CPUs, and on dry devices that stand for one.
    #[must_use]
    pub fn supports_mapped_files(&self) -> bool {
        self.reads_host_memory() || self.is_dry() && !self.is_gpu()
    }

    /// Returns the account of external memory.
    pub(crate) fn external(&self) -> &Arc<ExternalAccount> {
        &self.0.external
    }

    /// Returns the device with the memory that `attributes` select. Attributes that select the same memory
    /// return the same allocator, which the first use creates.
    ///
    /// Tensors require memory that the device computes on. For other memory, such as a GPU's page-locked host
    /// memory, their creation fails with [`Error::WrongMemory`].
    ///
    /// # Errors
    /// If the device has no such memory.
    pub fn allocator(&self, attributes: AllocatorAttributes) -> Result<DeviceAllocator> {
        let resolved = self.0.registry.allocator(self.0.id, attributes, None)?;
        Ok(DeviceAllocator { device: self.clone(), allocator: resolved.allocator })
    }

    /// Returns the device with a custom allocator for new tensors.
    ///
    /// # Errors
    /// [`Error::WrongMemory`] if the device cannot compute on the allocator's memory, because it has another
    /// kind or belongs to another device.
    pub fn with_allocator(&self, allocator: Arc<dyn Allocator>) -> Result<DeviceAllocator> {
        self.require_addressable(&allocator)?;
        Ok(DeviceAllocator { device: self.clone(), allocator })
    }

    /// Checks that the device can compute on an allocator's memory.
    fn require_addressable(&self, allocator: &Arc<dyn Allocator>) -> Result<()> {
        let kind = allocator.memory_kind();
        if self.0.backend.addresses(kind, allocator.address_space()) {
            return Ok(());
        }
        Err(Error::WrongMemory { device: self.to_string(), kind, allocator: allocator.name().to_owned() })
    }

    /// Returns the allocator of outputs of ops on this device.
    ///
    /// # Errors
    /// If the device's memory is unavailable, or the device cannot compute on it.
    #[inline]
    pub fn default_allocator(&self) -> Result<&Arc<dyn Allocator>> {
        match self.0.default_allocator.get() {
            Some(memory) => Ok(memory.pool()),
            None => self.find_default_allocator(),
        }
    }

    /// Returns the default allocator with the accounts of its finished ops, if an op has used it.
    pub(crate) fn finished_accounts(&self) -> Option<&AccountedPool> {
        self.0.default_allocator.get()
    }

    #[cold]
    fn find_default_allocator(&self) -> Result<&Arc<dyn Allocator>> {
        let allocator = self.allocator(AllocatorAttributes::default())?.allocator;
        self.require_addressable(&allocator)?;
        let accounted = || match (AccountedPool::new(allocator), self.is_dry()) {
            (pool, true) => pool.without_time(),
            (pool, false) => pool,
        };
        Ok(self.0.default_allocator.get_or_init(accounted).pool())
    }
}

impl PartialEq for Device {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Device {}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.id.fmt(f)
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Device({})", self.0.id)
    }
}

/// A device together with the allocator for new tensors.
#[derive(Clone, Debug)]
pub struct DeviceAllocator {
    device: Device,
    allocator: Arc<dyn Allocator>,
}

impl DeviceAllocator {
    /// Returns the device.
    #[must_use]
    pub const fn device(&self) -> &Device {
        &self.device
    }

    /// Returns the allocator.
    #[must_use]
    pub const fn allocator(&self) -> &Arc<dyn Allocator> {
        &self.allocator
    }
}

/// A target for new tensors: a device (its default memory) or a [`DeviceAllocator`].
pub trait Place {
    /// Returns the device.
    fn device(&self) -> &Device;

    /// Returns the allocator for new tensors.
    ///
    /// # Errors
    /// If the device's memory is unavailable; [`Error::WrongMemory`] if the device cannot compute on it.
    fn memory(&self) -> Result<&Arc<dyn Allocator>>;
}

impl Place for Device {
    fn device(&self) -> &Device {
        self
    }

    fn memory(&self) -> Result<&Arc<dyn Allocator>> {
        self.default_allocator()
    }
}

impl Place for DeviceAllocator {
    fn device(&self) -> &Device {
        &self.device
    }

    fn memory(&self) -> Result<&Arc<dyn Allocator>> {
        self.device.require_addressable(&self.allocator)?;
        Ok(&self.allocator)
    }
}

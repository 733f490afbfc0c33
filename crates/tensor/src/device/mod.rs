//! Devices: where tensors live and who computes on them.

mod dry_values;
pub(crate) mod external;
mod gpus;
mod memory;
mod placement;
mod profile;
mod runtime;

use std::cell::RefCell;
use std::fmt;
use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

use bfc_core::{Allocator, AllocatorAttributes, DeviceId, MemoryKind, Registry};
use highwater_tracking::Tracker;

use crate::backend::{Backend, DeviceRef, check};
use crate::error::{Error, Result};
use crate::storage::{View, ViewMut};

pub use self::dry_values::DryRead;
pub(crate) use self::dry_values::DryValues;
use self::external::OutsideAccount;
pub(crate) use self::placement::PlacementLog;
pub use self::placement::{Placement, PlacementReason};
pub use self::profile::DeviceProfile;
pub(crate) use self::runtime::page_locked;
pub use self::runtime::{Choice, Runtime, RuntimeBuilder};

/// A handle to a device: its backend, its memories and its accounts. Clones are the same device.
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
    /// Unlike that of any other device of the process, also of another runtime.
    serial: u32,
    backend: Arc<dyn Backend>,
    registry: Arc<Registry>,
    tracker: Arc<Tracker>,
    placement: Arc<PlacementLog>,
    dry_values: DryValues,
    /// The allocator that ops take their outputs from: the registry's answer to the default attributes.
    default_allocator: OnceLock<Arc<dyn Allocator>>,
    outside: Arc<OutsideAccount>,
}

thread_local! {
    /// The devices chosen by `with_device` on this thread, innermost last.
    // Without a destructor, so that a thread that ends still has it. It holds no memory then.
    static CHOSEN: ManuallyDrop<RefCell<Vec<Device>>> = const { ManuallyDrop::new(RefCell::new(Vec::new())) };
}

/// Takes the innermost choice back when `with_device` ends, also by a panic.
struct Chosen;

impl Drop for Chosen {
    fn drop(&mut self) {
        // The device is dropped after the borrow.
        CHOSEN.with(|chosen| {
            let mut chosen = chosen.borrow_mut();
            let device = chosen.pop();
            if chosen.is_empty() {
                *chosen = Vec::new();
            }
            device
        });
    }
}

/// Runs `program` with [`Device::best`] answering `device` on this thread.
///
/// ```
/// use highwater::{Device, with_device};
/// let dry = Device::dry()?;
/// with_device(&dry, || assert_eq!(Device::best().unwrap(), dry));
/// # Ok::<(), highwater::Error>(())
/// ```
pub fn with_device<R>(device: &Device, program: impl FnOnce() -> R) -> R {
    CHOSEN.with(|chosen| chosen.borrow_mut().push(device.clone()));
    let _chosen = Chosen;
    program()
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
            outside: OutsideAccount::new(id),
        }))
    }

    /// The device chosen by [`with_device`], else that of the process-wide runtime: the one that `HIGHWATER_DEVICE` names, else
    /// `cuda:0` if it is there and has passed a check, else `cpu:0`. [`Runtime::choose`] says why.
    ///
    /// # Errors
    /// [`Error::Environment`] if an environment variable cannot be followed; [`Error::NoDevice`] if the device that one names
    /// cannot be used.
    pub fn best() -> Result<Self> {
        match CHOSEN.with(|chosen| chosen.borrow().last().cloned()) {
            Some(device) => Ok(device),
            None => Runtime::global().best(),
        }
    }

    /// `cpu:0` of the process-wide runtime.
    ///
    /// # Errors
    /// If the device's memory cannot be had.
    pub fn cpu() -> Result<Self> {
        Runtime::global().cpu()
    }

    /// `dry:0` of the process-wide runtime: makes the requests for memory that `cpu:0` would make, from addresses with
    /// nothing behind them, and computes nothing.
    ///
    /// # Errors
    /// If the device's memory cannot be had.
    pub fn dry() -> Result<Self> {
        Runtime::global().dry()
    }

    /// `dry:0` of a runtime of its own, which stands for a device of this profile: makes the requests for memory that this
    /// device would make, and computes nothing. [`Runtime::builder`] chooses more.
    ///
    /// ```
    /// use highwater::{Device, DeviceProfile, Tensor};
    /// let card = Device::dry_as(DeviceProfile::gpu("t4").expect("it is a known one"))?;
    /// let x = Tensor::zeros(&card, [2 << 30])?;
    /// assert!(x.add(&x).is_err(), "there are not 8 GiB more");
    /// # Ok::<(), highwater::Error>(())
    /// ```
    ///
    /// # Errors
    /// If the device's memory cannot be had.
    pub fn dry_as(profile: DeviceProfile) -> Result<Self> {
        Runtime::builder().dry_profile(profile).build()?.dry()
    }

    /// Which device this is.
    #[must_use]
    pub fn id(&self) -> DeviceId {
        self.0.id
    }

    /// The number by which buffers name the device that their memory is for.
    #[inline(always)]
    pub(crate) fn serial(&self) -> u32 {
        self.0.serial
    }

    /// The device as the check of kernels sees it.
    #[inline(always)]
    pub(crate) fn as_ref(&self) -> DeviceRef<'_> {
        DeviceRef { id: self.0.id, serial: self.0.serial, backend: &*self.0.backend }
    }

    /// Whether the device computes nothing.
    #[must_use]
    pub fn is_dry(&self) -> bool {
        self.0.backend.is_dry()
    }

    /// The device's arithmetic.
    #[must_use]
    pub fn backend(&self) -> &dyn Backend {
        self.0.backend.as_ref()
    }

    /// The accounts of ops run on this device, shared by the devices of one runtime.
    #[must_use]
    pub fn tracker(&self) -> &Arc<Tracker> {
        &self.0.tracker
    }

    /// Tells the listener of [`Runtime::on_placement`] that `op` runs here. [`apply`](crate::apply) does this by itself.
    pub fn log_placement(&self, op: &'static str, reason: PlacementReason) {
        self.placement().tell(op, self, reason);
    }

    /// Copies values from the host to memory of this device, in logical order, as raw bytes of the element type.
    ///
    /// # Errors
    /// [`Error::Operand`] for memory of another device, [`Error::ElementCount`] for another number of values; else if the
    /// transfer fails.
    pub fn upload(&self, op: &'static str, values: &[u8], out: ViewMut<'_>) -> Result<()> {
        check::upload(self.as_ref(), op, values, out)
    }

    /// Copies values of this device to the host, in logical order, as raw bytes of the element type.
    ///
    /// # Errors
    /// [`Error::NoData`] on a device that computes nothing; else as [`upload`](Self::upload).
    pub fn download(&self, op: &'static str, input: View<'_>, values: &mut [u8]) -> Result<()> {
        check::download(self.as_ref(), op, input, values)
    }

    /// What is scripted to be read here.
    pub(crate) fn dry_values(&self) -> &DryValues {
        &self.0.dry_values
    }

    pub(crate) fn placement(&self) -> &PlacementLog {
        &self.0.placement
    }

    /// Whether the device computes on ordinary host memory.
    pub(crate) fn reads_host_memory(&self) -> bool {
        self.0.backend.addresses(MemoryKind::Host, None)
    }

    /// The account of memory that tensors look into and others own.
    pub(crate) fn outside(&self) -> &Arc<OutsideAccount> {
        &self.0.outside
    }

    /// The device with one of its memories, as `attributes` select it. Sets that name the same memory give the same
    /// allocator, made on first use.
    ///
    /// Tensors can be made only in memory that the device computes on: for others, such as a GPU's page-locked host memory, that is
    /// [`Error::WrongMemory`].
    ///
    /// # Errors
    /// If the device has no such memory.
    pub fn allocator(&self, attributes: AllocatorAttributes) -> Result<DeviceAllocator> {
        let resolved = self.0.registry.allocator(self.0.id, attributes, None)?;
        Ok(DeviceAllocator { device: self.clone(), allocator: resolved.allocator })
    }

    /// The device with an allocator of one's own, from which new tensors can then be made.
    ///
    /// # Errors
    /// [`Error::WrongMemory`] if the device cannot compute on the allocator's memory: it is of another kind, or of another
    /// device.
    pub fn with_allocator(&self, allocator: Arc<dyn Allocator>) -> Result<DeviceAllocator> {
        self.require_addressable(&allocator)?;
        Ok(DeviceAllocator { device: self.clone(), allocator })
    }

    /// That the device can compute on an allocator's memory.
    fn require_addressable(&self, allocator: &Arc<dyn Allocator>) -> Result<()> {
        let kind = allocator.memory_kind();
        if self.0.backend.addresses(kind, allocator.address_space()) {
            return Ok(());
        }
        Err(Error::WrongMemory { device: self.to_string(), kind, allocator: allocator.name().to_owned() })
    }

    /// The allocator that ops on this device take their outputs from.
    ///
    /// # Errors
    /// If the device's memory cannot be had, or is none that the device computes on.
    #[inline]
    pub fn default_allocator(&self) -> Result<&Arc<dyn Allocator>> {
        match self.0.default_allocator.get() {
            Some(allocator) => Ok(allocator),
            None => self.find_default_allocator(),
        }
    }

    #[cold]
    fn find_default_allocator(&self) -> Result<&Arc<dyn Allocator>> {
        let allocator = self.allocator(AllocatorAttributes::default())?.allocator;
        self.require_addressable(&allocator)?;
        Ok(self.0.default_allocator.get_or_init(|| allocator))
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

/// A device together with the allocator that new tensors come from.
#[derive(Clone, Debug)]
pub struct DeviceAllocator {
    device: Device,
    allocator: Arc<dyn Allocator>,
}

impl DeviceAllocator {
    /// The device.
    #[must_use]
    pub const fn device(&self) -> &Device {
        &self.device
    }

    /// The allocator.
    #[must_use]
    pub const fn allocator(&self) -> &Arc<dyn Allocator> {
        &self.allocator
    }
}

/// Where constructors may be pointed at: a device (its default memory) or a [`DeviceAllocator`].
pub trait Place {
    /// The device.
    fn device(&self) -> &Device;

    /// The allocator to take from.
    ///
    /// # Errors
    /// If the device's memory cannot be had; [`Error::WrongMemory`] if the device cannot compute on it.
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

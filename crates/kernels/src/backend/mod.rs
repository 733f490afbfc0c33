//! Backends: the arithmetic of a device, on views of memory that ops have allocated.
//!
//! A backend never allocates tensor memory. Ops first allocate outputs, temporaries and [workspaces](crate::workspace::Workspace),
//! whose sizes are pure functions of shapes. Then they pass the backend a [`Kernel`] with its operands. So the accounts
//! contain all memory, and the [`dry`] backend, which computes nothing, makes exactly the same requests.
//!
//! Results do not depend on the number of threads.

pub mod check;
pub mod cpu;
#[cfg(feature = "cuda")]
pub mod cuda;
pub mod dry;
pub mod timed;

use std::fmt;
use std::sync::Arc;

use bfc_core::{AddressSpace, DeviceId, MemoryKind, Stream};

pub use self::check::Checked;
use crate::error::Result;
use crate::families::Kernel;
use crate::rules::DeviceRules;
use crate::step_graphs::StepGraphs;
use crate::step_time::StepTime;
use crate::storage::{View, ViewMut};

/// Prevents other implementations of [`Backend`]: its callers trust it.
mod sealed {
    pub trait Sealed {}
}

/// The arithmetic of one device.
///
/// `op` is the name of the calling op, for errors. Callers run kernels through [`check`], which checks operands: calls
/// that touch memory take a [`Checked`], which only that check makes. The trait is sealed.
pub trait Backend: sealed::Sealed + Send + Sync + fmt::Debug {
    /// The backend's name.
    fn name(&self) -> &'static str;

    /// Whether the backend computes nothing, so that there are no values to read.
    fn is_dry(&self) -> bool {
        false
    }

    /// Whether kernels can access memory of this kind in this address space.
    fn addresses(&self, kind: MemoryKind, space: Option<AddressSpace>) -> bool;

    /// Whether the backend is a GPU, or stands for one.
    fn is_gpu(&self) -> bool {
        self.rules().is_gpu()
    }

    /// Submits held work, and returns the stream that runs all kernels; `None` if kernels do not run on a stream.
    fn stream(&self) -> Option<Arc<Stream>> {
        None
    }

    /// The reason why the device is slower than it could be, for instance a missing library.
    fn remark(&self) -> Option<String> {
        None
    }

    /// Copies values from the host, in logical order, given as raw bytes of `out`'s element type.
    ///
    /// # Errors
    /// If the transfer fails.
    fn upload(&self, op: &'static str, values: &[u8], out: ViewMut<'_>, checked: Checked) -> Result<()>;

    /// Copies values to the host, in logical order, as raw bytes.
    ///
    /// # Errors
    /// [`KernelError::NoData`](crate::error::KernelError::NoData) if the backend computes nothing; otherwise if the transfer fails.
    fn download(&self, op: &'static str, input: View<'_>, values: &mut [u8], checked: Checked) -> Result<()>;

    /// On a dry backend: allocates the staging memory that an upload of this size requires.
    fn simulate_upload(&self, bytes: usize) {
        let _ = bytes;
    }

    /// On a dry backend: frees the staging memory that a device frees when the host waits for it.
    fn simulate_download(&self) {}

    /// On a dry backend with a [time model](dry::TimeModel): the estimated time of all kernels and uploads so far.
    fn estimated_time(&self) -> Option<StepTime> {
        None
    }

    /// The facts of the device that memory depends on. A GPU does not state its compute capability, which only the reserve
    /// of a pool depends on: it is (0, 0).
    fn rules(&self) -> DeviceRules;

    /// Runs a kernel, or enqueues it on the device.
    ///
    /// # Errors
    /// For indices out of range, for memory or an element type that the backend does not support, and if the device fails.
    fn run(&self, op: &'static str, kernel: &mut Kernel<'_>, checked: Checked) -> Result<()>;

    /// Runs kernels that do not depend on each other, with the results that they have alone. A device may launch several
    /// at a time.
    ///
    /// # Errors
    /// As [`run`](Self::run). Any of the kernels may have run then.
    fn run_together(&self, op: &'static str, kernels: &mut [Kernel<'_>], checked: Checked) -> Result<()>;

    /// Step graphs, if the device supports them.
    fn step_graphs(&self) -> Option<&dyn StepGraphs> {
        None
    }
}

/// The properties of a device that the check of a kernel needs.
#[derive(Clone, Copy, Debug)]
pub struct DeviceRef<'a> {
    /// The device, for errors.
    id: DeviceId,
    /// The number by which buffers identify their device.
    serial: u32,
    backend: &'a dyn Backend,
}

impl<'a> DeviceRef<'a> {
    /// Returns the properties of a device. Errors show `id`.
    ///
    /// # Safety
    /// The backend can access the memory of all [buffers](crate::storage::Storage::device) with the number `serial`.
    #[must_use]
    #[inline]
    pub const unsafe fn new(id: DeviceId, serial: u32, backend: &'a dyn Backend) -> Self {
        Self { id, serial, backend }
    }

    /// The facts that the rules of kernels depend on.
    fn facts(&self) -> (DeviceId, u32, DeviceRules) {
        (self.id, self.serial, self.backend.rules())
    }
}

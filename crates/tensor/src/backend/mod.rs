//! Backends: the arithmetic of a device, on views of memory that ops have allocated.
//!
//! A backend never allocates tensor memory. Ops first allocate outputs, temporaries and workspaces, whose sizes the backend
//! states as pure functions of shapes. Then they pass the backend a [`Kernel`] with its operands. So the accounts contain all
//! memory, and the [`dry`] backend, which computes nothing, makes exactly the same requests.
//!
//! Results do not depend on the number of threads.

#[cfg_attr(
    not(feature = "cuda"),
    allow(dead_code, reason = "a dry run that stands for a GPU asks for workspaces alone")
)]
mod blocks;
pub(crate) mod check;
pub mod cpu;
#[cfg(feature = "cuda")]
pub mod cuda;
mod demand;
pub mod dry;
mod function;
mod kernel;
pub(crate) mod operands;
mod rules;
mod steps;
mod window;
mod workspace;

use std::fmt;

use bfc_core::{AddressSpace, DeviceId, MemoryKind};

pub use self::check::Checked;
pub use self::function::{
    Activation, AdamStep, Binary, Compare, Distribution, LionStep, RandomKey, Reduce, RmsPropStep, SgdStep,
    Unary,
};
pub use self::kernel::{Activated, Attention, Kernel, Normalized};
pub use self::rules::DeviceRules;
pub use self::steps::{StepCounts, Steps};
pub use self::window::{Convolution, Pool, PoolAxis, Window};
pub use self::workspace::Workspace;
use crate::error::{Error, Result};
pub use crate::error::{OperandError, OperandFault};
use crate::storage::{View, ViewMut};

/// Prevents other implementations of [`Backend`]: its callers trust it.
mod sealed {
    pub trait Sealed {}
}

/// The arithmetic of one device.
///
/// `op` is the name of the calling op, for errors. Ops compute through [`OpContext::compute`](crate::OpContext::compute),
/// which checks operands: calls that touch memory take a [`Checked`], which only that check makes. The trait is sealed.
pub trait Backend: sealed::Sealed + Send + Sync + fmt::Debug {
    /// The backend's name.
    fn name(&self) -> &'static str;

    /// Whether the backend computes nothing, so that there are no values to read.
    fn is_dry(&self) -> bool {
        false
    }

    /// Whether kernels can access memory of this kind in this address space.
    fn addresses(&self, kind: MemoryKind, space: Option<AddressSpace>) -> bool;

    /// Why the device is slower than it could be, for instance because a library is missing.
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
    /// [`Error::NoData`] if the backend computes nothing; otherwise if the transfer fails.
    fn download(&self, op: &'static str, input: View<'_>, values: &mut [u8], checked: Checked) -> Result<()>;

    /// On a backend that computes nothing: makes the requests of an upload of so many bytes.
    fn simulate_upload(&self, bytes: usize) {
        let _ = bytes;
    }

    /// On a backend that computes nothing: frees what a device frees when the host waits for it.
    fn simulate_download(&self) {}

    /// The bytes of a kernel's workspace: a pure function of the argument.
    fn workspace(&self, of: Workspace<'_>) -> usize;

    /// The chunk length, in elements, of operations that need temporaries: elementwise kernels of 16-bit floats, and the terms
    /// of long sums.
    fn chunk_elements(&self) -> usize {
        1 << 18
    }

    /// Whether kernels accept 16-bit floats, also beside f32 operands, and compute with both in f32. If not, operands are upcast
    /// to f32 before the kernel.
    fn supports_half(&self) -> bool {
        false
    }

    /// Runs a kernel, or enqueues it on the device.
    ///
    /// # Errors
    /// For indices as the kernel's documentation says, for memory or an element type that the backend does not support, and if
    /// the device fails.
    fn run(&self, op: &'static str, kernel: &mut Kernel<'_>, checked: Checked) -> Result<()>;

    /// Step graphs, if the device supports them.
    fn steps(&self) -> Option<&dyn Steps> {
        None
    }
}

/// A device as the check of a kernel sees it.
#[derive(Clone, Copy)]
pub(crate) struct DeviceRef<'a> {
    /// The device, for errors.
    pub(crate) id: DeviceId,
    /// The number by which buffers name the device that their memory is for.
    pub(crate) serial: u32,
    pub(crate) backend: &'a dyn Backend,
}

/// The error for memory that the host cannot access: an op got a view of another device.
pub(crate) fn not_host(op: &'static str) -> Error {
    Error::NoData { op, device: "a device whose memory the host cannot reach".to_owned() }
}

//! Backends: the arithmetic of a device, on views of memory that ops have allocated.
//!
//! A backend never allocates tensor memory. Ops take every byte first (outputs, temporaries, and workspaces whose
//! sizes the backend states as pure functions of shapes) and then hand it a [`Kernel`]: which one, and on what. So all
//! memory is accounted for, and the [`dry`] backend, which computes nothing, makes byte for byte the same requests.
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
pub use self::kernel::{Activated, Attention, Kernel, Normalised};
pub use self::rules::DeviceRules;
pub use self::steps::{StepCounts, Steps};
pub use self::window::{Convolution, Pool, PoolAxis, Window};
pub use self::workspace::Workspace;
use crate::error::{Error, Result};
pub use crate::error::{OperandError, OperandFault};
use crate::storage::{View, ViewMut};

/// The backends of this crate. Nothing else may implement [`Backend`]: what one computes on is trusted.
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

    /// Whether nothing is computed, so that there are no values to read.
    fn is_dry(&self) -> bool {
        false
    }

    /// Whether kernels may be given memory of this kind, which lies in the address space of this device, if in that of one.
    fn addresses(&self, kind: MemoryKind, space: Option<AddressSpace>) -> bool;

    /// What makes the device slower than it may be, for those who choose it, as a library that is not there.
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
    /// [`Error::NoData`] where nothing is computed; else if the transfer fails.
    fn download(&self, op: &'static str, input: View<'_>, values: &mut [u8], checked: Checked) -> Result<()>;

    /// Where nothing is computed: makes the requests of an upload of so many bytes, of which there need be none here.
    fn rehearse_upload(&self, bytes: usize) {
        let _ = bytes;
    }

    /// Where nothing is computed: what waiting for the device to read values from it does to memory.
    fn rehearse_download(&self) {}

    /// Bytes that a kernel takes while it runs: a pure function of what is asked.
    fn workspace(&self, of: Workspace<'_>) -> usize;

    /// Elements of the pieces in which is computed what takes temporaries: functions of many halves, the terms of long sums.
    fn piece(&self) -> usize {
        1 << 18
    }

    /// Whether kernels take halves as they are, and f32 beside them, and compute with both in f32. Else halves are widened
    /// beforehand.
    fn takes_halves(&self) -> bool {
        false
    }

    /// Computes, or has the device compute when everything given to it before is done.
    ///
    /// # Errors
    /// For indices as the kernel's text says, for memory or an element type that the backend cannot handle, and if the
    /// device fails.
    fn run(&self, op: &'static str, kernel: Kernel<'_>, checked: Checked) -> Result<()>;

    /// Steps as graphs, where the device has them.
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

/// The error for memory that the host cannot touch: an op was given a view of another device.
pub(crate) fn not_host(op: &'static str) -> Error {
    Error::NoData { op, device: "a device whose memory the host cannot reach".to_owned() }
}

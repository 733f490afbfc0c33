//! What a device must do beyond memory: run kernels, multiply matrices and copy bytes, all in the order of the calls.
//!
//! [`Compute`] is the boundary between the tensor crate, which makes jobs, and the devices that run them: a CUDA stream or the
//! emulator.

mod error;
mod product;
mod step;

use std::fmt;

use bfc_core::AddressSpace;

use crate::kernels::{Job, Kernel};

pub(crate) use error::not_newer;
pub use error::{ComputeError, LibraryProblem, Target, TriedLibrary};
pub use product::{Factor, Product};
pub use step::{StepCounts, StepId};

/// A device that runs kernels. Everything it is given happens in the order in which it was given, as if by one thread.
///
/// # Safety
/// An implementation touches no memory but what jobs and copies name, and nothing after the call that waits for it. It can
/// compute on all live memory of its [`address_space`](Self::address_space).
pub unsafe trait Compute: Send + Sync + fmt::Debug {
    /// The device's name for people.
    fn name(&self) -> &str;

    /// The address space of the memory that kernels and copies may be given. `None`, the default, for none: no memory is then
    /// this device's.
    fn address_space(&self) -> Option<AddressSpace> {
        None
    }

    /// Starts a kernel with so many blocks (at least 1), of [`BLOCK`](crate::kernels::BLOCK) threads each.
    ///
    /// # Safety
    /// The operands of the job are live memory of this device, of the types and extents that the kernel takes, and stay so
    /// until work given later has ended; what it writes, nothing else uses.
    ///
    /// # Errors
    /// See [`ComputeError`].
    unsafe fn launch(&self, kernel: Kernel, blocks: u32, job: &Job) -> Result<(), ComputeError>;

    /// Whether there is a library that multiplies matrices. The default is that there is none.
    fn has_products(&self) -> bool {
        false
    }

    /// What makes the device slower than it may be, for people: that there is no library for products, and why. None if there is
    /// nothing to say, as by default.
    fn remark(&self) -> Option<String> {
        None
    }

    /// Has the library multiply matrices. False if it does not know how to, and nothing is done then.
    ///
    /// # Safety
    /// The factors, the product and the workspace are live memory of this device, of the sizes that the product says, and
    /// stay so until work given later has ended; nothing else uses what is written.
    ///
    /// # Errors
    /// See [`ComputeError`].
    unsafe fn multiply(&self, product: &Product) -> Result<bool, ComputeError> {
        let _ = product;
        Ok(false)
    }

    /// Copies bytes to the device. They may be reused at once.
    ///
    /// # Safety
    /// `to` starts as many bytes of live memory of this device, which nothing else uses.
    ///
    /// # Errors
    /// See [`ComputeError`].
    unsafe fn upload(&self, bytes: &[u8], to: u64) -> Result<(), ComputeError>;

    /// Waits for all work given before, and copies bytes from the device.
    ///
    /// # Safety
    /// `from` starts as many bytes of live memory of this device.
    ///
    /// # Errors
    /// See [`ComputeError`]; those of work given before may show here.
    unsafe fn download(&self, from: u64, bytes: &mut [u8]) -> Result<(), ComputeError>;

    /// Gives back what uploads have in page-locked memory, once the host has waited for all of them, as by a download. It is for the
    /// caller to say where, so that what the pool of such memory is asked for follows from the program. Nothing by default.
    fn let_go_of_uploads(&self) {}

    /// The address of 256 bytes of the device's memory that are kept for who computes on it.
    fn scratch(&self) -> u64;

    /// Begins a run of a step: kernels and products may be held back from now on, as long as they are those of an earlier run,
    /// and given to the device all at once. False if the device does not do so, or another run has not ended: then they are
    /// given as ever.
    fn begin_step(&self, step: StepId) -> bool {
        let _ = step;
        false
    }

    /// Ends the run, once all of its work is given.
    ///
    /// # Errors
    /// See [`ComputeError`]; those of work that was held back show here, or where bytes are copied.
    fn end_step(&self) -> Result<(), ComputeError> {
        Ok(())
    }

    /// Forgets a step that will not be run again.
    fn forget_step(&self, step: StepId) {
        let _ = step;
    }

    /// How the work of a step was given.
    fn step_counts(&self, step: StepId) -> StepCounts {
        let _ = step;
        StepCounts::default()
    }

    /// Gives the device what is held back; for those who wait for its work by other means, or take its memory away. What goes
    /// wrong is told to those who come next.
    fn settle(&self) {}
}

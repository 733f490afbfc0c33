//! Kernels, matrix products and copies on a device, in the order of the calls.
//!
//! [`Compute`] is the boundary between programs, which make jobs, and the devices that run them: a CUDA stream or the
//! emulator.

mod error;
mod product;
mod step;

use std::fmt;
use std::sync::Arc;

use bfc_core::{AddressSpace, Stream};

use crate::kernels::{Job, JobTable, KernelId};

#[cfg(feature = "nccl")]
pub(crate) use error::listed;
pub use error::{ComputeError, LibraryProblem, Target, TriedLibrary};
pub(crate) use error::{call_device, not_newer};
pub use product::{Factor, Product};
pub use step::{GraphCounts, StepId};

/// A device that runs kernels, in the order of the calls.
///
/// # Safety
/// An implementation accesses only memory that jobs and copies name, and none after a call that waits. It can compute
/// on all live memory of its [`address_space`](Self::address_space).
pub unsafe trait Compute: Send + Sync + fmt::Debug {
    /// The device's name.
    fn name(&self) -> &str;

    /// The address space of the memory that kernels and copies accept. `None`, the default, accepts no memory.
    fn address_space(&self) -> Option<AddressSpace> {
        None
    }

    /// Launches a kernel with this number of blocks (at least 1) of [`BLOCK`](crate::kernels::BLOCK) threads.
    ///
    /// # Safety
    /// The job's operands are live memory of this device, with the types and extents that the kernel expects. They stay
    /// live until later work has ended, and nothing else uses the outputs.
    ///
    /// # Errors
    /// See [`ComputeError`].
    unsafe fn launch(&self, kernel: KernelId, blocks: u32, job: &Job) -> Result<(), ComputeError>;

    /// Launches a kernel that takes a table.
    ///
    /// # Safety
    /// As [`launch`](Self::launch), also for the tensors of the table's rows.
    ///
    /// # Errors
    /// See [`ComputeError`].
    unsafe fn launch_table(
        &self,
        kernel: KernelId,
        blocks: u32,
        job: &Job,
        table: &Arc<JobTable>,
    ) -> Result<(), ComputeError>;

    /// Whether a library for matrix products is available. Default: no.
    fn supports_products(&self) -> bool {
        false
    }

    /// Why the device is slower than possible, for example that no library for products was found. Default: `None`.
    fn performance_note(&self) -> Option<String> {
        None
    }

    /// Multiplies matrices with the library. Returns false, without doing anything, if the library does not support the
    /// product.
    ///
    /// # Safety
    /// The factors, the product and the workspace are live memory of this device with the sizes that the product
    /// states. They stay live until later work has ended, and nothing else uses what is written.
    ///
    /// # Errors
    /// See [`ComputeError`].
    unsafe fn multiply(&self, product: &Product) -> Result<bool, ComputeError> {
        let _ = product;
        Ok(false)
    }

    /// Copies bytes to the device. The caller may reuse them at once.
    ///
    /// # Safety
    /// `to` points to that many bytes of live device memory, which nothing else uses.
    ///
    /// # Errors
    /// See [`ComputeError`].
    unsafe fn upload(&self, bytes: &[u8], to: u64) -> Result<(), ComputeError>;

    /// Waits for all earlier work, then copies bytes from the device.
    ///
    /// # Safety
    /// `from` points to that many bytes of live device memory.
    ///
    /// # Errors
    /// See [`ComputeError`]; errors of earlier work may show here.
    unsafe fn download(&self, from: u64, bytes: &mut [u8]) -> Result<(), ComputeError>;

    /// Frees the pinned buffers of finished uploads. The caller chooses the place, for example after a download, so
    /// that the pool's requests depend on the program alone. Default: nothing.
    fn release_uploads(&self) {}

    /// The address of 256 bytes of device memory reserved for the caller's results.
    fn scratch(&self) -> u64;

    /// Begins a run of a step. Kernels and products that repeat an earlier run may be held back and submitted as
    /// graphs. Returns false if the device has no graphs or another run is active.
    fn begin_step(&self, step: StepId) -> bool {
        let _ = step;
        false
    }

    /// Submits the rest of the run's work and ends the run.
    ///
    /// # Errors
    /// See [`ComputeError`]; errors of held work show here or at a copy.
    fn end_step(&self) -> Result<(), ComputeError> {
        Ok(())
    }

    /// Drops the record of a step that will not run again.
    fn forget_step(&self, step: StepId) {
        let _ = step;
    }

    /// How the work of a step was submitted.
    fn step_counts(&self, step: StepId) -> GraphCounts {
        let _ = step;
        GraphCounts::default()
    }

    /// Submits held work. Callers use this before they wait for the device by other means or free its memory. A later
    /// caller gets an error.
    fn flush(&self) {}

    /// Submits held work, and returns the stream that runs all work; `None` if the device is no stream.
    fn stream(&self) -> Option<Arc<Stream>> {
        None
    }
}

//! The device under test, with a library for products; what the host asks of it is counted and kept.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use bfc_core::{AddressSpace, SubAllocator};
use bfc_cuda::kernels::{Job, JobTable, KernelId};
use bfc_cuda::{Compute, ComputeError, GraphCounts, Product, StepId};

use super::computing::Computing;

/// Everything is as the device does it.
#[derive(Debug)]
pub(crate) struct Counting {
    device: Computing,
    /// Whether the library is to say that it does not know how to multiply.
    refuses: bool,
    products: AtomicUsize,
    downloads: AtomicUsize,
    launched: Mutex<Vec<&'static str>>,
}

impl Counting {
    pub(crate) fn new(refuses: bool) -> Arc<Self> {
        let (products, downloads) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let device = Computing::with_products();
        Arc::new(Self { device, refuses, products, downloads, launched: Mutex::default() })
    }

    /// The device's memory.
    pub(super) fn memory(&self) -> Arc<dyn SubAllocator> {
        Arc::clone(&self.device.memory)
    }

    /// Products that the library has computed.
    pub(crate) fn products(&self) -> usize {
        self.products.load(Ordering::Relaxed)
    }

    /// How often the host has waited for the device.
    pub(crate) fn waits(&self) -> usize {
        self.downloads.load(Ordering::Relaxed)
    }

    /// The names of the kernels that were started, in order.
    pub(crate) fn launched(&self) -> Vec<&'static str> {
        self.launched.lock().unwrap().clone()
    }
}

// SAFETY: the device does all of it.
unsafe impl Compute for Counting {
    fn name(&self) -> &str {
        self.device.compute.name()
    }

    fn address_space(&self) -> Option<AddressSpace> {
        self.device.compute.address_space()
    }

    unsafe fn launch(&self, kernel: KernelId, blocks: u32, job: &Job) -> Result<(), ComputeError> {
        self.launched.lock().unwrap().push(kernel.name);
        // SAFETY: as the caller says.
        unsafe { self.device.compute.launch(kernel, blocks, job) }
    }

    unsafe fn launch_table(
        &self,
        kernel: KernelId,
        blocks: u32,
        job: &Job,
        table: &Arc<JobTable>,
    ) -> Result<(), ComputeError> {
        self.launched.lock().unwrap().push(kernel.name);
        // SAFETY: as the caller says.
        unsafe { self.device.compute.launch_table(kernel, blocks, job, table) }
    }

    fn supports_products(&self) -> bool {
        self.device.compute.supports_products()
    }

    unsafe fn multiply(&self, product: &Product) -> Result<bool, ComputeError> {
        assert!(product.workspace.1 >= 16 << 10, "{product:?}");
        if self.refuses {
            return Ok(false);
        }
        self.products.fetch_add(1, Ordering::Relaxed);
        // SAFETY: as the caller says.
        unsafe { self.device.compute.multiply(product) }
    }

    unsafe fn upload(&self, bytes: &[u8], to: u64) -> Result<(), ComputeError> {
        // SAFETY: as the caller says.
        unsafe { self.device.compute.upload(bytes, to) }
    }

    unsafe fn download(&self, from: u64, bytes: &mut [u8]) -> Result<(), ComputeError> {
        self.downloads.fetch_add(1, Ordering::Relaxed);
        // SAFETY: as the caller says.
        unsafe { self.device.compute.download(from, bytes) }
    }

    fn release_uploads(&self) {
        self.device.compute.release_uploads();
    }

    fn scratch(&self) -> u64 {
        self.device.compute.scratch()
    }

    fn begin_step(&self, step: StepId) -> bool {
        self.device.compute.begin_step(step)
    }

    fn end_step(&self) -> Result<(), ComputeError> {
        self.device.compute.end_step()
    }

    fn forget_step(&self, step: StepId) {
        self.device.compute.forget_step(step);
    }

    fn step_counts(&self, step: StepId) -> GraphCounts {
        self.device.compute.step_counts(step)
    }

    fn flush(&self) {
        self.device.compute.flush();
    }
}

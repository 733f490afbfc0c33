//! CUDA devices of a runtime: opens, checks and registers them.

use std::sync::Arc;

use bfc_core::{DeviceId, MemoryKind, Stream};
use bfc_cuda::{CudaDriver, RegisterError, StreamCompute, register_stream, self_check};

use super::builder::{packing_for, record_regions};
use super::{OpenCheck, Runtime, page_locked};
use crate::backend::Backend;
use crate::backend::cuda::CudaBackend;
use crate::error::{DeviceFault, Error};

impl Runtime {
    /// Opens a device: its stream, its compute backend and its pools. Registers it only after everything
    /// succeeded.
    pub(super) fn open_cuda(&self, id: DeviceId, check: OpenCheck) -> Result<Arc<dyn Backend>, DeviceFault> {
        let [chosen, environment] = &self.0.pools;
        let options = chosen.options(id).or(environment.options(id));
        let registry = &self.0.registry;
        let driver = CudaDriver::new(id.ordinal)?;
        let stream = Stream::new(driver.clone())?;
        let compute = StreamCompute::new(Arc::clone(&driver), Arc::clone(&stream))?;
        // A weak reference, because the device may outlive the registry.
        let weak_registry = Arc::downgrade(registry);
        let release_memory = move || weak_registry.upgrade().is_some_and(|registry| registry.trim(id) > 0);
        let compute = compute.with_tf32(self.0.tf32).with_memory_release(release_memory);
        if check == OpenCheck::SelfCheck {
            self_check(&driver, &compute)?;
        }
        let packing = packing_for(&self.0.packings, id);
        register_stream(registry, &driver, &stream, options, packing).map_err(|error| match error {
            RegisterError::Unavailable(error) => DeviceFault::Cuda(error),
            RegisterError::Driver(error) => DeviceFault::Driver(error),
            RegisterError::Registry(error) => DeviceFault::Registry(error),
            error => DeviceFault::Other(error.to_string()),
        })?;
        let finished =
            registry.allocator(id, page_locked(), None).map_err(DeviceFault::Registry).and_then(|pinned| {
                compute.set_pinned(pinned.allocator);
                let recorded = record_regions(&self.0.tracker, registry, id, MemoryKind::Device);
                recorded.map_err(|error| match error {
                    Error::Registry(error) => DeviceFault::Registry(error),
                    error => DeviceFault::Other(error.to_string()),
                })
            });
        if let Err(fault) = finished {
            registry.unregister(id);
            return Err(fault);
        }
        Ok(Arc::new(CudaBackend::new(Arc::new(compute))))
    }
}

//! The memory of an emulated device.

use std::sync::{Arc, Weak};

use bfc_core::{AddressSpace, HostMemory, MemoryKind, SourceError, Span, SubAllocator};

use crate::compute::Compute;

/// Host memory that takes the place of device memory, which only the emulator accesses.
#[derive(Debug)]
pub struct EmulatedMemory {
    memory: HostMemory,
    /// The device that computes on it.
    compute: Weak<dyn Compute>,
    space: Option<AddressSpace>,
}

impl EmulatedMemory {
    /// Creates memory for an [`Emulator`] or a wrapper of one.
    #[must_use]
    pub fn of(compute: &Arc<dyn Compute>) -> Self {
        let (memory, space) = (HostMemory::default(), compute.address_space());
        Self { memory, compute: Arc::downgrade(compute), space }
    }
}

// SAFETY: regions come from `HostMemory`, which gives the same guarantees.
unsafe impl SubAllocator for EmulatedMemory {
    fn memory_kind(&self) -> MemoryKind {
        MemoryKind::Device
    }

    fn address_space(&self) -> Option<AddressSpace> {
        self.space
    }

    fn allocate(&self, alignment: u64, bytes: u64) -> Result<Span, SourceError> {
        self.memory.allocate(alignment, bytes)
    }

    unsafe fn free(&self, region: Span) {
        // Command on it that was held back is done before.
        if let Some(compute) = self.compute.upgrade() {
            compute.flush();
        }
        // SAFETY: the region came from the same memory; the caller promises the rest.
        unsafe { self.memory.free(region) };
    }
}

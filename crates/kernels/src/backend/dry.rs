//! The dry backend: ops allocate the same memory as on the imitated device, and kernels compute nothing.
//!
//! The functions that size workspaces are those of the imitated device's backend, so the requests are equal to the byte.
//! Errors that depend on values, such as indices out of range, do not occur in a dry run.
//!
//! Uploads to a GPU allocate pinned memory. A dry upload allocates as much from a pool of the dry device, by the same rule
//! ([`StagedPieces`]), and writes nothing to it.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bfc_core::{
    AddressSpace, Allocation, AllocationAttributes, Allocator, MemoryKind, Request, STAGED_PIECE,
    StagedPieces,
};

use super::{Backend, Checked, sealed};
use crate::cost::Work;
use crate::error::{KernelError, Result};
use crate::families::{self, Kernel};
use crate::rules::DeviceRules;
use crate::step_time::StepTime;
use crate::storage::{View, ViewMut};

/// A backend that computes nothing and accesses no memory.
#[derive(Debug)]
pub struct DryBackend {
    rules: DeviceRules,
    staging: Option<Staging>,
    clock: Option<Clock>,
}

/// Estimates the time of kernels and uploads on a device.
pub trait TimeModel: fmt::Debug + Send + Sync {
    /// Returns the estimated time of a kernel.
    fn kernel_time(&self, work: &Work) -> StepTime;

    /// Returns the estimated time of an upload.
    fn upload_time(&self, bytes: u64) -> StepTime;
}

/// The estimated time of the imitated device.
#[derive(Debug)]
struct Clock {
    model: Box<dyn TimeModel>,
    time: Mutex<StepTime>,
}

impl Clock {
    fn time(&self) -> MutexGuard<'_, StepTime> {
        self.time.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The pinned memory of uploads that the imitated GPU has not copied yet.
#[derive(Debug)]
struct Staging {
    pinned: Arc<dyn Allocator>,
    staged: Mutex<StagedPieces<Allocation>>,
}

impl DryBackend {
    /// Creates a backend that imitates the CPU.
    #[must_use]
    pub const fn new() -> Self {
        Self::of(DeviceRules::Cpu)
    }

    /// Creates a backend that imitates a device with these rules.
    #[must_use]
    pub const fn of(rules: DeviceRules) -> Self {
        Self { rules, staging: None, clock: None }
    }

    /// Returns the backend with `pinned` as the allocator of staging memory for uploads. It never accesses that memory.
    #[must_use]
    pub fn with_pinned(self, pinned: Arc<dyn Allocator>) -> Self {
        Self { staging: Some(Staging { pinned, staged: Mutex::default() }), ..self }
    }

    /// Returns the backend with an estimate of the time of all kernels and uploads.
    #[must_use]
    pub fn with_speed(self, speed: impl TimeModel + 'static) -> Self {
        Self { clock: Some(Clock { model: Box::new(speed), time: Mutex::default() }), ..self }
    }
}

impl Staging {
    fn staged(&self) -> MutexGuard<'_, StagedPieces<Allocation>> {
        self.staged.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Allocates the staging memory of an upload. If memory runs out, the rest is copied without staging, as on the device.
    fn upload(&self, bytes: usize) {
        let mut left = bytes;
        while left > 0 {
            let piece = left.min(STAGED_PIECE);
            // Allocates and drops without holding the lock: the pool may be third-party code or call visitors.
            while self.pop(|staged| staged.crowded_out(piece)).is_some() {}
            let attributes = AllocationAttributes::no_retry();
            let request = Request::new(piece as u64).with_attributes(attributes);
            let memory = loop {
                match Allocation::new(&self.pinned, &request) {
                    Ok(memory) => break memory,
                    Err(_) if self.pop(StagedPieces::oldest).is_some() => {}
                    Err(_) => return,
                }
            };
            self.staged().push(piece, memory);
            left -= piece;
        }
    }

    /// Frees all staging memory, as a device does once it is idle.
    fn release_all(&self) {
        while self.pop(StagedPieces::oldest).is_some() {}
    }

    /// Removes a piece and returns it, so that the caller drops it after the lock is released.
    fn pop(
        &self,
        which: impl FnOnce(&mut StagedPieces<Allocation>) -> Option<Allocation>,
    ) -> Option<Allocation> {
        which(&mut self.staged())
    }
}

impl Default for DryBackend {
    fn default() -> Self {
        Self::new()
    }
}

impl sealed::Sealed for DryBackend {}

impl Backend for DryBackend {
    fn name(&self) -> &'static str {
        "dry"
    }

    // Kernels access no addresses, so host and device memory are both valid.
    fn addresses(&self, kind: MemoryKind, _: Option<AddressSpace>) -> bool {
        matches!(kind, MemoryKind::AddressOnly | MemoryKind::Device)
    }

    fn is_dry(&self) -> bool {
        true
    }

    fn upload(&self, _: &'static str, values: &[u8], _: ViewMut<'_>, _: Checked) -> Result<()> {
        self.simulate_upload(values.len());
        Ok(())
    }

    fn download(&self, op: &'static str, _: View<'_>, values: &mut [u8], _: Checked) -> Result<()> {
        if !values.is_empty() {
            self.simulate_download();
        }
        Err(KernelError::NoData { op, device: "dry:0".to_owned() })
    }

    fn simulate_upload(&self, bytes: usize) {
        if let Some(clock) = &self.clock {
            let time = clock.model.upload_time(bytes as u64);
            *clock.time() += time;
        }
        if let Some(staging) = &self.staging {
            staging.upload(bytes);
        }
    }

    fn simulate_download(&self) {
        if let Some(staging) = &self.staging {
            staging.release_all();
        }
    }

    fn estimated_time(&self) -> Option<StepTime> {
        self.clock.as_ref().map(|clock| *clock.time())
    }

    fn rules(&self) -> DeviceRules {
        self.rules
    }

    fn run(&self, _: &'static str, kernel: &mut Kernel<'_>, _: Checked) -> Result<()> {
        if let Some(clock) = &self.clock {
            let time = clock.model.kernel_time(&kernel.work());
            *clock.time() += time;
        }
        Ok(())
    }

    fn run_together(&self, _: &'static str, kernels: &mut [Kernel<'_>], _: Checked) -> Result<()> {
        let Some(clock) = &self.clock else { return Ok(()) };
        let note = |work: &Work| {
            let time = clock.model.kernel_time(work);
            *clock.time() += time;
        };
        if self.rules.is_gpu() {
            families::work_of_launches(kernels, note);
        } else {
            kernels.iter_mut().for_each(|kernel| note(&kernel.work()));
        }
        Ok(())
    }
}

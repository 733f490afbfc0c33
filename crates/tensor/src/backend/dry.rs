//! The dry run: every op takes the memory that it would take on the device that is stood for, and nothing is computed.
//!
//! Workspaces are sized by the very functions that the device's backend uses, so the requests are the same to the byte. What
//! depends on values cannot fail here: indices out of range, for one, show only in a real run.
//!
//! A GPU's uploads take page-locked memory beside the tensors. Here they take as much of a pool of the dry device's own, by the rule
//! that the device's follow ([`StagedPieces`]), and write nothing to it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bfc_core::{
    AddressSpace, Allocation, AllocationAttributes, Allocator, MemoryKind, Request, STAGED_PIECE,
    StagedPieces,
};

use super::{Backend, Checked, Kernel, Workspace, demand, sealed};
use crate::backend::DeviceRules;
use crate::error::{Error, Result};
use crate::storage::{View, ViewMut};

/// Computes nothing, on memory that need not exist.
#[derive(Debug)]
pub struct DryBackend {
    rules: DeviceRules,
    staging: Option<Staging>,
}

/// Where the uploads of a GPU would be until the device has fetched them.
#[derive(Debug)]
struct Staging {
    pinned: Arc<dyn Allocator>,
    staged: Mutex<StagedPieces<Allocation>>,
}

impl DryBackend {
    /// Stands for the CPU.
    #[must_use]
    pub const fn new() -> Self {
        Self::of(DeviceRules::Cpu)
    }

    /// Stands for a device of these rules.
    #[must_use]
    pub const fn of(rules: DeviceRules) -> Self {
        Self { rules, staging: None }
    }

    /// Takes the memory in which a GPU's uploads wait from `pinned`, whatever that hands out: none of it is touched.
    #[must_use]
    pub fn with_pinned(self, pinned: Arc<dyn Allocator>) -> Self {
        Self { staging: Some(Staging { pinned, staged: Mutex::default() }), ..self }
    }
}

impl Staging {
    fn staged(&self) -> MutexGuard<'_, StagedPieces<Allocation>> {
        self.staged.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What an upload of so many bytes asks for. Where there is no memory the rest is copied without, as on the device.
    fn upload(&self, bytes: usize) {
        let mut left = bytes;
        while left > 0 {
            let piece = left.min(STAGED_PIECE);
            // Allocates and drops without the lock: the pool may be third-party code, or call visitors.
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

    /// What a device gives back that has done all that it was given.
    fn let_go(&self) {
        while self.pop(StagedPieces::oldest).is_some() {}
    }

    /// Takes a piece out, for the caller to drop.
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

    // Addresses that nobody follows: those of this machine, or of a device that is not here.
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
        Err(Error::NoData { op, device: "dry:0".to_owned() })
    }

    fn simulate_upload(&self, bytes: usize) {
        if let Some(staging) = &self.staging {
            staging.upload(bytes);
        }
    }

    fn simulate_download(&self) {
        if let Some(staging) = &self.staging {
            staging.let_go();
        }
    }

    fn workspace(&self, of: Workspace<'_>) -> usize {
        demand::workspace(self.rules, of)
    }

    fn chunk_elements(&self) -> usize {
        demand::chunk_elements(self.rules)
    }

    fn supports_half(&self) -> bool {
        demand::supports_half(self.rules)
    }

    fn run(&self, _: &'static str, _: &mut Kernel<'_>, _: Checked) -> Result<()> {
        Ok(())
    }
}

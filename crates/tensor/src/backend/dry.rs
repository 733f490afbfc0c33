//! The dry run: every op takes the memory that it would take on the device that is stood for, and nothing is computed.
//!
//! Workspaces are sized by the very functions that the device's backend uses, so the requests are the same to the byte. What
//! depends on values cannot fail here: indices out of range, for one, show only in a real run.

use super::{Backend, Kernel, Workspace, demand};
use crate::error::{Error, Result};
use crate::predict::DeviceRules;
use crate::storage::{View, ViewMut};

/// Computes nothing, on memory that need not exist.
#[derive(Clone, Copy, Debug)]
pub struct DryBackend {
    rules: DeviceRules,
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
        Self { rules }
    }
}

impl Default for DryBackend {
    fn default() -> Self {
        Self::new()
    }
}

impl Backend for DryBackend {
    fn name(&self) -> &'static str {
        "dry"
    }

    fn is_dry(&self) -> bool {
        true
    }

    fn upload(&self, _: &'static str, _: &[u8], _: ViewMut<'_>) -> Result<()> {
        Ok(())
    }

    fn download(&self, op: &'static str, _: View<'_>, _: &mut [u8]) -> Result<()> {
        Err(Error::NoData { op, device: "dry:0".to_owned() })
    }

    fn workspace(&self, of: Workspace<'_>) -> usize {
        demand::workspace(self.rules, of)
    }

    fn piece(&self) -> usize {
        demand::piece(self.rules)
    }

    fn takes_halves(&self) -> bool {
        demand::takes_halves(self.rules)
    }

    fn run(&self, _: &'static str, _: Kernel<'_>) -> Result<()> {
        Ok(())
    }
}

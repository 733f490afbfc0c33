//! The CUDA backend: launches one or a few GPU kernels per op.
//!
//! `bfc-cuda` contains the kernels. This module converts each call to the [`Job`](bfc_cuda::kernels::Job) of a kernel:
//! addresses, strides, sizes and the name of the function. A [`Compute`] runs it: a device, or in tests the emulator,
//! which runs the same sources on the host.
//!
//! Workspaces have the sizes of a dry run that imitates a GPU. Results do not depend on the number of blocks: the shape
//! decides which elements a thread reduces, and no two threads add to one element.
//!
//! Calls return before the device has finished. Downloads wait, and so do ops with indices, which check the indices first.
//! Within a step ([`StepGraphs`]) the device may delay kernels and launch them as a graph.

use std::sync::Arc;

use bfc_core::{AddressSpace, MemoryKind, Stream};
use bfc_cuda::Compute;

use crate::backend::{Backend, Checked, sealed};
use crate::cuda::launch::Launcher;
use crate::cuda::transfer;
use crate::error::Result;
use crate::families::{self, Kernel};
use crate::rules::DeviceRules;
use crate::step_graphs::StepGraphs;
use crate::storage::{View, ViewMut};

/// The rules of workspaces, which are the same for all GPUs.
const RULES: DeviceRules = DeviceRules::Cuda { compute_capability: (0, 0) };

/// A backend that computes on a CUDA device, in memory of that device.
#[derive(Debug)]
pub struct CudaBackend {
    device: Launcher,
}

impl CudaBackend {
    /// Creates a backend that launches its kernels on `compute`.
    #[must_use]
    pub fn new(compute: Arc<dyn Compute>) -> Self {
        Self { device: Launcher::new(compute) }
    }
}

impl sealed::Sealed for CudaBackend {}

impl Backend for CudaBackend {
    fn name(&self) -> &'static str {
        "cuda"
    }

    fn addresses(&self, kind: MemoryKind, space: Option<AddressSpace>) -> bool {
        kind == MemoryKind::Device && space.is_some() && space == self.device.compute().address_space()
    }

    fn stream(&self) -> Option<Arc<Stream>> {
        self.device.compute().stream()
    }

    fn remark(&self) -> Option<String> {
        self.device.compute().performance_note()
    }

    fn upload(&self, op: &'static str, values: &[u8], out: ViewMut<'_>, _: Checked) -> Result<()> {
        transfer::upload(&self.device, op, values, &out)
    }

    fn download(&self, op: &'static str, input: View<'_>, values: &mut [u8], _: Checked) -> Result<()> {
        transfer::download(&self.device, op, input, values)
    }

    fn rules(&self) -> DeviceRules {
        RULES
    }

    fn step_graphs(&self) -> Option<&dyn StepGraphs> {
        Some(&self.device)
    }

    fn run(&self, op: &'static str, kernel: &mut Kernel<'_>, _: Checked) -> Result<()> {
        kernel.run_cuda(&self.device, op)
    }

    fn run_together(&self, op: &'static str, kernels: &mut [Kernel<'_>], _: Checked) -> Result<()> {
        families::run_on_cuda(&self.device, op, kernels)
    }
}

//! A CPU backend that measures the time of each kernel, to find the speed of this machine.

use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use bfc_core::{AddressSpace, MemoryKind};

use super::cpu::CpuBackend;
use super::{Backend, Checked, sealed};
use crate::cost::Work;
use crate::error::Result;
use crate::families::Kernel;
use crate::rules::DeviceRules;
use crate::storage::{View, ViewMut};

/// The work of a kernel or the bytes of an upload, with its time in seconds.
#[derive(Clone, Copy, Debug)]
pub struct KernelTime {
    /// `None` for uploads.
    pub work: Option<Work>,
    /// The bytes of an upload, or 0.
    pub bytes: u64,
    /// The time in seconds.
    pub seconds: f64,
}

/// A CPU backend with the times of its kernels in call order.
#[derive(Debug)]
pub struct TimedBackend {
    cpu: CpuBackend,
    samples: Mutex<Vec<KernelTime>>,
}

impl TimedBackend {
    /// Creates a backend with `threads` threads.
    ///
    /// # Errors
    /// As [`CpuBackend::new`].
    pub fn new(threads: usize) -> Result<Self> {
        Ok(Self { cpu: CpuBackend::new(threads)?, samples: Mutex::default() })
    }

    /// Removes and returns all samples.
    pub fn take(&self) -> Vec<KernelTime> {
        std::mem::take(&mut *self.samples.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn time(&self, work: Option<Work>, bytes: u64, run: impl FnOnce() -> Result<()>) -> Result<()> {
        let start = Instant::now();
        run()?;
        let seconds = start.elapsed().as_secs_f64();
        let mut samples = self.samples.lock().unwrap_or_else(PoisonError::into_inner);
        samples.push(KernelTime { work, bytes, seconds });
        Ok(())
    }
}

impl sealed::Sealed for TimedBackend {}

impl Backend for TimedBackend {
    fn name(&self) -> &'static str {
        self.cpu.name()
    }

    fn addresses(&self, kind: MemoryKind, space: Option<AddressSpace>) -> bool {
        self.cpu.addresses(kind, space)
    }

    fn upload(&self, op: &'static str, values: &[u8], out: ViewMut<'_>, checked: Checked) -> Result<()> {
        self.time(None, values.len() as u64, || self.cpu.upload(op, values, out, checked))
    }

    fn download(&self, op: &'static str, input: View<'_>, values: &mut [u8], checked: Checked) -> Result<()> {
        self.cpu.download(op, input, values, checked)
    }

    fn rules(&self) -> DeviceRules {
        self.cpu.rules()
    }

    fn run(&self, op: &'static str, kernel: &mut Kernel<'_>, checked: Checked) -> Result<()> {
        let work = kernel.work();
        self.time(Some(work), work.bytes(), || Backend::run(&self.cpu, op, kernel, checked))
    }

    fn run_together(&self, op: &'static str, kernels: &mut [Kernel<'_>], _: Checked) -> Result<()> {
        kernels.iter_mut().try_for_each(|kernel| {
            let work = kernel.work();
            self.time(Some(work), work.bytes(), || kernel.run_cpu(self.cpu.workers(), op))
        })
    }
}

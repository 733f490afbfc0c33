//! A CPU backend that measures the time of each kernel, to find the speed of this machine.

use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use bfc_core::{AddressSpace, MemoryKind};

use super::cost::Work;
use super::cpu::CpuBackend;
use super::{Backend, Checked, DeviceRules, Kernel, sealed};
use crate::error::Result;
use crate::storage::{View, ViewMut};

/// The work of a kernel or the bytes of an upload, with its time in seconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sample {
    /// `None` for uploads.
    pub(crate) work: Option<Work>,
    pub(crate) bytes: u64,
    pub(crate) seconds: f64,
}

/// A CPU backend with the times of its kernels in call order.
#[derive(Debug)]
pub(crate) struct TimedBackend {
    cpu: CpuBackend,
    samples: Mutex<Vec<Sample>>,
}

impl TimedBackend {
    /// # Errors
    /// As [`CpuBackend::new`].
    pub(crate) fn new(threads: usize) -> Result<Self> {
        Ok(Self { cpu: CpuBackend::new(threads)?, samples: Mutex::default() })
    }

    /// Removes and returns all samples.
    pub(crate) fn take(&self) -> Vec<Sample> {
        std::mem::take(&mut *self.samples.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn time(&self, work: Option<Work>, bytes: u64, run: impl FnOnce() -> Result<()>) -> Result<()> {
        let start = Instant::now();
        run()?;
        let seconds = start.elapsed().as_secs_f64();
        let mut samples = self.samples.lock().unwrap_or_else(PoisonError::into_inner);
        samples.push(Sample { work, bytes, seconds });
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
}

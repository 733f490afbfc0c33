//! The device in the tests of kernels: the emulator, or a real device if the environment names one.

use std::io::{ErrorKind, Write};
use std::process::Command;
use std::sync::Arc;

use bfc_core::{DeviceId, DeviceKind, DeviceMemory, Stream, SubAllocator};
use bfc_cuda::emulator::{EmulatedMemory, Emulator};
use bfc_cuda::{Compute, ComputeError, CudaDriver, StreamCompute};
use highwater_kernels::emulator::emulator;
use highwater_tensor::backend::cuda::CudaBackend;
use highwater_tensor::{Device, RuntimeBuilder};

/// The real device that is to be tested, as in `KERNELS_ON=cuda:0`.
pub(crate) fn real() -> Option<DeviceId> {
    std::env::var("KERNELS_ON").ok().map(|name| name.parse().unwrap())
}

/// A device for tests, and its memory.
#[derive(Clone, Debug)]
pub(crate) struct Computing {
    pub(crate) compute: Arc<dyn Compute>,
    pub(crate) memory: Arc<dyn SubAllocator>,
}

impl Computing {
    /// With a library for products, if there is one for a real device.
    pub(crate) fn with_products() -> Self {
        match real() {
            Some(id) => Self::on_device(id.ordinal),
            None => Self::emulated(emulator().and_then(Emulator::with_products)),
        }
    }

    /// The emulator without one.
    pub(crate) fn by_kernels() -> Self {
        Self::emulated(emulator())
    }

    fn emulated(emulator: Result<Emulator, ComputeError>) -> Self {
        let emulator = match emulator {
            Ok(emulator) => emulator,
            Err(error) => skip_all_without_a_compiler(&error),
        };
        let compute: Arc<dyn Compute> = Arc::new(emulator);
        let memory = Arc::new(EmulatedMemory::of(&compute));
        Self { compute, memory }
    }

    /// Every test has a stream of its own.
    fn on_device(ordinal: u32) -> Self {
        let driver = CudaDriver::new(ordinal).unwrap();
        let stream = Stream::new(driver.clone()).unwrap();
        let compute = Arc::new(StreamCompute::new(driver.clone(), stream).unwrap());
        Self { compute, memory: Arc::new(DeviceMemory::new(driver)) }
    }

    /// It as `cuda:0`.
    pub(crate) fn device(self, runtime: RuntimeBuilder) -> Device {
        let id = DeviceId::new(DeviceKind::Cuda, 0);
        let backend = Arc::new(CudaBackend::new(self.compute));
        runtime.device(id, backend, self.memory).build().unwrap().device(id).unwrap()
    }
}

/// Ends the whole program well, with one line, where nothing of it can run: no test can leave from within what it calls. A
/// compiler that refuses a source is a failure.
fn skip_all_without_a_compiler(error: &ComputeError) -> ! {
    let compiler = std::env::var_os("CXX").unwrap_or_else(|| "c++".into());
    let tried = Command::new(compiler).arg("--version").output();
    assert!(tried.is_err_and(|error| error.kind() == ErrorKind::NotFound), "{error}");
    let program = env!("CARGO_CRATE_NAME");
    // Straight to the stream: what `println!` says in a test that passes is not shown.
    let _ = writeln!(std::io::stderr(), "skipped all tests of {program}: no C++ compiler ({error})");
    std::process::exit(0)
}

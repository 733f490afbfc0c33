//! Compiles every kernel for `cuda:0` into the user's cache and loads it, so that nothing that is measured or has a time limit
//! waits for the compiler.
//!
//! `cargo run -p bfc-cuda --example warm_kernels [SHARE SHARES]`: all of them, or as the first of 8 processes beside each other
//! `0 8`. One process compiles one source at a time. `scripts/gpu-check` brings it to machines without Rust.

use std::error::Error;
use std::time::Instant;

use bfc_core::Stream;
use bfc_cuda::kernels::{ElementType, Family, Job, Kernel};
use bfc_cuda::{Compute, ComputeError, CudaDriver, StreamCompute};

fn main() -> Result<(), Box<dyn Error>> {
    let numbers: Vec<usize> = std::env::args().skip(1).map(|text| text.parse()).collect::<Result<_, _>>()?;
    let (share, shares) = match numbers[..] {
        [] => (0, 1),
        [share, shares] if share < shares => (share, shares),
        _ => return Err("expected no numbers, or a share and how many shares there are".into()),
    };
    let driver = CudaDriver::new(0)?;
    let stream = Stream::new(driver.clone())?;
    let compute = StreamCompute::new(driver, stream)?;
    let units = Family::ALL.into_iter().flat_map(|family| {
        let elements = ElementType::ALL.into_iter().filter(move |&element| family.takes(element));
        elements.map(move |element| (family, element))
    });
    let mut failed = 0;
    for (family, element) in units.skip(share).step_by(shares) {
        let start = Instant::now();
        for name in family.kernels() {
            if let Err(error) = load(&compute, Kernel::new(family, name, element)) {
                failed += 1;
                println!("failed: {name}_{}: {error}", element.suffix());
            }
        }
        let milliseconds = start.elapsed().as_secs_f64() * 1e3;
        println!("{}_{}: {milliseconds:.0} ms", family.name(), element.suffix());
    }
    if failed > 0 { Err(format!("{failed} kernels").into()) } else { Ok(()) }
}

/// Has a kernel compiled and loaded, and not started: the driver refuses a launch of no blocks once it has the kernel.
fn load(compute: &StreamCompute, kernel: Kernel) -> Result<(), ComputeError> {
    // SAFETY: a launch of no blocks touches nothing.
    match unsafe { compute.launch(kernel, 0, &Job::default()) } {
        Ok(()) | Err(ComputeError::Device { call: "cuLaunchKernel", .. }) => Ok(()),
        Err(error) => Err(error),
    }
}

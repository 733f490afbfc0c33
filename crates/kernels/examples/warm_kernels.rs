//! Compiles every kernel for `cuda:0` into the user's cache and loads it, so that measurements and tests with time
//! limits do not wait for the compiler.
//!
//! `cargo run -p highwater-kernels --example warm_kernels [SHARE SHARES]`: all kernels, or one share of them, such as `0 8` for
//! the first of 8 parallel processes. `scripts/gpu-check` copies it to machines without Rust.

use std::error::Error;
use std::time::Instant;

use bfc_core::Stream;
use bfc_cuda::kernels::{Job, KernelId};
use bfc_cuda::{Compute, ComputeError, CudaDriver, StreamCompute};
use highwater_kernels::cuda::Family;

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
    let units = Family::ALL.iter().flat_map(|family| family.elements().map(move |element| (family, element)));
    let mut failed = 0;
    for (family, element) in units.skip(share).step_by(shares) {
        let start = Instant::now();
        for name in family.source().kernels() {
            if let Err(error) = load(&compute, family.kernel(name, element)) {
                failed += 1;
                println!("failed: {name}_{}: {error}", element.suffix());
            }
        }
        let milliseconds = start.elapsed().as_secs_f64() * 1e3;
        println!("{}_{}: {milliseconds:.0} ms", family.source().name(), element.suffix());
    }
    if failed > 0 { Err(format!("{failed} kernels").into()) } else { Ok(()) }
}

/// Compiles and loads a kernel without running it: the driver refuses a launch without blocks after loading.
fn load(compute: &StreamCompute, kernel: KernelId) -> Result<(), ComputeError> {
    // SAFETY: a launch of no blocks touches nothing.
    match unsafe { compute.launch(kernel, 0, &Job::default()) } {
        Ok(()) | Err(ComputeError::Device { call: "cuLaunchKernel", .. }) => Ok(()),
        Err(error) => Err(error),
    }
}

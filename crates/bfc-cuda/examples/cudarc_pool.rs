//! A program of cudarc in a pool, with a report by scope. The lines that a program changes are marked.
//!
//! `cargo run -p bfc-cuda --example cudarc_pool` runs it on a GPU, and `scripts/run-emulated` before the command on an
//! emulated driver.

use std::error::Error;
use std::slice::from_ref;

use bfc_core::{BfcConfig, Bytes};
use bfc_cuda::cudarc::driver::{CudaContext, LaunchConfig, PushKernelArg};
use bfc_cuda::cudarc::nvrtc::compile_ptx;
use bfc_cuda::{PoolStream, probe};
use highwater_tracking::{Report, ScopedAllocator, Tracker, module};

// Changed: instead of cudarc::driver::CudaSlice.
use bfc_cuda::PoolSlice as CudaSlice;

const SAXPY: &str = r#"
extern "C" __global__ void saxpy(float* y, const float* x, float a, size_t n) {
    size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x;
    if (i < n) y[i] += a * x[i];
}"#;

const SIZE: usize = 1 << 20;

fn main() -> Result<(), Box<dyn Error>> {
    if let Err(reason) = probe() {
        println!("nothing to run on: {reason}");
        return Ok(());
    }
    let (context, tracker) = (CudaContext::new(0)?, Tracker::new());
    // Changed: instead of context.default_stream().
    let stream = PoolStream::new(&context.default_stream(), BfcConfig::new(Bytes::gib(1)))?
        .wrapped(|pool| ScopedAllocator::new(&tracker, pool));

    let saxpy = context.load_module(compile_ptx(SAXPY)?)?.load_function("saxpy")?;
    let weights: CudaSlice<f32> = {
        let _scope = module("weights");
        stream.clone_htod(&vec![0.5_f32; SIZE])?
    };
    let mut sum: CudaSlice<f32> = {
        let _scope = module("sum");
        stream.alloc_zeros(SIZE)?
    };
    for step in 0..1_000 {
        let _scope = module("batches");
        let batch: CudaSlice<f32> = stream.clone_htod(&vec![step as f32; 1024])?;
        for (source, factor) in [(&weights, 2.0_f32), (&batch, 1.0)] {
            let mut launch = stream.launch_builder(&saxpy);
            let count = source.len();
            launch.arg(&mut sum).arg(source).arg(&factor).arg(&count);
            // SAFETY: these are the kernel's arguments, and both slices have so many elements.
            unsafe { launch.launch(LaunchConfig::for_num_elems(count as u32)) }?;
        }
    }
    let values = stream.clone_dtoh(&sum)?;
    assert_eq!((values[0], values[SIZE - 1]), (1_000.0 + 499_500.0, 1_000.0));

    let pool = stream.allocator();
    println!("{}", Report::new(&tracker, from_ref(pool)));
    println!("{} slices in {} regions of the driver", pool.stats().num_allocs, pool.regions().len());
    Ok(())
}

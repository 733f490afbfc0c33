//! Times an allocation and its free on cuda:0: with our pool, `cuMemAlloc`, and CUDA's own pool (`cuMemAllocAsync`), in
//! alternating rounds.
//!
//! `cargo run --release -p bfc-cuda --example allocation_bench [FILE.json]`; `scripts/gpu-check` copies it to machines
//! without Rust. Without a device it prints the reason and succeeds.

use std::error::Error;
use std::time::Instant;

use bfc_core::{
    Allocation, AllocatorAttributes, Bytes, DeviceId, DeviceKind, Driver, PoolSettings, Registry, Request,
};
use bfc_cuda::{CudaDriver, register};
use cudarc::driver::result::{free_async, malloc_async};
use cudarc::driver::{CudaContext, sys};

const SIZES: [u64; 4] = [4 << 10, 1 << 20, 16 << 20, 256 << 20];
const ROUNDS: usize = 9;

/// The nanoseconds per call, over `count` calls.
fn time(count: u32, mut call: impl FnMut() -> Result<(), Box<dyn Error>>) -> Result<f64, Box<dyn Error>> {
    let start = Instant::now();
    for _ in 0..count {
        call()?;
    }
    Ok(start.elapsed().as_nanos() as f64 / f64::from(count))
}

fn median(times: &mut [f64]) -> f64 {
    times.sort_by(f64::total_cmp);
    times.get(times.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Whether the driver has CUDA's own pools (CUDA 11.2 and later).
fn has_pools() -> bool {
    // SAFETY: the driver was found before.
    let library = unsafe { sys::culib() };
    // SAFETY: the symbol is looked up, and neither called nor read.
    unsafe { library.get::<*const ()>(b"cuMemAllocAsync") }.is_ok()
}

fn main() -> Result<(), Box<dyn Error>> {
    let driver = match CudaDriver::new(0) {
        Ok(driver) => driver,
        Err(reason) => {
            println!("nothing to measure: {reason}");
            return Ok(());
        }
    };
    let registry = Registry::new();
    let stream = register(&registry, 0, &PoolSettings::default())?;
    let id = DeviceId::new(DeviceKind::Cuda, 0);
    let pool = registry.allocator(id, AllocatorAttributes::default(), None)?.allocator;
    let context = CudaContext::new(0)?;
    context.bind_to_thread()?;
    let raw_stream = std::ptr::with_exposed_provenance_mut(stream.handle().0 as usize);
    println!("{}: an allocation and its free in ns, medians of {ROUNDS} rounds", driver.name());
    println!("{:>10} {:>12} {:>12} {:>16}", "bytes", "pool", "cuMemAlloc", "cuMemAllocAsync");
    let mut rows = Vec::new();
    for bytes in SIZES {
        let [mut ours, mut plain, mut pooled] = [(); 3].map(|()| Vec::with_capacity(ROUNDS));
        for _ in 0..ROUNDS {
            ours.push(time(10_000, || {
                drop(Allocation::new(&pool, &Request::new(bytes))?);
                Ok(())
            })?);
            plain.push(time(100, || {
                let address = driver.allocate_device(bytes)?;
                // SAFETY: it was just allocated and never used.
                unsafe { driver.free_device(address) };
                Ok(())
            })?);
            if has_pools() {
                pooled.push(time(1_000, || {
                    // SAFETY: the memory is never read.
                    let address = unsafe { malloc_async(raw_stream, bytes as usize) }?;
                    // SAFETY: it was just allocated on the same stream and never used.
                    unsafe { free_async(address, raw_stream) }?;
                    Ok(())
                })?);
                driver.synchronize()?;
            }
        }
        let size = Bytes(bytes).to_string();
        let [ours, plain, pooled] = [&mut ours, &mut plain, &mut pooled].map(|times| median(times));
        println!("{size:>10} {ours:>12.0} {plain:>12.0} {pooled:>16.0}");
        let pooled = if pooled.is_nan() { "null".to_owned() } else { format!("{pooled:.0}") };
        rows.push(format!(
            "  {{\"bytes\": {bytes}, \"pool_ns\": {ours:.0}, \"cuMemAlloc_ns\": {plain:.0}, \"cuMemAllocAsync_ns\": {pooled}}}"
        ));
    }
    if let Some(path) = std::env::args_os().nth(1) {
        std::fs::write(path, format!("[\n{}\n]\n", rows.join(",\n")))?;
    }
    Ok(())
}

//! What there is of CUDA on this machine, as JSON: the device, its driver, the compiler and the library for products. What is
//! not there has a reason in its place.
//!
//! `cargo run -p bfc-cuda --example device_facts`; `scripts/gpu-check` brings it to machines without Rust.

use std::fmt::Display;

use bfc_core::{Driver, Stream};
use bfc_cuda::{CudaDriver, Nvrtc, StreamCompute, probe};

/// A text as JSON writes it.
fn quoted(text: impl Display) -> String {
    let mut quoted = String::from("\"");
    for letter in text.to_string().chars() {
        match letter {
            '"' | '\\' => quoted.extend(['\\', letter]),
            letter if letter.is_control() => quoted.push(' '),
            letter => quoted.push(letter),
        }
    }
    quoted + "\""
}

/// The version of the library for products.
fn cublas(driver: &std::sync::Arc<CudaDriver>) -> Result<u32, String> {
    let stream = Stream::new(driver.clone()).map_err(|error| error.to_string())?;
    let compute = StreamCompute::new(driver.clone(), stream).map_err(|error| error.to_string())?;
    let version = compute.products().map(|library| library.version());
    version.map_err(|error| error.to_string())
}

fn main() {
    let mut facts = Vec::new();
    let mut fact = |name: &str, value: String| facts.push(format!("  {}: {value}", quoted(name)));
    match probe().and_then(|devices| Ok((devices, CudaDriver::new(0)?))) {
        Ok((devices, driver)) => {
            let device = &devices[0];
            fact("device", quoted(&device.name));
            fact("devices", devices.len().to_string());
            fact("total_bytes", device.total_bytes.to_string());
            if let Ok(memory) = driver.memory_info() {
                fact("free_bytes", memory.free.to_string());
            }
            fact("compute_capability", quoted(device.compute_capability));
            fact("driver_cuda", quoted(device.driver_version));
            fact("maps_memory", driver.granularity().is_ok().to_string());
            fact("cublas", cublas(&driver).map_or_else(quoted, |version| version.to_string()));
        }
        Err(reason) => fact("device", format!("null,\n  \"reason\": {}", quoted(reason))),
    }
    let nvrtc = Nvrtc::find().map(|compiler| format!("{}.{}", compiler.version().0, compiler.version().1));
    fact("nvrtc", quoted(nvrtc.unwrap_or_else(|error| error.to_string())));
    println!("{{\n{}\n}}", facts.join(",\n"));
}

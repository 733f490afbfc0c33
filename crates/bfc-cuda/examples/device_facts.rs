//! Prints the CUDA setup of this machine as JSON: the devices, their driver, the compiler, cuBLAS and NCCL.
//!
//! `cargo run -p bfc-cuda --example device_facts`; `scripts/gpu-check` copies it to machines without Rust.

use std::fmt::Display;
use std::sync::Arc;

use bfc_core::{Driver, Stream};
use bfc_cuda::{CudaDriver, NcclLibrary, StreamCompute, probe, self_check};

/// Quotes a text as JSON.
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

/// The libraries of the device, and whether it passes the self-check.
fn computing(driver: &Arc<CudaDriver>) -> Result<[(&'static str, String); 3], String> {
    let stream = Stream::new(driver.clone()).map_err(|error| error.to_string())?;
    let compute = StreamCompute::new(driver.clone(), stream).map_err(|error| error.to_string())?;
    let version = |(major, minor)| format!("{major}.{minor}");
    let compiler = compute.compiler().map(|compiler| version(compiler.version()));
    let library = compute.products().map(|library| library.version().to_string());
    let check = self_check(driver, &compute).map(|()| "passed".to_owned());
    Ok([
        ("nvrtc", quoted(compiler.unwrap_or_else(|error| error.to_string()))),
        ("cublas", library.unwrap_or_else(quoted)),
        ("self_check", quoted(check.unwrap_or_else(|error| error.to_string()))),
    ])
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
            match computing(&driver) {
                Ok(facts) => facts.into_iter().for_each(|(name, value)| fact(name, value)),
                Err(problem) => fact("problem", quoted(problem)),
            }
        }
        Err(reason) => fact("device", format!("null,\n  \"reason\": {}", quoted(reason))),
    }
    let nccl = NcclLibrary::find().map(|library| library.version().to_string());
    fact("nccl", nccl.unwrap_or_else(quoted));
    println!("{{\n{}\n}}", facts.join(",\n"));
}

//! Compiles every kernel for the given architectures and prints its resources. Needs no device.
//!
//! `cargo run -p highwater-kernels --example compile_kernels -- LIBRARY [ARCHITECTURE…]`, where LIBRARY is the path of NVRTC
//! (`libnvrtc.so.12` or `.13`) and an architecture is a number, as in 90 for `sm_90`.

use std::collections::BTreeMap;
use std::error::Error;

use bfc_cuda::Nvrtc;
use bfc_cuda::kernels::{CHECK, ElementType};
use highwater_kernels::cuda::Family;

/// The resources of a kernel.
#[derive(Clone, Copy, Default)]
struct Usage {
    registers: u32,
    /// Spilled bytes.
    spilled: u32,
    /// Stack bytes per thread, including spills, indexed arrays and copied arguments.
    stack: u32,
}

/// Parses the assembler's report, by kernel.
fn usage(log: &str) -> BTreeMap<String, Usage> {
    let (mut usage, mut kernel) = (BTreeMap::new(), String::new());
    let number_before = |line: &str, words: &str| -> u32 {
        let before = line.split(words).next().unwrap_or_default();
        before.split_whitespace().last().and_then(|word| word.parse().ok()).unwrap_or(0)
    };
    for line in log.lines() {
        if let Some((_, rest)) = line.split_once("Compiling entry function '") {
            kernel = rest.split('\'').next().unwrap_or_default().to_owned();
        }
        let entry: &mut Usage = usage.entry(kernel.clone()).or_default();
        if line.contains(" registers") {
            entry.registers = number_before(line, " registers");
        }
        if line.contains(" bytes spill stores") {
            entry.spilled = number_before(line, " bytes spill stores");
            entry.stack = number_before(line, " bytes stack frame");
        }
    }
    usage.retain(|kernel, _| !kernel.is_empty());
    usage
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let library = arguments.next().ok_or("the path of NVRTC is missing")?;
    let compiler = Nvrtc::open(&library)?;
    let (major, minor) = compiler.version();
    let mut architectures: Vec<u32> = arguments.map(|text| text.parse()).collect::<Result<_, _>>()?;
    if architectures.is_empty() {
        architectures.clone_from(&compiler.architectures().to_vec());
    }
    println!(
        "{:<12} {:<28} {:>5} {:>4} {:>10} {:>8} {:>6} {:>8}",
        "family", "kernel", "nvrtc", "sm", "registers", "spilled", "stack", "code"
    );
    let mut warned = 0;
    for architecture in architectures {
        let mut options = compiler.options(architecture)?;
        // The resources of each kernel. A kernel without a report has no warnings either.
        options.push("--ptxas-options=-v".to_owned());
        let families =
            Family::ALL.iter().flat_map(|family| family.elements().map(|element| (family.source(), element)));
        for (source, element) in families.chain([(&CHECK, ElementType::F32)]) {
            let name = format!("{}_{}.cu", source.name(), element.suffix());
            let image = compiler.compile(&name, &source.translation_unit(element), &options)?;
            for line in image.log.lines().filter(|line| line.contains("warning")) {
                // Warnings about deprecated architectures do not concern the sources.
                if !line.contains("deprecated") {
                    eprintln!("{name}: {line}");
                    warned += 1;
                }
            }
            let usage = usage(&image.log);
            for kernel in source.kernels() {
                let kernel = format!("{kernel}_{}", element.suffix());
                let Usage { registers, spilled, stack } = usage.get(&kernel).copied().unwrap_or_default();
                let (family, bytes) = (source.name(), image.code.len());
                println!(
                    "{family:<12} {kernel:<28} {major:>2}.{minor} {architecture:>4} {registers:>10} {spilled:>8} {stack:>6} {bytes:>8}"
                );
            }
        }
    }
    if warned > 0 { Err(format!("{warned} warnings").into()) } else { Ok(()) }
}

//! Compiles every kernel for the architectures given, and says what each takes of a device: no device is needed.
//!
//! `cargo run -p bfc-cuda --example compile_kernels -- LIBRARY [ARCHITECTURE…]`, where LIBRARY is the path of NVRTC
//! (`libnvrtc.so.12` or `.13`) and an architecture is a number, as in 90 for `sm_90`.

use std::collections::BTreeMap;
use std::error::Error;

use bfc_cuda::Nvrtc;
use bfc_cuda::kernels::{ElementType, Family};

/// Registers and bytes spilled by kernel, from what the assembler reports.
fn usage(log: &str) -> BTreeMap<String, (u32, u32)> {
    let (mut usage, mut kernel) = (BTreeMap::new(), String::new());
    let number_before = |line: &str, words: &str| -> u32 {
        let before = line.split(words).next().unwrap_or_default();
        before.split_whitespace().last().and_then(|word| word.parse().ok()).unwrap_or(0)
    };
    for line in log.lines() {
        if let Some((_, rest)) = line.split_once("Compiling entry function '") {
            kernel = rest.split('\'').next().unwrap_or_default().to_owned();
        }
        let entry: &mut (u32, u32) = usage.entry(kernel.clone()).or_default();
        if line.contains(" registers") {
            entry.0 = number_before(line, " registers");
        }
        if line.contains(" bytes spill stores") {
            entry.1 = number_before(line, " bytes spill stores");
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
    println!("NVRTC {major}.{minor}");
    println!("{:<24} {:>6} {:>10} {:>9} {:>8}", "kernel", "sm", "registers", "spilled", "code");
    let mut warned = 0;
    for architecture in architectures {
        let mut options = compiler.options(architecture)?;
        // What each kernel takes; and a kernel that is compiled without a word has nothing to be warned of.
        options.push("--ptxas-options=-v".to_owned());
        for family in Family::ALL {
            for element in ElementType::ALL.into_iter().filter(|&element| family.takes(element)) {
                let name = format!("{}_{}.cu", family.name(), element.suffix());
                let image = compiler.compile(&name, &family.translation_unit(element), &options)?;
                for line in image.log.lines().filter(|line| line.contains("warning")) {
                    // What is said of architectures that will go some day is not said of our code.
                    if !line.contains("deprecated") {
                        println!("{name}: {line}");
                        warned += 1;
                    }
                }
                let usage = usage(&image.log);
                for kernel in family.kernels() {
                    let kernel = format!("{kernel}_{}", element.suffix());
                    let (registers, spilled) = usage.get(&kernel).copied().unwrap_or_default();
                    let bytes = image.code.len();
                    println!("{kernel:<24} {architecture:>6} {registers:>10} {spilled:>9} {bytes:>8}");
                }
            }
        }
    }
    if warned > 0 { Err(format!("{warned} warnings").into()) } else { Ok(()) }
}

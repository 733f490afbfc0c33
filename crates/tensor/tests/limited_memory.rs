//! Pools of a process whose memory is limited: memory that runs out is an error with a report, and the process goes on.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "helpers of tests may panic as tests may")]

use std::process::Command;

use bfc_core::{Bytes, Environment};
use highwater_tensor::{Runtime, Tensor};

/// The address space of the limited process.
const LIMIT: Bytes = Bytes::mib(512);

#[test]
fn a_limited_address_space_ends_in_a_report() {
    let test = std::env::current_exe().unwrap();
    let limited = format!("ulimit -v {}; exec \"$0\" \"$@\"", LIMIT.get() >> 10);
    let output = Command::new("sh")
        .args(["-c", &limited])
        .arg(test)
        .args(["--exact", "tensors_are_allocated_until_one_is_refused", "--ignored", "--nocapture"])
        .output()
        .unwrap();
    let [stdout, stderr] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
    assert!(output.status.success(), "{:?}\n{stdout}\n{stderr}", output.status);
    assert!(
        stdout.contains("512.00 MiB of address space (ulimit -v) less a reserve of 128.00 MiB"),
        "{stdout}"
    );
}

#[test]
#[ignore = "runs in the limited process of the other test"]
fn tensors_are_allocated_until_one_is_refused() {
    let runtime = Runtime::builder().threads(1).environment(Environment::default()).build().unwrap();
    let device = runtime.cpu().unwrap();
    let mut kept = Vec::new();
    let error = loop {
        match Tensor::zeros(&device, [1 << 22]) {
            Ok(tensor) => kept.push(tensor),
            Err(error) => break error,
        }
        assert!(kept.len() < 1 << 10, "nothing is refused");
    };
    let report = error.out_of_memory().unwrap();
    assert_eq!(report.limit, Some(LIMIT.get() - Bytes::mib(128).get()), "{error}");
    assert!(report.in_use > report.limit.unwrap() / 2, "{error}");
    println!("{}", report.details());
    drop(kept);
    assert!(Tensor::zeros(&device, [1 << 22]).is_ok(), "what was freed is used again");
}

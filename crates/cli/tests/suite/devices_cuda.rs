//! `highwater devices` with the devices of the emulated CUDA driver.

#![cfg(all(target_os = "linux", feature = "cuda"))]

use serde_json::Value;

use crate::emulated_driver::EmulatedDriver;

/// The devices that the program lists with these libraries and variables.
fn devices(driver: &EmulatedDriver, variables: &[(&str, &str)]) -> Vec<Value> {
    let mut command = driver.command(env!("CARGO_BIN_EXE_highwater"), variables);
    let output = command.args(["devices", "--json"]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let inventory: Value = serde_json::from_slice(&output.stdout).unwrap();
    inventory["devices"].as_array().unwrap().clone()
}

#[test]
fn a_device_is_listed_with_its_libraries_and_use() {
    let driver = EmulatedDriver::new("a_device_is_listed_with_its_libraries_and_use");
    let found = devices(&driver, &[]);
    let [cpu, first, second] = &found[..] else { panic!("{found:?}") };
    assert_eq!(first["compiler"], "NVRTC 13.0 (libnvrtc.so.13)");
    assert_eq!(first["products"], "cuBLAS 13.0.0 (libcublas.so.13)");
    assert_eq!(cpu["usable_for"], "every op, on request");
    assert_eq!(first["usable_for"], "every op; chosen automatically");
    assert_eq!(second["usable_for"], "every op, on request");

    let missing = [("HIGHWATER_NVRTC", "/nowhere/nvrtc.so"), ("HIGHWATER_CUBLAS", "/nowhere/cublas.so")];
    let found = devices(&driver, &missing);
    let starts = |name: &str, words: &str| {
        let text = found[1][name].as_str().unwrap();
        assert!(text.starts_with(words), "{text}");
    };
    starts("compiler", "no compiler for CUDA devices (NVRTC): HIGHWATER_NVRTC=/nowhere/nvrtc.so: ");
    starts(
        "products",
        "by a kernel: no library for matrix products on CUDA devices (cuBLAS): HIGHWATER_CUBLAS=",
    );
    starts("problem", "self-check: no compiler for CUDA devices");
    assert_eq!(
        [&found[0]["usable_for"], &found[1]["usable_for"]],
        ["every op; chosen automatically", "nothing"]
    );

    let found = devices(&driver, &[("EMULATED_WRONG_SUMS", "1"), ("HIGHWATER_DEVICE", "cpu")]);
    assert!(found[1]["problem"].as_str().unwrap().starts_with("self-check: sum 0 is "), "{found:?}");
    assert_eq!(found[0]["usable_for"], "every op; chosen by HIGHWATER_DEVICE");
}

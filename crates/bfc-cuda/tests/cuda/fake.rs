//! Runs tests of this program in other processes with the fake driver on the library path.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{CudaUnavailable, probe, say_skipped};

/// Set in processes on the fake driver, to the expected reason of `probe`, if any.
const MARK: &str = "FAKE_CUDA_EXPECTED";

pub(super) fn is_loaded() -> bool {
    std::env::var_os(MARK).is_some()
}

/// Builds the fake driver; returns the folder for the library path. Reports a skip without sources or a compiler.
fn build(name: &str, options: &[&str]) -> Option<PathBuf> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fake_driver/libcuda.rs");
    if !source.exists() {
        say_skipped(&"the source of the fake driver is not here");
        return None;
    }
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::create_dir_all(&folder).unwrap();
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let output = Command::new(rustc)
        .args(["--edition", "2024", "--crate-type", "cdylib", "--check-cfg", "cfg(incomplete)"])
        .args(options)
        .arg("-o")
        .arg(folder.join("libcuda.so"))
        .arg(source)
        .output();
    if output.as_ref().is_err_and(|error| error.kind() == ErrorKind::NotFound) {
        say_skipped(&"the fake driver needs rustc");
        return None;
    }
    let output = output.unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    // The compiler and cuBLAS are in the same file.
    for name in ["libnvrtc.so.13", "libcublas.so.13"] {
        let _ = std::fs::remove_file(folder.join(name));
        std::os::unix::fs::symlink("libcuda.so", folder.join(name)).unwrap();
    }
    Some(folder)
}

/// Runs the tests that match `filter` with this library path and environment; returns their output.
fn run(library_path: &Path, filter: &str, environment: &[(&str, &str)]) -> String {
    let output = Command::new(std::env::current_exe().unwrap())
        .args([filter, "--nocapture", "--test-threads=1"])
        .env(MARK, "")
        .env("LD_LIBRARY_PATH", library_path)
        // Keeps code for the fake device out of the user's cache.
        .env("XDG_CACHE_HOME", library_path)
        .env_remove("CUDA_VISIBLE_DEVICES")
        .envs(environment.iter().copied())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
    text.into_owned()
}

#[test]
fn all_tests_of_devices_pass_on_the_fake_driver() {
    if is_loaded() {
        return;
    }
    let Some(library) = build("fake_driver", &[]) else { return };
    let text = run(&library, "device_", &[]);
    assert!(!text.contains(" 0 passed") && !text.contains("skipped"), "{text}");
    run(&library, "probing_answers", &[]);
    run(&library, "products_come", &[]);
    run(&library, "device_steps", &[("FAKE_CUDA_NO_GRAPHS", "1")]);
    run(&library, "a_refused_free", &[]);
    run(&library, "a_lost_device", &[("FAKE_CUDA_RECORD", "700")]);
    run(&library, "device_mapped_memory", &[("FAKE_CUDA_MAPS", "0")]);
}

#[test]
fn each_way_for_cuda_to_be_absent_has_its_reason() {
    if is_loaded() {
        return;
    }
    let Some(library) = build("fake_driver_absent", &[]) else { return };
    let Some(incomplete) = build("fake_driver_incomplete", &["--cfg", "incomplete"]) else { return };
    let no_device = "no CUDA device";
    let hidden = "no CUDA device (CUDA_VISIBLE_DEVICES is \"7\")";
    let stub = "CUDA is not usable: cuInit failed with CUDA_ERROR_STUB_LIBRARY";
    let damaged = "the CUDA driver is too old or damaged: function cuMemHostAlloc is missing";
    expect(&library, no_device, &[("FAKE_CUDA_INIT", "100")]);
    expect(&library, no_device, &[("FAKE_CUDA_DEVICES", "0")]);
    expect(&library, hidden, &[("FAKE_CUDA_DEVICES", "0"), ("CUDA_VISIBLE_DEVICES", "7")]);
    expect(&library, stub, &[("FAKE_CUDA_INIT", "34")]);
    expect(&incomplete, damaged, &[]);
}

fn expect(library: &Path, reason: &str, environment: &[(&str, &str)]) {
    let environment = [environment, &[(MARK, reason)]].concat();
    let text = run(library, "the_reason_is_the_expected_one", &environment);
    assert!(text.contains("1 passed"), "{text}");
    run(library, "probing_answers", &environment);
}

/// The part of the test above that runs in the other process.
#[test]
fn the_reason_is_the_expected_one() {
    let Some(expected) = std::env::var_os(MARK).filter(|reason| !reason.is_empty()) else { return };
    let reason: CudaUnavailable = probe().unwrap_err();
    assert_eq!(reason.to_string().as_str(), expected);
}

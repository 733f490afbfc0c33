//! Runs tests in processes that load the emulated driver (`emulator/driver.cpp`). The root of the tests has the function
//! `libraries`, which compiles the kernels that the driver finds.

#![allow(dead_code, reason = "each suite uses a part")]

use std::ffi::OsStr;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};

/// Set in processes on the emulated driver, to the expected result.
const EXPECTED: &str = "EMULATED_EXPECTED";

/// The expected result, in a process on the emulated driver.
pub(crate) fn expected() -> Option<String> {
    std::env::var(EXPECTED).ok()
}

/// The folder of the workspace's crates.
fn crates() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

/// Whether the sources of the driver are on this machine, which may have a copy of the test program alone.
pub(crate) fn has_sources() -> bool {
    crates().join("bfc-cuda/emulator").exists()
}

/// Runs the body of a test in a process that has the emulated driver and these environment variables. The function around
/// `body` is the test.
pub(crate) fn on_emulated_driver<F: FnOnce()>(variables: &[(&str, &str)], body: F) {
    if expected().is_some() {
        return body();
    }
    // Such as `suite::module::test::{{closure}}`.
    let test = std::any::type_name::<F>().rsplit("::").nth(1).unwrap();
    EmulatedDriver::new(test).run("", variables);
}

/// A folder for the library path, with the emulated driver.
pub(crate) struct EmulatedDriver {
    /// The test that it is for, which is also the name of the folder.
    test: &'static str,
    folder: PathBuf,
}

impl EmulatedDriver {
    /// The driver with NCCL, and with NVRTC and cuBLAS of CUDA 13. All of them are the same file.
    pub(crate) fn new(test: &'static str) -> Self {
        Self::without_toolkit(test, &[]).with_toolkit("13").with_nccl()
    }

    /// The driver alone, compiled with these options.
    pub(crate) fn without_toolkit(test: &'static str, options: &[&str]) -> Self {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(test);
        // Remove the files of earlier processes.
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).unwrap();
        symlink(compiled(options), folder.join("libcuda.so")).unwrap();
        Self { test, folder }
    }

    /// Adds NVRTC and cuBLAS of this CUDA version.
    pub(crate) fn with_toolkit(self, major: &str) -> Self {
        let [nvrtc, cublas] =
            ["libnvrtc", "libcublas"].map(|name| self.folder.join(format!("{name}.so.{major}")));
        match major {
            "13" => symlink("libcuda.so", &nvrtc).unwrap(),
            // The version depends on the name of the file.
            _ => drop(fs::copy(self.folder.join("libcuda.so"), &nvrtc).unwrap()),
        }
        symlink(nvrtc, cublas).unwrap();
        self
    }

    /// Adds NCCL.
    pub(crate) fn with_nccl(self) -> Self {
        symlink("libcuda.so", self.folder.join("libnccl.so.2")).unwrap();
        self
    }

    /// The path of a library.
    pub(crate) fn path(&self, file: &str) -> String {
        self.folder.join(file).to_string_lossy().into_owned()
    }

    /// A command that finds these libraries before all others.
    pub(crate) fn command(&self, program: impl AsRef<OsStr>, variables: &[(&str, &str)]) -> Command {
        let [kernels, products] = crate::libraries().unwrap();
        let mut command = Command::new(program);
        for other in ["CUDA_VISIBLE_DEVICES", "CUDA_HOME", "CUDA_PATH", "VIRTUAL_ENV", "CONDA_PREFIX"] {
            command.env_remove(other);
        }
        command
            .env("LD_LIBRARY_PATH", &self.folder)
            .env("HOME", &self.folder)
            // Keeps code for the emulated device out of the user's cache.
            .env("XDG_CACHE_HOME", &self.folder)
            .env("EMULATED_KERNELS", kernels)
            .env("EMULATED_PRODUCTS", products)
            .envs(variables.iter().copied());
        command
    }

    /// Runs the test in another process, where it must find what is `expected`. No other test has a name that contains
    /// this test's name.
    pub(crate) fn run(&self, expected: &str, variables: &[(&str, &str)]) {
        let text = self.run_matching(self.test, expected, variables);
        assert!(text.contains("1 passed"), "{variables:?}: {text}");
    }

    /// Runs the tests of this program whose names contain `filter`; returns their output.
    pub(crate) fn run_matching(&self, filter: &str, expected: &str, variables: &[(&str, &str)]) -> String {
        let output = self
            .command(std::env::current_exe().unwrap(), variables)
            .args([filter, "--nocapture"])
            .env(EXPECTED, expected)
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{variables:?}: {text}");
        text.into_owned()
    }
}

/// Compiles the driver, unless an earlier process has compiled the same sources.
fn compiled(options: &[&str]) -> PathBuf {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let sources = crates().join("bfc-cuda/emulator");
    let mut files: Vec<PathBuf> =
        fs::read_dir(&sources).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.extend(["job.cuh", "half.cuh"].map(|file| crates().join("bfc-cuda/kernels").join(file)));
    files.sort();
    let mut hasher = DefaultHasher::new();
    options.hash(&mut hasher);
    files.iter().for_each(|file| fs::read(file).unwrap().hash(&mut hasher));
    let target = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let library = target.join(format!("emulated-driver-{:016x}.so", hasher.finish()));
    if library.exists() {
        return library;
    }
    let unfinished = library.with_extension(std::process::id().to_string());
    let output = Command::new(std::env::var_os("CXX").unwrap_or_else(|| "c++".into()))
        .args(["-std=c++17", "-O1", "-shared", "-fPIC", "-pthread", "-w", "-o"])
        .args([&unfinished, &sources.join("driver.cpp")])
        .args(options)
        .arg("-ldl")
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    // Another process replaces the file with an equal one.
    fs::rename(unfinished, &library).unwrap();
    library
}

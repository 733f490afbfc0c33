//! Runs tests in processes whose library path has the fake driver and libraries.

#![allow(dead_code, reason = "each suite takes what it needs")]

use std::path::{Path, PathBuf};
use std::process::Command;

/// Set in processes that run on the fake driver, to the expected result.
const EXPECTED: &str = "FAKE_CUDA_FOUND";

/// The expected result, in a process that runs on the fake driver.
pub(crate) fn expected() -> Option<String> {
    std::env::var(EXPECTED).ok()
}

/// A folder with fake CUDA libraries.
pub(crate) struct Fake {
    folder: PathBuf,
    /// Further environment variables.
    variables: Vec<(&'static str, String)>,
}

impl Fake {
    /// The driver alone.
    pub(crate) fn driver(target: &str, name: &str) -> Self {
        let folder = Path::new(target).join(name);
        // Remove the files of earlier processes.
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).unwrap();
        let fake = Self { folder, variables: Vec::new() };
        fake.build("libcuda.rs", "libcuda.so", None);
        fake
    }

    /// The driver with a compiler and a cuBLAS, which are the same file.
    pub(crate) fn whole(target: &str, name: &str) -> Self {
        let fake = Self::driver(target, name);
        for library in ["libnvrtc.so.13", "libcublas.so.13"] {
            std::os::unix::fs::symlink("libcuda.so", fake.folder.join(library)).unwrap();
        }
        fake
    }

    /// The emulated driver, which runs all kernels on the host with these libraries of the emulator.
    pub(crate) fn computing(
        target: &str,
        name: &str,
        [kernels, products]: [PathBuf; 2],
        devices: usize,
    ) -> Self {
        let folder = Path::new(target).join(name);
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).unwrap();
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../bfc-cuda/emulator/driver.cpp");
        let output = Command::new(std::env::var_os("CXX").unwrap_or_else(|| "c++".into()))
            .args(["-std=c++17", "-O1", "-shared", "-fPIC", "-pthread", "-w", "-o"])
            .args([&folder.join("libcuda.so"), &source])
            .arg("-ldl")
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        for library in ["libnvrtc.so.13", "libcublas.so.13"] {
            std::os::unix::fs::symlink("libcuda.so", folder.join(library)).unwrap();
        }
        let variables = vec![
            ("HOST_KERNELS", kernels.to_string_lossy().into_owned()),
            ("HOST_PRODUCTS", products.to_string_lossy().into_owned()),
            ("HOST_DEVICES", devices.to_string()),
        ];
        Self { folder, variables }
    }

    /// Adds a compiler and a cuBLAS of this CUDA version.
    pub(crate) fn with_libraries_of(self, major: &str) -> Self {
        let file = format!("libfake.so.{major}");
        self.build("library.rs", &file, Some(major));
        for library in ["libnvrtc", "libcublas"] {
            std::os::unix::fs::symlink(&file, self.folder.join(format!("{library}.so.{major}"))).unwrap();
        }
        self
    }

    pub(crate) fn path(&self, file: &str) -> String {
        self.folder.join(file).to_string_lossy().into_owned()
    }

    fn build(&self, source: &str, file: &str, major: Option<&str>) {
        let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("../bfc-cuda/tests/fake_driver");
        let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
        let output = Command::new(rustc)
            .args(["--edition", "2024", "--crate-type", "cdylib", "--check-cfg", "cfg(incomplete)", "-o"])
            .args([self.folder.join(file), sources.join(source)])
            .envs(major.map(|major| ("FAKE_LIBRARY_MAJOR", major)))
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }

    /// A command that finds these libraries before all others.
    pub(crate) fn command(
        &self,
        program: impl AsRef<std::ffi::OsStr>,
        variables: &[(&str, &str)],
    ) -> Command {
        let mut command = Command::new(program);
        for others in ["CUDA_VISIBLE_DEVICES", "CUDA_HOME", "CUDA_PATH", "VIRTUAL_ENV", "CONDA_PREFIX"] {
            command.env_remove(others);
        }
        command
            .env("LD_LIBRARY_PATH", &self.folder)
            .env("HOME", &self.folder)
            // Keeps code for the fake device out of the user's cache.
            .env("XDG_CACHE_HOME", &self.folder)
            .envs(self.variables.iter().map(|(name, value)| (name, value)))
            .envs(variables.iter().copied());
        command
    }

    /// Runs one test in another process, where it must find what is `expected`. No other test has a name that contains
    /// `test`.
    pub(crate) fn run(&self, test: &str, expected: &str, variables: &[(&str, &str)]) {
        let output = self
            .command(std::env::current_exe().unwrap(), variables)
            .args([test, "--nocapture"])
            .env(EXPECTED, expected)
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && text.contains("1 passed"), "{variables:?}: {text}");
    }
}

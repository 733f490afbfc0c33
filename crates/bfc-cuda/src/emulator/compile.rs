//! Compiles host libraries with the machine's C++ compiler, and keeps them in a private folder.

use std::ffi::OsString;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, OnceLock, PoisonError};

use crate::compute::ComputeError;

/// The library compiled from a source; compiles it unless that was done before.
pub(super) fn compiled(name: &str, text: &str) -> Result<PathBuf, ComputeError> {
    // Other processes write other temporary files.
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    let path = folder()?.join(format!("{name}-{:016x}.so", hasher.finish()));
    if !path.exists() {
        compile(text, &path)?;
    }
    Ok(path)
}

/// The folder of compiled libraries, chosen once per process.
fn folder() -> Result<&'static Path, ComputeError> {
    static FOLDER: OnceLock<Result<PathBuf, ComputeError>> = OnceLock::new();
    let folder = FOLDER.get_or_init(|| super::folder::of_user().map_err(compile_error));
    folder.as_deref().map_err(Clone::clone)
}

pub(super) fn compile_error(reason: impl ToString) -> ComputeError {
    ComputeError::Compile { source_name: "kernels for the host".to_owned(), reason: reason.to_string() }
}

fn compile(text: &str, to: &Path) -> Result<(), ComputeError> {
    let beside = |ending: &str| -> PathBuf {
        let mut name = OsString::from(to);
        name.push(format!(".{}.{ending}", std::process::id()));
        name.into()
    };
    let (source, made) = (beside("cpp"), beside("made"));
    std::fs::write(&source, text).map_err(compile_error)?;
    let compiler = std::env::var_os("CXX").unwrap_or_else(|| "c++".into());
    let output = Command::new(&compiler)
        .args(["-std=c++17", "-O2", "-U_FORTIFY_SOURCE", "-ffp-contract=off", "-w", "-shared", "-fPIC", "-o"])
        .args([&made, &source])
        .output()
        .map_err(|error| compile_error(format!("{}: {error}", compiler.to_string_lossy())))?;
    if !output.status.success() {
        return Err(compile_error(String::from_utf8_lossy(&output.stderr)));
    }
    // A second process replaces the file with an equal one.
    std::fs::rename(&made, to).map_err(compile_error)?;
    let _ = std::fs::remove_file(source);
    Ok(())
}

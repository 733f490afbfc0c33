//! Where CUDA's libraries may be, and which of several suits a device.
//!
//! A machine may have several of them: those of CUDA 12 beside those of CUDA 13, in the system's folders, in a toolkit's, or in
//! wheels of Python's. The newest is not always the one to take: it may not know an old device any more, or be newer than
//! the driver. So each is asked, in order, and what was wrong with it is kept.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use crate::compute::{LibraryProblem, Target, TriedLibrary, not_newer};

/// The major versions that are looked for, the newest first.
const MAJORS: [u32; 2] = [13, 12];

/// A library of CUDA's.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted {
    /// What its file's name begins with.
    pub(crate) stem: &'static str,
    /// The variable in which the user may name the file.
    pub(crate) variable: &'static str,
}

/// A file that may be the library.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Candidate {
    /// A path, or a name that the system looks for.
    pub(crate) path: OsString,
    /// Its major version, if the name says so.
    pub(crate) major: Option<u32>,
    /// What it is called in errors.
    pub(crate) called: String,
}

impl Candidate {
    /// The file of this path or name, whatever it is.
    pub(crate) fn at(path: &OsStr) -> Self {
        Self { path: path.to_owned(), major: None, called: path.to_string_lossy().into_owned() }
    }

    /// Whether it need not even be loaded.
    pub(crate) fn check(&self, target: &Target) -> Result<(), LibraryProblem> {
        self.major.map_or(Ok(()), |major| not_newer(major, target))
    }

    /// The same, tried in vain.
    pub(crate) fn tried(&self, problem: LibraryProblem) -> TriedLibrary {
        TriedLibrary { library: self.called.clone(), problem }
    }
}

/// Where to look: the process's variables, and the root of the file system.
pub(crate) struct Surroundings<'a> {
    pub(crate) variable: &'a dyn Fn(&str) -> Option<OsString>,
    pub(crate) root: &'a Path,
}

/// All files that may be the library, in the order in which they are to be tried: the one that the user names, and no other;
/// else those that the system finds, then those in the folders of toolkits, of environments and of Python's wheels.
pub(crate) fn candidates(wanted: Wanted, around: &Surroundings<'_>) -> Vec<Candidate> {
    let set = |name: &str| (around.variable)(name).filter(|value| !value.is_empty());
    if let Some(path) = set(wanted.variable) {
        let called = format!("{}={}", wanted.variable, path.to_string_lossy());
        return vec![Candidate { path, major: None, called }];
    }
    let names = MAJORS.map(|major| (format!("{}.so.{major}", wanted.stem), Some(major)));
    let plain = (format!("{}.so", wanted.stem), None);
    let by_system = names.iter().chain([&plain]).map(|(name, major)| Candidate {
        path: name.into(),
        major: *major,
        called: name.clone(),
    });
    let folders = folders(&set, around.root);
    let in_folders = folders.iter().flat_map(|folder| {
        names.iter().map(move |(name, major)| (folder.join(name), *major)).filter(|(path, _)| path.exists())
    });
    let in_folders = in_folders.map(|(path, major)| Candidate {
        called: path.to_string_lossy().into_owned(),
        path: path.into_os_string(),
        major,
    });
    by_system.chain(in_folders).collect()
}

/// Candidates of this process.
pub(crate) fn candidates_here(wanted: Wanted) -> Vec<Candidate> {
    candidates(wanted, &Surroundings { variable: &|name| std::env::var_os(name), root: Path::new("/") })
}

/// Folders in which CUDA's libraries may lie without the system's knowing.
fn folders(set: &dyn Fn(&str) -> Option<OsString>, root: &Path) -> Vec<PathBuf> {
    let mut folders = Vec::new();
    for toolkit in ["CUDA_HOME", "CUDA_PATH"].into_iter().filter_map(set).map(PathBuf::from) {
        folders.extend([toolkit.join("lib64"), toolkit.join("lib")]);
    }
    let local = root.join("usr/local");
    folders.push(local.join("cuda/lib64"));
    // Among them cuda-13.0 and cuda-12.9: the newest comes first.
    folders.extend(within(&local, "cuda-").into_iter().map(|toolkit| toolkit.join("lib64")));
    let environments = ["VIRTUAL_ENV", "CONDA_PREFIX"].into_iter().filter_map(set).map(PathBuf::from);
    let environments: Vec<PathBuf> = environments.collect();
    folders.extend(environments.iter().map(|environment| environment.join("lib")));
    let home = set("HOME").map(|home| PathBuf::from(home).join(".local"));
    for prefix in environments.into_iter().chain(home).chain([local, root.join("usr")]) {
        for python in within(&prefix.join("lib"), "python3") {
            for packages in ["site-packages", "dist-packages"] {
                let wheels = within(&python.join(packages).join("nvidia"), "");
                folders.extend(wheels.into_iter().map(|wheel| wheel.join("lib")));
            }
        }
    }
    folders
}

/// What lies in a folder under names that begin so, the largest numbers first; nothing if the folder cannot be read.
fn within(folder: &Path, start: &str) -> Vec<PathBuf> {
    let Ok(entries) = folder.read_dir() else { return Vec::new() };
    let mut found: Vec<(Vec<u64>, PathBuf)> = entries
        .filter_map(|entry| {
            let entry = entry.ok()?;
            let name = entry.file_name().to_string_lossy().into_owned();
            let numbers = name.strip_prefix(start)?.split(|c: char| !c.is_ascii_digit());
            Some((numbers.filter_map(|number| number.parse().ok()).collect(), entry.path()))
        })
        .collect();
    found.sort_by(|(left, a), (right, b)| right.cmp(left).then_with(|| a.cmp(b)));
    found.into_iter().map(|(_, path)| path).collect()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::driver::DriverVersion;

    const WANTED: Wanted = Wanted { stem: "libnvrtc", variable: "HIGHWATER_NVRTC" };

    fn called(root: &Path, variables: &[(&str, OsString)]) -> Vec<String> {
        let variable = |name: &str| {
            let set = variables.iter().find(|(set, _)| *set == name);
            set.map(|(_, value)| value.clone())
        };
        let around = Surroundings { variable: &variable, root };
        candidates(WANTED, &around).into_iter().map(|candidate| candidate.called).collect()
    }

    fn put(root: &Path, file: &str) -> String {
        let path = root.join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, "").unwrap();
        path.to_string_lossy().into_owned()
    }

    const BY_SYSTEM: [&str; 3] = ["libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"];

    #[test]
    fn a_machine_without_cuda_has_the_names_that_the_system_is_asked_for() {
        let root = tempfile::tempdir().unwrap();
        assert_eq!(called(root.path(), &[]), BY_SYSTEM);
        assert_eq!(called(root.path(), &[("HIGHWATER_NVRTC", OsString::new())]), BY_SYSTEM);
    }

    #[test]
    fn the_file_that_the_user_names_is_the_only_one() {
        let root = tempfile::tempdir().unwrap();
        put(root.path(), "usr/local/cuda/lib64/libnvrtc.so.12");
        let named = [("HIGHWATER_NVRTC", "/opt/mine.so".into())];
        assert_eq!(called(root.path(), &named), ["HIGHWATER_NVRTC=/opt/mine.so"]);
    }

    #[test]
    fn toolkits_environments_and_wheels_are_looked_through_in_order_and_the_newest_first() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        let mut expected = BY_SYSTEM.map(str::to_owned).to_vec();
        expected.extend([
            put(root, "opt/cuda/lib64/libnvrtc.so.12"),
            put(root, "usr/local/cuda/lib64/libnvrtc.so.13"),
            put(root, "usr/local/cuda-13.0/lib64/libnvrtc.so.13"),
            put(root, "usr/local/cuda-12.10/lib64/libnvrtc.so.12"),
            put(root, "usr/local/cuda-12.9/lib64/libnvrtc.so.12"),
            put(root, "venv/lib/python3.12/site-packages/nvidia/cu13/lib/libnvrtc.so.13"),
            put(root, "venv/lib/python3.12/site-packages/nvidia/cuda_nvrtc/lib/libnvrtc.so.12"),
            put(root, "home/.local/lib/python3.9/site-packages/nvidia/cuda_nvrtc/lib/libnvrtc.so.12"),
            put(root, "usr/local/lib/python3.11/dist-packages/nvidia/cuda_nvrtc/lib/libnvrtc.so.12"),
        ]);
        put(root, "usr/local/cuda-12.9/lib64/libcublas.so.12");
        let variables = [("CUDA_HOME", "opt/cuda"), ("VIRTUAL_ENV", "venv"), ("HOME", "home")];
        let variables = variables.map(|(name, path)| (name, root.join(path).into_os_string()));
        assert_eq!(called(root, &variables), expected);
    }

    #[test]
    fn a_name_that_says_a_newer_cuda_than_the_drivers_is_not_even_loaded() {
        let target = Target { architecture: 90, driver: DriverVersion { major: 12, minor: 4 } };
        let root = tempfile::tempdir().unwrap();
        let around = Surroundings { variable: &|_| None, root: root.path() };
        let checked: Vec<_> = candidates(WANTED, &around).iter().map(|found| found.check(&target)).collect();
        let newer = LibraryProblem::NewerThanDriver { major: 13, driver: target.driver };
        assert_eq!(newer.to_string(), "of CUDA 13, but the driver is for CUDA 12.4");
        assert_eq!(checked, [Err(newer), Ok(()), Ok(())]);
    }
}

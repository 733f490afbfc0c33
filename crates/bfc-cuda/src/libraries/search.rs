//! Finds the files that may be a CUDA library.
//!
//! A machine may have several: CUDA 12 and CUDA 13, in system folders, toolkits or Python wheels. The newest may not
//! support an old device, or may be newer than the driver. Callers therefore try all candidates in order and keep the
//! reasons.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use bfc_core::setting::Setting;

use crate::compute::{LibraryProblem, Target, TriedLibrary, not_newer};

/// The supported major versions of CUDA, newest first.
const CUDA: &[u32] = &[13, 12];

/// A library to look for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LibraryName {
    /// The start of the file name.
    pub(crate) stem: &'static str,
    /// The setting that overrides the file.
    pub(crate) setting: &'static Setting,
    /// The versions in file names, in the order to try.
    pub(crate) versions: &'static [u32],
    /// Whether they are versions of CUDA, which must suit the driver.
    pub(crate) follows_cuda: bool,
}

impl LibraryName {
    /// A library of the CUDA toolkit.
    pub(crate) const fn of_toolkit(stem: &'static str, setting: &'static Setting) -> Self {
        Self { stem, setting, versions: CUDA, follows_cuda: true }
    }
}

/// A file that may be the library.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Candidate {
    /// A path, or a name for the system's search.
    pub(crate) path: OsString,
    /// The major version of CUDA, if the name contains it.
    pub(crate) major: Option<u32>,
    /// The name in errors.
    pub(crate) name: String,
}

impl Candidate {
    /// A candidate for this path or name.
    pub(crate) fn at(path: &OsStr) -> Self {
        Self { path: path.to_owned(), major: None, name: path.to_string_lossy().into_owned() }
    }

    /// Refuses the candidate without loading it, if the name shows that it is too new.
    pub(crate) fn check(&self, target: &Target) -> Result<(), LibraryProblem> {
        self.major.map_or(Ok(()), |major| not_newer(major, target))
    }

    /// The candidate as a failed attempt.
    pub(crate) fn tried(&self, problem: LibraryProblem) -> TriedLibrary {
        TriedLibrary { library: self.name.clone(), problem }
    }
}

/// Where to look: environment variables and the root of the file system.
pub(crate) struct SearchEnvironment<'a> {
    pub(crate) variable: &'a dyn Fn(&str) -> Option<OsString>,
    pub(crate) root: &'a Path,
}

/// Lists the candidates in the order to try. A file named by the user is the only one. Otherwise: the system's search,
/// toolkits, virtual environments, Python wheels.
pub(crate) fn candidates(library: LibraryName, environment: &SearchEnvironment<'_>) -> Vec<Candidate> {
    let set = |name: &str| (environment.variable)(name).filter(|value| !value.is_empty());
    let named = library.setting.variable.and_then(|variable| Some((variable, set(variable)?)));
    if let Some((variable, path)) = named {
        let name = format!("{variable}={}", path.to_string_lossy());
        return vec![Candidate { path, major: None, name }];
    }
    let named =
        |&version: &u32| (format!("{}.so.{version}", library.stem), library.follows_cuda.then_some(version));
    let names: Vec<(String, Option<u32>)> = library.versions.iter().map(named).collect();
    let plain = (format!("{}.so", library.stem), None);
    let by_system = names.iter().chain([&plain]).map(|(name, major)| Candidate {
        path: name.into(),
        major: *major,
        name: name.clone(),
    });
    let folders = folders(&set, environment.root);
    let in_folders = folders.iter().flat_map(|folder| {
        names.iter().map(move |(name, major)| (folder.join(name), *major)).filter(|(path, _)| path.exists())
    });
    let in_folders = in_folders.map(|(path, major)| Candidate {
        name: path.to_string_lossy().into_owned(),
        path: path.into_os_string(),
        major,
    });
    by_system.chain(in_folders).collect()
}

/// The candidates in this process's environment.
pub(crate) fn candidates_in_process(library: LibraryName) -> Vec<Candidate> {
    candidates(library, &SearchEnvironment { variable: &|name| std::env::var_os(name), root: Path::new("/") })
}

/// Folders outside of the system's search path that may contain CUDA libraries.
fn folders(set: &dyn Fn(&str) -> Option<OsString>, root: &Path) -> Vec<PathBuf> {
    let mut folders = Vec::new();
    for toolkit in ["CUDA_HOME", "CUDA_PATH"].into_iter().filter_map(set).map(PathBuf::from) {
        folders.extend([toolkit.join("lib64"), toolkit.join("lib")]);
    }
    let local = root.join("usr/local");
    folders.push(local.join("cuda/lib64"));
    // Such as cuda-13.0 and cuda-12.9, newest first.
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

/// The entries of a folder whose names start with `start`, largest version first; none if the folder is unreadable.
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
    use crate::settings::NVRTC;

    const LIBRARY: LibraryName = LibraryName::of_toolkit("libnvrtc", &NVRTC);

    fn names(root: &Path, variables: &[(&str, OsString)]) -> Vec<String> {
        let variable = |name: &str| {
            let set = variables.iter().find(|(set, _)| *set == name);
            set.map(|(_, value)| value.clone())
        };
        let environment = SearchEnvironment { variable: &variable, root };
        candidates(LIBRARY, &environment).into_iter().map(|candidate| candidate.name).collect()
    }

    fn put(root: &Path, file: &str) -> String {
        let path = root.join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, "").unwrap();
        path.to_string_lossy().into_owned()
    }

    const BY_SYSTEM: [&str; 3] = ["libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"];

    #[test]
    fn without_cuda_only_the_system_names_are_candidates() {
        let root = tempfile::tempdir().unwrap();
        assert_eq!(names(root.path(), &[]), BY_SYSTEM);
        assert_eq!(names(root.path(), &[("HIGHWATER_NVRTC", OsString::new())]), BY_SYSTEM);
    }

    #[test]
    fn the_file_that_the_user_names_is_the_only_one() {
        let root = tempfile::tempdir().unwrap();
        put(root.path(), "usr/local/cuda/lib64/libnvrtc.so.12");
        let named = [("HIGHWATER_NVRTC", "/opt/mine.so".into())];
        assert_eq!(names(root.path(), &named), ["HIGHWATER_NVRTC=/opt/mine.so"]);
    }

    #[test]
    fn toolkits_environments_and_wheels_are_searched_in_order() {
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
        assert_eq!(names(root, &variables), expected);
    }

    #[test]
    fn a_library_newer_than_the_driver_is_not_loaded() {
        let target = Target { architecture: 90, driver: DriverVersion { major: 12, minor: 4 } };
        let root = tempfile::tempdir().unwrap();
        let environment = SearchEnvironment { variable: &|_| None, root: root.path() };
        let checked: Vec<_> =
            candidates(LIBRARY, &environment).iter().map(|found| found.check(&target)).collect();
        let newer = LibraryProblem::NewerThanDriver { major: 13, driver: target.driver };
        assert_eq!(newer.to_string(), "of CUDA 13, but the driver is for CUDA 12.4");
        assert_eq!(checked, [Err(newer), Ok(()), Ok(())]);
    }
}

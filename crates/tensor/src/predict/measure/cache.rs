//! The measured speed on disk, so that only the first program on a machine measures.

use std::fs;
use std::io::Read;
use std::path::PathBuf;

use highwater_kernels::backend::cpu::instruction_set;
use serde::{Deserialize, Serialize};

use super::programs::programs;
use crate::backend::DeviceSpeed;

/// The most bytes to read of a file.
const LARGEST: u64 = 1 << 20;

/// The contents of a file: the speed of a machine.
#[derive(Debug, Serialize, Deserialize)]
struct CachedSpeed {
    machine: String,
    speed: DeviceSpeed,
}

/// The cache entry of one machine. Without a folder nothing is cached.
#[derive(Debug)]
pub(super) struct SpeedCache {
    file: Option<PathBuf>,
    machine: String,
}

impl SpeedCache {
    /// The entry in the folder of the user.
    pub(super) fn of_user(threads: usize) -> Self {
        let absolute = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
        let cache = absolute("XDG_CACHE_HOME").or_else(|| Some(absolute("HOME")?.join(".cache")));
        Self::at(cache.map(|cache| cache.join("highwater")), machine(threads))
    }

    fn at(folder: Option<PathBuf>, machine: String) -> Self {
        let name = format!("speed-{:08x}.json", crc32fast::hash(machine.as_bytes()));
        Self { file: folder.map(|folder| folder.join(name)), machine }
    }

    /// Returns the cached speed, if it is of this machine and intact.
    pub(super) fn get(&self) -> Option<DeviceSpeed> {
        let mut text = Vec::new();
        fs::File::open(self.file.as_ref()?).ok()?.take(LARGEST).read_to_end(&mut text).ok()?;
        let entry: CachedSpeed = serde_json::from_slice(&text).ok()?;
        (entry.machine == self.machine && entry.speed.is_valid()).then_some(entry.speed)
    }

    /// Caches a speed with an atomic write. A failed write is ignored: the next program measures again.
    pub(super) fn put(&self, speed: &DeviceSpeed) {
        let Some((file, folder)) = self.file.as_ref().and_then(|file| Some((file, file.parent()?))) else {
            return;
        };
        let entry = CachedSpeed { machine: self.machine.clone(), speed: speed.clone() };
        let own = file.with_extension(std::process::id().to_string());
        let kept = fs::create_dir_all(folder)
            .and_then(|()| fs::write(&own, serde_json::to_vec(&entry)?))
            .and_then(|()| fs::rename(&own, file));
        if kept.is_err() {
            let _ = fs::remove_file(own);
        }
    }
}

/// Returns everything that determines a measurement: the CPU, its instruction set, the threads, the version and the programs.
pub(super) fn machine(threads: usize) -> String {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let (model, instructions) = (cpu_model(), instruction_set());
    let (version, programs) = (env!("CARGO_PKG_VERSION"), programs().len());
    format!(
        "{model}, {instructions}, {threads} threads on {cores} cores, Highwater {version}, {programs} programs"
    )
}

/// Returns the model of the CPU as the system names it; its architecture if the system does not.
fn cpu_model() -> String {
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let value = |key: &str| {
        let line = text.lines().find(|line| line.starts_with(key))?;
        Some(line.split_once(':')?.1.trim().to_owned())
    };
    let Some(name) = value("model name") else { return std::env::consts::ARCH.to_owned() };
    // Virtual machines often hide the name; the numbers remain.
    let numbers = ["cpu family", "model\t", "stepping"].map(|key| value(key).unwrap_or_default());
    format!("{name} {}", numbers.join("."))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::DeviceProfile;

    fn speed() -> DeviceSpeed {
        DeviceProfile::gpu("t4").unwrap().speed().unwrap().clone()
    }

    #[test]
    fn a_speed_is_found_again_on_the_same_machine_alone() {
        let folder = tempfile::tempdir().unwrap();
        let cache = |machine: &str| SpeedCache::at(Some(folder.path().join("new")), machine.to_owned());
        assert_eq!(cache("a").get(), None);
        cache("a").put(&speed());
        assert_eq!((cache("a").get(), cache("b").get()), (Some(speed()), None));
        // As if both machines had one file name.
        fs::rename(cache("a").file.unwrap(), cache("b").file.unwrap()).unwrap();
        assert_eq!(cache("b").get(), None);
        assert_eq!(fs::read_dir(folder.path().join("new")).unwrap().count(), 1);
    }

    #[test]
    fn corrupt_files_and_unwritable_folders_are_no_errors() {
        let folder = tempfile::tempdir().unwrap();
        let cache = SpeedCache::at(Some(folder.path().to_owned()), "a".to_owned());
        cache.put(&speed());
        let file = cache.file.clone().unwrap();
        let text = fs::read_to_string(&file).unwrap();
        for damaged in [&text[..text.len() / 2], "", "{}", &text.replace("\"scale\":1.0", "\"scale\":-1.0")] {
            assert_ne!(damaged, text);
            fs::write(&file, damaged).unwrap();
            assert_eq!(cache.get(), None);
        }
        cache.put(&speed());
        assert_eq!(cache.get(), Some(speed()));
        let unwritable = SpeedCache::at(Some(file), "a".to_owned());
        unwritable.put(&speed());
        assert_eq!(unwritable.get(), None);
    }
}

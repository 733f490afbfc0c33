//! Atomic file writes: a temporary file next to the target takes over the target's name when it is complete.
//!
//! ```text
//! .model.safetensors.0f3c9a7e51d2b684.tmp     locked while its writer lives
//!                │ sync, rename
//! model.safetensors                           the old contents or the new ones, never a part
//! ```
//!
//! A process that is killed leaves its temporary file. The next writer of the same target removes it. An advisory lock
//! decides whether a temporary file is stale: its writer holds the lock, and the system releases it when the writer ends.

use std::collections::hash_map::RandomState;
use std::fs::{self, File, Metadata, OpenOptions};
use std::hash::{BuildHasher, Hasher};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use fs4::FileExt;

use crate::boundary::floor_boundary;

/// Attempts to find an unused name. Names are random, so one is almost always enough.
const ATTEMPTS: usize = 16;

/// The longest chain of symbolic links that is followed, as on Linux.
const MAX_LINKS: usize = 40;

/// The longest part of the target's name in the name of its temporary file. Every file system accepts the result.
const MAX_NAME_BYTES: usize = 100;

/// The number of hexadecimal digits in the name of a temporary file.
const DIGITS: usize = 16;

/// The ending of the names of temporary files.
const ENDING: &str = ".tmp";

/// A file that appears under its name only when it is complete.
///
/// Writes go to a temporary file in the target's folder. [`commit`](Self::commit) flushes it to disk and renames it. A crash at any
/// moment leaves the old file or the new one. Without `commit`, the old file stays and the temporary file is removed.
///
/// - A symbolic link stays, and the file that it leads to is replaced.
/// - The new file has the permissions of the one that it replaces.
/// - A pipe or a device is written directly, since it has no contents to preserve. So is `/dev/stdout`, unless it is a file.
/// - A file that is itself a mount point, as containers mount single files, cannot be replaced. The complete file is copied into it.
/// - Temporary files that killed writers of the same target left are removed first. Those of running writers, in this process or
///   another one, stay. File systems without advisory locks keep both.
///
/// ```
/// use std::io::Write;
/// use highwater_files::AtomicFile;
/// # let folder = tempfile::tempdir()?;
/// let path = folder.path().join("notes.txt");
/// let mut file = AtomicFile::create(&path)?;
/// file.write_all(b"complete")?;
/// assert!(!path.exists());
/// file.commit()?;
/// assert_eq!(std::fs::read(&path)?, b"complete");
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct AtomicFile {
    target: PathBuf,
    /// Present until the file is committed or dropped.
    file: Option<BufWriter<File>>,
    /// `None` for pipes and devices.
    temporary: Option<PathBuf>,
}

impl AtomicFile {
    /// Creates the temporary file for a target, which need not exist.
    ///
    /// # Errors
    /// Errors of the system, such as a missing folder. Nothing has changed then.
    pub fn create(target: impl AsRef<Path>) -> io::Result<Self> {
        let target = target.as_ref();
        // Before links are resolved: those of `/proc/self/fd` to a pipe contain no path.
        if fs::metadata(target).is_ok_and(|found| !found.is_file()) {
            let file = OpenOptions::new().write(true).open(target)?;
            return Ok(Self { target: target.to_owned(), file: Some(BufWriter::new(file)), temporary: None });
        }
        let (target, replaced) = resolve(target)?;
        let prefix = prefix(&target);
        remove_stale(&target, &prefix);
        let (temporary, file) = create_temporary(&target, &prefix)?;
        let file = Self { target, file: Some(BufWriter::new(file)), temporary: Some(temporary) };
        file.copy_permissions(replaced.as_ref())?;
        Ok(file)
    }

    /// Gives the empty file the permissions of the file that it replaces, so that only readers of the old file can read it.
    fn copy_permissions(&self, replaced: Option<&Metadata>) -> io::Result<()> {
        let (Some(replaced), Some(file)) = (replaced, &self.file) else { return Ok(()) };
        let (permissions, file) = (replaced.permissions(), file.get_ref());
        // File systems with one kind of permissions refuse to set them.
        if file.metadata()?.permissions() == permissions { Ok(()) } else { file.set_permissions(permissions) }
    }

    /// Flushes the contents to disk and gives the file its name.
    ///
    /// # Errors
    /// Errors of the system. The old file is unchanged, unless only the last step fails, which flushes the folder.
    pub fn commit(mut self) -> io::Result<()> {
        let Some(mut file) = self.file.take() else { return Ok(()) };
        let Some(temporary) = self.temporary.take() else { return file.flush() };
        let written = file.flush().and_then(|()| file.get_ref().sync_all());
        // The lock is held until the file has its name: a concurrent writer of the target must not see a stale file.
        match written.and_then(|()| fs::rename(&temporary, &self.target)) {
            Ok(()) => {
                drop(file);
                sync_folder(&self.target)
            }
            Err(error) => {
                let is_mount = error.kind() == io::ErrorKind::ResourceBusy;
                let copied = if is_mount { fs::copy(&temporary, &self.target).map(drop) } else { Err(error) };
                discard(file, &temporary);
                copied
            }
        }
    }

    fn writer(&mut self) -> io::Result<&mut BufWriter<File>> {
        self.file.as_mut().ok_or_else(|| io::Error::from(io::ErrorKind::BrokenPipe))
    }
}

impl Write for AtomicFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.writer()?.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.writer()?.flush()
    }
}

impl Drop for AtomicFile {
    fn drop(&mut self) {
        if let (Some(file), Some(temporary)) = (self.file.take(), self.temporary.take()) {
            discard(file, &temporary);
        }
    }
}

/// Removes a temporary file of this process. An earlier error, which the caller returns, matters more than a failure here.
fn discard(file: BufWriter<File>, temporary: &Path) {
    let _ = fs::remove_file(temporary);
    // Without another attempt to write the buffered bytes.
    drop(file.into_parts());
}

/// The file that a path leads to through symbolic links, and its metadata if it exists.
fn resolve(path: &Path) -> io::Result<(PathBuf, Option<Metadata>)> {
    let mut path = path.to_owned();
    for _ in 0..MAX_LINKS {
        match fs::symlink_metadata(&path) {
            // A relative link starts at the folder that contains it.
            Ok(found) if found.is_symlink() => path = path.with_file_name(fs::read_link(&path)?),
            Ok(found) => return Ok((path, Some(found))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok((path, None)),
            Err(error) => return Err(error),
        }
    }
    Err(io::Error::other("too many symbolic links"))
}

/// The beginning of the names of a target's temporary files.
fn prefix(target: &Path) -> String {
    let name = target.file_name().unwrap_or_default().to_string_lossy();
    format!(".{}.", &name[..floor_boundary(&name, MAX_NAME_BYTES)])
}

/// Whether a file name is that of a temporary file with this prefix.
fn is_temporary(name: &str, prefix: &str) -> bool {
    let digits = name.strip_prefix(prefix).and_then(|rest| rest.strip_suffix(ENDING));
    digits
        .is_some_and(|digits| digits.len() == DIGITS && digits.bytes().all(|digit| digit.is_ascii_hexdigit()))
}

/// Creates and locks a new file in the target's folder. Only a file in the same folder can take over the name in one step.
fn create_temporary(target: &Path, prefix: &str) -> io::Result<(PathBuf, File)> {
    let mut last = io::Error::from(io::ErrorKind::AlreadyExists);
    for _ in 0..ATTEMPTS {
        let path = target.with_file_name(format!("{prefix}{:016x}{ENDING}", random()));
        match OpenOptions::new().read(true).write(true).create_new(true).open(&path) {
            Ok(file) => {
                // Where locks are not supported, nothing is ever removed as stale.
                let _ = FileExt::lock(&file);
                // Another writer may have removed the file before it was locked.
                if fs::symlink_metadata(&path).is_ok() {
                    return Ok((path, file));
                }
            }
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => last = error,
            Err(error) => return Err(error),
        }
    }
    Err(last)
}

/// Removes the temporary files whose writers ended without removing them. A file that cannot be examined stays.
fn remove_stale(target: &Path, prefix: &str) {
    let Ok(entries) = fs::read_dir(folder(target)) else { return };
    for entry in entries.flatten() {
        let is_candidate = entry.file_name().to_str().is_some_and(|name| is_temporary(name, prefix))
            && entry.file_type().is_ok_and(|kind| kind.is_file());
        if !is_candidate {
            continue;
        }
        let path = entry.path();
        // Some network file systems lock only files that are open for writing, which a read-only file never is.
        let opened = OpenOptions::new().read(true).write(true).open(&path).or_else(|_| File::open(&path));
        let Ok(file) = opened else { continue };
        if FileExt::try_lock(&file).is_ok() {
            // The lock is held while the file goes, so that a writer which has just created it notices.
            let _ = fs::remove_file(&path);
        }
    }
}

/// A number that no other process is likely to draw: the standard library seeds its hashes at random.
fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}

fn folder(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Flushes the new name to disk, on systems that can open folders.
fn sync_folder(path: &Path) -> io::Result<()> {
    if !cfg!(unix) {
        return Ok(());
    }
    match File::open(folder(path)) {
        Ok(folder) => folder.sync_all(),
        // A folder may be writable and not readable. The system flushes the name later.
        Err(_) => Ok(()),
    }
}

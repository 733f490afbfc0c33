//! Files that are there whole, or as they were before.

use std::collections::hash_map::RandomState;
use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::hash::{BuildHasher, Hasher};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process;

use super::error::FileError;

/// How many names of temporary files are tried. They are random, so a second one is hardly ever needed.
const NAMES: usize = 16;

/// Writes a file by way of a temporary one beside it, which is brought to disk and then takes the name over: a crash at
/// any moment leaves the old file or the new one, never a part. After an error the old file is as it was, but
/// for one of the disk as the new name is brought to it, which stands already.
///
/// ```
/// # let folder = tempfile::tempdir()?;
/// let path = folder.path().join("notes.txt");
/// highwater_tensor::io::write_atomically(&path, |file| file.write_all(b"first"))?;
/// assert_eq!(std::fs::read(&path)?, b"first");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// [`FileError::Io`] with what `write` or the system says.
pub fn write_atomically(
    path: impl AsRef<Path>,
    write: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> Result<(), FileError> {
    let path = path.as_ref();
    write_beside(path, (0..NAMES).map(|_| random()), write).map_err(|error| FileError::io(path, &error))
}

/// The same, by way of a temporary file with one of these numbers in its name.
fn write_beside(
    path: &Path,
    numbers: impl Iterator<Item = u64>,
    write: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> io::Result<()> {
    let (temporary, file) = create(path, numbers)?;
    if let Err(error) = fill(file, write).and_then(|()| fs::rename(&temporary, path)) {
        // It was made above, so it is nobody else's; the error that is told is the first one.
        let _ = fs::remove_file(&temporary);
        return Err(error);
    }
    sync_folder(path)
}

/// A file that was not there before, in the same folder: only there can a file take another's name over in one step. Processes in
/// containers have small numbers that come again, so what a killed one has left behind may have the name of the first
/// attempt.
fn create(path: &Path, numbers: impl Iterator<Item = u64>) -> io::Result<(PathBuf, File)> {
    let mut taken = io::Error::from(io::ErrorKind::AlreadyExists);
    for number in numbers {
        let mut name = OsString::from(".");
        name.push(path.file_name().unwrap_or_default());
        name.push(format!(".{}.{number:016x}.tmp", process::id()));
        let temporary = path.with_file_name(name);
        match OpenOptions::new().write(true).create_new(true).open(&temporary) {
            Ok(file) => return Ok((temporary, file)),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => taken = error,
            Err(error) => return Err(error),
        }
    }
    Err(taken)
}

/// A number that other processes do not come upon: the standard library seeds its hashes at random.
fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}

fn fill(file: File, write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> io::Result<()> {
    let mut file = BufWriter::new(file);
    write(&mut file)?;
    file.into_inner()?.sync_all()
}

/// Brings the new name to disk, where folders can be opened.
fn sync_folder(path: &Path) -> io::Result<()> {
    if !cfg!(unix) {
        return Ok(());
    }
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    match File::open(folder.unwrap_or(Path::new("."))) {
        Ok(folder) => folder.sync_all(),
        // It may be written and not read: the name stands, and comes to disk in its own time.
        Err(_) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_that_fails_leaves_the_old_file_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        write_atomically(&path, |file| file.write_all(b"old")).unwrap();
        let failed = write_atomically(&path, |file| {
            file.write_all(&[7; 100_000])?;
            Err(io::Error::other("full"))
        });
        assert!(failed.unwrap_err().to_string().ends_with("full"));
        assert_eq!(fs::read(&path).unwrap(), b"old");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
        write_atomically(&path, |file| file.write_all(b"new")).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_temporary_file_of_someone_else_is_neither_used_nor_removed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        let (theirs, _) = create(&path, [1].into_iter()).unwrap();
        fs::write(&theirs, b"theirs").unwrap();
        write_beside(&path, [1, 2].into_iter(), |file| file.write_all(b"ours")).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"ours");
        let refused = write_beside(&path, [1].into_iter(), |_| Ok(())).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::AlreadyExists);
        write_beside(&path, [1, 2].into_iter(), |_| Err(io::Error::other("full"))).unwrap_err();
        assert_eq!(fs::read(&path).unwrap(), b"ours");
        assert_eq!(fs::read(&theirs).unwrap(), b"theirs");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
    }

    #[test]
    fn a_folder_that_is_not_there_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let error = write_atomically(folder.path().join("no/a"), |_| Ok(())).unwrap_err();
        assert!(matches!(error, FileError::Io { kind: io::ErrorKind::NotFound, .. }));
    }
}

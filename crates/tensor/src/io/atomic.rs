//! Files that are there whole, or as they were before.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process;
use std::sync::atomic::{AtomicU64, Ordering};

use super::error::FileError;

/// Tells the temporary files of this process apart.
static NUMBER: AtomicU64 = AtomicU64::new(0);

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
    let temporary = beside(path);
    let result = fill(&temporary, write).and_then(|()| fs::rename(&temporary, path));
    match result {
        Ok(()) => sync_folder(path).map_err(|error| FileError::io(path, &error)),
        Err(error) => {
            // It may not even have been made; the error that is told is the first one.
            let _ = fs::remove_file(&temporary);
            Err(FileError::io(path, &error))
        }
    }
}

fn fill(temporary: &Path, write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> io::Result<()> {
    let mut file = BufWriter::new(OpenOptions::new().write(true).create_new(true).open(temporary)?);
    write(&mut file)?;
    file.into_inner()?.sync_all()
}

/// A name in the same folder, since only there a file can take another's name over in one step.
fn beside(path: &Path) -> PathBuf {
    let mut name = OsString::from(".");
    name.push(path.file_name().unwrap_or_default());
    name.push(format!(".{}.{}.tmp", process::id(), NUMBER.fetch_add(1, Ordering::Relaxed)));
    path.with_file_name(name)
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
    fn a_folder_that_is_not_there_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let error = write_atomically(folder.path().join("no/a"), |_| Ok(())).unwrap_err();
        assert!(matches!(error, FileError::Io { kind: io::ErrorKind::NotFound, .. }));
    }
}

//! Files that are there whole, or as they were before.

use std::collections::hash_map::RandomState;
use std::fs::{self, File, Metadata, OpenOptions};
use std::hash::{BuildHasher, Hasher};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use super::error::FileError;

/// How many names of temporary files are tried. They are random, so a second one is hardly ever needed.
const NAMES: usize = 16;

/// How many links are followed, one to the next: as many as Linux does.
const LINKS: usize = 40;

/// Writes a file by way of a temporary one beside it, which is brought to disk and then takes the name over: a crash at
/// any moment leaves the old file or the new one, never a part. After an error the old file is as it was, but
/// for one of the disk as the new name is brought to it, which stands already.
///
/// A link stays, and what it leads to is written. A file that is replaced keeps its permissions. What is no file, as a pipe or a device, is
/// written where it is: there is nothing to be kept whole.
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
    write_whole(path, write).map_err(|error| FileError::io(path, &error))
}

fn write_whole(path: &Path, write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> io::Result<()> {
    let (path, before) = resolve(path)?;
    match before {
        Some(before) if !before.is_file() => {
            let mut device = BufWriter::new(OpenOptions::new().write(true).open(path)?);
            write(&mut device)?;
            device.flush()
        }
        before => write_beside(&path, before.as_ref(), (0..NAMES).map(|_| random()), write),
    }
}

/// Where links lead to, and what is there.
fn resolve(path: &Path) -> io::Result<(PathBuf, Option<Metadata>)> {
    let mut path = path.to_owned();
    for _ in 0..LINKS {
        match fs::symlink_metadata(&path) {
            // Where the link lies, if it does not say otherwise.
            Ok(found) if found.is_symlink() => path = path.with_file_name(fs::read_link(&path)?),
            Ok(found) => return Ok((path, Some(found))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok((path, None)),
            Err(error) => return Err(error),
        }
    }
    Err(io::Error::other("links that lead to one another"))
}

/// The same, in place of the file that was there `before`, by way of a temporary file with one of these numbers in its name.
fn write_beside(
    path: &Path,
    before: Option<&Metadata>,
    numbers: impl Iterator<Item = u64>,
    write: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> io::Result<()> {
    let (temporary, file) = create(path, numbers)?;
    let written = permit_as(before, &file).and_then(|()| fill(file, write));
    if let Err(error) = written.and_then(|()| fs::rename(&temporary, path)) {
        // It was made above, so it is nobody else's; the error that is told is the first one.
        let _ = fs::remove_file(&temporary);
        return Err(error);
    }
    sync_folder(path)
}

/// Gives a file the permissions of the one that was there `before`, while there is nothing in it: nobody shall read it who may not
/// read the old one.
fn permit_as(before: Option<&Metadata>, file: &File) -> io::Result<()> {
    let Some(before) = before.map(Metadata::permissions) else { return Ok(()) };
    // Where there is but one kind of permissions, they cannot be set.
    if file.metadata()?.permissions() == before { Ok(()) } else { file.set_permissions(before) }
}

/// A file that was not there before, in the same folder: only there can a file take another's name over in one step. The name is
/// short whatever the other is, which may be as long as a name can be.
fn create(path: &Path, numbers: impl Iterator<Item = u64>) -> io::Result<(PathBuf, File)> {
    let mut taken = io::Error::from(io::ErrorKind::AlreadyExists);
    for number in numbers {
        let temporary = path.with_file_name(format!(".{number:016x}.tmp"));
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
        write_beside(&path, None, [1, 2].into_iter(), |file| file.write_all(b"ours")).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"ours");
        let refused = write_beside(&path, None, [1].into_iter(), |_| Ok(())).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::AlreadyExists);
        write_beside(&path, None, [1, 2].into_iter(), |_| Err(io::Error::other("full"))).unwrap_err();
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

    #[test]
    fn a_name_as_long_as_names_can_be_is_written() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("n".repeat(255));
        write_atomically(&path, |file| file.write_all(b"long")).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"long");
    }

    #[cfg(unix)]
    mod unix {
        use std::os::unix::fs::{FileTypeExt, PermissionsExt, symlink};
        use std::process::Command;
        use std::thread;

        use super::*;

        #[test]
        fn a_link_stays_and_what_it_leads_to_is_written() {
            let folder = tempfile::tempdir().unwrap();
            let [first, second, target] =
                ["first", "second", "elsewhere/target"].map(|name| folder.path().join(name));
            symlink(&second, &first).unwrap();
            symlink("elsewhere/target", &second).unwrap();
            assert!(write_atomically(&first, |_| Ok(())).is_err(), "there is no such folder yet");
            fs::create_dir(folder.path().join("elsewhere")).unwrap();
            for text in [b"one", b"two"] {
                write_atomically(&first, |file| file.write_all(text)).unwrap();
                assert_eq!(fs::read(&target).unwrap(), text);
                assert!(fs::symlink_metadata(&first).unwrap().is_symlink());
            }
            let ring = folder.path().join("ring");
            symlink(&ring, &ring).unwrap();
            assert!(write_atomically(&ring, |_| Ok(())).is_err());
        }

        #[test]
        fn a_file_keeps_its_permissions() {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("secret");
            fs::write(&path, b"old").unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
            write_atomically(&path, |file| file.write_all(b"new")).unwrap();
            assert_eq!(fs::read(&path).unwrap(), b"new");
            assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        }

        #[test]
        fn a_pipe_is_written_and_stays_one() {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("pipe");
            if !Command::new("mkfifo").arg(&path).status().is_ok_and(|made| made.success()) {
                eprintln!("skipped: no pipe could be made");
                return;
            }
            let read = thread::spawn({
                let path = path.clone();
                move || fs::read(path).unwrap()
            });
            write_atomically(&path, |file| file.write_all(b"through")).unwrap();
            assert_eq!(read.join().unwrap(), b"through");
            assert!(fs::symlink_metadata(&path).unwrap().file_type().is_fifo());
            assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
        }

        #[test]
        fn a_folder_is_no_file() {
            let folder = tempfile::tempdir().unwrap();
            write_atomically(folder.path(), |_| Ok(())).unwrap_err();
            assert!(folder.path().is_dir());
        }
    }
}

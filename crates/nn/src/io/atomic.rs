//! Atomic writes of whole files.

use std::io::{self, Write};
use std::path::Path;

use highwater_files::AtomicFile;
use highwater_tensor::error::FileError;

/// Writes a file atomically: a crash at any moment leaves the old file or the new one, never a part.
///
/// The function receives a temporary file in the target's folder, which then replaces the target: see [`AtomicFile`] for links,
/// permissions, pipes, and the files that killed processes leave. After an error the old file is unchanged.
///
/// ```
/// # let folder = tempfile::tempdir()?;
/// let path = folder.path().join("notes.txt");
/// highwater::io::write_atomically(&path, |file| file.write_all(b"first"))?;
/// assert_eq!(std::fs::read(&path)?, b"first");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// [`FileError::Io`] with what `write` or the system reports.
pub fn write_atomically(
    path: impl AsRef<Path>,
    write: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> Result<(), FileError> {
    let path = path.as_ref();
    let written = AtomicFile::create(path).and_then(|mut file| {
        write(&mut file)?;
        file.commit()
    });
    written.map_err(|error| FileError::io(path, &error))
}

#[cfg(test)]
mod tests {
    use std::fs;

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

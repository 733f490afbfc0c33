//! The private folder of compiled kernels. This process loads the libraries in it, so no other user may write there.
//!
//! It is in the user's cache, so that tests compile the kernels once. If another user owns or may write it, a new
//! temporary folder with a random name takes its place.

use std::fs;
use std::hash::{BuildHasher, RandomState};
use std::io::{Error, ErrorKind, Result};
use std::path::{Path, PathBuf};

use crate::libraries::user_cache;

/// The user's cache folder, or a temporary one if that is not private.
pub(super) fn of_user() -> Result<PathBuf> {
    match user_cache().map(|cache| private(&cache.join("emulator"))) {
        Some(Ok(folder)) => Ok(folder),
        _ => temporary(&std::env::temp_dir()),
    }
}

/// Creates the folder if necessary; an error unless only this user can write it.
fn private(path: &Path) -> Result<PathBuf> {
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent)?;
    }
    match create(path) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    // Of the path itself: links are refused.
    let folder = fs::symlink_metadata(path)?;
    if !folder.is_dir() || !is_owned(path, &folder)? {
        return Err(Error::new(ErrorKind::PermissionDenied, format!("{} is not private", path.display())));
    }
    Ok(path.to_owned())
}

/// Creates a folder in `parent` with an unpredictable name.
fn temporary(parent: &Path) -> Result<PathBuf> {
    loop {
        // Each `RandomState` has random keys.
        let number = RandomState::new().hash_one(std::process::id());
        let path = parent.join(format!("highwater-emulator-{number:016x}"));
        match create(&path) {
            Ok(()) => return Ok(path),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
    }
}

#[cfg(unix)]
fn create(path: &Path) -> Result<()> {
    use std::os::unix::fs::DirBuilderExt;
    fs::DirBuilder::new().mode(0o700).create(path)
}

#[cfg(not(unix))]
fn create(path: &Path) -> Result<()> {
    fs::create_dir(path)
}

/// Whether this user owns a folder and no other user may write it.
#[cfg(unix)]
fn is_owned(path: &Path, folder: &fs::Metadata) -> Result<bool> {
    use std::os::unix::fs::{MetadataExt, PermissionsExt};
    if folder.permissions().mode() & 0o077 != 0 {
        return Ok(false);
    }
    // The owner of a new file is this process's user.
    let number = RandomState::new().hash_one(std::process::id());
    let probe = path.join(format!("owner-{number:016x}"));
    let owner = fs::File::create_new(&probe).and_then(|file| file.metadata()).map(|file| file.uid());
    let _ = fs::remove_file(probe);
    Ok(owner? == folder.uid())
}

/// Without modes, the user's cache is private.
#[cfg(not(unix))]
fn is_owned(_: &Path, _: &fs::Metadata) -> Result<bool> {
    Ok(true)
}

#[cfg(all(test, unix))]
#[allow(clippy::unwrap_used, reason = "helpers of tests may panic as tests may")]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    fn mode(path: &Path) -> u32 {
        fs::symlink_metadata(path).expect("the path exists").permissions().mode() & 0o777
    }

    #[test]
    fn a_new_folder_is_private_and_is_found_again() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("cache").join("emulator");
        assert_eq!(private(&path).unwrap(), path);
        assert_eq!((private(&path).unwrap(), mode(&path)), (path.clone(), 0o700));
        assert_eq!(fs::read_dir(path).unwrap().count(), 0);
    }

    #[test]
    fn a_folder_that_others_may_write_is_refused() {
        let root = tempfile::tempdir().unwrap();
        let open = root.path().join("open");
        fs::create_dir(&open).unwrap();
        for mode in [0o770, 0o707, 0o755] {
            fs::set_permissions(&open, fs::Permissions::from_mode(mode)).unwrap();
            assert_eq!(private(&open).unwrap_err().kind(), ErrorKind::PermissionDenied, "{mode:o}");
        }
    }

    #[test]
    fn a_link_and_a_file_are_refused() {
        let root = tempfile::tempdir().unwrap();
        let (own, link, file) = (root.path().join("own"), root.path().join("link"), root.path().join("file"));
        private(&own).unwrap();
        symlink(&own, &link).unwrap();
        fs::write(&file, "").unwrap();
        assert!(private(&link).is_err() && private(&file).is_err());
    }

    #[test]
    fn temporary_folders_are_private_and_have_random_names() {
        let root = tempfile::tempdir().unwrap();
        let folders = [temporary(root.path()).unwrap(), temporary(root.path()).unwrap()];
        assert_ne!(folders[0], folders[1]);
        assert_eq!(folders.map(|folder| mode(&folder)), [0o700; 2]);
    }
}

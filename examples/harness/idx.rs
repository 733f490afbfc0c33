//! Pictures in MNIST's format, found in a folder by the names of its files.

use std::path::{Path, PathBuf};

use anyhow::Context;
use highwater::data::{Dataset, IdxOptions, read_idx};

/// Reads the pictures and labels in a folder: of the files with `images-idx3` and with `labels-idx` in their names, plain or .gz, the
/// first by name.
pub(crate) fn read(folder: &Path) -> anyhow::Result<Dataset> {
    Ok(read_idx(find(folder, "images-idx3")?, find(folder, "labels-idx")?, &IdxOptions::default())?)
}

/// The file in a folder whose name has `part` in it; the first by name.
fn find(folder: &Path, part: &str) -> anyhow::Result<PathBuf> {
    let entries = std::fs::read_dir(folder).with_context(|| folder.display().to_string())?;
    let paths = entries.map(|entry| Ok(entry?.path())).collect::<std::io::Result<Vec<_>>>()?;
    let named = |path: &PathBuf| path.file_name().is_some_and(|name| name.to_string_lossy().contains(part));
    let first = paths.into_iter().filter(named).min();
    first.with_context(|| format!("{}: no file whose name has {part:?} in it", folder.display()))
}

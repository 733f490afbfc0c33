//! Finds and reads pictures in MNIST's format.

use std::path::{Path, PathBuf};

use anyhow::Context;
use highwater::data::{ArrayDataset, IdxOptions, read_idx};

/// Reads the pictures and labels of a folder: the first files by name that contain `images-idx3` and `labels-idx`,
/// plain or .gz.
pub(crate) fn read(folder: &Path) -> anyhow::Result<ArrayDataset> {
    Ok(read_idx(find(folder, "images-idx3")?, find(folder, "labels-idx")?, &IdxOptions::default())?)
}

/// The first file by name whose name contains `part`.
fn find(folder: &Path, part: &str) -> anyhow::Result<PathBuf> {
    let entries = std::fs::read_dir(folder).with_context(|| folder.display().to_string())?;
    let paths = entries.map(|entry| Ok(entry?.path())).collect::<std::io::Result<Vec<_>>>()?;
    let named = |path: &PathBuf| path.file_name().is_some_and(|name| name.to_string_lossy().contains(part));
    let first = paths.into_iter().filter(named).min();
    first.with_context(|| format!("{}: no file whose name has {part:?} in it", folder.display()))
}

//! The default text: the sources of this workspace.

use std::fs;
use std::path::Path;

use anyhow::Context;

/// All Rust files of the crates, ordered by path.
pub(crate) fn all() -> anyhow::Result<String> {
    let mut text = String::new();
    read(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/crates")), &mut text)?;
    Ok(text)
}

fn read(folder: &Path, text: &mut String) -> anyhow::Result<()> {
    let entries = fs::read_dir(folder).with_context(|| folder.display().to_string())?;
    let mut paths = entries.map(|entry| Ok(entry?.path())).collect::<anyhow::Result<Vec<_>>>()?;
    paths.sort();
    for path in paths {
        if path.is_dir() {
            read(&path, text)?;
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            text.push_str(&fs::read_to_string(&path).with_context(|| path.display().to_string())?);
        }
    }
    Ok(())
}

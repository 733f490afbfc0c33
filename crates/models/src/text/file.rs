//! Reading files of limited size.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use super::error::TextError;

/// Reads a file of at most `limit` bytes.
pub(super) fn read(path: &Path, limit: u64) -> Result<Vec<u8>, TextError> {
    let failed = |error: io::Error| TextError::Io {
        path: path.to_owned(),
        kind: error.kind(),
        message: error.to_string(),
    };
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(failed)?;
    file.take(limit.saturating_add(1)).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > limit {
        return Err(TextError::TooLong { path: path.to_owned(), limit });
    }
    Ok(bytes)
}

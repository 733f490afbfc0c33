//! The format before PyTorch 1.6, and of `_use_new_zipfile_serialization=False` since then.
//!
//! ```text
//! pickle: magic number │ pickle: 1001 │ pickle: the machine │ pickle: the object │ pickle: keys of storages
//! for each key: the number of elements (8 bytes), then the elements, the low byte first
//! ```

use std::collections::HashMap;
use std::io::{self, BufRead, BufReader, Read};

use highwater_files::pickle::{Pickle, Value};

use super::tensors::StorageId;
use super::{Budget, Reading};
use crate::io::FileError;
use crate::io::archive::Source;
use crate::io::safetensors::skip;
use crate::io::skipped::Loaded;

/// The only version of the format.
const VERSION: u64 = 1001;

pub(super) fn read(source: &mut dyn Source, reading: &Reading<'_>) -> Result<Loaded, FileError> {
    let mut source = CountingReader { source: BufReader::new(source), read: 0 };
    reading.pickle(&mut source, reading.path)?;
    let version = reading.pickle(&mut source, reading.path)?.root();
    if version != Value::Natural(VERSION) {
        return Err(reading.malformed(format!("its version is {version:?}, not {VERSION}")));
    }
    // The sizes of C types and the byte order of the machine do not affect the elements.
    reading.pickle(&mut source, reading.path)?;
    let start = source.read;
    let limit = reading.limits.header_bytes;
    let pickle = reading.pickle((&mut source).take(limit), reading.path)?;
    let (tensors, mut collector) = reading.tensors(&pickle, source.read - start)?;
    let sizes = storage_bytes(&pickle);
    drop(pickle);
    let keys = reading.pickle((&mut source).take(limit), reading.path)?;
    let Some(keys_in_order) = keys.items(keys.root()) else {
        return Err(reading.malformed("the list of storages is missing"));
    };
    let names: Option<Vec<String>> =
        keys_in_order.iter().map(|&key| keys.text(key).map(str::to_owned)).collect();
    let Some(names) = names else { return Err(reading.malformed("the key of a storage is not a string")) };
    drop(keys);

    let (mut tensors, mut left) = (tensors, Budget::new(reading));
    for key in &names {
        let Some(&bytes) = sizes.get(key.as_str()) else {
            return Err(reading.malformed(format!("the type of storage {key} is unknown")));
        };
        let (at, mut count) = (source.read, [0; 8]);
        let truncated = |error| FileError::read(reading.path, at, format!("storage {key}"), &error);
        source.read_exact(&mut count).map_err(truncated)?;
        let StorageSize { count: expected, element_bytes } = bytes;
        if u64::from_le_bytes(count) != expected {
            let problem = format!("storage {key} has not the {expected} elements that the pickle says");
            return Err(FileError::malformed(reading.path, at, problem));
        }
        let bytes = expected.saturating_mul(element_bytes);
        left.take_stored(bytes, reading)?;
        match tensors.remove(key.as_str()) {
            Some(tensors) => {
                let mut storage = Vec::new();
                let room = usize::try_from(bytes.min(reading.file_bytes)).unwrap_or(usize::MAX);
                let reserved = storage.try_reserve_exact(room);
                reserved.map_err(|_| truncated(io::ErrorKind::OutOfMemory.into()))?;
                let read = (&mut source).take(bytes).read_to_end(&mut storage).map_err(truncated)?;
                if (read as u64) < bytes {
                    return Err(truncated(io::ErrorKind::UnexpectedEof.into()));
                }
                left.add(tensors, &storage, false, reading, &mut collector)?;
            }
            None => skip(&mut source, bytes).map_err(truncated)?,
        }
    }
    if let Some(key) = tensors.keys().next() {
        return Err(reading.malformed(format!("storage {key} is not in the file")));
    }
    collector.finish()
}

/// The size of a storage.
#[derive(Clone, Copy)]
struct StorageSize {
    count: u64,
    element_bytes: u64,
}

/// Returns the sizes of all storages that a pickle names, including those of skipped tensors.
fn storage_bytes(pickle: &Pickle) -> HashMap<String, StorageSize> {
    let ids = pickle.persistent_ids().iter().filter_map(|&id| StorageId::of(pickle, id));
    let sizes = ids.filter_map(|id| {
        let element_bytes = id.element_bytes()?;
        Some((id.key.to_owned(), StorageSize { count: id.count, element_bytes }))
    });
    sizes.collect()
}

/// Counts the bytes that are read.
struct CountingReader<R> {
    source: R,
    read: u64,
}

impl<R: BufRead> Read for CountingReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.source.read(buffer)?;
        self.read += read as u64;
        Ok(read)
    }
}

impl<R: BufRead> BufRead for CountingReader<R> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        self.source.fill_buf()
    }

    fn consume(&mut self, amount: usize) {
        self.source.consume(amount);
        self.read += amount as u64;
    }
}

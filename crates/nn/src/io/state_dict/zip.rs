//! The format since PyTorch 1.6: a zip archive with a pickle, `data.pkl`, and an entry for each storage, `data/0` and
//! so on.

use std::collections::BTreeMap;
use std::io::{BufReader, Read};
use std::path::Path;

use highwater_files::pickle::Pickle;

use super::{Budget, Reading};
use crate::io::FileError;
use crate::io::archive::{Archive, ArchiveEntry, ArchiveLimits, Source};
use crate::io::skipped::Loaded;

/// The first bytes of every zip archive with entries.
pub(super) const MAGIC: &[u8] = b"PK\x03\x04";

/// Maximum size of the small entries, in bytes.
const MAX_SMALL_ENTRY_BYTES: u64 = 64;

/// Maximum number of entries besides the storages. TorchScript archives have many, and get an error of their own.
const MAX_OTHER_ENTRIES: usize = 10_000;

pub(super) fn read(source: &mut dyn Source, reading: &Reading<'_>) -> Result<Loaded, FileError> {
    let entries = reading.limits.tensors.saturating_add(MAX_OTHER_ENTRIES);
    // Compressed entries are not read.
    let limits = ArchiveLimits { what: "files", entries, ratio: u64::MAX };
    let archive = Archive::open(source, reading.path, &limits)?;
    let files = Files::new(&archive, reading.path)?;
    let high_byte_first = files.is_high_byte_first()?;
    let (pickle, pickle_bytes) = files.pickle(reading)?;
    let (tensors, mut collector) = reading.tensors(&pickle, pickle_bytes)?;
    drop(pickle);
    let mut left = Budget::new(reading);
    for (key, tensors) in tensors {
        // A storage that several tensors share is read once, and not at all if no element is needed.
        let needed = tensors.iter().filter(|(_, tensor)| tensor.bytes() > 0);
        let bytes = needed.map(|(_, tensor)| tensor.storage_bytes).max();
        left.take_stored(bytes.unwrap_or(0), reading)?;
        let storage = bytes.map_or_else(|| Ok(Vec::new()), |bytes| files.storage(&key, bytes))?;
        left.add(tensors, &storage, high_byte_first, reading, &mut collector)?;
    }
    collector.finish()
}

/// The entries, all in one folder.
struct Files<'a> {
    archive: &'a Archive<'a>,
    by_name: BTreeMap<&'a str, &'a ArchiveEntry>,
    folder: &'a str,
    path: &'a Path,
}

impl<'a> Files<'a> {
    fn new(archive: &'a Archive<'a>, path: &'a Path) -> Result<Self, FileError> {
        let refused = |problem: &str| Err(FileError::malformed(path, 0, problem));
        let names = || archive.entries().iter().map(|entry| &*entry.name);
        let mut folders = names().filter_map(|name| name.strip_suffix("data.pkl"));
        let (Some(folder), None) = (folders.next(), folders.next()) else {
            if names().any(|name| name.ends_with(".npy")) {
                return refused("this is a NumPy archive: `read_npz` reads it");
            }
            return refused("it does not contain exactly one data.pkl: PyTorch has not written this file");
        };
        let is_script = |name: &str| {
            let name = name.strip_prefix(folder).unwrap_or_default();
            name == "constants.pkl" || name.starts_with("code/")
        };
        if names().any(is_script) {
            return refused(
                "this is a TorchScript archive, which holds a program: in Python, save its state dict with \
                 torch.save(torch.jit.load(path).state_dict(), path)",
            );
        }
        let by_name = archive.entries().iter().map(|entry| (&entry.name[..], entry)).collect();
        Ok(Self { archive, by_name, folder, path })
    }

    fn named(&self, file: &str) -> String {
        format!("{}/{}{file}", self.path.display(), self.folder)
    }

    fn entry(&self, file: &str) -> Option<&'a ArchiveEntry> {
        self.by_name.get(&*format!("{}{file}", self.folder)).copied()
    }

    /// Opens an entry and returns its size according to the directory.
    fn open(&self, file: &str) -> Result<(Box<dyn Read + 'a>, u64), FileError> {
        let Some(entry) = self.entry(file) else {
            return Err(FileError::malformed(self.path, 0, format!("{}{file} is not in it", self.folder)));
        };
        let named = self.named(file);
        // Uncompressed entries are no larger than the archive.
        if !entry.is_stored() {
            let problem = "it is compressed, which PyTorch never does";
            return Err(FileError::malformed(named.as_ref(), 0, problem));
        }
        Ok((self.archive.contents(entry, named.as_ref())?, entry.size))
    }

    /// Whether elements are big-endian. Old files do not state the byte order and come from little-endian machines.
    fn is_high_byte_first(&self) -> Result<bool, FileError> {
        if self.entry("byteorder").is_none() {
            return Ok(false);
        }
        let (named, (file, _)) = (self.named("byteorder"), self.open("byteorder")?);
        let mut order = String::new();
        let read = file.take(MAX_SMALL_ENTRY_BYTES).read_to_string(&mut order);
        read.map_err(|error| FileError::read(named.as_ref(), 0, "the byte order", &error))?;
        match order.as_str() {
            "little" => Ok(false),
            "big" => Ok(true),
            other => {
                let problem = format!("the byte order is {other:?}, neither little nor big");
                Err(FileError::malformed(named.as_ref(), 0, problem))
            }
        }
    }

    /// Returns the pickle and its size.
    fn pickle(&self, reading: &Reading<'_>) -> Result<(Pickle, u64), FileError> {
        let (named, limit) = (self.named("data.pkl"), reading.limits.header_bytes);
        let (file, size) = self.open("data.pkl")?;
        if size > limit {
            let (path, what) = (named.into(), "bytes of names and shapes");
            return Err(FileError::TooLarge { path, offset: 0, what, found: size, limit });
        }
        let pickle = reading.pickle(BufReader::new(file.take(limit)), named.as_ref())?;
        Ok((pickle, size))
    }

    /// Returns the bytes of a storage, which must have this size.
    fn storage(&self, key: &str, bytes: u64) -> Result<Vec<u8>, FileError> {
        let file = format!("data/{key}");
        let named = self.named(&file);
        let (file, size) = self.open(&file)?;
        let mut storage = Vec::new();
        // An uncompressed entry is no larger than the archive.
        let room = usize::try_from(bytes.min(size)).unwrap_or(usize::MAX);
        let reserved = storage.try_reserve_exact(room);
        reserved.map_err(|_| FileError::io(named.as_ref(), &std::io::ErrorKind::OutOfMemory.into()))?;
        let read = file.take(bytes).read_to_end(&mut storage);
        read.map_err(|error| FileError::read(named.as_ref(), 0, "the elements", &error))?;
        if size < bytes || (storage.len() as u64) < bytes {
            let problem = format!("{} bytes, where the pickle says {bytes}", storage.len());
            return Err(FileError::malformed(named.as_ref(), 0, problem));
        }
        Ok(storage)
    }
}

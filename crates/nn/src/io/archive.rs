//! Zip archives of arrays: entries, whose contents are checked against size and checksum.
//!
//! Entries of an archive must not overlap, so the compressed sizes add up to at most the size of the archive. A limit
//! on the compression ratio then bounds the decompressed size of all entries.

use std::cell::{Cell, RefCell};
use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::path::Path;

use crc32fast::Hasher;
use flate2::read::DeflateDecoder;
use rawzip::{
    CompressionMethod, ErrorKind, RECOMMENDED_BUFFER_SIZE, ReaderAt, ZipArchive, ZipArchiveEntryWayfinder,
    ZipLocator,
};

use highwater_files::gzip;
use highwater_tensor::error::FileError;

/// A reader that can seek.
pub(super) trait Source: Read + Seek {}

impl<S: Read + Seek> Source for S {}

/// A source with random access. All sources have this one type, so the archive code is compiled once.
struct RandomAccess<'s>(RefCell<&'s mut dyn Source>);

impl ReaderAt for RandomAccess<'_> {
    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
        let mut source = self.0.borrow_mut();
        source.seek(SeekFrom::Start(offset))?;
        source.read(bytes)
    }
}

/// The length of a local header without names.
const LOCAL_HEADER_BYTES: u64 = 30;

/// An entry of the archive.
pub(super) struct ArchiveEntry {
    pub(super) name: String,
    /// The offset of its local header.
    pub(super) offset: u64,
    /// Its decompressed size, according to the directory.
    pub(super) size: u64,
    /// Its size in the archive, according to the directory.
    stored_bytes: u64,
    crc: u32,
    method: CompressionMethod,
    encrypted: bool,
    way: ZipArchiveEntryWayfinder,
}

impl ArchiveEntry {
    /// Whether the entry is stored without compression.
    pub(super) fn is_stored(&self) -> bool {
        self.method == CompressionMethod::STORE
    }

    /// Returns the reason if the contents cannot be read.
    pub(super) fn unsupported(&self) -> Option<String> {
        match self.method {
            _ if self.encrypted => Some("it is encrypted".to_owned()),
            CompressionMethod::STORE | CompressionMethod::DEFLATE => None,
            other => Some(format!("it is compressed by method {}", other.as_u16())),
        }
    }
}

/// Limits of an archive.
pub(super) struct ArchiveLimits {
    /// The kind of its entries, for errors.
    pub(super) what: &'static str,
    pub(super) entries: usize,
    /// Maximum number of decompressed bytes per byte of the archive.
    pub(super) ratio: u64,
}

/// An archive with a parsed directory.
pub(super) struct Archive<'s> {
    archive: ZipArchive<RandomAccess<'s>>,
    entries: Vec<ArchiveEntry>,
    /// Decompressed bytes that may still be read.
    left: Cell<u64>,
    limit: u64,
}

impl<'s> Archive<'s> {
    /// Reads the directory. Errors show `path` as the source.
    pub(super) fn open(
        source: &'s mut dyn Source,
        path: &Path,
        limits: &ArchiveLimits,
    ) -> Result<Self, FileError> {
        let end = source.seek(SeekFrom::End(0)).map_err(|error| FileError::io(path, &error))?;
        let (source, mut buffer) = (RandomAccess(RefCell::new(source)), vec![0; RECOMMENDED_BUFFER_SIZE]);
        let archive = ZipLocator::new().locate_in_reader(source, &mut buffer, end);
        let archive = archive.map_err(|(_, error)| problem(path, error))?;
        let too_many = |found| {
            let (path, what, limit) = (path.to_owned(), limits.what, limits.entries as u64);
            Err(FileError::TooLarge { path, offset: 0, what, found, limit })
        };
        let said = archive.entries_hint();
        if said > limits.entries as u64 {
            return too_many(said);
        }
        let (mut entries, mut records) = (Vec::new(), archive.entries(&mut buffer));
        // The minimum extent of each entry, without the names in its local header.
        let mut extents = Vec::new();
        while let Some(record) = records.next_entry().map_err(|error| problem(path, error))? {
            let offset = record.local_header_offset();
            // Some programs write names in other encodings.
            let name = String::from_utf8_lossy(record.file_path().as_bytes()).into_owned();
            if entries.len() == limits.entries {
                return too_many(entries.len() as u64 + 1);
            }
            let stored_bytes = record.compressed_size_hint();
            let entry_end = offset.saturating_add(LOCAL_HEADER_BYTES).saturating_add(stored_bytes);
            extents.push((offset, entry_end));
            entries.push(ArchiveEntry {
                name,
                offset,
                size: record.uncompressed_size_hint(),
                stored_bytes,
                crc: record.crc32(),
                method: record.compression_method(),
                encrypted: record.flags().is_encrypted(),
                way: record.wayfinder(),
            });
        }
        let found = entries.len() as u64;
        if found != said {
            let problem = format!("{found} files are inside, but its end record says {said}");
            return Err(FileError::malformed(path, 0, problem));
        }
        extents.sort_unstable();
        for pair in extents.windows(2) {
            let [(_, end), (next, _)] = [pair[0], pair[1]];
            if end > next {
                return Err(FileError::malformed(path, next, "two of its files overlap"));
            }
        }
        if let Some(&(offset, last)) = extents.last()
            && last > end
        {
            return Err(FileError::malformed(path, offset, "a file inside is longer than the archive"));
        }
        let limit = gzip::limit(end, limits.ratio);
        Ok(Self { archive, entries, left: Cell::new(limit), limit })
    }

    /// Returns the entries in the directory's order.
    pub(super) fn entries(&self) -> &[ArchiveEntry] {
        &self.entries
    }

    /// Returns the contents of an entry; errors show `path`. Contents whose size or checksum differs from the directory
    /// end with an error. A checksum of 0 is not verified: some writers omit it.
    pub(super) fn contents(
        &self,
        entry: &ArchiveEntry,
        path: &Path,
    ) -> Result<Box<dyn Read + '_>, FileError> {
        if let Some(problem) = entry.unsupported() {
            return Err(FileError::malformed(path, 0, problem));
        }
        // Callers rely on this check: an uncompressed entry is no larger than the archive.
        if entry.is_stored() && entry.stored_bytes != entry.size {
            let problem = "the size of the file inside differs from the archive's directory";
            return Err(FileError::malformed(path, 0, problem));
        }
        let Some(left) = self.left.get().checked_sub(entry.size) else {
            let (path, what) = (path.to_owned(), "decompressed bytes");
            let found = (self.limit - self.left.get()).saturating_add(entry.size);
            return Err(FileError::TooLarge { path, offset: 0, what, found, limit: self.limit });
        };
        self.left.set(left);
        let stored = self.archive.get_entry(entry.way).map_err(|error| problem(path, error))?.reader();
        let checked = ReadProgress { sum: Hasher::new(), left: entry.size, crc: entry.crc };
        if entry.is_stored() {
            Ok(Box::new(checked.of(BufReader::new(stored))))
        } else {
            Ok(Box::new(checked.of(DeflateDecoder::new(stored))))
        }
    }
}

/// Converts an error of the zip reader.
fn problem(path: &Path, error: rawzip::Error) -> FileError {
    match error.into_kind() {
        ErrorKind::IO(error) => FileError::read(path, 0, "the archive", &error),
        kind => FileError::malformed(path, 0, rawzip::Error::from(kind).to_string()),
    }
}

/// The progress of reading an entry.
struct ReadProgress {
    sum: Hasher,
    left: u64,
    crc: u32,
}

impl ReadProgress {
    /// Checks size and checksum while reading.
    fn of<R: Read>(self, contents: R) -> CheckedRead<R> {
        CheckedRead { contents, checked: self }
    }

    fn take(&mut self, bytes: &[u8], at_end: bool) -> io::Result<()> {
        let invalid = |problem| Err(io::Error::new(io::ErrorKind::InvalidData, problem));
        self.sum.update(bytes);
        self.left = match self.left.checked_sub(bytes.len() as u64) {
            Some(left) if left == 0 || !at_end => left,
            _ => return invalid("the size of the file inside differs from the archive's directory"),
        };
        match self.left {
            0 if self.crc != 0 && self.sum.clone().finalize() != self.crc => {
                invalid("the checksum of the file inside differs from the archive's directory")
            }
            _ => Ok(()),
        }
    }
}

struct CheckedRead<R> {
    contents: R,
    checked: ReadProgress,
}

impl<R: Read> Read for CheckedRead<R> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let read = self.contents.read(bytes)?;
        self.checked.take(&bytes[..read], read == 0 && !bytes.is_empty())?;
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use flate2::Compression;
    use flate2::write::DeflateEncoder;
    use rawzip::ZipArchiveWriter;

    use super::*;

    const CONTENTS: [u8; 100] = [7; 100];
    const LIMITS: ArchiveLimits = ArchiveLimits { what: "files", entries: 10, ratio: gzip::RATIO };

    /// Returns an archive of one file with the first `len` bytes of [`CONTENTS`], stored or compressed.
    fn archive(len: usize, compressed: bool) -> Vec<u8> {
        let mut archive = ZipArchiveWriter::new(Vec::new());
        let method = if compressed { CompressionMethod::DEFLATE } else { CompressionMethod::STORE };
        let (mut file, config) = archive.new_file("a").compression_method(method).start().unwrap();
        let written = if compressed {
            let mut writer = config.wrap(DeflateEncoder::new(&mut file, Compression::default()));
            writer.write_all(&CONTENTS[..len]).unwrap();
            let (encoder, written) = writer.finish().unwrap();
            encoder.finish().unwrap();
            written
        } else {
            let mut writer = config.wrap(&mut file);
            writer.write_all(&CONTENTS[..len]).unwrap();
            writer.finish().unwrap().1
        };
        file.finish(written).unwrap();
        archive.finish().unwrap()
    }

    /// Reads the first entry of an archive.
    fn read(bytes: &[u8]) -> Result<Vec<u8>, FileError> {
        let (mut source, path) = (io::Cursor::new(bytes), Path::new("all.zip"));
        let archive = Archive::open(&mut source, path, &LIMITS)?;
        let mut contents = Vec::new();
        let read = archive.contents(&archive.entries()[0], path)?.read_to_end(&mut contents);
        read.map(|_| contents).map_err(|error| FileError::io(path, &error))
    }

    /// Returns the offset of the file's record in the directory.
    fn record(bytes: &[u8]) -> usize {
        bytes.windows(4).position(|word| word == b"PK\x01\x02").unwrap()
    }

    #[test]
    fn contents_are_read_as_they_were_written_at_every_length() {
        for compressed in [false, true] {
            for len in 0..=CONTENTS.len() {
                assert_eq!(read(&archive(len, compressed)).unwrap(), &CONTENTS[..len], "{len}");
            }
        }
    }

    #[test]
    fn a_wrong_size_or_checksum_is_an_error() {
        for compressed in [false, true] {
            let good = archive(40, compressed);
            let record = record(&good);
            // The sum, then the size of the contents: one more, one less.
            for (at, by) in [(16, 1), (24, 1), (24, 255)] {
                let mut bad = good.clone();
                bad[record + at] = bad[record + at].wrapping_add(by);
                let error = read(&bad).unwrap_err().to_string();
                assert!(error.contains("differs from the archive's directory"), "{error}");
            }
        }
    }

    #[test]
    fn unsupported_archive_entries_are_refused() {
        let good = archive(40, false);
        let record = record(&good);
        let end = good.len() - 22;
        for (at, value, problem) in [
            (record + 8, 1, "it is encrypted"),
            (record + 10, 12, "it is compressed by method 12"),
            (end + 10, 2, "1 files are inside, but its end record says 2"),
        ] {
            let mut bad = good.clone();
            bad[at] = value;
            let error = read(&bad).unwrap_err().to_string();
            assert!(error.ends_with(problem), "{error}");
        }
    }

    #[test]
    fn a_name_in_another_encoding_does_not_matter() {
        let mut file = archive(40, false);
        let name = record(&file) + 46;
        file[name] = 0xff;
        assert_eq!(read(&file).unwrap(), &CONTENTS[..40]);
    }

    #[test]
    fn a_checksum_of_zero_is_not_verified() {
        for compressed in [false, true] {
            let mut file = archive(40, compressed);
            let record = record(&file);
            file[record + 16..][..4].fill(0);
            assert_eq!(read(&file).unwrap(), &CONTENTS[..40]);
            // The size still is.
            file[record + 24] += 1;
            assert!(read(&file).unwrap_err().to_string().contains("the size of the file inside differs"));
        }
    }

    #[test]
    fn entries_that_share_bytes_are_refused() {
        let good = archive(40, true);
        let record = record(&good);
        let end = good.len() - 22;
        // A second record of the same local header.
        let mut bad = good.clone();
        bad.splice(end..end, good[record..end].to_vec());
        let (end, size) = (bad.len() - 22, 2 * (end - record) as u32);
        bad[end + 8..][..4].copy_from_slice(&[2, 0, 2, 0]);
        bad[end + 12..][..4].copy_from_slice(&size.to_le_bytes());
        let error = read(&bad).unwrap_err().to_string();
        assert!(error.contains("two of its files overlap"), "{error}");
    }
}

//! IDX files: the format of MNIST and its relatives (LeCun, Cortes and Burges).
//!
//! Two zero bytes, a byte for the element type, the number of axes in one byte, the size of each as a big-endian 32-bit number, then
//! the elements, the last axis fastest. Only bytes (type 8) are read, of which these data sets consist.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use flate2::read::MultiGzDecoder;

use super::answers::Answers;
use super::dataset::Dataset;
use super::error::DataError;

/// The element type of unsigned bytes.
const BYTES: u8 = 8;
/// The first bytes of every gzip file.
const GZIP: [u8; 2] = [0x1f, 0x8b];
/// How many elements are read at a time: memory is taken for what is there, not for what a header claims.
const PIECE: usize = 1 << 20;

/// The elements of an IDX file.
///
/// ```
/// use highwater_tensor::data::IdxArray;
/// // A type of bytes, two axes, of 2 and 3 elements.
/// let file = [0, 0, 8, 2, 0, 0, 0, 2, 0, 0, 0, 3, 1, 2, 3, 4, 5, 6];
/// let array = IdxArray::read_from(&file[..], "array", 1 << 20)?;
/// assert_eq!((array.dims(), array.elements()), (&[2, 3][..], &[1, 2, 3, 4, 5, 6][..]));
/// # Ok::<(), highwater_tensor::data::DataError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdxArray {
    dims: Vec<usize>,
    elements: Vec<u8>,
}

impl IdxArray {
    /// Reads a file of at most `limit` elements, plain or compressed with gzip, which its first bytes tell.
    ///
    /// # Errors
    /// [`DataError::Io`], [`DataError::NotIdx`] for another format, [`DataError::TooLong`] for more elements,
    /// [`DataError::Truncated`], [`DataError::Damaged`].
    pub fn read(path: impl AsRef<Path>, limit: u64) -> Result<Self, DataError> {
        let path = path.as_ref();
        let file = File::open(path).map_err(|error| DataError::Io {
            path: path.to_owned(),
            kind: error.kind(),
            message: error.to_string(),
        })?;
        Self::read_from(io::BufReader::new(file), path, limit)
    }

    /// Reads from anywhere. `name` stands for the file in errors.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn read_from(mut source: impl Read, name: impl AsRef<Path>, limit: u64) -> Result<Self, DataError> {
        let path = name.as_ref();
        let mut magic = [0; 2];
        fill(&mut source, &mut magic, path)?;
        let whole = io::Cursor::new(magic).chain(source);
        if magic == GZIP { parse(MultiGzDecoder::new(whole), path, limit) } else { parse(whole, path, limit) }
    }

    /// The sizes of the axes.
    #[must_use]
    pub fn dims(&self) -> &[usize] {
        &self.dims
    }

    /// All elements, the last axis fastest.
    #[must_use]
    pub fn elements(&self) -> &[u8] {
        &self.elements
    }
}

fn parse(mut source: impl Read, path: &Path, limit: u64) -> Result<IdxArray, DataError> {
    let not_idx = |message: String| DataError::NotIdx { path: path.to_owned(), message };
    let mut head = [0; 4];
    fill(&mut source, &mut head, path)?;
    let [0, 0, element, axes] = head else {
        return Err(not_idx(format!("it begins with {head:?}")));
    };
    if element != BYTES {
        return Err(not_idx(format!(
            "its elements are of type {element}, and only bytes ({BYTES}) are read"
        )));
    }
    let mut dims = Vec::with_capacity(usize::from(axes));
    let mut count: u64 = 1;
    for _ in 0..axes {
        let mut size = [0; 4];
        fill(&mut source, &mut size, path)?;
        let size = u32::from_be_bytes(size);
        count = count.saturating_mul(u64::from(size));
        dims.push(size as usize);
    }
    if count > limit {
        return Err(DataError::TooLong { path: path.to_owned(), limit });
    }
    let mut elements = Vec::new();
    while (elements.len() as u64) < count {
        let first = elements.len();
        elements.resize(first + PIECE.min((count - first as u64) as usize), 0);
        fill(&mut source, &mut elements[first..], path)?;
    }
    let mut more = [0];
    if source.read(&mut more).map_err(|error| failed(&error, path))? > 0 {
        return Err(not_idx(format!("more than the {count} elements that it has room for")));
    }
    Ok(IdxArray { dims, elements })
}

/// Reads as many bytes as there is room for.
fn fill(source: &mut impl Read, bytes: &mut [u8], path: &Path) -> Result<(), DataError> {
    source.read_exact(bytes).map_err(|error| failed(&error, path))
}

fn failed(error: &io::Error, path: &Path) -> DataError {
    let path = path.to_owned();
    match error.kind() {
        io::ErrorKind::UnexpectedEof => DataError::Truncated { path },
        io::ErrorKind::InvalidData | io::ErrorKind::InvalidInput => {
            DataError::Damaged { path, message: error.to_string() }
        }
        kind => DataError::Io { path, kind, message: error.to_string() },
    }
}

/// Images and their labels from two IDX files, as rows of pixels from 0 to 255: MNIST, for one.
///
/// # Errors
/// As [`IdxArray::read`]; [`DataError::NotIdx`] also for images of fewer than two axes, labels of more than one, and where there
/// are not as many labels as images.
pub fn read_idx(
    images: impl AsRef<Path>,
    labels: impl AsRef<Path>,
    limit: u64,
) -> Result<Dataset, DataError> {
    let (images_path, labels_path) = (images.as_ref(), labels.as_ref());
    let images = IdxArray::read(images_path, limit)?;
    let labels = IdxArray::read(labels_path, limit)?;
    let [rows, pixels @ ..] = images.dims() else {
        let message = "no images: it has no axes".to_owned();
        return Err(DataError::NotIdx { path: images_path.to_owned(), message });
    };
    if labels.dims() != [*rows] {
        let message = format!("labels of shape {:?} for {rows} images", labels.dims());
        return Err(DataError::NotIdx { path: labels_path.to_owned(), message });
    }
    // Their product is that of the elements that were read, unless there are none.
    let width = if images.elements().is_empty() { 0 } else { pixels.iter().product() };
    if width == 0 {
        return Err(DataError::Empty { path: images_path.to_owned() });
    }
    let features = images.elements().iter().map(|&pixel| f32::from(pixel)).collect();
    let labels = Answers::Labels(labels.elements().iter().map(|&label| i64::from(label)).collect());
    Ok(Dataset::from_rows(features, labels, *rows, width))
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use flate2::Compression;
    use flate2::write::GzEncoder;

    use super::*;

    fn file(dims: &[u32], elements: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0, 0, BYTES, dims.len() as u8];
        dims.iter().for_each(|size| bytes.extend(size.to_be_bytes()));
        bytes.extend(elements);
        bytes
    }

    fn read(bytes: &[u8]) -> Result<IdxArray, DataError> {
        IdxArray::read_from(bytes, "file", 1000)
    }

    #[test]
    fn plain_and_compressed_files_hold_the_same() {
        let plain = file(&[2, 3], &[1, 2, 3, 4, 5, 6]);
        let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
        encoder.write_all(&plain).unwrap();
        let compressed = encoder.finish().unwrap();
        assert_eq!(read(&plain), read(&compressed));
        assert_eq!(read(&plain).unwrap().dims(), [2, 3]);
        assert_eq!(read(&file(&[], &[7])).unwrap().elements(), [7]);
        // Every cut of either is an error.
        for whole in [&plain, &compressed] {
            for end in 0..whole.len() {
                assert!(read(&whole[..end]).is_err(), "cut at {end}");
            }
        }
    }

    #[test]
    fn files_changed_at_any_byte_keep_every_promise() {
        let plain = file(&[2, 3], &[1, 2, 3, 4, 5, 6]);
        let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
        encoder.write_all(&plain).unwrap();
        for whole in [plain, encoder.finish().unwrap()] {
            for at in 0..whole.len() {
                crate::fuzz::idx(&whole[..at]);
                for bit in 0..8 {
                    let mut changed = whole.clone();
                    changed[at] ^= 1 << bit;
                    crate::fuzz::idx(&changed);
                }
            }
        }
    }

    #[test]
    fn what_a_header_claims_is_not_believed() {
        let path = || Path::new("file").to_owned();
        assert_eq!(
            read(&file(&[1 << 31, 1 << 31, 1 << 31], &[])),
            Err(DataError::TooLong { path: path(), limit: 1000 })
        );
        let truncated = read(&file(&[1000], &[1, 2])).unwrap_err();
        assert_eq!(truncated, DataError::Truncated { path: path() });
        assert_eq!(truncated.to_string(), "file: the data ends too early: the file is truncated");
        assert!(matches!(read(&file(&[1], &[1, 2])), Err(DataError::NotIdx { .. })));
        assert!(matches!(read(&[0, 0, 13, 1, 0, 0, 0, 0]), Err(DataError::NotIdx { .. })));
        assert!(matches!(read(b"P5 28 28"), Err(DataError::NotIdx { .. })));
        let mut billion = file(&[1 << 30], &[0; 10]);
        assert!(matches!(
            IdxArray::read_from(&billion[..], "file", u64::MAX),
            Err(DataError::Truncated { .. })
        ));
        billion[3] = 255;
        assert!(read(&billion).is_err());
    }

    #[test]
    fn images_and_labels_belong_together() {
        let folder = tempfile::tempdir().unwrap();
        let [images, labels] = ["images", "labels"].map(|name| folder.path().join(name));
        std::fs::write(&images, file(&[2, 1, 2], &[0, 255, 7, 8])).unwrap();
        std::fs::write(&labels, file(&[2], &[3, 9])).unwrap();
        let data = read_idx(&images, &labels, 1000).unwrap();
        assert_eq!((data.rows(), data.width(), data.labels()), (2, 2, &[3, 9][..]));
        assert_eq!(data.features(), [0.0, 255.0, 7.0, 8.0]);
        std::fs::write(&labels, file(&[3], &[3, 9, 1])).unwrap();
        let message = read_idx(&images, &labels, 1000).unwrap_err().to_string();
        assert!(message.contains("labels of shape [3] for 2 images"), "{message}");
        std::fs::write(&images, file(&[3, 0], &[])).unwrap();
        assert!(matches!(read_idx(&images, &labels, 1000), Err(DataError::Empty { .. })));
    }
}

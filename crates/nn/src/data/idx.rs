//! IDX files: the format of MNIST (LeCun, Cortes and Burges).
//!
//! Format: two zero bytes, a byte for the element type, a byte for the number of axes, each size as a big-endian 32-bit
//! integer, then the elements, big-endian in row-major order.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use highwater_files::FileKind;
use highwater_tensor::{DType, MAX_RANK, Shape, error::DataError};

use super::answers::Answers;
use super::array_dataset::ArrayDataset;
use crate::file_kind;
use crate::io::stored::{Kind, Place, Stored};
use crate::io::{Array, FileError};
use highwater_files::gzip::{self, Gzip, RatioExceeded};

/// Element types by their code.
const KINDS: [(u8, Kind); 6] = [
    (0x08, Kind::Same(DType::U8)),
    (0x09, Kind::I8),
    (0x0b, Kind::I16),
    (0x0c, Kind::Same(DType::I32)),
    (0x0d, Kind::Same(DType::F32)),
    (0x0e, Kind::Same(DType::F64)),
];

/// Options and limits of the IDX reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdxOptions {
    /// The column of the labels, from 0, for files with several: QMNIST has the class in column 0.
    pub label_column: usize,
    /// Maximum number of elements of a file.
    pub max_elements: u64,
    /// Maximum number of decompressed bytes per byte of a compressed file. 64 MiB are always allowed.
    pub max_ratio: u64,
}

impl Default for IdxOptions {
    /// Labels in column 0; at most 2³⁰ elements, and a ratio of 256.
    fn default() -> Self {
        Self { label_column: 0, max_elements: 1 << 30, max_ratio: gzip::RATIO }
    }
}

/// The elements of an IDX file.
///
/// ```
/// use highwater::data::{IdxArray, IdxOptions};
/// // A type of bytes, two axes, of 2 and 3 elements.
/// let file = [0, 0, 8, 2, 0, 0, 0, 2, 0, 0, 0, 3, 1, 2, 3, 4, 5, 6];
/// let array = IdxArray::read_from(&file[..], "array", &IdxOptions::default())?;
/// assert_eq!((array.dims(), array.array().bytes()), (&[2, 3][..], &[1, 2, 3, 4, 5, 6][..]));
/// # Ok::<(), highwater::data::DataError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdxArray {
    array: Array,
}

impl IdxArray {
    /// Reads a plain or gzip-compressed IDX file; recognizes compression by the first bytes. Signed integers of 8 and
    /// 16 bits become `i32`.
    ///
    /// # Errors
    /// [`DataError::Io`], [`DataError::NotIdx`] for another format or more axes than tensors have, [`DataError::TooManyElements`],
    /// [`DataError::TooDense`], [`DataError::Truncated`], [`DataError::Damaged`].
    pub fn read(path: impl AsRef<Path>, options: &IdxOptions) -> Result<Self, DataError> {
        let path = path.as_ref();
        let file = File::open(path).map_err(|error| failed(&error, path))?;
        Self::read_from(io::BufReader::new(file), path, options)
    }

    /// Reads IDX data from any reader. Errors show `name` as the file.
    ///
    /// # Errors
    /// See [`read`](Self::read).
    pub fn read_from(
        mut source: impl Read,
        name: impl AsRef<Path>,
        options: &IdxOptions,
    ) -> Result<Self, DataError> {
        read_from(&mut source, name.as_ref(), options).map(|array| Self { array })
    }

    /// Returns the sizes of the axes.
    #[must_use]
    pub fn dims(&self) -> &[usize] {
        self.array.shape().dims()
    }

    /// Returns the elements in row-major order.
    #[must_use]
    pub const fn array(&self) -> &Array {
        &self.array
    }
}

/// Not generic, as [`parse`], so that it is compiled once.
fn read_from(source: &mut dyn Read, path: &Path, options: &IdxOptions) -> Result<Array, DataError> {
    let mut magic = [0; 2];
    fill(source, &mut magic, path)?;
    let mut whole = io::Cursor::new(magic).chain(source);
    if magic == gzip::MAGIC {
        parse(&mut Gzip::new(whole, options.max_ratio), path, options)
    } else {
        parse(&mut whole, path, options)
    }
}

fn parse(mut source: &mut dyn Read, path: &Path, options: &IdxOptions) -> Result<Array, DataError> {
    let not_idx = |message: String| DataError::NotIdx { path: path.to_owned(), message };
    let mut head = [0; 4];
    fill(&mut source, &mut head, path)?;
    let [0, 0, element, axes] = head else {
        let mut start = head.to_vec();
        source
            .take(FileKind::START_BYTES as u64)
            .read_to_end(&mut start)
            .map_err(|error| failed(&error, path))?;
        let problem = file_kind::mistaken_or_text(&start, "an IDX file");
        return Err(not_idx(problem.unwrap_or_else(|| format!("it begins with {head:?}"))));
    };
    let Some(&(_, kind)) = KINDS.iter().find(|(code, _)| *code == element) else {
        return Err(not_idx(format!("its elements are of type {element}, which the format does not have")));
    };
    let mut dims = [0; MAX_RANK];
    let Some(dims) = dims.get_mut(..usize::from(axes)) else {
        return Err(not_idx(format!("it has {axes} axes, and tensors have at most {MAX_RANK}")));
    };
    let mut count: u64 = 1;
    for dim in &mut *dims {
        let mut size = [0; 4];
        fill(&mut source, &mut size, path)?;
        let size = u32::from_be_bytes(size);
        count = count.saturating_mul(u64::from(size));
        *dim = size as usize;
    }
    if count > options.max_elements {
        return Err(DataError::TooManyElements { path: path.to_owned(), limit: options.max_elements });
    }
    let shape = Shape::new(dims).map_err(|error| not_idx(error.to_string()))?;
    let stored = Stored { kind, high_byte_first: true, fortran: false };
    let place = Place { path, offset: 4 * (1 + u64::from(axes)), name: "the file" };
    let mut failure = None;
    let array = stored.read(&mut ErrorCapture { source: &mut source, failure: &mut failure }, shape, place);
    let array = array.map_err(|error| match failure {
        Some(error) => failed(&error, path),
        None => match error {
            FileError::Truncated { .. } => DataError::Truncated { path: path.to_owned() },
            error => not_idx(error.to_string()),
        },
    })?;
    let mut more = [0];
    if source.read(&mut more).map_err(|error| failed(&error, path))? > 0 {
        return Err(not_idx(format!("more than the {count} elements that it has room for")));
    }
    Ok(array)
}

/// A source that keeps its error. Readers of elements keep only the kind of an error.
struct ErrorCapture<'a, R> {
    source: &'a mut R,
    failure: &'a mut Option<io::Error>,
}

impl<R: Read> Read for ErrorCapture<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.source.read(buffer).map_err(|error| {
            let kind = error.kind();
            *self.failure = Some(error);
            kind.into()
        })
    }
}

/// Reads until `bytes` is full or the source ends.
fn fill(source: &mut dyn Read, bytes: &mut [u8], path: &Path) -> Result<(), DataError> {
    source.read_exact(bytes).map_err(|error| failed(&error, path))
}

fn failed(error: &io::Error, path: &Path) -> DataError {
    let path = path.to_owned();
    if let Some(RatioExceeded { ratio }) = RatioExceeded::of(error) {
        return DataError::TooDense { path, ratio };
    }
    match error.kind() {
        io::ErrorKind::UnexpectedEof => DataError::Truncated { path },
        io::ErrorKind::InvalidData | io::ErrorKind::InvalidInput => {
            DataError::Damaged { path, message: error.to_string() }
        }
        kind => DataError::Io { path, kind, message: error.to_string() },
    }
}

/// Reads images and labels from two IDX files, for example MNIST. Batches of images `[n, h, w]` have the shape
/// `[n, 1, h, w]`; other axes stay as in the file.
///
/// There may be several integer labels per image, of which [`label_column`](IdxOptions::label_column) selects one:
/// QMNIST has eight.
///
/// # Errors
/// See [`IdxArray::read`]; [`DataError::NotIdx`] also for images of fewer than two axes, labels of more than two axes
/// or with fractions, and different numbers of labels and images; [`DataError::NoColumn`] if the label column does not
/// exist.
pub fn read_idx(
    images: impl AsRef<Path>,
    labels: impl AsRef<Path>,
    options: &IdxOptions,
) -> Result<ArrayDataset, DataError> {
    let (images_path, labels_path) = (images.as_ref(), labels.as_ref());
    let (rows, shape, features) = {
        let images = IdxArray::read(images_path, options)?.array;
        let &[rows, ref pixels @ ..] = images.shape().dims() else {
            let message = "no images: it has no axes".to_owned();
            return Err(DataError::NotIdx { path: images_path.to_owned(), message });
        };
        // The product of all sizes is the number of elements, unless it is 0.
        let is_empty = images.shape().elements() == 0;
        (rows, image_shape(pixels, is_empty), numbers(&images, images_path, |value| value as f32)?)
    };
    let labels = {
        let labels = IdxArray::read(labels_path, options)?.array;
        label_column(&labels, rows, labels_path, options.label_column)?
    };
    let shape = shape.ok_or_else(|| DataError::Empty { path: images_path.to_owned() })?;
    Ok(ArrayDataset::from_rows(features, Answers::Labels(labels), rows, shape))
}

/// Returns the shape of an image: gray images get an axis for their channel.
fn image_shape(pixels: &[usize], is_empty: bool) -> Option<Shape> {
    if is_empty {
        return None;
    }
    match *pixels {
        // A pixel for each image.
        [] => Shape::new(&[1]).ok(),
        [height, width] => Shape::new(&[1, height, width]).ok(),
        ref other => Shape::new(other).ok(),
    }
}

/// Returns the labels of `rows` images.
fn label_column(labels: &Array, rows: usize, path: &Path, column: usize) -> Result<Vec<i64>, DataError> {
    let columns = match *labels.shape().dims() {
        [count] if count == rows => 1,
        [count, columns] if count == rows => columns,
        ref dims => {
            let message = format!("labels of shape {dims:?} for {rows} images");
            return Err(DataError::NotIdx { path: path.to_owned(), message });
        }
    };
    if column >= columns {
        let column = column.saturating_add(1);
        return Err(DataError::NoColumn { path: path.to_owned(), what: "the label", column, columns });
    }
    let size = labels.dtype().size();
    let picked = labels.bytes().chunks_exact(size).skip(column).step_by(columns);
    let picked = picked.map(|bytes| number(labels.dtype(), bytes));
    let mut classes = Vec::with_capacity(rows);
    for value in picked {
        // A 64-bit float represents all integers of these types.
        let value = value.filter(|value| value.fract() == 0.0 && value.abs() <= 2_f64.powi(53));
        let Some(value) = value else {
            let message = format!("label {} is not a whole number", classes.len());
            return Err(DataError::NotIdx { path: path.to_owned(), message });
        };
        classes.push(value as i64);
    }
    Ok(classes)
}

/// Converts all elements.
fn numbers<T>(array: &Array, path: &Path, convert: impl Fn(f64) -> T) -> Result<Vec<T>, DataError> {
    let mut numbers = Vec::new();
    let reserved = numbers.try_reserve_exact(array.shape().elements());
    reserved.map_err(|_| failed(&io::ErrorKind::OutOfMemory.into(), path))?;
    let elements = array.bytes().chunks_exact(array.dtype().size());
    numbers.extend(elements.map(|bytes| convert(number(array.dtype(), bytes).unwrap_or(f64::NAN))));
    Ok(numbers)
}

/// Converts an element of one of the format's types.
fn number(dtype: DType, bytes: &[u8]) -> Option<f64> {
    Some(match dtype {
        DType::U8 => f64::from(*bytes.first()?),
        DType::I32 => f64::from(i32::from_le_bytes(bytes.try_into().ok()?)),
        DType::F32 => f64::from(f32::from_le_bytes(bytes.try_into().ok()?)),
        DType::F64 => f64::from_le_bytes(bytes.try_into().ok()?),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use flate2::Compression;
    use flate2::write::GzEncoder;

    use super::*;

    fn file(dims: &[u32], elements: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0, 0, 8, dims.len() as u8];
        dims.iter().for_each(|size| bytes.extend(size.to_be_bytes()));
        bytes.extend(elements);
        bytes
    }

    fn read(bytes: &[u8]) -> Result<IdxArray, DataError> {
        IdxArray::read_from(bytes, "file", &IdxOptions { max_elements: 1000, ..IdxOptions::default() })
    }

    #[test]
    fn plain_and_compressed_files_hold_the_same() {
        let plain = file(&[2, 3], &[1, 2, 3, 4, 5, 6]);
        let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
        encoder.write_all(&plain).unwrap();
        let compressed = encoder.finish().unwrap();
        assert_eq!(read(&plain), read(&compressed));
        assert_eq!(read(&plain).unwrap().dims(), [2, 3]);
        assert_eq!(read(&file(&[], &[7])).unwrap().array().bytes(), [7]);
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
            Err(DataError::TooManyElements { path: path(), limit: 1000 })
        );
        let truncated = read(&file(&[1000], &[1, 2])).unwrap_err();
        assert_eq!(truncated, DataError::Truncated { path: path() });
        assert_eq!(truncated.to_string(), "file: the data ends too early: the file is truncated");
        assert!(matches!(read(&file(&[1], &[1, 2])), Err(DataError::NotIdx { .. })));
        assert!(matches!(read(&[0, 0, 10, 1, 0, 0, 0, 0]), Err(DataError::NotIdx { .. })));
        assert!(matches!(read(b"P5 28 28"), Err(DataError::NotIdx { .. })));
        let mut billion = file(&[1 << 30], &[0; 10]);
        assert!(matches!(
            IdxArray::read_from(
                &billion[..],
                "file",
                &IdxOptions { max_elements: u64::MAX, ..IdxOptions::default() }
            ),
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
        let data = read_idx(&images, &labels, &IdxOptions::default()).unwrap();
        assert_eq!((data.rows(), data.width(), data.labels()), (2, 2, &[3, 9][..]));
        assert_eq!((data.features(), data.shape().dims()), (&[0.0, 255.0, 7.0, 8.0][..], &[1, 1, 2][..]));
        std::fs::write(&labels, file(&[3], &[3, 9, 1])).unwrap();
        let message = read_idx(&images, &labels, &IdxOptions::default()).unwrap_err().to_string();
        assert!(message.contains("labels of shape [3] for 2 images"), "{message}");
        std::fs::write(&images, file(&[3, 0], &[])).unwrap();
        assert!(matches!(read_idx(&images, &labels, &IdxOptions::default()), Err(DataError::Empty { .. })));
    }

    #[test]
    fn images_have_an_axis_for_channels() {
        let shape = |pixels: &[usize]| image_shape(pixels, false).map(|shape| shape.dims().to_vec());
        assert_eq!(shape(&[28, 20]), Some(vec![1, 28, 20]));
        assert_eq!(shape(&[3, 28, 20]), Some(vec![3, 28, 20]));
        assert_eq!(shape(&[9]), Some(vec![9]));
        assert_eq!(shape(&[]), Some(vec![1]));
        assert_eq!(image_shape(&[28, 0], true), None);
    }

    #[test]
    fn all_element_types_are_read() {
        let file = |code: u8, elements: &[u8]| {
            let count = elements.len() / [1, 1, 0, 2, 4, 4, 8][usize::from(code) - 8];
            let mut bytes = vec![0, 0, code, 1, 0, 0, 0, count as u8];
            bytes.extend(elements);
            read(&bytes).unwrap().array
        };
        assert_eq!(file(8, &[0, 255]), Array::from_slice(&[0u8, 255], [2]).unwrap());
        assert_eq!(file(9, &[0x80, 127]), Array::from_slice(&[-128, 127], [2]).unwrap());
        assert_eq!(file(11, &[0x80, 0, 1, 2]), Array::from_slice(&[-32768, 258], [2]).unwrap());
        assert_eq!(file(12, &[255, 255, 255, 254]), Array::from_slice(&[-2], [1]).unwrap());
        assert_eq!(file(13, &1.5f32.to_be_bytes()), Array::from_slice(&[1.5f32], [1]).unwrap());
        assert_eq!(file(14, &2.5f64.to_be_bytes()), Array::from_slice(&[2.5f64], [1]).unwrap());
    }

    #[test]
    fn labels_are_whole_numbers_of_any_type() {
        let label = |values: &[f32]| {
            let array = Array::from_slice(values, [values.len()]).unwrap();
            label_column(&array, values.len(), Path::new("labels"), 0)
        };
        assert_eq!(label(&[3.0, -1.0]).unwrap(), [3, -1]);
        let message = label(&[3.0, 0.5]).unwrap_err().to_string();
        assert!(message.ends_with("label 1 is not a whole number"), "{message}");
        assert!(label(&[f32::NAN]).is_err());
    }

    #[test]
    fn the_ratio_of_a_compressed_file_is_limited() {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(&file(&[1 << 27], &[])).unwrap();
        encoder.write_all(&vec![0; 1 << 27]).unwrap();
        let zeros = encoder.finish().unwrap();
        let read = |ratio| {
            IdxArray::read_from(&zeros[..], "file", &IdxOptions { max_ratio: ratio, ..IdxOptions::default() })
        };
        let expected = Err(DataError::TooDense { path: "file".into(), ratio: 100 });
        assert_eq!(read(100), expected);
        assert_eq!(read(2000).unwrap().dims(), [1 << 27]);
    }
}

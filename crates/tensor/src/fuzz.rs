//! What must hold for any file: the bodies of the fuzz targets, which the tests run as well.
//!
//! Each takes bytes as they come and panics if a reader breaks a promise. A file that is refused is as good as one that is read.

use std::path::Path;

use crate::data::{CsvOptions, IdxArray, LabelColumn, Text, read_csv_from};
use crate::io::{
    Array, Checkpoint, NpyLimits, SafetensorsLimits, read_npy_from, read_npz_bytes, read_safetensors_from,
    write_npy_to, write_npz_to, write_safetensors_to,
};

/// A safetensors file, and a checkpoint in it.
///
/// # Panics
/// If a promise is broken.
pub fn safetensors(data: &[u8]) {
    // Small limits, so that they are reached.
    let limits = SafetensorsLimits { header_bytes: 4096, tensors: 20, data_bytes: 4096 };
    let Ok(contents) = read_safetensors_from(data, "fuzz", &limits) else { return };
    assert!(contents.arrays.len() <= limits.tensors);
    let bytes: usize = contents.arrays.values().map(|array| array.bytes().len()).sum();
    assert!(bytes <= data.len());
    for array in contents.arrays.values() {
        assert_eq!(array.bytes().len(), array.shape().elements() * array.dtype().size());
    }
    let mut written = Vec::new();
    write_safetensors_to(&mut written, &contents).expect("a vector takes everything");
    let again = read_safetensors_from(&written[..], "fuzz", &SafetensorsLimits::default());
    assert_eq!(again.expect("what is written can be read"), contents);
    let _ = Checkpoint::from_contents(contents, Path::new("fuzz"));
}

/// The limits of files of NumPy, small, so that they are reached.
const NPY: NpyLimits = NpyLimits { header_bytes: 4096, data_bytes: 4096, arrays: 20 };

/// A `.npy` file.
///
/// # Panics
/// If a promise is broken.
pub fn npy(data: &[u8]) {
    let Ok(array) = read_npy_from(data, "fuzz", &NPY) else { return };
    assert!(array.bytes().len() <= data.len());
    assert_eq!(array.bytes().len(), array.shape().elements() * array.dtype().size());
    let mut written = Vec::new();
    write_npy_to(&mut written, &array).expect("a vector takes everything");
    let again: Array = read_npy_from(&written[..], "fuzz", &NPY).expect("what is written can be read");
    assert_eq!(again, array);
}

/// An `.npz` file.
///
/// # Panics
/// If a promise is broken.
pub fn npz(data: &[u8]) {
    let Ok(arrays) = read_npz_bytes(data, &NPY) else { return };
    assert!(arrays.len() <= NPY.arrays);
    let bytes: usize = arrays.values().map(|array| array.bytes().len()).sum();
    assert!(bytes as u64 <= NPY.data_bytes);
    let mut written = Vec::new();
    write_npz_to(&mut written, &arrays).expect("a vector takes everything");
    let again = read_npz_bytes(&written, &NpyLimits::default()).expect("what is written can be read");
    assert_eq!(again, arrays);
}

/// An IDX file, plain or compressed.
///
/// # Panics
/// If a promise is broken.
pub fn idx(data: &[u8]) {
    const LIMIT: u64 = 4096;
    let Ok(array) = IdxArray::read_from(data, "fuzz", LIMIT) else { return };
    assert!(array.elements().len() as u64 <= LIMIT);
    assert_eq!(array.elements().len(), array.dims().iter().product::<usize>());
}

/// A CSV file, with labels and without.
///
/// # Panics
/// If a promise is broken.
pub fn csv(data: &[u8]) {
    for label in [LabelColumn::Last, LabelColumn::None] {
        let options = CsvOptions { label, ..CsvOptions::default() };
        let Ok(rows) = read_csv_from(data, "fuzz", &options) else { continue };
        assert!(rows.rows() > 0 && rows.features().len() == rows.rows() * rows.width());
        assert_eq!(rows.labels().len(), if label == LabelColumn::None { 0 } else { rows.rows() });
    }
}

/// A text.
///
/// # Panics
/// If a promise is broken.
pub fn text(data: &[u8]) {
    const LIMIT: u64 = 4096;
    let bytes = Text::of_bytes(data);
    assert_eq!((bytes.len(), bytes.classes()), (data.len(), 256));
    let Ok(text) = Text::read_from(data, "fuzz", LIMIT) else { return };
    let whole = std::str::from_utf8(data).expect("what is read as text is one");
    assert!(data.len() as u64 <= LIMIT && !text.is_empty() && text.len() <= data.len());
    let tokens = text.encode(whole).expect("a text has its own characters");
    assert_eq!(text.decode(&tokens), whole);
    assert!(tokens.iter().all(|&token| (token as usize) < text.classes()));
}

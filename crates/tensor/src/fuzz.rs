//! What must hold for any file: the bodies of the fuzz targets, which the tests run as well.
//!
//! Each takes bytes as they come and panics if a reader breaks a promise. A file that is refused is as good as one that is read.

use std::path::Path;

use crate::io::{Checkpoint, SafetensorsLimits, read_safetensors_from, write_safetensors_to};

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

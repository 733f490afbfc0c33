//! Checkpoints of several files with an index.

use std::path::{Path, PathBuf};

use highwater_nn::io::{
    Array, FileError, Safetensors, SafetensorsLimits, ShardedSafetensors, Weights, open_weights,
    write_safetensors_to,
};
use highwater_tensor::Device;

fn shard(folder: &Path, file: &str, names: &[&str]) {
    let mut contents = Safetensors::default();
    for (value, name) in (0_u8..).zip(names) {
        contents.arrays.insert((*name).to_owned(), Array::from_slice(&[f32::from(value)], [1]).unwrap());
    }
    write_safetensors_to(std::fs::File::create(folder.join(file)).unwrap(), &contents).unwrap();
}

/// Writes two files and an index.
fn checkpoint(folder: &Path, map: &str) -> PathBuf {
    shard(folder, "1.safetensors", &["a", "b"]);
    shard(folder, "2.safetensors", &["c"]);
    let index = folder.join("model.safetensors.index.json");
    std::fs::write(&index, format!(r#"{{"metadata": {{"total_size": 12}}, "weight_map": {map}}}"#)).unwrap();
    index
}

const COMPLETE: &str = r#"{"a": "1.safetensors", "c": "2.safetensors", "b": "1.safetensors"}"#;

fn open(index: &Path) -> Result<ShardedSafetensors, FileError> {
    ShardedSafetensors::open(index, &SafetensorsLimits::default())
}

#[test]
fn all_tensors_are_loaded_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let (weights, device) = (open(&checkpoint(folder.path(), COMPLETE)).unwrap(), Device::cpu().unwrap());
    assert_eq!((weights.names(), weights.shards().len()), (vec!["a", "b", "c"], 2));
    assert_eq!(weights.load("b", &device).unwrap().item::<f32>().unwrap(), 1.0);
    assert_eq!(weights.info("c").map(|info| info.format), Some("F32"));
    let error = weights.load("d", &device).unwrap_err().to_string();
    assert!(error.contains("there is no tensor \"d\""), "{error}");
}

#[test]
fn differences_between_index_and_files_are_listed() {
    let folder = tempfile::tempdir().unwrap();
    let refused = |map: &str| open(&checkpoint(folder.path(), map)).unwrap_err();
    let error = refused(r#"{"a": "1.safetensors", "c": "3.safetensors", "d": "4.safetensors"}"#);
    let FileError::Incomplete { missing_files, .. } = &error else { panic!("{error}") };
    assert_eq!(missing_files, &["3.safetensors", "4.safetensors"]);
    let error = refused(r#"{"a": "2.safetensors", "b": "1.safetensors", "d": "1.safetensors"}"#).to_string();
    let expected = "missing tensors: a in 2.safetensors, d in 1.safetensors; tensors that the index does not list there: \
                    c in 2.safetensors, a in 1.safetensors";
    assert!(error.ends_with(expected), "{error}");
}

#[test]
fn hostile_indexes_are_errors() {
    let folder = tempfile::tempdir().unwrap();
    let refused = |map: &str| open(&checkpoint(folder.path(), map)).unwrap_err().to_string();
    for outside in ["../1.safetensors", "/1.safetensors", "", "a/../1.safetensors"] {
        let error = refused(&format!(r#"{{"a": "{outside}"}}"#));
        assert!(error.contains("which is not a path within the folder of the index"), "{error}");
    }
    let error = refused(r#"{"a": "1.safetensors", "a": "1.safetensors"}"#);
    assert!(error.ends_with("the name \"a\" is there twice"), "{error}");
    assert!(refused("{}").contains("has no \"weight_map\" with tensors"));
    assert!(refused(r#"{"a": 1}"#).contains("the index is invalid"));
    assert!(refused("[]").contains("an object with the file of each tensor"));

    let index = checkpoint(folder.path(), COMPLETE);
    let limited = |limits: SafetensorsLimits| ShardedSafetensors::open(&index, &limits).unwrap_err();
    let limits = SafetensorsLimits::default();
    let error = limited(SafetensorsLimits { header_bytes: 50, ..limits });
    assert!(matches!(error, FileError::TooLarge { what: "bytes of index", .. }), "{error}");
    let error = limited(SafetensorsLimits { tensors: 2, ..limits });
    assert!(matches!(error, FileError::TooLarge { what: "tensors", .. }), "{error}");
}

#[test]
fn checkpoints_are_opened_by_their_contents() {
    let folder = tempfile::tempdir().unwrap();
    let index = checkpoint(folder.path(), COMPLETE);
    for path in [folder.path(), &index] {
        assert_eq!(open_weights(path).unwrap().names(), ["a", "b", "c"]);
    }
    assert_eq!(open_weights(folder.path().join("2.safetensors")).unwrap().names(), ["c"]);
    let gguf = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/reference/blocks.gguf");
    assert!(open_weights(gguf).unwrap().names().contains(&"Q6_K"));
    std::fs::remove_file(index).unwrap();
    let error = open_weights(folder.path()).err().unwrap().to_string();
    assert!(error.contains("model.safetensors: "), "{error}");
}

//! Files that programs other than this one write, and those that are not what their name says (`tests/cases`).

use std::path::{Path, PathBuf};

use highwater_nn::checkpoint::Checkpoint;
use highwater_nn::io::{
    Array, Arrays, FileError, Loaded, NpyLimits, SafetensorsLimits, read_npy, read_npz, read_safetensors,
    read_state_dict,
};
use highwater_nn::modules::Linear;
use highwater_tensor::{Device, Rng, Shape};

fn case(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cases").join(name)
}

fn state_dict(name: &str) -> Result<Loaded, FileError> {
    read_state_dict(case(name), &SafetensorsLimits::default())
}

fn array(values: &[f32], dims: &[usize]) -> Array {
    Array::from_slice(values, Shape::new(dims).unwrap()).unwrap()
}

/// `w` and `b` of the state dicts, with a prefix.
fn tensors(prefix: &str) -> Arrays {
    Arrays::from([
        (format!("{prefix}w"), array(&[0.0, 1.0, 2.0, 3.0], &[2, 2])),
        (format!("{prefix}b"), array(&[1.0, 1.0], &[2])),
    ])
}

/// The names and classes of what was skipped.
fn skipped(loaded: &Loaded) -> Vec<(&str, &str)> {
    loaded.skipped.iter().map(|skipped| (&*skipped.name, &*skipped.class)).collect()
}

#[test]
fn legacy_state_dicts_are_read() {
    let loaded = state_dict("legacy.pt").unwrap();
    assert_eq!((loaded.arrays, loaded.skipped), (tensors(""), vec![]));
    let checkpoint = Checkpoint::load(case("legacy.pt")).unwrap();
    assert_eq!(checkpoint.parameters(), &tensors(""));
}

#[test]
fn zips_without_checksums_are_read() {
    assert_eq!(state_dict("nocrc.pt").unwrap().arrays, tensors(""));
}

#[test]
fn objects_beside_a_state_dict_are_listed() {
    let loaded = state_dict("namespace.pt").unwrap();
    assert_eq!(loaded.arrays, tensors("model."));
    assert_eq!(skipped(&loaded), [("args", "argparse.Namespace"), ("epoch", "int")]);
    let loaded = state_dict("npscalar.pt").unwrap();
    assert_eq!(loaded.arrays, tensors("model."));
    assert_eq!(skipped(&loaded), [("best", "numpy._core.multiarray.scalar")]);
    let checkpoint = Checkpoint::load(case("namespace.pt")).unwrap();
    assert_eq!(checkpoint.skipped()[0].to_string(), "args (argparse.Namespace): only tensors are read");
}

#[test]
fn unsigned_tensors_are_read_where_their_values_fit() {
    let loaded = state_dict("unsigned.pt").unwrap();
    let expected = Arrays::from([
        ("w".to_owned(), array(&[1.0, 1.0], &[2])),
        ("u16".to_owned(), Array::from_slice(&[1, 1], [2]).unwrap()),
    ]);
    assert_eq!(loaded.arrays, expected);
    assert_eq!(skipped(&loaded), [("u64", "u64")]);
    assert_eq!(loaded.skipped[0].reason, "i64 does not hold the element 9223372036854775808 at [0]");
}

#[test]
fn a_missing_parameter_that_was_skipped_is_explained() {
    let checkpoint = Checkpoint::load(case("unsigned.pt")).unwrap();
    let layer = Linear::new(&Device::cpu().unwrap(), 2, 2, &Rng::new(0)).unwrap();
    let message = checkpoint.restore(&layer).unwrap_err().to_string();
    assert!(message.ends_with("; skipped in the file: u64 (u64)"), "{message}");
}

#[test]
fn a_torchscript_archive_is_named_with_advice() {
    let expected = "torchscript.pt: at offset 0: this is a TorchScript archive, which holds a program: in Python, save its state \
                    dict with torch.save(torch.jit.load(path).state_dict(), path)";
    let error = state_dict("torchscript.pt").unwrap_err().to_string();
    assert!(error.ends_with(expected), "{error}");
}

#[test]
fn a_tensor_larger_than_its_file_allows_is_an_error() {
    let error = state_dict("stride0.pt").unwrap_err();
    let expected = FileError::TooLarge {
        path: case("stride0.pt"),
        offset: 0,
        what: "bytes of tensors",
        found: 60 << 30,
        limit: 16 << 20,
    };
    assert_eq!(error, expected);
}

#[test]
fn a_git_lfs_pointer_is_named_by_every_reader() {
    let path = case("lfs.pt");
    let limits = (SafetensorsLimits::default(), NpyLimits::default());
    let errors = [
        read_state_dict(&path, &limits.0).unwrap_err(),
        read_safetensors(&path, &limits.0).unwrap_err(),
        Checkpoint::load_with(&path, &limits.0).unwrap_err(),
        read_npz(&path, &limits.1).unwrap_err(),
        read_npy(&path, &limits.1).unwrap_err(),
    ];
    for error in errors {
        let error = error.to_string();
        assert!(error.contains("this is a Git LFS pointer to a file of 12345 bytes"), "{error}");
        assert!(error.ends_with("run `git lfs pull` to download the file itself"), "{error}");
    }
}

#[test]
fn a_table_that_is_loaded_as_a_checkpoint_is_named() {
    let error = Checkpoint::load(case("floatlabel.csv")).unwrap_err();
    let expected = "this is a text file that begins with \"1.0,2.0,0.0\", not a safetensors file: `read_csv` reads tables of numbers";
    assert!(error.to_string().ends_with(expected), "{error}");
}

#[test]
fn archives_of_another_program_are_named() {
    let error = read_npz(case("legacy.pt"), &NpyLimits::default()).unwrap_err().to_string();
    assert!(error.contains("this is a file of torch.save, not an .npz file"), "{error}");
    let error = read_npz(case("namespace.pt"), &NpyLimits::default()).unwrap_err().to_string();
    assert!(error.ends_with("this is a file of torch.save: `read_state_dict` reads it"), "{error}");
    for error in [state_dict("objmix.npz").unwrap_err(), Checkpoint::load(case("objmix.npz")).unwrap_err()] {
        assert!(error.to_string().ends_with("this is a NumPy archive: `read_npz` reads it"), "{error}");
    }
}

#[test]
fn element_types_and_shapes_are_read_as_numpy_reads_them() {
    let read = |name: &str| read_npy(case(name), &NpyLimits::default()).unwrap();
    assert_eq!(read("descrpipe.npy"), array(&[0.0; 4], &[4]));
    assert_eq!(read("py2long.npy"), array(&[0.0, 1.0, 2.0, 3.0], &[4]));
}

#[test]
fn texts_and_objects_in_an_archive_are_listed() {
    let loaded = read_npz(case("objmix.npz"), &NpyLimits::default()).unwrap();
    let count: Vec<f32> = (0..24_u8).map(f32::from).collect();
    assert_eq!(loaded.arrays, Arrays::from([("w".to_owned(), array(&count, &[2, 3, 4]))]));
    assert_eq!(skipped(&loaded), [("names", "<U1"), ("o", "|O")]);
}

#[test]
fn metadata_may_be_null() {
    let read = read_safetensors(case("metanull.safetensors"), &SafetensorsLimits::default()).unwrap();
    assert_eq!(read.arrays, Arrays::from([("a".to_owned(), array(&[0.0, 1.0, 2.0, 3.0], &[4]))]));
    assert!(read.metadata.is_empty() && read.skipped.is_empty());
}

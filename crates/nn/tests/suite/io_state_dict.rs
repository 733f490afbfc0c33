//! State dicts that PyTorch wrote (`tests/reference/make_state_dicts.py`).

use std::path::{Path, PathBuf};

use highwater_nn::checkpoint::Checkpoint;
use highwater_nn::io::{FileError, SafetensorsLimits, read_state_dict};
use highwater_nn::modules::{BatchNorm, Linear, Module, Sequential};
use highwater_tensor::{DType, Device, Rng};

fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/reference").join(name)
}

fn refused(name: &str, limits: &SafetensorsLimits) -> FileError {
    read_state_dict(file(name), limits).unwrap_err()
}

#[test]
fn pytorch_tensors_of_all_types_and_layouts_are_read() {
    let arrays = read_state_dict(file("tensors.pt"), &SafetensorsLimits::default()).unwrap().arrays;
    let device = Device::cpu().unwrap();
    let values = |name: &str| {
        let tensor = arrays[name].to_tensor(&device).unwrap();
        (
            tensor.dtype(),
            tensor.dims().to_vec(),
            tensor.to_dtype(DType::F64).unwrap().to_vec::<f64>().unwrap(),
        )
    };
    let transposed = (0..4).flat_map(|column| (0..3).map(move |row| f64::from(4 * row + column))).collect();
    let expected = [
        ("f32", DType::F32, vec![2, 2], vec![1.5, -2.0, 0.25, 4.0]),
        ("f64", DType::F64, vec![2], vec![1.0, 1e300]),
        ("f16", DType::F16, vec![2], vec![1.0, -0.5]),
        ("bf16", DType::BF16, vec![2], vec![1.0, -0.5]),
        ("i64", DType::I64, vec![], vec![-7.0]),
        ("i32", DType::I32, vec![2], vec![1.0, -2.0]),
        ("i16", DType::I32, vec![2], vec![-32768.0, 7.0]),
        ("i8", DType::I32, vec![3, 2], vec![-3.0, 0.0, -2.0, 1.0, -1.0, 2.0]),
        ("u8", DType::U8, vec![2], vec![0.0, 255.0]),
        ("bool", DType::Bool, vec![2], vec![1.0, 0.0]),
        ("empty", DType::F32, vec![0, 3], vec![]),
        ("transposed", DType::F32, vec![4, 3], transposed),
        ("part", DType::F32, vec![2], vec![5.0, 6.0]),
        ("expanded", DType::F32, vec![2, 3], vec![1.0, 1.0, 1.0, 2.0, 2.0, 2.0]),
        ("parameter", DType::F32, vec![1], vec![3.0]),
    ];
    assert_eq!(arrays.len(), expected.len());
    for (name, dtype, dims, numbers) in expected {
        assert_eq!(values(name), (dtype, dims, numbers), "{name}");
    }
}

#[test]
fn a_renamed_and_transposed_state_dict_is_restored() {
    let (device, rng) = (Device::cpu().unwrap(), Rng::new(0));
    let net = Sequential::new()
        .with("first", Linear::new(&device, 2, 3, &rng).unwrap())
        .with("norm", BatchNorm::new(&device, 3).unwrap())
        .with("last", Linear::new(&device, 3, 1, &rng).unwrap());
    let checkpoint = Checkpoint::load(file("training.pt")).unwrap();
    assert_eq!(checkpoint.parameters().len(), 9);
    let checkpoint = checkpoint.renamed(|name| {
        let (number, rest) = name.strip_prefix("model.")?.split_once('.')?;
        let layer = ["first", "norm", "last"][number.parse::<usize>().ok()?];
        (rest != "num_batches_tracked").then(|| format!("{layer}.{rest}"))
    });
    let checkpoint = checkpoint.unwrap().transposed(|_, array| array.shape().rank() == 2).unwrap();
    checkpoint.restore(&net).unwrap();
    let parameters = net.parameters();
    let values = |path: &str| {
        let (_, parameter) = parameters.iter().find(|(name, _)| name == path).unwrap();
        parameter.tensor().to_vec::<f32>().unwrap()
    };
    // [3, 2] in PyTorch, counted in quarters.
    assert_eq!(values("first.weight"), [0.0, 0.5, 1.0, 0.25, 0.75, 1.25]);
    assert_eq!(values("first.bias"), [1.0, 1.25, 1.5]);
    assert_eq!(values("last.weight"), [4.0, 4.25, 4.5]);
}

#[test]
fn unsupported_pickle_calls_are_named() {
    let error = refused("module.pt", &SafetensorsLimits::default());
    assert!(matches!(error, FileError::Malformed { .. }), "{error}");
    let text = error.to_string();
    assert!(
        text.ends_with("an object of class torch.nn.modules.linear.Linear: save the state dict"),
        "{text}"
    );
    let error = refused("complex.pt", &SafetensorsLimits::default());
    assert!(
        matches!(&error, FileError::UnsupportedDType { name, dtype, .. } if name == "x" && dtype == "torch.ComplexFloatStorage"),
        "{error}"
    );
}

#[test]
fn limits_are_kept() {
    let limits = SafetensorsLimits::default();
    let few = refused("tensors.pt", &SafetensorsLimits { tensors: 14, ..limits });
    assert!(matches!(few, FileError::TooLarge { what: "tensors", limit: 14, .. }), "{few}");
    let bytes = refused("tensors.pt", &SafetensorsLimits { data_bytes: 100, ..limits });
    assert!(matches!(bytes, FileError::TooLarge { what: "bytes of tensors", limit: 100, .. }), "{bytes}");
    let names = refused("tensors.pt", &SafetensorsLimits { header_bytes: 100, ..limits });
    assert!(matches!(names, FileError::TooLarge { limit: 100, .. }), "{names}");
}

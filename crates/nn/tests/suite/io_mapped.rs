//! Safetensors files that are mapped: tensors refer to the file, and nothing writes it.

use std::path::{Path, PathBuf};

use bfc_core::Category;
use highwater_nn::io::{
    Array, FileError, MappedSafetensors, Safetensors, SafetensorsLimits, Weights, write_safetensors_to,
};
use highwater_nn::optim::{Optimizer, Sgd};
use highwater_tensor::{DType, Device, DeviceProfile, MappedFile, Parameter, Runtime, Tensor, dry_run};

fn cpu() -> Device {
    Runtime::builder().threads(1).build().unwrap().cpu().unwrap()
}

fn open(path: &Path) -> Result<MappedSafetensors, FileError> {
    MappedSafetensors::open(path, &SafetensorsLimits::default())
}

/// Writes a file with tensors of several types.
fn written(folder: &Path) -> PathBuf {
    let mut contents = Safetensors::default();
    let mut put = |name: &str, array: highwater_tensor::Result<Array>| {
        contents.arrays.insert(name.to_owned(), array.unwrap());
    };
    put("f32", Array::from_slice(&[1.0f32, -2.0, 3.0, 4.0], [2, 2]));
    put("i64", Array::from_slice(&[7i64, -8], [2]));
    put("bool", Array::from_slice(&[true, false], [2]));
    put("empty", Array::from_slice::<f32>(&[], [0, 3]));
    put("scalar", Array::from_slice(&[0.5f64], ()));
    let path = folder.join("model.safetensors");
    write_safetensors_to(std::fs::File::create(&path).unwrap(), &contents).unwrap();
    path
}

fn category(tensor: &Tensor) -> Option<Category> {
    tensor.view().storage().category()
}

#[test]
fn tensors_refer_to_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let (path, device) = (written(folder.path()), cpu());
    let file = open(&path).unwrap();
    assert_eq!(file.names(), ["bool", "empty", "f32", "i64", "scalar"]);
    let tensors: Vec<_> = file.names().into_iter().map(|name| file.load(name, &device).unwrap()).collect();
    assert_eq!(device.memory_stats().unwrap().num_allocs, 0);
    assert_eq!(device.external_memory().bytes_in_use, 2 + 16 + 16 + 8);
    assert_eq!(tensors[0].to_vec::<bool>().unwrap(), [true, false]);
    assert_eq!((tensors[1].dims(), tensors[1].elements()), (&[0, 3][..], 0));
    assert_eq!(tensors[2].to_vec::<f32>().unwrap(), [1.0, -2.0, 3.0, 4.0]);
    assert_eq!(tensors[3].to_vec::<i64>().unwrap(), [7, -8]);
    assert_eq!(tensors[4].item::<f64>().unwrap(), 0.5);
    assert_eq!(category(&tensors[2]), Some(Category::Mapped));
    // The tensors keep the mapping.
    drop(file);
    std::fs::remove_file(path).unwrap();
    assert_eq!(tensors[2].sum_all().unwrap().item::<f32>().unwrap(), 6.0);
    drop(tensors);
    assert_eq!(device.external_memory().bytes_in_use, 0);
}

#[test]
fn an_update_in_place_makes_a_copy() {
    let folder = tempfile::tempdir().unwrap();
    let (path, device) = (written(folder.path()), cpu());
    let before = std::fs::read(&path).unwrap();
    let file = open(&path).unwrap();
    let parameter = Parameter::new(file.load("f32", &device).unwrap()).unwrap();
    // Mapped bytes stay mapped, also as a parameter.
    assert_eq!(category(&parameter.tensor()), Some(Category::Mapped));
    let mut sgd = Sgd::new(vec![("w".to_owned(), parameter.clone())], 1.0).unwrap();
    let loss = parameter.tensor().sum_all().unwrap();
    sgd.step(loss.backward().unwrap()).unwrap();
    assert_eq!(parameter.tensor().to_vec::<f32>().unwrap(), [0.0, -3.0, 2.0, 3.0]);
    assert_eq!(category(&parameter.tensor()), Some(Category::Parameter));
    assert_eq!(device.external_memory().bytes_in_use, 0);
    assert_eq!(std::fs::read(&path).unwrap(), before);
    assert_eq!(file.load("f32", &device).unwrap().to_vec::<f32>().unwrap(), [1.0, -2.0, 3.0, 4.0]);
}

#[test]
fn a_dry_run_has_the_same_accounts() {
    let folder = tempfile::tempdir().unwrap();
    let file = open(&written(folder.path())).unwrap();
    let program = |device: &Device| {
        let x = file.load("f32", device)?;
        let y = x.matmul(&x)?;
        Ok((x, y))
    };
    let device = cpu();
    let _tensors = program(&device).unwrap();
    let run = dry_run(DeviceProfile::this_machine(), program).unwrap();
    assert_eq!(run.peak.requested, device.memory_stats().unwrap().peak_bytes_requested);
    assert_eq!(category(&run.result.0), Some(Category::Mapped));
    let mapped = run.report.categories.iter().find(|row| row.category == "mapped").unwrap();
    assert_eq!((mapped.live_bytes, device.external_memory().bytes_in_use), (16, 16));
    // A GPU copies.
    let gpu = dry_run(DeviceProfile::gpu("t4").unwrap(), |device| file.load("f32", device)).unwrap();
    assert_eq!((category(&gpu.result), gpu.peak.requested), (Some(Category::Output), 16));
}

#[test]
fn unaligned_elements_and_other_types_are_copied() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("other.safetensors");
    let header = r#"{"a":{"dtype":"I8","shape":[3],"data_offsets":[0,3]},"b":{"dtype":"F32","shape":[1],"data_offsets":[3,7]},"c":{"dtype":"F8_E4M3","shape":[2],"data_offsets":[7,9]},"d":{"dtype":"U64","shape":[1],"data_offsets":[9,17]}}"#;
    // The data begin at a multiple of eight.
    let header = format!("{header:<width$}", width = header.len().next_multiple_of(8));
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(header.as_bytes());
    bytes.extend_from_slice(&[255, 0, 1]);
    bytes.extend_from_slice(&1.5f32.to_le_bytes());
    bytes.extend_from_slice(&[0; 2]);
    bytes.extend_from_slice(&9u64.to_le_bytes());
    std::fs::write(&path, &bytes).unwrap();
    let (file, device) = (open(&path).unwrap(), cpu());
    assert_eq!(file.info("a").map(|info| (info.format, info.dtype, info.bytes)), Some(("I8", DType::I32, 3)));
    assert_eq!(file.load("a", &device).unwrap().to_vec::<i32>().unwrap(), [-1, 0, 1]);
    assert_eq!(file.load("b", &device).unwrap().to_vec::<f32>().unwrap(), [1.5]);
    assert_eq!(file.load("d", &device).unwrap().to_vec::<i64>().unwrap(), [9]);
    assert_eq!(device.external_memory().num_allocs, 0);
    assert_eq!(file.skipped()[0].name, "c");
    let error = file.load("e", &device).unwrap_err();
    assert!(matches!(error, highwater_tensor::Error::File(FileError::NoTensor { .. })), "{error}");

    *bytes.last_mut().unwrap() = 0x80;
    std::fs::write(&path, &bytes).unwrap();
    let error = open(&path).unwrap().load("d", &device).unwrap_err().to_string();
    assert!(error.contains("which is out of range for i64"), "{error}");
}

#[test]
fn damaged_files_are_errors() {
    let folder = tempfile::tempdir().unwrap();
    let path = written(folder.path());
    let whole = std::fs::read(&path).unwrap();
    for length in 0..whole.len() {
        std::fs::write(&path, &whole[..length]).unwrap();
        assert!(open(&path).is_err(), "{length}");
    }
    std::fs::write(&path, [&whole[..], &[0]].concat()).unwrap();
    assert!(open(&path).unwrap_err().to_string().ends_with("there are bytes after the last tensor"));
    let mut no_bool = whole.clone();
    *no_bool.last_mut().unwrap() = 2;
    std::fs::write(&path, no_bool).unwrap();
    let error = open(&path).unwrap().load("bool", &cpu()).unwrap_err().to_string();
    assert!(error.ends_with("a boolean of bool is neither 0 nor 1"), "{error}");
    assert!(matches!(open(folder.path()), Err(FileError::Io { .. })));
}

#[test]
fn tensors_stay_within_the_mapped_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("bytes");
    std::fs::write(&path, [0, 1, 1, 2]).unwrap();
    let (file, device) = (MappedFile::open(&path).unwrap(), cpu());
    let tensor = |offset, shape: &[usize], dtype| Tensor::from_mapped(&device, &file, offset, shape, dtype);
    assert_eq!(tensor(1, &[2], DType::Bool).unwrap().to_vec::<bool>().unwrap(), [true, true]);
    assert_eq!(tensor(4, &[0], DType::F32).unwrap().elements(), 0);
    for (offset, shape, dtype, expected) in [
        (1, &[1][..], DType::F32, "offset"),
        (5, &[0], DType::U8, "offset"),
        (u64::MAX, &[1], DType::U8, "offset"),
        (0, &[usize::MAX / 2], DType::U8, "offset"),
        (1, &[1], DType::F16, "not aligned"),
        (2, &[2], DType::Bool, "expected 0 or 1"),
    ] {
        let error = tensor(offset, shape, dtype).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
    let gpu = Device::dry_as(DeviceProfile::gpu("t4").unwrap()).unwrap();
    assert!(!gpu.supports_mapped_files());
    assert!(Tensor::from_mapped(&gpu, &file, 0, [1], DType::U8).is_err());
}

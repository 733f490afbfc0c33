//! A GGUF file that the Python package `gguf` wrote (`tests/reference/make_gguf.py`), and its values according to it.

use std::path::{Path, PathBuf};

use highwater_nn::io::{
    FileError, Gguf, GgufArray, GgufLimits, GgufValue, NpyLimits, SafetensorsLimits, Weights, read_npz,
    read_safetensors,
};
use highwater_tensor::{DType, Device, DeviceProfile, Runtime, dry_run};

fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/reference").join(name)
}

fn blocks() -> Gguf {
    Gguf::open(file("blocks.gguf"), &GgufLimits::default()).unwrap()
}

fn cpu() -> Device {
    Runtime::builder().threads(1).build().unwrap().cpu().unwrap()
}

#[test]
fn tensors_of_all_types_have_the_values_of_the_reference_to_the_bit() {
    let (gguf, device) = (blocks(), cpu());
    let expected = read_npz(file("blocks.npz"), &NpyLimits::default()).unwrap().arrays;
    assert!(expected.keys().eq(gguf.names()));
    for (name, expected) in expected {
        let (info, tensor) = (gguf.info(&name).unwrap(), gguf.load(&name, &device).unwrap());
        assert_eq!((&info.shape, info.dtype), (tensor.shape(), tensor.dtype()), "{name}");
        assert_eq!(info.shape, *expected.shape(), "{name}");
        if let Some(quantized) = name.strip_prefix('Q') {
            assert_eq!((info.format, info.dtype), (&*format!("Q{quantized}"), DType::F32));
        }
        let bits = |values: Vec<f32>| values.into_iter().map(f32::to_bits).collect::<Vec<_>>();
        let values = tensor.to_dtype(DType::F32).unwrap().to_vec().unwrap();
        assert_eq!(bits(values), bits(expected.to_vec().unwrap()), "{name}");
    }
}

#[test]
fn matrices_are_loaded_as_blocks() {
    let (gguf, device) = (blocks(), cpu());
    let mut formats = Vec::new();
    for name in gguf.names() {
        let Some(matrix) = gguf.load_quantized(name, &device).unwrap() else { continue };
        let (info, dense) = (gguf.info(name).unwrap(), gguf.load(name, &device).unwrap());
        assert_eq!((matrix.format().name(), matrix.bytes().elements() as u64), (info.format, info.bytes));
        assert_eq!(
            matrix.dequantize().unwrap().to_vec::<f32>().unwrap(),
            dense.to_vec::<f32>().unwrap(),
            "{name}"
        );
        formats.push(info.format);
    }
    assert_eq!(formats, ["Q4_0", "Q4_1", "Q8_0"]);
    assert!(gguf.load_quantized("none", &device).is_err());
}

#[test]
fn unsupported_tensors_are_listed() {
    let gguf = blocks();
    let skipped: Vec<_> = gguf.skipped().iter().map(ToString::to_string).collect();
    assert_eq!(skipped, ["Q2_K (Q2_K): tensors do not have this element type"]);
    assert_eq!(gguf.info("Q2_K"), None);
    let error = gguf.load("Q2_K", &cpu()).unwrap_err().to_string();
    assert!(error.ends_with("there is no tensor \"Q2_K\" (did you mean Q4_K?)"), "{error}");
}

#[test]
fn metadata_of_all_types_are_read() {
    let gguf = blocks();
    let integer = |key: &str| gguf.get(key).unwrap().as_i64();
    for (kind, least, most) in [
        ("uint8", 0, 255),
        ("int8", -128, 127),
        ("uint16", 0, 65_535),
        ("int16", -32_768, 32_767),
        ("uint32", 0, u32::MAX.into()),
        ("int32", i32::MIN.into(), i32::MAX.into()),
        ("int64", i64::MIN, i64::MAX),
    ] {
        let found = (integer(&format!("least.{kind}")), integer(&format!("most.{kind}")));
        assert_eq!(found, (Some(least), Some(most)), "{kind}");
    }
    assert_eq!(gguf.get("most.uint64").unwrap().as_u64(), Some(u64::MAX));
    assert_eq!(integer("most.uint64"), None);
    assert_eq!(gguf.get("value.float32"), Some(&GgufValue::F32(0.1)));
    assert_eq!(gguf.get("value.float64").unwrap().as_f64(), Some(0.1));
    assert_eq!(gguf.get("value.bool").unwrap().as_bool(), Some(true));
    assert_eq!(gguf.get("value.string").unwrap().as_str(), Some("größer"));
    let array = |key: &str| gguf.get(key).and_then(GgufValue::as_array).unwrap();
    assert_eq!(array("array.string").as_strings().unwrap(), ["a", "", "Ġthe"]);
    assert_eq!(array("array.float32").as_f32s().unwrap(), [0.5, -1.5]);
    assert_eq!(array("array.int32").as_i32s().unwrap(), [1, -2, 3]);
    assert_eq!(array("array.bool"), &GgufArray::Bool(vec![true, false]));
    let nested = [GgufArray::I32(vec![1, 2]), GgufArray::I32(vec![3])];
    assert_eq!(array("array.array"), &GgufArray::Array(nested.into()));
    assert_eq!((gguf.version(), gguf.get("general.architecture").unwrap().as_str()), (3, Some("test")));
}

/// Quantized tensors take the memory of their values and nothing else.
#[test]
fn a_dry_run_requests_the_same_memory() {
    let gguf = blocks();
    let load = |device: &Device| {
        let tensors: Vec<_> = gguf.names().into_iter().map(|name| gguf.load(name, device)).collect();
        tensors.into_iter().collect::<highwater_tensor::Result<Vec<_>>>()
    };
    let device = cpu();
    let _tensors = load(&device).unwrap();
    let run = dry_run(DeviceProfile::this_machine(), load).unwrap();
    let stats = device.memory_stats().unwrap();
    assert_eq!(run.peak.requested, stats.peak_bytes_requested);
    assert_eq!(run.peak.in_use, stats.peak_bytes_in_use);
    // Eight quantized tensors, and two of integers that tensors do not have.
    let quantized = 3 * 2 * 4 * (5 * 32 + 3 * 256) + 2 * 6 * 4;
    assert_eq!(stats.bytes_requested, quantized);
    assert_eq!(device.external_memory().bytes_in_use, 15 * (4 + 2 + 2) + 6 * (4 + 8 + 8));
    let mapped = run.report.categories.iter().find(|row| row.category == "mapped").unwrap();
    assert_eq!(mapped.live_bytes, device.external_memory().bytes_in_use);
}

#[test]
fn other_files_are_named() {
    let error = Gguf::open(file("tensors.pt"), &GgufLimits::default()).unwrap_err().to_string();
    assert!(error.contains("this is a file of torch.save, not a GGUF file"), "{error}");
    let error = read_safetensors(file("blocks.gguf"), &SafetensorsLimits::default()).unwrap_err().to_string();
    assert!(error.contains("this is a GGUF model, not a safetensors file: `Gguf::open` reads it"), "{error}");
    let error = Gguf::open("no/such/file", &GgufLimits::default()).unwrap_err();
    assert!(matches!(error, FileError::Io { .. }), "{error}");
}

//! What must hold for any file: the bodies of the fuzz targets, which the tests run as well.
//!
//! Each takes bytes as they come and panics if a reader breaks a promise. A file that is refused is as good as one that is read.

use std::io::Cursor;
use std::path::Path;

use highwater_tensor::{Device, Reduction, Result, Rng, Tensor};

use crate::checkpoint::Checkpoint;
use crate::data::{CsvOptions, IdxArray, IdxOptions, LabelColumn, TargetColumns, Text, read_csv_from};
use crate::io::{
    Array, Loaded, NpyLimits, SafetensorsLimits, read_npy_from, read_npz_bytes, read_safetensors_from,
    read_state_dict_from, write_npy_to, write_npz_to, write_safetensors_to,
};
use crate::modules::{BatchNorm, Dropout, Linear, Module, Sequential};
use crate::optim::{Adam, Optimizer};

/// A safetensors file, and a checkpoint in it.
///
/// # Panics
/// If a promise is broken.
pub fn safetensors(data: &[u8]) {
    // Small limits, so that they are reached.
    let limits = SafetensorsLimits { header_bytes: 4096, tensors: 20, data_bytes: 4096, expansion: 5 };
    let Ok(contents) = read_safetensors_from(data, "fuzz", &limits) else { return };
    assert!(contents.arrays.len() <= limits.tensors);
    let bytes: usize = contents.arrays.values().map(|array| array.bytes().len()).sum();
    // Bytes become numbers of four at most.
    assert!(bytes <= data.len().saturating_mul(4) && bytes as u64 <= limits.data_bytes);
    for array in contents.arrays.values() {
        assert_eq!(array.bytes().len(), array.shape().elements() * array.dtype().size());
    }
    let mut written = Vec::new();
    write_safetensors_to(&mut written, &contents).expect("a vector takes everything");
    let again = read_safetensors_from(&written[..], "fuzz", &SafetensorsLimits::default());
    let again = again.expect("what is written can be read");
    assert_eq!((&again.arrays, &again.metadata), (&contents.arrays, &contents.metadata));
    let _ = Checkpoint::from_contents(contents, Path::new("fuzz"));
}

/// The limits of files of NumPy, small, so that they are reached.
const NPY: NpyLimits = NpyLimits { header_bytes: 4096, data_bytes: 4096, arrays: 20, ratio: 256 };

/// A `.npy` file.
///
/// # Panics
/// If a promise is broken.
pub fn npy(data: &[u8]) {
    let Ok(array) = read_npy_from(data, "fuzz", &NPY) else { return };
    // Bytes become numbers of four at most.
    assert!(array.bytes().len() <= data.len().saturating_mul(4));
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
    let Ok(Loaded { arrays, .. }) = read_npz_bytes(data, &NPY) else { return };
    assert!(arrays.len() <= NPY.arrays);
    let bytes: usize = arrays.values().map(|array| array.bytes().len()).sum();
    assert!(bytes as u64 <= NPY.data_bytes);
    let mut written = Vec::new();
    write_npz_to(&mut written, &arrays).expect("a vector takes everything");
    let again = read_npz_bytes(&written, &NpyLimits::default()).expect("what is written can be read");
    assert_eq!(again.arrays, arrays);
}

/// A state dict of PyTorch's.
///
/// # Panics
/// If a promise is broken.
pub fn state_dict(data: &[u8]) {
    // Small limits, so that they are reached.
    let limits = SafetensorsLimits { header_bytes: 4096, tensors: 20, data_bytes: 4096, expansion: 5 };
    let Ok(Loaded { arrays, .. }) = read_state_dict_from(Cursor::new(data), "fuzz", &limits) else { return };
    assert!(arrays.len() <= limits.tensors);
    let bytes: usize = arrays.values().map(|array| array.bytes().len()).sum();
    assert!(bytes as u64 <= limits.data_bytes);
    for array in arrays.values() {
        assert_eq!(array.bytes().len(), array.shape().elements() * array.dtype().size());
    }
}

/// An IDX file, plain or compressed.
///
/// # Panics
/// If a promise is broken.
pub fn idx(data: &[u8]) {
    const LIMIT: u64 = 4096;
    let options = IdxOptions::default().with_max_elements(LIMIT);
    let Ok(array) = IdxArray::read_from(data, "fuzz", &options) else { return };
    let array = array.array();
    assert!(array.shape().elements() as u64 <= LIMIT);
    assert_eq!(array.bytes().len(), array.shape().elements() * array.dtype().size());
}

/// A CSV file, with labels, without, and with targets.
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
    for targets in [TargetColumns::Last(1), TargetColumns::Indices(vec![1, 0])] {
        let width = if targets == TargetColumns::Last(1) { 1 } else { 2 };
        let Ok(rows) = read_csv_from(data, "fuzz", &CsvOptions::default().with_targets(targets)) else {
            continue;
        };
        assert!(rows.rows() > 0 && rows.features().len() == rows.rows() * rows.width());
        assert!(rows.target_width() == width && rows.targets().len() == rows.rows() * width);
        assert!(rows.features().iter().chain(rows.targets()).all(|value| value.is_finite()));
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
    let whole = whole.strip_prefix('\u{feff}').unwrap_or(whole);
    assert!(data.len() as u64 <= LIMIT && !text.is_empty() && text.len() <= data.len());
    let tokens = text.encode(whole).expect("a text has its own characters");
    assert_eq!(text.decode(&tokens), whole);
    assert!(tokens.iter().all(|&token| (token as usize) < text.classes()));
}

/// What a training run is about, as small as can be.
struct Training {
    network: Sequential,
    adam: Adam,
    rng: Rng,
}

impl Training {
    fn new(device: &Device) -> Result<Self> {
        let rng = Rng::new(7);
        let network = Sequential::new()
            .with("layer", Linear::new(device, 3, 2, &rng)?)
            .with("norm", BatchNorm::new(device, 2)?)
            .with("dropout", Dropout::new(0.5, Rng::new(8))?);
        let adam = Adam::new(network.parameters(), 1e-3)?;
        Ok(Self { network, adam, rng })
    }

    fn step(&mut self, device: &Device) -> Result<()> {
        let x = Tensor::uniform(device, [4, 3], -1.0, 1.0, &self.rng)?;
        let target = Tensor::zeros(device, [4, 2])?;
        let loss = self.network.forward(&x)?.mse_loss(&target, Reduction::Mean)?;
        self.adam.step(loss.backward()?)
    }

    fn checkpoint(&self) -> Result<Checkpoint> {
        Checkpoint::of(&self.network)?.with_optimizer(&self.adam)
    }
}

/// A checkpoint that [`checkpoint`] goes on from: what a fuzzer begins with.
///
/// # Errors
/// Those of the device.
pub fn valid_checkpoint() -> Result<Checkpoint> {
    let device = Device::cpu()?;
    let mut training = Training::new(&device)?;
    training.step(&device)?;
    Ok(training.checkpoint()?.with_step(1).with_scaler(&crate::optim::LossScaler::dynamic()))
}

/// A checkpoint that a training run goes on from. Either it is restored whole, or nothing changes.
///
/// # Panics
/// If a promise is broken.
pub fn checkpoint(data: &[u8]) {
    let limits = SafetensorsLimits { header_bytes: 1 << 16, tensors: 30, data_bytes: 1 << 16, expansion: 5 };
    let Ok(contents) = read_safetensors_from(data, "fuzz", &limits) else { return };
    let Ok(read) = Checkpoint::from_contents(contents, Path::new("fuzz")) else { return };
    let device = Device::cpu().expect("there is a processor");
    let mut training = Training::new(&device).expect("there is memory for so little");
    let before = training.checkpoint().expect("the processor has data");
    let restored = read.restore_all(&training.network, &mut training.adam);
    let after = training.checkpoint().expect("the processor has data");
    match restored {
        Ok(()) => {
            assert_eq!(after.parameters(), read.parameters());
            training.step(&device).expect("the run goes on");
        }
        Err(_) => assert_eq!(after, before),
    }
}

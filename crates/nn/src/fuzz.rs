//! Properties of all file readers, used by the fuzz targets and the tests.
//!
//! Each function takes arbitrary bytes and panics if a reader violates its contract. Rejecting a file is valid.

use std::io::Cursor;
use std::path::{Component, Path};

use highwater_tensor::{Device, Result, Rng, Tensor};

use crate::checkpoint::Checkpoint;
#[cfg(feature = "images")]
use crate::data::{Channels, ImageOptions, decode_bytes};
use crate::data::{
    CsvOptions, Dataset, IdxArray, IdxOptions, LabelColumn, MaskedTokens, Missing, PairOptions, PairText,
    Pairs, TargetColumns, Text, read_csv_from,
};
use crate::io::gguf::GgufHeader;
use crate::io::sharded::Index;
use crate::io::{
    Array, Arrays, GgufLimits, Loaded, NpyLimits, SafetensorsLimits, read_npy_from, read_npz_bytes,
    read_safetensors_from, read_state_dict_from, write_gguf_to, write_npy_to, write_npz_to,
    write_safetensors_to,
};
use crate::lora::{Lora, config};
use crate::modules::{BatchNorm, Dropout, Linear, Module, Sequential};
use crate::optim::{Adam, Optimizer};

/// Checks one reader with any bytes, and panics if the reader violates its contract.
pub type Check = fn(&[u8]);

/// The readers by their names in docs/files.md, with the functions that check them.
pub const READERS: &[(&str, Check)] = &[
    ("read_safetensors", safetensors),
    ("Checkpoint::load", checkpoint),
    ("read_state_dict", state_dict),
    ("ShardedSafetensors::open", shard_index),
    ("Gguf::open", gguf),
    ("read_npy", npy),
    ("read_npz", npz),
    ("read_csv", csv),
    ("read_idx", idx),
    ("Text::read", text),
    ("Pairs::read", pairs),
    #[cfg(feature = "images")]
    ("ImageFolder::open", image),
    ("lora_from", adapter_config),
];

/// Checks the reader that the first byte selects with the other bytes.
///
/// # Panics
/// If the reader violates its contract.
pub fn files(data: &[u8]) {
    let Some((&chosen, file)) = data.split_first() else { return };
    let (_, check) = READERS[usize::from(chosen) % READERS.len()];
    check(file);
}

/// Returns the input of [`files`] that gives a file to the reader of this name; `None` if there is no such reader.
#[must_use]
pub fn input_of_files(reader: &str, file: &[u8]) -> Option<Vec<u8>> {
    let (chosen, _) = (0_u8..).zip(READERS).find(|(_, (name, _))| *name == reader)?;
    Some([&[chosen], file].concat())
}

/// Checks the reader of safetensors files and checkpoints.
///
/// # Panics
/// If the reader violates its contract.
pub fn safetensors(data: &[u8]) {
    // Small limits, so that inputs reach them.
    let limits = SafetensorsLimits { header_bytes: 4096, tensors: 20, data_bytes: 4096, expansion: 5 };
    let Ok(contents) = read_safetensors_from(data, "fuzz", &limits) else { return };
    assert!(contents.arrays.len() <= limits.tensors);
    let bytes: usize = contents.arrays.values().map(|array| array.bytes().len()).sum();
    // A byte becomes a value of at most four bytes.
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

/// Checks the parser of the index of a sharded checkpoint.
///
/// # Panics
/// If the parser violates its contract.
pub fn shard_index(data: &[u8]) {
    let limits = SafetensorsLimits { header_bytes: 4096, tensors: 20, data_bytes: 4096, expansion: 5 };
    let Ok(index) = Index::parse(data, Path::new("fuzz"), &limits) else { return };
    assert!(data.len() <= 4096 && !index.places.is_empty() && index.places.len() <= limits.tensors);
    assert!(index.places.values().all(|&place| place < index.files.len()));
    for file in &index.files {
        let whole = Path::new("folder").join(file);
        assert!(whole.starts_with("folder") && whole.components().all(|part| part != Component::ParentDir));
    }
}

/// Checks the reader of GGUF files.
///
/// # Panics
/// If the reader violates its contract.
pub fn gguf(data: &[u8]) {
    let limits = GgufLimits { header_bytes: 4096, entries: 40, tensors: 20 };
    let Ok(header) = GgufHeader::parse(data, Path::new("fuzz"), &limits) else { return };
    assert!(header.metadata.len() <= limits.entries && header.tensors.len() <= limits.tensors);
    let mut elements = 0;
    header.each_value(data, |_, values| elements += values.len());
    // Four bits per element are the least.
    assert!(elements <= 2 * data.len());
    let mut written = Vec::new();
    write_gguf_to(&mut written, &header.metadata, &Arrays::new())
        .expect("metadata that are read can be written");
    // A file without tensors may have all metadata. Floats that are no numbers differ from themselves.
    let again = GgufHeader::parse(&written, Path::new("fuzz"), &GgufLimits::default());
    assert_eq!(
        format!("{:?}", again.expect("what is written can be read").metadata),
        format!("{:?}", header.metadata)
    );
}

/// Checks the reader of the configurations of adapters.
///
/// # Panics
/// If the reader violates its contract.
pub fn adapter_config(data: &[u8]) {
    let path = Path::new("fuzz");
    let Ok(options) = config::parse(data, path) else { return };
    assert!(options.rank > 0 && options.alpha.is_finite() && (0.0..1.0).contains(&options.dropout));
    let text = config::text(&options, &[]);
    let again = config::parse(text.as_bytes(), path).expect("what is written can be read");
    // The text of a number may lose its last bit.
    let is_close = |a: f64, b: f64| (a - b).abs() <= 1e-12 * b.abs();
    assert!(is_close(again.alpha, options.alpha) && is_close(again.dropout, options.dropout));
    assert_eq!(Lora { alpha: options.alpha, dropout: options.dropout, ..again }, options);
}

/// Small limits for NumPy files, so that inputs reach them.
const NPY: NpyLimits = NpyLimits { header_bytes: 4096, data_bytes: 4096, arrays: 20, ratio: 256 };

/// Checks the reader of `.npy` files.
///
/// # Panics
/// If the reader violates its contract.
pub fn npy(data: &[u8]) {
    let Ok(array) = read_npy_from(data, "fuzz", &NPY) else { return };
    // A byte becomes a value of at most four bytes.
    assert!(array.bytes().len() <= data.len().saturating_mul(4));
    assert_eq!(array.bytes().len(), array.shape().elements() * array.dtype().size());
    let mut written = Vec::new();
    write_npy_to(&mut written, &array).expect("a vector takes everything");
    let again: Array = read_npy_from(&written[..], "fuzz", &NPY).expect("what is written can be read");
    assert_eq!(again, array);
}

/// Checks the reader of `.npz` files.
///
/// # Panics
/// If the reader violates its contract.
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

/// Checks the reader of PyTorch state dicts.
///
/// # Panics
/// If the reader violates its contract.
pub fn state_dict(data: &[u8]) {
    // Small limits, so that inputs reach them.
    let limits = SafetensorsLimits { header_bytes: 4096, tensors: 20, data_bytes: 4096, expansion: 5 };
    let Ok(Loaded { arrays, .. }) = read_state_dict_from(Cursor::new(data), "fuzz", &limits) else { return };
    assert!(arrays.len() <= limits.tensors);
    let bytes: usize = arrays.values().map(|array| array.bytes().len()).sum();
    assert!(bytes as u64 <= limits.data_bytes);
    for array in arrays.values() {
        assert_eq!(array.bytes().len(), array.shape().elements() * array.dtype().size());
    }
}

/// Checks the reader of IDX files, plain and compressed.
///
/// # Panics
/// If the reader violates its contract.
pub fn idx(data: &[u8]) {
    const LIMIT: u64 = 4096;
    let options = IdxOptions { max_elements: LIMIT, ..IdxOptions::default() };
    let Ok(array) = IdxArray::read_from(data, "fuzz", &options) else { return };
    let array = array.array();
    assert!(array.shape().elements() as u64 <= LIMIT);
    assert_eq!(array.bytes().len(), array.shape().elements() * array.dtype().size());
}

/// Checks the reader of CSV files, with labels, without labels, and with targets.
///
/// # Panics
/// If the reader violates its contract.
pub fn csv(data: &[u8]) {
    for label in [LabelColumn::Last, LabelColumn::None] {
        let options = CsvOptions::default().with_label(label.clone());
        let Ok(rows) = read_csv_from(data, "fuzz", &options) else { continue };
        assert!(rows.rows() > 0 && rows.features().len() == rows.rows() * rows.width());
        assert_eq!(rows.labels().len(), if label == LabelColumn::None { 0 } else { rows.rows() });
    }
    csv_of_text(data);
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

/// Checks the reader of CSV files with classes, one-hot columns and missing values.
fn csv_of_text(data: &[u8]) {
    for header in [true, false] {
        let options = CsvOptions { max_categories: 50, max_values: 10_000, ..CsvOptions::default() }
            .with_header(header)
            .with_classes(LabelColumn::Last)
            .with_one_hot([0_usize])
            .with_missing(Missing::Mean);
        let Ok(rows) = read_csv_from(data, "fuzz", &options) else { continue };
        assert!(rows.rows() > 0 && rows.features().len() == rows.rows() * rows.width());
        assert!(rows.features().len() <= 10_000 && rows.features().iter().all(|value| value.is_finite()));
        let names = rows.class_names();
        assert!(rows.labels().len() == rows.rows() && names.len() <= 50);
        assert!(rows.labels().iter().all(|&label| (label as usize) < names.len()));
        let encoding = rows.encoding().expect("a table has an encoding");
        assert_eq!(encoding.feature_names().len(), rows.width());
        // Column names may occur twice, and then the columns cannot be found by name.
        if let Ok(again) = read_csv_from(data, "fuzz", &options.with_encoding_of(&rows)) {
            assert_eq!((again.features(), again.labels()), (rows.features(), rows.labels()));
        } else {
            assert!(header);
        }
    }
    let options = CsvOptions { max_values: 1000, ..CsvOptions::default() }.with_text([0_usize]);
    if let Ok(rows) = read_csv_from(data, "fuzz", &options) {
        let texts = rows.texts(0).expect("the column is text");
        assert!(texts.len() == rows.rows() && rows.labels().len() == rows.rows());
        assert!(texts.iter().map(|text| 24 + text.len()).sum::<usize>() <= 4 * 1000);
    }
}

/// Checks the decoder of images.
///
/// # Panics
/// If the decoder violates its contract.
#[cfg(feature = "images")]
pub fn image(data: &[u8]) {
    const LIMIT: usize = 1000;
    for channels in [Channels::Gray, Channels::Rgb] {
        let options = ImageOptions { channels, max_pixels: LIMIT as u64, ..ImageOptions::default() };
        let Ok((pixels, shape)) = decode_bytes(data, &options) else { return };
        assert_eq!(pixels.len(), shape.iter().product::<usize>());
        assert!(
            pixels.len() <= shape[0] * LIMIT && shape[0] == if channels == Channels::Gray { 1 } else { 3 }
        );
        assert!(pixels.iter().all(|pixel| (0.0..=1.0).contains(pixel)));
        let (resized, shape) = decode_bytes(data, &options.with_size(3, 2)).expect("it was decoded before");
        assert_eq!((resized.len(), &shape[1..]), (shape[0] * 6, &[3, 2][..]));
    }
}

/// Checks the reader of texts.
///
/// # Panics
/// If the reader violates its contract.
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

/// Checks the reader of JSON lines with prompts and answers.
///
/// # Panics
/// If the reader violates its contract.
pub fn pairs(data: &[u8]) {
    // Small limits, so that inputs reach them.
    let options = PairOptions {
        max_tokens: 20,
        max_bytes: 4096,
        max_line_bytes: 1000,
        max_samples: 10,
        ..PairOptions::default()
    };
    let tokens = |text: &str| text.bytes().map(u32::from).collect::<Vec<_>>();
    let mut bytes = 0;
    let encode = |pair: &PairText| {
        let sample = MaskedTokens::default();
        Ok::<_, String>(match pair {
            PairText::Completion { prompt, answer } => {
                bytes += prompt.len() + answer.len();
                sample.with_context(&tokens(prompt)).with_answer(&tokens(answer))
            }
            PairText::Chat(turns) => turns.iter().fold(sample, |sample, turn| {
                bytes += turn.role.len() + turn.content.len();
                sample.with_context(&tokens(&turn.role)).with_answer(&tokens(&turn.content))
            }),
        })
    };
    let Ok(read) = Pairs::read_from(data, "fuzz", &options, encode) else { return };
    assert!(bytes <= data.len() && data.len() as u64 <= options.max_bytes);
    assert!(!read.is_empty() && read.len() + read.skipped() <= options.max_samples);
    assert!(read.longest() <= options.max_tokens && read.targets() >= read.len());
    let batch = read.get_batch(&(0..read.len()).collect::<Vec<_>>()).expect("all samples can be padded");
    assert_eq!(batch.input.shape().dims(), [read.len(), read.longest()]);
}

/// A minimal training run.
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
            .with("dropout", Dropout::new(0.5, &Rng::new(8))?);
        let adam = Adam::new(network.parameters(), 1e-3)?;
        Ok(Self { network, adam, rng })
    }

    fn step(&mut self, device: &Device) -> Result<()> {
        let x = Tensor::uniform(device, [4, 3], -1.0, 1.0, &self.rng)?;
        let target = Tensor::zeros(device, [4, 2])?;
        let loss = self.network.forward(&x)?.mse_loss(&target)?;
        self.adam.step(loss.backward()?)
    }

    fn checkpoint(&self) -> Result<Checkpoint> {
        Checkpoint::of(&self.network)?.with_optimizer(&self.adam)
    }
}

/// Returns a valid checkpoint for [`checkpoint`], as a seed for a fuzzer.
///
/// # Errors
/// Those of the device.
pub fn valid_checkpoint() -> Result<Checkpoint> {
    let device = Device::cpu()?;
    let mut training = Training::new(&device)?;
    training.step(&device)?;
    Ok(training.checkpoint()?.with_step(1).with_scaler(&crate::optim::LossScaler::dynamic()))
}

/// Checks that a training run restores a checkpoint completely or not at all.
///
/// # Panics
/// If a restore changes only a part.
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

//! Folders with adapters in the format of PEFT: `adapter_config.json` and `adapter_model.safetensors`.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fmt;
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

use highwater_tensor::error::FileError;
use highwater_tensor::{Rng, Shape, Tensor};

use super::adapters::{AdaptedLayer, Adapters};
use super::config;
use super::error::LoraError;
use super::options::Lora;
use super::targets::{linear_layers, peft_names};
use crate::io::{
    Array, Arrays, MappedSafetensors, Safetensors, SafetensorsLimits, Weights, write_atomically,
    write_safetensors_to,
};
use crate::modules::{Module, Parameter};

const CONFIG: &str = "adapter_config.json";
const TENSORS: &str = "adapter_model.safetensors";

/// The prefix of all names of tensors: the modules of PEFT around the model.
const PREFIX: &str = "base_model.model.";

/// The end of the names of A and B.
const MATRICES: [&str; 2] = ["lora_A.weight", "lora_B.weight"];

/// The largest number of bytes of a configuration.
const MAX_CONFIG: u64 = 1 << 20;

/// The largest number of names of each kind in an error.
const MAX_LISTED: usize = 100;

/// Attaches the adapters of a folder that [`Adapters::save`] or PEFT wrote, and freezes the model. The names of the tensors
/// in the folder select the layers.
///
/// `base_model` is the name of the model, which must be that in the folder if both have one. Dropout draws from `rng` if
/// the folder has a probability for it.
///
/// ```
/// use highwater::nn::{Linear, Lora, Module, Sequential, lora, lora_from};
/// use highwater::{Device, Rng, Tensor};
/// # let folder = tempfile::tempdir()?;
/// # let folder = folder.path();
/// let (device, rng) = (Device::cpu()?, Rng::new(0));
/// let layer = Linear::new(&device, 16, 4, &rng)?;
/// let model = Sequential::new().with("fc", layer);
/// let adapters = lora(&model, &Lora::default().with_targets(["fc"]), &rng)?;
/// adapters.save(folder)?;
/// adapters.detach();
///
/// let adapters = lora_from(&model, folder, None, &rng)?;
/// assert_eq!(adapters.layers().collect::<Vec<_>>(), ["fc"]);
/// assert_eq!(adapters.options().rank, 8);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// - [`LoraError::Tensor`] with a [`FileError`] if a file cannot be read; [`LoraError::Json`], [`LoraError::BadField`] and
///   [`LoraError::Unsupported`] for the configuration
/// - [`LoraError::OtherOption`] for adapters of another base model
/// - [`LoraError::Tensors`] for missing tensors, and for tensors of no linear layer; [`LoraError::Shape`] for tensors of
///   another rank or model
/// - [`LoraError::AlreadyAttached`] if one of the layers has an adapter
///
/// The model is unchanged then.
pub fn lora_from<'m, M: Module + ?Sized>(
    model: &'m M,
    folder: impl AsRef<Path>,
    base_model: Option<&str>,
    rng: &Rng,
) -> Result<Adapters<'m, M>, LoraError> {
    let folder = Folder::open(folder.as_ref())?;
    folder.check_base_model(base_model)?;
    let mut paths: HashSet<&str> = HashSet::new();
    for name in folder.tensors.names() {
        if let Some((path, _)) = parts_of(name) {
            paths.insert(path);
        }
    }
    let linear_layers = linear_layers(model);
    let targets: Vec<_> =
        linear_layers.iter().filter(|layer| paths.contains(layer.path.as_str())).cloned().collect();
    let sizes = targets.iter().map(|target| (target.path.as_str(), target.linear.sizes()));
    folder.check_tensors(sizes)?;
    let mut layers = Vec::with_capacity(targets.len());
    for target in targets {
        let layer = AdaptedLayer::new(target, &folder.options, None, rng)?;
        for (name, matrix) in layer.matrices() {
            matrix.set(&folder.tensor(&name, matrix)?)?;
        }
        layers.push(layer);
    }
    let adapted: BTreeSet<&str> = layers.iter().map(|layer| layer.path.as_str()).collect();
    let targets = peft_names(&adapted, &linear_layers);
    Adapters::attach(model, layers, Lora { targets, ..folder.options })
}

impl<M: Module + ?Sized> Adapters<'_, M> {
    /// Writes the adapters to a folder, which PEFT loads with `PeftModel.from_pretrained(model, folder)`. Creates the folder
    /// if necessary, and replaces each file atomically.
    ///
    /// Names of layers must be those of PyTorch's model, as in the models of this library.
    ///
    /// # Errors
    /// [`LoraError::Tensor`] if a file cannot be written, if there is no memory, or on a dry device.
    pub fn save(&self, folder: impl AsRef<Path>) -> Result<(), LoraError> {
        let folder = folder.as_ref();
        let mut arrays = Arrays::new();
        for (name, matrix) in self.layers.iter().flat_map(AdaptedLayer::matrices) {
            arrays.insert(format!("{PREFIX}{name}"), Array::of(&matrix.value())?);
        }
        fs::create_dir_all(folder).map_err(|error| FileError::io(folder, &error))?;
        let contents = Safetensors::for_pytorch(arrays);
        write_atomically(folder.join(TENSORS), |file| write_safetensors_to(file, &contents))?;
        let text =
            config::text(&self.options, &peft_names(&self.layers().collect(), &linear_layers(self.model)));
        write_atomically(folder.join(CONFIG), |file| file.write_all(text.as_bytes()))?;
        Ok(())
    }

    /// Replaces the values of the adapters by those of a folder that [`save`](Self::save) or PEFT wrote. Converts them to
    /// the element type of the adapters.
    ///
    /// # Errors
    /// As [`lora_from`](super::lora_from()), and:
    ///
    /// - [`LoraError::OtherOption`] for another rank, alpha, scale or base model
    /// - [`LoraError::Tensors`] unless the folder has tensors for exactly the attached adapters
    /// - [`LoraError::Merged`] while the adapters are merged
    ///
    /// The adapters are unchanged then.
    pub fn load(&self, folder: impl AsRef<Path>) -> Result<(), LoraError> {
        if self.is_merged() {
            return Err(LoraError::Merged);
        }
        let folder = Folder::open(folder.as_ref())?;
        folder.check_base_model(self.options.base_model.as_deref())?;
        folder.check_options(&self.options)?;
        folder.check_tensors(self.layers.iter().map(|layer| (layer.path.as_str(), layer.linear.sizes())))?;
        let matrices: Vec<_> = self.layers.iter().flat_map(AdaptedLayer::matrices).collect();
        let values = matrices.iter().map(|(name, matrix)| folder.tensor(name, matrix));
        let values: Vec<Tensor> = values.collect::<Result<_, _>>()?;
        // Allocates copies of shared buffers, so that no write fails.
        matrices.iter().try_for_each(|(_, matrix)| matrix.make_unique())?;
        matrices.iter().zip(&values).try_for_each(|((_, matrix), values)| matrix.set(values))?;
        Ok(())
    }
}

/// A folder whose configuration was read.
struct Folder {
    path: PathBuf,
    options: Lora,
    tensors: MappedSafetensors,
}

impl Folder {
    fn open(folder: &Path) -> Result<Self, LoraError> {
        let path = folder.join(CONFIG);
        let io_error = |error| FileError::io(&path, &error);
        let mut text = Vec::new();
        let file = File::open(&path).map_err(io_error)?;
        file.take(MAX_CONFIG + 1).read_to_end(&mut text).map_err(io_error)?;
        if text.len() as u64 > MAX_CONFIG {
            let (what, found) = ("bytes", text.len() as u64);
            return Err(FileError::TooLarge { path, offset: 0, what, found, limit: MAX_CONFIG }.into());
        }
        let options = config::parse(&text, &path)?;
        let tensors = MappedSafetensors::open(folder.join(TENSORS), &SafetensorsLimits::default())?;
        Ok(Self { path, options, tensors })
    }

    fn other(
        &self,
        option: &'static str,
        expected: impl fmt::Display,
        found: impl fmt::Display,
    ) -> LoraError {
        let (path, expected, found) = (self.path.clone(), expected.to_string(), found.to_string());
        LoraError::OtherOption { path, option, expected, found }
    }

    fn check_base_model(&self, expected: Option<&str>) -> Result<(), LoraError> {
        match (expected, &self.options.base_model) {
            (Some(expected), Some(found)) if expected != found => {
                Err(self.other("base_model_name_or_path", expected, found))
            }
            _ => Ok(()),
        }
    }

    fn check_options(&self, expected: &Lora) -> Result<(), LoraError> {
        let found = &self.options;
        if found.rank != expected.rank {
            return Err(self.other("r", expected.rank, found.rank));
        }
        if found.alpha != expected.alpha {
            return Err(self.other("lora_alpha", expected.alpha, found.alpha));
        }
        if found.rslora != expected.rslora {
            return Err(self.other("use_rslora", expected.rslora, found.rslora));
        }
        Ok(())
    }

    /// Compares the names and shapes of the tensors with those of adapters for layers of these sizes.
    fn check_tensors<'l>(
        &self,
        layers: impl Iterator<Item = (&'l str, [usize; 2])>,
    ) -> Result<(), LoraError> {
        let path = || self.tensors.path().to_owned();
        let rank = self.options.rank;
        let mut expected: BTreeMap<String, [usize; 2]> = BTreeMap::new();
        for (path, [inputs, outputs]) in layers {
            let shapes = [[rank, inputs], [outputs, rank]];
            expected.extend(MATRICES.iter().zip(shapes).map(|(name, shape)| (name_of(path, name), shape)));
        }
        let found: HashMap<&str, _> =
            self.tensors.names().into_iter().map(|name| (name, self.tensors.info(name))).collect();
        let skipped = self.tensors.skipped().iter().map(|skipped| skipped.name.as_str());
        let unexpected = found.keys().copied().chain(skipped).filter(|&name| !expected.contains_key(name));
        let mut unexpected: Vec<String> = unexpected.map(str::to_owned).collect();
        unexpected.sort_unstable();
        unexpected.truncate(MAX_LISTED);
        let missing = expected.keys().filter(|name| !found.contains_key(name.as_str()));
        let missing: Vec<String> = missing.take(MAX_LISTED).cloned().collect();
        if !missing.is_empty() || !unexpected.is_empty() || expected.is_empty() {
            return Err(LoraError::Tensors { path: path(), missing, unexpected });
        }
        for (tensor, shape) in expected {
            let Some(info) = found.get(tensor.as_str()).copied().flatten() else { continue };
            if !info.dtype.is_float() {
                return Err(LoraError::ElementType { path: path(), tensor, found: info.dtype });
            }
            if info.shape.dims() != shape {
                let (expected, found) = (Shape::matrix(shape[0], shape[1]), info.shape);
                return Err(LoraError::Shape { path: path(), tensor, expected, found });
            }
        }
        Ok(())
    }

    /// Returns the values of a matrix, in its element type and on its device.
    fn tensor(&self, name: &str, matrix: &Parameter) -> Result<Tensor, LoraError> {
        let value = matrix.value();
        let loaded = self.tensors.load(&format!("{PREFIX}{name}"), value.device())?;
        Ok(loaded.to_dtype(value.dtype())?)
    }
}

/// Returns the name of a tensor in the file.
fn name_of(path: &str, matrix: &str) -> String {
    format!("{PREFIX}{path}{}{matrix}", if path.is_empty() { "" } else { "." })
}

/// Returns the layer's path and the matrix of a tensor's name.
fn parts_of(name: &str) -> Option<(&str, &str)> {
    let name = name.strip_prefix(PREFIX)?;
    MATRICES.iter().find_map(|&matrix| {
        let path = name.strip_suffix(matrix)?;
        if path.is_empty() { Some((path, matrix)) } else { Some((path.strip_suffix('.')?, matrix)) }
    })
}

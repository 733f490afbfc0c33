//! Checkpoints of several safetensors files, which an index lists.

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::{Component, Path, PathBuf};

use highwater_tensor::error::{FileError, Skipped};
use highwater_tensor::{Device, Result, Tensor};
use serde::de::{DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess, Visitor};

use super::mapped::MappedSafetensors;
use super::safetensors::SafetensorsLimits;
use super::weights::{WeightInfo, Weights, no_tensor};

/// Maximum number of names of each kind in an error.
const MAX_LISTED: usize = 100;

/// A checkpoint of several safetensors files with an index, `model.safetensors.index.json`. All files are
/// [mapped](MappedSafetensors).
///
/// ```
/// use highwater::Device;
/// use highwater::io::{Array, Safetensors, SafetensorsLimits, ShardedSafetensors, Weights, write_safetensors_to};
/// # let folder = tempfile::tempdir()?;
/// # let folder = folder.path();
/// for (file, name) in [("a.safetensors", "embed"), ("b.safetensors", "head")] {
///     let mut contents = Safetensors::default();
///     contents.arrays.insert(name.into(), Array::from_slice(&[1.0f32], [1])?);
///     write_safetensors_to(std::fs::File::create(folder.join(file))?, &contents)?;
/// }
/// let index = folder.join("model.safetensors.index.json");
/// std::fs::write(&index, r#"{"weight_map": {"embed": "a.safetensors", "head": "b.safetensors"}}"#)?;
///
/// let weights = ShardedSafetensors::open(&index, &SafetensorsLimits::default())?;
/// assert_eq!(weights.names(), ["embed", "head"]);
/// assert_eq!(weights.load("head", &Device::cpu()?)?.item::<f32>()?, 1.0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct ShardedSafetensors {
    path: PathBuf,
    shards: Vec<MappedSafetensors>,
    /// The index of the file of each tensor.
    places: BTreeMap<String, usize>,
    skipped: Vec<Skipped>,
}

impl ShardedSafetensors {
    /// Opens the index and all files that it names, each once, and checks that they are complete.
    ///
    /// `limits` apply to the index, to each header, and to the number and bytes of all tensors together.
    ///
    /// # Errors
    /// - [`FileError::Incomplete`] lists missing files, tensors that are not in their file, and tensors that the index
    ///   does not list for the file that contains them
    /// - [`FileError::Malformed`] for an invalid index, a name that it lists twice, and a file outside of its folder
    /// - otherwise the errors of [`MappedSafetensors::open`]
    pub fn open(index: impl AsRef<Path>, limits: &SafetensorsLimits) -> Result<Self, FileError> {
        let path = index.as_ref();
        let io_error = |error| FileError::io(path, &error);
        let mut text = Vec::new();
        let file = File::open(path).map_err(io_error)?;
        file.take(limits.header_bytes.saturating_add(1)).read_to_end(&mut text).map_err(io_error)?;
        let Index { files, places } = Index::parse(&text, path, limits)?;
        drop(text);

        let folder = path.parent().unwrap_or(Path::new(""));
        let (mut shards, mut missing_files) = (Vec::new(), Vec::new());
        let mut left = *limits;
        for file in &files {
            match MappedSafetensors::open(folder.join(file), &left) {
                Ok(shard) => {
                    let tensors = shard.names().len() + shard.skipped().len();
                    left.tensors = left.tensors.saturating_sub(tensors);
                    left.data_bytes = left.data_bytes.saturating_sub(shard.file().bytes().len() as u64);
                    shards.push(shard);
                }
                Err(FileError::Io { kind: ErrorKind::NotFound, .. }) => missing_files.push(file.clone()),
                Err(error) => return Err(error),
            }
        }
        let sharded = Self { path: path.to_owned(), shards, places, skipped: Vec::new() };
        if missing_files.is_empty() {
            sharded.checked(&files)
        } else {
            Err(sharded.incomplete(missing_files))
        }
    }

    fn incomplete(&self, mut missing_files: Vec<String>) -> FileError {
        missing_files.truncate(MAX_LISTED);
        let (missing, unlisted) = (Vec::new(), Vec::new());
        FileError::Incomplete { path: self.path.clone(), missing_files, missing, unlisted }
    }

    /// Compares the index with the tensors in the files. Tensors that were skipped are dropped from the index.
    fn checked(mut self, files: &[String]) -> Result<Self, FileError> {
        let (mut missing, mut unlisted) = (Vec::new(), Vec::new());
        let within = |name: &str, place: usize| format!("{name} in {}", files[place]);
        for (place, shard) in self.shards.iter().enumerate() {
            let skipped = shard.skipped().iter().map(|skipped| skipped.name.as_str());
            for name in shard.names().into_iter().chain(skipped) {
                if self.places.get(name) != Some(&place) && unlisted.len() < MAX_LISTED {
                    unlisted.push(within(name, place));
                }
            }
            self.skipped.extend_from_slice(shard.skipped());
        }
        let skipped: HashSet<(usize, &str)> = (self.shards.iter().enumerate())
            .flat_map(|(place, shard)| {
                shard.skipped().iter().map(move |skipped| (place, skipped.name.as_str()))
            })
            .collect();
        self.places.retain(|name, &mut place| {
            let is_there = self.shards[place].info(name).is_some();
            if !is_there && missing.len() < MAX_LISTED && !skipped.contains(&(place, name)) {
                missing.push(within(name, place));
            }
            is_there
        });
        if missing.is_empty() && unlisted.is_empty() {
            return Ok(self);
        }
        Err(FileError::Incomplete { path: self.path, missing_files: Vec::new(), missing, unlisted })
    }

    /// Returns the files in the order in which the index names them.
    #[must_use]
    pub fn shards(&self) -> &[MappedSafetensors] {
        &self.shards
    }

    fn shard(&self, name: &str) -> Option<&MappedSafetensors> {
        self.places.get(name).map(|&place| &self.shards[place])
    }
}

impl Weights for ShardedSafetensors {
    fn path(&self) -> &Path {
        &self.path
    }

    fn names(&self) -> Vec<&str> {
        self.places.keys().map(String::as_str).collect()
    }

    fn info(&self, name: &str) -> Option<WeightInfo> {
        self.shard(name)?.info(name)
    }

    fn load(&self, name: &str, device: &Device) -> Result<Tensor> {
        self.shard(name).ok_or_else(|| no_tensor(self, name))?.load(name, device)
    }

    fn skipped(&self) -> &[Skipped] {
        &self.skipped
    }
}

impl fmt::Debug for ShardedSafetensors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (tensors, files) = (self.places.len(), self.shards.len());
        write!(f, "ShardedSafetensors({:?}, {tensors} tensors in {files} files)", self.path)
    }
}

/// The contents of an index.
#[derive(Debug)]
pub(crate) struct Index {
    /// The files, each once.
    pub(crate) files: Vec<String>,
    /// The file of each tensor, as an index into `files`.
    pub(crate) places: BTreeMap<String, usize>,
}

impl Index {
    /// Parses the text of an index, of which the caller has read at most one byte more than the limit.
    pub(crate) fn parse(text: &[u8], path: &Path, limits: &SafetensorsLimits) -> Result<Self, FileError> {
        let too_large = |what, found: u64, limit: u64| {
            Err(FileError::TooLarge { path: path.to_owned(), offset: 0, what, found, limit })
        };
        if text.len() as u64 > limits.header_bytes {
            return too_large("bytes of index", text.len() as u64, limits.header_bytes);
        }
        let mut map = WeightMap { pairs: Vec::new(), limit: limits.tensors };
        let mut json = serde_json::Deserializer::from_slice(text);
        let parsed = json.deserialize_map(&mut map).and_then(|()| json.end());
        let WeightMap { pairs, .. } = map;
        if pairs.len() > limits.tensors {
            return too_large("tensors", pairs.len() as u64, limits.tensors as u64);
        }
        parsed.map_err(|error| FileError::malformed(path, 0, format!("the index is invalid: {error}")))?;
        if pairs.is_empty() {
            return Err(FileError::malformed(path, 0, "the index has no \"weight_map\" with tensors"));
        }
        let (mut numbers, mut places) = (BTreeMap::new(), BTreeMap::new());
        for (name, file) in pairs {
            if !is_within_folder(&file) {
                let problem =
                    format!("{name:?} is in {file:?}, which is not a path within the folder of the index");
                return Err(FileError::malformed(path, 0, problem));
            }
            let next = numbers.len();
            let place = *numbers.entry(file).or_insert(next);
            if places.contains_key(&name) {
                return Err(FileError::malformed(path, 0, format!("the name {name:?} is there twice")));
            }
            places.insert(name, place);
        }
        let mut files = vec![String::new(); numbers.len()];
        for (file, place) in numbers {
            files[place] = file;
        }
        Ok(Self { files, places })
    }
}

/// Returns whether a path stays within its folder. Links within the folder may lead elsewhere, as those of download
/// caches do.
fn is_within_folder(path: &str) -> bool {
    let is_normal = |part| matches!(part, Component::Normal(_));
    !path.is_empty() && !path.contains(['\\', '\0', ':']) && Path::new(path).components().all(is_normal)
}

/// The pairs of the field `weight_map`. Duplicate names are kept, so that the reader can reject them.
struct WeightMap {
    pairs: Vec<(String, String)>,
    /// Maximum number of pairs. Reading stops after one more.
    limit: usize,
}

/// The whole index, with other fields than `weight_map`.
impl<'de> Visitor<'de> for &mut WeightMap {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object with the field \"weight_map\"")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(field) = map.next_key::<String>()? {
            if field == "weight_map" {
                map.next_value_seed(Pairs(&mut *self))?;
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(())
    }
}

/// The value of the field `weight_map`.
struct Pairs<'a>(&'a mut WeightMap);

impl<'de> DeserializeSeed<'de> for Pairs<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Pairs<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object with the file of each tensor")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(pair) = map.next_entry()? {
            self.0.pairs.push(pair);
            if self.0.pairs.len() > self.0.limit {
                return Err(A::Error::custom("too many tensors"));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_paths_within_the_folder_are_allowed() {
        for good in ["a.safetensors", "sub/model-00001-of-00002.safetensors"] {
            assert!(is_within_folder(good), "{good}");
        }
        for bad in ["", "/etc/passwd", "../a", "a/../../b", "./a", "c:\\a", "a\\b", "a\0b"] {
            assert!(!is_within_folder(bad), "{bad}");
        }
    }
}

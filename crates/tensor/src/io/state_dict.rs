//! PyTorch's state dicts: what `torch.save(net.state_dict(), path)` writes since PyTorch 1.6.
//!
//! Such a file is a zip archive with a pickle, `data.pkl`, that says by name how each tensor is made, and a file for each
//! storage, `data/0` and so on, with its elements. The pickle is [read without calling anything](Pickle): of all functions that it
//! may name, the few that make tensors are known here, and the rest is refused by name.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufReader, Read, Seek};
use std::path::Path;

use highwater_tracking::pickle::{Pickle, Value};
use highwater_tracking::{TraceError, TracePlace, TraceProblem};

use super::archive::{Archive, Entry, Source};
use super::array::{Array, Arrays};
use super::error::FileError;
use super::safetensors::SafetensorsLimits;
use super::stored::{Kind, Place, Stored};
use crate::dtype::DType;
use crate::shape::{IntoShape, Shape};

#[cfg(test)]
mod tests;

/// How such a file begins: as every zip archive with something in it.
pub(super) const MAGIC: [u8; 4] = *b"PK\x03\x04";

/// How deep dictionaries may lie in dictionaries.
const DEEPEST: usize = 16;
/// The most entries of dictionaries for each tensor that is allowed: one that is there many times is gone through each time.
const ENTRIES: usize = 16;
/// The largest of the small files in the archive, in bytes.
const SMALL: u64 = 64;

/// Reads the tensors of a state dict that PyTorch wrote, or of dictionaries in it: theirs have the names of both with a dot between.
/// What else is in there, such as a number of epochs, is left out. Integers of 8 and 16 bits with a sign become `i32`.
///
/// The limits are those of safetensors: for `data.pkl`, the number of tensors, and the bytes of all together.
///
/// ```no_run
/// use highwater_tensor::io::{SafetensorsLimits, read_state_dict};
/// // torch.save(net.state_dict(), "net.pt")
/// let arrays = read_state_dict("net.pt", &SafetensorsLimits::default())?;
/// println!("{:?}", arrays.keys().collect::<Vec<_>>());
/// # Ok::<(), highwater_tensor::io::FileError>(())
/// ```
///
/// # Errors
/// [`FileError`] says what is wrong and where; offsets are those in the file inside that is named. A file with an object that is
/// no tensor is refused: of a whole model, save the state dict.
pub fn read_state_dict(path: impl AsRef<Path>, limits: &SafetensorsLimits) -> Result<Arrays, FileError> {
    let path = path.as_ref();
    let mut file = File::open(path).map_err(|error| FileError::io(path, &error))?;
    read(&mut file, path, limits)
}

/// Reads from anywhere. `name` stands for the file in errors.
///
/// # Errors
/// As [`read_state_dict`].
pub fn read_state_dict_from(
    mut source: impl Read + Seek,
    name: impl AsRef<Path>,
    limits: &SafetensorsLimits,
) -> Result<Arrays, FileError> {
    read(&mut source, name.as_ref(), limits)
}

fn read(source: &mut dyn Source, path: &Path, limits: &SafetensorsLimits) -> Result<Arrays, FileError> {
    let archive = Archive::open(source, path)?;
    let archive = Files::new(&archive, path)?;
    archive.check_byte_order()?;
    let pickle = archive.pickle(limits.header_bytes)?;
    let dict = StateDict { pickle: &pickle, path, limits };
    let mut arrays = Arrays::new();
    // Of what is read, and of what is made of it.
    let mut left = [limits.data_bytes; 2];
    let mut take = |which: usize, bytes: u64| {
        left[which] = left[which].checked_sub(bytes).ok_or_else(|| too_large(path, limits.data_bytes))?;
        Ok::<_, FileError>(())
    };
    for (key, tensors) in dict.tensors()? {
        // A storage of which several tensors are parts is read once, and not at all if nothing in it is needed.
        let needed = tensors.iter().filter(|(_, tensor)| tensor.bytes() > 0);
        let bytes = needed.map(|(_, tensor)| tensor.storage_bytes).max();
        take(0, bytes.unwrap_or(0))?;
        let storage = bytes.map_or_else(|| Ok(Vec::new()), |bytes| archive.storage(&key, bytes))?;
        for (name, tensor) in tensors {
            take(1, tensor.bytes())?;
            let array = tensor.array(&storage, Place { path, offset: 0, name: &name })?;
            let outside = || dict.malformed(&name, "its strides lead out of its storage");
            arrays.insert(name.clone(), array.ok_or_else(outside)?);
        }
    }
    Ok(arrays)
}

fn too_large(path: &Path, limit: u64) -> FileError {
    let (what, found) = ("bytes of tensors", limit.saturating_add(1));
    FileError::TooLarge { path: path.to_owned(), offset: 0, what, found, limit }
}

/// The files inside, all in one folder.
struct Files<'a> {
    archive: &'a Archive<'a>,
    by_name: BTreeMap<&'a str, &'a Entry>,
    folder: &'a str,
    path: &'a Path,
}

impl<'a> Files<'a> {
    fn new(archive: &'a Archive<'a>, path: &'a Path) -> Result<Self, FileError> {
        let mut folders = archive.entries().iter().filter_map(|entry| entry.name.strip_suffix("data.pkl"));
        let (Some(folder), None) = (folders.next(), folders.next()) else {
            let problem = "there is not one data.pkl in it: PyTorch has not written this";
            return Err(FileError::malformed(path, 0, problem));
        };
        let by_name = archive.entries().iter().map(|entry| (&entry.name[..], entry)).collect();
        Ok(Self { archive, by_name, folder, path })
    }

    fn named(&self, file: &str) -> String {
        format!("{}/{}{file}", self.path.display(), self.folder)
    }

    fn entry(&self, file: &str) -> Option<&'a Entry> {
        self.by_name.get(&*format!("{}{file}", self.folder)).copied()
    }

    /// A file inside, and how many bytes it says that it has.
    fn open(&self, file: &str) -> Result<(Box<dyn Read + 'a>, u64), FileError> {
        let Some(entry) = self.entry(file) else {
            return Err(FileError::malformed(self.path, 0, format!("{}{file} is not in it", self.folder)));
        };
        let named = self.named(file);
        // So what is in there is no more than the file itself has.
        if !entry.is_stored() {
            return Err(FileError::malformed(
                named.as_ref(),
                0,
                "it is compressed, as PyTorch does not write it",
            ));
        }
        Ok((self.archive.contents(entry, named.as_ref())?, entry.size))
    }

    /// Old files do not say: they come from machines as this one.
    fn check_byte_order(&self) -> Result<(), FileError> {
        if self.entry("byteorder").is_none() {
            return Ok(());
        }
        let (named, (file, _)) = (self.named("byteorder"), self.open("byteorder")?);
        let mut order = String::new();
        let read = file.take(SMALL).read_to_string(&mut order);
        read.map_err(|error| FileError::read(named.as_ref(), 0, "the byte order", &error))?;
        match order.as_str() {
            "little" => Ok(()),
            other => Err(FileError::malformed(
                named.as_ref(),
                0,
                format!("the byte order is {other:?}, not little"),
            )),
        }
    }

    fn pickle(&self, limit: u64) -> Result<Pickle, FileError> {
        let named = self.named("data.pkl");
        let (file, size) = self.open("data.pkl")?;
        if size > limit {
            let (path, what) = (named.clone().into(), "bytes of names and shapes");
            return Err(FileError::TooLarge { path, offset: 0, what, found: size, limit });
        }
        // Objects take some times what they take in the file.
        Pickle::read(BufReader::new(file.take(limit)), limit.saturating_mul(4)).map_err(
            |TraceError { place, problem }| {
                let offset = if let TracePlace::Byte(offset) = place { offset } else { 0 };
                match problem {
                    TraceProblem::Io(error) => FileError::read(named.as_ref(), offset, "the pickle", &error),
                    problem => FileError::malformed(named.as_ref(), offset, problem.to_string()),
                }
            },
        )
    }

    /// The bytes of a storage, which has to have so many. Memory is taken as they arrive.
    fn storage(&self, key: &str, bytes: u64) -> Result<Vec<u8>, FileError> {
        let file = format!("data/{key}");
        let named = self.named(&file);
        let (file, size) = self.open(&file)?;
        let mut storage = Vec::new();
        let read = file.take(bytes).read_to_end(&mut storage);
        read.map_err(|error| FileError::read(named.as_ref(), 0, "the elements", &error))?;
        if size < bytes || (storage.len() as u64) < bytes {
            let problem = format!("{} bytes, where the pickle says {bytes}", storage.len());
            return Err(FileError::malformed(named.as_ref(), 0, problem));
        }
        Ok(storage)
    }
}

/// A tensor as the pickle describes it.
struct Described {
    kind: Kind,
    /// Of the whole storage.
    storage_bytes: u64,
    shape: Shape,
    /// In elements.
    offset: usize,
    strides: Vec<usize>,
}

impl Described {
    /// What is made of it.
    fn bytes(&self) -> u64 {
        self.shape
            .checked_elements()
            .map_or(u64::MAX, |elements| elements as u64)
            .saturating_mul(self.kind.dtype().size() as u64)
    }

    /// Whether the elements lie in order without gaps.
    fn is_in_order(&self) -> bool {
        let mut expected = 1;
        self.shape.dims().iter().zip(&self.strides).rev().all(|(&size, &stride)| {
            let fits = size == 1 || stride == expected;
            expected *= size;
            fits
        })
    }

    /// The elements, out of the storage's bytes; `None` if they are not all there.
    fn array(&self, storage: &[u8], place: Place<'_>) -> Result<Option<Array>, FileError> {
        let (stored, size) = (Stored::little(self.kind), self.kind.size());
        if self.shape.elements() == 0 {
            return stored.read(&mut &[][..], self.shape, place).map(Some);
        }
        let reach =
            self.shape.dims().iter().zip(&self.strides).try_fold(self.offset, |reach, (&size, &stride)| {
                reach.checked_add((size - 1).checked_mul(stride)?)
            });
        let end = reach.and_then(|last| last.checked_add(1));
        let Some(needed) = end.and_then(|end| storage.get(..end.checked_mul(size)?)) else { return Ok(None) };
        if self.is_in_order() {
            return stored.read(&mut &needed[self.offset * size..], self.shape, place).map(Some);
        }
        let row = Shape::new(&[needed.len() / size])
            .map_err(|error| FileError::malformed(place.path, 0, error.to_string()))?;
        let elements = stored.read(&mut &needed[..], row, place)?;
        let array = elements.gathered(self.shape, self.offset, &self.strides);
        array.map(Some).map_err(|error| FileError::io(place.path, &error))
    }
}

/// What a state dict's pickle says.
struct StateDict<'a> {
    pickle: &'a Pickle,
    path: &'a Path,
    limits: &'a SafetensorsLimits,
}

/// Tensors by name, by the storage that they are in.
type ByStorage = BTreeMap<String, Vec<(String, Described)>>;

impl StateDict<'_> {
    fn malformed(&self, name: &str, problem: impl std::fmt::Display) -> FileError {
        FileError::malformed(self.path, 0, format!("{name}: {problem}"))
    }

    fn tensors(&self) -> Result<ByStorage, FileError> {
        let (mut tensors, mut seen) = (BTreeMap::new(), BTreeMap::new());
        let mut entries = self.limits.tensors.saturating_mul(ENTRIES);
        // Dictionaries yet to be gone through, with the names that lead to them.
        let mut dicts = vec![(String::new(), self.pickle.root(), 0)];
        while let Some((path, dict, depth)) = dicts.pop() {
            let Some(pairs) = self.pickle.entries(dict) else {
                return Err(FileError::malformed(
                    self.path,
                    0,
                    "it holds no dictionary: save the state dict",
                ));
            };
            for pair in pairs.chunks_exact(2) {
                entries = entries.checked_sub(1).ok_or_else(|| self.too_many())?;
                let key = match pair[0] {
                    Value::Natural(number) => number.to_string(),
                    key => self.pickle.text(key).unwrap_or_default().to_owned(),
                };
                let name = if path.is_empty() { key } else { format!("{path}.{key}") };
                if self.pickle.entries(pair[1]).is_some() {
                    if depth == DEEPEST {
                        return Err(self.malformed(
                            &name,
                            format!("dictionaries in each other, more than {DEEPEST} deep"),
                        ));
                    }
                    dicts.push((name, pair[1], depth + 1));
                } else if self.pickle.call(pair[1]).is_some() {
                    let (key, tensor) = self.tensor(&name, pair[1])?;
                    if seen.len() == self.limits.tensors {
                        return Err(self.too_many());
                    }
                    if seen.insert(name.clone(), ()).is_some() {
                        return Err(self.malformed(&name, "it is there twice"));
                    }
                    tensors.entry(key).or_insert_with(Vec::new).push((name, tensor));
                }
            }
        }
        Ok(tensors)
    }

    fn too_many(&self) -> FileError {
        let limit = self.limits.tensors as u64;
        FileError::TooLarge {
            path: self.path.to_owned(),
            offset: 0,
            what: "tensors",
            found: limit + 1,
            limit,
        }
    }

    /// A call that makes a tensor: the tensor's storage, and how it lies there.
    fn tensor(&self, name: &str, value: Value) -> Result<(String, Described), FileError> {
        let mut value = value;
        // A parameter is a tensor with something beside.
        for _ in 0..2 {
            let (function, arguments) =
                self.call(value).ok_or_else(|| self.malformed(name, "it is no tensor"))?;
            match function {
                ("torch._utils", "_rebuild_tensor_v2") => return self.rebuilt(name, arguments),
                ("torch._utils", "_rebuild_parameter") if !arguments.is_empty() => value = arguments[0],
                (module, function) => {
                    let problem = format!(
                        "it is made by {module}.{function}, which is not called: only tensors are read"
                    );
                    return Err(self.malformed(name, problem));
                }
            }
        }
        Err(self.malformed(name, "it is a parameter of a parameter"))
    }

    fn call(&self, value: Value) -> Option<((&str, &str), &[Value])> {
        let (function, arguments) = self.pickle.call(value)?;
        Some((self.pickle.global(function)?, self.pickle.items(arguments)?))
    }

    /// The arguments of `torch._utils._rebuild_tensor_v2`: storage, offset, size, stride, and what is of no matter here.
    fn rebuilt(&self, name: &str, arguments: &[Value]) -> Result<(String, Described), FileError> {
        let problem = |problem: &str| self.malformed(name, problem);
        let &[storage, offset, ref rest @ ..] = arguments else {
            return Err(problem("it is made of too little"));
        };
        let &[size, stride, ..] = rest else { return Err(problem("it is made of too little")) };
        let id = self.pickle.persistent(storage).and_then(|id| self.pickle.items(id));
        let Some(&[kind, of, key, _, count]) = id else {
            return Err(problem("its storage is not in the file"));
        };
        if self.pickle.text(kind) != Some("storage") {
            return Err(problem("its storage is not in the file"));
        }
        let key = self.pickle.text(key).ok_or_else(|| problem("its storage has no name"))?;
        let (module, of) = self.pickle.global(of).ok_or_else(|| problem("its storage has no type"))?;
        let kind = kind_of(of).filter(|_| module == "torch").ok_or_else(|| FileError::UnsupportedDType {
            path: self.path.to_owned(),
            name: name.to_owned(),
            dtype: format!("{module}.{of}"),
        })?;
        let natural = |value| match value {
            Value::Natural(number) => usize::try_from(number).ok(),
            _ => None,
        };
        let naturals = |value| -> Option<Vec<usize>> {
            self.pickle.items(value)?.iter().map(|&item| natural(item)).collect()
        };
        let count = natural(count).ok_or_else(|| problem("the size of its storage is no number"))?;
        let storage_bytes = (count as u64).checked_mul(kind.size() as u64);
        let storage_bytes = storage_bytes.ok_or_else(|| problem("its storage is too large"))?;
        let offset = natural(offset).ok_or_else(|| problem("its offset is no number"))?;
        let (dims, strides) =
            naturals(size).zip(naturals(stride)).ok_or_else(|| problem("its shape is none"))?;
        if dims.len() != strides.len() {
            return Err(problem("it has not as many strides as axes"));
        }
        let shape = (&dims[..]).into_shape().map_err(|error| self.malformed(name, error))?;
        let described = Described { kind, storage_bytes, shape, offset, strides };
        if shape.checked_elements().is_none() || described.bytes() > self.limits.data_bytes {
            return Err(too_large(self.path, self.limits.data_bytes));
        }
        Ok((key.to_owned(), described))
    }
}

/// What PyTorch's storages of this name hold.
fn kind_of(storage: &str) -> Option<Kind> {
    Some(match storage {
        "FloatStorage" => Kind::Same(DType::F32),
        "DoubleStorage" => Kind::Same(DType::F64),
        "HalfStorage" => Kind::Same(DType::F16),
        "BFloat16Storage" => Kind::Same(DType::BF16),
        "LongStorage" => Kind::Same(DType::I64),
        "IntStorage" => Kind::Same(DType::I32),
        "ShortStorage" => Kind::I16,
        "CharStorage" => Kind::I8,
        "ByteStorage" => Kind::Same(DType::U8),
        "BoolStorage" => Kind::Same(DType::Bool),
        _ => return None,
    })
}

//! Extraction of tensors from the pickle of a state dict.

use std::collections::BTreeMap;

use highwater_files::pickle::{Pickle, Value};
use highwater_tensor::{DType, MAX_RANK, Shape};

use super::Reading;
use crate::io::skipped::Collector;
use crate::io::stored::{Kind, Place, Stored};
use crate::io::{Array, FileError};

/// Maximum nesting depth of containers.
const MAX_DEPTH: usize = 16;
/// Maximum number of visited entries per allowed tensor. A dictionary with many references is visited each time.
const ENTRIES_PER_TENSOR: u64 = 16;
/// Number of list items to inspect for tensors.
const INSPECTED_ITEMS: usize = 16;
/// Maximum size of a tensor's description, without its name.
const DESCRIPTION_BYTES: u64 = 200;
/// Bytes that descriptions and names may always use.
const NAMES_BYTES: u64 = 24 << 20;
/// Maximum length of a name in the list of skipped objects.
const MAX_NAME: usize = 256;

/// Tensors by name, grouped by their storage.
pub(super) type ByStorage = BTreeMap<String, Vec<(String, Described)>>;

/// A tensor's description in the pickle.
pub(super) struct Described {
    kind: Kind,
    /// The size of the whole storage.
    pub(super) storage_bytes: u64,
    shape: Shape,
    /// In elements.
    offset: usize,
    strides: [usize; MAX_RANK],
}

impl Described {
    /// Returns the size of the tensor after conversion to a supported element type.
    pub(super) fn bytes(&self) -> u64 {
        let elements = self.shape.checked_elements().map_or(u64::MAX, |elements| elements as u64);
        elements.saturating_mul(self.kind.dtype().size() as u64)
    }

    fn strides(&self) -> &[usize] {
        &self.strides[..self.shape.rank()]
    }

    fn is_contiguous(&self) -> bool {
        let mut expected = 1;
        self.shape.dims().iter().zip(self.strides()).rev().all(|(&size, &stride)| {
            let fits = size == 1 || stride == expected;
            expected *= size;
            fits
        })
    }

    /// Reads the elements from the storage's bytes; `None` if some are missing.
    pub(super) fn array(
        &self,
        storage: &[u8],
        high_byte_first: bool,
        place: Place<'_>,
    ) -> Result<Option<Array>, FileError> {
        let (stored, size) = (Stored { high_byte_first, ..Stored::little(self.kind) }, self.kind.size());
        if self.shape.elements() == 0 {
            return stored.read(&mut &[][..], self.shape, place).map(Some);
        }
        let mut axes = self.shape.dims().iter().zip(self.strides());
        let last = axes.try_fold(self.offset, |last, (&size, &stride)| {
            last.checked_add((size - 1).checked_mul(stride)?)
        });
        let end = last.and_then(|last| last.checked_add(1));
        let Some(needed) = end.and_then(|end| storage.get(..end.checked_mul(size)?)) else { return Ok(None) };
        if self.is_contiguous() {
            return stored.read(&mut &needed[self.offset * size..], self.shape, place).map(Some);
        }
        stored.gather(needed, self.shape, self.offset, self.strides(), place).map(Some)
    }
}

/// The id of a storage: `("storage", type, key, location, count)`. In the old format it may also describe a view of
/// another storage.
pub(super) struct StorageId<'a> {
    /// The name of its type in the module `torch`, such as `FloatStorage`.
    class: &'a str,
    /// Whether the type belongs to `torch`.
    is_of_torch: bool,
    module: &'a str,
    pub(super) key: &'a str,
    /// The number of its elements.
    pub(super) count: u64,
    /// The beginning of the view, in elements.
    view_offset: u64,
}

impl<'a> StorageId<'a> {
    pub(super) fn of(pickle: &'a Pickle, id: Value) -> Option<Self> {
        let &[tag, class, key, _, Value::Natural(count), ref view @ ..] = pickle.items(id)? else {
            return None;
        };
        let ((module, class), key) = (pickle.global(class)?, pickle.text(key)?);
        let view_offset = match view {
            [] | [Value::None] => 0,
            &[view, ..] => match pickle.items(view)? {
                &[_, Value::Natural(offset), ..] => offset,
                _ => return None,
            },
        };
        let is_of_torch = matches!(module, "torch" | "torch.storage");
        (pickle.text(tag)? == "storage").then_some(Self {
            class,
            is_of_torch,
            module,
            key,
            count,
            view_offset,
        })
    }

    /// Returns the element type; `None` if the storage holds untyped bytes.
    fn kind(&self) -> Option<Kind> {
        Some(match self.class {
            _ if !self.is_of_torch => return None,
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

    /// Returns the bytes per element, also for unsupported types.
    pub(super) fn element_bytes(&self) -> Option<u64> {
        if let Some(kind) = self.kind() {
            return Some(kind.size() as u64);
        }
        Some(match self.class {
            "UntypedStorage" | "QInt8Storage" | "QUInt8Storage" | "QUInt4x2Storage" | "QUInt2x4Storage" => 1,
            "QInt32Storage" => 4,
            "ComplexFloatStorage" => 8,
            "ComplexDoubleStorage" => 16,
            _ => return None,
        })
    }
}

/// Returns the element type with this name in the module `torch`.
fn kind_of(name: &str) -> Option<Kind> {
    Some(match name {
        "float32" | "float" => Kind::Same(DType::F32),
        "float64" | "double" => Kind::Same(DType::F64),
        "float16" | "half" => Kind::Same(DType::F16),
        "bfloat16" => Kind::Same(DType::BF16),
        "int64" | "long" => Kind::Same(DType::I64),
        "int32" | "int" => Kind::Same(DType::I32),
        "int16" | "short" => Kind::I16,
        "int8" => Kind::I8,
        "uint8" => Kind::Same(DType::U8),
        "uint16" => Kind::U16,
        "uint32" => Kind::Same(DType::U32),
        "uint64" => Kind::U64,
        "bool" => Kind::Same(DType::Bool),
        _ => return None,
    })
}

/// Traverses the containers of a pickle.
pub(super) struct Tensors<'a> {
    pickle: &'a Pickle,
    reading: &'a Reading<'a>,
    tensors: ByStorage,
    count: usize,
    collector: Collector,
    /// Entries that may still be visited.
    entries: u64,
    /// Bytes that names and descriptions may still use.
    names: u64,
}

impl<'a> Tensors<'a> {
    pub(super) fn new(pickle: &'a Pickle, reading: &'a Reading<'a>, pickle_bytes: u64) -> Self {
        let entries =
            (reading.limits.tensors as u64).saturating_mul(ENTRIES_PER_TENSOR).saturating_add(pickle_bytes);
        let names = NAMES_BYTES.max(reading.file_bytes);
        let (tensors, collector) = (BTreeMap::new(), Collector::default());
        Self { pickle, reading, tensors, count: 0, collector, entries, names }
    }

    pub(super) fn read(mut self) -> Result<(ByStorage, Collector), FileError> {
        let root = self.pickle.root();
        if self.pickle.entries(root).is_none() && self.pickle.items(root).is_none() {
            let class = self.pickle.class(root);
            let problem =
                format!("it holds no dictionary but an object of class {class}: save the state dict");
            return Err(self.reading.malformed(problem));
        }
        self.visit("", root, 0)?;
        Ok((self.tensors, self.collector))
    }

    /// Adds the tensors of a dictionary, list or tuple. At most [`MAX_DEPTH`] calls are nested.
    fn visit(&mut self, prefix: &str, container: Value, depth: usize) -> Result<(), FileError> {
        let pickle = self.pickle;
        for (key, value) in pickle.entries(container).into_iter().flatten() {
            match key {
                Value::Natural(index) => self.member(prefix, &index.to_string(), value, depth)?,
                key => match pickle.text(key) {
                    Some(key) => self.member(prefix, key, value, depth)?,
                    None => {
                        let reason = format!("its key is of class {}", pickle.class(key));
                        self.collector.skip(&shortened_name(prefix, "?"), pickle.class(value), reason);
                    }
                },
            }
        }
        for (index, &value) in pickle.items(container).unwrap_or_default().iter().enumerate() {
            self.member(prefix, &index.to_string(), value, depth)?;
        }
        Ok(())
    }

    /// Adds a member of a container: a tensor, or the tensors in another container.
    fn member(&mut self, prefix: &str, key: &str, value: Value, depth: usize) -> Result<(), FileError> {
        let pickle = self.pickle;
        // The entry is counted here, and again if it is visited.
        let looked_at = 1 + members(pickle, value).count() as u64;
        self.entries = self.entries.checked_sub(looked_at).ok_or_else(|| self.too_many())?;
        if pickle.call(value).is_some() {
            return self.object(prefix, key, value);
        }
        if !may_have_tensors(pickle, value) {
            self.collector.skip(&shortened_name(prefix, key), pickle.class(value), "only tensors are read");
            return Ok(());
        }
        if depth == MAX_DEPTH {
            let name = shortened_name(prefix, key);
            let problem = format!("{name}: containers nested more than {MAX_DEPTH} deep");
            return Err(self.reading.malformed(problem));
        }
        let name = self.join(prefix, key, 0)?;
        self.visit(&name, value, depth + 1)
    }

    /// Joins two parts of a name, and charges its bytes to the budget.
    fn join(&mut self, prefix: &str, key: &str, more: u64) -> Result<String, FileError> {
        let bytes = (prefix.len() + key.len() + 1) as u64 + more;
        let limit = NAMES_BYTES.max(self.reading.file_bytes);
        self.names = self.names.checked_sub(bytes).ok_or_else(|| FileError::TooLarge {
            path: self.reading.path.to_owned(),
            offset: 0,
            what: "bytes of names and shapes",
            found: limit.saturating_add(1),
            limit,
        })?;
        Ok(if prefix.is_empty() { key.to_owned() } else { format!("{prefix}.{key}") })
    }

    /// Adds a tensor, or skips another object.
    fn object(&mut self, prefix: &str, key: &str, value: Value) -> Result<(), FileError> {
        let name = shortened_name(prefix, key);
        match self.described(&name, value) {
            Ok((storage, tensor)) => {
                if self.count == self.reading.limits.tensors {
                    return Err(self.too_many());
                }
                self.count += 1;
                let name = self.join(prefix, key, DESCRIPTION_BYTES)?;
                self.tensors.entry(storage).or_default().push((name, tensor));
                Ok(())
            }
            Err(Refusal::Object(error)) => {
                let class = self.pickle.class(value);
                self.collector.skip_object(&name, &class, error);
                Ok(())
            }
            Err(Refusal::Error(error)) => self.collector.skip_unsupported(&name, error),
        }
    }

    fn too_many(&self) -> FileError {
        let limit = self.reading.limits.tensors as u64;
        let (path, found) = (self.reading.path.to_owned(), limit.saturating_add(1));
        FileError::TooLarge { path, offset: 0, what: "tensors", found, limit }
    }

    /// Parses a call that creates a tensor: returns the key of its storage and its description.
    fn described(&self, name: &str, value: Value) -> Result<(String, Described), Refusal> {
        let problem = |problem: String| self.reading.malformed(format!("{name}: {problem}"));
        let call = |value| {
            let (function, arguments) = self.pickle.call(value)?;
            Some((self.pickle.global(function)?, self.pickle.items(arguments)?))
        };
        let Some((mut function, mut arguments)) = call(value) else {
            return Err(Refusal::Object(problem("it is not a tensor".to_owned())));
        };
        // A parameter is a tensor with attributes; a subclass may wrap a parameter.
        for _ in 0..3 {
            match (function, arguments) {
                (("torch._utils", "_rebuild_tensor" | "_rebuild_tensor_v2" | "_rebuild_tensor_v3"), _) => {
                    return Ok(self.rebuilt(name, arguments)?);
                }
                (("torch._utils", "_rebuild_parameter" | "_rebuild_parameter_with_state"), &[data, ..])
                    if let Some(inner) = call(data) =>
                {
                    (function, arguments) = inner;
                }
                (("torch._tensor", "_rebuild_from_type_v2"), &[inner, _, items, ..])
                    if let (Some(inner), Some(items)) =
                        (self.pickle.global(inner), self.pickle.items(items)) =>
                {
                    (function, arguments) = (inner, items);
                }
                _ => break,
            }
        }
        let (module, function) = function;
        let made = format!("it is made by {module}.{function}, which is not called: only tensors are read");
        Err(Refusal::Object(problem(made)))
    }

    /// Parses the arguments of `torch._utils._rebuild_tensor_v2`: storage, offset, size and stride. In
    /// `_rebuild_tensor_v3`, the seventh is the element type.
    fn rebuilt(&self, name: &str, arguments: &[Value]) -> Result<(String, Described), FileError> {
        let problem = |problem: &str| self.reading.malformed(format!("{name}: {problem}"));
        let &[storage, offset, size, stride, ref rest @ ..] = arguments else {
            return Err(problem("it has too few arguments"));
        };
        let id = self.pickle.persistent(storage).and_then(|id| StorageId::of(self.pickle, id));
        let id = id.ok_or_else(|| problem("its storage is not in the file"))?;
        let (kind, dtype) = match rest.get(2).and_then(|&dtype| self.pickle.global(dtype)) {
            Some((module, dtype)) => {
                (kind_of(dtype).filter(|_| module == "torch"), format!("{module}.{dtype}"))
            }
            None => (id.kind(), format!("{}.{}", id.module, id.class)),
        };
        let (path, owned) = (self.reading.path, || name.to_owned());
        let unsupported = || FileError::UnsupportedDType { path: path.to_owned(), name: owned(), dtype };
        let kind = kind.ok_or_else(unsupported)?;
        let element_bytes = id.element_bytes().ok_or_else(|| problem("its storage has no known type"))?;
        let storage_bytes = id.count.checked_mul(element_bytes);
        let storage_bytes = storage_bytes.ok_or_else(|| problem("its storage is too large"))?;
        let natural = |value| match value {
            Value::Natural(number) => usize::try_from(number).ok(),
            _ => None,
        };
        let view_offset = natural(Value::Natural(id.view_offset));
        let offset = natural(offset).zip(view_offset).and_then(|(offset, view)| offset.checked_add(view));
        let offset = offset.ok_or_else(|| problem("its offset is not a number"))?;
        let (sizes, strides) = self
            .pickle
            .items(size)
            .zip(self.pickle.items(stride))
            .ok_or_else(|| problem("its shape is invalid"))?;
        if sizes.len() != strides.len() {
            return Err(problem("the number of strides differs from the number of axes"));
        }
        if sizes.len() > MAX_RANK {
            return Err(FileError::TooManyAxes { path: path.to_owned(), name: owned(), axes: sizes.len() });
        }
        let naturals = |values: &[Value]| -> Option<[usize; MAX_RANK]> {
            let mut naturals = [0; MAX_RANK];
            for (to, &value) in naturals.iter_mut().zip(values) {
                *to = natural(value)?;
            }
            Some(naturals)
        };
        let (dims, strides) =
            naturals(sizes).zip(naturals(strides)).ok_or_else(|| problem("its shape is invalid"))?;
        let shape = Shape::new(&dims[..sizes.len()]).map_err(|error| problem(&error.to_string()))?;
        let described = Described { kind, storage_bytes, shape, offset, strides };
        if described.bytes() > self.reading.tensor_bytes() {
            return Err(self.reading.too_large(described.bytes()));
        }
        Ok((id.key.to_owned(), described))
    }
}

/// The reason why an object is not read as a tensor.
enum Refusal {
    /// The object is no tensor.
    Object(FileError),
    /// The object is a tensor, but damaged or not supported.
    Error(FileError),
}

impl From<FileError> for Refusal {
    fn from(error: FileError) -> Self {
        Self::Error(error)
    }
}

/// Returns the values in a dictionary, list or tuple.
fn members(pickle: &Pickle, container: Value) -> impl Iterator<Item = Value> {
    let values = pickle.entries(container).into_iter().flatten().map(|(_, value)| value);
    values.chain(pickle.items(container).unwrap_or_default().iter().copied())
}

/// Whether a container may hold tensors: it has a member that is an object or a nonempty container.
fn may_have_tensors(pickle: &Pickle, container: Value) -> bool {
    let is_list = |value| pickle.items(value).is_some_and(|items| !items.is_empty());
    let may_be_or_hold = |value| {
        pickle.call(value).is_some()
            || pickle.entries(value).is_some()
            || (is_list(value)
                && members(pickle, value).take(INSPECTED_ITEMS).any(|item| pickle.call(item).is_some()))
    };
    members(pickle, container).any(may_be_or_hold)
}

/// Joins two parts of a name for a message or list, and truncates it.
fn shortened_name(prefix: &str, key: &str) -> String {
    let dot = if prefix.is_empty() { "" } else { "." };
    prefix.chars().chain(dot.chars()).chain(key.chars()).take(MAX_NAME).collect()
}

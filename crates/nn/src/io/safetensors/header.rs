//! The header of a safetensors file: parsed without intermediate JSON values, checked completely before any data are
//! read, and written.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::io::{self, Read};
use std::path::Path;

use highwater_files::FileKind;
use highwater_tensor::{DType, MAX_RANK, Shape};
use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde_json::{Value, json};

use super::SafetensorsLimits;
use crate::file_kind;
use crate::io::stored::Kind;
use crate::io::{Array, FileError};

/// The field of the header that is not a tensor.
const METADATA: &str = "__metadata__";

/// The number of bytes that hold the length of the header.
const LENGTH_BYTES: u64 = 8;

/// Element types by the format's names.
const KINDS: [(Kind, &str); 13] = [
    (Kind::Same(DType::F32), "F32"),
    (Kind::Same(DType::F64), "F64"),
    (Kind::Same(DType::F16), "F16"),
    (Kind::Same(DType::BF16), "BF16"),
    (Kind::Same(DType::I64), "I64"),
    (Kind::Same(DType::I32), "I32"),
    (Kind::Same(DType::U32), "U32"),
    (Kind::Same(DType::U8), "U8"),
    (Kind::Same(DType::Bool), "BOOL"),
    (Kind::I8, "I8"),
    (Kind::I16, "I16"),
    (Kind::U16, "U16"),
    (Kind::U64, "U64"),
];

/// Returns the format's name of an element type.
pub(crate) fn name_of(kind: Kind) -> &'static str {
    KINDS.iter().find(|(known, _)| *known == kind).map_or("", |(_, name)| name)
}

/// Maximum length of an unknown element type that an error repeats.
const MAX_DTYPE: usize = 40;

/// Maximum length of a name that an error repeats.
const MAX_SHOWN: usize = 100;

/// A tensor in the file.
pub(crate) struct Entry {
    pub(crate) name: String,
    /// Its element type and shape, or the reason why it is not supported.
    pub(crate) contents: Result<(Kind, Shape), FileError>,
    /// Its size in the file.
    pub(crate) bytes: u64,
}

/// The contents of the header: tensors without gaps between them, in the order of their data.
pub(crate) struct Header {
    pub(crate) entries: Vec<Entry>,
    pub(crate) metadata: BTreeMap<String, String>,
    /// The offset of the data in the file.
    pub(crate) data_start: u64,
}

impl Header {
    pub(crate) fn read(
        source: &mut impl Read,
        path: &Path,
        limits: &SafetensorsLimits,
    ) -> Result<Self, FileError> {
        let mut length = [0; LENGTH_BYTES as usize];
        let read = source.read_exact(&mut length);
        read.map_err(|error| FileError::read(path, 0, "the length of the header", &error))?;
        let mut text = Vec::new();
        let too_large = |offset, what, found, limit| {
            Err(FileError::TooLarge { path: path.to_owned(), offset, what, found, limit })
        };
        let wanted = u64::from_le_bytes(length);
        let is_too_long = wanted > limits.header_bytes;
        // The first bytes suffice to recognize a file of another kind.
        let wanted_bytes = if is_too_long { FileKind::START_BYTES as u64 } else { wanted };
        source.take(wanted_bytes).read_to_end(&mut text).map_err(|error| FileError::io(path, &error))?;
        if text.first() != Some(&b'{') {
            let start = [&length[..], &text[..text.len().min(FileKind::START_BYTES)]].concat();
            if let Some(problem) = file_kind::mistaken_or_text(&start, "a safetensors file") {
                return Err(FileError::malformed(path, 0, problem));
            }
        }
        if is_too_long {
            return too_large(0, "bytes of header", wanted, limits.header_bytes);
        }
        if (text.len() as u64) < wanted {
            let (path, what) = (path.to_owned(), "the header".to_owned());
            return Err(FileError::Truncated { path, offset: LENGTH_BYTES, what });
        }
        let malformed = |problem: String| FileError::malformed(path, LENGTH_BYTES, problem);
        let mut fields = Fields { limit: limits.tensors, ..Fields::default() };
        let mut json = serde_json::Deserializer::from_slice(&text);
        let parsed = fields.deserialize(&mut json).and_then(|()| json.end());
        if let Some(what) = fields.too_many {
            return too_large(LENGTH_BYTES, what, limits.tensors as u64 + 1, limits.tensors as u64);
        }
        parsed.map_err(|error| malformed(format!("the header is invalid: {error}")))?;
        drop(text);
        let Fields { tensors: mut placed, metadata, .. } = fields;

        placed.sort_by(|(name, _), (other, _)| name.cmp(other));
        if let Some(pair) = placed.windows(2).find(|pair| pair[0].0 == pair[1].0) {
            return Err(malformed(format!("the name {:?} is there twice", pair[0].0)));
        }
        // An empty tensor may begin at the offset of the next tensor; it then comes first.
        placed.sort_by_key(|(_, described)| (described.data_offsets.begin, described.data_offsets.end));
        let (mut end, mut kept) = (0, 0_u64);
        let mut entries = Vec::with_capacity(placed.len());
        for (name, described) in placed {
            let Offsets { begin, end: next } = described.data_offsets;
            if begin != end {
                return Err(malformed(format!("{name:?} begins at {begin} of the data, not at {end}")));
            }
            end = next;
            let bytes = next - begin;
            let contents = described.contents(path, &name);
            if let Ok((kind, shape)) = &contents {
                let elements = shape.checked_elements();
                let needed = elements.and_then(|count| count.checked_mul(kind.size()));
                if needed.map(|needed| needed as u64) != Some(bytes) {
                    let dtype = name_of(*kind);
                    return Err(malformed(format!("{name:?}: {bytes} bytes do not make {dtype} {shape}")));
                }
                let elements = bytes / kind.size() as u64;
                kept = kept.saturating_add(elements.saturating_mul(kind.dtype().size() as u64));
            }
            entries.push(Entry { name, contents, bytes });
        }
        if kept > limits.data_bytes {
            return too_large(LENGTH_BYTES, "bytes of data", kept, limits.data_bytes);
        }
        Ok(Self { entries, metadata: metadata.unwrap_or_default(), data_start: LENGTH_BYTES + wanted })
    }
}

/// A tensor's description in the header.
#[derive(Deserialize)]
#[serde(expecting = "an object with dtype, shape and data_offsets")]
struct Described {
    dtype: Dtype,
    shape: Dims,
    data_offsets: Offsets,
}

/// The name of an element type.
#[derive(Deserialize)]
#[serde(from = "String")]
enum Dtype {
    Known(Kind),
    /// The beginning of an unknown name.
    Unknown(String),
}

impl From<String> for Dtype {
    fn from(name: String) -> Self {
        let known = KINDS.iter().find(|(_, known)| *known == name);
        let unknown = || Self::Unknown(name.chars().take(MAX_DTYPE).collect());
        known.map_or_else(unknown, |&(kind, _)| Self::Known(kind))
    }
}

/// The place of a tensor's data.
#[derive(Deserialize)]
#[serde(try_from = "Dims")]
struct Offsets {
    begin: u64,
    end: u64,
}

impl TryFrom<Dims> for Offsets {
    type Error = &'static str;

    fn try_from(offsets: Dims) -> Result<Self, &'static str> {
        let [begin, end] = [offsets.dims[0] as u64, offsets.dims[1] as u64];
        match offsets.axes {
            2 if begin <= end => Ok(Self { begin, end }),
            2 => Err("data_offsets end before they begin"),
            _ => Err("data_offsets does not have two elements"),
        }
    }
}

/// The sizes of the first axes, at most as many as tensors have, and the number of all axes.
#[derive(Clone, Copy)]
struct Dims {
    dims: [usize; MAX_RANK],
    axes: usize,
}

impl Described {
    fn contents(&self, path: &Path, name: &str) -> Result<(Kind, Shape), FileError> {
        let (path, name) = (path.to_owned(), name.to_owned());
        let kind = match &self.dtype {
            Dtype::Known(kind) => *kind,
            Dtype::Unknown(dtype) => {
                return Err(FileError::UnsupportedDType { path, name, dtype: dtype.clone() });
            }
        };
        let Dims { dims, axes } = self.shape;
        let shape = dims.get(..axes).and_then(|dims| Shape::new(dims).ok());
        let shape = shape.ok_or(FileError::TooManyAxes { path, name, axes })?;
        Ok((kind, shape))
    }
}

/// The fields of the header. Duplicate names are kept, so that the reader can reject them.
#[derive(Default)]
struct Fields {
    tensors: Vec<(String, Described)>,
    metadata: Option<BTreeMap<String, String>>,
    /// Maximum number of tensors, and of metadata strings.
    limit: usize,
    /// The kind of items that exceed the limit.
    too_many: Option<&'static str>,
}

impl<'de> DeserializeSeed<'de> for &mut Fields {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for &mut Fields {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of tensors")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(name) = map.next_key::<String>()? {
            if name == METADATA {
                if self.metadata.is_some() {
                    return Err(A::Error::custom("the name \"__metadata__\" is there twice"));
                }
                let mut texts = Texts { texts: BTreeMap::new(), left: self.limit, too_many: false };
                let read = map.next_value_seed(&mut texts);
                self.too_many = texts.too_many.then_some("texts of metadata");
                self.metadata = Some(texts.texts);
                read.map_err(|error| A::Error::custom(format!("metadata that are not texts: {error}")))?;
                continue;
            }
            if self.tensors.len() == self.limit {
                self.too_many = Some("tensors");
                return Err(A::Error::custom("too many tensors"));
            }
            let described = map.next_value::<Described>();
            let described = described.map_err(|error| {
                let name: String = name.chars().take(MAX_SHOWN).collect();
                A::Error::custom(format!("{name:?}: {error}"))
            })?;
            self.tensors.push((name, described));
        }
        Ok(())
    }
}

/// Strings by name, or `null`.
struct Texts {
    texts: BTreeMap<String, String>,
    left: usize,
    too_many: bool,
}

impl<'de> DeserializeSeed<'de> for &mut Texts {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for &mut Texts {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of texts or null")
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some((name, text)) = map.next_entry()? {
            let left = self.left.checked_sub(1);
            self.too_many = left.is_none();
            self.left = left.ok_or_else(|| A::Error::custom("too many texts"))?;
            self.texts.insert(name, text);
        }
        Ok(())
    }
}

impl<'de> Deserialize<'de> for Dims {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Sizes;
        impl<'de> Visitor<'de> for Sizes {
            type Value = Dims;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of whole numbers")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Dims, A::Error> {
                let mut dims = Dims { dims: [0; MAX_RANK], axes: 0 };
                while let Some(Whole(size)) = list.next_element()? {
                    if let Some(dim) = dims.dims.get_mut(dims.axes) {
                        *dim = size;
                    }
                    dims.axes += 1;
                }
                Ok(dims)
            }
        }
        deserializer.deserialize_seq(Sizes)
    }
}

/// A size or an offset.
struct Whole(usize);

impl<'de> Deserialize<'de> for Whole {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let size = usize::deserialize(deserializer);
        size.map(Self).map_err(|error| D::Error::custom(format!("no whole number: {error}")))
    }
}

/// Returns the header of a file with these tensors in this order, padded so that the data are aligned.
pub(super) fn text(
    arrays: &[(Cow<'_, str>, &Array)],
    metadata: &BTreeMap<String, String>,
) -> io::Result<Vec<u8>> {
    let mut fields = serde_json::Map::new();
    if !metadata.is_empty() {
        fields.insert(METADATA.to_owned(), json!(metadata));
    }
    let mut begin = 0;
    for (name, array) in arrays {
        if name == METADATA {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "no tensor can be called __metadata__"));
        }
        let known = KINDS.iter().find(|(kind, _)| *kind == Kind::Same(array.dtype()));
        let (_, dtype) = known.ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
        let end = begin + array.bytes().len();
        let offsets = [begin, end];
        let value = json!({ "dtype": dtype, "shape": array.shape().dims(), "data_offsets": offsets });
        fields.insert(name.clone().into_owned(), value);
        begin = end;
    }
    let mut text = serde_json::to_vec(&Value::Object(fields))?;
    text.resize(text.len().next_multiple_of(LENGTH_BYTES as usize), b' ');
    Ok(text)
}

//! The header of a safetensors file: read and checked as a whole before any data, and written.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io::{self, Read};
use std::path::Path;

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::{Value, json};

use super::SafetensorsLimits;
use crate::dtype::DType;
use crate::io::stored::Kind;
use crate::io::{Array, FileError};
use crate::shape::Shape;

/// The name in the header that is no tensor's.
const METADATA: &str = "__metadata__";

/// How many bytes say the length of the header.
const LENGTH_BYTES: u64 = 8;

/// Kinds of elements, as the format calls them.
const KINDS: [(Kind, &str); 13] = [
    (Kind::Same(DType::F32), "F32"),
    (Kind::Same(DType::F64), "F64"),
    (Kind::Same(DType::F16), "F16"),
    (Kind::Same(DType::BF16), "BF16"),
    (Kind::Same(DType::I64), "I64"),
    (Kind::Same(DType::I32), "I32"),
    (Kind::Same(DType::U8), "U8"),
    (Kind::Same(DType::Bool), "BOOL"),
    (Kind::I8, "I8"),
    (Kind::I16, "I16"),
    (Kind::U16, "U16"),
    (Kind::U32, "U32"),
    (Kind::U64, "U64"),
];

/// A tensor in the file.
pub(super) struct Entry {
    pub(super) name: String,
    pub(super) kind: Kind,
    pub(super) shape: Shape,
    /// In the file.
    pub(super) bytes: u64,
}

/// What the header says: tensors without gaps between them, in the order of their data.
pub(super) struct Header {
    pub(super) entries: Vec<Entry>,
    pub(super) metadata: BTreeMap<String, String>,
    /// Where the data begin in the file.
    pub(super) data_start: u64,
}

impl Header {
    pub(super) fn read(
        source: &mut impl Read,
        path: &Path,
        limits: &SafetensorsLimits,
    ) -> Result<Self, FileError> {
        let mut length = [0; LENGTH_BYTES as usize];
        let read = source.read_exact(&mut length);
        read.map_err(|error| FileError::read(path, 0, "the length of the header", &error))?;
        let length = u64::from_le_bytes(length);
        let too_large = |what, found, limit| FileError::TooLarge {
            path: path.to_owned(),
            offset: if what == "bytes of header" { 0 } else { LENGTH_BYTES },
            what,
            found,
            limit,
        };
        if length > limits.header_bytes {
            return Err(too_large("bytes of header", length, limits.header_bytes));
        }
        let mut text = Vec::new();
        source.take(length).read_to_end(&mut text).map_err(|error| FileError::io(path, &error))?;
        if (text.len() as u64) < length {
            let (path, what) = (path.to_owned(), "the header".to_owned());
            return Err(FileError::Truncated { path, offset: LENGTH_BYTES, what });
        }
        let malformed = |problem: String| FileError::malformed(path, LENGTH_BYTES, problem);
        let Fields(fields) = serde_json::from_slice(&text)
            .map_err(|error| malformed(format!("the header is not as it should be: {error}")))?;
        if fields.len() > limits.tensors.saturating_add(1) {
            return Err(too_large("tensors", fields.len() as u64, limits.tensors as u64));
        }

        let mut names = BTreeSet::new();
        let mut metadata = BTreeMap::new();
        let mut placed = Vec::new();
        for (name, value) in &fields {
            if !names.insert(name) {
                return Err(malformed(format!("the name {name:?} is there twice")));
            }
            if name == METADATA {
                metadata = texts(value).ok_or_else(|| malformed("metadata that are not texts".into()))?;
                continue;
            }
            let described = describe(value).map_err(|problem| malformed(format!("{name:?}: {problem}")))?;
            placed.push((described, name));
        }
        // An empty tensor may begin where the next one does, and comes before it.
        placed.sort_by_key(|(described, _)| (described.begin, described.end));
        let mut end = 0;
        let mut entries = Vec::with_capacity(placed.len());
        for (described, name) in placed {
            if described.begin != end {
                let problem = format!("{name:?} begins at {} of the data, not at {end}", described.begin);
                return Err(malformed(problem));
            }
            end = described.end;
            let Some(&(kind, _)) = KINDS.iter().find(|(_, known)| *known == described.dtype) else {
                let (path, name) = (path.to_owned(), name.clone());
                return Err(FileError::UnsupportedDType { path, name, dtype: described.dtype.to_owned() });
            };
            let shape = described.shape;
            let bytes = shape.checked_elements().and_then(|count| count.checked_mul(kind.size()));
            let given = described.end - described.begin;
            if bytes.map(|bytes| bytes as u64) != Some(given) {
                return Err(malformed(format!(
                    "{name:?}: {given} bytes do not make {} {shape}",
                    described.dtype
                )));
            }
            entries.push(Entry { name: name.clone(), kind, shape, bytes: given });
        }
        let kept = entries.iter().map(|entry| {
            (entry.bytes / entry.kind.size() as u64).saturating_mul(entry.kind.dtype().size() as u64)
        });
        let kept = kept.fold(0, u64::saturating_add);
        if kept > limits.data_bytes {
            return Err(too_large("bytes of data", kept, limits.data_bytes));
        }
        Ok(Self { entries, metadata, data_start: LENGTH_BYTES + length })
    }
}

/// The header's fields as they stand there: a plain map would hide names that come twice.
struct Fields(Vec<(String, Value)>);

impl<'de> Deserialize<'de> for Fields {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Pairs;
        impl<'de> Visitor<'de> for Pairs {
            type Value = Fields;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of tensors")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Fields, A::Error> {
                let mut pairs = Vec::new();
                while let Some(pair) = map.next_entry()? {
                    pairs.push(pair);
                }
                Ok(Fields(pairs))
            }
        }
        deserializer.deserialize_map(Pairs)
    }
}

/// A tensor as the header tells of it; the element type may be unknown.
struct Described<'a> {
    dtype: &'a str,
    shape: Shape,
    begin: u64,
    end: u64,
}

fn describe(value: &Value) -> Result<Described<'_>, String> {
    let dtype = value.get("dtype").and_then(Value::as_str).ok_or("no text called dtype")?;
    let dims = value.get("shape").and_then(Value::as_array).ok_or("no list called shape")?;
    let dims = dims.iter().map(|dim| dim.as_u64().and_then(|dim| usize::try_from(dim).ok()));
    let dims = dims.collect::<Option<Vec<usize>>>().ok_or("a size that is no whole number")?;
    let shape = Shape::new(&dims).map_err(|error| error.to_string())?;
    let offsets = value.get("data_offsets").and_then(Value::as_array).ok_or("no list called data_offsets")?;
    let [begin, end] = &offsets[..] else { return Err("data_offsets are not two".into()) };
    let (Some(begin), Some(end)) = (begin.as_u64(), end.as_u64()) else {
        return Err("an offset that is no whole number".into());
    };
    if begin > end {
        return Err("data that end before they begin".into());
    }
    Ok(Described { dtype, shape, begin, end })
}

fn texts(value: &Value) -> Option<BTreeMap<String, String>> {
    // Inserted, as a map that is collected brings a sort of its own.
    let mut texts = BTreeMap::new();
    for (name, text) in value.as_object()? {
        texts.insert(name.clone(), text.as_str()?.to_owned());
    }
    Some(texts)
}

/// The header of a file with these tensors in this order, padded so that the data are aligned.
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

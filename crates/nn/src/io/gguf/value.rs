//! The metadata of GGUF files.

use std::io::{self, Write};

use super::cursor::Cursor;
use crate::io::FileError;

/// Maximum depth of arrays within arrays.
const MAX_DEPTH: usize = 4;

/// The number of the type of arrays.
const ARRAY: u32 = 9;

/// A fixed-size value in a file.
trait Fixed: Sized {
    const BYTES: usize;
    fn read(bytes: &[u8]) -> Option<Self>;
    fn write(&self, sink: &mut dyn Write) -> io::Result<()>;
}

macro_rules! fixed {
    ($($type:ty)*) => {$(
        impl Fixed for $type {
            const BYTES: usize = size_of::<Self>();
            fn read(bytes: &[u8]) -> Option<Self> {
                Some(Self::from_le_bytes(bytes.try_into().ok()?))
            }
            fn write(&self, sink: &mut dyn Write) -> io::Result<()> {
                sink.write_all(&self.to_le_bytes())
            }
        }
    )*};
}

fixed!(u8 i8 u16 i16 u32 i32 u64 i64 f32 f64);

impl Fixed for bool {
    const BYTES: usize = 1;
    fn read(bytes: &[u8]) -> Option<Self> {
        match bytes {
            [0] => Some(false),
            [1] => Some(true),
            _ => None,
        }
    }
    fn write(&self, sink: &mut dyn Write) -> io::Result<()> {
        sink.write_all(&[u8::from(*self)])
    }
}

/// Defines the types of values and arrays, of which all but strings and arrays have a fixed size.
macro_rules! values {
    ($($number:literal $variant:ident $type:ty: $doc:literal;)*) => {
        /// A value of the metadata of a GGUF file.
        ///
        /// ```
        /// use highwater::io::{GgufArray, GgufValue};
        /// let value = GgufValue::U32(30);
        /// assert_eq!((value.as_u64(), value.as_f64(), value.as_str()), (Some(30), Some(30.0), None));
        /// let tokens = GgufValue::Array(GgufArray::String(vec!["a".into(), "b".into()]));
        /// assert_eq!(tokens.as_array().and_then(GgufArray::as_strings).map(<[_]>::len), Some(2));
        /// ```
        #[derive(Clone, Debug, PartialEq)]
        pub enum GgufValue {
            $(#[doc = $doc] $variant($type),)*
            /// A text.
            String(String),
            /// An array.
            Array(GgufArray),
        }

        /// An array in the metadata of a GGUF file, whose elements have one type.
        #[derive(Clone, Debug, PartialEq)]
        pub enum GgufArray {
            $(#[doc = concat!("Elements of the kind: ", $doc)] $variant(Vec<$type>),)*
            /// Texts.
            String(Vec<String>),
            /// Arrays, at most four deep.
            Array(Vec<GgufArray>),
        }

        impl GgufValue {
            /// Reads a value of a type, which its number tells.
            pub(super) fn read(cursor: &mut Cursor<'_>, number: u32) -> Result<Self, FileError> {
                Ok(match number {
                    $($number => Self::$variant(fixed(cursor)?),)*
                    STRING => Self::String(cursor.text()?.to_owned()),
                    ARRAY => Self::Array(GgufArray::read(cursor, 1)?),
                    _ => return Err(unknown(cursor, number)),
                })
            }

            const fn number(&self) -> u32 {
                match self {
                    $(Self::$variant(_) => $number,)*
                    Self::String(_) => STRING,
                    Self::Array(_) => ARRAY,
                }
            }

            /// Writes the number of the type, and the value.
            pub(super) fn write(&self, sink: &mut dyn Write) -> io::Result<()> {
                self.number().write(sink)?;
                match self {
                    $(Self::$variant(value) => value.write(sink),)*
                    Self::String(text) => write_text(sink, text),
                    Self::Array(array) => array.write(sink),
                }
            }
        }

        impl GgufArray {
            fn read(cursor: &mut Cursor<'_>, depth: usize) -> Result<Self, FileError> {
                if depth > MAX_DEPTH {
                    return Err(cursor.malformed(format!("arrays are nested more than {MAX_DEPTH} deep")));
                }
                let (number, count) = (cursor.u32()?, cursor.u64()?);
                Ok(match number {
                    $($number => Self::$variant(fixed_array(cursor, count)?),)*
                    STRING => {
                        let mut texts = Vec::with_capacity(cursor.count(count, size_of::<u64>())?);
                        for _ in 0..count {
                            texts.push(cursor.text()?.to_owned());
                        }
                        Self::String(texts)
                    }
                    ARRAY => {
                        const LEAST: usize = size_of::<u32>() + size_of::<u64>();
                        let mut arrays = Vec::with_capacity(cursor.count(count, LEAST)?);
                        for _ in 0..count {
                            arrays.push(Self::read(cursor, depth + 1)?);
                        }
                        Self::Array(arrays)
                    }
                    _ => return Err(unknown(cursor, number)),
                })
            }

            /// Writes the number of the element type, the number of elements, and the elements.
            fn write(&self, sink: &mut dyn Write) -> io::Result<()> {
                match self {
                    $(Self::$variant(values) => {
                        begin(sink, $number, values.len())?;
                        values.iter().try_for_each(|value| value.write(sink))
                    })*
                    Self::String(texts) => {
                        begin(sink, STRING, texts.len())?;
                        texts.iter().try_for_each(|text| write_text(sink, text))
                    }
                    Self::Array(arrays) => {
                        begin(sink, ARRAY, arrays.len())?;
                        arrays.iter().try_for_each(|array| array.write(sink))
                    }
                }
            }

            /// Returns the number of elements.
            #[must_use]
            pub const fn len(&self) -> usize {
                match self {
                    $(Self::$variant(values) => values.len(),)*
                    Self::String(texts) => texts.len(),
                    Self::Array(arrays) => arrays.len(),
                }
            }
        }
    };
}

/// The number of the type of texts.
const STRING: u32 = 8;

values! {
    0 U8 u8: "An 8-bit unsigned integer.";
    1 I8 i8: "An 8-bit signed integer.";
    2 U16 u16: "A 16-bit unsigned integer.";
    3 I16 i16: "A 16-bit signed integer.";
    4 U32 u32: "A 32-bit unsigned integer.";
    5 I32 i32: "A 32-bit signed integer.";
    6 F32 f32: "A 32-bit float.";
    7 Bool bool: "A boolean.";
    10 U64 u64: "A 64-bit unsigned integer.";
    11 I64 i64: "A 64-bit signed integer.";
    12 F64 f64: "A 64-bit float.";
}

impl GgufValue {
    /// Returns an integer of any size that is not negative.
    #[must_use]
    pub fn as_u64(&self) -> Option<u64> {
        match *self {
            Self::U64(value) => Some(value),
            _ => self.as_i64()?.try_into().ok(),
        }
    }

    /// Returns an integer of any size.
    #[must_use]
    pub fn as_i64(&self) -> Option<i64> {
        Some(match *self {
            Self::U8(value) => value.into(),
            Self::I8(value) => value.into(),
            Self::U16(value) => value.into(),
            Self::I16(value) => value.into(),
            Self::U32(value) => value.into(),
            Self::I32(value) => value.into(),
            Self::U64(value) => value.try_into().ok()?,
            Self::I64(value) => value,
            _ => return None,
        })
    }

    /// Returns a float or integer of any size.
    #[must_use]
    pub fn as_f64(&self) -> Option<f64> {
        match *self {
            Self::F32(value) => Some(value.into()),
            Self::F64(value) => Some(value),
            Self::U64(value) => Some(value as f64),
            _ => self.as_i64().map(|value| value as f64),
        }
    }

    /// Returns a boolean.
    #[must_use]
    pub const fn as_bool(&self) -> Option<bool> {
        match *self {
            Self::Bool(value) => Some(value),
            _ => None,
        }
    }

    /// Returns a text.
    #[must_use]
    pub fn as_str(&self) -> Option<&str> {
        match self {
            Self::String(text) => Some(text),
            _ => None,
        }
    }

    /// Returns an array.
    #[must_use]
    pub const fn as_array(&self) -> Option<&GgufArray> {
        match self {
            Self::Array(array) => Some(array),
            _ => None,
        }
    }
}

impl GgufArray {
    /// Returns whether there are no elements.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the texts of an array of texts.
    #[must_use]
    pub fn as_strings(&self) -> Option<&[String]> {
        match self {
            Self::String(texts) => Some(texts),
            _ => None,
        }
    }

    /// Returns the elements of an array of 32-bit floats.
    #[must_use]
    pub fn as_f32s(&self) -> Option<&[f32]> {
        match self {
            Self::F32(values) => Some(values),
            _ => None,
        }
    }

    /// Returns the elements of an array of 32-bit signed integers.
    #[must_use]
    pub fn as_i32s(&self) -> Option<&[i32]> {
        match self {
            Self::I32(values) => Some(values),
            _ => None,
        }
    }
}

fn unknown(cursor: &Cursor<'_>, number: u32) -> FileError {
    cursor.malformed(format!("metadata have the unknown type {number}"))
}

fn fixed<T: Fixed>(cursor: &mut Cursor<'_>) -> Result<T, FileError> {
    let value = T::read(cursor.bytes(T::BYTES as u64)?);
    // Only booleans have invalid bytes.
    value.ok_or_else(|| cursor.malformed("a boolean is neither 0 nor 1".to_owned()))
}

fn fixed_array<T: Fixed>(cursor: &mut Cursor<'_>, count: u64) -> Result<Vec<T>, FileError> {
    let count = cursor.count(count, T::BYTES)?;
    let bytes = cursor.bytes((count * T::BYTES) as u64)?;
    let values: Option<Vec<T>> = bytes.chunks_exact(T::BYTES).map(T::read).collect();
    values.ok_or_else(|| cursor.malformed("a boolean is neither 0 nor 1".to_owned()))
}

fn begin(sink: &mut dyn Write, number: u32, count: usize) -> io::Result<()> {
    number.write(sink)?;
    (count as u64).write(sink)
}

/// Writes a text after its length.
pub(super) fn write_text(sink: &mut dyn Write, text: &str) -> io::Result<()> {
    (text.len() as u64).write(sink)?;
    sink.write_all(text.as_bytes())
}

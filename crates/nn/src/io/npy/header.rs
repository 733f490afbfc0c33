//! The header of a `.npy` file: a Python dictionary with three keys, read by a dedicated parser.

use std::io::{self, Read};
use std::path::Path;

use highwater_files::FileKind;
use highwater_tensor::{DType, MAX_RANK, Shape};

use super::NpyLimits;
use crate::file_kind;
use crate::io::stored::{Kind, Stored};
use crate::io::{Array, FileError};

/// The first bytes of every file.
const MAGIC: [u8; 6] = *b"\x93NUMPY";
/// Magic, version, and the length of the header in format 1.
const PREFIX: usize = 10;
/// The elements begin at a multiple of this number.
const ALIGNMENT: usize = 64;

/// Element types by NumPy's names: the name with the size in bytes, which files usually have, the characters, and the type
/// names. C's `long` has 64 bits, as on Linux and macOS. NumPy has no bf16.
const KINDS: [(Kind, &str, &str, &[&str]); 12] = [
    (Kind::Same(DType::F16), "f2", "e", &["float16", "half"]),
    (Kind::Same(DType::F32), "f4", "f", &["float32", "single"]),
    (Kind::Same(DType::F64), "f8", "d", &["float64", "double", "float"]),
    (Kind::Same(DType::I32), "i4", "i", &["int32", "intc"]),
    (Kind::Same(DType::I64), "i8", "lqpn", &["int64", "int", "int_", "intp", "long", "longlong"]),
    (Kind::Same(DType::U8), "u1", "B", &["uint8", "ubyte"]),
    (Kind::Same(DType::Bool), "b1", "?", &["bool", "bool_"]),
    (Kind::I8, "i1", "b", &["int8", "byte"]),
    (Kind::I16, "i2", "h", &["int16", "short"]),
    (Kind::U16, "u2", "H", &["uint16", "ushort"]),
    (Kind::Same(DType::U32), "u4", "I", &["uint32", "uintc"]),
    (Kind::U64, "u8", "LQPN", &["uint64", "uint", "uintp", "ulong", "ulonglong"]),
];

/// Parses an element type as `numpy.dtype` does: `<f4`, `>u2`, `d` or `float32`. Without a byte order, or with `|` or `=`,
/// the type is little-endian, as on the machines that NumPy runs on. Type names have no byte order.
fn stored(descr: &str, fortran: bool) -> Option<Stored> {
    let short = descr.strip_prefix(['<', '>', '|', '=']).unwrap_or(descr);
    let is_character = |characters: &str| short.len() == 1 && characters.contains(short);
    let &(kind, ..) = KINDS.iter().find(|(_, sized, characters, names)| {
        *sized == short || is_character(characters) || names.contains(&descr)
    })?;
    let high_byte_first = descr.starts_with('>') && kind.size() > 1;
    Some(Stored { kind, high_byte_first, fortran })
}

/// Returns NumPy's name of an element type.
fn name(dtype: DType) -> Option<String> {
    let (_, sized, ..) = KINDS.iter().find(|(known, ..)| *known == Kind::Same(dtype))?;
    Some(format!("{}{sized}", if dtype.size() == 1 { '|' } else { '<' }))
}

/// The contents of the header.
pub(super) struct Header {
    pub(super) stored: Stored,
    pub(super) shape: Shape,
    /// The offset of the elements in the file.
    pub(super) data_start: u64,
}

impl Header {
    pub(super) fn read(source: &mut impl Read, path: &Path, limits: &NpyLimits) -> Result<Self, FileError> {
        let mut start = [0; 8];
        let read = source.read_exact(&mut start);
        read.map_err(|error| FileError::read(path, 0, "the magic string and the version", &error))?;
        if start[..6] != MAGIC {
            let mut start = start.to_vec();
            let read = source.take(FileKind::START_BYTES as u64).read_to_end(&mut start);
            read.map_err(|error| FileError::io(path, &error))?;
            let problem = file_kind::mistaken_or_text(&start, "a .npy file");
            let problem = problem.unwrap_or_else(|| "it does not begin with NumPy's magic string".to_owned());
            return Err(FileError::malformed(path, 0, problem));
        }
        // Version 1 has a length of two bytes, version 2 of four bytes, and version 3 is version 2 in another encoding.
        let mut length = [0; 4];
        let width = match start[6..] {
            [1, 0] => 2,
            [2 | 3, 0] => 4,
            _ => {
                let problem = format!(
                    "version {}.{} of the format; versions 1.0 to 3.0 are supported",
                    start[6], start[7]
                );
                return Err(FileError::malformed(path, 6, problem));
            }
        };
        let read = source.read_exact(&mut length[..width]);
        read.map_err(|error| FileError::read(path, 8, "the length of the header", &error))?;
        let (length, begin) = (u64::from(u32::from_le_bytes(length)), 8 + width as u64);
        if length > limits.header_bytes {
            let (path, what, limit) = (path.to_owned(), "bytes of header", limits.header_bytes);
            return Err(FileError::TooLarge { path, offset: 8, what, found: length, limit });
        }
        let mut text = Vec::new();
        source.take(length).read_to_end(&mut text).map_err(|error| FileError::io(path, &error))?;
        if (text.len() as u64) < length {
            let (path, what) = (path.to_owned(), "the header".to_owned());
            return Err(FileError::Truncated { path, offset: begin, what });
        }
        let fields = Parser { text: &text, at: 0 }
            .dictionary()
            .map_err(|(at, problem)| FileError::malformed(path, begin + at as u64, problem))?;
        let whole = |problem: String| FileError::malformed(path, begin, problem);
        let stored = stored(&fields.descr, fields.fortran).ok_or_else(|| FileError::UnsupportedDType {
            path: path.to_owned(),
            name: "the array".to_owned(),
            dtype: fields.descr.clone(),
        })?;
        if fields.axes > MAX_RANK {
            let (path, name) = (path.to_owned(), "the array".to_owned());
            return Err(FileError::TooManyAxes { path, name, axes: fields.axes });
        }
        let shape = Shape::new(&fields.shape).map_err(|error| whole(error.to_string()))?;
        Ok(Self { stored, shape, data_start: begin + length })
    }
}

/// The values of the three keys.
#[derive(Default)]
struct Fields {
    descr: String,
    fortran: bool,
    /// The sizes of the first axes, at most as many as tensors have.
    shape: Vec<usize>,
    axes: usize,
}

/// An error message, and its byte offset in the header.
type Problem = (usize, String);

struct Parser<'a> {
    text: &'a [u8],
    at: usize,
}

impl Parser<'_> {
    /// Parses `{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }`: the keys in any order, each once.
    fn dictionary(mut self) -> Result<Fields, Problem> {
        let (mut fields, mut seen) = (Fields::default(), Vec::new());
        self.expect(b'{')?;
        while !self.accept(b'}') {
            let at = self.at;
            let key = self.string()?;
            if seen.contains(&key) {
                return Err((at, format!("the key {key:?} is there twice")));
            }
            self.expect(b':')?;
            match key.as_str() {
                "descr" => fields.descr = self.element_type()?,
                "fortran_order" => fields.fortran = self.boolean()?,
                "shape" => (fields.shape, fields.axes) = self.sizes()?,
                _ => return Err((at, format!("an unknown key, {key:?}"))),
            }
            seen.push(key);
            if !self.accept(b',') {
                self.expect(b'}')?;
                break;
            }
        }
        self.skip_space();
        if self.at < self.text.len() {
            return self.problem("the end of the header");
        }
        if seen.len() < 3 {
            return Err((0, "one of the keys descr, fortran_order and shape is missing".to_owned()));
        }
        Ok(fields)
    }

    fn problem<T>(&self, expected: &str) -> Result<T, Problem> {
        Err((self.at, format!("the header should have {expected} here")))
    }

    fn skip_space(&mut self) {
        while self.text.get(self.at).is_some_and(u8::is_ascii_whitespace) {
            self.at += 1;
        }
    }

    fn accept(&mut self, byte: u8) -> bool {
        self.skip_space();
        let is_there = self.text.get(self.at) == Some(&byte);
        self.at += usize::from(is_there);
        is_there
    }

    fn expect(&mut self, byte: u8) -> Result<(), Problem> {
        if self.accept(byte) { Ok(()) } else { self.problem(&format!("{:?}", char::from(byte))) }
    }

    /// Parses a string, or the source text of a structured type's field list.
    fn element_type(&mut self) -> Result<String, Problem> {
        self.skip_space();
        let rest = &self.text[self.at..];
        if rest.first() != Some(&b'[') {
            return self.string();
        }
        let mut depth = 0_usize;
        let end = rest.iter().position(|byte| {
            match byte {
                b'[' => depth += 1,
                b']' => depth -= 1,
                _ => {}
            }
            depth == 0
        });
        let Some(end) = end else { return self.problem("the end of a list") };
        self.at += end + 1;
        Ok(format!("structured {}", String::from_utf8_lossy(&rest[..=end])))
    }

    /// Parses a string of printable ASCII without escapes.
    fn string(&mut self) -> Result<String, Problem> {
        self.skip_space();
        // Python 2 may mark a string as Unicode.
        self.at += usize::from(matches!(self.text[self.at..], [b'u', b'\'' | b'"', ..]));
        let quote = if self.accept(b'\'') {
            b'\''
        } else if self.accept(b'"') {
            b'"'
        } else {
            return self.problem("a text");
        };
        let rest = &self.text[self.at..];
        let Some(end) = rest.iter().position(|&byte| byte == quote) else {
            return self.problem("the end of a text");
        };
        let text = &rest[..end];
        if !text.iter().all(|&byte| byte.is_ascii_graphic() && byte != b'\\') {
            return self.problem("a text of plain characters");
        }
        self.at += end + 1;
        Ok(text.iter().map(|&byte| char::from(byte)).collect())
    }

    fn boolean(&mut self) -> Result<bool, Problem> {
        self.skip_space();
        for (word, value) in [("True", true), ("False", false)] {
            if self.text[self.at..].starts_with(word.as_bytes()) {
                self.at += word.len();
                return Ok(value);
            }
        }
        self.problem("True or False")
    }

    /// Parses `()`, `(3,)` or `(2, 3)`; without its comma, `(3)` is no tuple. Returns the sizes of at most as many axes as
    /// tensors have, and the number of all axes.
    fn sizes(&mut self) -> Result<(Vec<usize>, usize), Problem> {
        self.expect(b'(')?;
        let (mut sizes, mut axes) = (Vec::new(), 0);
        while !self.accept(b')') {
            let size = self.number()?;
            axes += 1;
            if axes <= MAX_RANK {
                sizes.push(size);
            }
            if !self.accept(b',') {
                if axes == 1 {
                    return self.problem("a comma");
                }
                self.expect(b')')?;
                break;
            }
        }
        Ok((sizes, axes))
    }

    /// Parses a size. Python 2 marks long integers by an `L`.
    fn number(&mut self) -> Result<usize, Problem> {
        self.skip_space();
        let digits = self.text[self.at..].iter().take_while(|byte| byte.is_ascii_digit()).count();
        let text = std::str::from_utf8(&self.text[self.at..self.at + digits]).unwrap_or_default();
        let Ok(number) = text.parse() else { return self.problem("a size") };
        self.at += digits;
        self.at += usize::from(self.text.get(self.at) == Some(&b'L'));
        Ok(number)
    }
}

/// Returns the beginning of a file with this array, padded so that the elements are aligned.
pub(super) fn text(array: &Array) -> io::Result<Vec<u8>> {
    let unknown = || io::Error::new(io::ErrorKind::InvalidInput, format!("NumPy has no {}", array.dtype()));
    let descr = name(array.dtype()).ok_or_else(unknown)?;
    let dims = array.shape().dims();
    let sizes = match dims {
        [only] => format!("({only},)"),
        _ => format!("({})", dims.iter().map(usize::to_string).collect::<Vec<_>>().join(", ")),
    };
    let mut text = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': {sizes}, }}");
    let length = (PREFIX + text.len() + 1).next_multiple_of(ALIGNMENT) - PREFIX;
    text.extend(std::iter::repeat_n(' ', length - text.len() - 1));
    text.push('\n');
    // Eight sizes of at most twenty digits and a few words are far below 65,536 bytes.
    let length = u16::try_from(length).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
    Ok([&MAGIC[..], &[1, 0], &length.to_le_bytes(), text.as_bytes()].concat())
}

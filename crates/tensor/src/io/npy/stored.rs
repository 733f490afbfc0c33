//! Elements as they stand in a file: in either order of bytes, and some narrower or of another kind than those of tensors.

use std::io::{self, Read};

use crate::dtype::DType;
use crate::io::Array;
use crate::shape::Shape;

/// The element types that tensors have, as NumPy calls them. bf16 is none of NumPy's.
const SAME: [(DType, &str); 7] = [
    (DType::F16, "f2"),
    (DType::F32, "f4"),
    (DType::F64, "f8"),
    (DType::I32, "i4"),
    (DType::I64, "i8"),
    (DType::U8, "u1"),
    (DType::Bool, "b1"),
];

/// Turns the elements of a file, low bytes first, into those of a tensor.
type Widen = fn(&[u8], &mut [u8]);

/// Integers that tensors do not have, and the narrowest type that holds all their values.
const WIDER: [(&str, usize, DType, Widen); 4] = [
    ("i1", 1, DType::I32, |from, to| {
        each(from, to, |[byte]| i32::from(i8::from_le_bytes([byte])).to_le_bytes())
    }),
    ("i2", 2, DType::I32, |from, to| {
        each(from, to, |bytes| i32::from(i16::from_le_bytes(bytes)).to_le_bytes())
    }),
    ("u2", 2, DType::I32, |from, to| {
        each(from, to, |bytes| i32::from(u16::from_le_bytes(bytes)).to_le_bytes())
    }),
    ("u4", 4, DType::I64, |from, to| {
        each(from, to, |bytes| i64::from(u32::from_le_bytes(bytes)).to_le_bytes())
    }),
];

fn each<const FROM: usize, const TO: usize>(
    from: &[u8],
    to: &mut [u8],
    widen: impl Fn([u8; FROM]) -> [u8; TO],
) {
    let (from, to) = (from.as_chunks().0, to.as_chunks_mut().0);
    from.iter().zip(to).for_each(|(from, to)| *to = widen(*from));
}

/// How elements stand in a file.
#[derive(Clone, Copy)]
pub(super) struct Stored {
    /// What they become.
    pub(super) dtype: DType,
    /// The bytes of one in the file.
    pub(super) size: usize,
    /// Whether they are `uint64`, of which `i64` holds those below 2⁶³: the same bits, and the highest is not set.
    pub(super) unsigned: bool,
    high_byte_first: bool,
    widen: Option<Widen>,
}

impl Stored {
    /// What NumPy's name says, as `<f4` or `>u2`. A byte has no order, and may bear any mark of one.
    pub(super) fn parse(descr: &str) -> Option<Self> {
        let (order, kind) = descr.split_at_checked(1)?;
        let unsigned = kind == "u8";
        let kind = if unsigned { "i8" } else { kind };
        let same = SAME.iter().find(|(_, name)| *name == kind).map(|&(dtype, _)| (dtype.size(), dtype, None));
        let wider = || {
            WIDER
                .iter()
                .find(|wider| wider.0 == kind)
                .map(|&(_, size, dtype, widen)| (size, dtype, Some(widen)))
        };
        let (size, dtype, widen) = same.or_else(wider)?;
        let high_byte_first = match order {
            "<" => false,
            ">" => true,
            "|" | "=" if size == 1 => false,
            _ => return None,
        };
        Some(Self { dtype, size, unsigned, high_byte_first, widen })
    }

    /// What NumPy calls the elements of an array that is written.
    pub(super) fn name(dtype: DType) -> Option<String> {
        let (_, kind) = SAME.iter().find(|(known, _)| *known == dtype)?;
        Some(format!("{}{kind}", if dtype.size() == 1 { '|' } else { '<' }))
    }

    /// The next elements of a source; see [`Array::read_by`].
    pub(super) fn read(self, source: &mut impl Read, shape: Shape) -> io::Result<Array> {
        let mut narrow = Vec::new();
        Array::read_by(self.dtype, shape, |to| {
            let Some(widen) = self.widen else {
                source.read_exact(to)?;
                self.turn(to);
                return Ok(());
            };
            narrow.resize(to.len() / self.dtype.size() * self.size, 0);
            source.read_exact(&mut narrow)?;
            self.turn(&mut narrow);
            widen(&narrow, to);
            Ok(())
        })
    }

    /// Puts the low bytes first.
    fn turn(self, bytes: &mut [u8]) {
        if self.high_byte_first {
            bytes.chunks_exact_mut(self.size).for_each(<[u8]>::reverse);
        }
    }
}

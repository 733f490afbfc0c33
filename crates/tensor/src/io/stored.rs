//! Elements as they stand in a file: in either order of bytes, and some narrower or of another kind than those of tensors.

use std::io::{self, Read};
use std::path::Path;

use crate::dtype::DType;
use crate::io::{Array, FileError};
use crate::shape::Shape;

/// The kinds of numbers that files hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// One that tensors have.
    Same(DType),
    I8,
    I16,
    U16,
    U32,
    /// `i64` holds those below 2⁶³: the same bits, and the highest is not set.
    U64,
}

/// Turns the elements of a file, low bytes first, into those of a tensor.
type Widen = fn(&[u8], &mut [u8]);

fn each<const FROM: usize, const TO: usize>(
    from: &[u8],
    to: &mut [u8],
    widen: impl Fn([u8; FROM]) -> [u8; TO],
) {
    let (from, to) = (from.as_chunks().0, to.as_chunks_mut().0);
    from.iter().zip(to).for_each(|(from, to)| *to = widen(*from));
}

impl Kind {
    /// The bytes of one in the file.
    pub(super) const fn size(self) -> usize {
        match self {
            Self::Same(dtype) => dtype.size(),
            Self::I8 => 1,
            Self::I16 | Self::U16 => 2,
            Self::U32 => 4,
            Self::U64 => 8,
        }
    }

    /// What they become: the narrowest type that holds them.
    pub(super) const fn dtype(self) -> DType {
        match self {
            Self::Same(dtype) => dtype,
            Self::I8 | Self::I16 | Self::U16 => DType::I32,
            Self::U32 | Self::U64 => DType::I64,
        }
    }

    /// How those that become another type do.
    fn widen(self) -> Option<Widen> {
        Some(match self {
            Self::Same(_) | Self::U64 => return None,
            Self::I8 => |from, to| each(from, to, |b| i32::from(i8::from_le_bytes(b)).to_le_bytes()),
            Self::I16 => |from, to| each(from, to, |b| i32::from(i16::from_le_bytes(b)).to_le_bytes()),
            Self::U16 => |from, to| each(from, to, |b| i32::from(u16::from_le_bytes(b)).to_le_bytes()),
            Self::U32 => |from, to| each(from, to, |b| i64::from(u32::from_le_bytes(b)).to_le_bytes()),
        })
    }
}

/// An array in a file, for errors: whose elements begin where.
#[derive(Clone, Copy)]
pub(super) struct Place<'a> {
    pub(super) path: &'a Path,
    pub(super) offset: u64,
    pub(super) name: &'a str,
}

/// How elements stand in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stored {
    pub(super) kind: Kind,
    pub(super) high_byte_first: bool,
    /// Whether the first axis is the fastest.
    pub(super) fortran: bool,
}

impl Stored {
    /// Elements as most files have them: the low byte first, and the last axis the fastest.
    pub(super) const fn little(kind: Kind) -> Self {
        Self { kind, high_byte_first: false, fortran: false }
    }

    /// The next elements of a source, in the order in which they stand there. Memory is taken as they arrive.
    pub(super) fn read(
        self,
        source: &mut impl Read,
        shape: Shape,
        place: Place<'_>,
    ) -> Result<Array, FileError> {
        let Place { path, offset, name } = place;
        let array = self
            .read_unchecked(source, shape)
            .map_err(|error| FileError::read(path, offset, format!("the elements of {name}"), &error))?;
        let at = |position: usize| offset + (position * self.kind.size()) as u64;
        if self.kind == Kind::Same(DType::Bool)
            && let Some(position) = array.bytes().iter().position(|&byte| byte > 1)
        {
            let problem = format!("a truth value of {name} is neither 0 nor 1");
            return Err(FileError::malformed(path, at(position), problem));
        }
        if self.kind == Kind::U64
            && let values = bytemuck::cast_slice::<u8, u64>(array.bytes())
            && let Some(position) = values.iter().position(|&value| i64::try_from(value).is_err())
        {
            return Err(FileError::OutOfRange {
                path: path.to_owned(),
                offset: at(position),
                name: name.to_owned(),
                index: self.index_of(position, &shape),
                value: values[position],
                dtype: self.kind.dtype(),
            });
        }
        Ok(array)
    }

    fn read_unchecked(self, source: &mut impl Read, shape: Shape) -> io::Result<Array> {
        let (dtype, mut narrow) = (self.kind.dtype(), Vec::new());
        Array::read_by(dtype, shape, |to| {
            let Some(widen) = self.kind.widen() else {
                source.read_exact(to)?;
                self.turn(to);
                return Ok(());
            };
            narrow.resize(to.len() / dtype.size() * self.kind.size(), 0);
            source.read_exact(&mut narrow)?;
            self.turn(&mut narrow);
            widen(&narrow, to);
            Ok(())
        })
    }

    /// Puts the low bytes first.
    fn turn(self, bytes: &mut [u8]) {
        if self.high_byte_first {
            bytes.chunks_exact_mut(self.kind.size()).for_each(<[u8]>::reverse);
        }
    }

    /// The index, axis by axis, of the element at a position in the file.
    fn index_of(self, mut position: usize, shape: &Shape) -> Vec<usize> {
        let mut index = vec![0; shape.rank()];
        let mut take = |axis: usize| {
            index[axis] = position % shape.dims()[axis];
            position /= shape.dims()[axis];
        };
        // The fastest axis first.
        if self.fortran {
            (0..shape.rank()).for_each(&mut take)
        } else {
            (0..shape.rank()).rev().for_each(&mut take)
        }
        index
    }
}

//! Elements in files: either byte order, and integer types that tensors do not support.

use std::io::{self, Read};
use std::path::Path;

use highwater_tensor::{DType, Shape};

use super::array::{gather, read_words, zero_words};
use crate::io::{Array, FileError};

/// The element types of files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A type that tensors support.
    Same(DType),
    I8,
    I16,
    U16,
    /// Values below 2⁶³ become `i64` with the same bits.
    U64,
}

/// Converts little-endian elements of a file to elements of a tensor.
pub(super) type Conversion = fn(&[u8], &mut [u8]);

fn each<const FROM: usize, const TO: usize>(
    from: &[u8],
    to: &mut [u8],
    widen: impl Fn([u8; FROM]) -> [u8; TO],
) {
    let (from, to) = (from.as_chunks().0, to.as_chunks_mut().0);
    from.iter().zip(to).for_each(|(from, to)| *to = widen(*from));
}

impl Kind {
    /// Returns the bytes per element in the file.
    pub(crate) const fn size(self) -> usize {
        match self {
            Self::Same(dtype) => dtype.size(),
            Self::I8 => 1,
            Self::I16 | Self::U16 => 2,
            Self::U64 => 8,
        }
    }

    /// Returns the tensor's element type: the narrowest one that holds all values.
    pub(crate) const fn dtype(self) -> DType {
        match self {
            Self::Same(dtype) => dtype,
            Self::I8 | Self::I16 | Self::U16 => DType::I32,
            Self::U64 => DType::I64,
        }
    }

    /// Returns the conversion, if the type changes.
    pub(super) fn conversion(self) -> Option<Conversion> {
        Some(match self {
            Self::Same(_) | Self::U64 => return None,
            Self::I8 => |from, to| each(from, to, |b| i32::from(i8::from_le_bytes(b)).to_le_bytes()),
            Self::I16 => |from, to| each(from, to, |b| i32::from(i16::from_le_bytes(b)).to_le_bytes()),
            Self::U16 => |from, to| each(from, to, |b| i32::from(u16::from_le_bytes(b)).to_le_bytes()),
        })
    }
}

/// An array in a file, for errors.
#[derive(Clone, Copy)]
pub(crate) struct Place<'a> {
    pub(crate) path: &'a Path,
    /// The offset of its elements.
    pub(crate) offset: u64,
    pub(crate) name: &'a str,
}

/// The storage order of elements in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stored {
    pub(crate) kind: Kind,
    pub(crate) high_byte_first: bool,
    /// Whether the order is column-major.
    pub(crate) fortran: bool,
}

impl Stored {
    /// Returns the order of most files: little-endian and row-major.
    pub(crate) const fn little(kind: Kind) -> Self {
        Self { kind, high_byte_first: false, fortran: false }
    }

    /// Reads the next elements of a source in row-major order. Allocates as they arrive, at most five times the bytes
    /// in the file.
    pub(crate) fn read(
        self,
        source: &mut impl Read,
        shape: Shape,
        place: Place<'_>,
    ) -> Result<Array, FileError> {
        let Place { path, offset, name } = place;
        let bytes = shape.checked_elements().and_then(|count| count.checked_mul(self.kind.size()));
        let words = match bytes {
            Some(bytes) => read_words(bytes, |to| source.read_exact(to)),
            None => Err(io::Error::from(io::ErrorKind::OutOfMemory)),
        };
        let words = words
            .map_err(|error| FileError::read(path, offset, format!("the elements of {name}"), &error))?;
        self.finish(words, shape, place)
    }

    /// Copies the elements at an offset and strides within `from`, in elements. The caller has checked that all of them
    /// exist.
    pub(crate) fn gather(
        self,
        from: &[u8],
        shape: Shape,
        offset: usize,
        strides: &[usize],
        place: Place<'_>,
    ) -> Result<Array, FileError> {
        let words = gather(from, self.kind.size(), &shape, offset, strides);
        self.finish(words.map_err(|error| FileError::io(place.path, &error))?, shape, place)
    }

    /// Converts the elements of a file to those of a tensor.
    fn finish(self, mut words: Vec<u64>, shape: Shape, place: Place<'_>) -> Result<Array, FileError> {
        let bytes = shape.elements() * self.kind.size();
        self.swap_bytes(&mut bytemuck::cast_slice_mut(&mut words)[..bytes]);
        self.check(&bytemuck::cast_slice(&words)[..bytes], &shape, place)?;
        let io_error = |error| FileError::io(place.path, &error);
        if self.fortran && shape.rank() > 1 && shape.elements() > 0 {
            let mut strides = vec![1; shape.rank()];
            for axis in 1..shape.rank() {
                strides[axis] = strides[axis - 1] * shape[axis - 1];
            }
            let from = &bytemuck::cast_slice(&words)[..bytes];
            words = gather(from, self.kind.size(), &shape, 0, &strides).map_err(io_error)?;
        }
        let dtype = self.kind.dtype();
        if let Some(widen) = self.kind.conversion() {
            let wide_bytes = shape.elements().checked_mul(dtype.size());
            let none = || io::Error::from(io::ErrorKind::OutOfMemory);
            let mut wide = wide_bytes.ok_or_else(none).and_then(zero_words).map_err(io_error)?;
            widen(&bytemuck::cast_slice(&words)[..bytes], bytemuck::cast_slice_mut(&mut wide));
            words = wide;
        }
        Ok(Array::from_words(dtype, shape, words))
    }

    /// Checks for values that tensors cannot hold.
    pub(super) fn check(self, bytes: &[u8], shape: &Shape, place: Place<'_>) -> Result<(), FileError> {
        let Place { path, offset, name } = place;
        let at = |position: usize| offset + (position * self.kind.size()) as u64;
        if self.kind == Kind::Same(DType::Bool)
            && let Some(position) = bytes.iter().position(|&byte| byte > 1)
        {
            let problem = format!("a boolean of {name} is neither 0 nor 1");
            return Err(FileError::malformed(path, at(position), problem));
        }
        if self.kind == Kind::U64
            && let values = bytes.as_chunks().0
            && let Some(position) =
                values.iter().position(|&value| i64::try_from(u64::from_le_bytes(value)).is_err())
        {
            return Err(FileError::OutOfRange {
                path: path.to_owned(),
                offset: at(position),
                name: name.to_owned(),
                index: self.index_of(position, shape),
                value: u64::from_le_bytes(values[position]),
                dtype: self.kind.dtype(),
            });
        }
        Ok(())
    }

    /// Converts the bytes to little-endian.
    fn swap_bytes(self, bytes: &mut [u8]) {
        if self.high_byte_first {
            bytes.chunks_exact_mut(self.kind.size()).for_each(<[u8]>::reverse);
        }
    }

    /// Returns the index of the element at a position in the file.
    fn index_of(self, mut position: usize, shape: &Shape) -> Vec<usize> {
        let mut index = vec![0; shape.rank()];
        let mut take = |axis: usize| {
            index[axis] = position % shape.dims()[axis];
            position /= shape.dims()[axis];
        };
        // Fastest axis first.
        if self.fortran {
            (0..shape.rank()).for_each(&mut take)
        } else {
            (0..shape.rank()).rev().for_each(&mut take)
        }
        index
    }
}

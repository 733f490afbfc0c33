//! Reads protocol buffers: fields of numbers and bytes. Nothing is copied.
//!
//! Source: the description of the wire format in the documentation of Protocol Buffers.

use highwater_files::varint;

use super::ProfileProblem;
use crate::trace::{TraceError, TracePlace};

/// A value of a field, and the offset of the field in the file.
#[derive(Clone, Copy, Debug)]
pub(in crate::trace) enum Value<'a> {
    /// A number, or 8 or 4 bytes.
    Number(u64),
    /// A text, a message or packed numbers.
    Bytes(Message<'a>),
}

/// The fields of a message that are still unread.
#[derive(Clone, Copy, Debug)]
pub(in crate::trace) struct Message<'a> {
    pub(in crate::trace) bytes: &'a [u8],
    /// The offset of `bytes` in the file.
    pub(in crate::trace) offset: u64,
}

impl<'a> Message<'a> {
    pub(in crate::trace) const fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, offset: 0 }
    }

    /// Returns the error of a problem at the next unread byte.
    pub(in crate::trace) fn error(&self, what: &'static str) -> TraceError {
        TracePlace::Byte(self.offset).of(ProfileProblem::Protobuf { what })
    }

    /// Returns the number and the value of the next field; `None` at the end.
    pub(in crate::trace) fn next(&mut self) -> Result<Option<(u64, Value<'a>)>, TraceError> {
        if self.bytes.is_empty() {
            return Ok(None);
        }
        let start = *self;
        let key = self.number()?;
        let value = match key & 7 {
            0 => Value::Number(self.number()?),
            1 => Value::Number(self.fixed::<8>()?),
            2 => {
                let length = self.number()?;
                let offset_error = self.error("a field is longer than the file");
                Value::Bytes(self.take(length).ok_or(offset_error)?)
            }
            5 => Value::Number(self.fixed::<4>()?),
            _ => return Err(start.error("a field of an unknown type")),
        };
        Ok(Some((key >> 3, value)))
    }

    /// Returns the next number of packed numbers.
    pub(in crate::trace) fn number(&mut self) -> Result<u64, TraceError> {
        let Some((number, length)) = varint::get(self.bytes) else {
            return Err(self.error("a number is cut off, or has more than 64 bits"));
        };
        self.skip(length);
        Ok(number)
    }

    fn fixed<const N: usize>(&mut self) -> Result<u64, TraceError> {
        let mut number = [0; 8];
        let bytes = self.take(N as u64).ok_or(self.error("a number is cut off"))?;
        number[..N].copy_from_slice(bytes.bytes);
        Ok(u64::from_le_bytes(number))
    }

    fn take(&mut self, length: u64) -> Option<Self> {
        let length = usize::try_from(length).ok()?;
        let bytes = self.bytes.get(..length)?;
        let taken = Self { bytes, offset: self.offset };
        self.skip(length);
        Some(taken)
    }

    fn skip(&mut self, length: usize) {
        self.bytes = &self.bytes[length..];
        self.offset += length as u64;
    }
}

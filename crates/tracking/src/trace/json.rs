//! Converts a JSON snapshot to a pickle with the same data.
//!
//! One reader and one memory limit then serve both formats. Frequent texts, such as keys, are stored once and recalled
//! by number.

use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt;
use std::io::BufRead;

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};

use super::{TraceProblem, pickle};
use crate::files::lean;

/// The most stored texts and their greatest length. Other texts are written each time.
const MAX_KEPT: usize = 4096;
const MAX_KEPT_BYTES: usize = 64;

/// The number of items in a piece of a list or a dictionary.
const ITEMS_AT_A_TIME: usize = 1000;

/// The largest pickle, in bytes.
const MAX_BYTES: usize = u32::MAX as usize;

mod opcode {
    pub(super) const MARK: u8 = b'(';
    pub(super) const STOP: u8 = b'.';
    pub(super) const NONE: u8 = b'N';
    pub(super) const BININT1: u8 = b'K';
    pub(super) const LONG1: u8 = 0x8a;
    pub(super) const SHORT_BINUNICODE: u8 = 0x8c;
    pub(super) const BINUNICODE: u8 = b'X';
    pub(super) const EMPTY_LIST: u8 = b']';
    pub(super) const APPENDS: u8 = b'e';
    pub(super) const EMPTY_DICT: u8 = b'}';
    pub(super) const SETITEMS: u8 = b'u';
    pub(super) const LONG_BINGET: u8 = b'j';
    pub(super) const LONG_BINPUT: u8 = b'r';
}

/// The pickle of a JSON text.
pub(super) fn to_pickle(reader: impl BufRead) -> Result<Vec<u8>, TraceProblem> {
    let pickle = vec![pickle::MAGIC, 4];
    let writer = RefCell::new(Writer { pickle, kept: HashMap::new(), is_full: false });
    let mut parser = serde_json::Deserializer::from_reader(reader);
    let read = Node(&writer).deserialize(&mut parser).and_then(|()| parser.end());
    let mut writer = writer.into_inner();
    match read {
        Ok(()) => {
            writer.byte(opcode::STOP);
            Ok(writer.pickle)
        }
        Err(_) if writer.is_full => Err(TraceProblem::TooMuchHeld { limit: MAX_BYTES as u64 }),
        Err(error) if error.is_io() => Err(std::io::Error::from(error).into()),
        Err(error) => Err(TraceProblem::Json { message: error.to_string() }),
    }
}

struct Writer {
    pickle: Vec<u8>,
    /// The numbers of the stored texts.
    kept: HashMap<String, u32>,
    /// Whether the pickle exceeded its limit.
    is_full: bool,
}

impl Writer {
    fn byte(&mut self, byte: u8) {
        lean::push(&mut self.pickle, byte);
    }

    fn bytes(&mut self, bytes: &[u8]) {
        lean::extend(&mut self.pickle, bytes);
    }

    /// A number, little-endian, with a byte for the sign.
    fn number(&mut self, number: u64) {
        if let Ok(small) = u8::try_from(number) {
            self.bytes(&[opcode::BININT1, small]);
            return;
        }
        let bytes = number.to_le_bytes();
        let used = 8 - number.leading_zeros() as usize / 8;
        self.bytes(&[opcode::LONG1, used as u8 + 1]);
        self.bytes(&bytes[..used]);
        self.byte(0);
    }

    fn text<E: Error>(&mut self, text: &str) -> Result<(), E> {
        if let Some(number) = self.kept.get(text).copied() {
            self.byte(opcode::LONG_BINGET);
            self.bytes(&number.to_le_bytes());
            return Ok(());
        }
        let long = u32::try_from(text.len()).ok();
        let Some(length) = long.filter(|_| self.pickle.len() + text.len() < MAX_BYTES) else {
            self.is_full = true;
            return Err(E::custom("too large"));
        };
        match u8::try_from(length) {
            Ok(length) => self.bytes(&[opcode::SHORT_BINUNICODE, length]),
            Err(_) => {
                self.byte(opcode::BINUNICODE);
                self.bytes(&length.to_le_bytes());
            }
        }
        self.bytes(text.as_bytes());
        if self.kept.len() < MAX_KEPT && text.len() <= MAX_KEPT_BYTES {
            let number = self.kept.len() as u32;
            self.byte(opcode::LONG_BINPUT);
            self.bytes(&number.to_le_bytes());
            self.kept.insert(text.to_owned(), number);
        }
        Ok(())
    }
}

/// A JSON value that is written to the pickle while it is parsed.
#[derive(Clone, Copy)]
struct Node<'a>(&'a RefCell<Writer>);

impl<'de> DeserializeSeed<'de> for Node<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Node<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E: Error>(self) -> Result<(), E> {
        self.0.borrow_mut().byte(opcode::NONE);
        Ok(())
    }

    fn visit_bool<E: Error>(self, _: bool) -> Result<(), E> {
        self.visit_unit()
    }

    fn visit_f64<E: Error>(self, _: f64) -> Result<(), E> {
        self.visit_unit()
    }

    fn visit_i64<E: Error>(self, _: i64) -> Result<(), E> {
        self.visit_unit()
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<(), E> {
        self.0.borrow_mut().number(number);
        Ok(())
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<(), E> {
        self.0.borrow_mut().text(text)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        self.0.borrow_mut().bytes(&[opcode::EMPTY_LIST, opcode::MARK]);
        let mut count = 0;
        while items.next_element_seed(self)?.is_some() {
            count += 1;
            if count == ITEMS_AT_A_TIME {
                self.0.borrow_mut().bytes(&[opcode::APPENDS, opcode::MARK]);
                count = 0;
            }
        }
        self.0.borrow_mut().byte(opcode::APPENDS);
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<(), A::Error> {
        self.0.borrow_mut().bytes(&[opcode::EMPTY_DICT, opcode::MARK]);
        let mut count = 0;
        while entries.next_key_seed(self)?.is_some() {
            entries.next_value_seed(self)?;
            count += 1;
            if count == ITEMS_AT_A_TIME {
                self.0.borrow_mut().bytes(&[opcode::SETITEMS, opcode::MARK]);
                count = 0;
            }
        }
        self.0.borrow_mut().byte(opcode::SETITEMS);
        Ok(())
    }
}

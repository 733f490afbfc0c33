//! A streaming writer of pickles in protocol 2.
//!
//! PyTorch's viewer supports few opcodes, and overflows its stack on a long list in one piece. Therefore lists are
//! split into pieces of 1,000, and all opcodes are among those of the oldest viewer.
//!
//! Source: the descriptions of opcodes in Python's `pickletools`.

use highwater_files::pickle::opcode;
use rustc_hash::FxHashMap;

use super::encoder::Encoder;

/// The number of items per piece of a list.
const ITEMS_AT_A_TIME: u32 = 1000;

/// Writes a pickle into a buffer.
#[derive(Debug)]
pub(super) struct PickleWriter {
    buffer: Vec<u8>,
    /// The number of items of each open list, innermost last.
    items: Vec<u32>,
    /// The number of each text and shared value that was written, so that references to it are possible.
    kept: FxHashMap<Shared, u32>,
}

/// Data that is written once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Shared {
    Word(&'static str),
    Value(u32),
}

impl PickleWriter {
    pub(super) fn new() -> Self {
        Self { buffer: vec![opcode::PROTO, 2], items: Vec::new(), kept: FxHashMap::default() }
    }

    /// Writes a reference to earlier output, or the output of `write`.
    fn once(&mut self, shared: Shared, write: impl FnOnce(&mut Self)) {
        if let Some(&number) = self.kept.get(&shared) {
            self.memo(opcode::BINGET, opcode::LONG_BINGET, number);
            return;
        }
        write(self);
        // There are fewer words and owners than 2^32.
        let number = self.kept.len() as u32;
        self.memo(opcode::BINPUT, opcode::LONG_BINPUT, number);
        self.kept.insert(shared, number);
    }

    /// Writes the number of stored data, with the short or the long opcode.
    fn memo(&mut self, small: u8, any: u8, number: u32) {
        if let Ok(number) = u8::try_from(number) {
            self.buffer.extend_from_slice(&[small, number]);
        } else {
            self.buffer.push(any);
            self.buffer.extend_from_slice(&number.to_le_bytes());
        }
    }
}

impl Encoder for PickleWriter {
    fn number(&mut self, number: u64) {
        let bytes = number.to_le_bytes();
        match number {
            0..=0xff => self.buffer.extend_from_slice(&[opcode::BININT1, bytes[0]]),
            0x100..=0xffff => self.buffer.extend_from_slice(&[opcode::BININT2, bytes[0], bytes[1]]),
            0x1_0000..=0x7fff_ffff => {
                self.buffer.push(opcode::BININT);
                self.buffer.extend_from_slice(&bytes[..4]);
            }
            _ => {
                // As many bytes as necessary for a clear sign bit.
                let length = (64 - number.leading_zeros()) as usize / 8 + 1;
                let signed = u128::from(number).to_le_bytes();
                self.buffer.extend_from_slice(&[opcode::LONG1, length as u8]);
                self.buffer.extend_from_slice(&signed[..length]);
            }
        }
    }

    fn truth(&mut self, truth: bool) {
        self.buffer.push(if truth { opcode::NEWTRUE } else { opcode::NEWFALSE });
    }

    fn text(&mut self, text: &str) {
        // Names in recordings are far shorter than 2^32 bytes.
        self.buffer.push(opcode::BINUNICODE);
        self.buffer.extend_from_slice(&(text.len() as u32).to_le_bytes());
        self.buffer.extend_from_slice(text.as_bytes());
    }

    fn word(&mut self, word: &'static str) {
        self.once(Shared::Word(word), |pickle| pickle.text(word));
    }

    fn begin_dictionary(&mut self) {
        self.buffer.extend_from_slice(&[opcode::EMPTY_DICT, opcode::MARK]);
    }

    fn key(&mut self, key: &'static str) {
        self.word(key);
    }

    fn end_dictionary(&mut self) {
        self.buffer.push(opcode::SETITEMS);
    }

    fn begin_list(&mut self) {
        self.buffer.push(opcode::EMPTY_LIST);
        self.items.push(0);
    }

    fn item(&mut self) {
        let Some(items) = self.items.last_mut() else { return };
        if *items == ITEMS_AT_A_TIME {
            self.buffer.push(opcode::APPENDS);
            *items = 0;
        }
        if *items == 0 {
            self.buffer.push(opcode::MARK);
        }
        *items += 1;
    }

    fn end_list(&mut self) {
        if self.items.pop().is_some_and(|items| items > 0) {
            self.buffer.push(opcode::APPENDS);
        }
    }

    fn shared(&mut self, number: u32, write: impl FnOnce(&mut Self)) {
        self.once(Shared::Value(number), write);
    }

    fn finish(&mut self) {
        self.buffer.push(opcode::STOP);
    }

    fn buffer(&mut self) -> &mut Vec<u8> {
        &mut self.buffer
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pickle(write: impl FnOnce(&mut PickleWriter)) -> Vec<u8> {
        let mut writer = PickleWriter::new();
        write(&mut writer);
        writer.finish();
        writer.buffer
    }

    #[test]
    fn numbers_take_the_shortest_instruction_and_stay_positive() {
        let number = |number| {
            let bytes = pickle(|writer| writer.number(number));
            bytes[2..bytes.len() - 1].to_vec()
        };
        assert_eq!(number(0), [b'K', 0]);
        assert_eq!(number(255), [b'K', 255]);
        assert_eq!(number(256), [b'M', 0, 1]);
        assert_eq!(number(65_536), [b'J', 0, 0, 1, 0]);
        assert_eq!(number(0x7fff_ffff), [b'J', 0xff, 0xff, 0xff, 0x7f]);
        // A number whose highest bit is set takes one more byte, or it would be negative.
        assert_eq!(number(0x8000_0000), [0x8a, 5, 0, 0, 0, 0x80, 0]);
        assert_eq!(number(1 << 40), [0x8a, 6, 0, 0, 0, 0, 0, 1]);
        assert_eq!(number(u64::MAX), [0x8a, 9, 255, 255, 255, 255, 255, 255, 255, 255, 0]);
    }

    #[test]
    fn shared_data_is_written_once() {
        let bytes = pickle(|writer| {
            writer.begin_list();
            for _ in 0..2 {
                writer.item();
                writer.word("addr");
            }
            writer.end_list();
        });
        assert_eq!(bytes, *b"\x80\x02](X\x04\0\0\0addrq\0h\0e.");
    }

    #[test]
    fn references_beyond_255_have_four_bytes() {
        let bytes = pickle(|writer| {
            for number in 0..=300 {
                writer.shared(number, |writer| writer.truth(true));
            }
            writer.shared(300, |_| unreachable!("it was written"));
        });
        assert!(bytes.ends_with(b"\x88r\x2c\x01\0\0j\x2c\x01\0\0."));
    }

    #[test]
    fn long_lists_go_in_pieces() {
        let appends = |items| {
            let bytes = pickle(|writer| {
                writer.begin_list();
                for _ in 0..items {
                    writer.item();
                    writer.truth(true);
                }
                writer.end_list();
            });
            bytes.iter().filter(|&&byte| byte == opcode::APPENDS).count()
        };
        assert_eq!([0, 1, 999, 1000, 1001, 2001].map(appends), [0, 1, 1, 1, 2, 3]);
    }
}

//! A streaming JSON writer.

use super::encoder::{Encoder, Word};

/// Writes JSON into a buffer.
#[derive(Debug)]
pub(super) struct JsonWriter {
    buffer: Vec<u8>,
    /// Whether the current list or dictionary is still empty.
    first: bool,
}

impl JsonWriter {
    pub(super) const fn new() -> Self {
        Self { buffer: Vec::new(), first: true }
    }

    fn separate(&mut self) {
        if !self.first {
            self.buffer.push(b',');
        }
        self.first = false;
    }
}

impl Encoder for JsonWriter {
    fn number(&mut self, number: u64) {
        push_number(&mut self.buffer, number);
    }

    fn truth(&mut self, truth: bool) {
        self.buffer.extend_from_slice(if truth { b"true" } else { b"false" });
    }

    fn text(&mut self, text: &str) {
        push_text(&mut self.buffer, text);
    }

    fn word(&mut self, word: Word) {
        self.buffer.push(b'"');
        self.buffer.extend_from_slice(word.text.as_bytes());
        self.buffer.push(b'"');
    }

    fn begin_dictionary(&mut self) {
        self.buffer.push(b'{');
        self.first = true;
    }

    fn key(&mut self, key: Word) {
        self.separate();
        self.word(key);
        self.buffer.push(b':');
    }

    fn end_dictionary(&mut self) {
        self.buffer.push(b'}');
        self.first = false;
    }

    fn begin_list(&mut self) {
        self.buffer.push(b'[');
        self.first = true;
    }

    fn item(&mut self) {
        self.separate();
    }

    fn end_list(&mut self) {
        self.buffer.push(b']');
        self.first = false;
    }

    fn shared(&mut self, _number: u32, write: impl FnOnce(&mut Self)) {
        write(self);
    }

    fn finish(&mut self) {
        self.buffer.push(b'\n');
    }

    fn buffer(&mut self) -> &mut Vec<u8> {
        &mut self.buffer
    }
}

/// Appends a number in decimal.
pub(super) fn push_number(out: &mut Vec<u8>, number: impl itoa::Integer) {
    out.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
}

/// Appends a text in quotes.
pub(super) fn push_text(out: &mut Vec<u8>, text: &str) {
    out.push(b'"');
    for byte in text.bytes() {
        match byte {
            b'"' | b'\\' => out.extend_from_slice(&[b'\\', byte]),
            0..=0x1f => {
                const HEX: &[u8; 16] = b"0123456789abcdef";
                out.extend_from_slice(b"\\u00");
                out.extend_from_slice(&[HEX[usize::from(byte >> 4)], HEX[usize::from(byte & 15)]]);
            }
            _ => out.push(byte),
        }
    }
    out.push(b'"');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arbitrary_texts_read_back_unchanged() {
        let text: String = (0..0x250).filter_map(char::from_u32).chain(['😀']).collect();
        let mut out = Vec::new();
        push_text(&mut out, &text);
        assert_eq!(serde_json::from_slice::<String>(&out).unwrap(), text);
    }
}

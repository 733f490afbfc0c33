//! A streaming JSON writer.

use std::io::Write;

use bfc_core::{is_printable, printable_json};

use super::encoder::Encoder;

/// Appends a text as a JSON string.
pub(super) fn push_text(buffer: &mut Vec<u8>, text: &str) {
    let start = buffer.len();
    // Writing into memory does not fail.
    let _ = serde_json::to_writer(&mut *buffer, text);
    // Serializers escape only some of the characters.
    if !text.chars().all(is_printable) {
        let json = String::from_utf8_lossy(&buffer[start..]).into_owned();
        buffer.truncate(start);
        let _ = write!(buffer, "{}", printable_json(json));
    }
}

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
        self.buffer.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
    }

    fn truth(&mut self, truth: bool) {
        self.buffer.extend_from_slice(if truth { b"true" } else { b"false" });
    }

    fn text(&mut self, text: &str) {
        push_text(&mut self.buffer, text);
    }

    fn word(&mut self, word: &'static str) {
        self.buffer.push(b'"');
        self.buffer.extend_from_slice(word.as_bytes());
        self.buffer.push(b'"');
    }

    fn begin_dictionary(&mut self) {
        self.buffer.push(b'{');
        self.first = true;
    }

    fn key(&mut self, key: &'static str) {
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

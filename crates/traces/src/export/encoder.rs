//! Writes nested plain data: the common interface of the pickle and JSON writers.

/// Writes nested dictionaries, lists, numbers and texts in order. Output goes to a buffer, so nothing can fail.
pub(super) trait Encoder {
    /// Writes an integer.
    fn number(&mut self, number: u64);
    /// Writes a boolean.
    fn truth(&mut self, truth: bool);
    /// Writes a text.
    fn text(&mut self, text: &str);
    /// Writes a text that occurs often and needs no escapes. A pickle writes it once and refers to it later.
    fn word(&mut self, word: &'static str);
    /// Begins a dictionary.
    fn begin_dictionary(&mut self);
    /// Writes a key of the current dictionary, before its value.
    fn key(&mut self, key: &'static str);
    /// Ends a dictionary.
    fn end_dictionary(&mut self);
    /// Begins a list.
    fn begin_list(&mut self);
    /// Announces the next item of the current list.
    fn item(&mut self);
    /// Ends a list.
    fn end_list(&mut self);
    /// Writes the output of `write`, or a reference to the first output under this number if the format has references.
    fn shared(&mut self, number: u32, write: impl FnOnce(&mut Self));
    /// Ends the document.
    fn finish(&mut self) {}
    /// Returns the buffer with the pending output.
    fn buffer(&mut self) -> &mut Vec<u8>;
}

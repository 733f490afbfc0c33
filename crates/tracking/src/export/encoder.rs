//! Plain data, written piece by piece: what a pickle and a JSON text have in common.

/// A text that is written again and again: pickles write it once, and refer to it by its number from then on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Word {
    pub(super) number: u32,
    pub(super) text: &'static str,
}

/// Writes nested dictionaries, lists, numbers and texts, in the order in which they are called for. Nothing can fail: what
/// is written gathers in a buffer.
pub(super) trait Encoder {
    /// A whole number.
    fn number(&mut self, number: u64);
    /// True or false.
    fn truth(&mut self, truth: bool);
    /// A text.
    fn text(&mut self, text: &str);
    /// A text that occurs often.
    fn word(&mut self, word: Word);
    /// Begins a dictionary.
    fn begin_dictionary(&mut self);
    /// A key of the dictionary last begun, before its value.
    fn key(&mut self, key: Word);
    /// Ends a dictionary.
    fn end_dictionary(&mut self);
    /// Begins a list.
    fn begin_list(&mut self);
    /// Announces the next item of the list last begun.
    fn item(&mut self);
    /// Ends a list.
    fn end_list(&mut self);
    /// What `write` writes, or, where the format can, a reference to what was written first under this number.
    fn shared(&mut self, number: u32, write: impl FnOnce(&mut Self));
    /// Ends the whole.
    fn finish(&mut self) {}
    /// What was written so far and not yet taken away.
    fn gathered(&mut self) -> &mut Vec<u8>;
}

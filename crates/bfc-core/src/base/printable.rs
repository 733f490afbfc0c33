//! Text that is safe to print: names from files, arguments and the environment may contain control characters.
//!
//! A terminal interprets control characters, and bidirectional controls reorder the text after them. Errors, reports and
//! tables therefore print every text from outside with [`printable`].

use std::fmt::{self, Display, Write};

/// The format characters of Unicode (category `Cf`), and its separators of lines and paragraphs.
const FORMAT_CHARACTERS: [(char, char); 22] = [
    ('\u{ad}', '\u{ad}'),
    ('\u{600}', '\u{605}'),
    ('\u{61c}', '\u{61c}'),
    ('\u{6dd}', '\u{6dd}'),
    ('\u{70f}', '\u{70f}'),
    ('\u{890}', '\u{891}'),
    ('\u{8e2}', '\u{8e2}'),
    ('\u{180e}', '\u{180e}'),
    ('\u{200b}', '\u{200f}'),
    ('\u{2028}', '\u{202e}'),
    ('\u{2060}', '\u{206f}'),
    ('\u{feff}', '\u{feff}'),
    ('\u{fff9}', '\u{fffb}'),
    ('\u{110bd}', '\u{110bd}'),
    ('\u{110cd}', '\u{110cd}'),
    ('\u{13430}', '\u{1343f}'),
    ('\u{1bca0}', '\u{1bca3}'),
    ('\u{1d173}', '\u{1d17a}'),
    ('\u{e0001}', '\u{e0001}'),
    ('\u{e0020}', '\u{e007f}'),
    ('\u{fdd0}', '\u{fdef}'),
    ('\u{fffe}', '\u{ffff}'),
];

/// Whether a character is neither a control character nor invisible formatting. Letters, marks, symbols and spaces of all
/// scripts are printable.
///
/// ```
/// use bfc_core::is_printable;
/// assert!(['a', 'ß', '漢', '\u{301}', '🦀', ' '].into_iter().all(is_printable));
/// assert!(!['\n', '\u{1b}', '\u{7f}', '\u{9b}', '\u{200b}', '\u{202e}'].into_iter().any(is_printable));
/// ```
#[must_use]
pub fn is_printable(character: char) -> bool {
    if character.is_ascii() {
        return !character.is_ascii_control();
    }
    !character.is_control()
        && !FORMAT_CHARACTERS.iter().any(|&(first, last)| (first..=last).contains(&character))
}

/// How to escape, and what to keep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Style {
    Line,
    Lines,
    Json,
}

/// A text whose unprintable characters are escaped; see [`printable`], [`printable_lines`] and [`printable_json`].
#[derive(Clone, Copy)]
pub struct Printable<T> {
    text: T,
    style: Style,
}

/// Escapes unprintable characters of a text, as Rust does: `\n`, `\u{1b}`, `\u{202e}`. The result is one line.
///
/// Escaping twice changes nothing, because backslashes stay single.
///
/// ```
/// use bfc_core::printable;
/// assert_eq!(printable("a\x1b[2J\u{202e}b").to_string(), r"a\u{1b}[2J\u{202e}b");
/// assert_eq!(printable("Größe").to_string(), "Größe");
/// ```
pub const fn printable<T: Display>(text: T) -> Printable<T> {
    Printable { text, style: Style::Line }
}

/// Escapes unprintable characters of a text of several lines. Tabs and line ends stay.
///
/// ```
/// use bfc_core::printable_lines;
/// assert_eq!(printable_lines("a\n\tb\r\n").to_string(), "a\n\tb\\r\n");
/// ```
pub const fn printable_lines<T: Display>(text: T) -> Printable<T> {
    Printable { text, style: Style::Lines }
}

/// Escapes unprintable characters of a JSON text by the rules of JSON, so that its values stay the same. Serializers
/// escape only the characters below U+0020.
///
/// ```
/// use bfc_core::printable_json;
/// assert_eq!(printable_json("{\"name\": \"a\u{202e}b\"}").to_string(), r#"{"name": "a\u202eb"}"#);
/// ```
pub const fn printable_json<T: Display>(json: T) -> Printable<T> {
    Printable { text: json, style: Style::Json }
}

impl<T: Display> Display for Printable<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A width or precision counts the characters of the escaped text.
        if f.width().is_some() || f.precision().is_some() {
            let mut text = String::new();
            write!(Escaping { out: &mut text, style: self.style }, "{}", self.text)?;
            return f.pad(&text);
        }
        write!(Escaping { out: f, style: self.style }, "{}", self.text)
    }
}

impl<T: Display> fmt::Debug for Printable<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Display::fmt(self, f)
    }
}

/// Escapes unprintable characters on their way to `out`.
struct Escaping<'a, W> {
    out: &'a mut W,
    style: Style,
}

impl<W: Write> Write for Escaping<'_, W> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let keeps_lines = self.style != Style::Line;
        let is_kept =
            |character: char| is_printable(character) || keeps_lines && matches!(character, '\n' | '\t');
        let mut rest = text;
        while let Some(at) = rest.find(|character| !is_kept(character)) {
            let (kept, tail) = rest.split_at(at);
            self.out.write_str(kept)?;
            let mut characters = tail.chars();
            if let Some(character) = characters.next() {
                match (self.style, character) {
                    (Style::Json, _) => {
                        let mut units = [0; 2];
                        let units = character.encode_utf16(&mut units);
                        units.iter().try_for_each(|unit| write!(self.out, "\\u{unit:04x}"))?;
                    }
                    (_, '\n' | '\r' | '\t') => write!(self.out, "{}", character.escape_default())?,
                    _ => write!(self.out, "{}", character.escape_unicode())?,
                }
            }
            rest = characters.as_str();
        }
        self.out.write_str(rest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_character_that_unicode_calls_control_or_format_is_escaped() {
        // `Debug` of `char` escapes the categories Cc, Cf, Zl and Zp, among others.
        for character in ['\0', '\x07', '\x1b', '\x7f', '\u{80}', '\u{9b}', '\u{9f}'] {
            assert!(!is_printable(character), "{character:?}");
        }
        for character in
            (0x202a..=0x202e).chain(0x2066..=0x2069).chain([0x200e, 0x200f, 0x61c, 0x2028, 0xfeff])
        {
            let character = char::from_u32(character).unwrap();
            assert!(!is_printable(character), "{character:?}");
            assert_eq!(printable(character).to_string(), character.escape_unicode().to_string());
        }
    }

    #[test]
    fn control_and_format_characters_are_also_escaped_by_debug() {
        let escaped =
            (0..=0x0010_ffff).filter_map(char::from_u32).filter(|&character| !is_printable(character));
        let mut count = 0;
        for character in escaped {
            assert!(character.escape_debug().len() > 1, "{character:?}");
            count += 1;
        }
        // Control characters, format characters and an unassigned one among them, separators, and noncharacters.
        assert_eq!(count, 65 + 170 + 1 + 2 + 34);
    }

    #[test]
    fn text_of_any_script_stays() {
        for text in [
            "",
            "net.fc1",
            "größe",
            "漢字",
            "नमस्ते",
            "עברית",
            "e\u{301}",
            "🦀",
            r"C:\models\a.npy",
            "a\u{a0}b",
        ] {
            assert_eq!(printable(text).to_string(), text);
        }
    }

    #[test]
    fn json_keeps_its_values() {
        let json = printable_json("{\n\t\"a\": \"\u{7f}\u{9b}\u{e0001}é\"}").to_string();
        assert_eq!(json, "{\n\t\"a\": \"\\u007f\\u009b\\udb40\\udc01é\"}");
    }

    #[test]
    fn escaping_twice_is_escaping_once() {
        let once = printable("\r\n\t\u{85}\u{2029}\\").to_string();
        assert_eq!(once, r"\r\n\t\u{85}\u{2029}\");
        assert_eq!(printable(&once).to_string(), once);
    }

    #[test]
    fn a_width_counts_the_escaped_text() {
        assert_eq!(format!("{:>6}|{:.3}", printable("\n"), printable("\u{1b}x")), r"    \n|\u{");
    }
}

//! Errors for files of the wrong kind, with advice.

use highwater_files::FileKind;

/// Returns a clause for an error message that names the kind of a file with these first bytes, unless it is `expected`.
pub(crate) fn mistaken(start: &[u8], expected: &str) -> Option<String> {
    let kind = FileKind::of(start)?;
    Some(format!("this is {kind}, not {expected}: {}", kind.advice()))
}

/// Like [`mistaken`], and also recognizes plain text, which no binary format begins with.
pub(crate) fn mistaken_or_text(start: &[u8], expected: &str) -> Option<String> {
    const SHOWN: usize = 40;
    mistaken(start, expected).or_else(|| {
        let valid = match std::str::from_utf8(start) {
            Ok(text) => text,
            // The first bytes may end within a character.
            Err(error) if error.error_len().is_none() => {
                std::str::from_utf8(&start[..error.valid_up_to()]).unwrap_or_default()
            }
            Err(_) => return None,
        };
        let is_text = |letter: char| !letter.is_control() || letter.is_ascii_whitespace();
        if valid.trim().is_empty() || !valid.chars().all(is_text) {
            return None;
        }
        let line: String = valid.trim().lines().next().unwrap_or_default().chars().take(SHOWN).collect();
        let is_json = valid.trim_start().starts_with(['{', '[']);
        let (kind, advice) = if is_json {
            (
                "a JSON document",
                "if it is the index of a sharded checkpoint, `ShardedSafetensors::open` reads it",
            )
        } else {
            ("a text file", "`read_csv` reads tables of numbers")
        };
        Some(format!("this is {kind} that begins with {line:?}, not {expected}: {advice}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_git_lfs_pointer_is_named_with_the_size_of_the_file() {
        let pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n";
        assert_eq!(
            mistaken(pointer, "a .npy file").unwrap(),
            "this is a Git LFS pointer to a file of 12345 bytes, not a .npy file: run `git lfs pull` to download the file itself"
        );
    }

    #[test]
    fn text_is_named_by_its_first_line() {
        let cases: [(&[u8], &str); 2] = [
            (b"label,pixel\n1,2\n", "a text file that begins with \"label,pixel\""),
            (b"{\"weight_map\": {}}", "a JSON document"),
        ];
        for (start, expected) in cases {
            let found = mistaken_or_text(start, "x").unwrap();
            assert!(found.starts_with(&format!("this is {expected}")), "{found}");
        }
        for unknown in [&b""[..], b"\0\0\x08\x03", b"\xff\xff\xff\xff\xff\xff\xff\xff", b"  \n"] {
            assert_eq!(mistaken_or_text(unknown, "x"), None);
        }
    }
}

//! The kind of a file, from its first bytes: for errors about files of the wrong kind, which say what to do.

/// How many first bytes of a file are enough.
pub(crate) const START_BYTES: usize = 512;

/// First bytes, the kind of file that they belong to, and advice.
const MAGICS: [(&[u8], &str, &str); 19] = [
    (b"PK\x03\x04", "a zip archive", "`read_npz` reads .npz files, `read_state_dict` those of torch.save"),
    (b"\x93NUMPY", "a NumPy array", "`read_npy` reads it"),
    (b"\x1f\x8b", "a file compressed with gzip", "decompress it first"),
    (b"\x28\xb5\x2f\xfd", "a file compressed with zstd", "decompress it first"),
    (b"\xfd7zXZ\0", "a file compressed with xz", "decompress it first"),
    (b"BZh", "a file compressed with bzip2", "decompress it first"),
    (b"7z\xbc\xaf\x27\x1c", "a 7z archive", "unpack it first"),
    (b"Rar!", "a RAR archive", "unpack it first"),
    (
        b"\x89HDF\r\n\x1a\n",
        "an HDF5 file, as Keras and MATLAB write them",
        "convert it to safetensors or .npz",
    ),
    (b"MATLAB 5.0", "a MATLAB file", "convert it to .npz"),
    (b"GGUF", "a GGUF model", "convert it to safetensors"),
    (b"PAR1", "a Parquet file", "convert it to CSV or .npz"),
    (b"\x89PNG", "a PNG image", "decode it first"),
    (b"\xff\xd8\xff", "a JPEG image", "decode it first"),
    (b"%PDF", "a PDF document", "download the file itself"),
    (b"\x7fELF", "a program", "check the path"),
    (b"\xff\xfe", "text in UTF-16", "save it as UTF-8"),
    (b"\xfe\xff", "text in UTF-16", "save it as UTF-8"),
    (b"\x89HWM\r\n\x1a\n", "a recording of Highwater", "`highwater report` reads it"),
];

/// The magic number of `torch.save` before PyTorch 1.6, 0x1950a86a20f9469cfc6c, little-endian.
const TORCH_MAGIC: &[u8] = b"\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19";

/// The first bytes that contain this number, whichever protocol its pickle has.
const TORCH_MAGIC_WITHIN: usize = 32;

/// Whether a file that begins like this is one of `torch.save` before PyTorch 1.6.
pub(crate) fn is_legacy_torch(start: &[u8]) -> bool {
    let start = &start[..start.len().min(TORCH_MAGIC_WITHIN)];
    start.first() == Some(&0x80) && start.windows(TORCH_MAGIC.len()).any(|bytes| bytes == TORCH_MAGIC)
}

/// Says what a file that begins like this is, if it is not `expected`. The answer is a clause for an error message.
pub(crate) fn mistaken(start: &[u8], expected: &str) -> Option<String> {
    let (kind, advice) = kind(start)?;
    Some(format!("this is {kind}, not {expected}: {advice}"))
}

/// As [`mistaken`], also for plain text, which no binary format begins with.
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
            ("a JSON document", "if it is the index of a sharded checkpoint, load the files that it names")
        } else {
            ("a text file", "`read_csv` reads tables of numbers")
        };
        Some(format!("this is {kind} that begins with {line:?}, not {expected}: {advice}"))
    })
}

fn kind(start: &[u8]) -> Option<(String, String)> {
    if let Some(pointer) = start.strip_prefix(b"version https://git-lfs") {
        let text = String::from_utf8_lossy(pointer);
        let size = text.lines().find_map(|line| line.strip_prefix("size ")?.trim().parse::<u64>().ok());
        let size = size.map_or_else(String::new, |size| format!(" to a file of {size} bytes"));
        return Some((
            format!("a Git LFS pointer{size}"),
            "run `git lfs pull` to download the file itself".to_owned(),
        ));
    }
    let text = start.strip_prefix("\u{feff}".as_bytes()).unwrap_or(start).trim_ascii_start();
    let begins =
        |word: &str| text.get(..word.len()).is_some_and(|start| start.eq_ignore_ascii_case(word.as_bytes()));
    if begins("<!doctype html") || begins("<html") {
        let advice =
            "the server sent a page in place of the file: check the link, or whether it needs a login";
        return Some(("an HTML page".to_owned(), advice.to_owned()));
    }
    if begins("<?xml") {
        let advice = "if the server sent it in place of the file, check the link";
        return Some(("an XML document".to_owned(), advice.to_owned()));
    }
    if is_legacy_torch(start) {
        return Some(("a file of torch.save".to_owned(), "`read_state_dict` reads it".to_owned()));
    }
    if let [0x80, 2..=5, ..] = start {
        let advice = "load it in Python and save its arrays with numpy.savez, or its tensors with torch.save";
        return Some(("a Python pickle".to_owned(), advice.to_owned()));
    }
    if start.get(257..262) == Some(b"ustar") {
        return Some(("a tar archive".to_owned(), "unpack it first".to_owned()));
    }
    let known = MAGICS.iter().find(|(magic, ..)| start.starts_with(magic));
    known.map(|(_, kind, advice)| ((*kind).to_owned(), (*advice).to_owned()))
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
    fn kinds_are_known_by_their_first_bytes() {
        let cases: [(&[u8], &str); 8] = [
            (b"\xef\xbb\xbf\n <!DOCTYPE HTML><html>", "an HTML page"),
            (b"<html lang=en>", "an HTML page"),
            (b"\x80\x04\x95", "a Python pickle"),
            (b"PK\x03\x04", "a zip archive"),
            (b"\xff\xfea\0", "text in UTF-16"),
            (b"\x89HDF\r\n\x1a\n", "an HDF5 file"),
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

//! Detects the kind of a file from its first bytes, so that errors can advise the user.

use std::fmt;

/// A kind of file that is often passed by mistake. Its text is a noun with an article, for error messages.
///
/// ```
/// use highwater_files::FileKind;
/// let kind = FileKind::of(b"<!DOCTYPE html><title>404</title>").expect("a known kind");
/// assert_eq!(kind.to_string(), "an HTML page");
/// assert!(kind.advice().starts_with("the server sent a page"));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FileKind {
    /// A pointer of Git Large File Storage, in place of the file.
    LfsPointer {
        /// The size of the file itself in bytes, if the pointer tells it.
        bytes: Option<u64>,
    },
    /// A web page, as a failed download leaves it.
    Html,
    /// A program that PyTorch exported.
    TorchScript,
    /// Tensors that PyTorch saved.
    TorchCheckpoint,
    /// A zip archive of another kind, such as NumPy's `.npz`.
    Zip,
    /// Tensors in the safetensors format.
    Safetensors,
    /// A pickle of Python.
    Pickle,
    /// A recording (.hwm).
    Recording,
    /// A plan.
    Plan,
    /// Another format that its first bytes identify.
    Other {
        /// Its name, with an article.
        name: &'static str,
        /// The advice.
        advice: &'static str,
    },
}

const DECOMPRESS: &str = "decompress it first";
const UNPACK: &str = "unpack it first";
const AS_UTF8: &str = "save it as UTF-8";

/// First bytes, the name of the format, and advice.
const OTHERS: &[(&[u8], &str, &str)] = &[
    (b"\x93NUMPY", "a NumPy array", "`read_npy` reads it"),
    (b"\x1f\x8b", "a file compressed with gzip", DECOMPRESS),
    (b"\x28\xb5\x2f\xfd", "a file compressed with zstd", "decompress it first: `zstd -d FILE`"),
    // memray compresses its files unless --no-compress is given.
    (
        b"\x04\x22\x4d\x18",
        "a file compressed with lz4, such as the native format of memray (.bin)",
        "convert a file of memray with `memray transform csv FILE`, and decompress others with `lz4 -d FILE`",
    ),
    (b"memray\0", "the native format of memray (.bin)", "convert it with `memray transform csv FILE`"),
    (b"\xfd7zXZ\0", "a file compressed with xz", DECOMPRESS),
    (b"BZh", "a file compressed with bzip2", DECOMPRESS),
    (b"7z\xbc\xaf\x27\x1c", "a 7z archive", UNPACK),
    (b"Rar!", "a RAR archive", UNPACK),
    (
        b"\x89HDF\r\n\x1a\n",
        "an HDF5 file, as Keras and MATLAB write them",
        "convert it to safetensors or .npz",
    ),
    (b"MATLAB 5.0", "a MATLAB file", "convert it to .npz"),
    (b"GGUF", "a GGUF model", "`Gguf::open` reads it"),
    (b"PAR1", "a Parquet file", "convert it to CSV or .npz"),
    (b"\x89PNG", "a PNG image", "decode it first"),
    (b"\xff\xd8\xff", "a JPEG image", "decode it first"),
    (b"%PDF", "a PDF document", "download the file itself"),
    (b"\x7fELF", "a program", "check the path"),
    (b"\xff\xfe", "text in UTF-16", AS_UTF8),
    (b"\xfe\xff", "text in UTF-16", AS_UTF8),
    (b"<?xml", "an XML document", "if a server sent it in place of the file, check the link"),
];

/// The magic number of `torch.save` before PyTorch 1.6, 0x1950a86a20f9469cfc6c, little-endian.
const TORCH_MAGIC: &[u8] = b"\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19";

/// The first bytes that contain this number, whichever protocol its pickle has.
const TORCH_MAGIC_WITHIN: usize = 32;

impl FileKind {
    /// How many first bytes of a file are enough for [`of`](Self::of).
    pub const START_BYTES: usize = 512;

    /// The kind of a file that begins with these bytes, or `None` for others, such as text.
    #[must_use]
    pub fn of(start: &[u8]) -> Option<Self> {
        // The first two bytes of a safetensors file are a length, so they may be those of another format.
        if is_safetensors(start) {
            return Some(Self::Safetensors);
        }
        if start.starts_with(b"version https://git-lfs") {
            return Some(Self::LfsPointer { bytes: lfs_size(start) });
        }
        if start.starts_with(b"PK\x03\x04") {
            return Some(zip(start));
        }
        if start.starts_with(b"\x89HWM\r\n\x1a\n") {
            return Some(Self::Recording);
        }
        if start.starts_with(b"highwater-plan ") {
            return Some(Self::Plan);
        }
        if is_html(start) {
            return Some(Self::Html);
        }
        if is_legacy_torch(start) {
            return Some(Self::TorchCheckpoint);
        }
        // Binary protocols, and the text protocol of a list or a dictionary.
        if matches!(start, [0x80, 1..=5, ..] | [b'(', b'l' | b'd', b'p', ..]) {
            return Some(Self::Pickle);
        }
        if start.get(257..262) == Some(b"ustar") {
            return Some(Self::Other { name: "a tar archive", advice: UNPACK });
        }
        let other = OTHERS.iter().find(|(magic, ..)| start.starts_with(magic));
        other.map(|&(_, name, advice)| Self::Other { name, advice })
    }

    /// Returns the advice for such a file, as a clause for an error message.
    #[must_use]
    pub const fn advice(self) -> &'static str {
        match self {
            Self::LfsPointer { .. } => "run `git lfs pull` to download the file itself",
            Self::Html => {
                "the server sent a page in place of the file: check the link, or whether it needs a login"
            }
            Self::TorchScript => {
                "it holds a program: in Python, save its state dict with torch.save(module.state_dict(), path)"
            }
            Self::TorchCheckpoint => "`read_state_dict` reads its tensors",
            Self::Zip => "`read_npz` reads .npz files; extract others first",
            Self::Safetensors => "`Checkpoint::load` reads its tensors",
            Self::Pickle => {
                "`highwater replay` reads PyTorch's memory snapshots; of other pickles, save the arrays with numpy.savez or the \
                 tensors with torch.save"
            }
            Self::Recording => "`highwater report` reads it",
            Self::Plan => "`highwater replay --plan` follows it",
            Self::Other { advice, .. } => advice,
        }
    }
}

impl fmt::Display for FileKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::LfsPointer { bytes: Some(bytes) } => {
                return write!(f, "a Git LFS pointer to a file of {bytes} bytes");
            }
            Self::LfsPointer { bytes: None } => "a Git LFS pointer",
            Self::Html => "an HTML page",
            Self::TorchScript => "a TorchScript archive",
            Self::TorchCheckpoint => "a file of torch.save",
            Self::Zip => "a zip archive",
            Self::Safetensors => "a safetensors file",
            Self::Pickle => "a Python pickle",
            Self::Recording => "a recording (.hwm)",
            Self::Plan => "a plan",
            Self::Other { name, .. } => name,
        })
    }
}

/// The size that a pointer tells: a line `size BYTES`.
fn lfs_size(start: &[u8]) -> Option<u64> {
    let text = String::from_utf8_lossy(start);
    text.lines().find_map(|line| line.strip_prefix("size ")?.trim().parse().ok())
}

/// PyTorch's archives have one folder, and name its files at their beginning.
fn zip(start: &[u8]) -> FileKind {
    let has = |name: &[u8]| start.windows(name.len()).any(|window| window == name);
    match () {
        () if has(b"/code/") || has(b"/constants.pkl") => FileKind::TorchScript,
        () if has(b"/data.pkl") => FileKind::TorchCheckpoint,
        () => FileKind::Zip,
    }
}

fn is_html(start: &[u8]) -> bool {
    let text = start.strip_prefix("\u{feff}".as_bytes()).unwrap_or(start).trim_ascii_start();
    [&b"<!doctype html"[..], b"<html"]
        .iter()
        .any(|tag| text.get(..tag.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(tag)))
}

/// The length of a header in eight bytes, and a JSON object.
const fn is_safetensors(start: &[u8]) -> bool {
    matches!(start, [_, _, _, _, _, 0, 0, 0, b'{', ..])
}

/// `torch.save` before PyTorch 1.6 began with a pickle of its magic number.
fn is_legacy_torch(start: &[u8]) -> bool {
    let start = &start[..start.len().min(TORCH_MAGIC_WITHIN)];
    start.first() == Some(&0x80) && start.windows(TORCH_MAGIC.len()).any(|bytes| bytes == TORCH_MAGIC)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_known_by_their_beginning() {
        let pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1234567\n";
        let cases: &[(&[u8], &str)] = &[
            (pointer, "a Git LFS pointer to a file of 1234567 bytes"),
            (b"\n <!DOCTYPE HTML><title>404</title>", "an HTML page"),
            (b"\xef\xbb\xbf\n <html lang=en>", "an HTML page"),
            (b"PK\x03\x04....archive/data.pkl..", "a file of torch.save"),
            (b"PK\x03\x04....model/code/__torch__.py", "a TorchScript archive"),
            (b"PK\x03\x04....w.npy", "a zip archive"),
            (b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19.\x80\x02M\xe9\x03.", "a file of torch.save"),
            (b"\x10\0\0\0\0\0\0\0{\"a\":{}}", "a safetensors file"),
            // A header of 0x8b1f bytes: gzip begins with the same two.
            (b"\x1f\x8b\0\0\0\0\0\0{\"a\":{}}", "a safetensors file"),
            (b"\x80\x04\x95", "a Python pickle"),
            (b"(dp0\n", "a Python pickle"),
            (b"\xff\xfei\0d\0", "text in UTF-16"),
            (b"\x89HDF\r\n\x1a\n", "an HDF5 file, as Keras and MATLAB write them"),
            (b"\x89HWM\r\n\x1a\n", "a recording (.hwm)"),
            (b"highwater-plan 1\n", "a plan"),
        ];
        for &(start, expected) in cases {
            let kind = FileKind::of(start).map(|kind| kind.to_string());
            assert_eq!(kind.as_deref(), Some(expected));
        }
        for unknown in [&b"a 0 10 x\n"[..], b"", b"\0\0\x08\x03", b"\xff\xff\xff\xff", b"  \n"] {
            assert_eq!(FileKind::of(unknown), None);
        }
    }
}

//! What a file is that a reader cannot read, by its first bytes.

use std::fmt;

use bfc_core::Bytes;

/// A kind of file that is often passed by mistake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FileKind {
    /// A pointer of Git Large File Storage, in place of the file.
    LfsPointer {
        /// The size of the file itself, if the pointer tells it.
        bytes: Option<u64>,
    },
    /// A web page, as a download that failed leaves it.
    Html,
    /// A program that PyTorch exported.
    TorchScript,
    /// Weights that PyTorch saved.
    TorchCheckpoint,
    /// A zip archive of another kind, such as NumPy's `.npz`.
    Zip,
    /// A NumPy array.
    Npy,
    /// Weights in the safetensors format.
    Safetensors,
    /// A pickle of Python.
    Pickle,
    /// A recording (.hwm).
    Recording,
    /// A plan.
    Plan,
    /// Data that was compressed.
    Compressed {
        /// By which program.
        by: &'static str,
    },
    /// Text in an encoding of 16-bit units.
    Utf16,
}

/// The first bytes of a checkpoint from before PyTorch 1.6: a pickle of a number that stands for the format.
const OLD_CHECKPOINT: &[u8] = b"\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19.";

const LFS: &[u8] = b"version https://git-lfs.github.com/spec/";

impl FileKind {
    /// The kind of a file that begins with these bytes; a few hundred are enough.
    pub(crate) fn of(start: &[u8]) -> Option<Self> {
        let first = [
            (&b"\x89HWM\r\n\x1a\n"[..], Self::Recording),
            (b"highwater-plan ", Self::Plan),
            (b"\x93NUMPY", Self::Npy),
            (b"\x1f\x8b", Self::Compressed { by: "gzip" }),
            (b"\x28\xb5\x2f\xfd", Self::Compressed { by: "zstd" }),
            (b"\xfd7zXZ\0", Self::Compressed { by: "xz" }),
            (b"BZh", Self::Compressed { by: "bzip2" }),
            (b"\xff\xfe", Self::Utf16),
            (b"\xfe\xff", Self::Utf16),
        ];
        if let Some((_, kind)) = first.into_iter().find(|(magic, _)| start.starts_with(magic)) {
            return Some(kind);
        }
        if start.starts_with(LFS) {
            return Some(Self::LfsPointer { bytes: lfs_size(start) });
        }
        if start.starts_with(b"PK\x03\x04") {
            return Some(zip(start));
        }
        if is_html(start) {
            return Some(Self::Html);
        }
        if is_safetensors(start) {
            return Some(Self::Safetensors);
        }
        match start {
            [0x80, 2..=5, rest @ ..] if rest.starts_with(OLD_CHECKPOINT) => Some(Self::TorchCheckpoint),
            [0x80, 0..=5, ..] => Some(Self::Pickle),
            // Protocols 0 and 1 of a list or a dictionary.
            _ if [b"(lp", b"(dp"].iter().any(|old| start.starts_with(*old)) => Some(Self::Pickle),
            _ => None,
        }
    }
}

/// The size that a pointer tells: a line `size BYTES`.
fn lfs_size(start: &[u8]) -> Option<u64> {
    let text = String::from_utf8_lossy(start);
    text.lines().find_map(|line| line.strip_prefix("size ")?.trim().parse().ok())
}

/// PyTorch's archives have one folder, and name what is in it at their beginning.
fn zip(start: &[u8]) -> FileKind {
    let has = |name: &[u8]| start.windows(name.len()).any(|window| window == name);
    match () {
        () if has(b"/code/") || has(b"/constants.pkl") => FileKind::TorchScript,
        () if has(b"/data.pkl") => FileKind::TorchCheckpoint,
        () => FileKind::Zip,
    }
}

fn is_html(start: &[u8]) -> bool {
    let text = start.trim_ascii_start();
    [&b"<!doctype html"[..], b"<html"]
        .iter()
        .any(|tag| text.get(..tag.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(tag)))
}

/// The length of a header in eight bytes, and a JSON object.
fn is_safetensors(start: &[u8]) -> bool {
    matches!(start, [_, _, _, _, _, 0, 0, 0, b'{', ..])
}

impl fmt::Display for FileKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::LfsPointer { bytes: Some(bytes) } => {
                write!(
                    f,
                    "a Git LFS pointer to a file of {}; `git lfs pull` downloads that file",
                    Bytes(*bytes)
                )
            }
            Self::LfsPointer { bytes: None } => {
                f.write_str("a Git LFS pointer; `git lfs pull` downloads the file itself")
            }
            Self::Html => f.write_str("a web page; the download of the file may have failed"),
            Self::TorchScript => {
                f.write_str("a TorchScript archive, which is a program and not a record of allocations")
            }
            Self::TorchCheckpoint => {
                f.write_str("a PyTorch checkpoint, which holds weights and not a record of allocations")
            }
            Self::Zip => f.write_str("a zip archive; extract it, and pass a file from it"),
            Self::Npy => f.write_str("a NumPy array"),
            Self::Safetensors => {
                f.write_str("a safetensors file, which holds weights and not a record of allocations")
            }
            Self::Pickle => {
                f.write_str("a Python pickle; `highwater replay` reads PyTorch's memory snapshots")
            }
            Self::Recording => f.write_str("a recording (.hwm)"),
            Self::Plan => f.write_str("a plan; `highwater replay --plan` follows it"),
            Self::Compressed { by } => write!(f, "compressed with {by}; decompress it first"),
            Self::Utf16 => f.write_str("text in UTF-16; save it as UTF-8"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_known_by_their_beginning() {
        let pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1234567\n";
        let cases: [(&[u8], &str); 9] = [
            (pointer, "a Git LFS pointer to a file of 1.18 MiB"),
            (b"\n <!DOCTYPE HTML><title>404</title>", "a web page"),
            (b"PK\x03\x04....archive/data.pkl..", "a PyTorch checkpoint"),
            (b"PK\x03\x04....model/code/__torch__.py", "a TorchScript archive"),
            (b"PK\x03\x04....w.npy", "a zip archive"),
            (b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19.\x80\x02M\xe9\x03.", "a PyTorch checkpoint"),
            (b"\x10\0\0\0\0\0\0\0{\"a\":{}}", "a safetensors file"),
            (b"(dp0\n", "a Python pickle"),
            (b"\xff\xfei\0d\0", "text in UTF-16"),
        ];
        for (start, expected) in cases {
            let kind = FileKind::of(start).map(|kind| kind.to_string()).unwrap_or_default();
            assert!(kind.starts_with(expected), "{kind}");
        }
        assert_eq!(FileKind::of(b"a 0 10 x\n"), None);
        assert_eq!(FileKind::of(b""), None);
    }
}

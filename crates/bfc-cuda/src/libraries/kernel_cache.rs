//! Caches compiled kernels on disk, so that only the first program on a machine waits for the compiler.
//!
//! The file name is a hash of the source, the options and the compiler version. The file starts with the same hash and
//! a checksum, so that damaged files are detected and replaced. Writes are atomic, so that readers never see part of a
//! file.

use std::fs;
use std::io::Read;
use std::path::PathBuf;

/// The start of every file. The number changes with the format.
const MAGIC: &[u8; 16] = b"highwater-code-1";

/// The most bytes to read of a file; kernels are far smaller.
const LARGEST: u64 = 64 << 20;

/// Everything that determines the compiled code.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Key<'a> {
    pub(crate) source: &'a str,
    pub(crate) options: &'a [String],
    pub(crate) version: (u32, u32),
}

impl Key<'_> {
    /// Hashes the key to 128 bits.
    fn digest(&self) -> [u8; 16] {
        let (major, minor) = self.version;
        let mut digest = [0; 16];
        for (half, seed) in digest.chunks_exact_mut(8).zip([0, 1]) {
            let mut sum = Fnv::new(seed);
            // A length before each part keeps parts apart.
            let parts = self.options.iter().map(String::as_str).chain([self.source]);
            parts.for_each(|part| {
                sum.add(&(part.len() as u64).to_le_bytes());
                sum.add(part.as_bytes());
            });
            sum.add(&major.to_le_bytes());
            sum.add(&minor.to_le_bytes());
            half.copy_from_slice(&sum.0.to_le_bytes());
        }
        digest
    }
}

/// 64-bit FNV-1a: the same on every machine and with every compiler.
struct Fnv(u64);

impl Fnv {
    const fn new(seed: u64) -> Self {
        Self(0xcbf2_9ce4_8422_2325 ^ seed.wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    fn add(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }
}

/// Highwater's folder in the user's cache: `$XDG_CACHE_HOME/highwater`, else `~/.cache/highwater`.
pub(crate) fn user_cache() -> Option<PathBuf> {
    let absolute = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let cache = absolute("XDG_CACHE_HOME").or_else(|| Some(absolute("HOME")?.join(".cache")));
    cache.map(|cache| cache.join("highwater"))
}

/// A folder of compiled code. Without a folder nothing is cached.
#[derive(Debug)]
pub(crate) struct KernelCache {
    folder: Option<PathBuf>,
}

impl KernelCache {
    /// The cache in the folder of the user.
    pub(crate) fn of_user() -> Self {
        Self { folder: user_cache().map(|cache| cache.join("kernels")) }
    }

    #[cfg(test)]
    pub(crate) fn at(folder: &std::path::Path) -> Self {
        Self { folder: Some(folder.to_owned()) }
    }

    fn path(&self, digest: [u8; 16]) -> Option<PathBuf> {
        let name: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
        Some(self.folder.as_ref()?.join(name))
    }

    /// Returns the cached code for a key, if it is intact.
    pub(crate) fn get(&self, key: Key<'_>) -> Option<Vec<u8>> {
        let digest = key.digest();
        let file = fs::File::open(self.path(digest)?).ok()?;
        let mut bytes = Vec::new();
        file.take(LARGEST).read_to_end(&mut bytes).ok()?;
        let rest = bytes.strip_prefix(MAGIC)?.strip_prefix(&digest)?;
        let (sum, code) = rest.split_first_chunk::<8>()?;
        (u64::from_le_bytes(*sum) == checksum(code)).then(|| code.to_vec())
    }

    /// Caches code. A failed write is ignored: the code is compiled again next time.
    pub(crate) fn put(&self, key: Key<'_>, code: &[u8]) {
        let digest = key.digest();
        let Some(path) = self.path(digest) else { return };
        let Some(folder) = path.parent() else { return };
        let bytes = [&MAGIC[..], &digest, &checksum(code).to_le_bytes(), code].concat();
        let own = path.with_extension(std::process::id().to_string());
        let kept = fs::create_dir_all(folder)
            .and_then(|()| fs::write(&own, bytes))
            .and_then(|()| fs::rename(&own, &path));
        if kept.is_err() {
            let _ = fs::remove_file(own);
        }
    }
}

fn checksum(code: &[u8]) -> u64 {
    let mut sum = Fnv::new(2);
    sum.add(code);
    sum.0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(source: &str) -> Key<'_> {
        Key { source, options: &[], version: (12, 9) }
    }

    #[test]
    fn code_is_found_again_under_its_own_key_alone() {
        let folder = tempfile::tempdir().unwrap();
        let cache = KernelCache::at(&folder.path().join("made on demand"));
        assert_eq!(cache.get(key("a")), None);
        cache.put(key("a"), b"code");
        assert_eq!(cache.get(key("a")).as_deref(), Some(&b"code"[..]));
        assert_eq!(cache.get(key("b")), None);
        assert_eq!(cache.get(Key { version: (13, 0), ..key("a") }), None);
        let options = ["--fast".to_owned()];
        assert_eq!(cache.get(Key { options: &options, ..key("a") }), None);
        assert_eq!(fs::read_dir(folder.path().join("made on demand")).unwrap().count(), 1);
    }

    #[test]
    fn a_damaged_file_is_not_used_wherever_it_is_damaged() {
        let folder = tempfile::tempdir().unwrap();
        let cache = KernelCache::at(folder.path());
        cache.put(key("a"), b"code");
        let path = cache.path(key("a").digest()).unwrap();
        let whole = fs::read(&path).unwrap();
        for place in 0..whole.len() {
            let mut damaged = whole.clone();
            damaged[place] ^= 4;
            fs::write(&path, damaged).unwrap();
            assert_eq!(cache.get(key("a")), None, "byte {place}");
            fs::write(&path, &whole[..place]).unwrap();
            assert_eq!(cache.get(key("a")), None, "cut at {place}");
        }
        fs::write(&path, whole).unwrap();
        assert!(cache.get(key("a")).is_some());
    }

    /// As with several processes that start at once on a full disk.
    #[test]
    fn concurrent_writes_and_damage_never_yield_partial_files() {
        let folder = tempfile::tempdir().unwrap();
        let code: Vec<u8> = (0..100_000_u32).map(|n| (n % 251) as u8).collect();
        let whole = std::thread::scope(|scope| {
            let readers: Vec<_> = (0..4)
                .map(|_| {
                    scope.spawn(|| {
                        let cache = KernelCache::at(folder.path());
                        let read = (0..50).filter_map(|_| {
                            cache.put(key("a"), &code);
                            cache.get(key("a"))
                        });
                        read.filter(|read| *read == code || panic!("{} bytes are not the code", read.len()))
                            .count()
                    })
                })
                .collect();
            let cut = scope.spawn(|| {
                for round in 0..100_u64 {
                    let files = fs::read_dir(folder.path()).unwrap().flatten();
                    for file in
                        files.filter_map(|entry| fs::File::options().write(true).open(entry.path()).ok())
                    {
                        let _ = file.set_len(round * 997);
                    }
                }
            });
            cut.join().unwrap();
            readers.into_iter().map(|reader| reader.join().unwrap()).sum::<usize>()
        });
        assert!(whole > 0, "nothing was ever read");
        let cache = KernelCache::at(folder.path());
        cache.put(key("a"), &code);
        assert_eq!(cache.get(key("a")).as_ref(), Some(&code));
    }

    #[test]
    fn an_unwritable_folder_caches_nothing_and_does_not_fail() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        fs::write(&file, "").unwrap();
        let cache = KernelCache::at(&file);
        cache.put(key("a"), b"code");
        assert_eq!(cache.get(key("a")), None);
    }
}

//! Heap usage of the readers for the worst files that they accept or reject. The allocator of this program
//! counts it. The limit is 64 MiB or eight times the decompressed size, whichever is larger. The total
//! allocations and the bytes read show that the work is linear.

#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "helpers of tests may panic as tests may")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::io::{Cursor, Read, Seek, SeekFrom, Write};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use flate2::Compression;
use flate2::write::{DeflateEncoder, GzEncoder};
use highwater_nn::data::{
    CsvOptions, IdxArray, IdxOptions, MaskedTokens, PairOptions, PairText, Pairs, Text, read_csv_from,
    read_idx,
};
use highwater_nn::io::{
    Gguf, GgufLimits, NpyLimits, SafetensorsLimits, ShardedSafetensors, read_npy_from, read_npz_from,
    read_safetensors_from, read_state_dict_from,
};
use rawzip::{CompressionMethod, ZipArchiveWriter};

/// Heap bytes in use, the peak since the last reset, and the total allocated since then.
static IN_USE: AtomicU64 = AtomicU64::new(0);
static PEAK: AtomicU64 = AtomicU64::new(0);
static ALLOCATED: AtomicU64 = AtomicU64::new(0);

struct Counting;

// SAFETY: everything is passed on to the system's allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let size = layout.size() as u64;
        let in_use = IN_USE.fetch_add(size, Ordering::Relaxed) + size;
        PEAK.fetch_max(in_use, Ordering::Relaxed);
        ALLOCATED.fetch_add(size, Ordering::Relaxed);
        // SAFETY: the caller's promise is the one asked for.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        IN_USE.fetch_sub(layout.size() as u64, Ordering::Relaxed);
        // SAFETY: the caller's promise is the one asked for.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// Serializes the measurements.
static ONE: Mutex<()> = Mutex::new(());

const MIB: u64 = 1 << 20;
const FREE: u64 = 64 * MIB;

/// A file that counts the bytes that are read from it.
struct File<'a> {
    bytes: Cursor<&'a [u8]>,
    read: u64,
}

impl Read for File<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let read = self.bytes.read(buffer)?;
        self.read += read as u64;
        Ok(read)
    }
}

impl Seek for File<'_> {
    fn seek(&mut self, to: SeekFrom) -> std::io::Result<u64> {
        self.bytes.seek(to)
    }
}

/// Reads a file of this decompressed size and checks the memory that this takes. Returns whether the reader
/// accepts it.
fn check<T, E: std::fmt::Display>(
    name: &str,
    file: &[u8],
    decompressed: u64,
    read: impl FnOnce(&mut File<'_>) -> Result<T, E>,
) -> bool {
    let mut file = File { bytes: Cursor::new(file), read: 0 };
    let before = IN_USE.load(Ordering::Relaxed);
    PEAK.store(before, Ordering::Relaxed);
    ALLOCATED.store(0, Ordering::Relaxed);
    let result = read(&mut file);
    let (peak, allocated) = (PEAK.load(Ordering::Relaxed) - before, ALLOCATED.load(Ordering::Relaxed));
    let said = match &result {
        Ok(_) => "read".to_owned(),
        Err(error) => error.to_string().chars().take(120).collect(),
    };
    let mib = |bytes| bytes as f64 / MIB as f64;
    eprintln!(
        "{name}: {:.2} MiB, {:.2} decompressed; peak {:.2}, allocated {:.2}, read {:.2}: {said}",
        mib(file.bytes.get_ref().len() as u64),
        mib(decompressed),
        mib(peak),
        mib(allocated),
        mib(file.read)
    );
    assert!(peak <= FREE.max(8 * decompressed), "{name}: a peak of {peak} bytes for {decompressed}");
    assert!(allocated <= 8 * FREE.max(8 * decompressed), "{name}: {allocated} bytes for {decompressed}");
    // The reader may read the file twice: to search for the end of an archive, and for the contents.
    let length = file.bytes.get_ref().len() as u64;
    assert!(file.read <= 2 * length + MIB, "{name}: {} bytes were read of {length}", file.read);
    result.is_ok()
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

/// Returns a zip archive of these files, stored or compressed.
fn zip<'a>(files: impl IntoIterator<Item = (String, &'a [u8])>, method: CompressionMethod) -> Vec<u8> {
    let mut archive = ZipArchiveWriter::new(Vec::new());
    for (name, contents) in files {
        let (mut file, config) = archive.new_file(&*name).compression_method(method).start().unwrap();
        let written = if method == CompressionMethod::STORE {
            let mut writer = config.wrap(&mut file);
            writer.write_all(contents).unwrap();
            writer.finish().unwrap().1
        } else {
            let mut writer = config.wrap(DeflateEncoder::new(&mut file, Compression::best()));
            writer.write_all(contents).unwrap();
            let (encoder, written) = writer.finish().unwrap();
            encoder.finish().unwrap();
            written
        };
        file.finish(written).unwrap();
    }
    archive.finish().unwrap()
}

fn npy(descr: &str, fortran: bool, shape: &str, data: usize) -> Vec<u8> {
    let fortran = if fortran { "True" } else { "False" };
    let text = format!("{{'descr':'{descr}','fortran_order':{fortran},'shape':{shape}}}");
    let length = (text.len() as u16).to_le_bytes();
    [b"\x93NUMPY\x01\x00", &length[..], text.as_bytes(), &vec![1; data]].concat()
}

/// Metadata of many short texts and of nested arrays, and an index of many short names.
#[test]
fn metadata_of_gguf_files_and_indexes_stay_within_eight_times_their_size() {
    let _one = ONE.lock();
    let folder = tempfile::tempdir().unwrap();
    let gguf = |name: &str, number: u32, item: &[u8]| {
        let count = 16 * MIB as usize / item.len();
        let mut file = b"GGUF\x03\0\0\0".to_vec();
        file.extend_from_slice(&[0, 1, 1].map(u64::to_le_bytes).concat());
        file.push(b'k');
        file.extend_from_slice(&[9, number].map(u32::to_le_bytes).concat());
        file.extend_from_slice(&(count as u64).to_le_bytes());
        file.extend_from_slice(&item.repeat(count));
        file.resize(file.len().next_multiple_of(32), 0);
        let path = folder.path().join(name);
        std::fs::write(&path, &file).unwrap();
        let limits = GgufLimits::default();
        assert!(check(name, &file, file.len() as u64, |_| Gguf::open(&path, &limits)));
    };
    gguf("gguf, empty texts", 8, &[0; 8]);
    gguf("gguf, short texts", 8, &[1, 0, 0, 0, 0, 0, 0, 0, b'a']);
    gguf("gguf, booleans", 7, &[1]);
    gguf("gguf, empty arrays", 9, &[0; 12]);
    gguf("gguf, short arrays", 9, &[0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 7]);

    let names: Vec<String> = (0..1_000_000).map(|name| format!("\"{name:x}\":\"a\"")).collect();
    let index = format!("{{\"weight_map\":{{{}}}}}", names.join(","));
    let path = folder.path().join("model.safetensors.index.json");
    std::fs::write(&path, &index).unwrap();
    let limits = SafetensorsLimits::default();
    assert!(!check("index", index.as_bytes(), index.len() as u64, |_| ShardedSafetensors::open(
        &path, &limits
    )));
}

#[test]
fn arrays_of_numpy_stay_within_eight_times_their_size() {
    let _one = ONE.lock();
    let limits = NpyLimits::default();
    // One byte becomes four, and the layout changes.
    let wide = npy("|i1", true, "(4097,4096)", 4097 << 12);
    assert!(check("npy, i8", &wide, wide.len() as u64, |file| read_npy_from(file, "f", &limits)));
    let short = npy("|i1", false, "(1099511627776,)", (16 << 20) + 1);
    let read = check("npy, cut", &short, short.len() as u64, |file| {
        read_npy_from(file, "f", &NpyLimits { data_bytes: u64::MAX, ..limits })
    });
    assert!(!read);

    let compressed = zip([("a.npy".to_owned(), &wide[..])], CompressionMethod::DEFLATE);
    assert!(check("npz", &compressed, wide.len() as u64, |file| read_npz_from(file, "f", &limits)));
    // The entries decompress to ten times the memory that the limit allows for any archive.
    let zeros = npy("|u1", false, "(67108864,)", 64 << 20);
    let files = (0..10).map(|number| (format!("{number}.npy"), &zeros[..]));
    let bomb = zip(files, CompressionMethod::DEFLATE);
    let read = check("npz, bomb", &bomb, FREE, |file| read_npz_from(file, "f", &limits));
    assert!(!read);
    let small = npy("|u1", false, "(1,)", 1);
    let files = (0..10_000).map(|number| (format!("{number}.npy"), &small[..]));
    let many = zip(files, CompressionMethod::STORE);
    assert!(check("npz, many", &many, many.len() as u64, |file| read_npz_from(file, "f", &limits)));
}

/// An archive whose entries share one local header.
#[test]
fn entries_that_share_bytes_take_nothing() {
    let _one = ONE.lock();
    let zeros = npy("|u1", false, "(524288,)", 512 << 10);
    let whole = zip([("a.npy".to_owned(), &zeros[..])], CompressionMethod::STORE);
    let record = whole.windows(4).rposition(|word| word == b"PK\x01\x02").unwrap();
    let end = whole.windows(4).rposition(|word| word == b"PK\x05\x06").unwrap();
    let records = whole[record..end].repeat(10_000);
    let mut bomb = [&whole[..record], &records, &whole[end..]].concat();
    let end = record + records.len();
    bomb[end + 8..][..4].copy_from_slice(&[0x10, 0x27, 0x10, 0x27]);
    bomb[end + 12..][..4].copy_from_slice(&(records.len() as u32).to_le_bytes());
    let length = bomb.len() as u64;
    let limits = NpyLimits::default();
    assert!(!check("npz, shared", &bomb, length, |file| read_npz_from(file, "f", &limits)));
}

/// Returns a PyTorch file with this pickle and one storage.
fn state_dict(pickle: &[u8], storage: &[u8]) -> Vec<u8> {
    let files = [("a/data.pkl".to_owned(), pickle), ("a/data/0".to_owned(), storage)];
    zip(files, CompressionMethod::STORE)
}

/// Returns a pickle of a dictionary with these entries, after these instructions.
fn pickle(before: &[u8], entries: &[u8]) -> Vec<u8> {
    [b"\x80\x02", before, b"}(", entries, b"u."].concat()
}

/// Returns a call that creates a tensor, stores it in memo 0 and pops it.
fn tensor(class: &str, count: u32, of: &[u8]) -> Vec<u8> {
    let id = [
        &b"ctorch._utils\n_rebuild_tensor_v2\n((X\x07\0\0\0storagectorch\n"[..],
        class.as_bytes(),
        b"\nX\x01\0\0\x000X\x03\0\0\0cpuJ",
    ]
    .concat();
    [&id[..], &count.to_le_bytes(), b"tQ", of, b"\x89NtRq\x000"].concat()
}

/// Returns a string of this length, stored in this memo and popped.
fn text(number: u8, length: usize) -> Vec<u8> {
    let length_bytes = (length as u32).to_le_bytes();
    [b"X", &length_bytes[..], &vec![b'k'; length], b"q", &[number], b"0"].concat()
}

#[test]
fn state_dicts_stay_within_eight_times_their_size() {
    let _one = ONE.lock();
    let limits = SafetensorsLimits::default();
    let check = |name: &str, file: &[u8]| {
        check(name, file, file.len() as u64, |source| read_state_dict_from(source, "f", &limits))
    };
    let scalar = || tensor("FloatStorage", 1, b"K\0))");
    let long = || text(1, 4 << 20);
    // A dictionary with a long name, and as many tensors or numbers in it as fit.
    let entries = |value: &[u8], count: u32| -> Vec<u8> {
        let entry = |number: u32| [b"J", &number.to_le_bytes()[..], value].concat();
        (0..count).flat_map(entry).collect()
    };
    let nested = |inner: &[u8]| [b"h\x01}(", inner, b"u"].concat();
    let file = |before: Vec<u8>, entries: &[u8]| state_dict(&pickle(&before, entries), &[0; 4]);
    let joined = file([scalar(), long()].concat(), &nested(&entries(b"h\0", 90_000)));
    assert!(!check("pt, long names of tensors", &joined));
    // In groups of a thousand, as Python writes them.
    let groups = [b"h\x01}(", &*entries(b"K\0", 1000), b"u"].concat();
    let numbers = [&groups[..], &[b"(", &groups[3 + 1..]].concat().repeat(249), b"(K\x01h\0u"].concat();
    assert!(check("pt, long names of numbers", &file([scalar(), long()].concat(), &numbers)));
    // The same key for each of 1.6 million entries.
    let same = [b"h\x01h\0".repeat(800_000), b"h\x01}s".to_vec()].concat();
    assert!(!check("pt, one long key", &file([scalar(), long()].concat(), &same[..same.len() - 3])));
    let many = file(scalar(), &entries(b"h\0", 99_999));
    assert!(check("pt, many tensors", &many));
    let empty = tensor("FloatStorage", 1, b"K\0K\0\x85K\x01\x85");
    assert!(check("pt, many empty tensors", &file(empty, &entries(b"h\0", 99_999))));
    // One stored element, seen 2²⁴ times.
    let expanded = tensor("FloatStorage", 1, b"K\0J\0\0\x40\0\x85K\0\x85");
    assert!(check("pt, expanded", &file(expanded, b"K\0h\0")));
    let expanded = tensor("FloatStorage", 1, b"K\0J\0\0\0\x01\x85K\0\x85");
    assert!(!check("pt, expanded too far", &file(expanded, b"K\0h\0")));
    // The directory claims a storage of 4 GiB less four bytes: alone, or as the size in the archive too.
    let claimed = tensor("FloatStorage", 0x3fff_ffff, b"K\0K\x01\x85K\x01\x85");
    for sizes in [24..28, 20..28] {
        let mut lying = file(claimed.clone(), b"K\0h\0");
        let record = lying.windows(4).rposition(|word| word == b"PK\x01\x02").unwrap();
        lying[record..][sizes].as_chunks_mut::<4>().0.fill(0xffff_fffc_u32.to_le_bytes());
        assert!(!check("pt, a claimed size", &lying));
    }
    // Each byte becomes four, transposed: five times the file in total.
    let bytes = vec![1; 16 << 20];
    let turned = tensor("CharStorage", 16 << 20, b"K\0M\0\x10M\0\x10\x86K\x01M\0\x10\x86");
    assert!(check("pt, i8", &state_dict(&pickle(&turned, b"K\0h\0"), &bytes)));
    // Dictionaries that the reader visits repeatedly.
    let shared = [b"}(".to_vec(), entries(b"N", 200_000), b"uq\x000".to_vec()].concat();
    assert!(!check("pt, shared dictionary", &state_dict(&pickle(&shared, &entries(b"h\0", 200_000)), &[])));

    for (name, unit) in [
        ("lists", &b"]"[..]),
        ("dictionaries", b"}"),
        ("marks", b"("),
        ("values", b"N"),
        ("texts", b"U\0"),
        ("tuples", b")\x85"),
        ("memo", b"Nq\0"),
        ("objects", b"ca\nb\n)\x81"),
        ("names", b"ca\nb\n"),
    ] {
        let mut pickle = b"\x80\x02".to_vec();
        while pickle.len() < 15 << 20 {
            pickle.extend_from_slice(unit);
        }
        assert!(!check(&format!("pt, {name}"), &state_dict(&pickle, &[])));
    }
    let kept: Vec<u8> =
        (0..2_900_000_u32).flat_map(|n| [b"r", &(n * 5 + 1).to_le_bytes()[..]].concat()).collect();
    assert!(!check("pt, scattered memo", &state_dict(&[b"\x80\x02N", &kept[..]].concat(), &[])));
    let start = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.\x80\x02M\xe9\x03.\x80\x02}.";
    let legacy = [&start[..], b"\x80\x02", &vec![b']'; 15 << 20]].concat();
    assert!(!check("legacy, lists", &legacy));
    let storage = tensor("CharStorage", 16 << 20, b"K\0J\0\0\0\x01\x85K\x01\x85");
    let object = pickle(&storage, b"K\0h\0");
    let elements = [&(16_u64 << 20).to_le_bytes()[..], &bytes].concat();
    let legacy = [&start[..], &object, b"\x80\x02](X\x01\0\0\x000e.", &elements].concat();
    assert!(check("legacy, i8", &legacy));
    let files = (0..100_000).map(|number| (format!("a/data/{number}"), &[][..]));
    let files = files.chain([("a/data.pkl".to_owned(), &b"\x80\x02}."[..])]);
    assert!(check("pt, many files", &zip(files, CompressionMethod::STORE)));
}

#[test]
fn safetensors_stay_within_eight_times_their_size() {
    let _one = ONE.lock();
    let limits = SafetensorsLimits::default();
    let check = |name: &str, file: &[u8]| {
        check(name, file, file.len() as u64, |source| read_safetensors_from(source, "f", &limits))
    };
    let file = |header: String, data: usize| {
        [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &vec![1; data]].concat()
    };
    let entry = |number: usize| format!(r#""{number}":{{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}"#);
    let entries = |count: usize| (0..count).map(entry).collect::<Vec<_>>().join(",");
    assert!(check("safetensors, many tensors", &file(format!("{{{}}}", entries(100_000)), 0)));
    assert!(!check("safetensors, too many tensors", &file(format!("{{{}}}", entries(250_000)), 0)));
    let texts: Vec<String> = (0..1_300_000).map(|number| format!(r#""{number:x}":"""#)).collect();
    let texts = |count: usize| format!(r#"{{"__metadata__":{{{}}}}}"#, texts[..count].join(","));
    assert!(check("safetensors, many texts", &file(texts(100_000), 0)));
    assert!(!check("safetensors, too many texts", &file(texts(1_300_000), 0)));
    let nested = format!(r#"{{"a":{{"x":[{}1]}}}}"#, "1,".repeat(8_000_000));
    assert!(!check("safetensors, values that are ignored", &file(nested, 0)));
    let sizes = format!(r#"{{"a":{{"shape":[{}1]}}}}"#, "1,".repeat(8_000_000));
    assert!(!check("safetensors, many axes", &file(sizes, 0)));
    let name = format!(r#"{{"{}":{{}}}}"#, "n".repeat(16_000_000));
    assert!(!check("safetensors, long name", &file(name, 0)));
    let bytes = 16 << 20;
    let wide = format!(r#"{{"a":{{"dtype":"I8","shape":[{bytes}],"data_offsets":[0,{bytes}]}}}}"#);
    assert!(check("safetensors, i8", &file(wide, bytes)));
}

#[test]
fn tables_stay_within_eight_times_their_size() {
    let _one = ONE.lock();
    let options = CsvOptions::default();
    let check = |name: &str, text: &str| {
        let read = check(name, text.as_bytes(), text.len() as u64, |file| read_csv_from(file, "f", &options));
        let compressed = gzip(text.as_bytes());
        let name = format!("{name}, compressed");
        check(&name, &compressed, text.len() as u64, |file| read_csv_from(file, "f", &options));
        read
    };
    // One row more than the capacity at which vectors grow.
    assert!(check("csv, short rows", &"0,0\n".repeat((1 << 22) + 1)));
    assert!(check("csv, longer", &"0,0\n".repeat(14_000_000)));
    let wide = format!("{}0\n", "0,".repeat(65_535));
    assert!(check("csv, wide rows", &wide.repeat(100)));
    assert!(!check("csv, blank lines", &"\n".repeat(40 << 20)));
    assert!(!check("csv, one line", &"1".repeat(40 << 20)));
}

#[test]
fn images_stay_within_eight_times_their_size() {
    let _one = ONE.lock();
    let options = IdxOptions::default();
    let count = (16_u32 << 20) + 1;
    let plain = [&[0, 0, 9, 1][..], &count.to_be_bytes(), &vec![1; count as usize]].concat();
    let length = plain.len() as u64;
    assert!(check("idx", &plain, length, |file| IdxArray::read_from(file, "f", &options)));
    assert!(check("idx, compressed", &gzip(&plain), length, |file| IdxArray::read_from(file, "f", &options)));
    let claimed = [&[0, 0, 14, 2, 0, 0, 4, 0, 0, 16, 0, 0][..], &vec![1; 9 << 20]].concat();
    let length = claimed.len() as u64;
    assert!(!check("idx, claimed", &claimed, length, |file| IdxArray::read_from(file, "f", &options)));
    let folder = tempfile::tempdir().unwrap();
    let [images, labels] = ["images", "labels"].map(|name| folder.path().join(name));
    std::fs::write(&images, [&[0, 0, 8, 2][..], &count.to_be_bytes(), &[0, 0, 0, 1], &plain[8..]].concat())
        .unwrap();
    std::fs::write(&labels, [&[0, 0, 8, 1][..], &plain[4..]].concat()).unwrap();
    assert!(check("images and labels", &[], 2 * plain.len() as u64, |_| read_idx(
        &images, &labels, &options
    )));
}

#[test]
fn texts_stay_within_eight_times_their_size() {
    let _one = ONE.lock();
    let text = vec![b'a'; (16 << 20) + 1];
    let length = text.len() as u64;
    assert!(check("text", &text, length, |file| Text::read_from(file, "f", u64::MAX)));
    assert!(!check("text, too long", &text, length, |file| Text::read_from(file, "f", 16 << 20)));
}

#[test]
fn json_lines_stay_within_eight_times_their_size() {
    let _one = ONE.lock();
    let read = |file: &mut dyn Read| {
        let encode = |pair: &PairText| {
            let sample = MaskedTokens::default().with_context(&[1]);
            let tokens = match pair {
                PairText::Completion { prompt, answer } => prompt.len() + answer.len(),
                PairText::Chat(turns) => turns.len(),
            };
            Ok::<_, String>(sample.with_answer(&vec![2; tokens.min(1)]))
        };
        Pairs::read_from(std::io::BufReader::new(file), "f", &PairOptions::default(), encode)
    };
    let turns = ["{\"role\":\"\",\"content\":\"\"}"; 100_000].join(",");
    for (name, line) in [
        ("pairs", "{\"prompt\":\"\",\"answer\":\"a\"}\n".repeat(400_000)),
        ("conversations", format!("{{\"messages\":[{turns}]}}\n").repeat(4)),
        ("long answers", format!("{{\"prompt\":\"\",\"answer\":\"{}\"}}\n", "a".repeat(4_000_000)).repeat(3)),
    ] {
        assert!(check(name, line.as_bytes(), line.len() as u64, |mut file| read(&mut file)));
    }
    for text in ["a".repeat(20 << 20), "\n".repeat(20 << 20), "[".repeat(20 << 20)] {
        assert!(!check("no pairs", text.as_bytes(), text.len() as u64, |mut file| read(&mut file)));
    }
}

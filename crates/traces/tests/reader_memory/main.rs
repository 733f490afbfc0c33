//! The memory of the readers of external files, measured by the allocator of this program.
//!
//! Each reader gets the files that need the most memory. It may hold 64 MiB, or eight times the decompressed size of
//! the file.

#![allow(clippy::unwrap_used, reason = "helpers of tests may panic as tests may")]

mod recordings;

use std::alloc::{GlobalAlloc, Layout, System};
use std::io::{Write, sink};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use flate2::Compression;
use flate2::write::GzEncoder;
use highwater_files::{PackingLimits, parse_packing};
use highwater_traces::{ReadOptions, Trace, read_recording};
use highwater_tracking::{Recording, Report, ReportDiff, TrainingLog, TrainingLogLimits, write_page};
use recordings::{number, use_recording};

/// Heap bytes in use, and their peak since the last reset.
static IN_USE: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

struct Counting;

fn take(bytes: usize) {
    let now = IN_USE.fetch_add(bytes, Ordering::Relaxed) + bytes;
    PEAK.fetch_max(now, Ordering::Relaxed);
}

// SAFETY: every call is passed on to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        take(layout.size());
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        IN_USE.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of `dealloc`, and the memory came from `System`.
        unsafe { System.dealloc(pointer, layout) }
    }

    // The system allocator moves the pages of a large block and does not copy them, so no block counts twice.
    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        take(size.saturating_sub(layout.size()));
        IN_USE.fetch_sub(layout.size().saturating_sub(size), Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of `realloc`, and the memory came from `System`.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// Serializes the tests, because all of them share one heap.
fn alone() -> MutexGuard<'static, ()> {
    static TESTING: Mutex<()> = Mutex::new(());
    TESTING.lock().unwrap_or_else(PoisonError::into_inner)
}

const MIB: usize = 1 << 20;

/// Asserts that `read` stays within the limit for a file of this many decompressed bytes.
fn check<T>(what: &str, decompressed: usize, read: impl FnOnce() -> T) -> T {
    let before = IN_USE.load(Ordering::Relaxed);
    PEAK.store(before, Ordering::Relaxed);
    let result = read();
    let peak = PEAK.load(Ordering::Relaxed) - before;
    let limit = (64 * MIB).max(8 * decompressed);
    assert!(peak <= limit, "{what}: {peak} bytes held for a file of {decompressed}, {limit} allowed");
    result
}

/// Reads a trace. Returns the number of events or the error message.
fn trace(what: &str, file: &[u8], decompressed: usize) -> Result<usize, String> {
    let read = || Trace::read(file, &ReadOptions::default()).map(|trace| trace.events().len());
    check(what, decompressed, read).map_err(|error| error.to_string())
}

fn lines(count: usize, line: impl Fn(usize, &mut String)) -> Vec<u8> {
    let mut text = String::new();
    (0..count).for_each(|index| line(index, &mut text));
    text.into_bytes()
}

macro_rules! put {
    ($to:expr, $($format:tt)*) => {{
        use std::fmt::Write as _;
        let _ = write!($to, $($format)*);
    }};
}

#[test]
fn text_traces_keep_the_memory_limit() {
    let _alone = alone();
    let allocs = lines(1_000_000, |id, text| put!(text, "a {id} 0 x\n"));
    let pairs = lines(1_000_000, |_, text| put!(text, "a 0 0 x\nf 0\n"));
    let labels = lines(65_000, |id, text| put!(text, "a {id} 0 {id}{}\n", "é".repeat(40)));
    let comments = lines(65_000, |_, text| text.push_str("#\n"));
    let rmm = lines(400_000, |address, text| put!(text, "1,t,free,{address:x},1,0\n"));
    for (what, file) in
        [("allocs", allocs), ("pairs", pairs), ("labels", labels), ("comments", comments), ("rmm", rmm)]
    {
        // A file of this size is read, or fails with the memory limit.
        let read = trace(what, &file, file.len());
        assert!(
            read.as_ref().is_ok() || read.as_ref().is_err_and(|error| error.contains("of memory")),
            "{read:?}"
        );
    }
}

#[test]
fn an_ordinary_trace_is_far_below_the_limit() {
    let _alone = alone();
    let file = lines(800_000, |id, text| {
        put!(text, "a {id} {} model.layers.{}.self_attn.matmul\n", 1000 + id % 999, id % 50);
        if id >= 100 {
            put!(text, "f {}\n", id - 100);
        }
    });
    assert_eq!(trace("ordinary", &file, file.len()), Ok(1_599_900));
}

#[test]
fn minimalloc_problems_keep_the_memory_limit() {
    let _alone = alone();
    let header = b"id,lower,upper,size,alignment,gaps\n";
    let buffers = lines(500_000, |_, text| text.push_str("a,0,1,0,,\n"));
    let gaps = lines(1000, |_, text| {
        text.push_str("a,0,9999,1,1,");
        (0..400).for_each(|gap| put!(text, "{}-{} ", 2 * gap, 2 * gap + 1));
        text.push('\n');
    });
    for (what, rest) in [("buffers", buffers), ("gaps", gaps)] {
        let file = [&header[..], &rest].concat();
        let read = trace(what, &file, file.len());
        assert!(
            read.as_ref().is_ok() || read.as_ref().is_err_and(|error| error.contains("of memory")),
            "{read:?}"
        );
    }
}

#[test]
fn packings_keep_the_memory_limit() {
    let _alone = alone();
    let stacked = |count: usize| {
        let mut file =
            format!("highwater-packing 1\ngranule 1\ncapacity {count}\nblocks {count}\n").into_bytes();
        file.extend(lines(count, |offset, text| put!(text, "0 1 1 {offset}\n")));
        file
    };
    for file in [stacked(250_000), stacked(1_500_000)] {
        let read =
            || parse_packing(&file[..], &PackingLimits::default()).map(|packing| packing.blocks().len());
        let read = check("packing", file.len(), read).map_err(|error| error.to_string());
        assert!(
            read.as_ref().is_ok() || read.as_ref().is_err_and(|error| error.contains("of memory")),
            "{read:?}"
        );
    }
}

/// Reads a file as a recording and reports it. Returns the number of events or the error message.
fn reported(what: &str, file: &[u8]) -> Result<usize, String> {
    let recording = || {
        read_recording(file, &ReadOptions::default()).map(|run| {
            let report = Report::from_recording(&run);
            assert!(report.peak.is_some());
            run.events().len()
        })
    };
    check(what, file.len(), recording).map_err(|error| error.to_string())
}

/// Reads a file as a trace and as a recording. Files of these sizes are read, or fail with the memory limit.
fn both(what: &str, file: &[u8]) {
    for result in [trace(what, file, file.len()), reported(what, file)] {
        assert!(
            result.as_ref().is_ok_and(|events| *events > 0)
                || result.as_ref().is_err_and(|error| error.contains("of memory")),
            "{what}: {result:?}"
        );
    }
}

/// Reads a file as a trace and as a recording, which succeeds with the default limits.
fn both_succeed(what: &str, file: &[u8]) {
    for result in [trace(what, file, file.len()), reported(what, file)] {
        assert!(result.as_ref().is_ok_and(|events| *events > 0), "{what}: {result:?}");
    }
}

#[test]
fn heap_profiles_keep_the_memory_limit() {
    let _alone = alone();
    // A sample with one byte, and its location and function, once for each number.
    let mut profile = b"\x0a\x04\x08\x01\x10\x02\x32\x002\x05space2\x05bytes2\x01f".to_vec();
    for number in 1..300_000_u32 {
        let id = [number as u8 | 0x80, (number >> 7) as u8 | 0x80, (number >> 14) as u8];
        profile.extend(b"\x2a\x06\x08");
        profile.extend(id);
        profile.extend(b"\x10\x03\x22\x0a\x08");
        profile.extend(id);
        profile.extend(b"\x22\x04\x08");
        profile.extend(id);
        profile.extend(b"\x12\x08\x0a\x03");
        profile.extend(id);
        profile.extend(b"\x12\x01\x01");
    }
    both("functions", &profile);
    let heaptrack = |rest: Vec<u8>| [b"v 10400 3\n".to_vec(), rest].concat();
    let blocks = lines(500_000, |_, text| text.push_str("a 1 0\n+ 0\n"));
    both("kinds of blocks", &heaptrack(blocks));
    // Each stack is called by the one before, and allocates.
    let stacks = lines(100_000, |number, text| {
        put!(
            text,
            "s 1 f\ni 1 0 {:x}\nt {:x} {number:x}\na 1 {:x}\n+ {number:x}\n",
            number + 1,
            number + 1,
            number + 1
        )
    });
    both("stacks", &heaptrack(stacks));
    let header = b"allocator,num_allocations,size,tid,thread_name,stack_trace\n".to_vec();
    let rows = lines(200_000, |row, text| put!(text, "M,1,1,1,m,f{row};a.py;{row}\n"));
    both("rows", &[header, rows].concat());
}

/// Stacks of many frames whose function and file are the same long name. Looking at the name for each frame of each
/// stack would take 10^12 steps.
#[test]
fn a_long_name_is_looked_at_once() {
    let _alone = alone();
    // Lines have at most 1 MiB.
    let name = "n".repeat(MIB - 64);
    let (depth, stacks) = (250, 4000);
    let mut heaptrack =
        format!("v 10400 3\ns {:x} {name}\ni 1 0 1 1 1\ni 2 0 1 1 2\n", name.len()).into_bytes();
    heaptrack.extend(lines(depth, |parent, text| put!(text, "t 1 {parent:x}\n")));
    let leaves = lines(stacks, |leaf, text| {
        put!(text, "t 2 {depth:x}\na 10 {:x}\n+ {leaf:x}\n", depth + 1 + leaf);
    });
    heaptrack.extend(leaves);
    both_succeed("heaptrack", &heaptrack);

    let field = |key: u8, contents: &[u8]| {
        let mut field = vec![key << 3 | 2];
        number(&mut field, contents.len() as u64);
        field.extend(contents);
        field
    };
    let mut pprof = field(1, b"\x08\x01\x10\x02");
    let sample = [field(1, &vec![1; depth]), field(2, b"\x10")].concat();
    (0..stacks).for_each(|_| pprof.extend(field(2, &sample)));
    pprof.extend(field(4, b"\x08\x01\x22\x04\x08\x01\x10\x07"));
    pprof.extend(field(5, b"\x08\x01\x10\x03\x20\x03"));
    [b"", &b"space"[..], b"bytes", name.as_bytes()].iter().for_each(|text| pprof.extend(field(6, text)));
    both_succeed("pprof", &pprof);

    // Labels of long keys and values.
    let labels = field(3, b"\x08\x03\x10\x03").repeat(64);
    let mut labeled = field(1, b"\x08\x01\x10\x02");
    let sample = [labels, field(1, b"\x01"), field(2, b"\x10")].concat();
    (0..stacks).for_each(|_| labeled.extend(field(2, &sample)));
    labeled.extend(field(4, b"\x08\x01\x22\x04\x08\x01\x10\x07"));
    labeled.extend(field(5, b"\x08\x01\x10\x03\x18\x03\x20\x03"));
    [b"", &b"space"[..], b"bytes", name.as_bytes()].iter().for_each(|text| labeled.extend(field(6, text)));
    both_succeed("labels", &labeled);

    // A profile that Highwater exported: the comment is text 4.
    let mut exported =
        [pprof, field(6, b"granted bytes that were live at the peak"), vec![13 << 3, 4]].concat();
    exported.extend(field(5, b"\x08\x01\x10\x03\x18\x03\x20\x03"));
    both_succeed("exported", &exported);

    // Addresses in a file with a long path.
    let mut text = b"heap profile: 1: 16 [1: 16] @ heapprofile\n".to_vec();
    text.extend(lines(10_000, |address, text| put!(text, "1: 16 [1: 16] @ 0x{:x}\n", 4096 + address)));
    text.extend(format!("MAPPED_LIBRARIES:\n1000-9000 r-xp 0 08:01 1 /{name}\n").bytes());
    both_succeed("heap_text", &text);

    // Each row of memray has its own names.
    let row = format!("M,1,16,1,m,{}\n", vec![format!("{0};{0};1", &name[..2000]); depth].join("|"));
    let header = "allocator,num_allocations,size,tid,thread_name,stack_trace\n";
    both_succeed("memray", format!("{header}{}", row.repeat(4)).as_bytes());

    // A snapshot with metadata for each event, and a frame that looks like a node of the backward pass.
    let node = format!("torch::autograd::generated::{name}");
    let mut before = [KEYS, b"\x8c\x0duser_metadataq\x070}(\x8c\x08filenameX"].concat();
    for text in [&name, &node] {
        before.extend((text.len() as u32).to_le_bytes());
        before.extend(text.as_bytes());
        if text == &name {
            before.extend(b"\x8c\x04nameX");
        }
    }
    before.extend(b"uq\x090](h\x09eq\x0a0");
    let mut events = Vec::new();
    for address in 1..=10_000_u32 {
        events.extend(b"}(h\x01h\x02h\x03J");
        events.extend(address.to_le_bytes());
        events.extend(b"h\x04K\x01h\x05h\x0ah\x07\x8c\x06");
        events.extend(format!("{address:06}u").bytes());
    }
    let snapshot = snapshot_of(&before, &events);
    assert_eq!(trace("metadata", &snapshot, snapshot.len()), Ok(10_000));
}

/// The data of heaptrack of a program with stacks of 61 frames with long names, and about 21,000 owners.
fn deep_heaptrack() -> Vec<u8> {
    let mut file = b"v 10550 3\nX ./app\ns 1 m\n".to_vec();
    file.extend(lines(400, |number, text| {
        let name = format!(
            "Namespace{number}::VeryDescriptiveClassName{number}<std::shared_ptr<Element>>::\
             handleEventOfTheWindowSystem{number}(QEvent*, QFlags<Type>)"
        );
        put!(text, "s {:x} {name}\ni {number:x} 1 {:x}\n", name.len(), number + 2);
    }));
    file.extend(lines(5000, |stack, text| {
        for depth in 0..61 {
            let place = match depth {
                0..55 => (3 * depth + stack % 20) % 400,
                55 => stack / 20 % 200,
                _ => depth,
            };
            let parent = if depth == 0 { 0 } else { 61 * stack + depth };
            put!(text, "t {:x} {parent:x}\n", place + 1);
        }
        put!(text, "a 40 {:x}\n+ {stack:x}\n", 61 * (stack + 1));
    }));
    file
}

#[test]
fn deep_stacks_take_memory_in_proportion_to_their_number() {
    let _alone = alone();
    let file = deep_heaptrack();
    assert_eq!(trace("deep stacks", &file, file.len()), Ok(5000));

    // The default of the command. Complete paths would take more.
    let mut options = ReadOptions::default();
    options.limits.held_bytes = 1 << 30;
    let before = IN_USE.load(Ordering::Relaxed);
    PEAK.store(before, Ordering::Relaxed);
    let recording = read_recording(&file[..], &options).unwrap();
    assert_eq!(recording.peak().unwrap().bytes, 5000 * 64);
    let read = PEAK.load(Ordering::Relaxed) - before;
    assert!(read < 48 * MIB, "{read}");
    use_recording(&recording);
    let report = Report::from_recording(&recording);
    assert!(ReportDiff::between(&report, &report).is_empty());
    let used = PEAK.load(Ordering::Relaxed) - before;
    assert!(used < 256 * MIB, "{used}");
}

/// A file of at least so many bytes, made of the fewest thousands of events.
fn of_size(bytes: usize, make: impl Fn(usize) -> Vec<u8>) -> Vec<u8> {
    let thousand = make(2000).len() - make(1000).len();
    let file = make(1000 * (bytes / thousand + 1));
    assert!((bytes..bytes + bytes / 10).contains(&file.len()), "{}", file.len());
    file
}

/// A trace of PyTorch's profiler with these events, each after a comma.
fn profiler_of(events: Vec<u8>) -> Vec<u8> {
    [b"{\"schemaVersion\": 1, \"traceEvents\": [{}".to_vec(), events, b"]}".to_vec()].concat()
}

#[test]
fn real_files_of_the_pytorch_profiler_are_read_by_default() {
    let _alone = alone();
    // Events as PyTorch writes them, with an op around each pair of an allocation and a free.
    let events = |count: usize| {
        lines(count, |number, text| {
            let (ts, address) = (1000.5 + 20.0 * number as f64, 0x7f00_0000_0000_u64 + 64 * number as u64);
            put!(
                text,
                ",\n  {{\n    \"ph\": \"X\", \"cat\": \"cpu_op\", \"name\": \"aten::addmm\", \"pid\": 77, \"tid\": 77,\n"
            );
            put!(
                text,
                "    \"ts\": {ts:.3}, \"dur\": 12.345,\n    \"args\": {{\n      \"External id\": {number}\n    }}\n  }}"
            );
            for (later, bytes) in [(1.0, 4096), (15.0, -4096)] {
                put!(
                    text,
                    ",\n  {{\n    \"ph\": \"i\", \"cat\": \"cpu_instant_event\", \"s\": \"t\", \"name\": \"[memory]\",\n"
                );
                put!(
                    text,
                    "    \"pid\": 77, \"tid\": 77,\n    \"ts\": {:.3},\n    \"args\": {{\n",
                    ts + later
                );
                put!(
                    text,
                    "      \"Total Reserved\": 0, \"Total Allocated\": {}, \"Bytes\": {bytes},",
                    4096 + bytes.max(0)
                );
                put!(
                    text,
                    " \"Addr\": {address}, \"Device Id\": -1, \"Device Type\": 0, \"Ev Idx\": {number}\n    }}\n  }}"
                );
            }
        })
    };
    both_succeed("profile", &of_size(17_000_000, |count| profiler_of(events(count))));
    // The fields that the reader needs, and no others.
    let events = |count: usize| {
        lines(count, |number, text| {
            put!(
                text,
                ",{{\"name\":\"[memory]\",\"tid\":1,\"ts\":{number},\"args\":{{\"Bytes\":{},",
                if number % 2 == 0 { 64 } else { -64 }
            );
            put!(
                text,
                "\"Addr\":{},\"Device Id\":-1,\"Device Type\":0}}}}",
                64 * (number / 2) + 0x7f00_0000_0000
            );
        })
    };
    both_succeed("short events", &of_size(17_000_000, |count| profiler_of(events(count))));
}

#[test]
fn real_snapshots_are_read_by_default() {
    let _alone = alone();
    let texts: &[&[u8]] =
        &[b"action", b"alloc", b"addr", b"size", b"frames", b"stream", b"time_us", b"free_completed"];
    // Python numbers all objects in order.
    let mut before = b"Nq\x000".to_vec();
    for (number, text) in (1..).zip(texts.iter().copied()) {
        before.extend([&[0x8c, text.len() as u8], text, &[b'q', number, b'0']].concat());
    }
    for number in 9..209_u32 {
        before.extend(b"}(\x8c\x08filename\x8c\x07/a/m.py\x8c\x04name\x8c\x07forward\x8c\x04lineM");
        before.extend((number as u16).to_le_bytes());
        before.extend(b"ur");
        before.extend(number.to_le_bytes());
        before.push(b'0');
    }
    // As PyTorch writes them: each event has its own list of shared frames, and each object a number.
    let events = |count: u32, frames: u32| {
        let (mut events, mut memo) = (Vec::new(), 209_u32);
        let mut put_memo = |events: &mut Vec<u8>| {
            events.push(b'r');
            events.extend(memo.to_le_bytes());
            memo += 1;
        };
        for event in 0..count {
            events.push(b'}');
            put_memo(&mut events);
            events.extend(if event % 2 == 0 {
                b"(h\x01h\x02h\x03\x8a\x06"
            } else {
                b"(h\x01h\x08h\x03\x8a\x06"
            });
            events.extend(&(0x7f00_0000_0000_u64 + 512 * u64::from(event / 2)).to_le_bytes()[..6]);
            events.extend(b"h\x04J\x00\x02\x00\x00h\x06K\x00h\x07\x8a\x07");
            events.extend(&(1_700_000_000_000_000_u64 + u64::from(event)).to_le_bytes()[..7]);
            events.extend(b"h\x05]");
            put_memo(&mut events);
            events.push(b'(');
            for frame in 0..frames {
                events.push(b'j');
                events.extend((9 + (event / 2 + frame) % 200).to_le_bytes());
            }
            events.extend(b"eu");
        }
        snapshot_of(&before, &events)
    };
    for frames in [22, 2] {
        let file = of_size(19_000_000, |count| events(count as u32, frames));
        both_succeed(&format!("{frames} frames"), &file);
    }
    let events = |count: usize| {
        lines(count, |event, text| {
            let action = if event % 2 == 0 { "alloc" } else { "free_completed" };
            let address = 0x7f00_0000_0000_u64 + 512 * (event as u64 / 2);
            put!(
                text,
                "{}{{\"action\":\"{action}\",\"addr\":{address},\"size\":512,",
                if event == 0 { "" } else { "," }
            );
            put!(text, "\"stream\":0,\"time_us\":{},", 1_700_000_000_000_000_u64 + event as u64);
            put!(
                text,
                "\"frames\":[{{\"filename\":\"/a/m.py\",\"line\":{},\"name\":\"forward\"}}]}}",
                event % 200
            );
            text.push_str(&" ".repeat(40));
        })
    };
    let json =
        |count| [b"{\"device_traces\":[[".to_vec(), events(count), b"]],\"segments\":[]}".to_vec()].concat();
    both_succeed("JSON", &of_size(19_000_000, json));
}

#[test]
fn files_of_the_pytorch_profiler_keep_the_memory_limit() {
    let _alone = alone();
    let events = lines(200_000, |number, text| {
        put!(text, ",{{\"name\":\"[memory]\",\"args\":{{\"Addr\":{number},\"Bytes\":1}}}}");
        put!(text, ",{{\"ph\":\"X\",\"cat\":\"cpu_op\",\"name\":\"{number}\"}}");
    });
    both("events", &[b"{\"traceEvents\":[{}".to_vec(), events, b"]}".to_vec()].concat());
    let events = lines(500_000, |_, text| text.push_str(",[1,2,1,0]"));
    both("timeline", &[b"[[1,2,1,0]".to_vec(), events, b"]".to_vec()].concat());
}

/// A pickle of a snapshot whose events of device 0 are these instructions.
fn snapshot_of(before: &[u8], events: &[u8]) -> Vec<u8> {
    [b"\x80\x02", before, b"}\x8c\x0ddevice_traces](](", events, b"ees."].concat()
}

/// A frame under number 9 with a path of this length.
fn frame(path: usize) -> Vec<u8> {
    let mut frame = b"}(\x8c\x08filenameX".to_vec();
    frame.extend((path as u32).to_le_bytes());
    frame.extend(vec![b'p'; path]);
    frame.extend(b"\x8c\x04name\x8c\x01f\x8c\x04lineK\x01uq\x090");
    frame
}

/// Texts under numbers 1 to 6.
const KEYS: &[u8] =
    b"\x8c\x06actionq\x010\x8c\x05allocq\x020\x8c\x04addrq\x030\x8c\x04sizeq\x040\x8c\x06framesq\x050";

/// Allocations with separate stacks of the same frame.
fn allocations(count: u32) -> Vec<u8> {
    let mut events = Vec::new();
    for address in 1..=count {
        events.extend(b"}(h\x01h\x02h\x03J");
        events.extend(address.to_le_bytes());
        events.extend(b"h\x04K\x01h\x05]h\x09au");
    }
    events
}

#[test]
fn a_frame_with_a_long_path_is_looked_at_once() {
    let _alone = alone();
    // Searching the path for each event would take 10^11 steps.
    let before = [KEYS, &frame(MIB)].concat();
    let file = snapshot_of(&before, &allocations(100_000));
    assert_eq!(trace("long path", &file, file.len()), Ok(100_000));
}

#[test]
fn a_list_of_blocks_that_segments_share_is_read_once() {
    let _alone = alone();
    // 2,000 references to one block in a list, and 20,000 segments with a reference to the list: 40 million blocks.
    let block = b"}(\x8c\x05state\x8c\x10active_allocated\x8c\x04sizeK\x01uq\x010";
    let blocks = [&b"]("[..], &b"h\x01".repeat(2000), b"eq\x020"].concat();
    let segment = b"}(\x8c\x06deviceK\0\x8c\x07addressK\x01\x8c\x06blocksh\x02uq\x030";
    let segments = [&b"]("[..], &b"h\x03".repeat(20_000), b"e."].concat();
    let file = [&b"\x80\x02"[..], block, &blocks, segment, &segments].concat();
    assert_eq!(trace("shared blocks", &file, file.len()), Ok(2000));
}

#[test]
fn snapshots_keep_the_memory_limit() {
    let _alone = alone();
    let lists = snapshot_of(b"", &b"]".repeat(3 * MIB));
    let kept = snapshot_of(
        b"",
        &(0..400_000_u32)
            .flat_map(|index| {
                let [a, b, c, d] = index.to_le_bytes();
                [b']', b'r', a, b, c, d]
            })
            .collect::<Vec<u8>>(),
    );
    // Many frames that share a long name and differ in their line: each makes a label.
    let mut labels = [KEYS, b"X", &500_u32.to_le_bytes(), &vec![b'n'; 500], b"q\x060"].concat();
    labels.extend(b"\x8c\x04nameq\x070\x8c\x04lineq\x080\x8c\x08filenameq\x0a0");
    let mut events = Vec::new();
    for line in 0..60_000_u32 {
        events.extend(b"}(h\x01h\x02h\x03J");
        events.extend((line + 1).to_le_bytes());
        events.extend(b"h\x04K\x01h\x05]}(h\x07h\x06h\x0ah\x06h\x08J");
        events.extend(line.to_le_bytes());
        events.extend(b"uau");
    }
    let labels = snapshot_of(&labels, &events);
    for (what, file) in [("lists", lists), ("kept", kept), ("labels", labels)] {
        let read = trace(what, &file, file.len());
        assert!(read.is_ok() || what != "labels", "{read:?}");
    }
}

#[test]
fn snapshots_in_json_keep_the_memory_limit() {
    let _alone = alone();
    let repeated = |item: &str, count: usize| {
        let items = vec![item; count].join(",");
        format!("{{\"device_traces\":[[{items}]]}}").into_bytes()
    };
    // In the form of an export.
    let event = |address: u32| {
        let module = r#"{"filename":"module","line":0,"name":"encoder"}"#;
        let stack = format!(r#"[{{"filename":"op","line":0,"name":"matmul:forward"}},{module}]"#);
        format!(
            r#"{{"action":"alloc","size":512,"stream":0,"time_us":1795650000123456,"addr":{address},"category":"activation","pool_id":[0,0],"frames":{stack}}}"#
        )
    };
    let events = (1..25_000).map(event).collect::<Vec<_>>().join(",");
    let texts = (0..500_000).map(|number| format!("\"{number:x}\"")).collect::<Vec<_>>().join(",");
    for (what, file) in [
        ("lists", repeated("[]", 2_000_000)),
        ("numbers", repeated("0", 3_000_000)),
        ("texts", repeated(&texts, 1)),
        ("events", repeated(&events, 1)),
    ] {
        let read = trace(what, &file, file.len());
        assert!(read.is_ok() || what != "events", "{read:?}");
    }
}

#[test]
fn compressed_traces_are_limited_by_ratio() {
    let _alone = alone();
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    let line = [&b"# "[..], &[b'x'; 4000], b"\n"].concat();
    for _ in 0..40_000 {
        encoder.write_all(&line).unwrap();
    }
    let file = encoder.finish().unwrap();
    let error = trace("ratio", &file, 40_000 * line.len()).unwrap_err();
    assert!(error.contains("more than 256 times larger") || error.contains("of memory"), "{error}");
}

#[test]
fn training_logs_keep_the_memory_limit() {
    let _alone = alone();
    let curves: String = (0..60).map(|curve| format!(",\"{curve}\":1")).collect();
    let wide = lines(20_000, |step, text| put!(text, "{{\"step\":{step},\"seconds\":0{curves}}}\n"));
    let long = lines(500_000, |step, text| put!(text, "{{\"step\":{step},\"seconds\":0,\"a\":1}}\n"));
    let long_line =
        format!("{{\"step\":0,\"seconds\":0,\"x\":[{}]}}\n", vec!["[]"; 20_000].join(",")).into_bytes();
    for (what, file) in [("wide", wide), ("long", long), ("long line", long_line)] {
        let read = || {
            let log = TrainingLog::read(&file[..], &TrainingLogLimits::default()).unwrap();
            write_page(&Recording::default(), Some(&log), sink()).unwrap();
        };
        check(what, file.len(), read);
    }
}

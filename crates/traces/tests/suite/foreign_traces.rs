//! Reads small real files of other programs, complete and damaged.

use std::fs;
use std::ops::Range;
use std::path::Path;

use bfc_core::{Packing, PackingOptions};
use highwater_files::{PackingLimits, parse_packing, write_packing};
use highwater_traces::{ReadOptions, Step, Trace, TraceError, TraceLimits, fuzz, packing_of};
use highwater_tracking::{Recording, RecordingLimits, TrainingLog, TrainingLogLimits};
use proptest::prelude::*;

const SNAPSHOTS: &[&[u8]] = &[
    include_bytes!("../data/snapshot-2.pickle"),
    include_bytes!("../data/snapshot-3.pickle"),
    include_bytes!("../data/snapshot-4.pickle"),
    include_bytes!("../data/snapshot-5.pickle"),
];
const RMM: &[u8] = include_bytes!("../data/rmm.csv");
const MINIMALLOC: &[u8] = include_bytes!("../data/minimalloc.csv");
const TEXT: &[u8] = b"# steps: 2\n# mark: one\na 0 10 x\na 1 700 y z\nf 0\n# mark: two\na 0 5 x\nf 1\nf 0\n";

fn read(file: &[u8]) -> Result<Trace, TraceError> {
    Trace::read(file, &ReadOptions::default())
}

fn written(trace: &Trace) -> String {
    let mut text = Vec::new();
    trace.write(&mut text).unwrap();
    String::from_utf8(text).unwrap()
}

#[test]
fn snapshots_of_all_pickle_protocols_are_read() {
    let expected = "\
a 0 4000 (allocated before the log)
a 1 1000 (allocated before the log)
f 0
a 2 1000000 forward linear.py:134
a 3 700 _init_group adamw.py:97
# mark: out of memory, 1099511627776 bytes requested
f 2
a 4 300000 forward linear.py:134
";
    for &snapshot in SNAPSHOTS {
        let trace = read(snapshot).unwrap();
        assert_eq!(written(&trace), expected);
        assert_eq!(trace.peak_live_bytes(), 1000 + 1_000_000 + 700);
        assert_eq!(trace.marks().collect::<Vec<_>>(), [(5, "out of memory, 1099511627776 bytes requested")]);
    }
}

#[test]
fn a_device_without_events_says_so() {
    let asked = |device| {
        let options = ReadOptions { device: Some(device), ..ReadOptions::default() };
        Trace::read(SNAPSHOTS[2], &options)
    };
    assert_eq!(asked(0).unwrap(), read(SNAPSHOTS[2]).unwrap());
    assert_eq!(
        asked(1).unwrap_err().to_string(),
        "snapshot: no allocations were recorded for device 1: was recording switched on (_record_memory_history)?"
    );
}

/// A pickle of a snapshot whose events of device 0 are `events`, each written as a list of instructions.
fn snapshot_of(events: &[&[u8]]) -> Vec<u8> {
    let events = events.concat();
    [b"\x80\x02}\x8c\x0ddevice_traces](](", &events[..], b"ee", b"s."].concat()
}

#[test]
fn events_that_are_not_what_they_should_be_are_named() {
    let alloc: &[u8] = b"}(\x8c\x06action\x8c\x05alloc\x8c\x04addrK\x10\x8c\x04sizeK\x20u";
    let cases: &[(&[&[u8]], &str)] = &[
        (&[alloc, b"K\x01"], "event 1 of device 0: an event is missing, or not a dictionary"),
        (&[alloc, b"}"], "event 1 of device 0: an event's `action` is missing, or not a text"),
        (&[alloc, alloc], "event 1 of device 0: the allocation at 0x10 is already live"),
        (
            &[b"}(\x8c\x06action\x8c\x05alloc\x8c\x04addrNu"],
            "event 0 of device 0: an event's `addr` is missing, or not an integer below 2^64",
        ),
        (
            &[b"}(\x8c\x06action\x8c\x05alloc\x8c\x04addrK\x10u"],
            "event 0 of device 0: an event's `size` is missing, or not an integer below 2^64",
        ),
    ];
    for &(events, message) in cases {
        assert_eq!(read(&snapshot_of(events)).unwrap_err().to_string(), message);
    }
    let trace = read(&snapshot_of(&[alloc])).unwrap();
    assert_eq!(written(&trace), "a 0 32 unknown\n");
}

#[test]
fn snapshots_of_another_shape_are_refused() {
    let cases: &[(&[u8], &str)] = &[
        (b"\x80\x02N.", "snapshot: the snapshot is missing, or not a dictionary"),
        (b"\x80\x02}.", "snapshot: `device_traces` is missing, or not a list"),
        (
            b"\x80\x02}\x8c\x0ddevice_traces](Nes.",
            "snapshot: an item of `device_traces` is missing, or not a list",
        ),
        (
            b"\x80\x02}\x8c\x0ddevice_traces]s.",
            "snapshot: no allocations were recorded: was recording switched on (_record_memory_history)?",
        ),
        (
            b"\x80\x02}\x8c\x0ddevice_traces](]](K\x01e](K\x01ees.",
            "snapshot: events of 2 devices (1, 2): choose one with --device",
        ),
    ];
    for &(file, message) in cases {
        assert_eq!(read(file).unwrap_err().to_string(), message);
    }
}

#[test]
fn events_may_share_one_large_object() {
    // A hundred thousand events that are one dictionary of a hundred thousand entries: 10^10 steps if each were
    // searched.
    let many = 100_000;
    let dictionary = [b"}q\x00(".to_vec(), b"K\x01K\x01".repeat(many), b"u0".to_vec()].concat();
    let file = [
        b"\x80\x02".to_vec(),
        dictionary,
        b"}\x8c\x0ddevice_traces](](".to_vec(),
        b"h\x00".repeat(many),
        b"ees.".to_vec(),
    ]
    .concat();
    let message = read(&file).unwrap_err().to_string();
    assert_eq!(message, "event 0 of device 0: an event is missing, or not a dictionary of up to 64 entries");
}

#[test]
fn a_problem_of_minimalloc_keeps_its_lifetimes() {
    let trace = read(MINIMALLOC).unwrap();
    assert_eq!((trace.events().len(), trace.peak_live_bytes()), (10, 12));
    assert_eq!(trace.labels()[..3], ["b1", "b3", "b5"].map(str::to_owned)[..]);
}

#[test]
fn a_log_of_rmm_keeps_its_order() {
    let trace = read(RMM).unwrap();
    assert_eq!((trace.events().len(), trace.peak_live_bytes()), (6, 4096 + 256 + 1000 + 512 - 256));
}

const ALIGNMENT: &[u8] = include_bytes!("../data/minimalloc-alignment.csv");
const JSON: &[u8] =
    br#"{"segments":[{"device":0,"address":16,"blocks":[{"size":64,"state":"active_allocated"}]}],
"device_traces":[[{"action":"alloc","addr":128,"size":9,"frames":[{"name":"f","filename":"a.py","line":3}]},
{"action":"free_completed","addr":256,"size":7,"category":null},{"action":"oom","size":1.5e3}]]}"#;
const GAPS: &[u8] = include_bytes!("../data/minimalloc-gaps.csv");
/// Two samples: 2 blocks of 100 bytes by `leaf` in `root`, and 1 block of 7 bytes by `root`, on the device `d`.
const PPROF: &[u8] = b"\x0a\x04\x08\x01\x10\x02\x0a\x04\x08\x03\x10\x04\
    \x12\x0f\x0a\x02\x01\x02\x12\x03\x02\xc8\x01\x1a\x04\x08\x07\x10\x08\x12\x07\x0a\x01\x02\x12\x02\x01\x07\
    \x22\x08\x08\x01\x22\x04\x08\x01\x10\x05\x22\x08\x08\x02\x22\x04\x08\x02\x10\x09\
    \x2a\x06\x08\x01\x10\x05\x20\x09\x2a\x06\x08\x02\x10\x06\x20\x09\
    2\x00\x32\x03num2\x05count2\x05space2\x05bytes2\x04leaf2\x04root2\x06device2\x01d2\x04a.py";
const HEAPTRACK: &[u8] =
    b"v 10400 3\nX ./a b\ns 1 a\ns 4 main\ns 3 a.c\ni 10 1 2 3 5\nt 1 0\ni 20 1\nt 2 1\na 64 1\na 7 2\n\
    + 0\n+ 1\nc a\n- 0\n+ 0\nR ff\n- 1\n";
const MEMRAY: &[u8] = b"allocator,num_allocations,size,tid,thread_name,stack_trace\n\
    MALLOC,2,30,1,main,f;a.py;7|main;a.py;9\nMMAP,1,99,1,\"a, \"\"b\"\"\",\n";
const PROFILER: &[u8] = br#"{"traceEvents":[{"ph":"X","cat":"cpu_op","name":"aten::mm","tid":1,"ts":1,"dur":9},
{"name":"[memory]","tid":1,"ts":2,"args":{"Total Allocated":96,"Bytes":64,"Device Id":-1,"Device Type":0,"Addr":16}},
{"name":"[memory]","tid":1,"ts":30,"args":{"Total Allocated":32,"Bytes":-64,"Device Id":-1,"Device Type":0,"Addr":16}}]}"#;
const TIMELINE: &[u8] =
    b"[[-1, 1, 64, 0], [1000, 2, 9, 4], [2000, 3, -9, 4], [2000, 3, 9, 3], [3000, 4, -64, 0]]";

fn packing(file: &[u8], granule: u64) -> Packing {
    let options = PackingOptions::default().with_granule(granule);
    packing_of(&read(file).unwrap(), &Step::Whole, &options, &mut |_| true).unwrap()
}

#[test]
fn minimalloc_alignments_hold_in_packings() {
    let solved = packing(ALIGNMENT, 1);
    assert_eq!((solved.capacity(), solved.lower_bound()), (4196, 4196));
    assert_eq!(packing(ALIGNMENT, 256).capacity(), 4352);
    let mut text = Vec::new();
    write_packing(&solved, &mut text).unwrap();
    assert_eq!(parse_packing(&text[..], &PackingLimits::default()).unwrap(), solved);
}

#[test]
fn minimalloc_gaps_lend_bytes() {
    let trace = read(GAPS).unwrap();
    assert_eq!(trace.peak_live_bytes(), 4);
    assert_eq!(written(&trace), "a 0 4 a\nu 0 0 4\nu 0 0 0\na 1 4 b\nf 1\nu 0 0 4\nf 0\n");
    assert_eq!(read(written(&trace).as_bytes()).unwrap().peak_live_bytes(), 4);
    let solved = packing(GAPS, 1);
    assert_eq!((solved.capacity(), solved.lower_bound()), (4, 4));
    let mut text = Vec::new();
    write_packing(&solved, &mut text).unwrap();
    assert_eq!(parse_packing(&text[..], &PackingLimits::default()).unwrap(), solved);
}

/// The least capacity of a problem whose buffers have gaps.
fn with_gaps(lines: &str) -> (u64, u64) {
    let file = format!("id,lower,upper,size,gaps\n{lines}");
    let solved = packing(file.as_bytes(), 1);
    assert_eq!(solved.lower_bound(), read(file.as_bytes()).unwrap().peak_live_bytes(), "{lines}");
    (solved.capacity(), solved.lower_bound())
}

#[test]
fn gaps_are_read_as_minimalloc_reads_them() {
    // The buffer keeps a window of its bytes.
    assert_eq!(with_gaps("a,0,10,8,2-8@0:3\nb,2,8,5,\n"), (8, 8));
    // The second buffer lives on after the gap.
    assert_eq!(with_gaps("a,0,10,4,2-8\nb,2,10,4,\n"), (8, 8));
    // A gap at the beginning or the end, and beyond the lifetime.
    assert_eq!(with_gaps("a,4,10,4,0-6 9-20\nb,0,6,4,\nc,9,12,4,\n"), (4, 4));
    assert_eq!(with_gaps("a,0,10,6,0-5@0:2\nb,0,5,4,\n"), (6, 6));
    // One gap right after another, with other bytes.
    assert_eq!(with_gaps("a,0,10,4,2-5@0:2 5-8@2:4\nb,2,5,2,\nc,5,8,2,\n"), (4, 4));
    // A gap that begins later, without an event in between: both are in use until then.
    assert_eq!(with_gaps("x,0,10,4,\na,5,10,4,6-10\n"), (8, 8));
    assert_eq!(with_gaps("x,0,10,4,\na,5,10,4,5-10\n"), (4, 4));
    // Gaps of two buffers, interleaved.
    assert_eq!(with_gaps("a,0,10,4,5-10\nb,0,10,4,0-5\n"), (4, 4));
}

#[test]
fn bad_alignments_and_gaps_are_named() {
    let cases = [
        ("a,0,9,4,3,", "line 2: the alignment of 3 bytes is not a power of two below 2^32"),
        ("a,0,9,4,0,", "line 2: the alignment of 0 bytes is not a power of two below 2^32"),
        ("a,0,9,4,1,2", "line 2: expected gaps as LOWER-UPPER or LOWER-UPPER@FROM:TO, found \"2\""),
        ("a,0,9,4,1,5-5", "line 2: the gap from 5 to 5 overlaps the gap before it, or is empty"),
        ("a,0,9,4,1,4-6 3-5", "line 2: the gap from 4 to 6 overlaps the gap before it, or is empty"),
        ("a,0,9,4,1,2-5@0:5", "line 2: the range from 0 to 5 is not part of a block of 4 bytes"),
        ("a,0,9,4,1,2-x", "line 2: \"x\" is not an integer below 2^64"),
    ];
    for (line, message) in cases {
        let file = format!("id,lower,upper,size,alignment,gaps\n{line}\n");
        assert_eq!(read(file.as_bytes()).unwrap_err().to_string(), message);
    }
    assert!(read(b"id,lower,upper,size,alignment\na,0,9,4,\n").is_ok(), "no alignment is one of 1");
}

#[test]
fn unknown_columns_are_listed() {
    let trace = read(b"id,lower,upper,size,hint,note\na,0,9,4,7,x\n").unwrap();
    assert_eq!(trace.skipped(), ["the column \"hint\"", "the column \"note\""]);
    assert_eq!(read(GAPS).unwrap().skipped(), [""; 0]);
}

#[test]
fn byte_order_marks_do_not_matter() {
    let trace = read(include_bytes!("../data/minimalloc-bom.csv")).unwrap();
    assert_eq!(written(&trace), "a 0 100 1\nf 0\n");
    let trace = read(include_bytes!("../data/rmm-bom.csv")).unwrap();
    assert_eq!((trace.events().len(), trace.peak_live_bytes()), (3, 3072));
    let mark = "\u{feff}";
    assert_eq!(written(&read(format!("{mark}a 0 10 x\n").as_bytes()).unwrap()), "a 0 10 x\n");
    let packing = format!("{mark}highwater-packing 1\ngranule 1\ncapacity 0\nblocks 0\n");
    assert!(parse_packing(packing.as_bytes(), &PackingLimits::default()).is_ok());
    let log = format!("{mark}{{\"step\":0,\"seconds\":0,\"loss\":1}}\n");
    assert_eq!(TrainingLog::read(log.as_bytes(), &TrainingLogLimits::default()).unwrap().curves().len(), 1);
    let json = format!("{mark}{{\"device_traces\":[[{{\"action\":\"alloc\",\"addr\":16,\"size\":9}}]]}}");
    assert_eq!(written(&read(json.as_bytes()).unwrap()), "a 0 9 unknown\n");
}

#[test]
fn a_snapshot_in_json_gives_its_events() {
    let expected = "a 0 7 (allocated before the log)\na 1 64 (allocated before the log)\na 2 9 f a.py:3\nf 0\n\
        # mark: out of memory, 0 bytes requested\n";
    assert_eq!(written(&read(JSON).unwrap()), expected);
    let error = read(b"{\"device_traces\": [[}").unwrap_err().to_string();
    assert!(error.starts_with("snapshot: not the JSON of a memory snapshot: "), "{error}");
    let error = read(b"[1]").unwrap_err().to_string();
    assert_eq!(error, "snapshot: a segment is missing, or not a dictionary");
}

#[test]
fn a_list_of_segments_gives_its_live_blocks() {
    let file = include_bytes!("../data/list-of-segments.pickle");
    let trace = read(file).unwrap();
    assert_eq!(written(&trace), "a 0 512 (allocated before the log)\n");
    assert!(
        trace.skipped()[0].contains("torch.cuda.memory._record_memory_history()"),
        "{:?}",
        trace.skipped()
    );
    let options = ReadOptions { device: Some(1), ..ReadOptions::default() };
    let error = Trace::read(&file[..], &options).unwrap_err().to_string();
    assert!(error.contains("for device 1"), "{error}");
}

#[test]
fn events_of_two_devices_need_a_choice() {
    let file = include_bytes!("../data/two-devices.pickle");
    let error = read(file).unwrap_err().to_string();
    assert_eq!(error, "snapshot: events of 2 devices (0, 1): choose one with --device");
    let options = ReadOptions { device: Some(1), ..ReadOptions::default() };
    assert_eq!(written(&Trace::read(&file[..], &options).unwrap()), "a 0 512 unknown\nf 0\n");
}

#[test]
fn other_files_are_identified() {
    let html: &[u8] = b"<!DOCTYPE html><html><title>Not Found</title>";
    let cases: &[(&[u8], &str)] = &[
        (include_bytes!("../data/lfs-pointer"), "not a trace: a Git LFS pointer to a file of "),
        (include_bytes!("../data/torchscript.pt"), "not a trace: a TorchScript archive"),
        (include_bytes!("../data/checkpoint.pt"), "not a trace: a file of torch.save"),
        (include_bytes!("../data/legacy-checkpoint.pt"), "not a trace: a file of torch.save"),
        (html, "not a trace: an HTML page"),
    ];
    for &(file, message) in cases {
        let error = read(file).unwrap_err().to_string();
        assert!(error.contains(message), "{error}");
        let error = Recording::read(file, &RecordingLimits::default()).unwrap_err().to_string();
        assert!(error.contains(&message.replace("not a trace", "not a recording")), "{error}");
    }
    let error = parse_packing(html, &PackingLimits::default()).unwrap_err().to_string();
    assert!(error.contains("not a packing: an HTML page"), "{error}");
    let error = TrainingLog::read(html, &TrainingLogLimits::default()).unwrap_err().to_string();
    assert!(error.contains("not a training log: an HTML page"), "{error}");
}

#[test]
fn small_profiles_have_their_peak() {
    for (file, peak) in [(PPROF, 207), (HEAPTRACK, 0x64 + 7), (MEMRAY, 129), (PROFILER, 96), (TIMELINE, 73)] {
        assert_eq!(read(file).unwrap().peak_live_bytes(), peak, "{}", String::from_utf8_lossy(file));
    }
}

/// An input and the fuzz target that reads it.
type Case = (Vec<u8>, fn(&[u8]));

/// The largest file that is damaged at every byte.
const MOST_DAMAGED_BYTES: usize = 3000;

/// Every small file of `tests/data` and of this module.
fn small_files() -> impl Iterator<Item = Vec<u8>> {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data");
    let listed =
        [data.clone(), data.join("runtimes")].into_iter().flat_map(|folder| fs::read_dir(folder).unwrap());
    let mut paths: Vec<_> = listed.map(|entry| entry.unwrap().path()).filter(|path| path.is_file()).collect();
    paths.sort();
    let stored = paths.into_iter().map(|path| fs::read(path).unwrap());
    let here = [TEXT, JSON, PPROF, HEAPTRACK, MEMRAY, PROFILER, TIMELINE].map(<[u8]>::to_vec);
    here.into_iter().chain(stored).filter(|file| file.len() <= MOST_DAMAGED_BYTES)
}

/// The small files with every target that reads them. One target damages their first bytes, the other keeps them.
fn files() -> Vec<Case> {
    let mut files: Vec<Case> = Vec::new();
    for file in small_files() {
        if let Some(input) = fuzz::input_of_formats(&file) {
            files.push((input, fuzz::formats));
        }
        if read(&file).is_ok() {
            files.push((file, fuzz::any));
        }
    }
    for problem in [ALIGNMENT, GAPS] {
        let header = problem.iter().position(|&byte| byte == b'\n').unwrap() + 1;
        files.push((problem[header..].to_vec(), fuzz::minimalloc_gaps));
    }
    files.extend([fuzz::gzip as fn(&[u8]), fuzz::replayed].map(|target| (TEXT.to_vec(), target)));
    files
}

#[test]
fn every_format_has_a_small_file() {
    let readable = small_files().filter(|file| read(file).is_ok());
    let inputs: Vec<_> = readable.filter_map(|file| fuzz::input_of_formats(&file)).collect();
    // `record/hwm/tests.rs` damages recordings.
    assert_eq!(fuzz::formats_without(&inputs), ["a recording (.hwm)"], "add files to tests/data");
}

#[test]
fn files_cut_at_any_byte_keep_every_promise() {
    for (file, target) in files() {
        for end in 0..=file.len() {
            target(&file[..end]);
        }
    }
    for &snapshot in SNAPSHOTS {
        for end in 1..snapshot.len() {
            assert!(read(&snapshot[..end]).is_err(), "a cut snapshot is never taken for a whole one: {end}");
        }
    }
}

#[test]
fn files_with_any_one_byte_changed_keep_every_promise() {
    for (mut damaged, target) in files() {
        for index in 0..damaged.len() {
            for flip in [0x01, 0x10, 0x80, 0xff] {
                damaged[index] ^= flip;
                target(&damaged);
                damaged[index] ^= flip;
            }
        }
    }
}

/// A kind of damage. Positions are shares of the file's length.
#[derive(Clone, Debug)]
enum Damage {
    Set(f64, u8),
    Insert(f64, Vec<u8>),
    Remove(Range<f64>),
    Repeat(Range<f64>, usize),
}

fn damage() -> impl Strategy<Value = Damage> {
    let range =
        || (0.0..1.0, 0.0..0.2).prop_map(|(start, length): (f64, f64)| start..(start + length).min(1.0));
    prop_oneof![
        (0.0..1.0, any::<u8>()).prop_map(|(at, byte)| Damage::Set(at, byte)),
        (0.0..1.0, prop::collection::vec(any::<u8>(), 1..9))
            .prop_map(|(at, bytes)| Damage::Insert(at, bytes)),
        range().prop_map(Damage::Remove),
        (range(), 1_usize..20).prop_map(|(range, times)| Damage::Repeat(range, times)),
    ]
}

fn apply(file: &mut Vec<u8>, damage: &Damage) {
    let length = file.len();
    let at = |share: f64| ((share * length as f64) as usize).min(length);
    match damage {
        Damage::Set(share, byte) => {
            if let Some(found) = file.get_mut(at(*share)) {
                *found = *byte;
            }
        }
        Damage::Insert(share, bytes) => {
            let at = at(*share);
            file.splice(at..at, bytes.iter().copied());
        }
        Damage::Remove(range) => drop(file.drain(at(range.start)..at(range.end))),
        Damage::Repeat(range, times) => {
            let piece = file[at(range.start)..at(range.end)].repeat(*times);
            let at = at(range.end);
            file.splice(at..at, piece);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn damaged_files_keep_every_promise(
        which in any::<prop::sample::Index>(),
        damages in prop::collection::vec(damage(), 1..6),
    ) {
        let files = files();
        let (mut file, target) = files[which.index(files.len())].clone();
        for damage in &damages {
            apply(&mut file, damage);
        }
        target(&file);
    }
}

#[test]
fn limits_hold_for_every_format() {
    let limits = TraceLimits { events: 4, ..TraceLimits::default() };
    for file in [TEXT, RMM, MINIMALLOC, SNAPSHOTS[3]] {
        let message = Trace::read(file, &ReadOptions { limits, device: None }).unwrap_err().to_string();
        assert!(message.ends_with("more than 4 events"), "{message}");
    }
}

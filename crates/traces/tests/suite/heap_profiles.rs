//! Heap profiles of Go, tcmalloc and jemalloc, and files that look like them.

use std::io::Write;

use flate2::Compression;
use flate2::write::GzEncoder;
use highwater_traces::{ReadOptions, Trace, read_recording};
use highwater_tracking::{Phase, Recording, Report};

const GO: &[u8] = include_bytes!("../data/go-heap.pb");
const TCMALLOC: &str = include_str!("../data/tcmalloc.heap");
const JEMALLOC: &str = include_str!("../data/jemalloc.heap");

fn run(file: &[u8]) -> Recording {
    read_recording(file, &ReadOptions::default()).unwrap()
}

fn refusal(file: &[u8]) -> String {
    let error = read_recording(file, &ReadOptions::default()).unwrap_err();
    assert_eq!(Trace::read(file, &ReadOptions::default()).unwrap_err().to_string(), error.to_string());
    error.to_string()
}

/// The live bytes at the end with their holders, the most bytes first. The trace of the file has the same sum.
fn live(file: &[u8]) -> Vec<(String, u64)> {
    let report = Report::from_recording(&run(file));
    assert!(report.phases.iter().all(|row| row.phase == Phase::Unknown));
    let live: Vec<_> = report.live.iter().map(|row| (row.path(), row.bytes)).collect();
    let sum: u64 = live.iter().map(|(_, bytes)| bytes).sum();
    assert_eq!(Trace::read(file, &ReadOptions::default()).unwrap().peak_live_bytes(), sum);
    live
}

fn gzip(file: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(file).unwrap();
    encoder.finish().unwrap()
}

/// A field of a protocol buffer whose length is below 128.
fn field(number: u8, contents: &[u8]) -> Vec<u8> {
    [&[number << 3 | 2, contents.len() as u8], contents].concat()
}

/// The fields of a profile in the order of Go, each with its number: types, samples, mapping, location, function,
/// texts, time, duration, and the type and value of the period.
fn fields_of_go(samples: &[Vec<u8>]) -> Vec<(u8, Vec<u8>)> {
    let texts =
        ["", "space", "bytes", "inuse_objects", "count", "inuse_space", "alloc_objects", "alloc_space"];
    let names = ["main.alloc", "/app/main.go", "key", "device", "/app/prog"];
    let mut fields = vec![(11, field(11, b"\x08\x01\x10\x02")), (12, b"\x60\x80\x80\x20".to_vec())];
    for kind in [b"\x08\x06\x10\x04", b"\x08\x07\x10\x02", b"\x08\x03\x10\x04", b"\x08\x05\x10\x02"] {
        fields.push((1, field(1, kind)));
    }
    fields.extend(samples.iter().map(|sample| (2, field(2, sample))));
    fields.push((3, field(3, b"\x08\x01\x10\x80\x20\x18\x80\x40\x28\x0c")));
    fields.push((4, field(4, b"\x08\x01\x10\x01\x18\x80\x21\x22\x04\x08\x01\x10\x0c")));
    fields.push((5, field(5, b"\x08\x01\x10\x08\x18\x08\x20\x09")));
    fields.extend(texts.iter().chain(&names).map(|text| (6, field(6, text.as_bytes()))));
    fields.push((9, b"\x48\x80\xc8\xaf\xa0\x25".to_vec()));
    fields.push((10, b"\x50\x05".to_vec()));
    fields
}

fn concat(fields: &[(u8, Vec<u8>)]) -> Vec<u8> {
    fields.iter().flat_map(|(_, field)| field.clone()).collect()
}

/// A sample in location 1 with allocated and live blocks and bytes, of which the bytes are multiples of 128.
fn sample(allocated: u8, live: u8) -> Vec<u8> {
    let bytes = |pages: u8| [0x80, pages];
    let value = [&[allocated][..], &bytes(allocated), &[live], &bytes(live)].concat();
    [field(1, b"\x01"), field(2, &value)].concat()
}

#[test]
fn profiles_of_go_have_their_live_bytes() {
    let expected = [("main.alloc main.go:12".to_owned(), 4096)];
    assert_eq!(live(GO), expected);
    assert_eq!(live(&gzip(GO)), expected);
    // 3 blocks of 128 bytes are live, and 5 were allocated. A second stack is empty now.
    let fields = fields_of_go(&[sample(5, 3), sample(9, 0)]);
    assert_eq!(live(&concat(&fields)), [("main.alloc main.go:12".to_owned(), 384)]);
    assert_eq!(run(&concat(&fields)).blocks().len(), 3);
}

#[test]
fn fields_of_a_profile_may_have_any_order() {
    let mut fields = fields_of_go(&[sample(5, 3)]);
    for first in 1..=12_u8 {
        // The order within one field is that of the file.
        fields.sort_by_key(|(number, _)| (*number + 12 - first) % 12);
        let file = concat(&fields);
        assert_eq!(live(&file), [("main.alloc main.go:12".to_owned(), 384)], "{first}");
        assert_eq!(live(&gzip(&file)), [("main.alloc main.go:12".to_owned(), 384)], "{first}");
    }
}

#[test]
fn labels_of_programs_are_no_pools() {
    // A text and a number under the keys "key" and "device".
    let labels = [field(3, b"\x08\x0a\x10\x08"), field(3, b"\x08\x0b\x18\x07")].concat();
    let file = concat(&fields_of_go(&[[sample(5, 3), labels].concat()]));
    assert_eq!(live(&file), [("main.alloc main.go:12".to_owned(), 384)]);
    assert_eq!(run(&file).pools()[0].name, "heap");
}

#[test]
fn empty_and_damaged_profiles_of_go_are_distinguished() {
    assert_eq!(live(&concat(&fields_of_go(&[]))), []);
    let file = concat(&fields_of_go(&[sample(5, 3)]));
    for end in 3..file.len() {
        // A profile may end after any field.
        if let Err(error) = read_recording(&file[..end], &ReadOptions::default()) {
            let error = error.to_string();
            let known = ["not a pprof profile", "does not exist", "without bytes"];
            assert!(known.iter().any(|known| error.contains(known)), "{end}: {error}");
        }
    }
    for other in [&b"\x01\x02\x03"[..], b"\x22\x04\0\0\0\0\x99", b"\x32\x01a\x32\x01b"] {
        assert!(refusal(other).contains("not a trace"), "{other:?}");
    }
}

#[test]
fn long_texts_of_a_profile_are_cut() {
    let long = |number: u8, text: &str| {
        let length = text.len() as u32;
        let bytes = [length as u8 | 0x80, (length >> 7) as u8 | 0x80, (length >> 14) as u8];
        [&[number << 3 | 2][..], &bytes, text.as_bytes()].concat()
    };
    let name = "n".repeat(1 << 20);
    // 64 types without bytes that share a name.
    let file = [field(1, b"\x08\x01\x10\x01").repeat(64), field(6, b""), long(6, &name)].concat();
    let message = refusal(&file);
    assert!(message.len() < 2000 && message.contains("nnn… (nnn"), "{}", message.len());
    // The program of an exported profile.
    let export = [
        field(1, b"\x08\x01\x10\x02"),
        field(2, b"\x0a\x01\x01\x12\x01\x05"),
        field(4, b"\x08\x01\x22\x02\x08\x01"),
        field(5, b"\x08\x01\x10\x04"),
        b"\x6a\x01\x03".to_vec(),
        [b"", &b"space"[..], b"bytes", b"granted bytes that were live at the peak"]
            .into_iter()
            .flat_map(|text| field(6, text))
            .collect(),
        long(6, &name),
    ];
    assert_eq!(run(&export.concat()).facts().program, "n".repeat(200));
}

#[test]
fn text_profiles_have_the_live_bytes_of_the_file() {
    let place = "prog+0x1162.prog+0x1136".to_owned();
    for file in [TCMALLOC, JEMALLOC] {
        assert_eq!(live(file.as_bytes()), [(place.clone(), 4096)]);
        assert_eq!(live(file.replace('\n', "\r\n").as_bytes()), [(place.clone(), 4096)]);
        assert_eq!(live(&gzip(file.as_bytes())), [(place.clone(), 4096)]);
        let (stacks, _) = file.split_once("MAPPED_LIBRARIES").unwrap();
        assert_eq!(live(stacks.as_bytes()), [("0x401162.0x401136".to_owned(), 4096)]);
        assert_eq!(live(stacks.trim_end().as_bytes()), [("0x401162.0x401136".to_owned(), 4096)]);
    }
    // Kinds of other versions and tools.
    for kind in
        ["heapprofile", "heap_v2/524288", "heap_v2/1", "heap_v1/524288", "heapz_v2/1", "heap", "growthz/1"]
    {
        let file = TCMALLOC.replace("heap/524288", kind);
        assert_eq!(live(file.as_bytes()), [(place.clone(), 4096)], "{kind}");
    }
    assert_eq!(live(JEMALLOC.replace("heap_v2", "heap_v1").as_bytes()), [(place, 4096)]);
}

#[test]
fn samples_are_not_scaled_and_the_estimate_is_a_fact() {
    let estimate = |file: &str| {
        let report = Report::from_recording(&run(file.as_bytes()));
        report.run.unwrap().facts.get("live bytes estimated from the samples").map(str::to_owned)
    };
    // 4096 / (1 - e^(-4096 / 262144)) and 4096 / (1 - e^(-4096 / 524288)).
    assert_eq!(estimate(TCMALLOC).as_deref(), Some("258.00 KiB"));
    assert_eq!(estimate(JEMALLOC).as_deref(), Some("514.00 KiB"));
    assert_eq!(estimate(&TCMALLOC.replace("heap/524288", "heapprofile")), None);
    assert_eq!(estimate(&TCMALLOC.replace("heap/524288", "heap_v2/1")), None);
}

#[test]
fn stacks_of_jemalloc_are_sums_over_threads() {
    let file = "heap_v2/524288\n  t*: 6: 700 [0: 0]\n  t0: 4: 400 [0: 0] main thread\n  t7: 2: 300 [0: 0]\n\
        @ 0x10 0x30\n  t*: 5: 600 [9: 900]\n  t0: 3: 300 [0: 0]\n  t7: 2: 300 [0: 0]\n\
        @ 0x20 0x30\n  t0: 1: 60 [0: 0]\n  t7: 1: 40 [0: 0]\n@ 0x50\n@\n  t*: 1: 5 [0: 0]\n";
    let report = Report::from_recording(&run(file.as_bytes()));
    let rows: Vec<_> = report.live.iter().map(|row| (row.path(), row.blocks, row.bytes)).collect();
    let row = |path: &str, blocks, bytes| (path.to_owned(), blocks, bytes);
    assert_eq!(rows, [row("0x30.0x10", 5, 600), row("0x30.0x20", 2, 100), row("", 1, 5)]);
    assert!(run(file.as_bytes()).cut().is_none());
}

#[test]
fn symbols_and_libraries_name_the_frames() {
    let file = "--- symbol\nbinary=/app/prog\n0x0000000000401136 main.alloc\n0x401162 main\n---\n--- heap\n\
        heap profile: 2: 96 [ 2: 96] @ heapprofile\n 1: 64 [1: 64] @ 0x7f0010 0x401136 0x401162\n\
        # a comment\n 1: 32 [1: 32] @ 0x7f0010\n--- Memory map: ---\n\
        00400000-00402000 r-xp 00000000 08:01 1234    /app/prog\nbuild=/usr/lib\n\
        7f0000-7f1000 r-xp 00002000 08:01 77 /usr/lib/lib c.so.6\n";
    let names = |name: &str, bytes| (name.to_owned(), bytes);
    assert_eq!(live(file.as_bytes()), [names("main.main.alloc", 64), names("lib c.so.6+0x2010", 32)]);
    assert_eq!(run(file.as_bytes()).facts().program, "/app/prog");
}

#[test]
fn symbols_of_callers_are_those_of_their_calls() {
    // jeprof looks up the byte before a return address, and writes inlined functions behind their callers.
    let file = "--- symbol\nbinary=/app/prog\n0x1135 outer--inlined\n0x1fff wrong\n0x2000 leaf\n---\n--- growth\n\
        heap profile: 1: 64 [1: 64] @ growth\n1: 64 [1: 64] @ 0x2000 0x1136\n";
    assert_eq!(live(file.as_bytes()), [("outer.inlined.leaf".to_owned(), 64)]);
    // An innermost frame has its own address, also if it is a caller elsewhere.
    let other = file.replace("@ 0x2000 0x1136", "@ 0x1136 0x2000");
    assert_eq!(live(other.as_bytes()), [("wrong.0x1136".to_owned(), 64)]);
}

#[test]
fn text_profiles_of_go_have_names() {
    let file = "heap profile: 3: 4192 [4: 5000] @ heap/1048576\n\
        2: 4096 [3: 4904] @ 0x4a1b2c 0x4a1c00 0x4a1c00 0x43c1e5\n\
        #\t0x4a1b2b\tmain.inner+0x4a1b2b\t/app/go dir/inner.go:7\n\
        #\t0x4a1b2b\tmain.alloc[...]+0x2b\t/app/main.go:12\n\
        #\t0x4a1bff\tmain.(*Tree).grow+0x1f\t/app/tree.go:30\n\
        #\t0x4a1bff\tmain.(*Tree).grow+0x1f\t/app/tree.go:30\n\n\
        1: 96 [1: 96] @ 0x4a1b2c 0x43c1e5\n\
        #\t0x4a1b2b\tmain.inner+0x4a1b2b\t/app/go dir/inner.go:7\n\
        #\t0x4a1b2b\tmain.alloc[...]+0x2b\t/app/main.go:12\n\n\
        # runtime.MemStats\n# Alloc = 4192\n# BySize\n";
    let row = |path: &str, bytes| (path.to_owned(), bytes);
    let expected = [
        row("main.(*Tree).grow.main.(*Tree).grow.main.alloc[...].main.inner inner.go:7", 4096),
        row("main.alloc[...].main.inner inner.go:7", 96),
    ];
    for file in [file.to_owned(), file.replace('\n', "\r\n")] {
        assert_eq!(live(file.as_bytes()), expected);
        let run = run(file.as_bytes());
        assert_eq!(run.facts().get("from"), Some("a heap profile of Go"));
        assert!(run.cut().is_none());
    }
}

#[test]
fn empty_and_truncated_text_profiles() {
    for empty in [
        "heap profile: 0: 0 [0: 0] @ heap/524288\n",
        "heap profile:      0:        0 [     0:        0] @ heapprofile\n\nMAPPED_LIBRARIES:\n",
        "heap_v2/524288\n  t*: 0: 0 [0: 0]\n\nMAPPED_LIBRARIES:\n",
        "heap_v2/524288",
    ] {
        assert_eq!(live(empty.as_bytes()), []);
    }
    let short = TCMALLOC.replacen("1:     4096", "2:     9000", 1);
    let recording = run(short.as_bytes());
    let cut = recording.cut().unwrap();
    assert_eq!(cut.reason, "the stacks have 4096 of the 9000 bytes in the header");
    assert!(Trace::read(short.as_bytes(), &ReadOptions::default()).unwrap().cut().is_some());

    let expected =
        "expected a heap profile of tcmalloc or jemalloc: `BLOCKS: BYTES [BLOCKS: BYTES] @ ADDRESS...`";
    for (file, message) in [
        ("heap profile: 1: 4", format!("line 1: {expected}, found \"heap profile: 1: 4\"")),
        ("heap_v2/1\n@ 0x1\n t*: 1", format!("line 3: {expected}, found \"t*: 1\"")),
        (
            "heap profile: 1: 4 [1: 4] @ contention/9\n",
            format!("line 1: {expected}, found \"heap profile: 1: 4 [1: 4] @ contention/9\""),
        ),
        (
            "heap profile: 1: 4 [1: 4] @ heap/9\n1: 4 [1: 4] @ 0x1 main\n",
            format!("line 2: {expected}, found \"1: 4 [1: 4] @ 0x1 main\""),
        ),
        ("heap profile: 1: 4 [1: 4]\n1: x [1: 4] @ 0x1\n", "line 2: \"x\" is not an integer below 2^64".to_owned()),
        (
            "heap profile: 1: 4 [1: 4]\n-1: -4 [1: 4] @ 0x1\n",
            "line 2: a negative number of bytes: this is a difference of two profiles; read both with `highwater diff`"
                .to_owned(),
        ),
    ] {
        assert_eq!(refusal(file.as_bytes()), message);
    }
}

#[test]
fn the_native_format_of_memray_is_named() {
    let native = b"memray\0\x0c\0\0\0\0";
    let message = "byte 0: not a trace: the native format of memray (.bin); convert it with `memray transform csv FILE`";
    assert_eq!(refusal(native), message);
    assert_eq!(refusal(&gzip(native)), message);
    let lz4 = refusal(b"\x04\x22\x4d\x18\x40\x40\xc0\x08\0\0\0");
    assert!(
        lz4.contains("native format of memray (.bin)") && lz4.contains("`memray transform csv FILE`"),
        "{lz4}"
    );
}

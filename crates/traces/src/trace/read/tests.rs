use super::*;
use crate::trace::TraceProblem;
use std::io::Write;

use bfc_core::{KIB, MIB};
use flate2::Compression;
use flate2::write::GzEncoder;
use proptest::prelude::*;

fn read(file: &[u8]) -> Result<Trace, TraceError> {
    Trace::read(file, &ReadOptions::default())
}

fn refusal(file: &[u8]) -> String {
    read(file).unwrap_err().to_string()
}

fn written(trace: &Trace) -> String {
    let mut text = Vec::new();
    trace.write(&mut text).unwrap();
    String::from_utf8(text).unwrap()
}

fn gzip(file: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(file).unwrap();
    encoder.finish().unwrap()
}

#[test]
fn the_format_is_told_by_the_first_line_that_is_not_blank() {
    assert_eq!(written(&read(b"\n\n# header\na 7 10 x\n").unwrap()), "# header\na 0 10 x\n");
    assert_eq!(written(&read(b"a 7 10 x\nf 7").unwrap()), "a 0 10 x\nf 0\n");
    assert!(refusal(b"").contains("the file is empty"));
    assert_eq!(read(b" \r\n\n").unwrap(), Trace::default());
    assert_eq!(read(b"\r\n id , lower,upper,size,offset\n x,0,1,5,9\n").unwrap().peak_live_bytes(), 5);
    assert_eq!(
        read(b"1,14:21:19,allocate,0x10,5,0\n").unwrap().peak_live_bytes(),
        5,
        "a header may be missing"
    );
    for (file, line, quoted) in [
        (&b"\nhello"[..], 2, "hello"),
        (b"id,lower,upper\n", 1, "id,lower,upper"),
        (b"\xff\x00", 1, "\u{fffd}"),
    ] {
        let message = refusal(file);
        assert!(message.starts_with(&format!("line {line}: not a trace: expected")), "{message}");
        assert!(message.contains(quoted) || message.contains("found"), "{message}");
    }
}

#[test]
fn multi_member_gzip_files_are_recognized() {
    let both = [gzip(b"a 0 10 x\n"), gzip(b"f 0\n")].concat();
    assert_eq!(written(&read(&both).unwrap()), "a 0 10 x\nf 0\n");
    let twice = gzip(&gzip(b"a 0 10 x\n"));
    assert!(refusal(&twice).contains("not a trace"), "one coat is taken off, no more");
}

#[test]
fn a_compressed_file_cut_anywhere_is_refused() {
    let whole = gzip(b"# x\na 0 10 x\nf 0\n");
    for length in 1..whole.len() {
        assert!(read(&whole[..length]).is_err(), "{length}");
    }
    for length in 2..whole.len() {
        let problem = read(&whole[..length]).unwrap_err().problem;
        let expected = TraceProblem::Compressed(CompressedProblem::Truncated);
        assert_eq!(problem.to_string(), expected.to_string(), "{length}");
    }
}

#[test]
fn invalid_gzip_data_is_an_error() {
    let whole = gzip(b"# x\na 0 10 x\nf 0\n");
    let mut wrong_sum = whole.clone();
    wrong_sum[whole.len() - 8] ^= 1;
    for file in [&b"\x1f\x8bgarbage, and a lot of it"[..], &wrong_sum, &[&whole[..10], &[0xff; 40]].concat()]
    {
        let error = read(file).unwrap_err();
        let problem = CompressedProblem::Damaged { message: String::new() };
        assert!(
            matches!(&error.problem, TraceProblem::Compressed(CompressedProblem::Damaged { .. })),
            "{error}"
        );
        assert!(error.to_string().contains(&problem.to_string()), "{error}");
    }
}

#[test]
fn a_device_needs_a_format_with_devices() {
    let options = ReadOptions { device: Some(1), ..ReadOptions::default() };
    let csv = "id,lower,upper,size\n";
    for file in ["a 0 10 x\nf 0\n", "\n", RMM, csv] {
        assert!(read(file.as_bytes()).is_ok(), "{file}");
        let error = Trace::read(file.as_bytes(), &options).unwrap_err();
        assert!(matches!(error.problem, TraceProblem::NoDevices { device: 1 }), "{error}");
    }
    let error = Trace::read(&b"what is this"[..], &options).unwrap_err();
    assert!(matches!(error.problem, TraceProblem::UnknownFormat { .. }), "{error}");
}

#[test]
fn a_decompressed_file_may_reach_the_limit_exactly() {
    let file = b"a 0 10 x\nf 0\n";
    let with_limit = |input_bytes, file: &[u8]| {
        let limits = TraceLimits { input_bytes, ..TraceLimits::default() };
        Trace::read(file, &ReadOptions { limits, device: None })
    };
    for file in [file.to_vec(), gzip(file)] {
        assert!(with_limit(13, &file).is_ok());
        let error = with_limit(12, &file).unwrap_err();
        assert!(matches!(error.problem, TraceProblem::TooMuchInput { limit: 12 }), "{error}");
    }
}

#[test]
fn bombs_end_at_the_limits() {
    let limits = TraceLimits {
        idle_lines: 2000,
        input_bytes: 4 * MIB,
        held_bytes: 64 * KIB,
        ..TraceLimits::default()
    };
    for (bomb, ends) in [
        (vec![b'\n'; 32 << 20], "line 2001: more than 2000 lines without an event"),
        (
            [[b' '; 4095].as_slice(), b"\n"].concat().repeat(2100),
            "the file has more than 4.00 MiB, decompressed",
        ),
        (vec![b'#'; 32 << 20], "line 1: longer than 4096 bytes"),
        ([b"\x80\x04".to_vec(), vec![b']'; 3 << 20]].concat(), "of memory"),
        (
            [b"\x80\x04]".to_vec(), b"N0".repeat(16 << 20)].concat(),
            "the file has more than 4.00 MiB, decompressed",
        ),
    ] {
        let compressed = gzip(&bomb);
        assert!(compressed.len() < 100_000);
        let error = Trace::read(&compressed[..], &ReadOptions { limits, device: None }).unwrap_err();
        assert!(error.to_string().contains(ends), "{error}");
    }
    let limits = TraceLimits { ratio: 10, ..TraceLimits::default() };
    let rows = (0..3_000_000_u64)
        .map(|row| format!("1,t,allocate failure,(nil),{},0\n", row % 9))
        .collect::<String>();
    let bomb = gzip(format!("{RMM}{rows}").as_bytes());
    let error = Trace::read(&bomb[..], &ReadOptions { limits, device: None }).unwrap_err();
    assert!(matches!(error.problem, TraceProblem::TooCompressed { ratio: 10 }), "{error}");
}

const RMM: &str = "Thread,Time,Action,Pointer,Size,Stream\n";

#[test]
fn an_rmm_log_is_followed_by_address() {
    let log = format!(
        "{RMM}1,0:0,allocate,0x100,256,0x2\n1,0:0,free,0x900,64,0\n1,0:0,free,0x100,256,0x2\n{RMM}2,0:0,allocate,0x100,8,0\n"
    );
    let expected =
        "a 0 64 (allocated before the log)\na 1 256 thread 1 stream 0x2\nf 0\nf 1\na 2 8 thread 2 stream 0\n";
    let trace = read(log.as_bytes()).unwrap();
    assert_eq!(written(&trace), expected);
    assert_eq!(trace.peak_live_bytes(), 320);
}

#[test]
fn failures_and_nothing_at_all_take_no_memory() {
    let log = format!(
        "{RMM}1,t,allocate failure,(nil),99,0\n1,t,allocate,(nil),0,0\n1,t,allocate,(nil),0,0\n1,t,free,0,0,0\n"
    );
    assert_eq!(read(log.as_bytes()).unwrap(), Trace::default());
}

#[test]
fn lines_of_an_rmm_log_that_contradict_each_other_are_named() {
    let cases = [
        ("1,t,allocate,0x1,1,0\n1,t,allocate,0x1,1,0\n", "line 3: the allocation at 0x1 is already live"),
        ("1,t,free,0x1,1,0\n1,t,free,0x1,1,0\n", "line 3: the allocation at 0x1 was already freed"),
        ("1,t,allocate,0x1,-1,0\n", "line 2: \"-1\" is not an integer below 2^64"),
        ("1,t,allocate,0x,1,0\n", "line 2: \"0x\" is not an integer below 2^64"),
        ("1,t,allocate,+1,1,0\n", "line 2: \"+1\" is not an integer below 2^64"),
        (
            "1,t,alloc,0x1,1,0\n",
            "line 2: expected `Thread,Time,Action,Pointer,Size,Stream`, found \"1,t,alloc,0x1,1,0\"",
        ),
        ("1,t,free\n", "line 2: expected `Thread,Time,Action,Pointer,Size,Stream`, found \"1,t,free\""),
        ("1,t,allocate,1,18446744073709551615,0\n1,t,free,2,1,0\n", "line 3: live bytes exceed 2^64"),
        ("1,t,free,2,1,0\n1,t,allocate,1,18446744073709551615,0\n", "line 3: live bytes exceed 2^64"),
    ];
    for (lines, message) in cases {
        assert_eq!(refusal(format!("{RMM}{lines}").as_bytes()), message);
    }
}

#[test]
fn labels_beyond_the_limit_are_merged() {
    let limits = TraceLimits { labels: 3, events: 6, ..TraceLimits::default() };
    let read =
        |lines: &str| Trace::read(format!("{RMM}{lines}").as_bytes(), &ReadOptions { limits, device: None });
    let trace = read("1,t,allocate,1,1,0\n2,t,allocate,2,1,0\n3,t,allocate,3,1,0\n1,t,free,9,1,0\n").unwrap();
    assert_eq!(trace.labels(), ["(allocated before the log)", "thread 1 stream 0", "(other)"]);
    let error = read("1,t,free,1,1,0\n1,t,free,2,1,0\n1,t,free,3,1,0\n1,t,free,4,1,0\n").unwrap_err();
    assert_eq!(error.to_string(), "line 5: more than 6 events");
}

#[test]
fn lifetimes_become_ordered_events() {
    let csv = "size,id,lower,upper,note\n4,b1,0,3,x\n5,b2,3,9,x\n6,b3,0,9,x\n";
    let expected = "a 0 4 b1\na 1 6 b3\nf 0\na 2 5 b2\nf 2\nf 1\n";
    assert_eq!(written(&read(csv.as_bytes()).unwrap()), expected);
}

#[test]
fn cells_of_logs_may_be_quoted() {
    let expected = "a 0 4 a\na 1 8 b\nf 0\nf 1\n";
    for csv in [
        include_str!("../../../tests/data/minimalloc-quoted.csv"),
        "\u{feff}\"id\",\"lower\",\"upper\",\"size\"\r\n\"a\",\"0\",\"3\",\"4\"\r\n\"b\",\"2\",\"9\",\"8\"\r\n",
        "size, \"upper\" ,lower,id\n4, \"3\" ,0,\"a\"\n8,9, 2 ,b\n",
    ] {
        let trace = read(csv.as_bytes()).unwrap();
        assert_eq!((written(&trace).as_str(), trace.peak_live_bytes()), (expected, 12), "{csv}");
    }
    let named = "\"id\",lower,upper,size,\"a, \"\"b\"\"\"\n\"x, \"\"y\"\"\",0,3,4,\n";
    let trace = read(named.as_bytes()).unwrap();
    assert_eq!(trace.labels(), ["x, \"y\""]);
    assert_eq!(trace.skipped(), ["the column \"a, \\\"b\\\"\""]);
    let open = "id,lower,upper,size\n\"a,0,3,4\n";
    let message = "line 2: expected a line with all columns of the header, found \"\\\"a,0,3,4\"";
    assert_eq!(refusal(open.as_bytes()), message);
    let log = "\"Thread\",\"Time\",\"Action\",\"Pointer\",\"Size\",\"Stream\"\n\"1\",\"0:0\",\"allocate\",\"0x10\",\"7\",\"0\"\n";
    assert_eq!(written(&read(log.as_bytes()).unwrap()), "a 0 7 thread 1 stream 0\n");
}

#[test]
fn older_minimalloc_headers_are_supported() {
    let expected = "a 0 4 b1\na 1 6 b3\nf 0\na 2 5 b2\nf 2\nf 1\n";
    for (header, less) in [
        ("id,lower,upper,size", 0),
        ("ID, Lower, Upper, Size", 0),
        ("buffer,start,end,size", 1),
        ("buffer_id,start,end,size", 1),
        ("id,begin,end,size", 1),
        ("id,begin,upper,size", 0),
    ] {
        let (three, nine) = (3 - less, 9 - less);
        let csv = format!("{header}\nb1,0,{three},4\nb2,3,{nine},5\nb3,0,{nine},6\n");
        assert_eq!(written(&read(csv.as_bytes()).unwrap()), expected, "{header}");
    }
    assert_eq!(written(&read(b"buffer,start,end,size\nb,3,3,1\n").unwrap()), "a 0 1 b\nf 0\n", "one moment");
    let message = "line 2: the lifetime from 3 to 3 is empty";
    assert_eq!(refusal(b"buffer,start,end,size\nb,3,2,1\n"), message);
    // The last moment of all has none after it.
    let message = format!("line 2: the lifetime from {0} to {0} is empty", u64::MAX);
    let csv = format!("buffer,start,end,size\nb,{0},{0},1\n", u64::MAX);
    assert_eq!(refusal(csv.as_bytes()), message);
}

#[test]
fn lines_of_a_minimalloc_problem_that_say_nothing_are_named() {
    let cases = [
        ("b,3,3,1\n", "line 2: the lifetime from 3 to 3 is empty"),
        ("b,0,1\n", "line 2: expected a line with all columns of the header, found \"b,0,1\""),
        ("b,0,x,1\n", "line 2: \"x\" is not an integer below 2^64"),
        ("b,0,2,18446744073709551615\nc,1,2,1\n", "line 3: live bytes exceed 2^64"),
    ];
    for (lines, message) in cases {
        assert_eq!(refusal(format!("id,lower,upper,size\n{lines}").as_bytes()), message);
    }
    let limits = TraceLimits { events: 3, ..TraceLimits::default() };
    let csv = "id,lower,upper,size\na,0,1,1\nb,0,1,1\n";
    let error = Trace::read(csv.as_bytes(), &ReadOptions { limits, device: None }).unwrap_err();
    assert_eq!(error.to_string(), "line 3: more than 3 events");
}

proptest! {
    #[test]
    fn the_peak_is_the_largest_sum_of_live_sizes(
        buffers in prop::collection::vec((0_u64..20, 1_u64..10, 0_u64..1000), 0..30),
    ) {
        let mut csv = "id,lower,upper,size\n".to_owned();
        for (index, (lower, length, size)) in buffers.iter().enumerate() {
            csv += &format!("{index},{lower},{},{size}\n", lower + length);
        }
        let live_at = |moment: u64| -> u64 {
            let live = buffers.iter().filter(|(lower, length, _)| (*lower..lower + length).contains(&moment));
            live.map(|(_, _, size)| size).sum()
        };
        let trace = read(csv.as_bytes()).unwrap();
        prop_assert_eq!(trace.peak_live_bytes(), (0..30).map(live_at).max().unwrap());
        prop_assert_eq!(trace.events().len(), 2 * buffers.len());
    }
}

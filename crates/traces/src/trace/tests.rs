use std::sync::Arc;

use bfc_core::{
    AddressOnlyMemory, Allocation, Allocator, BfcAllocator, BfcConfig, Bytes, OwnerId, PackingOptions,
    PassthroughAllocator, Request, Tag,
};
use highwater_tracking::Tracker;
use proptest::prelude::*;

use super::*;

/// A pool of exact sizes.
fn pool() -> Arc<dyn Allocator> {
    Arc::new(PassthroughAllocator::new("test", Arc::new(AddressOnlyMemory::new())))
}

fn parse(text: &str) -> Result<Trace, TraceError> {
    Trace::parse(text.as_bytes(), &TraceLimits::default())
}

fn write(trace: &Trace) -> String {
    let mut text = Vec::new();
    trace.write(&mut text).unwrap();
    String::from_utf8(text).unwrap()
}

/// The message for a text that must be refused, with the line it names.
fn refusal(text: &str) -> String {
    parse(text).unwrap_err().to_string()
}

#[test]
fn a_written_trace_reads_as_the_same() {
    let text = "# trace: x\n# mark: one\na 0 10 aten::empty\na 1 20 a label of words\n# mark: two\nf 0\na 2 0 aten::empty\nf 1\n# end\n";
    let trace = parse(text).unwrap();
    assert_eq!(write(&trace), text);
    assert_eq!(trace.labels(), ["aten::empty", "a label of words"]);
    assert_eq!(trace.events()[3], TraceEvent::Alloc { block: 2, bytes: 0, label: 0, alignment: 1 });
    assert_eq!(trace.comments()[2], TraceComment { position: 2, text: "mark: two".to_owned() });
    assert_eq!(parse(&write(&trace)).unwrap(), trace);
}

#[test]
fn line_ends_and_blank_lines_are_ignored() {
    let trace = parse("a 0 10 x\r\n\r\n   \n  a  1  5  y  \nf 0").unwrap();
    assert_eq!(write(&trace), "a 0 10 x\na 1 5 y\nf 0\n");
    assert_eq!(parse("").unwrap(), Trace::default());
}

#[test]
fn an_id_may_be_used_again_once_it_is_free() {
    let trace = parse("a 7 10 x\nf 7\na 7 30 x\n").unwrap();
    assert_eq!(write(&trace), "a 0 10 x\nf 0\na 1 30 x\n");
    assert_eq!(trace.peak_live_bytes(), 30);
}

#[test]
fn headers_are_found_by_key_and_added_before_the_first_event() {
    let mut trace = parse("# steps: 8\n# mark: a\na 0 1 x\n# late: 1\n").unwrap();
    assert_eq!(trace.header("steps"), Some("8"));
    assert_eq!(trace.header("missing"), None);
    trace.add_header("peak_live_bytes: 1\nf 9");
    assert_eq!(write(&trace), "# steps: 8\n# mark: a\n# peak_live_bytes: 1 f 9\na 0 1 x\n# late: 1\n");
}

#[test]
fn every_refusal_names_its_line() {
    let cases = [
        (
            "x 1\n",
            "line 1: expected `a ID BYTES LABEL`, `f ID`, `u ID START END` or `# comment`, found \"x 1\"",
        ),
        (
            "#\n\na 1 2\n",
            "line 3: expected `a ID BYTES LABEL`, `f ID`, `u ID START END` or `# comment`, found \"a 1 2\"",
        ),
        ("a\n", "line 1: expected `a ID BYTES LABEL`, `f ID`, `u ID START END` or `# comment`, found \"a\""),
        (
            "f 1 2\n",
            "line 1: expected `a ID BYTES LABEL`, `f ID`, `u ID START END` or `# comment`, found \"f 1 2\"",
        ),
        ("a one 2 x\n", "line 1: \"one\" is not an integer below 2^64"),
        ("a 1 -2 x\n", "line 1: \"-2\" is not an integer below 2^64"),
        ("a 1 +2 x\n", "line 1: \"+2\" is not an integer below 2^64"),
        ("f 18446744073709551616\n", "line 1: \"18446744073709551616\" is not an integer below 2^64"),
        ("a 1 2 x\na 1 3 y\n", "line 2: allocation 1 is already live"),
        ("f 5\n", "line 1: no allocation 5 is live"),
        ("a 1 2 x\nf 1\nf 1\n", "line 3: no allocation 1 is live"),
        ("a 1 18446744073709551615 x\na 2 1 x\n", "line 2: live bytes exceed 2^64"),
    ];
    for (text, message) in cases {
        assert_eq!(refusal(text), message);
    }
    let error = Trace::parse(&b"a 0 1 x\n\xff\n"[..], &TraceLimits::default()).unwrap_err();
    assert_eq!(error.to_string(), "line 2: not UTF-8");
}

#[test]
fn a_refused_line_is_quoted_in_part_only() {
    let message = refusal(&"é".repeat(1000));
    assert!(message.chars().count() < 200 && message.contains('…'), "{message}");
}

#[test]
fn each_limit_holds_exactly() {
    let limits = TraceLimits { line_bytes: 12, events: 3, labels: 2, comments: 1, ..TraceLimits::default() };
    let parse = |text: &str| Trace::parse(text.as_bytes(), &limits).map_err(|error| error.to_string());
    assert!(parse("# 345678901\na 0 1 x\na 1 1 y\nf 0\n").is_ok());
    assert_eq!(parse("a 0 1 x\na 1 1 y\nf 0\nf 1\n").unwrap_err(), "line 4: more than 3 events");
    assert_eq!(parse("a 0 1 x\na 1 1 y\na 2 1 z\n").unwrap_err(), "line 3: more than 2 different labels");
    assert_eq!(parse("#\n#\n").unwrap_err(), "line 2: more than 1 comments");
    assert!(parse("#23456789012").is_ok());
    assert!(parse("#23456789012\r\n").is_ok());
    assert_eq!(parse("#234567890123").unwrap_err(), "line 1: longer than 12 bytes");
    assert_eq!(parse("#234567890123\n").unwrap_err(), "line 1: longer than 12 bytes");
}

#[test]
fn the_number_of_lines_without_events_is_limited() {
    let limits = TraceLimits { idle_lines: 3, ..TraceLimits::default() };
    let read = |text: &str| {
        let options = ReadOptions { limits, device: None };
        Trace::read(text.as_bytes(), &options).map_err(|error| error.to_string())
    };
    let rmm = "Thread,Time,Action,Pointer,Size,Stream\n";
    let (refused, nothing) = ("1,0,allocate failure,(nil),9,0\n", "1,0,allocate,(nil),0,0\n");
    let minimalloc = "id,lower,upper,size\n";
    for (idle, event) in [
        (["\n", "# x\n", " \r\n", "\n"], "a 0 1 x\n"),
        ([rmm, rmm, refused, nothing], "1,0,allocate,0x10,5,0\n"),
        ([minimalloc, "\n", "\n", "\n"], "x,0,1,5\n"),
    ] {
        let within = format!("{}{event}", idle[..3].concat());
        assert!(read(&within).is_ok(), "{within}");
        assert_eq!(read(&idle.concat()).unwrap_err(), "line 4: more than 3 lines without an event");
    }
}

/// A reader that never ends a line, and never ends.
struct Endless;

impl io::Read for Endless {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        buffer.fill(b'#');
        Ok(buffer.len())
    }
}

#[test]
fn an_endless_line_is_refused_at_the_limit() {
    let error = Trace::parse(io::BufReader::new(Endless), &TraceLimits::default()).unwrap_err();
    assert_eq!(error.to_string(), "line 1: longer than 4096 bytes");
}

/// A recording of some requests and frees, whose owners are given as paths. It ends before the result of `events` is dropped.
fn recording<T>(events: impl FnOnce(&dyn Fn(u64, &[&str]) -> Allocation) -> T) -> Recording {
    let (tracker, pool) = (Tracker::new(), pool());
    tracker.start_log(Bytes::mib(1));
    let allocator = tracker.begin("op").track(&pool);
    let _held = events(&|bytes, path| {
        let owner = path.iter().fold(OwnerId::ROOT, |owner, name| OwnerId::intern(owner, name));
        let tag = Tag { owner, ..Tag::default() };
        Allocation::new(&allocator, &Request::new(bytes).with_tag(tag)).unwrap()
    });
    tracker.take_log()
}

#[test]
fn a_recording_becomes_a_trace_with_owners_as_labels() {
    let recording = recording(|alloc| {
        let net = ["trace net", "matmul:backward"];
        let first = alloc(10, &net);
        let second = alloc(5, &[]);
        drop(first);
        (second, alloc(7, &net))
    });
    let trace = Trace::from_recording(&recording).unwrap();
    let expected = "a 0 10 trace_net.matmul:backward\na 1 5 op\nf 0\na 2 7 trace_net.matmul:backward\n";
    assert_eq!(write(&trace), expected);
    assert_eq!(trace.peak_live_bytes(), 15);
    assert_eq!(parse(expected).unwrap(), trace);
}

#[test]
fn a_step_between_two_marks_can_be_packed() {
    use crate::{Step, packing_of};

    let (tracker, pool) = (Tracker::new(), pool());
    tracker.start_log(Bytes::mib(1));
    let allocator = tracker.begin("op").track(&pool);
    let take = |bytes| Allocation::new(&allocator, &Request::new(bytes)).unwrap();
    tracker.mark("step 0");
    drop(take(10));
    tracker.mark("two\nlines\n");
    drop(take(300));
    tracker.mark("");
    let trace = Trace::from_recording(&tracker.take_log()).unwrap();
    let expected = "# mark: step 0\na 0 10 op\nf 0\n# mark: two lines\na 1 300 op\nf 1\n# mark:\n";
    assert_eq!(write(&trace), expected);
    assert_eq!(parse(expected).unwrap(), trace);

    let step = Step::Marks { from: "two lines".to_owned(), to: String::new() };
    let packing = packing_of(&trace, &step, &PackingOptions::default(), &mut |_| true).unwrap();
    assert_eq!((packing.blocks().len(), packing.lower_bound()), (1, 512));
}

#[test]
fn a_recording_without_blocks_keeps_its_marks() {
    let tracker = Tracker::new();
    tracker.start_log(Bytes::mib(1));
    tracker.mark("step 0");
    let trace = Trace::from_recording(&tracker.take_log()).unwrap();
    assert_eq!(trace.marks().collect::<Vec<_>>(), [(0, "step 0")]);
}

#[test]
fn more_marks_than_comments_are_allowed_do_not_spoil_a_trace() {
    let (tracker, pool) = (Tracker::new(), pool());
    tracker.start_log(Bytes::mib(1));
    for step in 0..5 {
        tracker.mark(&step.to_string());
    }
    drop(Allocation::new(&tracker.begin("op").track(&pool), &Request::new(1)).unwrap());
    let limits = TraceLimits { comments: 2, ..TraceLimits::default() };
    let traces = Trace::of_groups(&tracker.take_log(), &limits, |_| Some(1)).unwrap();
    let marks: Vec<&str> = traces[1].marks().map(|(_, text)| text).collect();
    assert_eq!((marks, traces[1].events().len()), (vec!["0", "1"], 2));
}

#[test]
fn a_recording_reads_back_with_any_owner_names() {
    for name in ["", " ", "a b", &"é".repeat(5000)] {
        let recording = recording(|alloc| drop(alloc(u64::MAX / 2, &[name])));
        let trace = Trace::from_recording(&recording).unwrap();
        assert_eq!(parse(&write(&trace)).unwrap(), trace);
        assert_eq!(trace.events().len(), 2);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn any_text_is_read_or_refused_and_what_is_read_is_written_back(
        lines in prop::collection::vec("(a [0-4] [0-9]{1,3} [xy]|f [0-4]|# ?[a-z:]{0,5}|[af# 0-9x]{0,8})", 0..20),
    ) {
        if let Ok(trace) = parse(&lines.join("\n")) {
            prop_assert_eq!(parse(&write(&trace)).unwrap(), trace);
        }
    }

    #[test]
    fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let limits = TraceLimits { line_bytes: 20, events: 5, labels: 2, comments: 2, ..TraceLimits::default() };
        if let Ok(trace) = Trace::parse(&bytes[..], &limits) {
            prop_assert!(trace.events().len() <= 5 && trace.labels().len() <= 2 && trace.comments().len() <= 2);
        }
    }
}

#[test]
fn each_group_of_blocks_has_its_own_trace() {
    let config = BfcConfig::new(Bytes::mib(1));
    let pool: Arc<dyn Allocator> =
        Arc::new(BfcAllocator::new("pool", Arc::new(AddressOnlyMemory::new()), config));
    let tracker = Tracker::new();
    tracker.start_log(Bytes::mib(1));
    let take = |op, bytes| Allocation::new(&tracker.begin(op).track(&pool), &Request::new(bytes)).unwrap();
    let held = [take("a", 100), take("b", 2000), take("c", 300)];
    drop(held);
    drop(take("a", 150));
    let recording = tracker.take_log();
    let of = |op: &str, group| {
        let name = op.to_owned();
        let recording = &recording;
        move |owner: u32| (recording.owner_path(owner) == name).then_some(group)
    };
    let (a, c) = (of("a", 0), of("c", 1));
    let traces = Trace::of_groups(&recording, &TraceLimits::default(), |block| {
        a(block.owner).or_else(|| c(block.owner))
    });
    let traces = traces.unwrap();
    let peaks: Vec<u64> = traces.iter().map(Trace::peak_live_bytes).collect();
    assert_eq!(peaks, [150, 300]);
    let events: Vec<usize> = traces.iter().map(|trace| trace.events().len()).collect();
    assert_eq!(events, [4, 2]);
    assert_eq!((traces[0].labels(), traces[1].labels()), (&["a".to_owned()][..], &["c".to_owned()][..]));
    assert_eq!(Trace::from_recording(&recording).unwrap().peak_live_bytes(), 2400);
}

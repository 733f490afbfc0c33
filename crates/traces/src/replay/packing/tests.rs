use bfc_core::{PackingError, PackingOptions};
use highwater_files::{PackingLimits, PackingTextProblem, parse_packing, write_packing};
use proptest::prelude::*;

use super::*;
use crate::trace::TraceLimits;

fn trace(text: &str) -> Trace {
    Trace::parse(text.as_bytes(), &TraceLimits::default()).unwrap()
}

fn packing(trace: &Trace, step: &Step) -> Result<Packing, NoPacking> {
    packing_of(trace, step, &PackingOptions::default(), &mut |_| true)
}

const TWO_STEPS: &str = "# mark: setup
a 0 4096 weights
# mark: step0
a 1 1000 relu
a 2 0 empty
a 3 3000 matmul
f 1
a 4 500 kept
f 3
f 2
# mark: step1
a 5 1000 relu
f 5
f 4
";

#[test]
fn a_whole_trace_is_packed_with_what_it_never_frees() {
    let packing = packing(&trace(TWO_STEPS), &Step::Whole).unwrap();
    assert_eq!((packing.blocks().len(), packing.packed_blocks()), (5, 5), "what has no bytes needs no place");
    assert_eq!(packing.capacity(), 4096 + 1024 + 3072);
}

#[test]
fn a_step_between_marks_leaves_out_what_outlives_it() {
    let step = Step::Marks { from: "step0".to_owned(), to: "step1".to_owned() };
    let packing = packing(&trace(TWO_STEPS), &step).unwrap();
    let packed: Vec<(u64, bool)> =
        packing.blocks().iter().map(|block| (block.lifetime.bytes, block.offset.is_some())).collect();
    assert_eq!(packed, [(1000, true), (3000, true), (500, false)]);
    assert_eq!(packing.capacity(), 4096);
}

#[test]
fn a_step_between_marks_of_one_name_ends_at_the_second() {
    let trace =
        trace("a 0 100 x\n# mark: step\na 1 200 x\nf 1\n# mark: step\na 2 300 x\nf 2\n# mark: step\nf 0\n");
    let step = Step::Marks { from: "step".to_owned(), to: "step".to_owned() };
    let sizes: Vec<u64> =
        packing(&trace, &step).unwrap().blocks().iter().map(|block| block.lifetime.bytes).collect();
    assert_eq!(sizes, [200]);
}

#[test]
fn a_range_of_events_is_counted_from_the_first_event() {
    let trace = trace(TWO_STEPS);
    let of = |range| packing(&trace, &Step::Events(range)).map(|packing| packing.blocks().len());
    assert_eq!(of(1..8), Ok(3));
    assert_eq!(of(11..11), Ok(0));
    assert_eq!(of(3..12), Err(NoPacking::NoSuchEvents { range: 3..12, events: 11 }));
    #[allow(clippy::reversed_empty_ranges)]
    let backwards = 5..2;
    assert!(matches!(of(backwards), Err(NoPacking::NoSuchEvents { .. })));
}

#[test]
fn omitted_parts_are_named() {
    let trace = trace("a 0 1 x\nf 0\n");
    let step = Step::Marks { from: "step7".to_owned(), to: String::new() };
    assert_eq!(packing(&trace, &step).unwrap_err().to_string(), "the trace has no comment `mark: step7`");
    assert_eq!(packing(&trace, &Step::Repeating), Err(NoPacking::NothingRepeats));
}

/// A loop: `warm_up` events that are not repeated, then `steps` times the same, then something else.
fn looped(steps: usize, tail: &str) -> String {
    let mut text = "a 0 999 weights\na 1 7 warm\nf 1\n".to_owned();
    let mut id = 2;
    for _ in 0..steps {
        for (bytes, label) in [(100, "a"), (200, "b"), (200, "b"), (300, "c")] {
            text += &format!("a {id} {bytes} {label}\n");
            id += 1;
        }
        text += &format!("f {}\nf {}\nf {}\nf {}\n", id - 1, id - 3, id - 2, id - 4);
    }
    text + tail
}

#[test]
fn the_repeated_step_is_found_and_cut_where_nothing_of_it_lives() {
    for steps in 2..5 {
        let found = find_step(&trace(&looped(steps, "a 900 1 end\nf 900\n")));
        let last = 3 + 8 * (steps - 1);
        assert_eq!(found, Some(last..last + 8), "{steps} steps");
    }
    assert_eq!(find_step(&trace(&looped(1, ""))), None);
    assert_eq!(find_step(&Trace::default()), None);
}

#[test]
fn a_packing_survives_being_written_and_read() {
    let step = Step::Marks { from: "step0".to_owned(), to: "step1".to_owned() };
    let packing = packing(&trace(TWO_STEPS), &step).unwrap();
    let mut text = Vec::new();
    write_packing(&packing, &mut text).unwrap();
    assert_eq!(parse_packing(text.as_slice(), &PackingLimits::default()).unwrap(), packing);
    let text = String::from_utf8(text).unwrap();
    assert!(text.starts_with("highwater-packing 1\ngranule 256\ncapacity 4096\nblocks 3\n"), "{text}");
    assert!(text.ends_with(" 500 -\n"), "{text}");
}

#[test]
fn files_with_the_earlier_name_of_the_format_open() {
    for (version, block) in [(1, "0 2 100 0"), (2, "0 2 100 0 512")] {
        let rest = format!("{version}\ngranule 256\ncapacity 256\nblocks 1\n{block}\n");
        let read = |name: &str| parse_packing(format!("{name} {rest}").as_bytes(), &PackingLimits::default());
        assert_eq!(read("highwater-plan").unwrap(), read("highwater-packing").unwrap());
    }
}

#[test]
fn text_that_is_no_packing_is_refused_with_its_line() {
    let refused =
        |text: &str| parse_packing(text.as_bytes(), &PackingLimits::default()).unwrap_err().to_string();
    let head = "highwater-packing 1\n# made by hand\ngranule 256\ncapacity 512\n";
    assert_eq!(refused(""), "line 1: expected `highwater-packing 1`, found \"\"");
    assert_eq!(
        refused("highwater-packing 3\n"),
        "line 1: expected `highwater-packing 1`, found \"highwater-packing 3\""
    );
    assert_eq!(refused("highwater-packing 1\ngranule x\n"), "line 2: \"x\" is not an integer below 2^64");
    assert_eq!(
        refused("highwater-packing 1\nblocks 1\n"),
        "line 2: expected `granule BYTES`, found \"blocks 1\""
    );
    assert_eq!(
        refused(&format!("{head}blocks 99999999\n")),
        "line 5: 99999999 blocks are more than 10000000"
    );
    assert_eq!(
        refused(&format!("{head}blocks 2\n0 5 200 0\n")),
        "line 7: expected `START END BYTES OFFSET`, found \"\""
    );
    assert_eq!(
        refused(&format!("{head}blocks 2\n0 5 200 0\n1 5 200\n")),
        "line 7: expected `START END BYTES OFFSET`, found \"1 5 200\""
    );
    assert_eq!(
        refused(&format!("{head}blocks 2\n0 5 200 0\n1 5 200 0\n")),
        "line 7: blocks 0 and 1 overlap in time and space"
    );
    assert_eq!(
        refused(&format!("{head}blocks 1\n0 4294967296 200 0\n")),
        "line 6: event number 4294967296 is not below 2^32"
    );
    assert_eq!(
        refused(&format!("{head}blocks 1\n0 5 200 0\n")),
        "line 4: the blocks occupy 256 bytes, not 512"
    );
    assert_eq!(
        refused(&format!("{head}blocks 1\n0 5 200 256\nmore\n")),
        "line 7: expected `the end of the text`, found \"more\""
    );
    let long = format!("highwater-packing 1{}\n", " ".repeat(70_000));
    assert_eq!(refused(&long), "line 1: longer than 65536 bytes");
    let comments = format!("highwater-packing 1\n{}", "#\n".repeat(10_001));
    assert_eq!(refused(&comments), "line 10002: more than 10000 comments");
    // A byte-order mark is no part of the title.
    assert!(refused("\u{feff}highwater-packing 1\n").starts_with("line 2: expected `granule BYTES`"));
}

#[test]
fn a_granule_that_is_none_is_refused() {
    let text = "highwater-packing 1\ngranule 0\ncapacity 0\nblocks 0\n";
    let error = parse_packing(text.as_bytes(), &PackingLimits::default()).unwrap_err();
    assert!(
        matches!(error.problem, PackingTextProblem::Packing(PackingError::BadGranule { granule: 0 })),
        "{error}"
    );
}

proptest! {
    #[test]
    fn any_bytes_are_refused_or_read(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        crate::fuzz::packing(&bytes);
    }

    /// A packing with one byte changed is refused, or is a packing that holds together and is written as it was read.
    #[test]
    fn a_damaged_packing_is_refused_or_sound(at in any::<prop::sample::Index>(), byte in prop::sample::select(b"0159 -#\nx".to_vec())) {
        let packing = packing(&trace(TWO_STEPS), &Step::Whole).unwrap();
        let mut text = Vec::new();
        write_packing(&packing, &mut text).unwrap();
        let at = at.index(text.len());
        text[at] = byte;
        crate::fuzz::packing(&text);
        if let Ok(read) = parse_packing(text.as_slice(), &PackingLimits::default()) {
            prop_assert_eq!(Packing::from_blocks(read.granule(), read.blocks().to_vec(), Vec::new()), Ok(read));
        }
    }
}

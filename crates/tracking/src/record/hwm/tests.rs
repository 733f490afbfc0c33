use std::io::{self, Write};
use std::sync::{Arc, Mutex, PoisonError};

use bfc_core::{AddressOnlyMemory, Allocation, Allocator, BfcAllocator, BfcConfig, Bytes, Category, Request};

use super::*;
use crate::account::Tracker;
use crate::fuzz;
use crate::record::{EventKind, Recording, RecordingLimits};
use crate::report::{Cut, RunFacts};
use crate::scope::module;

/// A file in memory that can be read while it is written.
#[derive(Clone, Default)]
struct Shared(Arc<Mutex<Vec<u8>>>);

impl Shared {
    fn bytes(&self) -> Vec<u8> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Write for Shared {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn pool() -> Arc<dyn Allocator> {
    Arc::new(BfcAllocator::new("cpu:0", Arc::new(AddressOnlyMemory::new()), BfcConfig::new(Bytes::gib(1))))
}

/// Some steps of a small program.
fn run(tracker: &Arc<Tracker>, pool: &Arc<dyn Allocator>, steps: u64) {
    let _net = module("hwm-net");
    for step in 0..steps {
        tracker.mark(&format!("step {step}"));
        let _layer = module("fc1");
        let run = tracker.begin("matmul");
        let allocator = run.track(pool);
        let out =
            Allocation::new(&allocator, &Request::new(1000 + step).with_category(Category::Output)).unwrap();
        let _scratch = Allocation::new(&allocator, &Request::new(5000)).unwrap();
        let tag = bfc_core::Tag { owner: run.owner(), category: Category::Activation };
        allocator.retag(&out.block(), tag).unwrap();
    }
}

/// A whole file of this many steps.
fn file(steps: u64) -> Vec<u8> {
    let (tracker, pool, file) = (Tracker::new(), pool(), Shared::default());
    tracker.start_recording(file.clone(), &RunFacts::new("test").with("seed", 7)).unwrap();
    run(&tracker, &pool, steps);
    let written = tracker.finish_recording(&[pool]).unwrap().unwrap();
    let bytes = file.bytes();
    // The pool's region is an event of its own.
    assert_eq!((written.bytes, written.events), (bytes.len() as u64, 8 * steps + 1));
    bytes
}

fn read(file: &[u8]) -> Result<Recording, HwmError> {
    Recording::read(file, &RecordingLimits::default())
}

#[test]
fn a_file_is_read_as_it_was_recorded() {
    let recording = read(&file(3)).unwrap();
    assert_eq!((recording.facts().program.as_str(), recording.facts().get("seed")), ("test", Some("7")));
    assert_eq!((recording.events().len(), recording.cut()), (25, None));
    assert_eq!(recording.marks(), ["step 0", "step 1", "step 2"]);
    assert_eq!(recording.owner_path(recording.block(0).owner), "hwm-net.fc1.matmul");
    let summary = recording.summary().unwrap();
    assert_eq!((summary.events, summary.report.ops[0].calls), (25, 3));
    assert_eq!(summary.report.pools[0].limit, Some(Bytes::gib(1).get()));
    assert_eq!(summary.report.peak.as_ref().unwrap().bytes, recording.peak().unwrap().bytes);
    assert_eq!(recording.timeline().last().unwrap().bytes, 0);
}

#[test]
fn a_complete_file_has_the_memory_outside_the_pools() {
    let (tracker, pool, file) = (Tracker::new(), pool(), Shared::default());
    tracker.start_recording(file.clone(), &RunFacts::new("test")).unwrap();
    tracker.set_outside("NCCL", Bytes::mib(2));
    tracker.finish_recording(&[pool]).unwrap().unwrap();
    let expected = crate::Report::default().with_outside("NCCL", Bytes::mib(2)).outside;
    assert_eq!(crate::Report::from_recording(&read(&file.bytes()).unwrap()).outside, expected);
}

#[test]
fn memory_and_file_hold_the_same_events() {
    let (tracker, pool) = (Tracker::new(), pool());
    tracker.start_log(Bytes::mib(1));
    run(&tracker, &pool, 5);
    let kinds = |recording: &Recording| recording.events().iter().map(|event| event.kind).collect::<Vec<_>>();
    let (logged, read) = (tracker.take_log(), read(&file(5)).unwrap());
    assert_eq!(kinds(&logged), kinds(&read));
    assert_eq!((logged.blocks(), logged.executions()), (read.blocks(), read.executions()));
}

#[test]
fn a_file_cut_at_any_byte_is_read_up_to_the_cut() {
    let file = file(4);
    let whole = read(&file).unwrap();
    let mut most = 0;
    for end in 0..file.len() {
        match read(&file[..end]) {
            Ok(recording) => {
                let Cut { offset, reason } = recording.cut().unwrap();
                assert!(*offset <= end as u64 && !reason.is_empty());
                assert_eq!(recording.events(), &whole.events()[..recording.events().len()]);
                assert!(recording.events().len() >= most);
                most = recording.events().len();
            }
            Err(error) => assert!(end < MAGIC.len() + 2, "{end}: {error}"),
        }
        fuzz::hwm(&file[..end]);
    }
    assert_eq!(most, whole.events().len(), "only the summary is missing from the longest");
}

#[test]
fn any_bit_that_is_turned_is_noticed() {
    let mut file = file(2);
    let whole = read(&file).unwrap();
    for index in 0..file.len() {
        for bit in 0..8 {
            file[index] ^= 1 << bit;
            match read(&file) {
                Err(error) => assert!(error.offset <= file.len() as u64),
                // A length that points behind the end looks like a cut, and a kind that may be skipped is never reached: the
                // checksum covers it.
                Ok(damaged) => {
                    assert!(damaged.cut().is_some() && damaged.events().len() <= whole.events().len())
                }
            }
            fuzz::hwm(&file);
            file[index] ^= 1 << bit;
        }
    }
}

/// A block with a checksum that fits.
fn block(kind: u8, contents: &[u8]) -> Vec<u8> {
    let label = label(kind, contents.len() as u32);
    [&label[..], &checksum(label, contents).to_le_bytes(), contents].concat()
}

fn start() -> Vec<u8> {
    [&MAGIC[..], &VERSION.to_le_bytes(), &block(kind::FACTS, b"{}")].concat()
}

#[test]
fn errors_have_their_offset() {
    let message = |file: &[u8]| read(file).unwrap_err().to_string();
    let here = start().len();
    let with = |kind, contents: &[u8]| [start(), block(kind, contents)].concat();
    assert_eq!(
        message(b"a 0 100 x\n"),
        "byte 0: not a recording: expected the first bytes of an .hwm file; `highwater replay` reads other traces"
    );
    let future = [&MAGIC[..], &7_u16.to_le_bytes()].concat();
    assert_eq!(message(&future), "byte 8: version 7 of the format; this program reads version 1");
    let cases = [
        (with(kind::EVENTS, &[3, 0, 9]), here + HEAD_BYTES, "owner 9 has no name"),
        (
            with(kind::EVENTS, &[0x10, 0]),
            here + HEAD_BYTES,
            "an event is cut off, or a number has more than 64 bits",
        ),
        (with(kind::EVENTS, &[10, 5, 0, 0, 0]), here + HEAD_BYTES, "owner 5 is named out of order"),
        (with(kind::EVENTS, &[10, 1, 1, 0, 0]), here + HEAD_BYTES, "owner 1 has no name"),
        (with(kind::FACTS, b"{}"), here, "a block of this kind is not allowed here"),
        (with(b'X', b""), here, "a block of the unknown kind 0x58"),
        (with(kind::SUMMARY, b"[1"), here + HEAD_BYTES, "EOF while parsing a list at line 1 column 2"),
        (
            [start(), vec![b'E', 0, 0, 0, 0x7f, 0, 0, 0, 0]].concat(),
            here,
            "a block of 2130706432 bytes exceeds the limit of 1048576",
        ),
    ];
    for (file, offset, problem) in cases {
        assert_eq!(message(&file), format!("byte {offset}: {problem}"));
    }
    let after_the_end = [with(kind::SUMMARY, b"{}"), block(kind::EVENTS, b"")].concat();
    assert!(message(&after_the_end).ends_with("a block of this kind is not allowed here"));
}

#[test]
fn a_kind_in_small_letters_is_skipped() {
    let file = [start(), block(b'x', b"from the future"), block(kind::SUMMARY, b"{}")].concat();
    assert_eq!(read(&file).unwrap().cut(), None);
}

#[test]
fn limits_hold() {
    let file = file(3);
    let message = |limits: RecordingLimits| Recording::read(&file[..], &limits).unwrap_err().to_string();
    let limits = RecordingLimits::default();
    assert!(message(RecordingLimits { events: 5, ..limits }).ends_with("more than 5 events"));
    assert!(message(RecordingLimits { owners: 2, ..limits }).ends_with("more than 2 owners"));
    assert!(
        message(RecordingLimits { depth: 1, ..limits }).ends_with("more than 1 owners one below the other")
    );
    assert!(message(RecordingLimits { pools: 0, ..limits }).ends_with("more than 0 pools"));
    assert!(message(RecordingLimits { threads: 0, ..limits }).ends_with("more than 0 threads"));
    assert_eq!(message(RecordingLimits { input_bytes: 100, ..limits }), "byte 100: more than 100 B of file");
}

/// A disk that is full from some byte on.
struct Full {
    left: usize,
}

impl Write for Full {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if bytes.len() > self.left {
            return Err(io::Error::new(io::ErrorKind::StorageFull, "the disk is full"));
        }
        self.left -= bytes.len();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_write_error_is_reported_once() {
    let (tracker, pool) = (Tracker::new(), pool());
    let facts = RunFacts::new("test");
    assert_eq!(
        tracker.start_recording(Full { left: 5 }, &facts).unwrap_err().kind(),
        io::ErrorKind::StorageFull
    );
    tracker.start_recording(Full { left: 1000 }, &facts).unwrap();
    // Far more than the blocks that may wait.
    run(&tracker, &pool, 1_000);
    let error = tracker.finish_recording(std::slice::from_ref(&pool)).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::StorageFull);
    assert!(tracker.finish_recording(&[pool]).unwrap().is_none(), "an error is told once");
}

#[test]
fn damaged_files_have_consistent_pages() {
    let file = file(3);
    let shown = |file: &[u8]| {
        fuzz::hwm_shown(file);
        fuzz::hwm_followed(file);
    };
    shown(&file);
    for at in (0..file.len()).step_by(53) {
        shown(&file[..at]);
        let mut damaged = file.clone();
        damaged[at] = damaged[at].wrapping_add(1);
        shown(&damaged);
    }
}

/// A file that takes its time.
struct Slow(Shared);

impl Write for Slow {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        std::thread::sleep(std::time::Duration::from_millis(20));
        self.0.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn dropping_the_tracker_finishes_its_recording() {
    let (tracker, pool, file) = (Tracker::new(), pool(), Shared::default());
    tracker.start_recording(Slow(file.clone()), &RunFacts::new("test")).unwrap();
    run(&tracker, &pool, 3);
    drop(tracker);
    let recording = Recording::read(&file.bytes()[..], &RecordingLimits::default()).unwrap();
    // One for the region, and eight for each round.
    assert_eq!(recording.events().len(), 25);
    assert!(matches!(recording.events()[0].kind, EventKind::Mark(0)));
    assert!(recording.summary().is_none() && recording.cut().is_some(), "but it has no end");
}

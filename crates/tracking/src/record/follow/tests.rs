use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::sync::{Arc, Mutex, PoisonError};

use bfc_core::{AddressOnlyMemory, Allocation, Allocator, BfcAllocator, BfcConfig, Bytes, Category, Request};

use super::*;
use crate::account::Tracker;
use crate::record::{HwmProblem, Recording};
use crate::report::OpRow;
use crate::scope::{module, phase};

/// A file that grows while it is read.
#[derive(Clone, Default)]
struct Growing(Arc<Mutex<VecDeque<u8>>>);

impl Growing {
    fn grow(&self, bytes: &[u8]) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).extend(bytes);
    }
}

impl Read for Growing {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).read(buffer)
    }
}

#[derive(Clone, Default)]
struct Shared(Arc<Mutex<Vec<u8>>>);

impl Write for Shared {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The file of a short run: steps of two layers, a mark each.
fn file() -> Vec<u8> {
    let config = BfcConfig::new(Bytes::gib(1));
    let pool: Arc<dyn Allocator> =
        Arc::new(BfcAllocator::new("cpu:0", Arc::new(AddressOnlyMemory::new()), config));
    let (tracker, shared) = (Tracker::new(), Shared::default());
    tracker.start_recording(shared.clone(), &RunFacts::new("followed")).unwrap();
    for step in 1..=30_u64 {
        tracker.mark(&format!("step {step}"));
        let _net = module("follow-net");
        let layer = |name: &str, bytes| {
            let _layer = module(name);
            let run = tracker.begin("matmul");
            let allocator = run.track(&pool);
            let _scratch = Allocation::new(&allocator, &Request::new(512)).unwrap();
            Allocation::new(&allocator, &Request::new(bytes).with_category(Category::Output)).unwrap()
        };
        let first = layer("fc1", 1024 * (1 + step % 5));
        let second = layer("fc2", 4096);
        let tag = bfc_core::Tag {
            category: Category::Activation,
            ..second.allocator().tag(&second.block()).unwrap()
        };
        second.allocator().retag(&second.block(), tag).unwrap();
        let _phase = phase(crate::scope::Phase::Backward);
        drop((layer("fc2", 256), second, first));
    }
    tracker.finish_recording(&[pool]).unwrap().unwrap();
    shared.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

#[test]
fn following_a_growing_file_equals_reading_it_whole() {
    let whole = file();
    let recording = Recording::read(&whole[..], &RecordingLimits::default()).unwrap();
    let whole_report = Report::from_recording(&recording);
    for piece in [1, 7, 100, 5000, whole.len()] {
        let growing = Growing::default();
        let mut follower = Follower::new(growing.clone(), RecordingLimits::default());
        for bytes in whole.chunks(piece) {
            assert!(!follower.has_ended());
            growing.grow(bytes);
            follower.poll().unwrap();
        }
        assert!(follower.has_ended() && !follower.poll().unwrap());
        assert_eq!(follower.offset(), whole.len() as u64);
        assert_eq!(follower.events(), recording.events().len() as u64);
        let report = follower.report(usize::MAX);
        assert_eq!((&report.peak, &report.categories), (&whole_report.peak, &whole_report.categories));
        assert_eq!((&report.saved, follower.live_bytes()), (&whole_report.saved, 0));
        assert_eq!((follower.time_ns(), follower.last_mark()), (recording.end_ns(), Some("step 30")));
        let peak = report.peak.unwrap().bytes;
        assert!(follower.reserved_bytes() >= peak);
        for holder in report.places {
            let place = whole_report.places.iter().find(|place| place.path() == holder.path());
            let place = place.unwrap_or_else(|| panic!("{holder:?}"));
            let marks = |row: &OpRow| (row.calls, row.self_peak_bytes, row.peak_bytes, row.total_bytes);
            assert_eq!(marks(&holder), marks(place));
        }
        assert_eq!(follower.report(2).places.len(), 2);
        assert_eq!(follower.level_history().iter().max(), Some(&peak));
    }
}

#[test]
fn damage_is_an_error_at_its_place() {
    let whole = file();
    for at in (0..whole.len()).step_by(7) {
        let mut damaged = whole.clone();
        damaged[at] ^= 0x21;
        let mut follower = Follower::new(&damaged[..], RecordingLimits::default());
        let followed = follower.poll();
        match (followed, Recording::read(&damaged[..], &RecordingLimits::default())) {
            (Ok(_), Ok(recording)) => assert_eq!(follower.events(), recording.events().len() as u64),
            (Err(followed), Err(read)) => assert_eq!(followed.to_string(), read.to_string()),
            (followed, read) => panic!("byte {at}: {followed:?}, {:?}", read.err()),
        }
    }
}

#[test]
fn limits_hold_while_following() {
    let whole = file();
    let limits = RecordingLimits { owners: 3, ..RecordingLimits::default() };
    let error = Follower::new(&whole[..], limits).poll().unwrap_err();
    assert!(
        matches!(error.problem, HwmProblem::Events(BlockProblem::TooMany { what: "owners", limit: 3 })),
        "{error}"
    );
}

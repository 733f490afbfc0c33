//! What must hold for any file: the bodies of the fuzz targets, which the tests run as well.
//!
//! Each takes bytes as they come, makes them the contents of a file of one format, and panics if the reader breaks a
//! promise. A file that is refused is as good as one that is read.

use std::io::Write;
use std::sync::Arc;

use bfc_core::{AddressOnlyMemory, Allocator, BfcAllocator, BfcConfig, Bytes, KIB};
use flate2::Compression;
use flate2::write::GzEncoder;

use crate::export::{ExportFormat, export};
use crate::page::write_page;
use crate::record::{EventKind, Follower, PeakParts, Recording, RecordingLimits, Usage, recording_of_events};
use crate::replay::replay;
use crate::trace::{ReadOptions, Trace, TraceEvent, TraceLimits};
use crate::training_log::{TrainingLog, TrainingLogLimits};

/// Small limits, so that they are reached.
const LIMITS: TraceLimits = TraceLimits {
    line_bytes: 200,
    events: 1000,
    labels: 20,
    comments: 10,
    input_bytes: 256 * KIB,
    held_bytes: 1024 * KIB,
};

/// A file of any format.
pub fn any(data: &[u8]) {
    for device in [None, Some(0), Some(1)] {
        let options = ReadOptions { limits: LIMITS, device };
        if let Ok(trace) = Trace::read(data, &options) {
            check(&trace);
        }
    }
}

/// Our own lines.
pub fn text(data: &[u8]) {
    if let Ok(trace) = Trace::parse(data, &LIMITS) {
        check(&trace);
    }
}

/// The log of a training run.
pub fn training_log(data: &[u8]) {
    let limits = TrainingLogLimits { line_bytes: 200, points: 200, curves: 5, name_bytes: 20 };
    let Ok(log) = TrainingLog::read(data, &limits) else { return };
    let points: usize = log.curves().iter().map(|curve| curve.points.len()).sum();
    assert!(log.curves().len() <= limits.curves && points <= limits.points);
    for curve in log.curves() {
        assert!(curve.points.is_sorted_by_key(|point| (point.at_ns, point.step)));
        assert!(curve.points.iter().all(|point| point.value.is_finite()));
    }
}

/// A pickle, after its first byte.
pub fn pickle(data: &[u8]) {
    any(&[&[0x80], data].concat());
}

/// An RMM log, after its header.
pub fn rmm(data: &[u8]) {
    any(&[b"Thread,Time,Action,Pointer,Size,Stream\n", data].concat());
}

/// A MiniMalloc problem, after its header.
pub fn minimalloc(data: &[u8]) {
    any(&[b"id,lower,upper,size\n", data].concat());
}

/// A compressed file: what was compressed is any, and then what stands there.
pub fn gzip(data: &[u8]) {
    any(&[&[0x1f, 0x8b], data].concat());
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(data).expect("a vector takes everything");
    any(&encoder.finish().expect("a vector takes everything"));
}

/// Small limits for recordings.
const RECORDING_LIMITS: RecordingLimits =
    RecordingLimits { events: 1000, owners: 50, depth: 8, pools: 4, threads: 4, input_bytes: 256 * KIB };

/// An `.hwm` file.
pub fn hwm(data: &[u8]) {
    if let Ok(recording) = Recording::read(data, &RECORDING_LIMITS) {
        check_recording(&recording);
    }
}

/// The contents of a block of events in an `.hwm` file, so that no checksum stands in the way.
pub fn hwm_events(data: &[u8]) {
    if let Ok(recording) = recording_of_events(data, &RECORDING_LIMITS) {
        check_recording(&recording);
    }
}

/// What people see of an `.hwm` file, or of the contents of a block of events: its page, its exports, its peak taken
/// apart; and the file as that of a run that goes on.
pub fn hwm_shown(data: &[u8]) {
    let mut follower = Follower::new(data, RECORDING_LIMITS);
    let followed = follower.poll();
    if let Ok(recording) = Recording::read(data, &RECORDING_LIMITS) {
        assert!(followed.is_ok(), "what is read can be followed: {followed:?}");
        assert_eq!(follower.peak_bytes(), recording.peak().map_or(0, |peak| peak.bytes));
        assert_eq!(follower.live_bytes(), recording.timeline().last().map_or(0, |moment| moment.bytes));
        show(&recording);
    }
    if let Ok(recording) = recording_of_events(data, &RECORDING_LIMITS) {
        show(&recording);
    }
}

/// The most that a page or an export of so few events and names may take.
const SHOWN_BYTES: usize = 16 << 20;

fn show(recording: &Recording) {
    let mut page = Vec::new();
    write_page(recording, &mut page).expect("a vector takes everything");
    assert!(page.len() < SHOWN_BYTES && page.ends_with(b"</html>\n"), "{} bytes", page.len());
    // What stands in the data cannot end the element that it stands in: it is not text any more.
    let text = String::from_utf8_lossy(&page);
    let (_, rest) = text.split_once("id=\"data\">").expect("a page has data");
    let (data, _) = rest.split_once("</script>").expect("the data ends");
    assert!(data.trim().bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+/=".contains(&byte)));
    for format in ExportFormat::ALL {
        let mut bytes = Vec::new();
        if export(recording, format, &mut bytes).is_ok() {
            assert!(bytes.len() < SHOWN_BYTES);
        }
    }
    let parts = PeakParts::of(recording);
    assert_eq!(parts.categories.iter().map(|part| part.bytes).sum::<u64>(), parts.bytes);
}

/// Every number is one of a row that exists, blocks live as their events say, and sums are what they should be.
fn check_recording(recording: &Recording) {
    assert!(recording.events().len() <= RECORDING_LIMITS.events as usize);
    assert!(recording.owners().len() <= RECORDING_LIMITS.owners as usize);
    assert!(recording.events().is_sorted_by_key(|event| event.at_ns));
    for owner in 0..recording.owners().len() as u32 {
        assert!(recording.lineage(owner).len() <= RECORDING_LIMITS.depth as usize);
    }
    for (index, block) in (0..).zip(recording.blocks()) {
        assert_eq!(recording.events()[block.born as usize].kind, EventKind::Alloc(index));
        if let Some(freed) = block.freed {
            assert!(freed > block.born);
            assert_eq!(recording.events()[freed as usize].kind, EventKind::Free(index));
        }
        assert!(block.granted >= block.requested);
        assert!((block.pool as usize) < recording.pools().len());
        let _ = recording.owner_path(block.owner);
    }
    for execution in recording.executions() {
        assert!(execution.live_peak >= execution.live_before);
        let _ = recording.owner(execution.owner);
    }
    let mut peak = 0;
    for moment in recording.timeline() {
        assert_eq!(moment.bytes, moment.categories.iter().sum::<u64>());
        peak = peak.max(moment.bytes);
    }
    assert_eq!(peak, recording.peak().map_or(0, |peak| peak.bytes));
    assert_eq!(peak, recording.live_at_peak().iter().map(|block| block.bytes).sum::<u64>());
    let live_at_end = recording.blocks().iter().filter(|block| block.freed.is_none()).count();
    assert_eq!(recording.live_after(u32::MAX).len(), live_at_end);
    let usage = Usage::of(recording);
    assert_eq!(usage.categories.iter().map(|row| row.peak_bytes).sum::<u64>(), peak);
    let _ = Trace::from_recording(recording);
}

/// What is read holds together, is within the limits, is written and read back as the same, and can be replayed.
fn check(trace: &Trace) {
    assert!(trace.events().len() <= LIMITS.events as usize);
    assert!(trace.labels().len() <= LIMITS.labels as usize);
    assert!(trace.comments().len() <= LIMITS.comments as usize);
    assert!(trace.comments().iter().all(|comment| comment.position <= trace.events().len()));
    let peak = check_events(trace);
    assert_eq!(peak, u128::from(trace.peak_live_bytes()));

    let mut written = Vec::new();
    trace.write(&mut written).expect("a vector takes everything");
    let again = Trace::parse(&written[..], &TraceLimits::default()).expect("what is written can be read");
    assert_eq!(&again, trace);

    let pool = BfcAllocator::new("fuzz", Arc::new(AddressOnlyMemory::new()), BfcConfig::new(Bytes::gib(64)));
    let fits = replay(trace, &pool).is_ok();
    assert!(fits || trace.peak_live_bytes() > Bytes::gib(16).get());
    assert_eq!(pool.stats().live_allocs, 0);
}

/// Every block is allocated once, in the order of numbers, freed at most once and not before; the most bytes live at a time.
fn check_events(trace: &Trace) -> u128 {
    let mut live: Vec<Option<u64>> = Vec::new();
    let (mut sum, mut peak) = (0_u128, 0);
    for event in trace.events() {
        match *event {
            TraceEvent::Alloc { block, bytes, label } => {
                assert_eq!(block as usize, live.len());
                assert!((label as usize) < trace.labels().len());
                live.push(Some(bytes));
                sum += u128::from(bytes);
                peak = sum.max(peak);
            }
            TraceEvent::Free { block } => {
                sum -= u128::from(live[block as usize].take().expect("only live blocks are freed"));
            }
        }
    }
    peak
}

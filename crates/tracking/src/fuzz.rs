//! The bodies of the fuzz targets, which the tests run as well.
//!
//! Each takes arbitrary bytes as the contents of a file of one format, and panics if the reader breaks a promise. The
//! reader may return an error or a result.

use std::io::{self, Read};

use bfc_core::KIB;

use crate::page::write_page;
use crate::record::{EventKind, Follower, Recording, RecordingLimits, recording_of_events, write_trace};
use crate::report::{RankComparison, RankReport, Report, ReportDiff, TextOptions};
use crate::training_log::{TrainingLog, TrainingLogLimits};

/// The log of a training run.
pub fn training_log(data: &[u8]) {
    let limits =
        TrainingLogLimits { line_bytes: 200, points: 200, idle_lines: 50, curves: 5, name_bytes: 20 };
    let Ok(log) = TrainingLog::read(data, &limits) else { return };
    let points: usize = log.curves().iter().map(|curve| curve.points.len()).sum();
    assert!(log.curves().len() <= limits.curves && points <= limits.points);
    for curve in log.curves() {
        assert!(curve.points.is_sorted_by_key(|point| (point.at_ns, point.step)));
        assert!(curve.points.iter().all(|point| point.value.is_finite()));
        assert!(curve.breaks.is_sorted_by(|a, b| a < b));
        assert!(curve.breaks.iter().all(|index| (1..curve.points.len()).contains(index)));
    }
    let Ok(recording) = recording_of_events(&[], &RECORDING_LIMITS) else { return };
    let mut page = Vec::new();
    write_page(&recording, Some(&log), &mut page).expect("a vector takes everything");
    assert!(page.ends_with(b"</html>\n"));
}

/// Small limits for recordings.
const RECORDING_LIMITS: RecordingLimits = RecordingLimits {
    events: 1000,
    owners: 50,
    depth: 8,
    pools: 4,
    threads: 4,
    input_bytes: 256 * KIB,
    held_bytes: 4096 * KIB,
};

/// Reads an `.hwm` file, unchanged and with correct checksums.
pub fn hwm(data: &[u8]) {
    for file in [data, &with_checksums(data)] {
        if let Ok(recording) = Recording::read(file, &RECORDING_LIMITS) {
            check_limits(&recording);
        }
    }
}

/// Corrects the checksums of the file, so that damage reaches later stages.
fn with_checksums(file: &[u8]) -> Vec<u8> {
    let mut file = file.to_vec();
    let mut rest = file.get_mut(10..).unwrap_or_default();
    while let Some((head, behind)) = rest.split_first_chunk_mut::<9>() {
        let length = u32::from_le_bytes([head[1], head[2], head[3], head[4]]) as usize;
        let Some((contents, next)) = behind.split_at_mut_checked(length) else { break };
        let mut hasher = crc32fast::Hasher::new();
        hasher.update(&head[..5]);
        hasher.update(contents);
        head[5..].copy_from_slice(&hasher.finalize().to_le_bytes());
        rest = next;
    }
    file
}

/// Reads the contents of a block of events in an `.hwm` file, without a checksum.
pub fn hwm_events(data: &[u8]) {
    if let Ok(recording) = recording_of_events(data, &RECORDING_LIMITS) {
        check_limits(&recording);
    }
}

/// Writes the page of an `.hwm` file, unchanged and with correct checksums, or of the contents of a block of events.
pub fn hwm_shown(data: &[u8]) {
    recordings_in(data).iter().for_each(show);
}

/// Compares the parts of the peak of the same file, and follows the file as a run in progress.
pub fn hwm_followed(data: &[u8]) {
    follow(data);
    follow(&with_checksums(data));
    recordings_in(data).iter().for_each(compare);
}

/// Returns the recordings of an `.hwm` file, unchanged and with correct checksums, and of the contents of a block of events.
#[must_use]
pub fn recordings_in(data: &[u8]) -> Vec<Recording> {
    let corrected = with_checksums(data);
    let files = [Some(data), (corrected != data).then_some(&corrected[..])];
    let read = files.into_iter().flatten().map(|file| Recording::read(file, &RECORDING_LIMITS).ok());
    read.chain([recording_of_events(data, &RECORDING_LIMITS).ok()]).flatten().collect()
}

/// A file that grows in pieces. Each piece ends like a file.
struct Pieces<'a> {
    rest: &'a [u8],
    piece: usize,
    left: usize,
}

impl Read for Pieces<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.left == 0 {
            self.left = self.piece;
            return Ok(0);
        }
        let read = (&self.rest[..self.left.min(self.rest.len())]).read(buffer)?;
        self.rest = &self.rest[read..];
        self.left = if read == 0 { self.piece } else { self.left - read };
        Ok(read)
    }
}

/// Checks that a file in several pieces reads like the complete file.
fn follow(file: &[u8]) {
    let read = Recording::read(file, &RECORDING_LIMITS);
    for pieces in [1, 3] {
        let piece = file.len() / pieces + 1;
        let mut follower = Follower::new(Pieces { rest: file, piece, left: piece }, RECORDING_LIMITS);
        let followed = (0..=pieces).try_for_each(|_| follower.poll().map(drop));
        let report = follower.report(5);
        let peak = highest(&report);
        assert!(follower.live_bytes() <= peak && report.places.len() <= 5);
        assert_eq!(report.categories.iter().map(|row| row.live_bytes).sum::<u64>(), follower.live_bytes());
        let Ok(recording) = &read else { continue };
        assert!(followed.is_ok(), "what is read can be followed: {followed:?}");
        assert_eq!(peak, recording.peak().map_or(0, |peak| peak.bytes));
        assert_eq!(follower.live_bytes(), recording.timeline().last().map_or(0, |moment| moment.bytes));
    }
}

/// The peak of all pools together.
fn highest(report: &Report) -> u64 {
    report.total_peak.as_ref().or(report.peak.as_ref()).map_or(0, |peak| peak.bytes)
}

/// The largest page for so few events and names.
const SHOWN_BYTES: usize = 16 << 20;

fn show(recording: &Recording) {
    let mut page = Vec::new();
    write_page(recording, None, &mut page).expect("a vector takes everything");
    assert!(page.len() < SHOWN_BYTES && page.ends_with(b"</html>\n"), "{} bytes", page.len());
    // The data cannot end its element, because it is encoded.
    let text = String::from_utf8_lossy(&page);
    let (_, rest) = text.split_once("id=\"data\">").expect("a page has data");
    let (data, _) = rest.split_once("</script>").expect("the data ends");
    assert!(data.trim().bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+/=".contains(&byte)));
}

fn compare(recording: &Recording) {
    let report = Report::from_recording(recording);
    if let Some(parts) = &report.peak_parts {
        assert_eq!(parts.categories.iter().map(|part| part.bytes).sum::<u64>(), parts.bytes);
    }
    assert!(ReportDiff::between(&report, &report).is_empty());
    compare_ranks(&report);
}

/// Checks that a comparison contains one rank as it is, and refuses the same rank twice.
fn compare_ranks(report: &Report) {
    let Ok(rank) = RankReport::new("fuzz", 0, report) else { return };
    assert!(RankComparison::new(vec![rank.clone(), rank.clone()]).is_err());
    let ranks = RankComparison::new(vec![rank]).expect("a valid rank");
    assert!(ranks.places.iter().all(|row| row.difference() == 0 && row.bytes == [row.max_bytes]));
    assert!(ranks.text(TextOptions::default()).to_string().len() < SHOWN_BYTES);
}

/// Checks that a recording is within the limits, and everything else.
fn check_limits(recording: &Recording) {
    assert!(recording.owners().len() <= RECORDING_LIMITS.owners as usize);
    for owner in 0..recording.owners().len() as u32 {
        assert!(recording.lineage(owner).len() <= RECORDING_LIMITS.depth as usize);
    }
    check_recording(recording);
}

/// Checks that indices refer to existing rows, that blocks live as their events say, and that sums are correct.
pub fn check_recording(recording: &Recording) {
    assert!(recording.events().len() <= RECORDING_LIMITS.events as usize);
    assert!(recording.events().is_sorted_by_key(|event| event.at_ns));
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
    let report = Report::from_recording(recording);
    assert_eq!(highest(&report), peak);
    let of_pool = report.peak.as_ref().map_or(0, |peak| peak.bytes);
    assert_eq!(report.categories.iter().map(|row| row.peak_bytes).sum::<u64>(), of_pool);
    write_trace(recording, &[], io::sink()).expect("a sink takes everything");
}

//! The bodies of the fuzz targets, which the tests run as well.
//!
//! Each takes arbitrary bytes as the contents of a file of one format, and panics if the reader breaks a promise. The
//! reader may return an error or a result.

use std::io::{self, Read, Write};
use std::sync::Arc;

use bfc_core::{
    AddressOnlyMemory, Allocator, AllocatorChoice, AutoGrowthAllocator, AutoGrowthConfig, BfcAllocator,
    BfcConfig, BuddyAllocator, BuddyConfig, Bytes, KIB, MemoryKind, Plan, PlanOptions, PlannedAllocator,
    PlannedConfig,
};
use flate2::Compression;
use flate2::write::GzEncoder;
use highwater_files::{PlanLimits, parse_plan, write_plan};

use crate::export::{ExportFormat, export};
use crate::page::write_page;
use crate::record::{EventKind, Follower, Recording, RecordingLimits, recording_of_events};
use crate::replay::{ReplayError, Step, plan_of, replay};
use crate::report::{RankComparison, RankReport, Report, ReportDiff, TextOptions};
use crate::trace::formats::FORMATS;
use crate::trace::{ReadOptions, Trace, TraceEvent, TraceLimits};
use crate::training_log::{TrainingLog, TrainingLogLimits};

/// Small limits, so that inputs reach them.
const LIMITS: TraceLimits = TraceLimits {
    line_bytes: 200,
    events: 1000,
    labels: 20,
    comments: 10,
    idle_lines: 50,
    input_bytes: 256 * KIB,
    held_bytes: 1024 * KIB,
    ratio: 100,
};

/// A file of any format, as a trace and as a recording.
pub fn any(data: &[u8]) {
    for device in [None, Some(0), Some(1)] {
        let options = ReadOptions { limits: LIMITS, device };
        let trace = Trace::read(data, &options).inspect(check);
        let recording = Recording::read_any(data, &options).inspect(check_recording);
        let (Ok(trace), Ok(recording)) = (trace, recording) else { continue };
        // A recording counts granted bytes, and knows no blocks that lend a part of their bytes.
        let is_exact = recording.blocks().iter().all(|block| block.granted == block.requested);
        if is_exact && is_ordinary(&trace) {
            assert_eq!(trace.peak_live_bytes(), recording.peak().map_or(0, |peak| peak.bytes));
        }
    }
}

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

/// Reads a plan as text. Any blocks can be allocated with the resulting plan.
pub fn plan(data: &[u8]) {
    let limits = PlanLimits { line_bytes: 200, blocks: 1000, comments: 10, held_bytes: 1024 * KIB };
    let Ok(plan) = parse_plan(data, &limits) else { return };
    assert!(plan.blocks().len() <= limits.blocks as usize);
    let constraints = plan.constraints();
    let lends = |index: usize| {
        let mut constraints = constraints.iter();
        constraints.any(|constraint| constraint.block == index && !constraint.gaps.is_empty())
    };
    assert!(constraints.iter().all(|constraint| {
        plan.blocks()[constraint.block].offset.is_none_or(|offset| offset % constraint.alignment == 0)
    }));
    for (index, block) in plan.blocks().iter().enumerate() {
        let Some(offset) = block.offset.filter(|_| !lends(index)) else { continue };
        assert!(offset + block.lifetime.bytes <= plan.capacity());
        for (other_index, other) in plan.blocks()[..index].iter().enumerate() {
            let Some(place) = other.offset.filter(|_| !lends(other_index)) else { continue };
            let (a, b) = (block.lifetime, other.lifetime);
            let together = a.start < b.end && b.start < a.end;
            let apart = offset + a.bytes <= place || place + b.bytes <= offset;
            assert!(apart || !together, "{block:?} {other:?}");
        }
    }
    let mut written = Vec::new();
    write_plan(&plan, &mut written).expect("a vector takes everything");
    assert_eq!(parse_plan(&written[..], &PlanLimits::default()).expect("what is written can be read"), plan);

    let mut text = String::new();
    for (number, block) in plan.blocks().iter().enumerate() {
        text += &format!("a {number} {} x\n", block.lifetime.bytes);
    }
    if let Ok(trace) = Trace::parse(text.as_bytes(), &LIMITS) {
        let pool = planned(plan);
        let _ = replay(&trace, &pool);
        pool.check_invariants().expect("the pool keeps its rules");
        assert_eq!(pool.stats().live_allocs, 0);
    }
}

/// The largest pool for these targets. The command line adds to such a limit without overflow.
const POOL: Bytes = Bytes(1 << 56);

fn planned(plan: Plan) -> PlannedAllocator {
    PlannedAllocator::new(
        "fuzz",
        Arc::new(AddressOnlyMemory::new()),
        PlannedConfig::planned(POOL, Arc::new(plan)),
    )
}

/// Replays a trace in text format through pools of every policy, and with a plan.
pub fn replayed(data: &[u8]) {
    let Ok(trace) = Trace::parse(data, &LIMITS) else { return };
    let source = || Arc::new(AddressOnlyMemory::new().with_coalescing(data.len() % 2 == 0));
    let through = |pool: &dyn Allocator| {
        let outcome = replay(&trace, pool);
        assert!(!matches!(outcome, Err(ReplayError::Free { .. })), "{outcome:?}");
        let fits = is_ordinary(&trace) && trace.peak_live_bytes() <= Bytes::gib(1).get();
        assert!(outcome.is_ok() || !fits, "{outcome:?}");
        pool.check_invariants().expect("the pool keeps its rules");
        assert_eq!(pool.stats().live_allocs, 0);
    };
    for choice in AllocatorChoice::ALL.into_iter().filter(|choice| choice.serves(MemoryKind::AddressOnly)) {
        let config = choice.config(POOL).with_allow_growth(true);
        through(&*choice.allocator("fuzz", source(), config, None).expect("no option is unsupported"));
    }
    // Of these, the list above has the sizes of host memory.
    through(&BuddyAllocator::new("fuzz", source(), BuddyConfig::gpu(Bytes::gib(64))));
    through(&AutoGrowthAllocator::new("fuzz", source(), AutoGrowthConfig::gpu(POOL)));
    let options = PlanOptions::default().with_effort(100);
    for step in [Step::Whole, Step::Repeating] {
        if let Ok(plan) = plan_of(&trace, &step, &options, &mut |_| true) {
            through(&planned(plan));
        }
    }
}

/// A file of the format that the first byte selects: typical first bytes, then the data.
pub fn formats(data: &[u8]) {
    let Some((&chosen, rest)) = data.split_first() else { return };
    let starts: Vec<&[u8]> = starts().collect();
    any(&[starts[usize::from(chosen) % starts.len()], rest].concat());
}

/// Returns the input of [`formats`] that reads this file; `None` if it has other first bytes than those of the table.
#[must_use]
pub fn input_of_formats(file: &[u8]) -> Option<Vec<u8>> {
    let found = (0_u8..).zip(starts()).filter(|(_, start)| file.starts_with(start));
    let (chosen, start) = found.max_by_key(|(_, start)| start.len())?;
    Some([&[chosen], &file[start.len()..]].concat())
}

/// Returns the names of the formats that none of these inputs of [`formats`] selects.
#[must_use]
pub fn formats_without(inputs: &[Vec<u8>]) -> Vec<&'static str> {
    let starts: Vec<&[u8]> = starts().collect();
    let selected = |start: &&[u8]| inputs.iter().any(|input| starts[usize::from(input[0])] == *start);
    let missing = FORMATS.iter().filter(|format| !format.starts.iter().any(selected));
    missing.map(|format| format.name).collect()
}

fn starts() -> impl Iterator<Item = &'static [u8]> {
    FORMATS.iter().flat_map(|format| format.starts.iter().copied())
}

/// Plans a problem of MiniMalloc with alignments and gaps.
pub fn minimalloc_gaps(data: &[u8]) {
    let options = ReadOptions { limits: LIMITS, device: None };
    let file = [b"id,lower,upper,size,alignment,gaps\n", data].concat();
    let Ok(trace) = Trace::read(&file[..], &options) else { return };
    let options = PlanOptions::default().with_granule(1).with_effort(100);
    let Ok(plan) = plan_of(&trace, &Step::Whole, &options, &mut |_| true) else { return };
    assert!(plan.lower_bound() <= plan.capacity());
    assert!(trace.peak_live_bytes() <= plan.capacity());
    let (blocks, constraints) = (plan.blocks().to_vec(), plan.constraints().to_vec());
    assert_eq!(Plan::from_blocks(1, blocks, constraints).as_ref(), Ok(&plan));
}

/// Reads a compressed file with arbitrary contents, then arbitrary bytes as a compressed file.
pub fn gzip(data: &[u8]) {
    any(&[&[0x1f, 0x8b], data].concat());
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(data).expect("a vector takes everything");
    any(&encoder.finish().expect("a vector takes everything"));
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

/// Writes the exports of the same file and its parts of the peak, and follows the file as a run in progress.
pub fn hwm_exported(data: &[u8]) {
    follow(data);
    follow(&with_checksums(data));
    recordings_in(data).iter().for_each(export_all);
}

fn recordings_in(data: &[u8]) -> Vec<Recording> {
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
        let peak = report.peak.map_or(0, |peak| peak.bytes);
        assert!(follower.live_bytes() <= peak && report.places.len() <= 5);
        assert_eq!(report.categories.iter().map(|row| row.live_bytes).sum::<u64>(), follower.live_bytes());
        let Ok(recording) = &read else { continue };
        assert!(followed.is_ok(), "what is read can be followed: {followed:?}");
        assert_eq!(peak, recording.peak().map_or(0, |peak| peak.bytes));
        assert_eq!(follower.live_bytes(), recording.timeline().last().map_or(0, |moment| moment.bytes));
    }
}

/// The largest page or export for so few events and names.
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

fn export_all(recording: &Recording) {
    for format in ExportFormat::ALL {
        let mut bytes = Vec::new();
        if export(recording, format, &mut bytes).is_ok() {
            assert!(bytes.len() < SHOWN_BYTES);
        }
    }
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
fn check_recording(recording: &Recording) {
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
    assert_eq!(report.categories.iter().map(|row| row.peak_bytes).sum::<u64>(), peak);
    assert_eq!(report.peak.as_ref().map_or(0, |row| row.bytes), peak);
    let _ = Trace::from_recording(recording);
}

/// Checks that a trace is consistent, within the limits, equal after a write and a read, and ready for a replay.
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
    let parts = |trace: &Trace| (trace.events().to_vec(), trace.labels().to_vec(), trace.comments().to_vec());
    assert_eq!(parts(&again), parts(trace));

    let pool = BfcAllocator::new("fuzz", Arc::new(AddressOnlyMemory::new()), BfcConfig::new(Bytes::gib(64)));
    let fits = replay(trace, &pool).is_ok();
    assert!(fits || !is_ordinary(trace) || trace.peak_live_bytes() > Bytes::gib(16).get());
    assert_eq!(pool.stats().live_allocs, 0);
}

/// Returns whether a pool needs little more than the live bytes: no block has a wide alignment or lends its bytes.
fn is_ordinary(trace: &Trace) -> bool {
    trace.events().iter().all(|event| match *event {
        TraceEvent::Alloc { alignment, .. } => alignment <= 4096,
        TraceEvent::Free { .. } => true,
        TraceEvent::Occupy { .. } => false,
    })
}

/// Checks that blocks are allocated once, in order, and freed at most once, later. Returns the peak of live bytes.
fn check_events(trace: &Trace) -> u128 {
    // By block: its bytes and its occupied bytes.
    let mut live: Vec<Option<(u64, u64)>> = Vec::new();
    let (mut sum, mut peak) = (0_u128, 0);
    let mut allocated = None;
    for event in trace.events() {
        match *event {
            TraceEvent::Alloc { block, bytes, label, alignment } => {
                assert!(alignment.is_power_of_two());
                assert_eq!(block as usize, live.len());
                assert!((label as usize) < trace.labels().len());
                peak = sum.max(peak);
                live.push(Some((bytes, bytes)));
                sum += u128::from(bytes);
                allocated = Some(block);
                continue;
            }
            TraceEvent::Occupy { block, start, end } => {
                let (bytes, occupied) = live[block as usize].as_mut().expect("only live blocks lend bytes");
                assert!(start <= end && end <= *bytes);
                // Directly after its allocation, a block never occupied the other bytes.
                if allocated != Some(block) {
                    peak = sum.max(peak);
                }
                sum = sum - u128::from(*occupied) + u128::from(end - start);
                *occupied = end - start;
            }
            TraceEvent::Free { block } => {
                peak = sum.max(peak);
                let (_, occupied) = live[block as usize].take().expect("only live blocks are freed");
                sum -= u128::from(occupied);
            }
        }
        allocated = None;
    }
    sum.max(peak)
}

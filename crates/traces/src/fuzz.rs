//! The bodies of the fuzz targets, which the tests run as well.
//!
//! Each takes arbitrary bytes as the contents of a file of one format, and panics if the reader breaks a promise. The
//! reader may return an error or a result.

use std::io::Write;
use std::sync::Arc;

use bfc_core::{
    AddressOnlyMemory, Allocator, AllocatorChoice, AutoGrowthAllocator, AutoGrowthConfig, BfcAllocator,
    BfcConfig, BuddyAllocator, BuddyConfig, Bytes, KIB, MemoryKind, PackedAllocator, PackedConfig, Packing,
    PackingOptions,
};
use flate2::Compression;
use flate2::write::GzEncoder;
use highwater_files::{PackingLimits, parse_packing, write_packing};
use highwater_tracking::fuzz::{check_recording, recordings_in};
use highwater_tracking::{Recording, write_trace};

use crate::export::{ExportFormat, export};
use crate::replay::{ReplayError, Step, packing_of, replay};
use crate::trace::formats::FORMATS;
use crate::trace::{ReadOptions, Trace, TraceEvent, TraceLimits, read_recording};

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
        let recording = read_recording(data, &options).inspect(check_recording);
        let (Ok(trace), Ok(recording)) = (trace, recording) else { continue };
        // A recording counts granted bytes, and knows no blocks that lend a part of their bytes.
        let is_exact = recording.blocks().iter().all(|block| block.granted == block.requested);
        if is_exact && is_ordinary(&trace) {
            assert_eq!(trace.peak_live_bytes(), recording.peak().map_or(0, |peak| peak.bytes));
        }
    }
}

/// Reads a packing as text. Any blocks can be allocated with the resulting packing.
pub fn packing(data: &[u8]) {
    let limits = PackingLimits { line_bytes: 200, blocks: 1000, comments: 10, held_bytes: 1024 * KIB };
    let Ok(packing) = parse_packing(data, &limits) else { return };
    assert!(packing.blocks().len() <= limits.blocks as usize);
    let constraints = packing.constraints();
    let lends = |index: usize| {
        let mut constraints = constraints.iter();
        constraints.any(|constraint| constraint.block == index && !constraint.gaps.is_empty())
    };
    assert!(constraints.iter().all(|constraint| {
        packing.blocks()[constraint.block].offset.is_none_or(|offset| offset % constraint.alignment == 0)
    }));
    for (index, block) in packing.blocks().iter().enumerate() {
        let Some(offset) = block.offset.filter(|_| !lends(index)) else { continue };
        assert!(offset + block.lifetime.bytes <= packing.capacity());
        for (other_index, other) in packing.blocks()[..index].iter().enumerate() {
            let Some(place) = other.offset.filter(|_| !lends(other_index)) else { continue };
            let (a, b) = (block.lifetime, other.lifetime);
            let together = a.start < b.end && b.start < a.end;
            let apart = offset + a.bytes <= place || place + b.bytes <= offset;
            assert!(apart || !together, "{block:?} {other:?}");
        }
    }
    let mut written = Vec::new();
    write_packing(&packing, &mut written).expect("a vector takes everything");
    assert_eq!(
        parse_packing(&written[..], &PackingLimits::default()).expect("what is written can be read"),
        packing
    );

    let mut text = String::new();
    for (number, block) in packing.blocks().iter().enumerate() {
        text += &format!("a {number} {} x\n", block.lifetime.bytes);
    }
    if let Ok(trace) = Trace::parse(text.as_bytes(), &LIMITS) {
        let pool = packed(packing);
        let _ = replay(&trace, &pool);
        pool.check_invariants().expect("the pool keeps its rules");
        assert_eq!(pool.stats().live_allocs, 0);
    }
}

/// The largest pool for these targets. The command line adds to such a limit without overflow.
const POOL: Bytes = Bytes(1 << 56);

fn packed(packing: Packing) -> PackedAllocator {
    PackedAllocator::new(
        "fuzz",
        Arc::new(AddressOnlyMemory::new()),
        PackedConfig::packed(POOL, Arc::new(packing)),
    )
}

/// Replays a trace in text format through pools of every policy, and with a packing.
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
    let options = PackingOptions::default().with_effort(100);
    for step in [Step::Whole, Step::Repeating] {
        if let Ok(packing) = packing_of(&trace, &step, &options, &mut |_| true) {
            through(&packed(packing));
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

/// Packs a problem of MiniMalloc with alignments and gaps.
pub fn minimalloc_gaps(data: &[u8]) {
    let options = ReadOptions { limits: LIMITS, device: None };
    let file = [b"id,lower,upper,size,alignment,gaps\n", data].concat();
    let Ok(trace) = Trace::read(&file[..], &options) else { return };
    let options = PackingOptions::default().with_granule(1).with_effort(100);
    let Ok(packing) = packing_of(&trace, &Step::Whole, &options, &mut |_| true) else { return };
    assert!(packing.lower_bound() <= packing.capacity());
    assert!(trace.peak_live_bytes() <= packing.capacity());
    let (blocks, constraints) = (packing.blocks().to_vec(), packing.constraints().to_vec());
    assert_eq!(Packing::from_blocks(1, blocks, constraints).as_ref(), Ok(&packing));
}

/// Reads a compressed file with arbitrary contents, then arbitrary bytes as a compressed file.
pub fn gzip(data: &[u8]) {
    any(&[&[0x1f, 0x8b], data].concat());
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(data).expect("a vector takes everything");
    any(&encoder.finish().expect("a vector takes everything"));
}

/// The largest export for so few events and names.
const EXPORTED_BYTES: usize = 16 << 20;

/// Writes the exports and the traces of the recordings in an `.hwm` file or in a block of events.
pub fn hwm_exported(data: &[u8]) {
    recordings_in(data).iter().for_each(export_all);
}

fn export_all(recording: &Recording) {
    for format in ExportFormat::ALL {
        let mut bytes = Vec::new();
        if export(recording, format, &mut bytes).is_ok() {
            assert!(bytes.len() < EXPORTED_BYTES);
        }
    }
    check_text(recording);
}

/// Checks that the text of a recording is that of its trace.
fn check_text(recording: &Recording) {
    let Ok(trace) = Trace::from_recording(recording) else { return };
    let mut text = Vec::new();
    write_trace(recording, &[], &mut text).expect("a vector takes everything");
    let written = Trace::parse(&text[..], &TraceLimits::default()).expect("what is written can be read");
    assert_eq!((written.events(), written.labels()), (trace.events(), trace.labels()));
    assert!(written.marks().eq(trace.marks()));
    assert_eq!(written.header("peak_live_bytes"), Some(&*trace.peak_live_bytes().to_string()));
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

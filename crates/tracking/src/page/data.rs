//! The data of a page. Columns of small or slowly growing numbers are stored as differences, which compress well.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use bfc_core::Category;
use highwater_files::lean;
use serde::Serialize;

use super::allocator::AllocatorFacts;
use super::blocks::{self, Rectangle};
use super::curves::CurvesData;
use super::envelope::{envelope, ops_at};
use super::names::Names;
use super::raster::{Raster, runs};
use super::regions::{Pieces, Reserved};
use super::sample::{Moments, Sample};
use super::space::Space;
use crate::plan_chart::PlanChart;
use crate::record::{BlockLife, EventKind, Moment, Recording};
use crate::report::Report;
use crate::training_log::TrainingLog;

/// The most intervals of the timeline.
const MAX_INTERVALS: usize = 1 << 15;

/// The most blocks that are drawn separately.
const RECTANGLES: usize = 40_000;

/// The most blocks that show the state at other moments.
const SAMPLED: usize = 32_000;

/// Cells of the map for the others.
const COLUMNS: usize = 832;
const ROWS: usize = 256;

/// The most lines of a table.
const MAX_LINES: usize = 2000;

/// The most libraries with memory outside the pools.
const MAX_OUTSIDE: usize = 8;

/// The most failed requests.
const MAX_FAILURES: usize = 8;

#[derive(Debug, Serialize)]
pub(super) struct Data<'a> {
    report: Report,
    categories: [&'static str; Category::COUNT],
    timeline: TimelineData,
    reserved: Option<Reserved>,
    map: MapData,
    holders: Vec<HolderData>,
    #[serde(skip_serializing_if = "Option::is_none")]
    allocator: Option<&'a AllocatorFacts>,
    log: Option<CurvesData<'a>>,
    plans: Option<&'a PlanChart>,
    names: Vec<String>,
}

/// The data of a page that shows only the plans of a search.
#[derive(Debug, Serialize)]
pub(super) struct SearchData<'a> {
    pub(super) plans: &'a PlanChart,
}

/// Moments of the timeline.
#[derive(Debug, Serialize)]
struct TimelineData {
    /// The number of moments before downsampling.
    moments: usize,
    /// The most intervals, of which each keeps two moments.
    intervals: usize,
    /// Nanoseconds, as differences.
    at_ns: Vec<u64>,
    /// Bytes by category, as differences.
    bytes: [Vec<i128>; Category::COUNT],
    /// The running op, by index of its name.
    op: Vec<u32>,
    /// The index of the peak among the moments.
    peak: Option<usize>,
}

/// The map.
#[derive(Debug, Serialize)]
struct MapData {
    bytes: u64,
    /// Address ranges: pool, address (as text, because browsers' numbers have 53 bits), bytes, position on the map.
    extents: Vec<(String, String, u64, u64)>,
    /// By extent: whether neighboring regions are one.
    joined: Vec<bool>,
    /// Regions: begin, end, position, bytes, and the stream if all blocks have the same. All of them, or those that
    /// cover a kept moment.
    regions: Vec<(u64, u64, u64, u64, Option<u32>)>,
    has_all_regions: bool,
    /// The moments at which all regions and blocks are known, as differences. Empty if they always are.
    moments_ns: Vec<u64>,
    columns: usize,
    rows: usize,
    /// Runs of equal cells.
    cells: Vec<u32>,
    exact: Exact,
}

/// Single blocks in the order of their begin: all of a part of the time, and those that cover a kept moment.
#[derive(Debug, Serialize)]
struct Exact {
    from_ns: u64,
    to_ns: u64,
    /// The begin in nanoseconds, as differences.
    begin_ns: Vec<u64>,
    life_ns: Vec<u64>,
    at: Vec<u64>,
    bytes: Vec<u64>,
    category: Vec<u8>,
    owner: Vec<u32>,
}

/// A holder of blocks of one category at the peak.
#[derive(Debug, Serialize)]
struct HolderData {
    /// The index of the category.
    category: u8,
    /// The index of the holder's path.
    owner: u32,
    bytes: u64,
    blocks: u64,
}

/// The contents of a page besides the recording.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Extras<'a> {
    pub(super) log: Option<&'a TrainingLog>,
    pub(super) plans: Option<&'a PlanChart>,
    pub(super) allocator: Option<&'a AllocatorFacts>,
}

impl<'a> Data<'a> {
    pub(super) fn of(recording: &'a Recording, extras: Extras<'a>) -> Self {
        let mut names = Names::new(recording);
        let reserved = Reserved::of(recording);
        let gap = reserved.as_ref().map(Reserved::gap);
        Self {
            report: shortened(Report::from_recording(recording)),
            categories: Category::ALL.map(Category::name),
            timeline: timeline(recording, gap.map(|gap| gap.event), &mut names),
            reserved,
            map: map(recording, gap.map(|gap| gap.at_ns), &mut names),
            holders: holders(recording, &mut names),
            allocator: extras.allocator,
            log: extras.log.map(CurvesData::of),
            plans: extras.plans,
            names: names.into_paths(),
        }
    }
}

/// The report with shortened tables.
fn shortened(mut report: Report) -> Report {
    for rows in [&mut report.ops, &mut report.places] {
        rows.sort_by(|a, b| a.order_at_peak().cmp(&b.order_at_peak()));
        rows.truncate(MAX_LINES);
    }
    report.scopes.truncate(MAX_LINES);
    report.live.truncate(MAX_LINES);
    report.growth.truncate(MAX_LINES);
    report.threads.truncate(MAX_LINES);
    report.outside.truncate(MAX_OUTSIDE);
    if let Some(parts) = &mut report.peak_parts {
        parts.places.truncate(MAX_LINES);
        parts.scopes.truncate(MAX_LINES);
    }
    report.failures.truncate(MAX_FAILURES);
    report
}

/// The timeline, with the moment that the event `also` leaves.
fn timeline(recording: &Recording, also: Option<u32>, names: &mut Names<'_>) -> TimelineData {
    let mut moments = envelope(recording, MAX_INTERVALS);
    if let Some(moment) = also.and_then(|event| last_until(recording, event)) {
        let place = moments.partition_point(|known| known.event < moment.event);
        if moments.get(place).is_none_or(|known| known.event != moment.event) {
            moments.insert(place, moment);
        }
    }
    let owners = ops_at(recording, &moments);
    let column = |category: usize| {
        differences(moments.iter().map(|moment| i128::from(moment.categories[category]))).collect()
    };
    let peak = recording.peak().and_then(|peak| moments.iter().position(|moment| moment.event == peak.event));
    TimelineData {
        moments: recording.timeline().count(),
        intervals: MAX_INTERVALS,
        at_ns: steps_up(moments.iter().map(|moment| moment.at_ns)),
        bytes: std::array::from_fn(column),
        op: owners.into_iter().map(|owner| names.number(owner)).collect(),
        peak,
    }
}

/// Returns the last moment that is not after an event.
fn last_until(recording: &Recording, event: u32) -> Option<Moment> {
    recording.timeline().take_while(|moment| moment.event <= event).last()
}

fn map(recording: &Recording, gap_ns: Option<u64>, names: &mut Names<'_>) -> MapData {
    let space = Space::of(recording);
    let (from_ns, to_ns) = blocks::window(recording, RECTANGLES);
    let peak_ns = recording.peak().map(|peak| recording.time_of(peak.event));
    let chosen = [peak_ns, gap_ns, Some(recording.end_ns())];
    let moments = Moments::new(recording, chosen.into_iter().flatten().collect());
    let pieces = Pieces::of(recording, &space, &moments);

    let mut raster = Raster::new(COLUMNS, ROWS, recording.end_ns(), space.bytes);
    // All rectangles of the window, unless there are too many.
    let mut single: Option<Vec<Rectangle>> = Some(Vec::new());
    let mut sample = Sample::new(SAMPLED, moments.first_level());
    blocks::rectangles(recording, &space, |rectangle| {
        raster.add(&rectangle);
        let is_seen = rectangle.from_ns <= to_ns && rectangle.to_ns >= from_ns;
        match &mut single {
            Some(seen) if is_seen && seen.len() < 2 * RECTANGLES => return lean::push(seen, rectangle),
            _ => {}
        }
        if is_seen {
            for rectangle in single.take().into_iter().flatten() {
                sample.offer(moments.level(rectangle.from_ns, rectangle.to_ns), rectangle);
            }
        }
        sample.offer(moments.level(rectangle.from_ns, rectangle.to_ns), rectangle);
    });
    let level = sample.level();
    let window = if single.is_some() { (from_ns, to_ns) } else { (0, 0) };
    let mut single = single.unwrap_or_default();
    let has_all = window == (0, recording.end_ns()) && pieces.level == 0;
    single.extend(sample.into_spans());

    let extents = space.extents.iter().map(|extent| {
        let pool = recording.pools()[extent.pool as usize].name.clone();
        (pool, format!("{:#x}", extent.address), extent.bytes, extent.at)
    });
    MapData {
        bytes: space.bytes,
        extents: extents.collect(),
        joined: space.extents.iter().map(|extent| pieces.are_joined[extent.pool as usize]).collect(),
        regions: pieces.rows,
        has_all_regions: pieces.level == 0,
        moments_ns: if has_all {
            Vec::new()
        } else {
            steps_up(moments.times(level.max(pieces.level)).into_iter())
        },
        columns: COLUMNS,
        rows: ROWS,
        cells: runs(&raster.cells()),
        exact: exact(single, window, names),
    }
}

fn exact(mut single: Vec<Rectangle>, (from_ns, to_ns): (u64, u64), names: &mut Names<'_>) -> Exact {
    single.sort_by_key(|rectangle| rectangle.from_ns);
    Exact {
        from_ns,
        to_ns,
        begin_ns: steps_up(single.iter().map(|rectangle| rectangle.from_ns)),
        life_ns: single.iter().map(|rectangle| rectangle.to_ns - rectangle.from_ns).collect(),
        at: single.iter().map(|rectangle| rectangle.at).collect(),
        bytes: single.iter().map(|rectangle| rectangle.bytes).collect(),
        category: single.iter().map(|rectangle| rectangle.category.index() as u8).collect(),
        owner: single.iter().map(|rectangle| names.number(rectangle.owner)).collect(),
    }
}

/// The holders of the peak by category, those with the most bytes first.
fn holders(recording: &Recording, names: &mut Names<'_>) -> Vec<HolderData> {
    let Some(peak) = recording.peak() else { return Vec::new() };
    let is_live =
        |block: &BlockLife| block.born <= peak.event && block.freed.is_none_or(|freed| freed > peak.event);
    let mut sums = BTreeMap::<(usize, u32), (u64, u64)>::new();
    for block in recording.blocks().iter().filter(|block| is_live(block)) {
        let (bytes, blocks) = sums.entry((block.category.index(), block.owner)).or_default();
        *bytes += block.granted;
        *blocks += 1;
    }
    // The tags at the peak follow from the changes before, without a list of all live blocks.
    for event in recording.events().iter().take(peak.event as usize + 1) {
        let EventKind::Retag(number) = event.kind else { continue };
        let retag = &recording.retags()[number as usize];
        let block = recording.block(retag.block);
        if !is_live(block) {
            continue;
        }
        if let Some((bytes, blocks)) = sums.get_mut(&(retag.old_category.index(), retag.old_owner)) {
            *bytes = bytes.saturating_sub(block.granted);
            *blocks = blocks.saturating_sub(1);
        }
        let (bytes, blocks) = sums.entry((retag.category.index(), retag.owner)).or_default();
        *bytes += block.granted;
        *blocks += 1;
    }
    sums.retain(|_, &mut (_, blocks)| blocks > 0);
    let mut rows: Vec<_> = sums.into_iter().collect();
    rows.sort_by_key(|&(_, (bytes, _))| Reverse(bytes));
    rows.truncate(MAX_LINES);
    let row = |((category, owner), (bytes, blocks)): ((usize, u32), (u64, u64))| HolderData {
        category: category as u8,
        owner: names.number(owner),
        bytes,
        blocks,
    };
    rows.into_iter().map(row).collect()
}

pub(super) fn differences(values: impl Iterator<Item = i128>) -> impl Iterator<Item = i128> {
    values.scan(0, |last, value| Some(value - std::mem::replace(last, value)))
}

/// Returns the differences of numbers that never decrease.
pub(super) fn steps_up(values: impl Iterator<Item = u64>) -> Vec<u64> {
    values.scan(0, |last, value| Some(value - std::mem::replace(last, value))).collect()
}

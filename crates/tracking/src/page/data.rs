//! The data of a page. Columns of small or slowly growing numbers are stored as differences, which compress well.

use bfc_core::Category;
use serde::Serialize;

use super::blocks::{self, Rectangle};
use super::curves::CurvesData;
use super::envelope::{envelope, ops_at};
use super::names::Names;
use super::raster::{Raster, runs};
use super::space::Space;
use crate::plan_chart::PlanChart;
use crate::record::{EventKind, Recording};
use crate::report::Report;
use crate::training_log::TrainingLog;

/// The most intervals of the timeline.
const MAX_INTERVALS: usize = 1 << 15;

/// The most blocks that are drawn separately.
const RECTANGLES: usize = 40_000;

/// Cells of the map for the others.
const COLUMNS: usize = 832;
const ROWS: usize = 256;

/// The most lines of a table, and the most regions.
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
    map: MapData,
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
    /// Regions: begin, end, position, bytes.
    regions: Vec<(u64, u64, u64, u64)>,
    columns: usize,
    rows: usize,
    /// Runs of equal cells.
    cells: Vec<u32>,
    exact: Exact,
}

/// Single blocks of a part of the time, in the order of their begin.
#[derive(Debug, Default, Serialize)]
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

impl<'a> Data<'a> {
    pub(super) fn of(
        recording: &'a Recording,
        log: Option<&'a TrainingLog>,
        plans: Option<&'a PlanChart>,
    ) -> Self {
        let mut names = Names::new(recording);
        Self {
            report: shortened(Report::from_recording(recording)),
            categories: Category::ALL.map(Category::name),
            timeline: timeline(recording, &mut names),
            map: map(recording, &mut names),
            log: log.map(CurvesData::of),
            plans,
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

fn timeline(recording: &Recording, names: &mut Names<'_>) -> TimelineData {
    let moments = envelope(recording, MAX_INTERVALS);
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

fn map(recording: &Recording, names: &mut Names<'_>) -> MapData {
    let space = Space::of(recording);
    let mut raster = Raster::new(COLUMNS, ROWS, recording.end_ns(), space.bytes);
    let (from_ns, to_ns) = blocks::window(recording, RECTANGLES);
    let mut single: Vec<Rectangle> = Vec::new();
    blocks::rectangles(recording, &space, |rectangle| {
        raster.add(&rectangle);
        let seen = rectangle.from_ns <= to_ns && rectangle.to_ns >= from_ns;
        // One more than the limit shows that there are too many.
        if seen && single.len() <= 2 * RECTANGLES {
            single.push(rectangle);
        }
    });
    let exact =
        if single.len() > 2 * RECTANGLES { Exact::default() } else { exact(single, (from_ns, to_ns), names) };
    let extents = space.extents.iter().map(|extent| {
        let pool = recording.pools()[extent.pool as usize].name.clone();
        (pool, format!("{:#x}", extent.address), extent.bytes, extent.at)
    });
    MapData {
        bytes: space.bytes,
        extents: extents.collect(),
        regions: regions(recording, &space),
        columns: COLUMNS,
        rows: ROWS,
        cells: runs(&raster.cells()),
        exact,
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

/// The times in which the pools held regions.
fn regions(recording: &Recording, space: &Space) -> Vec<(u64, u64, u64, u64)> {
    let mut times: Vec<(u64, u64, u64, u64)> = Vec::new();
    let mut open = std::collections::HashMap::new();
    for event in recording.events() {
        let EventKind::Region(number) = event.kind else { continue };
        let region = recording.regions()[number as usize];
        let key = (region.pool, region.address);
        if region.taken && times.len() < MAX_LINES {
            open.insert(key, times.len());
            let at = space.place(region.pool, region.address);
            times.push((event.at_ns, recording.end_ns(), at, region.bytes));
        } else if let Some(index) = open.remove(&key) {
            times[index].1 = event.at_ns;
        }
    }
    times
}

fn differences(values: impl Iterator<Item = i128>) -> impl Iterator<Item = i128> {
    values.scan(0, |last, value| Some(value - std::mem::replace(last, value)))
}

/// Returns the differences of numbers that never decrease.
pub(super) fn steps_up(values: impl Iterator<Item = u64>) -> Vec<u64> {
    values.scan(0, |last, value| Some(value - std::mem::replace(last, value))).collect()
}

use std::io::Read;
use std::sync::Arc;

use base64::Engine as _;
use bfc_core::{
    AddressOnlyMemory, Allocation, Allocator, BfcAllocator, BfcConfig, Bytes, Category, Request, Span,
};
use flate2::read::ZlibDecoder;
use proptest::prelude::*;
use serde_json::Value;

use super::blocks::Rectangle;
use super::envelope::envelope;
use super::raster::{Raster, runs};
use super::sample::{Moments, Sample};
use super::space::Space;
use super::*;
use crate::account::Tracker;
use crate::plan_chart::PlanRow;
use crate::record::{EventKind, Moment};
use crate::scope::module;
use crate::training_log::{Curve, CurvePoint, TrainingLogLimits};

/// Runs an op that takes blocks of these sizes, and frees every other one at once and the rest at the end.
fn record(op: &'static str, sizes: &[u64]) -> Recording {
    let pool: Arc<dyn Allocator> = Arc::new(BfcAllocator::new(
        "cpu:0",
        Arc::new(AddressOnlyMemory::new()),
        BfcConfig::new(Bytes::mib(1)),
    ));
    let tracker = Tracker::new();
    tracker.start_log(Bytes::mib(16));
    // All that the pool may reserve is one region, which begins where its first block does.
    let first = Allocation::new(&pool, &Request::new(1)).unwrap().block();
    let region = Span { address: first.address, bytes: bfc_core::MIB };
    tracker.record_region("cpu:0", pool.memory_kind(), region, true);
    let _scope = module("page");
    let run = tracker.begin(op);
    let mut held = Vec::new();
    for (index, &bytes) in sizes.iter().enumerate() {
        let request = Request::new(bytes).with_category(Category::ALL[index % Category::COUNT]);
        // Some are refused: the pool is small.
        let Ok(allocation) = Allocation::new(&run.track(&pool), &request) else { continue };
        if index % 2 == 0 {
            held.push(allocation);
        }
    }
    drop(held);
    tracker.take_log()
}

fn page_of(recording: &Recording) -> String {
    let mut page = Vec::new();
    write_page(recording, None, &mut page).unwrap();
    String::from_utf8(page).unwrap()
}

/// The data element, as a browser reads it.
fn data_of(page: &str) -> Value {
    let (_, rest) = page.split_once("id=\"data\">").unwrap();
    let (data, _) = rest.split_once("</script>").unwrap();
    let deflated = BASE64_STANDARD.decode(data.trim()).unwrap();
    let mut json = String::new();
    ZlibDecoder::new(&deflated[..]).read_to_string(&mut json).unwrap();
    serde_json::from_str(&json).unwrap()
}

fn sums(differences: &Value) -> Vec<u64> {
    let mut sum = 0;
    let numbers = differences.as_array().unwrap().iter().map(|number| number.as_i64().unwrap());
    numbers
        .map(|difference| {
            sum += difference;
            sum as u64
        })
        .collect()
}

#[test]
fn the_data_of_a_page_is_the_recordings() {
    let recording = record("page-op", &[1000, 70_000, 256, 3000, 900_000]);
    let data = data_of(&page_of(&recording));
    let moments: Vec<Moment> = recording.timeline().collect();
    let timeline = &data["timeline"];
    assert_eq!(timeline["moments"], moments.len());
    assert_eq!(sums(&timeline["at_ns"]), moments.iter().map(|moment| moment.at_ns).collect::<Vec<_>>());
    for category in Category::ALL.map(Category::index) {
        let bytes: Vec<u64> = moments.iter().map(|moment| moment.categories[category]).collect();
        assert_eq!(sums(&timeline["bytes"][category]), bytes);
    }
    let peak = timeline["peak"].as_u64().unwrap() as usize;
    assert_eq!(moments[peak].bytes, recording.peak().unwrap().bytes);
    let op = timeline["op"][peak].as_u64().unwrap() as usize;
    assert_eq!(data["names"][op], "page.page-op");
    assert_eq!(data["map"]["exact"]["bytes"].as_array().unwrap().len(), recording.blocks().len());
    assert_eq!(data["report"]["peak_parts"]["bytes"], recording.peak().unwrap().bytes);
}

#[test]
fn a_page_carries_the_curves_of_the_log() {
    let recording = record("page-op", &[1000]);
    let lines = "{\"step\":4,\"seconds\":0.5,\"loss\":2.5,\"</script>\":1}\n\
                 {\"step\":6,\"seconds\":2,\"loss\":1.25}\n";
    let log = TrainingLog::read(lines.as_bytes(), &TrainingLogLimits::default()).unwrap();
    let mut page = Vec::new();
    write_page(&recording, Some(&log), &mut page).unwrap();
    let page = String::from_utf8(page).unwrap();
    assert_eq!(page.matches("</script>").count(), 2);
    let found = &data_of(&page)["log"];
    assert_eq!((&found["lines"], &found["cut"]), (&2.into(), &false.into()));
    let loss = found["curves"].as_array().unwrap().iter().find(|curve| curve["name"] == "loss").unwrap();
    assert_eq!(sums(&loss["at_ns"]), [500_000_000, 2_000_000_000]);
    assert_eq!(sums(&loss["steps"]), [4, 6]);
    assert_eq!(loss["values"], serde_json::json!([2.5, 1.25]));
    assert!(found["non_finite"].is_null());
    assert!(data_of(&page_of(&recording))["log"].is_null());
}

#[test]
fn a_page_counts_nan_and_infinity_but_not_null() {
    let lines = "{\"step\":4,\"seconds\":0,\"loss\":2.5}\n\
                 {\"step\":5,\"seconds\":1,\"loss\":NaN}\n\
                 {\"step\":6,\"seconds\":2,\"loss\":Infinity}\n\
                 {\"step\":7,\"seconds\":3,\"loss\":null,\"accuracy\":null}\n";
    let log = TrainingLog::read(lines.as_bytes(), &TrainingLogLimits::default()).unwrap();
    let mut page = Vec::new();
    write_page(&record("page-op", &[1000]), Some(&log), &mut page).unwrap();
    let found = &data_of(&String::from_utf8(page).unwrap())["log"];
    assert_eq!(found["non_finite"], serde_json::json!({ "count": 2, "name": "loss", "step": 5 }));
    assert_eq!(found["curves"][0]["values"], serde_json::json!([2.5]));
}

#[test]
fn a_page_carries_where_the_lines_of_the_log_break() {
    let line = |step: u32, loss: &str| format!("{{\"step\":{step},\"seconds\":{step},\"loss\":{loss}}}\n");
    let lines: String = [(0, "4"), (1, "NaN"), (2, "3"), (3, "2"), (4, "null"), (5, "1")]
        .map(|(step, loss)| line(step, loss))
        .concat();
    let log = TrainingLog::read(lines.as_bytes(), &TrainingLogLimits::default()).unwrap();
    let mut page = Vec::new();
    write_page(&record("page-op", &[1000]), Some(&log), &mut page).unwrap();
    let found = &data_of(&String::from_utf8(page).unwrap())["log"];
    assert_eq!(found["curves"][0]["values"], serde_json::json!([4.0, 3.0, 2.0, 1.0]));
    assert_eq!(sums(&found["curves"][0]["breaks"]), [1, 3]);
}

#[test]
fn downsampled_curves_keep_the_longest_breaks() {
    // A point a nanosecond of one value, but for three breaks of 1, 50 and 30 nanoseconds more.
    let at_ns: Vec<u64> = (0..20).chain(21..40).chain(90..100).chain(130..140).collect();
    let breaks = [20, 39, 49].to_vec();
    let point = |&at_ns: &u64| CurvePoint { at_ns, step: at_ns, value: 1.0 };
    let curve = Curve { name: "loss".to_owned(), points: at_ns.iter().map(point).collect(), breaks };
    let ends = |intervals| -> Vec<[u64; 2]> {
        let (kept, breaks) = curves::downsample(&curve, intervals);
        breaks.into_iter().map(|index| [kept[index - 1].at_ns, kept[index].at_ns]).collect()
    };
    assert_eq!(ends(3), [[19, 21], [39, 90], [99, 130]]);
    assert_eq!(ends(2), [[39, 90], [99, 130]]);
    assert_eq!(ends(1), [[39, 90]]);
}

#[test]
fn no_name_can_end_the_element_that_it_stands_in() {
    let evil = "</script><b>\u{2028}&";
    let mut recording = record(evil, &[1000]);
    recording.set_program(evil);
    let page = page_of(&recording);
    assert!(!page.contains("<b>") && page.contains("&lt;/script&gt;&lt;b&gt;"));
    assert_eq!(data_of(&page)["report"]["places"][0]["op"], r"</script><b>\u{2028}&");
    assert_eq!(page.matches("</script>").count(), 2);
}

#[test]
fn a_page_asks_nothing_of_the_network() {
    for page in [page_of(&record("page-op", &[1000])), plans_page_of(&plans())] {
        for sign in ["http:", "https:", "src=", "<link", "@import", "fetch(", "url("] {
            assert!(!page.contains(sign), "{sign}");
        }
        assert!(page.contains("default-src 'none'"));
        for left in ["{title}", "{style}", "{sections}", "{plans}", "{data}", "{script}"] {
            assert!(!page.contains(left), "{left}");
        }
    }
}

fn plans() -> PlanChart {
    let mut plans =
        PlanChart::new("rtx-4090").with_limit(24 << 30).with_chosen(0).with_measured(9 << 30, Some(0.5));
    plans.rows = vec![
        PlanRow::new("micro-batch 8 × 4, bf16", 9 << 30, 0.45, 71.1)
            .with_limited_by("memory")
            .with_is_on_front(true),
        PlanRow::new("micro-batch 32, bf16", 36 << 30, 0.4, 80.0).with_limited_by("compute").with_fits(false),
    ];
    plans
}

fn plans_page_of(plans: &PlanChart) -> String {
    let mut page = Vec::new();
    write_plans_page(plans, &mut page).unwrap();
    String::from_utf8(page).unwrap()
}

#[test]
fn a_page_carries_the_plans_of_a_search() {
    let recording = record("page-op", &[1000]);
    let mut page = Vec::new();
    write_page_with_plans(&recording, None, Some(&plans()), &mut page).unwrap();
    let data = data_of(&String::from_utf8(page).unwrap());
    assert_eq!(data["plans"], serde_json::to_value(plans()).unwrap());
    assert_eq!(data["report"], data_of(&page_of(&recording))["report"]);
    assert!(data_of(&page_of(&recording))["plans"].is_null());

    let page = plans_page_of(&plans());
    assert!(page.contains("<title>rtx-4090: plans</title>") && page.contains("id=\"plans-chart\""));
    assert!(!page.contains("id=\"timeline\""));
    assert_eq!(data_of(&page), serde_json::json!({ "plans": plans() }));
}

#[test]
fn a_plans_page_keeps_every_row_and_has_null_for_infinite_numbers() {
    let mut plans = plans();
    plans.rows = (0..500)
        .map(|index| PlanRow::new(format!("plan {index}"), index << 20, f64::from(index as u32), 1.0))
        .collect();
    (plans.rows[3].seconds, plans.rows[4].samples_per_second) = (f64::NAN, f64::INFINITY);
    plans.measured_seconds = Some(f64::NEG_INFINITY);
    let data = data_of(&plans_page_of(&plans));
    let rows = data["plans"]["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 500);
    for (index, row) in rows.iter().enumerate() {
        assert_eq!(
            (&row["plan"], &row["peak_bytes"]),
            (&format!("plan {index}").into(), &(index << 20).into())
        );
        assert_eq!((row["seconds"].is_null(), row["samples_per_second"].is_null()), (index == 3, index == 4));
    }
    assert!(data["plans"]["measured_seconds"].is_null());
}

#[test]
fn no_plan_can_end_the_element_that_it_stands_in() {
    let evil = "</script><b>\u{2028}&";
    let mut plans = plans();
    plans.device = evil.to_owned();
    plans.rows[0].plan = evil.to_owned();
    let page = plans_page_of(&plans);
    assert!(!page.contains("<b>") && page.contains("&lt;/script&gt;&lt;b&gt;"));
    assert_eq!(data_of(&page)["plans"]["rows"][0]["plan"], r"</script><b>\u{2028}&");
    assert_eq!(page.matches("</script>").count(), 2);
}

#[test]
fn a_failed_request_has_the_report_of_its_pool() {
    let recording = record("page-op", &[600 << 10, 1, 500 << 10, 2 << 20]);
    let report = &data_of(&page_of(&recording))["report"];
    assert_eq!(report["run"]["failures"], 2);
    let first = &report["failures"][0];
    assert_eq!((&first["requested"], &first["owner"]), (&(500 << 10).into(), &"page.page-op".into()));
    assert_eq!(report["failures"][1]["report"]["verdict"], "over the limit");
    let found = &first["report"];
    assert_eq!((&found["verdict"], &found["tag"]["owner"]), (&"exhausted".into(), &"page.page-op".into()));
    assert_eq!((&found["in_use"], &found["largest_free"]), (&(600 << 10).into(), &(424 << 10).into()));
    assert_eq!(found["holdings"][0]["owner"], "page.page-op");
    assert!(first["answers"].as_array().is_some_and(|answers| !answers.is_empty()));
    assert!(first["advice"].as_str().unwrap().starts_with("exhausted, "));
}

#[test]
fn gaps_between_regions_take_no_place_on_the_map() {
    let recording = record("page-op", &[1000, 2000, 4000]);
    let space = Space::of(&recording);
    let region = recording.regions()[0];
    assert_eq!((space.extents.len(), space.bytes), (1, region.bytes));
    assert_eq!(space.place(0, region.address + 512), 512);
}

/// Runs an op that takes a block of 1,000 bytes, between changes of a pool's regions.
fn record_regions(changes: &[(u64, u64, bool)]) -> Recording {
    let config = BfcConfig::new(Bytes::mib(1)).with_allow_growth(false);
    let pool: Arc<dyn Allocator> =
        Arc::new(BfcAllocator::new("cpu:0", Arc::new(AddressOnlyMemory::new()), config));
    let tracker = Tracker::new();
    tracker.start_log(Bytes::mib(16));
    let held = Allocation::new(&tracker.begin("page-op").track(&pool), &Request::new(1000)).unwrap();
    let base = held.block().address;
    for &(address, bytes, taken) in changes {
        let region = Span { address: base + address, bytes };
        tracker.record_region("cpu:0", pool.memory_kind(), region, taken);
    }
    drop(held);
    tracker.take_log()
}

#[test]
fn reserved_bytes_follow_regions_that_return_in_other_pieces() {
    const MIB: u64 = bfc_core::MIB;
    // The pool itself reports its first region, of 1 MiB.
    let recording = record_regions(&[
        (2 * MIB, 2 * MIB, true),
        // A repeated report changes nothing.
        (2 * MIB, 2 * MIB, true),
        (3 * MIB, 3 * MIB, true),
        (MIB / 2, 3 * MIB, false),
        (4 * MIB, 0, false),
        (8 * MIB, MIB, false),
    ]);
    let data = data_of(&page_of(&recording));
    let reserved = &data["reserved"];
    let mib = |halves: u64| halves * MIB / 2;
    assert_eq!(sums(&reserved["bytes"]), [2, 6, 6, 10, 6, 6, 6].map(mib));
    assert_eq!((&reserved["points"], &reserved["peak_bytes"]), (&7.into(), &mib(10).into()));
    let gap = &reserved["gap"];
    assert_eq!((&gap["reserved"], &gap["live"]), (&mib(6).into(), &0.into()));

    let regions = data["map"]["regions"].as_array().unwrap();
    let end = recording.end_ns() + 1;
    let at_end: Vec<[u64; 2]> = regions
        .iter()
        .filter(|region| region[1] == end)
        .map(|region| [&region[2], &region[3]].map(|number| number.as_u64().unwrap()))
        .collect();
    assert_eq!(at_end, [[mib(8), mib(4)], [0, mib(1)], [mib(7), mib(1)]]);
    let of_stream = regions.iter().filter(|region| region[4] == 0).count();
    assert_eq!(of_stream, 2, "{regions:?}");
    assert_eq!(
        (&data["map"]["has_all_regions"], &data["map"]["moments_ns"]),
        (&true.into(), &Value::Array(Vec::new()))
    );
}

#[test]
fn a_pool_without_regions_has_no_reserved_bytes() {
    let mut composer = crate::record::Composer::new(
        crate::record::RecordingLimits::default(),
        highwater_files::lean::HeldMemory::new(bfc_core::MIB),
    );
    composer.select_pool("heap", "host").unwrap();
    let block = crate::record::NewBlock { bytes: 1000, owner: 0, category: Category::Output };
    composer.alloc(block).unwrap();
    let (recording, _) = composer.finish(crate::RunFacts::new("heap")).unwrap();
    let data = data_of(&page_of(&recording));
    assert!(data["reserved"].is_null() && data["map"]["regions"].as_array().unwrap().is_empty());
}

#[test]
fn holders_of_the_peak_have_their_categories() {
    let recording = record("page-op", &[1000, 70_000, 256, 3000, 2000]);
    let data = data_of(&page_of(&recording));
    let holders = data["holders"].as_array().unwrap();
    let bytes: Vec<u64> = holders.iter().map(|row| row["bytes"].as_u64().unwrap()).collect();
    assert!(bytes.is_sorted_by(|a, b| a >= b));
    assert_eq!(bytes.iter().sum::<u64>(), recording.peak().unwrap().bytes);
    let parts = data["report"]["peak_parts"]["categories"].as_array().unwrap();
    for part in parts {
        let category = Category::ALL.iter().position(|category| part["name"] == category.name()).unwrap();
        let of_category = holders.iter().filter(|row| row["category"] == category);
        assert_eq!(of_category.map(|row| row["bytes"].as_u64().unwrap()).sum::<u64>(), part["bytes"]);
    }
}

#[test]
fn only_the_page_of_an_allocator_has_its_facts() {
    let recording = record("page-op", &[1000]);
    assert!(data_of(&page_of(&recording)).get("allocator").is_none());
    let mut facts = AllocatorFacts::new("PyTorch");
    facts.streams.push("</script>".to_owned());
    facts.gaps.push(GapRow::new("end", 7, 300, 100).with_cause("rounding", 200));
    facts.options.push(ReplayedSettings::new("", None));
    let mut page = Vec::new();
    write_page_with_allocator(&recording, None, &facts, &mut page).unwrap();
    let page = String::from_utf8(page).unwrap();
    assert_eq!(page.matches("</script>").count(), 2);
    let found = &data_of(&page)["allocator"];
    assert_eq!(found["gaps"][0]["causes"], serde_json::json!([{ "name": "rounding", "bytes": 200 }]));
    assert!(found["options"][0]["peak_reserved"].is_null());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn a_sample_has_all_spans_of_its_moments(
        sizes in prop::collection::vec(1_u64..9000, 1..100),
        spans in prop::collection::vec((0_u64..1200, 0_u64..300), 1..200),
        most in 0_usize..60,
        chosen in prop::collection::vec(0_u64..1000, 0..3),
    ) {
        let recording = record("page-op", &sizes);
        let end = recording.end_ns() + 1;
        let at = |thousandth: u64| (u128::from(end) * u128::from(thousandth) / 1000) as u64;
        let spans: Vec<(u64, u64)> = spans.iter().map(|&(from, life)| (at(from), at(from + life))).collect();
        let moments = Moments::new(&recording, chosen.into_iter().map(at).collect());
        let mut sample = Sample::new(most, 0);
        for &(from, to) in &spans {
            sample.offer(moments.level(from, to), (from, to));
        }
        let level = sample.level();
        let kept: Vec<(u64, u64)> = sample.into_spans().collect();
        prop_assert!(kept.len() <= most);
        prop_assert!(level > 0 || kept == spans);
        for moment in moments.times(level) {
            let covers = |&&(from, to): &&(u64, u64)| from <= moment && moment < to;
            let held: Vec<_> = spans.iter().filter(covers).collect();
            prop_assert_eq!(kept.iter().filter(covers).collect::<Vec<_>>(), held);
        }
    }

    #[test]
    fn downsampled_intervals_keep_their_extremes(
        sizes in prop::collection::vec(1_u64..9000, 1..200),
        intervals in 1_usize..40,
    ) {
        let recording = record("page-op", &sizes);
        let moments: Vec<Moment> = recording.timeline().collect();
        let kept = envelope(&recording, intervals);
        prop_assert!(kept.len() <= 2 * intervals + Category::COUNT + 1);
        prop_assert!(kept.is_sorted_by_key(|moment| moment.event));
        prop_assert_eq!(kept.last(), moments.last());
        let length = moments.len().div_ceil(intervals).max(1);
        let bytes = |moment: &Moment| moment.bytes;
        for interval in moments.chunks(length) {
            let within = |moment: &&Moment| interval.contains(moment);
            let of_kept = kept.iter().filter(within).map(bytes);
            prop_assert_eq!(of_kept.clone().max(), interval.iter().map(bytes).max());
            prop_assert_eq!(of_kept.min(), interval.iter().map(bytes).min());
        }
        for category in Category::ALL.map(Category::index) {
            let most = |moments: &[Moment]| moments.iter().map(|moment| moment.categories[category]).max();
            prop_assert_eq!(most(&kept), most(&moments));
        }
    }

    #[test]
    fn downsampling_keeps_ends_and_extremes(
        values in prop::collection::vec(-5_i32..5, 0..120),
        breaks in prop::collection::hash_set(1_usize..120, 0..40),
        intervals in 1_usize..30,
    ) {
        let points: Vec<CurvePoint> = values
            .iter()
            .enumerate()
            .map(|(index, &value)| CurvePoint { at_ns: index as u64, step: index as u64, value: value.into() })
            .collect();
        let breaks = (1..points.len()).filter(|index| breaks.contains(index)).collect();
        let curve = Curve { name: "loss".to_owned(), points, breaks };
        let (kept, breaks) = curves::downsample(&curve, intervals);
        let points = curve.points;
        prop_assert!(kept.len() <= 4 * intervals + 2 && breaks.len() <= intervals);
        for &index in &breaks {
            prop_assert!(curve.breaks.contains(&(kept[index].step as usize)));
            prop_assert_eq!(kept[index - 1].step + 1, kept[index].step);
        }
        prop_assert!(kept.is_sorted_by_key(|point| point.step));
        prop_assert_eq!((kept.first(), kept.last()), (points.first(), points.last()));
        for interval in points.chunks(points.len().div_ceil(intervals).max(1)) {
            let within: Vec<f64> =
                kept.iter().filter(|point| interval.contains(point)).map(|point| point.value).collect();
            for extreme in [f64::min, f64::max] {
                let of = |values: &mut dyn Iterator<Item = f64>| values.reduce(extreme);
                prop_assert_eq!(
                    of(&mut within.iter().copied()),
                    of(&mut interval.iter().map(|point| point.value))
                );
            }
        }
    }

    #[test]
    fn a_cell_is_as_full_as_its_blocks_make_it(
        blocks in prop::collection::vec((0_u64..1000, 0_u64..400, 0_u64..1000, 1_u64..300, 0_usize..3), 1..30),
    ) {
        const COLUMNS: usize = 7;
        const ROWS: usize = 5;
        let mut raster = Raster::new(COLUMNS, ROWS, 1000, 1000);
        let mut full = vec![[0.0; 3]; COLUMNS * ROWS];
        for &(from_ns, life, at, bytes, category) in &blocks {
            let rectangle = Rectangle {
                from_ns,
                to_ns: (from_ns + life).min(1000),
                at,
                bytes: bytes.min(1000 - at),
                category: Category::ALL[category],
                owner: 0,
            };
            raster.add(&rectangle);
            let covered = |low: u64, high: u64, cell: usize, cells: usize| {
                let (start, width) = (cell as f64 * 1000.0 / cells as f64, 1000.0 / cells as f64);
                ((high as f64).min(start + width) - (low as f64).max(start)).max(0.0) / width
            };
            for (index, full) in full.iter_mut().enumerate() {
                full[category] += covered(from_ns, rectangle.to_ns, index % COLUMNS, COLUMNS)
                    * covered(at, at + rectangle.bytes, index / COLUMNS, ROWS);
            }
        }
        for (cell, full) in raster.cells().into_iter().zip(full) {
            let sum: f64 = full.iter().sum();
            if sum < 1e-5 {
                prop_assert!(sum > 1e-7 || cell == 0);
                continue;
            }
            let share = sum.min(1.0) * 15.0;
            let level = f64::from(cell % 16);
            prop_assert!(level >= share - 1e-3 && level <= share + 1.001, "{cell} for {full:?}");
            let most = full.into_iter().fold(0.0, f64::max);
            prop_assert!(full[usize::from(cell / 16) - 1] >= most - 1e-3);
        }
    }

    #[test]
    fn runs_are_the_cells_again(cells in prop::collection::vec(0_u8..3, 0..100)) {
        let runs = runs(&cells);
        let again: Vec<u8> =
            runs.chunks(2).flat_map(|run| vec![run[0] as u8; run[1] as usize]).collect();
        prop_assert_eq!(again, cells);
    }
}

#[test]
fn a_retagged_block_is_drawn_once_for_each_category() {
    let pool: Arc<dyn Allocator> = Arc::new(BfcAllocator::new(
        "cpu:0",
        Arc::new(AddressOnlyMemory::new()),
        BfcConfig::new(Bytes::mib(1)),
    ));
    let tracker = Tracker::new();
    tracker.start_log(Bytes::mib(1));
    let run = tracker.begin("page-op");
    let request = Request::new(1000).with_category(Category::Output);
    let block = Allocation::new(&run.track(&pool), &request).unwrap();
    let tag = bfc_core::Tag { owner: run.owner(), category: Category::Activation };
    block.allocator().retag(&block.block(), tag).unwrap();
    drop(block);
    let recording = tracker.take_log();
    let mut found = Vec::new();
    blocks::rectangles(&recording, &Space::of(&recording), |rectangle| found.push(rectangle));
    let categories: Vec<Category> = found.iter().map(|rectangle| rectangle.category).collect();
    assert_eq!(categories, [Category::Output, Category::Activation]);
    assert_eq!(found[0].to_ns, found[1].from_ns);
    assert!(recording.events().iter().any(|event| matches!(event.kind, EventKind::Retag(_))));
}

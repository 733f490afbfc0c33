use std::sync::{Arc, Mutex};

use bfc_core::{
    AddressOnlyMemory, Allocation, Allocator, BfcAllocator, BfcConfig, Bytes, Category, Contents, KIB, MIB,
    Request,
};

use super::*;
use crate::{Recording, Tracker, module};
use bfc_core::{Holdings, OwnerId, Tag, Verdict};

fn pool() -> Arc<dyn Allocator> {
    let config = BfcConfig::new(Bytes::mib(1)).with_allow_growth(false).with_retry(false);
    Arc::new(BfcAllocator::new("cpu:0", Arc::new(AddressOnlyMemory::new()), config))
}

/// Takes activations until there is no room, and returns them with the error.
fn fill(tracker: &Arc<Tracker>, pool: &Arc<dyn Allocator>) -> (Vec<Allocation>, bfc_core::AllocError) {
    let _scope = module("oom-net.block0");
    let run = tracker.begin("matmul");
    let contents = Contents { extents: &[300, 256], element: "f32" };
    let request = Request::new(300 * KIB).with_category(Category::Activation).with_contents(contents);
    let mut held = Vec::new();
    loop {
        match Allocation::new(&run.track(pool), &request) {
            Ok(allocation) => held.push(allocation),
            Err(error) => return (held, error),
        }
    }
}

#[test]
fn a_report_names_op_module_shape_figures_and_holders() {
    let (tracker, pool) = (Tracker::new(), pool());
    let (held, error) = fill(&tracker, &pool);
    let report = error.out_of_memory().unwrap();
    assert_eq!(report.tag.owner.path(), "oom-net.block0.matmul");
    assert_eq!(report.subject.as_ref().unwrap().to_string(), "[300, 256] of f32");
    assert_eq!((report.in_use, report.free, report.limit), (900 * KIB, 124 * KIB, Some(MIB)));
    assert_eq!(report.held_by()[0], ("ops", vec![("oom-net.block0.matmul".to_owned(), 900 * KIB)]));
    let text = report.details();
    for part in [
        "300.00 KiB (activation) requested by oom-net.block0.matmul for [300, 256] of f32",
        "yes  without the activations of oom-net.block0",
        "held by modules\n      900.00 KiB  oom-net.block0",
        "held by categories\n      900.00 KiB  activation",
        "\n  largest_fit finds the largest batch that fits, by dry runs",
    ] {
        assert!(text.contains(part), "{part} is not in {text}");
    }
    drop(held);
}

#[test]
fn a_report_is_the_same_after_json() {
    let (held, error) = fill(&Tracker::new(), &pool());
    let report = error.out_of_memory().unwrap();
    let json = serde_json::to_string(report).unwrap();
    assert_eq!(&serde_json::from_str::<OomReport>(&json).unwrap(), report);
    for part in [
        r#""tag":{"owner":"oom-net.block0.matmul","category":"activation"}"#,
        r#""verdict":"exhausted""#,
        r#""holdings":[{"owner":"oom-net.block0.matmul","category":"activation","bytes":921600,"blocks":3}]"#,
    ] {
        assert!(json.contains(part), "{part} is not in {json}");
    }
    drop(held);
}

#[test]
fn regions_are_in_the_json_and_on_the_page() {
    let config = BfcConfig::new(Bytes::mib(1)).with_first_region(Bytes::kib(600)).with_retry(false);
    let pool: Arc<dyn Allocator> =
        Arc::new(BfcAllocator::new("cpu:0", Arc::new(AddressOnlyMemory::new()), config));
    let _held = Allocation::new(&pool, &Request::new(600 * KIB)).unwrap();
    let error = Allocation::new(&pool, &Request::new(500 * KIB)).unwrap_err();
    let report = error.out_of_memory().unwrap();
    let note = "the remaining 424.00 KiB would be a separate region, too small for 500.00 KiB";
    assert!(oom_page(report).contains(note));

    let json = serde_json::to_value(report).unwrap();
    assert_eq!(json["regions"], serde_json::json!({ "regions": 1, "unreserved": 424 * KIB, "tail": null }));
    assert_eq!(json["what_if"]["one_region"], false);
    assert_eq!(&serde_json::from_value::<OomReport>(json.clone()).unwrap(), report);
    // Both figures are optional.
    let mut older = json;
    older.as_object_mut().unwrap().remove("regions");
    older["what_if"].as_object_mut().unwrap().remove("one_region");
    let older: OomReport = serde_json::from_value(older).unwrap();
    assert_eq!((older.regions, older.what_if.one_region), (None, None));
}

#[test]
fn the_page_stands_alone_and_no_name_can_end_an_element() {
    let mut report = OomReport::new("</p><script>", &Request::new(1), Verdict::Exhausted);
    let owner = OwnerId::intern(OwnerId::ROOT, "<b>\"&");
    report.holdings = Holdings::sum([(Tag { owner, category: Category::Output }, 1)]);
    let page = oom_page(&report);
    assert!(!page.contains("<b>") && !page.contains("<script") && page.contains("&lt;b&gt;&quot;&amp;"));
    assert!(page.contains("<td>(outside of modules)</td>"), "{page}");
    for sign in ["http:", "https:", "src=", "<link", "@import", "url("] {
        assert!(!page.contains(sign), "{sign}");
    }
}

#[test]
fn a_recording_has_one_report_for_each_failure() {
    let (tracker, pool) = (Tracker::new(), pool());
    tracker.start_log(Bytes::mib(1));
    // A false claim of freed memory does not turn one failure into several.
    tracker.last_resort().before_giving_up(|_| true);
    let reports = Arc::<Mutex<Vec<OomReport>>>::default();
    let list = Arc::clone(&reports);
    tracker.last_resort().on_failure(move |report| list.lock().unwrap().push(report.clone()));
    for _ in 0..100 {
        drop(fill(&tracker, &pool));
    }
    let recording: Recording = tracker.take_log();
    let reports = reports.lock().unwrap();
    assert_eq!((recording.failures().len(), reports.len()), (100, 100));
    assert_eq!(recording.report_of(0), Some(&reports[0]));
    assert_eq!(reports[0].retries, 4);
    let reports = (0..100).filter(|&failure| recording.report_of(failure).is_some()).count();
    assert_eq!(reports, 64, "a run that fails over and over fills no recording");
}

#[test]
fn memory_freed_by_a_callback_serves_the_request() {
    let (tracker, pool) = (Tracker::new(), pool());
    tracker.start_log(Bytes::mib(1));
    let cache = Arc::new(Mutex::new(vec![Allocation::new(&pool, &Request::new(900 * KIB)).unwrap()]));
    let kept = Arc::clone(&cache);
    tracker.last_resort().before_giving_up(move |_| kept.lock().unwrap().pop().is_some());
    let run = tracker.begin("matmul");
    let allocation = Allocation::new(&run.track(&pool), &Request::new(500 * KIB)).unwrap();
    assert!(cache.lock().unwrap().is_empty());
    assert_eq!((tracker.last_resort().rescued(), tracker.last_resort().failures()), (1, 0));
    assert_eq!(tracker.take_log().failures().len(), 0);
    drop(allocation);
}

use std::sync::{Arc, Mutex};

use bfc_core::{
    AddressOnlyMemory, Allocation, Allocator, BfcAllocator, BfcConfig, Bytes, Category, Contents, KIB, MIB,
    Request,
};

use super::*;
use crate::{Recording, Tracker, module};

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
fn the_data_names_op_scope_shape_figures_holders_and_answers() {
    let (tracker, pool) = (Tracker::new(), pool());
    let (held, error) = fill(&tracker, &pool);
    let report = OutOfMemory::from(error.out_of_memory().unwrap());
    assert_eq!((&report.scope[..], &report.op[..]), ("oom-net.block0", "matmul"));
    assert_eq!((report.shape.as_deref(), report.dtype.as_deref()), (Some(&[300, 256][..]), Some("f32")));
    assert_eq!((report.in_use, report.free, report.limit), (900 * KIB, 124 * KIB, Some(MIB)));
    assert_eq!(report.ops, [Holder { name: "oom-net.block0.matmul".to_owned(), bytes: 900 * KIB }]);
    assert_eq!(report.scopes[0].name, "oom-net.block0");
    assert_eq!(report.categories[0].name, "activation");
    let checkpoint =
        report.what_if.iter().find(|answer| answer.what.contains("activations of oom-net.block0"));
    assert!(checkpoint.unwrap().fits);
    let text = report.to_string();
    for part in [
        "300.00 KiB (activation) asked of cpu:0 by oom-net.block0.matmul for [300, 256] of f32",
        "yes  without",
        "held by modules\n      900.00 KiB  oom-net.block0",
        "\n  largest_fit finds the largest batch that fits, by dry runs",
    ] {
        assert!(text.contains(part), "{part} is not in {text}");
    }
    drop(held);
}

#[test]
fn memory_outside_of_modules_is_named_so() {
    let holder = |name: &str| vec![Holder { name: name.to_owned(), bytes: 1024 }];
    let report = OutOfMemory {
        ops: holder("relu"),
        scopes: holder(""),
        limit_origin: Some("here".to_owned()),
        ..OutOfMemory::default()
    };
    let text = report.to_string();
    assert!(text.contains("held by ops\n        1.00 KiB  relu"), "{text}");
    assert!(text.contains("held by modules\n        1.00 KiB  (outside of modules)"), "{text}");
    assert!(!text.contains("largest_fit"), "there is no batch: {text}");
    assert!(report.to_html().contains("<td>(outside of modules)</td>"));
    let unowned = OutOfMemory { ops: holder(""), limit: Some(1024), ..report };
    let text = unowned.to_string();
    assert!(text.contains("(outside of ops)") && text.contains("1.00 KiB, here"), "{text}");
}

#[test]
fn json_is_read_back_as_it_was_and_missing_fields_are_defaults() {
    let (held, error) = fill(&Tracker::new(), &pool());
    let report = OutOfMemory::from(error.out_of_memory().unwrap());
    assert_eq!(serde_json::from_str::<OutOfMemory>(&report.to_json()).unwrap(), report);
    assert_eq!(serde_json::from_str::<OutOfMemory>("{}").unwrap(), OutOfMemory::default());
    drop(held);
}

#[test]
fn the_page_stands_alone_and_no_name_can_end_an_element() {
    let holder = Holder { name: "<b>\"&".to_owned(), bytes: 1 };
    let report =
        OutOfMemory { ops: vec![holder], advice: "</p><script>".to_owned(), ..OutOfMemory::default() };
    let page = report.to_html();
    assert!(!page.contains("<b>") && !page.contains("<script") && page.contains("&lt;b&gt;&quot;&amp;"));
    for sign in ["http:", "https:", "src=", "<link", "@import", "url("] {
        assert!(!page.contains(sign), "{sign}");
    }
}

#[test]
fn a_short_form_keeps_to_its_size_by_naming_fewer_holders() {
    let holders = (0..100).map(|index| Holder { name: "n".repeat(100), bytes: index }).collect();
    let report = OutOfMemory { ops: holders, ..OutOfMemory::default() };
    let short = |most| {
        let json = report.to_short_json(12, most)?;
        assert!(json.len() <= most);
        Some(serde_json::from_str::<OutOfMemory>(&json).unwrap().ops.len())
    };
    let with_one = report.to_short_json(1, usize::MAX).unwrap().len();
    let sizes = [100_000, with_one, with_one - 1, 100];
    assert_eq!(sizes.map(short), [Some(12), Some(1), Some(0), None]);
}

#[test]
fn a_recording_has_the_report_of_each_failure_and_says_each_once() {
    let (tracker, pool) = (Tracker::new(), pool());
    tracker.start_log(Bytes::mib(1));
    // Somebody who claims to have freed something makes no more failures of one.
    tracker.last_resort().before_giving_up(|_| true);
    let told = Arc::<Mutex<Vec<OutOfMemory>>>::default();
    let list = Arc::clone(&told);
    tracker.last_resort().on_failure(move |report| list.lock().unwrap().push(report.into()));
    for _ in 0..100 {
        drop(fill(&tracker, &pool));
    }
    let recording: Recording = tracker.take_log();
    let told = told.lock().unwrap();
    assert_eq!((recording.failures().len(), told.len()), (100, 100));
    assert_eq!(recording.report_of(0), Some(&told[0]));
    assert_eq!(told[0].retries, 4);
    let reports = (0..100).filter(|&failure| recording.report_of(failure).is_some()).count();
    assert_eq!(reports, 64, "a run that fails over and over fills no recording");
}

#[test]
fn what_a_callback_drops_serves_the_request_and_nothing_is_recorded_as_failed() {
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

//! Names from programs and files reach a terminal or a browser: no report, table, page or error has a control character.

use std::fmt::Display;
use std::io::Read;
use std::sync::Arc;

use base64::prelude::{BASE64_STANDARD, Engine};
use bfc_core::{
    AddressOnlyMemory, Allocation, Allocator, BfcAllocator, BfcConfig, Bytes, OwnerId, PackingOptions,
    Request, is_printable, printable_json,
};
use flate2::read::ZlibDecoder;
use highwater_files::{PackingLimits, parse_packing};
use highwater_traces::{ExportFormat, ReadOptions, Step, Trace, export, packing_of, read_recording, replay};
use highwater_tracking::table::{Table, plain, shorten};
use highwater_tracking::{
    Budget, PlanChart, PlanRow, RankComparison, RankReport, Recording, RecordingLimits, Report, ReportDiff,
    RunFacts, TextOptions, Tracker, TrainingLog, TrainingLogLimits, module, oom_page, write_page,
    write_plans_page,
};

/// Changes the color and the title of a terminal, returns to the start of the line, and reverses the text after it.
const EVIL: &str = "x\x1b[31m\x1b]0;t\x07\r\u{202e}\u{9b}2J\u{2066}\u{200b}é";

/// A profile of pprof whose unit, function and pool set the title of a terminal, clear it and end an element of HTML.
const PROFILE: &[u8] = include_bytes!("../data/control_characters.pb");

/// The same profile with a valid unit.
const NAMES: &[u8] = include_bytes!("../data/control_characters_in_names.pb");

/// Checks that a text has no control character but line ends.
#[track_caller]
fn clean(text: &impl Display) -> String {
    let text = text.to_string();
    let found = text.chars().find(|&letter| !is_printable(letter) && letter != '\n');
    assert_eq!(found, None, "{}", text.get(..2000).unwrap_or(&text));
    text
}

/// Checks that a text shows an escaped name.
#[track_caller]
fn check(text: &impl Display) {
    let text = clean(text);
    assert!(text.contains(r"\u{1b}"), "no name in {text}");
}

/// A run in which every name is evil: program, facts, mark, pool, module, op, layer and thread.
fn recording() -> Recording {
    let config = BfcConfig::new(Bytes::mib(1));
    let pool: Arc<dyn Allocator> =
        Arc::new(BfcAllocator::new(EVIL, Arc::new(AddressOnlyMemory::new()), config));
    let (tracker, path) = (Tracker::new(), tempfile::NamedTempFile::new().unwrap());
    let facts = RunFacts::new(EVIL).with(EVIL, EVIL).with("rank", 0).with("ranks", 1);
    tracker.start_recording(path.reopen().unwrap(), &facts).unwrap();
    tracker.mark(EVIL);
    let op: &'static str = EVIL;
    for _ in 0..3 {
        let _scope = module(EVIL);
        let _inner = module("inner");
        let run = tracker.begin(op);
        let kept = Allocation::new(&run.track(&pool), &Request::new(4096)).unwrap();
        let _ = Allocation::new(&run.track(&pool), &Request::new(2 << 20)).unwrap_err();
        std::mem::forget(kept);
    }
    tracker.finish_recording(std::slice::from_ref(&pool)).unwrap();
    Recording::read(std::io::BufReader::new(path.reopen().unwrap()), &RecordingLimits::default()).unwrap()
}

/// The recordings of this test: one of this crate, and that of another tool's file.
fn recordings() -> [Recording; 2] {
    [recording(), read_recording(NAMES, &ReadOptions::default()).unwrap()]
}

#[test]
fn reports_as_text_and_json() {
    for recording in recordings() {
        let report = Report::from_recording(&recording);
        check(&report);
        for (by_place, wide) in [(false, true), (true, false), (true, true)] {
            check(&report.text(TextOptions { top: 100, by_place, wide }));
        }
        check(&format!("{report:#}"));
        let json = clean(&printable_json(serde_json::to_string(&report).unwrap()));
        let value: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert_eq!(value, serde_json::to_value(&report).unwrap(), "JSON has the names themselves");
        let diff = ReportDiff::between(&report, &Report::default());
        clean(&printable_json(serde_json::to_string(&diff).unwrap()));
        let ranks = RankComparison::new(vec![RankReport::new(EVIL, 0, &report).unwrap()]).unwrap();
        clean(&ranks.text(TextOptions::default()));
        check(&ranks.text(TextOptions { wide: true, ..TextOptions::default() }));
    }
    let report = Report::from_recording(&recording());
    let rank = |facts: [(&str, &str); 2]| {
        let mut report = report.clone();
        if let Some(run) = &mut report.run {
            run.facts.more = facts.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec();
        }
        RankReport::new(EVIL, 0, &report)
    };
    check(&rank([("rank", EVIL), ("ranks", "1")]).unwrap_err());
    check(&rank([("rank", "7"), ("ranks", "1")]).unwrap_err());
    let of = |size| rank([("rank", "0"), ("ranks", size)]).unwrap();
    check(&RankComparison::new(vec![of("2"), of("2")]).unwrap_err());
    check(&RankComparison::new(vec![of("2"), of("3")]).unwrap_err());
}

#[test]
fn tables_and_charts() {
    let mut table = Table::new(&["name", EVIL]);
    table.line(EVIL, [EVIL.to_owned()]);
    check(&table);
    check(&plain(EVIL));
    clean(&shorten(EVIL));
    let mut plans = PlanChart::new(EVIL).with_chosen(0).with_measured(1, Some(0.5));
    plans.rows.push(PlanRow::new(EVIL, 1, 0.1, 1.0).with_limited_by(EVIL));
    check(&plans);
    let mut page = Vec::new();
    write_plans_page(&plans, &mut page).unwrap();
    check(&page_text(page));
}

/// A page with its data in place of their encoding.
fn page_text(page: Vec<u8>) -> String {
    let page = String::from_utf8(page).unwrap();
    let (before, rest) = page.split_once("id=\"data\"").unwrap();
    let (tag, rest) = rest.split_once('>').unwrap();
    let (data, after) = rest.split_once('<').unwrap();
    let data = BASE64_STANDARD.decode(data.trim()).unwrap();
    let mut text = String::new();
    ZlibDecoder::new(&data[..]).read_to_string(&mut text).unwrap();
    // The text that the browser shows.
    let value: serde_json::Value = serde_json::from_str(&text).unwrap();
    let mut texts = vec![before.to_owned(), tag.to_owned(), after.to_owned()];
    collect(&value, &mut texts);
    texts.join("\n").replace('\t', " ")
}

fn collect(value: &serde_json::Value, texts: &mut Vec<String>) {
    match value {
        serde_json::Value::String(text) => texts.push(text.clone()),
        serde_json::Value::Array(values) => values.iter().for_each(|value| collect(value, texts)),
        serde_json::Value::Object(fields) => fields.iter().for_each(|(name, value)| {
            texts.push(name.clone());
            collect(value, texts);
        }),
        _ => {}
    }
}

#[test]
fn pages_and_exports() {
    for recording in recordings() {
        let mut page = Vec::new();
        write_page(&recording, None, &mut page).unwrap();
        check(&page_text(page));
        for format in ExportFormat::ALL.into_iter().filter(|format| format.is_text()) {
            let mut out = Vec::new();
            export(&recording, format, &mut out).unwrap();
            let text = clean(&String::from_utf8(out).unwrap());
            assert!(format != ExportFormat::Svg || !text.contains("<script>"));
            if format.name().contains("json") || format.name().contains("chrome") {
                let _: serde_json::Value = serde_json::from_str(&text).unwrap();
            }
        }
    }
    let report = Report::from_recording(&recording());
    let report = report.failures[0].report.as_ref().unwrap();
    check(report);
    check(&report.details());
    check(&oom_page(report));
}

#[test]
fn budgets_owners_and_replays() {
    // Budgets apply to all tests of this process.
    let limited = format!("{EVIL}limited");
    let _budget = Budget::new(&limited, Bytes(16));
    let config = BfcConfig::new(Bytes::mib(1));
    let pool: Arc<dyn Allocator> =
        Arc::new(BfcAllocator::new(EVIL, Arc::new(AddressOnlyMemory::new()), config));
    check(&OwnerId::intern(OwnerId::ROOT, EVIL));
    let tracker = Tracker::new();
    let _scope = module(&limited);
    let run = tracker.begin("op");
    let error = Allocation::new(&run.track(&pool), &Request::new(1 << 20)).unwrap_err();
    check(&error);
    check(&format!("{error:?}"));
    let trace =
        Trace::parse(format!("# mark: {EVIL}\na 0 99999999 {EVIL}\n").as_bytes(), &Default::default());
    let trace = trace.unwrap();
    check(&replay(&trace, &*pool).unwrap_err());
    let step = Step::Marks { from: format!("{EVIL}absent"), to: "end".to_owned() };
    check(&packing_of(&trace, &step, &PackingOptions::default(), &mut |_| true).unwrap_err());
}

#[test]
fn errors_of_readers() {
    let read = |file: &[u8]| Trace::read(file, &ReadOptions::default());
    check(&read(PROFILE).unwrap_err());
    check(&read_recording(PROFILE, &ReadOptions::default()).unwrap_err());
    for file in [
        EVIL.to_owned(),
        format!("a 0 {EVIL} x\n"),
        format!("a {EVIL} 1 x\n"),
        format!("a 0 1@{EVIL} x\n"),
        format!("f {EVIL}\n"),
        format!("id,lower,upper,size\n1,0,{EVIL},3\n"),
        format!("id,lower,{EVIL},size\n1,0,2,3\n"),
        format!("Thread,Time,Action,Pointer,Size,Stream\n1,2,{EVIL},0x1,5,0\n"),
        format!("Thread,Time,Action,Pointer,Size,Stream\n1,2,allocate,{EVIL},5,0\n"),
        format!("{{\"traceEvents\": [{EVIL}\n"),
        format!("{{\"device_traces\": {EVIL}\n"),
        format!("{{\"{EVIL}\": 1}}\n"),
        format!("heap profile: 1: {EVIL}\n"),
    ] {
        if let Err(error) = read(file.as_bytes()) {
            clean(&error);
            clean(&format!("{error:?}"));
        }
        if let Err(error) = parse_packing(file.as_bytes(), &PackingLimits::default()) {
            clean(&error);
        }
        if let Err(error) = TrainingLog::read(file.as_bytes(), &TrainingLogLimits::default()) {
            clean(&error);
        }
        if let Err(error) = Recording::read(file.as_bytes(), &RecordingLimits::default()) {
            clean(&error);
        }
    }
    for line in [
        format!("{{\"step\": \"{}\"}}\n", EVIL.replace('\\', "")),
        format!("{EVIL}\n"),
        format!("[\"{EVIL}\"]\n"),
    ] {
        clean(&TrainingLog::read(line.as_bytes(), &TrainingLogLimits::default()).unwrap_err());
    }
}

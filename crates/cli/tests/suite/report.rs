//! `highwater report` and `highwater diff` as people run them.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;

use bfc_core::{AddressOnlyMemory, Allocation, Allocator, BfcAllocator, BfcConfig, Bytes, Category, Request};
use highwater_tracking::{Phase, RunFacts, Tracker, module, phase};
use serde_json::Value;
use tempfile::TempDir;

fn highwater(arguments: &[&str], files: &[&Path]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_highwater")).args(arguments).args(files).output().unwrap()
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// Records two layers, of which the second takes `bytes`.
fn record(directory: &TempDir, name: &str, bytes: u64) -> PathBuf {
    let path = directory.path().join(name);
    let config = BfcConfig::new(Bytes::mib(64));
    let pool: Arc<dyn Allocator> =
        Arc::new(BfcAllocator::new("cpu:0", Arc::new(AddressOnlyMemory::new()), config));
    let tracker = Tracker::new();
    tracker.start_recording(File::create(&path).unwrap(), &RunFacts::new("sample").with("seed", 3)).unwrap();
    let layer = |name, bytes| {
        let _scope = module(name);
        let run = tracker.begin("matmul");
        let request = Request::new(bytes).with_category(Category::Output);
        Allocation::new(&run.track(&pool), &request).unwrap()
    };
    let kept = [layer("net.fc1", 1024), layer("net.fc2", bytes)];
    drop(kept);
    tracker.finish_recording(&[pool]).unwrap().unwrap();
    path
}

#[test]
fn a_report_says_what_was_live_at_the_peak_and_who_held_it() {
    let directory = TempDir::new().unwrap();
    let run = record(&directory, "run.hwm", 3072);
    let output = highwater(&["report", "--by", "place"], &[&run]);
    assert!(output.status.success(), "{output:?}");
    let text = stdout(&output);
    let line = |start: &str| text.lines().find(|line| line.starts_with(start)).unwrap().to_owned();
    assert!(line("sample: 9 events in ").ends_with('s'));
    assert_eq!(line("seed"), "seed 3");
    assert!(line("peak: 4.00 KiB in use").ends_with("reached by net.fc2.matmul"));
    assert!(line("net.fc2.matmul").ends_with("75.0 %"));
    assert!(line("output").contains("100.0 %"));
    assert!(line("limit").ends_with("64.0 MiB") && line("peak in use").ends_with("4.00 KiB"));
    assert!(line("forward  ").ends_with("100.0 %"), "by phase");
    let wide = stdout(&highwater(&["report", "--by", "place", "--wide"], &[&run]));
    assert!(wide.contains("self peak") && wide.contains("live peak"), "{wide}");

    let output = highwater(&["report", "--json"], &[&run]);
    let json: Value = serde_json::from_str(&stdout(&output)).unwrap();
    assert_eq!(json["peak"]["bytes"], 4096);
    assert_eq!(json["places"][0]["scope"], "net.fc2");
    assert_eq!(json["pools"][0]["peak_in_use"], 4096);
    assert_eq!(json["run"]["facts"]["more"][0][1], "3");
    assert!(json["run"]["cut"].is_null());
}

#[test]
fn a_page_is_one_file_and_an_unwritable_path_is_named() {
    let directory = TempDir::new().unwrap();
    let run = record(&directory, "run.hwm", 3072);
    let page = directory.path().join("run.html");
    let output = highwater(&["report", "--html", page.to_str().unwrap()], &[&run]);
    assert!(output.status.success() && stdout(&output).contains("run.html: "), "{output:?}");
    assert!(fs::read_to_string(&page).unwrap().starts_with("<!doctype html>"));

    let nowhere = directory.path().join("none").join("run.html");
    let output = highwater(&["report", "--html", nowhere.to_str().unwrap()], &[&run]);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8(output.stderr).unwrap().contains("run.html: "));
}

#[test]
fn a_snapshot_with_and_without_events_has_a_page() {
    let directory = TempDir::new().unwrap();
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../traces/tests/data");
    for name in ["pytorch-expandable", "pytorch-without-events"] {
        let page = directory.path().join(name).with_extension("html");
        let snapshot = data.join(name).with_extension("pickle");
        let output = highwater(&["report", "--html", page.to_str().unwrap()], &[&snapshot]);
        assert!(output.status.success() && stdout(&output).contains(".html: "), "{output:?}");
        let page = fs::read_to_string(&page).unwrap();
        assert!(page.starts_with("<!doctype html>") && page.ends_with("</html>\n"));
    }
}

#[test]
fn a_page_shows_the_log_and_a_bad_log_is_refused() {
    let directory = TempDir::new().unwrap();
    let run = record(&directory, "run.hwm", 3072);
    let at = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    let (page, log) = (at("run.html"), at("run.jsonl"));
    let good = "{\"step\":0,\"seconds\":0.1,\"loss\":2.5}\n";
    fs::write(&log, good.repeat(3)).unwrap();
    let output = highwater(&["report", "--html", &page, "--log", &log], &[&run]);
    assert!(output.status.success() && stdout(&output).contains("run.html: "), "{output:?}");
    let with_log = fs::read(&page).unwrap();
    assert!(highwater(&["report", "--html", &page], &[&run]).status.success());
    assert_ne!(fs::read(&page).unwrap(), with_log);

    let before = fs::read(&page).unwrap();
    fs::write(&log, format!("{good}{{\"step\":1}}\n")).unwrap();
    let output = highwater(&["report", "--html", &page, "--log", &log], &[&run]);
    assert_eq!(output.status.code(), Some(2));
    let message = String::from_utf8(output.stderr).unwrap();
    assert!(
        message.ends_with("run.jsonl: line 2: \"seconds\" must be a number from 0, found nothing\n"),
        "{message}"
    );
    assert_eq!(fs::read(&page).unwrap(), before, "the page that was there stays");
    let output = highwater(&["report", "--html", &page, "--log", &at("none.jsonl")], &[&run]);
    assert_eq!(output.status.code(), Some(2));
    assert!(
        !highwater(&["report", "--log", &log], &[&run]).status.success(),
        "there is no page to show it on"
    );
}

#[test]
fn a_report_takes_the_peak_apart() {
    let directory = TempDir::new().unwrap();
    let run = record(&directory, "run.hwm", 3072);
    let text = stdout(&highwater(&["report"], &[&run]));
    let (_, apart) = text.split_once("the peak without each of its holders").unwrap();
    let line = apart.lines().find(|line| line.starts_with("net.fc2.matmul")).unwrap();
    assert_eq!(line.matches("3.00 KiB").count(), 2, "{line}");
    let json: Value = serde_json::from_str(&stdout(&highwater(&["report", "--json"], &[&run]))).unwrap();
    assert_eq!(json["peak_parts"]["places"][0]["next_peak"], 1024);
}

#[test]
fn a_report_on_a_cut_file_says_where_the_cut_is() {
    let directory = TempDir::new().unwrap();
    let run = record(&directory, "run.hwm", 3072);
    let whole = fs::read(&run).unwrap();
    fs::write(&run, &whole[..whole.len() - 1]).unwrap();
    let output = highwater(&["report"], &[&run]);
    assert!(output.status.success() && stdout(&output).contains("peak: 4.00 KiB"));
    assert!(String::from_utf8(output.stderr).unwrap().contains("the file ends within a block"));
}

#[test]
fn every_command_that_reads_a_cut_file_says_so_and_which() {
    let directory = TempDir::new().unwrap();
    let (run, cut) = (record(&directory, "run.hwm", 3072), record(&directory, "cut.hwm", 3072));
    let whole = fs::read(&run).unwrap();
    fs::write(&cut, &whole[..whole.len() - 1]).unwrap();
    let packing = directory.path().join("packing");
    let commands: &[(&[&str], &[&Path])] = &[
        (&["diff"], &[&run, &cut]),
        (&["diff"], &[&cut, &run]),
        (&["what-if", "--policy", "bfc"], &[&cut]),
        (&["replay"], &[&run, &cut]),
        (&["pack", "-o", packing.to_str().unwrap()], &[&cut]),
    ];
    for &(command, files) in commands {
        let output = highwater(command, files);
        assert!(output.status.success(), "{command:?}");
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(said.starts_with(&format!("highwater: {}: read up to byte ", cut.display())), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
    }
}

#[test]
fn what_is_no_recording_is_refused_with_the_place() {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("run.hwm");
    fs::write(&path, "# a comment\nb 0 100 x\n").unwrap();
    let empty = directory.path().join("empty.trace");
    fs::write(&empty, "# no events\n").unwrap();
    for command in [vec!["report"], vec!["diff", empty.to_str().unwrap()]] {
        let output = highwater(&command, &[&path]);
        assert_eq!(output.status.code(), Some(2));
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(said.contains("line 2: expected `a ID BYTES LABEL`"), "{said}");
    }
}

#[test]
fn a_diff_compares_files_of_different_tools() {
    let directory = TempDir::new().unwrap();
    let (rmm, memray) = (directory.path().join("rmm.csv"), directory.path().join("memray.csv"));
    fs::write(&rmm, "Thread,Time,Action,Pointer,Size,Stream\n1,0:0:0.1,allocate,0x10,1024,0\n").unwrap();
    let header = "allocator,num_allocations,size,tid,thread_name,stack_trace";
    fs::write(&memray, format!("{header}\nMALLOC,1,3072,1,m,f;/a/b.py;2\n")).unwrap();
    let text = stdout(&highwater(&["diff"], &[&rmm, &memray]));
    assert!(text.starts_with("peak: 1.00 KiB before, 3.00 KiB after, +2.00 KiB\n"), "{text}");
    for (holder, change) in [("f b.py:2", "+3.00 KiB"), ("thread 1 stream 0", "-1.00 KiB")] {
        assert!(text.lines().any(|line| line.starts_with(holder) && line.contains(change)), "{text}");
    }
}

#[test]
fn a_diff_names_what_moved_the_peak_first() {
    let directory = TempDir::new().unwrap();
    let (before, after) = (record(&directory, "a.hwm", 2048), record(&directory, "b.hwm", 8192));
    let text = stdout(&highwater(&["diff"], &[&before, &after]));
    assert!(text.starts_with("peak: 3.00 KiB before, 9.00 KiB after, +6.00 KiB\n"), "{text}");
    assert!(
        text.lines().any(|line| line.starts_with("net.fc2.matmul") && line.contains("+6.00 KiB")),
        "{text}"
    );
    assert!(!text.contains("fc1"), "{text}");

    let json: Value =
        serde_json::from_str(&stdout(&highwater(&["diff", "--json"], &[&before, &after]))).unwrap();
    assert_eq!(json["places"][0]["after"]["scope"], "net.fc2");
    assert_eq!(json["places"][0]["after"]["peak_bytes"], 8192);

    let same = stdout(&highwater(&["diff"], &[&before, &before]));
    assert_eq!(same, "the runs have the same figures\n");
}

#[test]
fn a_report_shows_failed_requests_and_remedies() {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("oom.hwm");
    let config = BfcConfig::new(Bytes::mib(1)).with_allow_growth(false);
    let pool: Arc<dyn Allocator> =
        Arc::new(BfcAllocator::new("cpu:0", Arc::new(AddressOnlyMemory::new()), config));
    let tracker = Tracker::new();
    tracker.start_recording(File::create(&path).unwrap(), &RunFacts::new("sample")).unwrap();
    let layer = || {
        let _scope = module("net.fc1");
        let run = tracker.begin("matmul");
        Allocation::new(&run.track(&pool), &Request::new(700 << 10).with_category(Category::Activation))
    };
    let kept = layer().unwrap();
    layer().unwrap_err();
    drop(kept);
    tracker.finish_recording(&[pool]).unwrap().unwrap();

    let text = stdout(&highwater(&["report"], &[&path]));
    for part in [
        "requests that ran out of memory: 1\n",
        "700.00 KiB (activation) requested by net.fc1.matmul\n",
        "yes  without the activations of net.fc1 (700.00 KiB)\n",
    ] {
        assert!(text.contains(part), "{part:?} is not in {text}");
    }
    let json: Value = serde_json::from_str(&stdout(&highwater(&["report", "--json"], &[&path]))).unwrap();
    assert_eq!(json["failures"][0]["report"]["in_use"], 700 << 10);
    assert_eq!(json["failures"][0]["report"]["verdict"], "exhausted");
}

/// Records ten steps of a deep network that keeps `bytes` of each step.
fn record_leak(directory: &TempDir, name: &str, bytes: u64) -> PathBuf {
    let path = directory.path().join(name);
    let config = BfcConfig::new(Bytes::mib(64));
    let source = Arc::new(AddressOnlyMemory::new());
    let pool: Arc<dyn Allocator> = Arc::new(BfcAllocator::new("cpu:0", source, config));
    let tracker = Tracker::new();
    tracker.start_recording(File::create(&path).unwrap(), &RunFacts::new("sample")).unwrap();
    let _scope = module("encoder.blocks.11.attention.query_projection_of_the_decoder");
    let take = |op, bytes| {
        let run = tracker.begin(op);
        Allocation::new(&run.track(&pool), &Request::new(bytes)).unwrap()
    };
    let mut kept = Vec::new();
    for _ in 0..10 {
        kept.push(take("linear_gelu_tanh", bytes));
        let backward = phase(Phase::Backward);
        drop(take("linear_gelu_tanh", 512));
        drop(backward);
        let _phase = phase(Phase::Optimizer);
        drop(take("adamw", 1 << 20));
    }
    tracker.finish_recording(&[Arc::clone(&pool)]).unwrap().unwrap();
    path
}

#[test]
fn a_report_names_a_leak_and_its_age() {
    let directory = TempDir::new().unwrap();
    let run = record_leak(&directory, "run.hwm", 2048);
    let text = stdout(&highwater(&["report"], &[&run]));
    let (_, leak) = text.split_once("memory that grows over 10 steps").unwrap();
    let line = leak.lines().find(|line| line.contains("linear_gelu_tanh")).unwrap();
    let cells: Vec<&str> = line.split("  ").filter(|cell| !cell.is_empty()).map(str::trim).collect();
    assert_eq!(cells[1..], ["2.00 KiB", "1", "20.0 KiB"], "{line}");
    assert!(text.contains("1 to 10 steps"), "{text}");
    let json: Value = serde_json::from_str(&stdout(&highwater(&["report", "--json"], &[&run]))).unwrap();
    assert_eq!(json["growth"][0]["bytes_per_step"], 2048);
    assert_eq!(json["live"][0]["age_steps"], serde_json::json!([1, 10]));
    assert!(json["ops"][0]["time_ns"].as_u64().unwrap() > 0);
}

#[test]
fn tables_fit_100_columns_unless_wide() {
    let directory = TempDir::new().unwrap();
    let (run, other) =
        (record_leak(&directory, "run.hwm", 1 << 20), record_leak(&directory, "b.hwm", 3 << 20));
    let commands: &[(&[&str], &[&Path])] = &[
        (&["report", "--by", "place"], &[&run]),
        (&["diff"], &[&run, &other]),
        (&["what-if"], &[&run]),
        (&["replay", "--find-min", "--policy", "bfc,bfc-tensorflow,buddy,packed"], &[&run]),
        (&["top", "--once"], &[&run]),
    ];
    for &(command, files) in commands {
        let output = highwater(command, files);
        assert!(output.status.success(), "{command:?}: {output:?}");
        // The file's path is as long as the system's temporary folder.
        let text = stdout(&output).replace(&directory.path().display().to_string(), "");
        let is_table = |line: &&str| !["peak: ", "live "].iter().any(|head| line.starts_with(head));
        for line in text.lines().filter(is_table) {
            assert!(line.chars().count() <= 100, "{command:?}: {line}");
        }
        if command[0] != "top" {
            let wide = stdout(&highwater(&[command, &["--wide"]].concat(), files));
            assert!(wide.lines().any(|line| line.chars().count() > 100) || command[0] == "what-if", "{wide}");
        }
    }
}

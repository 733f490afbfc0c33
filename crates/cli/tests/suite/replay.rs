//! `highwater replay` as a user calls it.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::Value;
use tempfile::TempDir;

/// Two small steps: 3,000 bytes live at the peak, and a block that stays live.
const TRACE: &str =
    "# mark: one\na 0 1000 weights\na 1 2000 hidden\nf 1\n# mark: two\na 2 1500 hidden\nf 2\n";

fn highwater(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_highwater")).arg("replay").args(arguments).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// A temporary folder with files.
struct Files(TempDir);

impl Files {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn add(&self, name: &str, contents: impl AsRef<[u8]>) -> String {
        let path = self.0.path().join(name);
        fs::write(&path, contents).unwrap();
        path.to_str().unwrap().to_owned()
    }
}

fn gzip(contents: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(contents).unwrap();
    encoder.finish().unwrap()
}

fn shipped(path: &str) -> String {
    let root: PathBuf = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    root.join(path).to_str().unwrap().to_owned()
}

/// The array that `--json` writes, and the exit code.
fn json(arguments: &[&str]) -> (Vec<Value>, Option<i32>) {
    let output = highwater(&[arguments, &["--json"]].concat());
    let rows: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|error| {
        panic!("{error}: {}{}", text(&output.stdout), text(&output.stderr));
    });
    (rows.as_array().unwrap().clone(), output.status.code())
}

#[test]
fn json_is_one_array_with_an_object_per_trace_and_policy() {
    let files = Files::new();
    let first = files.add("first.trace", TRACE);
    let second = files.add("second", gzip(b"a 0 10 x\nf 0\n"));
    let (rows, code) = json(&[&first, &second, "--policy", "bfc,bfc-tensorflow"]);
    assert_eq!(code, Some(0));
    let which: Vec<_> =
        rows.iter().map(|row| (row["trace"].as_str().unwrap(), row["policy"].as_str().unwrap())).collect();
    assert_eq!(
        which,
        [(&*first, "bfc"), (&*first, "bfc-tensorflow"), (&*second, "bfc"), (&*second, "bfc-tensorflow")]
    );
    for row in &rows {
        assert!(row["ns_per_event"].as_f64().unwrap() > 0.0);
        assert!(row["cold_ns_per_event"].as_f64().unwrap() > 0.0);
        assert_eq!(row["failed_at"], Value::Null);
        assert_eq!(row["failure"], Value::Null);
        assert!(row.get("smallest_pool_bytes").is_none(), "only with --find-min");
    }
    assert_eq!((&rows[0]["events"], &rows[0]["peak_live_bytes"]), (&5.into(), &3000.into()));
    assert_eq!(
        (&rows[0]["peak_in_use_bytes"], &rows[0]["peak_reserved_bytes"]),
        (&3072.into(), &(2 << 20).into())
    );
    let timeline = rows[0]["timeline"].as_array().unwrap();
    let events: Vec<_> = timeline.iter().map(|sample| sample["event"].as_u64().unwrap()).collect();
    assert_eq!(events, [1, 2, 3, 4, 5]);
    let in_use: Vec<_> = timeline.iter().map(|sample| sample["in_use_bytes"].as_u64().unwrap()).collect();
    assert_eq!(in_use, [1024, 3072, 1024, 2560, 1024]);
}

#[test]
fn the_smallest_pool_is_found_to_the_step() {
    let files = Files::new();
    let trace = files.add("small", TRACE);
    let (rows, code) = json(&[&trace, "--find-min"]);
    assert_eq!(code, Some(0));
    assert_eq!(rows[0]["smallest_pool_bytes"], 3072);
    assert_eq!(rows[0]["smallest_pool_step_bytes"], 256);
    assert_eq!(rows[0]["larger_pool_that_fails_bytes"], Value::Null);
    for (pool, code) in [("3072", 0), ("3071", 1)] {
        assert_eq!(highwater(&[&trace, "--pool", pool]).status.code(), Some(code), "{pool}");
    }
}

#[test]
fn a_replay_that_fails_says_where_and_why_and_ends_with_code_1() {
    let files = Files::new();
    let trace = files.add("small", TRACE);
    let (rows, code) = json(&[&trace, "--pool", "2KiB", "--find-min"]);
    assert_eq!(code, Some(1));
    let row = &rows[0];
    assert_eq!((&row["failed_at"], &row["ns_per_event"]), (&1.into(), &Value::Null));
    assert_eq!((&row["failure"]["label"], &row["failure"]["bytes"]), (&"hidden".into(), &2000.into()));
    assert_eq!(row["failure"]["verdict"], "exhausted");
    assert_eq!(row["smallest_pool_bytes"], 3072, "another pool would have done");

    let output = highwater(&[&trace, "--pool", "2KiB"]);
    assert_eq!(output.status.code(), Some(1));
    let text = text(&output.stdout);
    assert!(
        text.contains(
            "small, bfc: failed at event 1 (hidden, 2000 bytes): replay: out of memory (exhausted)"
        ),
        "{text}"
    );
}

#[test]
fn the_table_has_a_line_per_trace_with_its_policies_below() {
    let files = Files::new();
    let trace = files.add("small.trace", TRACE);
    let output = highwater(&[&trace, "--policy", "bfc,bfc-tensorflow", "--find-min", "--growth", "extend"]);
    assert!(output.status.success());
    assert_eq!(output.stderr, b"", "no progress where nobody watches");
    let text = text(&output.stdout);
    let lines: Vec<_> = text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>()).collect();
    assert_eq!(lines[0][..4], ["trace,", "policy", "events", "ns/event"]);
    assert_eq!(lines[2], ["small.trace", "5", "2.93", "KiB"]);
    assert_eq!((lines[3][0], lines[4][0], lines.len()), ("bfc", "bfc-tensorflow", 5));
    assert!(text.contains("3.00 KiB  1.024"), "{text}");
    let widths: Vec<_> =
        text.lines().filter(|line| !line.starts_with("small")).map(|line| line.chars().count()).collect();
    assert!(widths.windows(2).all(|pair| pair[0] == pair[1]), "columns are aligned: {text}");
}

#[test]
fn every_format_is_read_whatever_its_name() {
    let data = "crates/traces/tests/data";
    let files = Files::new();
    let snapshot = fs::read(shipped(&format!("{data}/snapshot-4.pickle"))).unwrap();
    let renamed = files.add("no-name", gzip(&snapshot));
    for (path, events) in [
        (shipped("data/digits.trace.gz"), 5490),
        (shipped(&format!("{data}/snapshot-2.pickle")), 7),
        (renamed, 7),
        (shipped(&format!("{data}/rmm.csv")), 6),
        (shipped(&format!("{data}/minimalloc.csv")), 10),
    ] {
        let (rows, code) = json(&[&path, "--repeat", "1"]);
        assert_eq!((code, &rows[0]["events"]), (Some(0), &events.into()), "{path}");
    }
}

#[test]
fn a_bad_file_is_named_and_the_others_are_replayed() {
    let files = Files::new();
    let good = files.add("good", TRACE);
    let bad = files.add("bad", "a 0 10 x\nf 1\n");
    let missing = format!("{good}.missing");
    let output = highwater(&[&bad, &missing, &good, "--json"]);
    assert_eq!(output.status.code(), Some(2));
    let rows: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((rows.as_array().unwrap().len(), &rows[0]["trace"]), (1, &good.into()));
    let text = text(&output.stderr);
    assert!(text.contains(&format!("highwater: {bad}: line 2: no allocation 1 is live\n")), "{text}");
    assert!(text.contains(&format!("highwater: {missing}: ")), "{text}");
}

#[test]
fn limits_are_options() {
    let files = Files::new();
    let trace = files.add("small", TRACE);
    for (option, value, message) in [
        ("--max-events", "4", "line 7: more than 4 events"),
        ("--max-input", "20", "byte 20: the file has more than 20 B"),
    ] {
        let output = highwater(&[&trace, option, value]);
        assert_eq!(output.status.code(), Some(2));
        assert!(text(&output.stderr).contains(message), "{}", text(&output.stderr));
    }
    // Empty lists take many times their size in the file; more than eight times is refused.
    let lists = files.add("lists", [&b"\x80\x04"[..], &[b']'; 3000]].concat());
    let output = highwater(&[&lists, "--max-memory", "1KiB"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("1.00 KiB of memory; --max-memory allows more"), "{output:?}");
    let snapshot = shipped("crates/traces/tests/data/snapshot-4.pickle");
    for (option, value, message) in
        [("--device", "1", "recorded for device 1"), ("--split", "twice:500%", "100% at most")]
    {
        let output = highwater(&[&snapshot, option, value]);
        assert_eq!(output.status.code(), Some(2));
        assert!(text(&output.stderr).contains(message), "{}", text(&output.stderr));
    }
}

#[test]
fn what_is_said_of_the_pool_reaches_it() {
    let files = Files::new();
    // A block of three quarters of the pool: TensorFlow's rule does not split off the rest.
    let trace = files.add("one", "a 0 3072 x\n");
    let figure = |arguments: &[&str], name: &str| {
        let (rows, code) = json(&[&[&*trace, "--repeat", "1"], arguments].concat());
        assert_eq!(code, Some(0), "{arguments:?}");
        rows[0][name].as_u64().unwrap()
    };
    for (split, granted) in [("always", 3072), ("twice", 4096), ("twice:25%", 3072), ("twice:1025", 4096)] {
        assert_eq!(figure(&["--pool", "4KiB", "--split", split], "peak_in_use_bytes"), granted, "{split}");
    }
    for (arguments, reserved) in [
        (&["--first-region", "8KiB"][..], 8 << 10),
        (&["--pool", "1MiB", "--first-region", "8KiB"], 8 << 10),
        (&["--pool", "1MiB"], 1 << 20),
        (&["--pool", "1MiB", "--growth", "regions"], 1 << 20),
        (&["--first-region", "1KiB", "--growth-rule", "as-requested"], 3 << 10),
        (&["--first-region", "1KiB", "--growth-rule", "doubling"], 4 << 10),
        (&["--first-region", "1KiB", "--growth-rule", "doubling:2KiB", "--thread-cache"], 3 << 10),
    ] {
        assert_eq!(figure(arguments, "peak_reserved_bytes"), reserved, "{arguments:?}");
    }
}

#[test]
fn cached_blocks_are_not_joined() {
    let files = Files::new();
    let trace = files.add("two", "a 0 256 x\na 1 256 x\nf 0\nf 1\n");
    let largest = |arguments: &[&str]| {
        let (rows, _) = json(&[&[&*trace, "--pool", "1KiB"], arguments].concat());
        rows[0]["timeline"][3]["largest_free_bytes"].as_u64().unwrap()
    };
    assert_eq!(
        (largest(&[]), largest(&["--thread-cache=off"]), largest(&["--thread-cache"])),
        (1024, 1024, 512)
    );
}

#[test]
fn guards_add_bytes_and_passthrough_adds_none() {
    let files = Files::new();
    let trace = files.add("small", TRACE);
    let (rows, code) = json(&[&trace, "--policy", "passthrough,guard,bfc", "--find-min"]);
    assert_eq!(code, Some(0));
    let smallest: Vec<_> = rows.iter().map(|row| row["smallest_pool_bytes"].as_u64().unwrap()).collect();
    // 3,000 bytes in granules of 256; both blocks with canaries; both blocks rounded.
    assert_eq!(smallest, [3072, 3584, 3072]);
    assert_eq!(rows[0]["peak_reserved_bytes"], 3000);

    let huge = files.add("huge", "a 0 70368744177664 x\n");
    let (rows, code) = json(&[&huge, "--policy", "guard,passthrough", "--find-min"]);
    assert_eq!(code, Some(1));
    for row in &rows {
        assert_eq!((&row["failed_at"], &row["smallest_pool_bytes"]), (&0.into(), &Value::Null), "{row}");
    }
}

#[test]
fn what_no_policy_has_a_use_for_is_refused() {
    for (arguments, message) in [
        (
            &["--policy", "buddy,passthrough", "--split", "twice"][..],
            "--split is not supported by buddy, passthrough",
        ),
        (&["--growth", "fixed", "--growth-rule", "doubling"], "remove --growth fixed"),
        (&["--split", "twice:5%"], "add --pool"),
        (&["--region-merging", "maybe"], "expected on or off"),
        (&["--thread-cache=1"], "no such file"),
        (&["--thread-cache=2"], "expected on, off, or LARGEST"),
    ] {
        let output = highwater(&[&["x"], arguments].concat());
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        let text = text(&output.stderr).to_lowercase();
        assert!(text.contains(&message.to_lowercase()), "{text}");
    }
}

#[test]
fn wrong_usage_exits_with_code_2() {
    let output = highwater(&["x", "--policy", "best"]);
    assert_eq!(output.status.code(), Some(2));
    let text = text(&output.stderr);
    assert!(text.contains("unknown policy \"best\"; the policies are bfc, bfc-tensorflow"), "{text}");
    for arguments in [&[][..], &["x", "--repeat", "0"], &["x", "--pool", "much"], &["x", "--growth", "slow"]]
    {
        assert_eq!(highwater(arguments).status.code(), Some(2), "{arguments:?}");
    }
}

#[test]
fn a_trace_without_events_is_no_failure() {
    let files = Files::new();
    let empty = files.add("empty", "# nothing\n");
    let (rows, code) = json(&[&empty, "--find-min"]);
    assert_eq!((code, &rows[0]["events"], &rows[0]["ns_per_event"]), (Some(0), &0.into(), &Value::Null));
    assert_eq!((&rows[0]["waste"], &rows[0]["failed_at"]), (&Value::Null, &Value::Null));
    assert!(highwater(&[&empty]).status.success());
}

#[test]
fn settings_of_pytorch_change_its_replay() {
    let trace = shipped("crates/traces/tests/data/pytorch_allocator/reserved-growth.trace");
    let reserved = |settings: &[&str]| {
        let (rows, code) = json(&[&[&trace, "--policy", "pytorch", "--repeat", "1"], settings].concat());
        assert_eq!(code, Some(0), "{rows:?}");
        rows[0]["peak_reserved_bytes"].as_u64().unwrap() >> 20
    };
    assert_eq!(reserved(&[]), 422);
    assert_eq!(reserved(&["--alloc-conf", "expandable_segments:True"]), 420);
    assert_eq!(reserved(&["--alloc-conf", "max_split_size_mb:128,expandable_segments:True"]), 14_060);
    let output = highwater(&[&trace, "--policy", "bfc", "--alloc-conf", "expandable_segments:True"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("--alloc-conf is not supported by bfc"), "{output:?}");
}

#[test]
fn settings_that_do_not_change_placement_are_named() {
    let files = Files::new();
    let trace = files.add("small", TRACE);
    let settings = "expandable_segments:True,pinned_use_background_threads:True";
    let output = highwater(&[&trace, "--policy", "pytorch", "--alloc-conf", settings]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let expected =
        "highwater: --alloc-conf: pinned_use_background_threads does not change where blocks are placed\n";
    assert_eq!(text(&output.stderr), expected);
}

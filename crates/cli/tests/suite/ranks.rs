//! `highwater report` with the recordings of several ranks.

use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, Output};
use std::sync::Arc;

use bfc_core::{AddressOnlyMemory, Allocation, Allocator, BfcAllocator, BfcConfig, Bytes, Category, Request};
use highwater_tracking::{RunFacts, Tracker, module};
use serde_json::{Value, json};
use tempfile::TempDir;

/// Runs the command in a folder.
fn report(folder: &TempDir, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_highwater"));
    command.arg("report").args(arguments).current_dir(folder.path()).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// Records one rank: a layer of 1 KiB, a second layer of `fc2` bytes, and `state` bytes of optimizer state.
fn record(folder: &TempDir, name: &str, facts: &[(&str, &str)], fc2: u64, state: u64) {
    let path = folder.path().join(name);
    let memory = Arc::new(AddressOnlyMemory::new());
    let pool: Arc<dyn Allocator> =
        Arc::new(BfcAllocator::new("cpu:0", memory, BfcConfig::new(Bytes::mib(64))));
    let tracker = Tracker::new();
    let facts = facts.iter().fold(RunFacts::new("sample"), |all, &(name, value)| all.with(name, value));
    tracker.start_recording(File::create(path).unwrap(), &facts).unwrap();
    let take = |scope, op, bytes, category| {
        let _scope = module(scope);
        let run = tracker.begin(op);
        (bytes > 0).then(|| {
            Allocation::new(&run.track(&pool), &Request::new(bytes).with_category(category)).unwrap()
        })
    };
    let kept = [
        take("net.fc1", "matmul", 1024, Category::Output),
        take("net.fc2", "matmul", fc2, Category::Output),
        take("net.fc2", "init", state, Category::OptimizerState),
    ];
    drop(kept);
    tracker.finish_recording(&[pool]).unwrap().unwrap();
}

/// The facts of one rank.
fn rank<'a>(rank: &'a str, ranks: &'a str) -> [(&'a str, &'a str); 2] {
    [("rank", rank), ("ranks", ranks)]
}

#[test]
fn two_ranks_are_compared_by_op_module_and_category() {
    let folder = TempDir::new().unwrap();
    record(&folder, "rank-0.hwm", &rank("0", "2"), 3072, 2048);
    record(&folder, "rank-1.hwm", &rank("1", "2"), 4096, 0);
    let output = report(&folder, &["rank-0.hwm", "rank-1.hwm"]);
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    let expected = "\
sample: 2 ranks
peak: 6.00 KiB on rank 0, the worst; 5.00 KiB on rank 1, the best

rank      peak  above minimum      reached by        file
---------------------------------------------------------
0     6.00 KiB       1.00 KiB    net.fc2.init  rank-0.hwm
1     5.00 KiB              -  net.fc2.matmul  rank-1.hwm

high water of the ranks

op       minimum   maximum  difference  worst rank
--------------------------------------------------
matmul  3.00 KiB  4.00 KiB    1.00 KiB           1
init           -  2.00 KiB    2.00 KiB           0

module    minimum   maximum  difference  worst rank
---------------------------------------------------
(top)    5.00 KiB  6.00 KiB    1.00 KiB           0
net      5.00 KiB  6.00 KiB    1.00 KiB           0
net.fc2  4.00 KiB  5.00 KiB    1.00 KiB           0
net.fc1  1.00 KiB  1.00 KiB           -         all

category          minimum   maximum  difference  worst rank
-----------------------------------------------------------
output           4.00 KiB  5.00 KiB    1.00 KiB           1
optimizer state         -  2.00 KiB    2.00 KiB           0
";
    assert_eq!(text(&output.stdout), expected);
}

#[test]
fn three_ranks_in_any_order_are_sorted_by_rank_in_json() {
    let folder = TempDir::new().unwrap();
    for (number, fc2) in [("0", 2048), ("1", 8192), ("2", 4096)] {
        record(&folder, &format!("rank-{number}.hwm"), &rank(number, "3"), fc2, 0);
    }
    let output = report(&folder, &["--json", "rank-2.hwm", "rank-0.hwm", "rank-1.hwm"]);
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    let row = |name: &str, bytes: [u64; 3]| json!({ "name": name, "min_bytes": bytes[0], "max_bytes": bytes[1], "max_rank": 1, "bytes": bytes });
    assert_eq!(json["ops"], json!([row("matmul", [2048, 8192, 4096])]));
    assert_eq!(json["categories"], json!([row("output", [3072, 9216, 5120])]));
    assert_eq!(json["scopes"][2], row("net.fc2", [2048, 8192, 4096]));
    let equal = json!({ "name": "net.fc1.matmul", "min_bytes": 1024, "max_bytes": 1024, "max_rank": 0, "bytes": [1024, 1024, 1024] });
    assert_eq!(json["places"][1], equal);
    assert_eq!((&json["worst_rank"], &json["world_size"]), (&json!(1), &json!(3)));
    assert_eq!(
        (&json["ranks"][1]["file"], &json["ranks"][1]["peak_bytes"]),
        (&json!("rank-1.hwm"), &json!(9216))
    );
    let text =
        text(&report(&folder, &["rank-0.hwm", "rank-1.hwm", "rank-2.hwm", "--top", "1", "--wide"]).stdout);
    let expected = "\
sample: 3 ranks
peak: 9.00 KiB on rank 1, the worst; 3.00 KiB on rank 0, the best

rank          peak  above minimum      reached by        file
-------------------------------------------------------------
1         9.00 KiB       6.00 KiB  net.fc2.matmul  rank-1.hwm
(2 more)

high water of the ranks

op       minimum   maximum  difference  worst rank    rank 0    rank 1    rank 2
--------------------------------------------------------------------------------
matmul  2.00 KiB  8.00 KiB    6.00 KiB           1  2.00 KiB  8.00 KiB  4.00 KiB

module     minimum   maximum  difference  worst rank    rank 0    rank 1    rank 2
----------------------------------------------------------------------------------
(top)     3.00 KiB  9.00 KiB    6.00 KiB           1  3.00 KiB  9.00 KiB  5.00 KiB
(3 more)

category   minimum   maximum  difference  worst rank    rank 0    rank 1    rank 2
----------------------------------------------------------------------------------
output    3.00 KiB  9.00 KiB    6.00 KiB           1  3.00 KiB  9.00 KiB  5.00 KiB
";
    assert_eq!(text, expected);
}

#[test]
fn files_without_a_rank_count_in_their_order() {
    let folder = TempDir::new().unwrap();
    record(&folder, "a.hwm", &[], 1024, 0);
    record(&folder, "b.hwm", &[], 3072, 0);
    let output = report(&folder, &["b.hwm", "a.hwm"]);
    assert!(output.status.success());
    let stderr = "highwater: 2 files state no rank: the order of the arguments counts, from rank 0\n";
    assert_eq!(text(&output.stderr), stderr);
    let first = "sample: 2 ranks\npeak: 4.00 KiB on rank 0, the worst; 2.00 KiB on rank 1, the best\n";
    assert!(text(&output.stdout).starts_with(first), "{output:?}");
}

#[test]
fn a_missing_rank_is_a_warning() {
    let folder = TempDir::new().unwrap();
    record(&folder, "rank-0.hwm", &rank("0", "4"), 1024, 0);
    record(&folder, "rank-2.hwm", &rank("2", "4"), 1024, 0);
    let output = report(&folder, &["rank-0.hwm", "rank-2.hwm"]);
    assert!(output.status.success());
    assert_eq!(text(&output.stderr), "highwater: no files of ranks 1, 3, of 4 ranks\n");
    assert!(
        text(&output.stdout).starts_with("sample: 2 of 4 ranks\npeak: 2.00 KiB on all ranks\n"),
        "{output:?}"
    );
}

#[test]
fn files_that_are_no_ranks_of_one_run_are_refused() {
    let folder = TempDir::new().unwrap();
    record(&folder, "rank-0.hwm", &rank("0", "2"), 1024, 0);
    record(&folder, "again.hwm", &rank("0", "2"), 1024, 0);
    record(&folder, "of-four.hwm", &rank("1", "4"), 1024, 0);
    for (other, message) in [
        ("again.hwm", "again.hwm: rank 0 is also in rank-0.hwm; pass one file for each rank"),
        (
            "of-four.hwm",
            "of-four.hwm: the run has 4 ranks, that of rank-0.hwm has 2; pass the files of one run",
        ),
    ] {
        let output = report(&folder, &["rank-0.hwm", other]);
        assert_eq!((output.status.code(), output.stdout.as_slice()), (Some(2), &b""[..]));
        assert_eq!(text(&output.stderr), format!("highwater: {message}\n"));
    }
}

#[test]
fn a_bad_file_does_not_hide_the_other_ranks() {
    let folder = TempDir::new().unwrap();
    record(&folder, "rank-0.hwm", &rank("0", "3"), 1024, 0);
    record(&folder, "rank-1.hwm", &rank("one", "3"), 1024, 0);
    record(&folder, "rank-2.hwm", &rank("2", "3"), 3072, 0);
    let whole = fs::read(folder.path().join("rank-2.hwm")).unwrap();
    fs::write(folder.path().join("rank-2.hwm"), &whole[..whole.len() - 1]).unwrap();
    let output = report(&folder, &["missing.hwm", "rank-0.hwm", "rank-1.hwm", "rank-2.hwm"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        text(&output.stdout).starts_with("sample: 2 of 3 ranks\npeak: 4.00 KiB on rank 2, the worst;"),
        "{output:?}"
    );
    let lines: Vec<String> = text(&output.stderr).lines().map(str::to_owned).collect();
    assert_eq!(lines.len(), 4, "{lines:?}");
    assert_eq!(lines[0], "highwater: no file of rank 1, of 3 ranks");
    assert!(lines[1].starts_with("highwater: rank-2.hwm: read up to byte "), "{lines:?}");
    assert!(lines[2].starts_with("highwater: missing.hwm: "), "{lines:?}");
    assert_eq!(
        lines[3],
        "highwater: rank-1.hwm: the fact \"rank\" is \"one\", not a number up to 1048576; record the rank again"
    );
}

#[test]
fn without_a_readable_file_all_errors_are_listed() {
    let folder = TempDir::new().unwrap();
    let output = report(&folder, &["a.hwm", "b.hwm"]);
    assert_eq!((output.status.code(), output.stdout.as_slice()), (Some(2), &b""[..]));
    let stderr = text(&output.stderr);
    assert!(stderr.starts_with("highwater: a.hwm: ") && stderr.contains("\nhighwater: b.hwm: "), "{stderr}");
}

#[test]
fn a_page_of_several_files_is_refused() {
    let folder = TempDir::new().unwrap();
    let output = report(&folder, &["a.hwm", "b.hwm", "--html", "page.html"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).starts_with("highwater: --html shows one recording; pass one file"));
    assert!(!Path::new(&folder.path().join("page.html")).exists());
}

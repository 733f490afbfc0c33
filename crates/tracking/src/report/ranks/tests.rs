use bfc_core::{Allocation, Bytes, Category, Request};

use super::*;
use crate::account::Tracker;
use crate::report::{RecordedRun, RunFacts, TextOptions};
use crate::scope::module;
use crate::test_pool::TestPool;

/// Records ops in modules that keep their results. Facts are in the form `rank 0`.
fn report(facts: &[&str], ops: &[(&str, &'static str, u64, Category)]) -> Report {
    let (tracker, pool) = (Tracker::new(), TestPool::tracking());
    tracker.start_log(Bytes::mib(1));
    let take = |&(scope, op, bytes, category): &(&str, &'static str, u64, Category)| {
        let _scope = module(scope);
        let run = tracker.begin(op);
        Allocation::new(&run.track(&pool), &Request::new(bytes).with_category(category)).unwrap()
    };
    let kept: Vec<Allocation> = ops.iter().map(take).collect();
    let recording = tracker.take_log();
    drop(kept);
    let facts = facts.iter().map(|fact| fact.split_once(' ').unwrap());
    let facts = facts.fold(RunFacts::new("sample"), |facts, (name, value)| facts.with(name, value));
    let run = Some(RecordedRun { facts, ..RecordedRun::default() });
    Report { run, ..Report::from_recording(&recording) }
}

fn rank(file: &str, position: u64, facts: &[&str]) -> Result<RankReport, RankError> {
    RankReport::new(file, position, &report(facts, &[]))
}

fn figures(rows: &[RankBytes]) -> Vec<(&str, [u64; 3], &[u64])> {
    let figures = |row: &RankBytes| [row.min_bytes, row.max_bytes, row.max_rank];
    rows.iter().map(|row| (row.name.as_str(), figures(row), row.bytes.as_slice())).collect()
}

#[test]
fn ranks_are_compared_by_exact_high_water_marks() {
    let first = report(
        &["rank 0", "ranks 3"],
        &[("net.a", "matmul", 100, Category::Output), ("net.b", "matmul", 300, Category::Activation)],
    );
    let last = report(
        &["rank 2", "ranks 3"],
        &[
            ("net.a", "matmul", 100, Category::Output),
            ("net.b", "matmul", 500, Category::Activation),
            ("net.b", "dropout", 50, Category::Activation),
        ],
    )
    .with_outside("NCCL", Bytes(12))
    .with_outside("other", Bytes(3));
    let reports = [("two", last), ("zero", first)]
        .map(|(file, report)| RankReport::new(file, 9, &report).unwrap())
        .to_vec();
    let ranks = RankComparison::new(reports).unwrap();

    let rows = ranks.ranks.iter().map(|row| (row.rank, row.file.as_str(), row.peak_bytes, row.outside_bytes));
    assert_eq!(rows.collect::<Vec<_>>(), [(0, "zero", 400, 0), (2, "two", 650, 15)]);
    assert_eq!((ranks.worst_rank, ranks.world_size, &ranks.missing_ranks[..]), (Some(2), Some(3), &[1][..]));
    assert_eq!(ranks.ranks[1].reached_by, "net.b.dropout");
    let ops = [("matmul", [300, 500, 2], &[300, 500][..]), ("dropout", [0, 50, 2], &[0, 50])];
    assert_eq!(figures(&ranks.ops), ops);
    assert_eq!(
        figures(&ranks.places),
        [
            ("net.b.matmul", [300, 500, 2], &[300, 500][..]),
            ("net.a.matmul", [100, 100, 0], &[100, 100]),
            ("net.b.dropout", [0, 50, 2], &[0, 50]),
        ]
    );
    assert_eq!(
        figures(&ranks.scopes),
        [
            ("", [400, 650, 2], &[400, 650][..]),
            ("net", [400, 650, 2], &[400, 650]),
            ("net.b", [300, 550, 2], &[300, 550]),
            ("net.a", [100, 100, 0], &[100, 100]),
        ]
    );
    let categories = [("activation", [300, 550, 2], &[300, 550][..]), ("output", [100, 100, 0], &[100, 100])];
    assert_eq!(figures(&ranks.categories), categories);
}

#[test]
fn invalid_facts_are_errors_of_their_file() {
    for (facts, fact, value) in [
        (["rank -1", "ranks 2"], "rank", "-1"),
        (["rank 1", "ranks two"], "ranks", "two"),
        (["rank 1", "ranks 1048577"], "ranks", "1048577"),
        (["rank 99999999999999999999", "ranks 2"], "rank", "99999999999999999999"),
    ] {
        let error = RankError::InvalidFact { file: "a".to_owned(), fact, value: value.to_owned() };
        assert_eq!(rank("a", 0, &facts).unwrap_err(), error);
    }
    let error = RankError::NoSuchRank { file: "a".to_owned(), rank: 2, world_size: 2 };
    assert_eq!(rank("a", 0, &["rank 2", "ranks 2"]).unwrap_err(), error);
    assert_eq!(
        rank("a", 0, &["ranks 0", "rank 0"]).unwrap_err().to_string(),
        "a: there is no rank 0 in a run of 0 ranks; pass the files of one run"
    );
}

#[test]
fn files_of_several_runs_are_errors() {
    let compare = |files: [(&str, &[&str]); 2]| {
        let ranks = (0..).zip(files).map(|(position, (file, facts))| rank(file, position, facts).unwrap());
        RankComparison::new(ranks.collect()).map(drop)
    };
    let (first, second) = ("a".to_owned(), "b".to_owned());
    let duplicate = RankError::Duplicate { rank: 1, first: second.clone(), second: first.clone() };
    // The second file takes rank 1 by its place.
    assert_eq!(compare([("b", &["rank 1"]), ("a", &[])]).unwrap_err(), duplicate);
    let sizes = RankError::DifferentRuns { first, first_size: 2, second: second.clone(), second_size: 4 };
    assert_eq!(compare([("a", &["rank 0", "ranks 2"]), ("b", &["rank 1", "ranks 4"])]).unwrap_err(), sizes);
    let beyond = RankError::NoSuchRank { file: second, rank: 1, world_size: 1 };
    assert_eq!(compare([("a", &["rank 0", "ranks 1"]), ("b", &[])]).unwrap_err(), beyond);
    compare([("a", &[]), ("b", &["rank 1", "ranks 2"])]).unwrap();
}

#[test]
fn warnings_name_the_first_missing_ranks() {
    let warnings =
        |facts: &[&str]| RankComparison::new(vec![rank("a", 0, facts).unwrap()]).unwrap().warnings();
    assert!(warnings(&["rank 0", "ranks 1"]).is_empty());
    assert_eq!(warnings(&["rank 0", "ranks 9"]), ["no files of ranks 1, 2, 3, 4, 5, 6, 7, 8, of 9 ranks"]);
    assert_eq!(
        warnings(&["ranks 1024"]),
        [
            "1 file states no rank: the order of the arguments counts, from rank 0",
            "no files of ranks 1, 2, 3, 4, 5, 6, 7, 8 and 1015 more, of 1024 ranks",
        ]
    );
}

#[test]
fn text_has_no_control_characters_of_a_file() {
    let reports = [("a\n", "b\u{1b}[2J"), ("c", "d")].map(|(file, scope)| {
        let report = report(&[], &[(scope, "op\u{7}", 10, Category::Output)]);
        RankReport::new(file, u64::from(file == "c"), &report).unwrap()
    });
    let ranks = RankComparison::new(reports.to_vec()).unwrap();
    for by_place in [false, true] {
        for wide in [false, true] {
            let text = ranks.text(TextOptions { by_place, wide, ..TextOptions::default() }).to_string();
            assert!(text.contains("peak: 10 B on all ranks\n"), "{text}");
            assert!(
                !text.contains(|character: char| character.is_control() && character != '\n'),
                "{text:?}"
            );
            assert!(!text.contains("a\n"), "{text:?}");
        }
    }
}

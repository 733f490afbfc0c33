//! `highwater what-if` as people run it.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;

use bfc_core::{
    AddressOnlyMemory, Allocation, Allocator, AllocatorChoice, BfcAllocator, BfcConfig, Bytes, MIB, Request,
};
use highwater_tracking::{RunFacts, Tracker, module};
use serde_json::Value;
use tempfile::TempDir;

fn what_if(run: &Path, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_highwater")).arg("what-if").arg(run).args(arguments).output().unwrap()
}

fn json(run: &Path, arguments: &[&str]) -> Vec<Value> {
    let output = what_if(run, &[arguments, &["--json"]].concat());
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// The outcome of this name.
fn of(outcomes: &[Value], what: &str) -> Value {
    let found = outcomes.iter().find(|outcome| outcome["what"] == what);
    found.unwrap_or_else(|| panic!("no {what} in {outcomes:?}")).clone()
}

/// Records a run on each of these pools. Its blocks leave a hole of 3 MiB, too small for a request of 4 MiB.
fn record(directory: &TempDir, allocator: &str, pools: &[&str]) -> PathBuf {
    let path = directory.path().join("run.hwm");
    let tracker = Tracker::new();
    let facts = RunFacts::new("sample").with("allocator", allocator).with("seed", 3);
    tracker.start_recording(File::create(&path).unwrap(), &facts).unwrap();
    let mut all: Vec<Arc<dyn Allocator>> = Vec::new();
    for name in pools {
        let config = BfcConfig::new(Bytes::mib(64));
        let pool: Arc<dyn Allocator> =
            Arc::new(BfcAllocator::new(*name, Arc::new(AddressOnlyMemory::new()), config));
        let _scope = module("net");
        let take = |op, mib| {
            let run = tracker.begin(op);
            Allocation::new(&run.track(&pool), &Request::new(mib * MIB)).unwrap()
        };
        let first = take("first", 3);
        let second = take("second", 1);
        drop(first);
        drop((second, take("third", 4)));
        all.push(pool);
    }
    tracker.finish_recording(&all).unwrap().unwrap();
    path
}

#[test]
fn every_policy_and_rule_is_tried_besides_the_recorded_one() {
    let directory = TempDir::new().unwrap();
    let run = record(&directory, "bfc", &["cpu:0"]);
    let output = what_if(&run, &[]);
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    let parts = [
        "sample: ",
        "\nallocator bfc, seed 3\n",
        "\ncpu:0: peak 5.00 MiB in use, ",
        "\nwhat if ",
        "\nas recorded ",
        "\nsplit twice",
        "\ngrowth extend ",
        "\nlower bound of every pool: 5.00 MiB\n",
    ];
    // The run itself used bfc, and the last two need real memory.
    let others = AllocatorChoice::ALL.map(AllocatorChoice::name).into_iter();
    let others = others.filter(|name| !["bfc", "guard", "passthrough"].contains(name));
    for part in others.map(|name| format!("\n{name} ")).chain(parts.map(str::to_owned)) {
        assert!(text.contains(&part), "{part:?} is not in\n{text}");
    }
    assert!(!text.contains("pools merged") && !text.contains("fails"), "{text}");

    let outcomes = json(&run, &[]);
    assert_eq!(outcomes[0]["what"], "as recorded");
    let [recorded, packed] = ["as recorded", "packed"].map(|what| of(&outcomes, what));
    assert_eq!(recorded["peak_in_use_bytes"], 5 * MIB);
    assert_eq!(packed["smallest_pool_bytes"], 5 * MIB);
    // When blocks take the low end, the last block lies behind the hole of 3 MiB.
    let low = of(&json(&run, &["--cut", "low"]), "bfc, cut low");
    assert_eq!(low["smallest_pool_bytes"], 8 * MIB);
}

#[test]
fn all_supported_combinations_are_tried() {
    let directory = TempDir::new().unwrap();
    let run = record(&directory, "auto-growth", &["cpu:0"]);
    let outcomes = json(&run, &["--policy", "bfc,buddy", "--cut", "low,large-high", "--pool", "6MiB,16MiB"]);
    let whats: Vec<&str> = outcomes.iter().map(|outcome| outcome["what"].as_str().unwrap()).collect();
    assert_eq!(whats.len(), 1 + 4 + 2, "{whats:?}");
    assert_eq!(outcomes[0]["policy"], "auto-growth");
    let small = of(&outcomes, "bfc, cut low, pool 6.00 MiB");
    assert!(small["failure"].as_str().unwrap().contains("net.third, 4194304 bytes"), "{small}");
    assert!(small["peak_reserved_bytes"].is_null() && small["smallest_pool_bytes"].is_null());
    assert_eq!(of(&outcomes, "buddy, pool 16.00 MiB")["failure"], Value::Null);
    let whats = |arguments: &[&str]| -> Vec<String> {
        json(&run, arguments).iter().map(|outcome| outcome["what"].as_str().unwrap().to_owned()).collect()
    };
    let both = ["--policy", "bfc,buddy", "--join", "at-once,deferred"];
    assert_eq!(whats(&both), ["as recorded", "bfc, join at-once", "bfc, join deferred", "buddy"]);
    let text = what_if(&run, &["--pool", "6MiB", "--policy", "bfc", "--cut", "low"]);
    let text = String::from_utf8(text.stdout).unwrap();
    assert!(text.contains("fails") && text.contains("\nbfc, cut low, pool 6.00 MiB: event 3 "), "{text}");
    let rules =
        ["--policy", "bfc", "--cut", "low,large-high", "--join", "at-once,deferred", "--pool", "16MiB"];
    let text = String::from_utf8(what_if(&run, &rules).stdout).unwrap();
    for rules in ["cut low, join at-once", "cut low, join deferred", "cut large-high, join deferred"] {
        assert!(text.contains(&format!("\nbfc, {rules}, pool 16.00 MiB ")), "{text}");
    }
}

#[test]
fn pools_are_replayed_separately_merged_or_alone() {
    let directory = TempDir::new().unwrap();
    let run = record(&directory, "bfc", &["cpu:0", "cpu:1"]);
    let outcomes = json(&run, &[]);
    let [recorded, merged] = ["as recorded", "pools merged"].map(|what| of(&outcomes, what));
    // The second pool is used after the first.
    assert_eq!(recorded["peak_live_bytes"], 10 * MIB);
    assert_eq!(merged["peak_live_bytes"], 5 * MIB);
    let alone = json(&run, &["--of", "cpu:1"]);
    assert_eq!(alone[0]["peak_live_bytes"], 5 * MIB);
    assert!(alone.iter().all(|outcome| outcome["what"] != "pools merged"));
}

#[test]
fn a_run_without_memory_has_a_message() {
    let directory = TempDir::new().unwrap();
    let output = what_if(&record(&directory, "bfc", &[]), &[]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success() && text.ends_with("\nthe run used no memory\n"), "{text}");
}

/// A run whose reserved memory grows under two settings of PyTorch's allocator.
fn growth() -> PathBuf {
    let traces = Path::new(env!("CARGO_MANIFEST_DIR")).join("../traces/tests/data/pytorch_allocator");
    traces.join("reserved-growth.trace")
}

#[test]
fn the_settings_of_pytorch_that_reserve_least_are_named() {
    let outcomes = json(&growth(), &[]);
    let recorded = &outcomes[0];
    assert_eq!((&recorded["what"], &recorded["policy"]), (&"as recorded".into(), &"pytorch".into()));
    assert_eq!(recorded["end_reserved_bytes"], 14_060 * MIB);
    assert_eq!(recorded["end_in_use_bytes"], 266 * MIB);
    let best: Vec<&Value> = outcomes.iter().filter(|outcome| outcome["is_best_alloc_conf"] == true).collect();
    assert_eq!(best.len(), 1, "{best:?}");
    assert_eq!(best[0]["what"], "pytorch, expandable_segments:True");
    assert_eq!(best[0]["alloc_conf"], "expandable_segments:True");
    assert_eq!(best[0]["end_reserved_bytes"], 420 * MIB);
    assert!(best[0]["saved_at_end"].as_f64().unwrap() > 0.98, "{best:?}");
    assert_eq!(of(&outcomes, "pytorch, defaults")["peak_reserved_bytes"], 422 * MIB);

    let output = String::from_utf8(what_if(&growth(), &[]).stdout).unwrap();
    let parts = [
        "\nbest settings of PyTorch's allocator: expandable_segments:True\n",
        "\nThey reserve 420 MiB instead of 13.73 GiB with ",
        ", and remove 98.9 % of the difference between reserved and used memory at the end.\n",
    ];
    for part in parts {
        assert!(output.contains(part), "{part:?} is not in\n{output}");
    }
}

#[test]
fn settings_of_pytorch_are_separated_by_semicolons() {
    let settings = "expandable_segments:True;roundup_power2_divisions:[4:2,>:16];";
    let outcomes = json(&growth(), &["--alloc-conf", settings]);
    let whats: Vec<&str> = outcomes.iter().map(|outcome| outcome["what"].as_str().unwrap()).collect();
    assert_eq!(whats.len(), 4, "{whats:?}");
    assert_eq!(whats[..2], ["as recorded", "pytorch, expandable_segments:True"]);
    assert!(whats[2].starts_with("pytorch, roundup_power2_divisions:["), "{whats:?}");
    assert_eq!(whats[3], "pytorch, defaults");

    let directory = TempDir::new().unwrap();
    let run = record(&directory, "bfc", &["cpu:0"]);
    let outcomes = json(&run, &["--alloc-conf", "max_split_size_mb:64"]);
    assert_eq!((outcomes[0]["policy"].as_str(), outcomes.len()), (Some("bfc"), 2));
    assert!(outcomes.iter().all(|outcome| outcome["is_best_alloc_conf"] == false), "{outcomes:?}");
    let text = what_if(&run, &["--alloc-conf", "max_split_size_mb:64;max_split_size_mb:128"]);
    let text = String::from_utf8(text.stdout).unwrap();
    assert!(
        text.contains("\nno other settings of PyTorch's allocator reserve less than max_split_size_mb:64\n"),
        "{text}"
    );
}

#[test]
fn unknown_recorded_settings_are_ignored_with_a_remark() {
    let directory = TempDir::new().unwrap();
    let run = directory.path().join("run.trace");
    fs::write(&run, "# allocator: pytorch\n# alloc_conf: of_the_future:1\na 0 1000 x\n").unwrap();
    let output = what_if(&run, &[]);
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success() && error.contains("ignored the recorded settings: "), "{error}");
}

#[test]
fn invalid_questions_fail_with_exit_code_two() {
    let directory = TempDir::new().unwrap();
    let run = record(&directory, "bfc", &["cpu:0"]);
    let nothing = directory.path().join("nothing.hwm");
    for (path, arguments, hint) in [
        (&nothing, &[][..], "nothing.hwm: "),
        (&run, &["--of", "gpu"], "the run has no pool \"gpu\"; its pools are cpu:0"),
        (&run, &["--policy", "buddy", "--split", "always"], "--split is not supported by buddy"),
        (&run, &["--policy", "buddy", "--join", "deferred"], "--join is not supported by buddy"),
        (&run, &["--split", "twice:5%"], "needs the size of the pool"),
        (
            &run,
            &["--policy", "bfc", "--alloc-conf", "backend:native"],
            "--alloc-conf is not supported by bfc",
        ),
        (&run, &["--alloc-conf", "expandable_segment:True"], "expandable_segments"),
        (&run, &["--policy", "worst-fit"], "unknown policy \"worst-fit\""),
        (&run, &["--packing", "none.packing"], "none.packing"),
    ] {
        let output = what_if(path, arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(error.contains(hint), "{arguments:?}: {error}");
    }
}

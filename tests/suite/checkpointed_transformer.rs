//! The example `checkpointed_transformer`: the same training in less memory, exactly as predicted.

use std::process::Command;

use serde_json::Value;

/// A model small enough for a test and deep enough to show the difference.
const SMALL: &[&str] =
    &["--layers", "6", "--width", "16", "--heads", "2", "--context", "32", "--steps", "3", "--threads", "1"];

fn results(args: &[&str]) -> Value {
    let folder = tempfile::tempdir().unwrap();
    let json = folder.path().join("run.json");
    let output = Command::new(crate::built::example("checkpointed_transformer"))
        .args(SMALL)
        .args(["--json", json.to_str().unwrap()])
        .args(args)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap()
}

#[test]
fn it_trains_the_same_in_less_memory_as_it_says_beforehand() {
    let (with, without) = (results(&["--device", "cpu"]), results(&["--device", "cpu", "--plain"]));
    assert!(with["final_loss"].as_f64().is_some());
    assert_eq!(with["final_loss"], without["final_loss"]);
    let peaks = [&with, &without].map(|run| run["pools"][0]["peak_in_use"].as_u64().unwrap());
    let predicted =
        ["predicted_peak_checkpointed", "predicted_peak_plain"].map(|key| with[key].as_u64().unwrap());
    assert_eq!(peaks, predicted);
    assert!(2 * peaks[0] < peaks[1], "{peaks:?}");
}

#[test]
fn its_dry_run_has_the_peak_of_the_real_one() {
    let peak = |args: &[&str]| results(args)["pools"][0]["peak_in_use"].clone();
    for more in [&["--accumulate", "2"][..], &["--plain"]] {
        assert_eq!(peak(&[&["--device", "cpu"], more].concat()), peak(&[&["--dry-run"], more].concat()));
    }
}

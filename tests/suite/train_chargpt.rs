//! The example `train_chargpt`: it learns, resumes, and its dry run predicts its memory.

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

/// A model small enough for a test.
const SMALL: &[&str] =
    &["--layers", "1", "--width", "16", "--heads", "2", "--batch-size", "4", "--threads", "1"];

fn run(folder: &Path, context: &str, args: &[&str]) -> Output {
    let text = folder.join("text");
    std::fs::write(&text, "so it goes, and goes, and so on it goes. ".repeat(40)).unwrap();
    let text = text.to_str().unwrap();
    Command::new(crate::built::example("train_chargpt"))
        .args(["--text", text, "--context", context, "--sample", "0"])
        .args(SMALL)
        .args(args)
        // Even with a GPU.
        .env("HIGHWATER_DEVICE", "cpu")
        .output()
        .unwrap()
}

fn results(folder: &Path, args: &[&str]) -> Value {
    let json = folder.join("run.json");
    let output = run(folder, "16", &[args, &["--json", json.to_str().unwrap()]].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap()
}

#[test]
fn it_learns_what_comes_next() {
    let folder = tempfile::tempdir().unwrap();
    let begun = results(folder.path(), &["--steps", "1"])["test_loss"].as_f64().unwrap();
    let learnt =
        results(folder.path(), &["--steps", "80", "--learning-rate", "0.01"])["test_loss"].as_f64().unwrap();
    assert!(learnt < 0.6 * begun, "{begun} became {learnt}");
}

#[test]
fn a_run_that_goes_on_ends_as_one_that_was_not_interrupted() {
    let folder = tempfile::tempdir().unwrap();
    let saved = folder.path().join("half.safetensors");
    let saved = saved.to_str().unwrap();
    let whole = results(folder.path(), &["--steps", "6"]);
    results(folder.path(), &["--steps", "6", "--stop-at", "3", "--save", saved]);
    let resumed = results(folder.path(), &["--steps", "6", "--resume", saved]);
    for key in ["final_loss", "test_loss"] {
        assert_eq!(whole[key], resumed[key], "{key}");
    }
}

#[test]
fn a_run_on_other_characters_does_not_go_on() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    results(folder.path(), &["--steps", "1", "--save", &at("saved")]);
    // The same number of characters, one of them different.
    std::fs::write(at("other"), "so it goes, and goes, and so on it goes! ".repeat(40)).unwrap();
    let resume = |text: &str, more: &[&str]| {
        Command::new(crate::built::example("train_chargpt"))
            .args(["--text", &at(text), "--context", "16", "--sample", "0", "--resume", &at("saved")])
            .args(SMALL)
            .args(["--steps", "2"])
            .args(more)
            .output()
            .unwrap()
    };
    assert!(resume("text", &[]).status.success());
    for refused in [resume("other", &[]), resume("text", &["--tokens", "bytes"])] {
        let error = String::from_utf8(refused.stderr).unwrap();
        assert!(!refused.status.success() && error.contains("has learnt other characters"), "{error}");
    }
}

#[test]
fn its_dry_run_has_the_peak_of_the_real_one() {
    let folder = tempfile::tempdir().unwrap();
    let pool =
        |args: &[&str]| results(folder.path(), &[&["--steps", "2"], args].concat())["pools"][0].clone();
    let (real, dry) = (pool(&["--device", "cpu"]), pool(&["--dry-run"]));
    assert!(real["peak_in_use"].as_u64().is_some(), "{real}");
    for key in ["peak_in_use", "peak_reserved"] {
        assert_eq!(real[key], dry[key], "{key}");
    }
}

#[test]
fn a_checkpoint_of_another_model_is_refused_with_names() {
    let folder = tempfile::tempdir().unwrap();
    let saved = folder.path().join("small.safetensors");
    let saved = saved.to_str().unwrap();
    results(folder.path(), &["--steps", "1", "--save", saved]);
    let output = run(folder.path(), "8", &["--steps", "2", "--resume", saved]);
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.contains("positions.weight"), "{error}");
}

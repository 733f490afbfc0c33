//! A dry run of every example has exactly the figures of the real run: by op, module and category, and of the pool.

use std::process::{Command, Output};

use serde_json::Value;

use crate::built;

/// Every example with a device option, with options for a short run.
const EXAMPLES: &[(&str, &[&str])] = &[
    ("custom_op", &[]),
    ("linear_regression", &["--steps", "20"]),
    ("train_gan", &["--steps", "10"]),
    ("train_digits", &["--epochs", "2"]),
    ("train_digits", &["--epochs", "1", "--precision", "bf16"]),
    ("train_digits", &["--epochs", "1", "--precision", "f16", "--network", "cnn"]),
    ("train_digits", &["--epochs", "1", "--batch-size", "100", "--allocator", "buddy"]),
    ("train_digits", &["--epochs", "1", "--batch-size", "7", "--allocator", "bfc-tensorflow"]),
];

fn run(name: &str, args: &[&str], more: &[&str]) -> Output {
    Command::new(built::example(name)).args(args).args(more).output().unwrap()
}

/// The JSON output of a run.
fn figures(name: &str, args: &[&str], more: &[&str]) -> Value {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.json");
    let output = run(name, args, &[more, &["--json", path.to_str().unwrap()]].concat());
    assert!(output.status.success(), "{name} {args:?}: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

/// Removes times, which a dry run does not have.
pub(crate) fn without_times(figures: &mut Value) {
    match figures {
        Value::Array(values) => values.iter_mut().for_each(without_times),
        Value::Object(fields) => {
            fields.remove("time_ns");
            fields.values_mut().for_each(without_times);
        }
        _ => {}
    }
}

/// Removes times and the names of the pool, which contain the device.
fn without_names(mut figures: Value) -> Value {
    for pool in figures["pools"].as_array_mut().unwrap() {
        pool.as_object_mut().unwrap().retain(|key, _| key != "name" && key != "memory");
    }
    figures["peak"].as_object_mut().unwrap().remove("pool");
    without_times(&mut figures);
    figures
}

#[test]
fn every_example_needs_what_its_dry_run_says_to_the_byte() {
    for (name, args) in EXAMPLES {
        let dry = without_names(figures(name, args, &["--dry-run"]));
        let real = without_names(figures(name, args, &["--device", "cpu", "--threads", "1"]));
        assert!(real["peak"]["bytes"].as_u64().unwrap() > 1000);
        for field in ["ops", "scopes", "places", "categories", "peak", "pools", "unowned_bytes"] {
            assert_eq!(dry[field], real[field], "{name} {args:?}: {field}");
        }
    }
}

#[test]
fn a_dry_run_for_a_gpu_includes_pages_and_workspace() {
    let calls = |figures: &Value| {
        let of = |op: &Value| (op["op"].to_string(), op["phase"].to_string(), op["calls"].as_u64());
        let mut calls: Vec<_> = figures["ops"].as_array().unwrap().iter().map(of).collect();
        calls.sort();
        calls
    };
    let args = ["--epochs", "1"];
    let here = figures("train_digits", &args, &["--dry-run"]);
    let there = figures("train_digits", &args, &["--dry-run=rtx-4090,limit=4MiB"]);
    assert_eq!(calls(&here), calls(&there));
    // The rates of the GPU are known, those of this machine are not.
    let estimated = &there["estimated_step"];
    assert!((1e-5..1e-2).contains(&estimated["seconds"].as_f64().unwrap()), "{estimated}");
    assert!(here.get("estimated_step").is_none() && estimated["limited_by"].is_string());
    let text = run("train_digits", &args, &["--dry-run=rtx-4090"]).stdout;
    assert!(String::from_utf8_lossy(&text).contains("\nestimated time of a step: "));
    let (here, there) = (&here["pools"][0], &there["pools"][0]);
    assert_eq!((&here["memory"], &there["memory"]), (&"address only".into(), &"device".into()));
    let [there_peak, here_peak] = [there, here].map(|pool| pool["peak_in_use"].as_u64().unwrap());
    let apart = there_peak.abs_diff(here_peak);
    assert!((1..256 << 10).contains(&apart), "{there_peak} and {here_peak}");
    assert_eq!((&there["limit"], &there["peak_reserved"]), (&(4 << 20).into(), &(4 << 20).into()));
    let refused = run("train_digits", &["--batch-size", "400"], &["--dry-run=t4,limit=2MiB"]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("out of memory"));
}

#[test]
fn profiles_that_make_no_sense_are_refused_with_a_hint() {
    for (text, hint) in [
        ("toaster", "known profiles: this, cpu, cuda, t4, "),
        ("cuda", "cuda requires the amount of memory"),
        ("t4,limit=lots", "expected bytes, a percentage or all-BYTES"),
    ] {
        let output = run("linear_regression", &[], &[&format!("--dry-run={text}")]);
        assert_eq!(output.status.code(), Some(2), "{text}");
        assert!(String::from_utf8_lossy(&output.stderr).contains(hint), "{output:?}");
    }
}

#[test]
fn the_smallest_pool_of_dry_runs_is_exact() {
    let found = figures("train_digits", &[], &["--find-pool"]);
    let smallest = found["smallest_pool_bytes"].as_u64().unwrap();
    assert_eq!(found["refused_pool_bytes"].as_u64().unwrap(), smallest - 256);
    let train = |bytes: u64| {
        run("train_digits", &["--epochs", "3", "--device", "cpu"], &["--pool", &format!("{bytes}B")])
    };
    assert!(train(smallest).status.success());
    let failure = train(smallest - 256);
    assert_eq!(failure.status.code(), Some(1));
    let text = String::from_utf8_lossy(&failure.stderr).into_owned();
    assert!(text.contains("out of memory (") && text.contains("held by"), "{text}");
}

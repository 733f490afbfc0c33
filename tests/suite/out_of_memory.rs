//! Whole programs that run out of memory: exactly where the dry run predicts, with a full report, and recoverable.

use std::path::Path;
use std::process::{Command, Output};

use crate::built::example;
use highwater::alloc::{Bytes, OomReport, Verdict};
use highwater::prelude::*;
use highwater::tracking::{Budget, Recording, RecordingLimits};
use highwater::{Error, Result, Runtime, largest_fit};
use serde_json::Value;

/// The granule of pools, in bytes.
const GRANULE: u64 = 256;

fn run(binary: &Path, args: &[&str]) -> Output {
    Command::new(binary).args(args).env("RUST_BACKTRACE", "1").output().unwrap()
}

fn stderr(output: &Output) -> &str {
    std::str::from_utf8(&output.stderr).unwrap()
}

/// Trains for an epoch with this pool, dry or not.
fn train(binary: &Path, bytes: u64, device: &str, more: &[&str]) -> Output {
    let pool = format!("{bytes}B");
    run(binary, &[&["--epochs", "1", "--threads", "1", "--pool", &pool, "--device", device], more].concat())
}

#[test]
fn the_smallest_pool_of_a_dry_run_is_exact() {
    let binary = example("train_digits");
    let fits = |bytes: u64| train(&binary, bytes, "dry", &[]).status.success();
    // In granules: the lower bound fails, the upper one fits.
    let (mut low, mut high) = (1 << 10, 1 << 14);
    assert!(!fits(low * GRANULE) && fits(high * GRANULE));
    while high - low > 1 {
        let middle = low.midpoint(high);
        if fits(middle * GRANULE) { high = middle } else { low = middle }
    }
    assert!(train(&binary, high * GRANULE, "cpu", &[]).status.success(), "at {high} granules");

    let folder = tempfile::tempdir().unwrap();
    let [json, html, hwm] = ["oom.json", "oom.html", "run.hwm"].map(|name| folder.path().join(name));
    let told = |file: &Path| {
        let more = ["--oom-report", file.to_str().unwrap(), "--record", hwm.to_str().unwrap()];
        let output = train(&binary, low * GRANULE, "cpu", &more);
        assert_eq!(output.status.code(), Some(1));
        output
    };
    let output = told(&html);
    assert!(std::fs::read_to_string(&html).unwrap().starts_with("<!doctype html>"));
    told(&json);
    let text = stderr(&output);
    let report: OomReport = serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
    assert!([Verdict::Exhausted, Verdict::Fragmented].contains(&report.verdict), "{report}");
    assert!(text.contains(&format!("out of memory ({})", report.verdict)), "{text}");
    assert!(text.contains(&report.advice()) && text.contains("it would fit"), "{text}");
    assert_eq!(report.limit, Some(low * GRANULE));
    assert_eq!(report.in_use, report.holdings.total());
    assert!(report.subject.is_some() && !report.tag.owner.name().is_empty());

    // The recording was not finished and still contains the failure.
    let recording = Recording::read(&std::fs::read(&hwm).unwrap()[..], &RecordingLimits::default()).unwrap();
    let recorded = recording.report_of(0).unwrap();
    assert_eq!((recorded.in_use, recorded.verdict), (report.in_use, report.verdict));
}

#[test]
fn training_goes_on_with_a_smaller_batch() {
    let binary = example("recover_from_oom");
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.json");
    // Within a budget, in a pool, and in a dry run.
    for more in [&[][..], &["--pool", "2"], &["--dry-run", "--pool", "2"]] {
        let output = run(&binary, &[&["--json", path.to_str().unwrap()], more].concat());
        assert!(output.status.success(), "{}", stderr(&output));
        let json: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        let (failures, batch) = (json["failures"].as_u64().unwrap(), json["batch_size"].as_u64().unwrap());
        assert!((1..10).contains(&failures) && batch < 1024, "{json}");
        assert_eq!(json["steps"], 40);
        assert_eq!(stderr(&output).lines().count() as u64, failures, "each failure is told once");
        let verdict = if more.is_empty() { "over the budget of its scope" } else { "exhausted" };
        assert!(stderr(&output).contains(verdict), "{}", stderr(&output));
    }
}

#[test]
fn a_run_too_small_for_a_batch_of_one_ends_with_the_report() {
    let output = run(&example("recover_from_oom"), &["--pool", "128KiB"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        stderr(&output).contains("error: ") && stderr(&output).contains("held by"),
        "{}",
        stderr(&output)
    );
}

fn runtime() -> Runtime {
    Runtime::builder().pool(Bytes::mib(2)).threads(1).build().unwrap()
}

fn layer(x: &Tensor) -> Result<Tensor> {
    let _scope = module("oom-test.layer");
    x.relu()
}

#[test]
fn an_error_names_op_scope_shape_and_type() {
    let device = runtime().cpu().unwrap();
    let x = Tensor::ones(&device, [1024, 256]).unwrap();
    let kept = layer(&x.slice(0, 0..256).unwrap()).unwrap();
    let error = layer(&x).unwrap_err();
    let report = error.out_of_memory().unwrap();
    assert_eq!(report.tag.owner.path(), "oom-test.layer.relu");
    assert_eq!(report.subject.as_ref().unwrap().to_string(), "[1024, 256] of f32");
    assert_eq!(report.holdings.by_scope().len(), 2);
    drop((kept, x));
}

/// The network of the README's second example.
#[derive(Debug)]
struct Network {
    conv: Conv2d,
    head: Linear,
}

impl Network {
    fn new(device: &Device) -> Result<Self> {
        let rng = Rng::new(0);
        Ok(Self {
            conv: Conv2d::new(device, 1, 8, [3, 3], Conv2dOptions::padded(1), &rng)?,
            head: Linear::new(device, 8 * 14 * 14, 10, &rng)?,
        })
    }

    fn scores(&self, device: &Device, batch: u64) -> Result<()> {
        let x = Tensor::zeros(device, [batch as usize, 1, 28, 28])?;
        let x = self.conv.forward(&x)?.relu()?.max_pool2d(2)?;
        self.head.forward(&x.flatten(1, -1)?).map(drop)
    }
}

#[test]
fn largest_fit_finds_83_in_the_readme_example_and_84_fails() {
    let profile = DeviceProfile::this_machine().with_limit(Bytes::mib(8));
    let found =
        largest_fit(profile, 1..=512, |device, batch| Network::new(device)?.scores(device, batch)).unwrap();
    assert_eq!(found.largest, Some(83));
    assert_eq!(found.failure.map(|failure| failure.number), Some(84));
    // A pool of its own for each batch, and one pool in which the larger batches failed before.
    let pool = || Runtime::builder().pool(Bytes::mib(8)).build().unwrap().cpu().unwrap();
    for (batch, fits) in [(83, true), (84, false), (512, false)] {
        let device = pool();
        assert_eq!(Network::new(&device).unwrap().scores(&device, batch).is_ok(), fits, "{batch}");
    }
    let device = pool();
    let network = Network::new(&device).unwrap();
    for (batch, fits) in [(512, false), (84, false), (83, true)] {
        assert_eq!(network.scores(&device, batch).is_ok(), fits, "{batch}");
    }
}

#[test]
fn a_program_frees_its_caches_when_asked_and_its_ops_succeed() {
    let runtime = runtime();
    let device = runtime.cpu().unwrap();
    let cache = std::sync::Mutex::new(vec![Tensor::ones(&device, [256, 1024]).unwrap()]);
    runtime.tracker().last_resort().before_giving_up(move |_| cache.lock().unwrap().pop().is_some());
    let x = Tensor::ones(&device, [512, 1024]);
    assert!(x.is_ok(), "1 MiB was cached of 2");
    assert_eq!(runtime.tracker().last_resort().rescued(), 1);
    assert!(x.unwrap().relu().is_err(), "there is no more to free");
    assert_eq!(runtime.tracker().last_resort().failures(), 1);
}

#[test]
fn a_refused_budget_leaves_everything_unchanged() {
    let device = runtime().cpu().unwrap();
    let x = Tensor::ones(&device, [64, 256]).unwrap();
    let before = device.memory_allocated().unwrap();
    let budget = Budget::new("oom-test.layer", Bytes::kib(63));
    let error = layer(&x).unwrap_err();
    assert!(matches!(error, Error::Allocation { op: "relu", .. }), "{error}");
    assert_eq!(error.out_of_memory().unwrap().verdict, Verdict::OverBudget);
    assert_eq!(device.memory_allocated().unwrap(), before);
    drop(budget);
    let scope = module("oom-test.layer").limit(Bytes::kib(64));
    assert!(x.relu().is_ok(), "64 KiB are 64 KiB");
    drop(scope);
}

//! The search for a plan that fits: predicted peaks are those of real runs, and plans train the same model.

use std::process::{Command, Output};

use highwater::alloc::Bytes;
use highwater::distributed::{Shard, World};
use highwater::fit::{Fit, FitError, Indivisible, Plan, Space, fit, fit_ranks};
use highwater::nn::recompute::{Recomputation, Recompute};
use highwater::prelude::*;
use highwater::tensor::record_passes;
use highwater::{DryRunOptions, StepTime, dry_run};
use serde_json::Value;

const BLOCKS: usize = 4;
const BATCH: usize = 32;
const CONTEXT: usize = 48;
const STEPS: u64 = 3;

/// This machine's CPU with one thread. The speed is that of another device, so that results do not depend on the machine.
fn cpu() -> DeviceProfile {
    let gpu = DeviceProfile::gpu("rtx-4090").unwrap();
    DeviceProfile::this_machine().with_threads(1).with_speed(gpu.speed().unwrap().clone())
}

/// A transformer with dropout, or not, on tokens that depend on the number of their sequence.
fn transformer(device: &Device, plan: &Plan, dropout: bool) -> highwater::Result<Vec<f64>> {
    let rng = Rng::new(1);
    let mut blocks = Sequential::new();
    for layer in 0..BLOCKS {
        let block = TransformerBlock::new(device, 32, 4, &rng)?.causal();
        let block = if dropout { block.with_dropout(0.1, &rng.fork(layer as u64))? } else { block };
        blocks = blocks.with(&layer.to_string(), block);
    }
    let model = Sequential::new()
        .with("tokens", Embedding::new(device, 11, 32, &rng)?)
        .with("blocks", blocks)
        .with("head", Linear::new(device, 32, 11, &rng)?);
    let batch = |number: u64| {
        let count = plan.micro_batch as i64 * CONTEXT as i64;
        let tokens: Vec<i64> =
            (0..count).map(|at| number as i64 * count + at).map(|at| at * at % 11).collect();
        Tensor::from_slice(device, &tokens, [plan.micro_batch, CONTEXT])
    };
    train(&model, device, plan, batch, |model, x| {
        model.forward(x)?.flatten(0, 1)?.cross_entropy(&x.flatten(0, 1)?)
    })
}

/// A chain of residual blocks with batch norms.
fn residual(device: &Device, plan: &Plan) -> highwater::Result<Vec<f64>> {
    let rng = Rng::new(2);
    let mut blocks = Sequential::new();
    for block in 0..BLOCKS {
        blocks = blocks.with(&block.to_string(), Residual::new(device, &rng)?);
    }
    let model = Sequential::new()
        .with("blocks", blocks)
        .with("flat", Flatten)
        .with("fc", Linear::new(device, 512, 4, &rng)?);
    let images = |_| Tensor::normal(device, [plan.micro_batch, 8, 8, 8], 0.0, 1.0, &Rng::new(3));
    train(&model, device, plan, images, |model, x| model.forward(x)?.square()?.mean_all())
}

#[derive(Debug, Module)]
struct Residual {
    conv: Conv2d,
    norm: BatchNorm,
}

impl Residual {
    fn new(device: &Device, rng: &Rng) -> highwater::Result<Self> {
        let conv = Conv2d::new(device, 8, 8, [3, 3], Conv2dOptions::padded(1), rng)?;
        Ok(Self { conv, norm: BatchNorm::new(device, 8)? })
    }
}

#[module]
impl Module for Residual {
    fn forward(&self, x: &Tensor) -> highwater::Result<Tensor> {
        self.norm.forward(&self.conv.forward(x)?)?.add(x)?.relu()
    }
}

/// Steps of a loop without a `Trainer`. Returns the mean loss of each.
fn train<M: Module>(
    model: &M,
    device: &Device,
    plan: &Plan,
    batch: impl Fn(u64) -> highwater::Result<Tensor>,
    loss: impl Fn(&M, &Tensor) -> highwater::Result<Tensor>,
) -> highwater::Result<Vec<f64>> {
    let (mut optimizer, mut losses) = (AdamW::new(model.parameters(), 0.01)?, Vec::new());
    for step in 0..plan.steps(STEPS) {
        let (mut gradients, mut sum) = (Gradients::default(), 0.0);
        for part in 0..plan.accumulate {
            let loss = loss(model, &batch(step * plan.accumulate + part)?)?;
            gradients.accumulate(&mut loss.backward()?)?;
            if !device.is_dry() {
                sum += f64::from(loss.item::<f32>()?) / plan.accumulate as f64;
            }
        }
        gradients.scale(1.0 / plan.accumulate as f64)?;
        optimizer.step(gradients)?;
        losses.push(sum);
    }
    Ok(losses)
}

/// Trains on the CPU in a pool of this size. Returns the losses and the peak.
fn real(
    limit: Option<Bytes>,
    plan: &Plan,
    program: impl Fn(&Device, &Plan) -> highwater::Result<Vec<f64>>,
) -> (Vec<f64>, u64) {
    let builder = Runtime::builder().threads(1);
    let runtime = limit.into_iter().fold(builder, |builder, limit| builder.pool(limit)).build().unwrap();
    let device = runtime.cpu().unwrap();
    let guard = plan.enter().unwrap();
    let losses = program(&device, plan).unwrap();
    guard.check().unwrap();
    (losses, device.default_allocator().unwrap().stats().peak_bytes_in_use)
}

fn peak_of(plan: &Plan, program: impl Fn(&Device, &Plan) -> highwater::Result<Vec<f64>>) -> u64 {
    dry_run(cpu(), |device| program(device, plan)).unwrap().peak.in_use
}

fn find(share: f64, space: &Space, program: impl Fn(&Device, &Plan) -> highwater::Result<Vec<f64>>) -> Fit {
    let plain = peak_of(&Plan::new(BATCH), &program);
    let limit = Bytes((plain as f64 * share) as u64);
    fit(cpu().with_limit(limit), space, |device, plan| program(device, plan).map(drop)).unwrap()
}

#[test]
fn the_chosen_plan_trains_with_the_predicted_peak() {
    for share in [0.75, 0.5, 0.25] {
        for dropout in [false, true] {
            let program = |device: &Device, plan: &Plan| transformer(device, plan, dropout);
            let found = find(share, &Space::new(BATCH), program);
            let chosen = found.chosen();
            let limit = Bytes(found.limit_bytes.unwrap());
            assert!(chosen.peak_bytes <= limit.get());
            assert_eq!(real(Some(limit), &chosen.plan, program).1, chosen.peak_bytes, "{}", chosen.plan);
            // So do the other plans of the front, which increases in time and decreases in memory.
            for pair in found.plans.windows(2) {
                assert!(pair[0].peak_bytes > pair[1].peak_bytes && pair[0].seconds <= pair[1].seconds);
                assert_eq!(
                    real(Some(limit), &pair[1].plan, program).1,
                    pair[1].peak_bytes,
                    "{}",
                    pair[1].plan
                );
            }
        }
    }
}

/// The estimated time of a step; `None` if the plan does not fit.
fn estimate(options: &DryRunOptions, plan: &Plan) -> Option<f64> {
    let (run, passes) = record_passes(|| {
        options.run(|device| {
            let _plan = plan.enter()?;
            transformer(device, plan, false)
        })
    });
    run.ok()?;
    let ends: Vec<StepTime> = passes.iter().map(|pass| pass.estimated.unwrap()).collect();
    let step = plan.accumulate as usize;
    Some((ends[ends.len() - 1] - ends[ends.len() - 1 - step]).seconds)
}

#[test]
fn no_enumerated_plan_that_fits_is_estimated_faster() {
    for share in [0.75, 0.5, 0.25] {
        let found = find(share, &Space::new(BATCH), |device, plan| transformer(device, plan, false));
        let options = DryRunOptions::new(cpu()).limit(Bytes(found.limit_bytes.unwrap()));
        let mut fastest = f64::INFINITY;
        for micro_batch in [32, 16, 8, 4] {
            for set in 0..1 << BLOCKS {
                let mut plan = Plan::new(micro_batch);
                plan.accumulate = (BATCH / micro_batch) as u64;
                let again = (0..BLOCKS).filter(|block| set >> block & 1 == 1);
                plan.recompute = Recompute::new().with("blocks", Recomputation::of_blocks(BLOCKS, again));
                fastest = fastest.min(estimate(&options, &plan).unwrap_or(f64::INFINITY));
            }
        }
        assert!(found.chosen().seconds <= fastest * 1.05, "{} s, not {fastest}", found.chosen().seconds);
    }
}

#[test]
fn recomputation_changes_no_bit_and_micro_batches_little() {
    let (losses, _) = real(None, &Plan::new(BATCH), |device, plan| transformer(device, plan, true));
    assert!(losses.iter().all(|loss| loss.is_finite()) && losses[0] != losses[2]);
    for recomputation in ["(1) (1) (1) (1)", "(4)", "1 (2 (1))", "(1) 2 (1)"] {
        let mut plan = Plan::new(BATCH);
        plan.recompute = Recompute::new().with("blocks", recomputation.parse::<Recomputation>().unwrap());
        assert_eq!(
            real(None, &plan, |device, plan| transformer(device, plan, true)).0,
            losses,
            "{recomputation}"
        );
    }
    // Sums over micro-batches round differently. The documentation states this tolerance.
    let (losses, _) = real(None, &Plan::new(BATCH), |device, plan| transformer(device, plan, false));
    for micro_batch in [8, 4, 1] {
        let mut plan = Plan::new(micro_batch);
        plan.accumulate = (BATCH / micro_batch) as u64;
        let (others, _) = real(None, &plan, |device, plan| transformer(device, plan, false));
        for (one, other) in losses.iter().zip(&others) {
            assert!((one - other).abs() <= 1e-4 * one.abs(), "{micro_batch}: {one} and {other}");
        }
    }
}

#[test]
fn a_model_with_batch_norm_keeps_its_micro_batch() {
    let found = find(0.9, &Space::new(BATCH), residual);
    assert!(found.plans.iter().chain(&found.others).all(|plan| plan.plan.micro_batch == BATCH));
    assert!(!found.chosen().plan.recompute.is_plain(), "{found}");
    let limit = Bytes(found.limit_bytes.unwrap());
    let (losses, peak) = real(Some(limit), &found.chosen().plan, residual);
    assert_eq!(peak, found.chosen().peak_bytes);
    assert_eq!(losses, real(None, &Plan::new(BATCH), residual).0);
    let error =
        fit(cpu(), &Space::new(BATCH).micro_batches([4]), |device, plan| residual(device, plan).map(drop));
    assert!(
        matches!(error, Err(FitError::NoWholeBatch { batch: BATCH, reason: Indivisible::BatchNorm })),
        "{error:?}"
    );
}

#[test]
fn if_nothing_fits_the_error_says_what_would() {
    let program = |device: &Device, plan: &Plan| transformer(device, plan, false).map(drop);
    let space = Space::new(BATCH);
    let Err(FitError::NothingFits(nothing)) = fit(cpu().with_limit(Bytes::kib(64)), &space, program) else {
        panic!("a model in 64 KiB");
    };
    assert!(nothing.error.out_of_memory().is_some_and(|report| report.details().contains("held by modules")));
    let text = nothing.to_string();
    assert!(
        text.starts_with("no plan fits on this machine in 64.00 KiB: the smallest, micro-batch 1 × 32"),
        "{text}"
    );
    let enough = fit(cpu().with_limit(Bytes(nothing.required_bytes)), &space, program).unwrap();
    assert!(enough.chosen().peak_bytes <= nothing.required_bytes);
    assert!(fit(cpu().with_limit(Bytes(nothing.required_bytes - 256)), &space, program).is_err());
}

/// Limits that are no multiples of a GPU's regions of 2 MiB.
#[test]
fn no_plan_exceeds_an_odd_limit_of_a_gpu() {
    let program = |device: &Device, plan: &Plan| transformer(device, plan, false).map(drop);
    let card = |limit| DeviceProfile::gpu("rtx-4090").unwrap().with_limit(Bytes(limit));
    let mut fitting = 0;
    for limit in
        [100 << 10, 1 << 20, (2 << 20) - 1, 3 << 20, 5 << 20, 7169 << 10, (8 << 20) - 1, (65 << 20) + 1]
    {
        match fit(card(limit), &Space::new(BATCH), program) {
            Ok(found) => {
                fitting += 1;
                assert!(found.limit_bytes.unwrap() <= limit, "{found}");
                let all = found.plans.iter().chain(&found.others).filter(|plan| plan.fits);
                assert!(
                    all.clone().count() > 0 && all.clone().all(|plan| plan.peak_bytes <= limit),
                    "{found}"
                );
                let plan = found.chosen().plan.clone();
                let run = dry_run(card(limit), |device| {
                    let _plan = plan.enter()?;
                    program(device, &plan)
                });
                let peak = run.unwrap().peak;
                assert!(
                    peak.in_use == found.chosen().peak_bytes && peak.reserved <= limit,
                    "{found}: {peak}"
                );
            }
            Err(FitError::NothingFits(nothing)) => {
                assert!(nothing.required_bytes > limit, "{nothing}");
                let enough = fit(card(nothing.required_bytes), &Space::new(BATCH), program).unwrap();
                assert!(enough.chosen().peak_bytes <= nothing.required_bytes, "{enough}");
            }
            Err(error) => {
                let text = error.to_string();
                assert!(limit < 2 << 20 && text.contains(&format!("{limit} bytes")), "{text}");
                assert!(text.contains("one region of 2097152 bytes"), "{text}");
            }
        }
    }
    assert!(fitting >= 3, "{fitting}");
}

/// A layer whose optimizer's state and gradients are most of the memory.
fn layer(device: &Device, plan: &Plan, world: &World) -> highwater::Result<()> {
    let model = Sequential::new()
        .with("fc1", Linear::new(device, 1024, 1024, &Rng::new(0))?)
        .with("fc2", Linear::new(device, 1024, 1024, &Rng::new(1))?);
    let mut optimizer = world.sharded(plan.shard, model.parameters(), |own| AdamW::new(own, 0.01))?;
    for _ in 0..plan.steps(2) {
        let x = Tensor::zeros(device, [plan.micro_batch, 1024])?;
        optimizer.step(model.forward(&x)?.square()?.mean_all()?.backward()?)?;
    }
    Ok(())
}

#[test]
fn ranks_divide_memory_if_one_has_too_little() {
    let card: DeviceProfile = "rtx-4090,limit=31MiB".parse().unwrap();
    let shards = [Shard::None, Shard::Optimizer, Shard::Gradients];
    let Err(FitError::NothingFits(nothing)) = fit_ranks(card.clone(), &Space::new(8).whole_batch(), layer)
    else {
        panic!("32 MiB in 31");
    };
    assert_eq!(nothing.ranks, Some(2));
    let space = Space::new(8).whole_batch().ranks([1, 2, 3, 4]).shards(shards);
    let found = fit_ranks(card, &space, layer).unwrap();
    assert!(found.chosen().plan.ranks > 1 && found.chosen().plan.shard != Shard::None, "{found}");
    assert!(found.plans.iter().chain(&found.others).all(|plan| plan.plan.ranks != 3));
}

#[test]
fn programs_without_a_step_and_devices_without_a_speed_are_errors() {
    let space = Space::new(4);
    let forward = |device: &Device, plan: &Plan| Tensor::zeros(device, [plan.micro_batch]).map(drop);
    assert!(matches!(fit(cpu(), &space, forward), Err(FitError::NoStep { .. })));
    let card: DeviceProfile = "cuda,memory=24GiB".parse().unwrap();
    let error = fit(card, &space, forward).unwrap_err().to_string();
    assert!(error.starts_with("the speed of cuda is unknown"), "{error}");
    assert!(matches!(fit(cpu(), &Space::new(4).ranks([3]), forward), Err(FitError::NoPlan { batch: 4 })));
    // A plan for another model.
    let mut plan = Plan::new(2);
    plan.recompute = Recompute::new().with("layers", Recomputation::of_blocks(3, [1]));
    let guard = plan.enter().unwrap();
    let error = guard.check().unwrap_err().to_string();
    assert!(error.contains("layers"), "{error}");
}

/// Runs an example with `--json`. Returns its output and the JSON, if there is one.
fn run(name: &str, args: &[&str]) -> (Output, Option<Value>) {
    let folder = tempfile::tempdir().unwrap();
    let json = folder.path().join("run.json");
    let mut command = Command::new(crate::built::example(name));
    // The speed of the machine is measured anew, not read from the cache of the user.
    command.env("XDG_CACHE_HOME", folder.path()).args(args).args(["--json", json.to_str().unwrap()]);
    let output = command.output().unwrap();
    (output, std::fs::read(&json).ok().map(|json| serde_json::from_slice(&json).unwrap()))
}

#[test]
fn an_example_trains_with_the_plan_that_it_finds() {
    let args = ["--network", "cnn", "--fit", "3MiB", "--device", "cpu", "--epochs", "2", "--threads", "1"];
    let (output, json) = run("train_digits", &args);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(text.contains("as predicted") && text.contains("* micro-batch "), "{text}");
    let json = json.unwrap();
    assert_eq!(json["peak_bytes"], json["predicted_peak_bytes"]);
    assert_eq!(json["peak_bytes"], json["pools"][0]["peak_in_use"]);
    let chosen = &json["plans"][json["chosen"].as_u64().unwrap() as usize];
    assert_eq!(chosen["peak_bytes"], json["predicted_peak_bytes"]);
    assert_eq!((chosen["is_measured"].as_bool(), chosen["fits"].as_bool()), (Some(true), Some(true)));
    assert!(chosen["peak_bytes"].as_u64().unwrap() <= 3 << 20);
    assert!(chosen["plan"]["micro_batch"].as_u64().unwrap() < 64, "{chosen}");
}

#[test]
fn an_example_finds_a_plan_for_another_device_or_says_what_is_missing() {
    let (output, json) = run("train_chargpt", &["--fit", "rtx-4090", "--precision", "bf16", "--steps", "3"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let json = json.unwrap();
    assert_eq!(json["peak_bytes"], json["predicted_peak_bytes"]);
    let precisions: Vec<_> =
        json["plans"].as_array().unwrap().iter().map(|plan| &plan["plan"]["precision"]).collect();
    assert!(precisions.iter().all(|precision| precision.is_null() || *precision == "bf16"), "{precisions:?}");

    let (output, _) = run("train_chargpt", &["--fit", "rtx-4090,limit=2MiB"]);
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1));
    assert!(text.starts_with("error: no plan fits on rtx-4090 in 2.00 MiB: the smallest, "), "{text}");
    assert!(text.contains("held by modules"), "{text}");
    for wrong in [&["--fit", "24"][..], &["--fit", "24MiB", "--pool", "3"], &["--fit", "rtx-4091"]] {
        assert_eq!(run("train_digits", wrong).0.status.code(), Some(2), "{wrong:?}");
    }
}

//! Which losses a search divides into micro-batches, and that their gradients are those of the whole batch.

use highwater::distributed::World;
use highwater::fit::{Fit, FitError, Indivisible, Plan, Space, fit, fit_ranks};
use highwater::prelude::*;
use highwater::train::Trainer;
use highwater::{CrossEntropyOptions, LinearCrossEntropyOptions, Result};

use crate::support::{cpu, values};

const BATCH: usize = 8;
const WIDTH: usize = 6;
const CLASSES: usize = 3;

/// This machine's CPU with the speed of another device, so that results do not depend on the machine.
pub(crate) fn profile() -> DeviceProfile {
    let gpu = DeviceProfile::gpu("rtx-4090").unwrap();
    DeviceProfile::this_machine().with_threads(1).with_speed(gpu.speed().unwrap().clone())
}

/// A batch: inputs, classes of which some are -1, values like the scores, and a mask of the rows.
struct Batch {
    x: Tensor,
    classes: Tensor,
    valid: Tensor,
    y: Tensor,
    mask: Tensor,
}

fn batch(device: &Device, examples: std::ops::Range<usize>) -> Result<Batch> {
    let n = examples.len();
    let number = |at: usize| (at * 7919 % 101) as f32 / 101.0;
    let x: Vec<f32> = examples.clone().flat_map(|i| (0..WIDTH).map(move |j| number(i * WIDTH + j))).collect();
    let y: Vec<f32> =
        examples.clone().flat_map(|i| (0..CLASSES).map(move |j| number(3 * i + j + 50))).collect();
    let valid: Vec<i64> = examples.clone().map(|i| (i % CLASSES) as i64).collect();
    let classes: Vec<i64> =
        examples.clone().map(|i| if i % 4 < 2 { -1 } else { (i % CLASSES) as i64 }).collect();
    let mask: Vec<f32> = examples.map(|i| if i % 4 < 2 { 0.0 } else { 1.0 }).collect();
    Ok(Batch {
        x: Tensor::from_slice(device, &x, [n, WIDTH])?,
        classes: Tensor::from_slice(device, &classes, [n])?,
        valid: Tensor::from_slice(device, &valid, [n])?,
        y: Tensor::from_slice(device, &y, [n, CLASSES])?,
        mask: Tensor::from_slice(device, &mask, [n])?,
    })
}

type Loss = fn(&Linear, &Batch) -> Result<Tensor>;

fn ignoring(reduction: Reduction) -> CrossEntropyOptions<'static> {
    CrossEntropyOptions { ignore_index: Some(-1), reduction, ..Default::default() }
}

/// Losses whose mean over micro-batches is that over the batch.
const MEANS: &[(&str, Loss)] = &[
    ("cross_entropy", |model, b| model.forward(&b.x)?.cross_entropy(&b.valid)),
    ("smoothed", |model, b| {
        let options = CrossEntropyOptions { label_smoothing: 0.1, ..Default::default() };
        model.forward(&b.x)?.cross_entropy_with(&b.valid, options)
    }),
    ("linear_cross_entropy", |model, b| {
        let options = LinearCrossEntropyOptions { chunk: Some(3), ..Default::default() };
        b.x.linear_cross_entropy(&model.weight().tensor(), &b.valid, options)
    }),
    ("mse", |model, b| model.forward(&b.x)?.mse_loss(&b.y)),
    ("l1", |model, b| model.forward(&b.x)?.l1_loss(&b.y)),
    ("bce", |model, b| model.forward(&b.x)?.bce_with_logits(&b.y)),
    ("huber of half precision", |model, b| {
        let x = model.forward(&b.x)?.to_dtype(DType::BF16)?;
        x.huber_loss(&b.y.to_dtype(DType::BF16)?, 0.1)?.to_dtype(DType::F32)
    }),
    ("no reduction", |model, b| model.forward(&b.x)?.mse_loss_with(&b.y, Reduction::None)?.mean_all()),
    ("sum of an axis", |model, b| model.forward(&b.x)?.square()?.sum(1)?.mean_all()),
    ("sum / examples", |model, b| {
        let squares = model.forward(&b.x)?.square()?.sum_all()?;
        squares.div_scalar(b.x.dims()[0] as f64)
    }),
    ("with weight decay", |model, b| {
        let decay = model.weight().tensor().square()?.sum_all()?.mul_scalar(0.01)?;
        model.forward(&b.x)?.cross_entropy(&b.valid)?.add(&decay)
    }),
    ("two losses", |model, b| {
        let y = model.forward(&b.x)?;
        let (one, two) = (y.cross_entropy(&b.valid)?, y.square()?.mean_all()?.mul_scalar(0.1)?);
        Tensor::stack(&[&one, &two], 0)?.sum_all()
    }),
    ("a learned weight", |model, b| {
        let weight = model.weight().tensor().square()?.mean_all()?.neg()?.exp()?;
        model.forward(&b.x)?.cross_entropy(&b.valid)?.mul(&weight)
    }),
    ("masked without a count", |model, b| model.forward(&b.x)?.square()?.sum(1)?.mul(&b.mask)?.mean_all()),
    ("normalized rows", |model, b| {
        let y = model.forward(&b.x)?;
        y.sub(&y.mean_keepdim(1)?)?
            .div(&y.square()?.sum_keepdim(1)?.sqrt()?.add_scalar(1.0)?)?
            .square()?
            .mean_all()
    }),
    ("sums of pairs", |model, b| {
        let y = model.forward(&b.x)?.square()?.sum_keepdim(1)?;
        y.add(&y.t()?)?.mean_all()
    }),
    ("repeated", |model, b| {
        let n = b.x.dims()[0];
        model.forward(&b.x)?.square()?.sum_keepdim(1)?.broadcast_to([n, n])?.mean_all()
    }),
    ("ignored rows of a fixed number", |model, b| {
        let options = ignoring(Reduction::Sum);
        model.forward(&b.x)?.cross_entropy_with(&b.classes, options)?.div_scalar(b.x.dims()[0] as f64)
    }),
];

fn projected(model: &Linear, b: &Batch, options: LinearCrossEntropyOptions) -> Result<Tensor> {
    // The weights of the layer as two factors: hidden states, and a projection.
    b.x.mul(&model.weight().tensor().sum(1)?)?.linear_cross_entropy(
        &model.weight().tensor(),
        &b.classes,
        options,
    )
}

/// Means over the targets that are not ignored. Micro-batches have the gradients of the batch if they count by their targets, as
/// the Trainer does.
const COUNTED: &[(&str, Loss)] = &[
    ("ignored", |model, b| model.forward(&b.x)?.cross_entropy_with(&b.classes, ignoring(Reduction::Mean))),
    ("ignored and smoothed", |model, b| {
        let options = CrossEntropyOptions { label_smoothing: 0.1, ..ignoring(Reduction::Mean) };
        model.forward(&b.x)?.cross_entropy_with(&b.classes, options)
    }),
    ("linear, ignored", |model, b| {
        let ignore_index = Some(-1);
        projected(model, b, LinearCrossEntropyOptions { ignore_index, ..Default::default() })
    }),
    ("linear, ignored, by chunks", |model, b| {
        let (ignore_index, chunk) = (Some(-1), Some(2));
        projected(model, b, LinearCrossEntropyOptions { ignore_index, chunk, ..Default::default() })
    }),
    ("ignored, with weight decay", |model, b| {
        let decay = model.weight().tensor().square()?.sum_all()?.mul_scalar(0.01)?;
        let loss = model.forward(&b.x)?.cross_entropy_with(&b.classes, ignoring(Reduction::Mean))?;
        loss.mul_scalar(0.5)?.add(&decay)
    }),
];

/// Losses that combine the examples of a batch in other ways.
const OTHERS: &[(&str, Loss)] = &[
    ("class weights", |model, b| {
        let weights = Tensor::from_slice(b.x.device(), &[1.0f32, 2.0, 3.0], [CLASSES])?;
        let options = CrossEntropyOptions { class_weights: Some(&weights), ..Default::default() };
        model.forward(&b.x)?.cross_entropy_with(&b.valid, options)
    }),
    ("ignored, with another loss", |model, b| {
        let y = model.forward(&b.x)?;
        y.cross_entropy_with(&b.classes, ignoring(Reduction::Mean))?.add(&y.square()?.mean_all()?)
    }),
    ("masked mean", |model, b| {
        let sum = model.forward(&b.x)?.square()?.sum(1)?.mul(&b.mask)?.sum_all()?;
        sum.div(&b.mask.sum_all()?)
    }),
    ("masked mean by a factor", |model, b| {
        let sum = model.forward(&b.x)?.square()?.sum(1)?.mul(&b.mask)?.sum_all()?;
        sum.mul(&b.mask.sum_all()?.recip()?)
    }),
    ("normalized mask", |model, b| {
        let mask = b.mask.div(&b.mask.sum_all()?)?;
        model.forward(&b.x)?.square()?.sum(1)?.mul(&mask)?.sum_all()
    }),
    ("quotient before the sum", |model, b| {
        let masked = model.forward(&b.x)?.square()?.sum(1)?.mul(&b.mask)?;
        masked.div(&b.mask.sum_all()?)?.sum_all()
    }),
    ("sum", |model, b| model.forward(&b.x)?.square()?.sum_all()),
    ("sum of a loss", |model, b| model.forward(&b.x)?.mse_loss_with(&b.y, Reduction::Sum)),
    ("sum and mean", |model, b| model.forward(&b.x)?.square()?.sum(0)?.mean_all()),
    ("root of the mean", |model, b| model.forward(&b.x)?.mse_loss(&b.y)?.sqrt()),
    ("square of the mean", |model, b| model.forward(&b.x)?.mean(0)?.square()?.mean_all()),
    ("overlap", |model, b| {
        let p = model.forward(&b.x)?.sigmoid()?;
        let both = p.mul(&b.y)?.sum_all()?;
        both.div(&p.sum_all()?.add(&b.y.sum_all()?)?)?.neg()
    }),
    ("pairs", |model, b| {
        let y = model.forward(&b.x)?;
        let positions = Tensor::arange(b.x.device(), 0, y.dims()[0] as i64)?;
        y.matmul(&b.y.t()?)?.cross_entropy(&positions)
    }),
    ("sums of pairs / examples", |model, b| {
        let y = model.forward(&b.x)?.square()?.sum_keepdim(1)?;
        y.add(&y.t()?)?.sum_all()?.div_scalar(b.x.dims()[0] as f64)
    }),
    ("repeated / examples", |model, b| {
        let n = b.x.dims()[0];
        let y = model.forward(&b.x)?.square()?.sum_keepdim(1)?;
        y.broadcast_to([n, n])?.sum_all()?.div_scalar(n as f64)
    }),
    ("centered by the batch", |model, b| {
        let y = model.forward(&b.x)?;
        y.sub(&y.mean_keepdim(0)?)?.square()?.mean_all()
    }),
    ("batch statistics", |model, b| {
        let y = model.forward(&b.x)?;
        let [weight, bias] = [Tensor::ones(y.device(), [CLASSES])?, Tensor::zeros(y.device(), [CLASSES])?];
        let statistics = highwater::tensor::BatchStatistics::Batch { running: None };
        y.batch_norm(&weight, &bias, statistics, 1e-5)?.mse_loss(&b.y)
    }),
    ("largest", |model, b| model.forward(&b.x)?.max(0)?.mean_all()),
];

/// Trains a step by a loop, or by a trainer. Returns the parameters after it.
fn step(device: &Device, plan: &Plan, loss: Loss, by_trainer: bool) -> Result<Vec<f32>> {
    let model = Linear::new(device, WIDTH, CLASSES, &Rng::new(0))?;
    let mut sgd = Sgd::new(model.parameters(), 1.0)?;
    let part = |number: u64| {
        batch(device, number as usize * plan.micro_batch..(number as usize + 1) * plan.micro_batch)
    };
    if by_trainer {
        let trainer = Trainer::new(&model, &mut sgd).plan(plan).ignore_signals();
        trainer.train_steps(1, part, |batch| loss(&model, batch)).map(drop)?;
    } else {
        let mut gradients = Gradients::default();
        for number in 0..plan.accumulate {
            gradients.accumulate(&mut loss(&model, &part(number)?)?.backward()?)?;
        }
        gradients.scale(1.0 / plan.accumulate as f64)?;
        sgd.step(gradients)?;
    }
    Ok(if device.is_dry() { Vec::new() } else { values(&model) })
}

fn search(loss: Loss, by_trainer: bool) -> Fit {
    fit(profile(), &Space::new(BATCH), |device, plan| step(device, plan, loss, by_trainer).map(drop)).unwrap()
}

fn plans(found: &Fit) -> Vec<Plan> {
    found.plans.iter().chain(&found.others).map(|candidate| candidate.plan.clone()).collect()
}

fn difference(one: &[f32], other: &[f32]) -> f32 {
    one.iter().zip(other).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

#[test]
fn every_plan_of_a_mean_has_the_gradients_of_the_whole_batch() {
    for by_trainer in [false, true] {
        for &(name, loss) in MEANS {
            let found = search(loss, by_trainer);
            assert!(found.indivisible.is_none(), "{name}: {:?}", found.indivisible);
            let whole = step(&cpu(), &Plan::new(BATCH), loss, by_trainer).unwrap();
            let tolerance = if name.contains("half") { 1e-2 } else { 1e-4 };
            for plan in Space::new(BATCH).plans() {
                let parts = step(&cpu(), &plan, loss, by_trainer).unwrap();
                assert!(difference(&whole, &parts) < tolerance, "{name}, {plan}: {whole:?} {parts:?}");
            }
        }
    }
}

#[test]
fn the_trainer_counts_targets_that_are_not_ignored() {
    for &(name, loss) in COUNTED {
        let found = search(loss, true);
        assert!(found.indivisible.is_none(), "{name}: {:?}", found.indivisible);
        let whole = step(&cpu(), &Plan::new(BATCH), loss, true).unwrap();
        // Micro-batches of one example have no target, or one.
        for plan in Space::new(BATCH).plans() {
            let parts = step(&cpu(), &plan, loss, true).unwrap();
            assert!(difference(&whole, &parts) < 1e-4, "{name}, {plan}: {whole:?} {parts:?}");
        }
    }
}

/// Micro-batches of 4, 4 and 3 examples with 2, 2 and 1 targets, and of 1 example with 0 or 1.
#[test]
fn unequal_micro_batches_count_by_their_targets() {
    for &(name, loss) in COUNTED {
        for (clip, scaled) in [(None, false), (Some(0.1), false), (None, true)] {
            let ((whole, expected), (parts, found)) =
                (train_once(loss, [11, 1], clip, scaled), train_once(loss, [4, 3], clip, scaled));
            assert!(difference(&whole, &parts) < 1e-5, "{name}: {whole:?} {parts:?}");
            assert!((expected - found).abs() < 1e-5, "{name}: {expected} {found}");
            let (parts, found) = train_once(loss, [1, 11], clip, scaled);
            assert!(difference(&whole, &parts) < 1e-5, "{name}: {whole:?} {parts:?}");
            assert!((expected - found).abs() < 1e-5, "{name}: {expected} {found}");
        }
    }
}

#[test]
fn a_batch_stays_in_one_piece_if_micro_batches_train_on_another_loss() {
    for by_trainer in [false, true] {
        // A loop of its own does not count targets.
        let counted = COUNTED.iter().filter(|_| !by_trainer);
        for &(name, loss) in OTHERS.iter().chain(counted) {
            let found = search(loss, by_trainer);
            let reason =
                found.indivisible.as_ref().unwrap_or_else(|| panic!("{name} is divided")).to_string();
            assert!(plans(&found).iter().all(|plan| plan.accumulate == 1), "{name}");
            assert!(reason.starts_with("the batch stays in one piece, because "), "{name}: {reason}");
            // The refusal is not too careful: micro-batches do train on another loss.
            let whole = step(&cpu(), &Plan::new(BATCH), loss, by_trainer).unwrap();
            let mut plan = Plan::new(2);
            plan.accumulate = BATCH as u64 / 2;
            let parts = step(&cpu(), &plan, loss, by_trainer).unwrap();
            let differs = difference(&whole, &parts) > 1e-4 || parts.iter().any(|value| value.is_nan());
            assert!(differs, "{name}: {whole:?} {parts:?}");
        }
    }
}

#[test]
fn the_text_the_page_and_errors_say_why_a_batch_is_not_divided() {
    let (_, ignored) = COUNTED[0];
    let found = search(ignored, false);
    let sentence =
        "The batch stays in one piece, because cross_entropy combines all examples of a micro-batch";
    assert!(found.to_string().contains(sentence), "{found}");
    // The page has the chart as JSON.
    assert_eq!(found.chart().notes, found.notes());
    let program = |device: &Device, plan: &Plan| step(device, plan, ignored, false).map(drop);
    let error = fit(profile(), &Space::new(BATCH).micro_batches([2]), program).unwrap_err();
    assert!(
        matches!(
            &error,
            FitError::NoWholeBatch { batch: BATCH, reason: Indivisible::Combined { op: "cross_entropy" } }
        ),
        "{error}"
    );
    let error = fit(profile().with_limit(Bytes(512)), &Space::new(BATCH), program).unwrap_err();
    assert!(error.to_string().contains("; the batch stays in one piece, because cross_entropy"), "{error}");
}

#[test]
fn batch_normalization_is_named_as_the_reason() {
    let program = |device: &Device, plan: &Plan| {
        let model = Sequential::new()
            .with("conv", Conv2d::new(device, 1, 4, [3, 3], Conv2dOptions::padded(1), &Rng::new(0))?)
            .with("norm", BatchNorm::new(device, 4)?);
        let mut sgd = Sgd::new(model.parameters(), 0.1)?;
        let images = |_| Tensor::zeros(device, [plan.micro_batch, 1, 4, 4]);
        let trainer = Trainer::new(&model, &mut sgd).plan(plan);
        trainer.train_steps(2, images, |x| model.forward(x)?.square()?.mean_all()).map(drop)
    };
    let found = fit(profile(), &Space::new(BATCH), program).unwrap();
    assert_eq!(found.indivisible, Some(Indivisible::BatchNorm));
    assert!(found.to_string().contains("because the model has batch normalization (BatchNorm)"), "{found}");
    let error =
        fit(profile().with_limit(Bytes::kib(4)), &Space::new(BATCH), program).unwrap_err().to_string();
    assert!(error.contains("because the model has batch normalization (BatchNorm)"), "{error}");
    // There is nothing to divide.
    let found = fit(profile(), &Space::new(BATCH).whole_batch(), program).unwrap();
    assert_eq!(found.indivisible, None);
}

#[test]
fn a_batch_of_two_examples_is_compared_with_one_of_one() {
    let search =
        |loss| fit(profile(), &Space::new(2), |device, plan| step(device, plan, loss, false).map(drop));
    for &(name, loss) in MEANS {
        let found = search(loss).unwrap();
        assert!(found.indivisible.is_none(), "{name}: {:?}", found.indivisible);
    }
    // Batch statistics of one example are an error.
    for &(name, loss) in OTHERS.iter().filter(|(name, _)| *name != "batch statistics") {
        assert!(search(loss).unwrap().indivisible.is_some(), "{name}");
    }
}

/// The loss ignores targets, which the reason `BatchNorm` must not hide.
#[test]
fn batch_normalization_leaves_the_smallest_number_of_ranks() {
    let program = |device: &Device, plan: &Plan, _: &World| {
        let model = Sequential::new()
            .with("linear", Linear::new(device, WIDTH, CLASSES, &Rng::new(0))?)
            .with("norm", BatchNorm::new(device, CLASSES)?);
        let mut sgd = Sgd::new(model.parameters(), 0.1)?;
        for _ in 0..plan.steps(2) {
            let mut gradients = Gradients::default();
            for _ in 0..plan.accumulate {
                let batch = batch(device, 0..plan.micro_batch)?;
                let loss =
                    model.forward(&batch.x)?.cross_entropy_with(&batch.classes, ignoring(Reduction::Mean))?;
                gradients.accumulate(&mut loss.backward()?)?;
            }
            gradients.scale(1.0 / plan.accumulate as f64)?;
            sgd.step(gradients)?;
        }
        Ok(())
    };
    for space in [Space::new(BATCH), Space::new(BATCH).whole_batch()] {
        let found = fit_ranks(profile(), &space.ranks([1, 2, 4]), program).unwrap();
        assert_eq!(found.indivisible, Some(Indivisible::BatchNorm));
        assert!(plans(&found).iter().all(|plan| (plan.ranks, plan.accumulate) == (1, 1)), "{found}");
    }
}

/// A generator's pass after each pass of a discriminator, or after those of all micro-batches.
#[test]
fn the_losses_of_all_passes_of_a_micro_batch_are_compared() {
    let (_, mean) = MEANS[0];
    let (_, ignored) = COUNTED[0];
    for (losses, is_divisible) in [([mean, mean], true), ([mean, ignored], false), ([ignored, mean], false)] {
        for in_phases in [false, true] {
            let program = |device: &Device, plan: &Plan| {
                let model = Linear::new(device, WIDTH, CLASSES, &Rng::new(0))?;
                let mut sgd = Sgd::new(model.parameters(), 0.1)?;
                let pass = |loss: Loss| {
                    let batch = batch(device, 0..plan.micro_batch)?;
                    loss(&model, &batch)?.mul_scalar(1.0 / plan.accumulate as f64)?.backward()
                };
                let order: Vec<Loss> = if in_phases {
                    losses.into_iter().flat_map(|loss| (0..plan.accumulate).map(move |_| loss)).collect()
                } else {
                    (0..plan.accumulate).flat_map(|_| losses).collect()
                };
                for _ in 0..plan.steps(9) {
                    let mut gradients = Gradients::default();
                    for loss in &order {
                        gradients.accumulate(&mut pass(*loss)?)?;
                    }
                    sgd.step(gradients)?;
                }
                Ok(())
            };
            let found = fit(profile(), &Space::new(BATCH), program).unwrap();
            assert_eq!(found.indivisible.is_none(), is_divisible, "{in_phases}: {:?}", found.indivisible);
        }
    }
}

#[test]
fn loops_may_scale_the_loss_or_know_the_number_of_examples() {
    type Scale = fn(&Plan) -> (f64, f64);
    // The factors of each loss, the sum of squares, and of the gradients.
    let cases: [(&str, Scale, bool); 6] = [
        ("each loss by the batch", |plan| (1.0 / plan.batch() as f64, 1.0), true),
        ("the gradients by the batch", |plan| (1.0, 1.0 / plan.batch() as f64), true),
        ("the gradients by a constant", |_| (1.0, 1.0 / BATCH as f64), true),
        (
            "a mean, and the loss by the parts",
            |plan| (1.0 / plan.micro_batch as f64 / plan.accumulate as f64, 1.0),
            true,
        ),
        ("a mean, and a sum of gradients", |plan| (1.0 / plan.micro_batch as f64, 1.0), false),
        ("a sum, and a mean of gradients", |plan| (1.0, 1.0 / plan.accumulate as f64), false),
    ];
    for (name, scale, is_divisible) in cases {
        let program = |device: &Device, plan: &Plan| {
            let model = Linear::new(device, 4, 1, &Rng::new(0))?;
            let mut sgd = Sgd::new(model.parameters(), 0.1)?;
            let (of_loss, of_gradients) = scale(plan);
            for _ in 0..plan.steps(4) {
                let mut gradients = Gradients::default();
                for _ in 0..plan.accumulate {
                    let x = Tensor::zeros(device, [plan.micro_batch, 4])?;
                    let loss = model.forward(&x)?.square()?.sum_all()?.mul_scalar(of_loss)?;
                    gradients.accumulate(&mut loss.backward()?)?;
                }
                gradients.scale(of_gradients)?;
                sgd.step(gradients)?;
            }
            Ok(())
        };
        let found = fit(profile(), &Space::new(BATCH), program).unwrap();
        assert_eq!(found.indivisible.is_none(), is_divisible, "{name}: {:?}", found.indivisible);
    }
}

/// Trains an epoch of 11 examples, which is one step. Returns the parameters and the loss.
fn train_once(
    loss: Loss,
    [size, accumulate]: [usize; 2],
    clip: Option<f64>,
    scaled: bool,
) -> (Vec<f32>, f64) {
    let device = cpu();
    let model = Linear::new(&device, WIDTH, CLASSES, &Rng::new(0)).unwrap();
    let mut sgd = Sgd::new(model.parameters(), 1.0).unwrap();
    let mut trainer = Trainer::new(&model, &mut sgd).accumulate(accumulate as u64).ignore_signals();
    if let Some(clip) = clip {
        trainer = trainer.clip_norm(clip);
    }
    if scaled {
        trainer = trainer.scaler(LossScaler::fixed(8.0).unwrap());
    }
    let starts = |_| Ok((0..11).step_by(size).map(|start| batch(&device, start..11.min(start + size))));
    let outcome = trainer.train(starts, |batch| loss(&model, batch)).unwrap();
    (values(&model), outcome.loss.unwrap())
}

/// A smaller last batch, and so a smaller last micro-batch of a step.
#[test]
fn a_smaller_micro_batch_counts_less() {
    for &(name, loss) in MEANS {
        for (clip, scaled) in [(None, false), (Some(0.1), false), (None, true)] {
            let train = |size, accumulate| train_once(loss, [size, accumulate], clip, scaled);
            let ((whole, expected), (parts, found)) = (train(11, 1), train(4, 3));
            let tolerance = if name.contains("half") { 1e-2 } else { 1e-5 };
            assert!(difference(&whole, &parts) < tolerance, "{name}: {whole:?} {parts:?}");
            assert!((expected - found).abs() < f64::from(tolerance), "{name}: {expected} {found}");
        }
    }
}

#[test]
fn times_that_were_not_measured_are_called_estimates() {
    let (_, loss) = MEANS[0];
    let mut found = search(loss, true);
    let note = "Step times are estimates; on a device that is present, Fit::measure times real steps.";
    assert!(found.to_string().contains(note), "{found}");
    let program = |device: &Device, plan: &Plan| {
        let model = Linear::new(device, WIDTH, CLASSES, &Rng::new(0))?;
        let mut sgd = Sgd::new(model.parameters(), 1.0)?;
        let part = |_| batch(device, 0..plan.micro_batch);
        Trainer::new(&model, &mut sgd).plan(plan).train_steps(9, part, |batch| loss(&model, batch)).map(drop)
    };
    found.measure(|| Ok(cpu()), program, |_| ()).unwrap();
    assert!(!found.to_string().contains("estimates"), "{found}");
}

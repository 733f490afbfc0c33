//! Every plan that a search offers has the predicted peak, to the byte.

use std::cell::Cell;

use highwater::fit::{Plan, Space, fit};
use highwater::prelude::*;
use highwater::train::Trainer;
use highwater::{DeviceSpeed, LinearCrossEntropyOptions, Result, Runtime};

use crate::objectives::profile;

/// A program: a model, the shape of an example, the batch, and the steps.
struct Case {
    name: &'static str,
    model: fn(&Device) -> Result<Sequential>,
    example: &'static [usize],
    batch: usize,
    steps: u64,
}

fn options(layers: usize, bidirectional: bool, dropout: f64) -> RecurrentOptions {
    RecurrentOptions { layers, bidirectional, dropout, ..Default::default() }
}

fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    type Model = fn(&Device) -> Result<Sequential>;
    let models: &[(&str, Model, &[usize])] = &[
        ("lstm", |d| Ok(Sequential::new().with("a", Lstm::new(d, 8, 8, &Rng::new(0))?)), &[10, 8]),
        ("gru", |d| Ok(Sequential::new().with("a", Gru::new(d, 6, 10, &Rng::new(0))?)), &[7, 6]),
        (
            "lstm in both directions",
            |d| {
                let rng = Rng::new(0);
                Ok(Sequential::new().with("a", Lstm::with_options(d, 5, 6, options(2, true, 0.3), &rng)?))
            },
            &[6, 5],
        ),
        (
            "gru of three layers",
            |d| {
                let rng = Rng::new(0);
                Ok(Sequential::new().with("a", Gru::with_options(d, 4, 12, options(3, false, 0.0), &rng)?))
            },
            &[9, 4],
        ),
        (
            "lstm and classifier",
            |d| {
                let rng = Rng::new(0);
                Ok(Sequential::new()
                    .with("a", Lstm::new(d, 8, 24, &rng)?)
                    .with("dropout", Dropout::new(0.2, &rng.fork(1)).unwrap())
                    .with("b", Linear::new(d, 24, 3, &rng)?))
            },
            &[5, 8],
        ),
        (
            "perceptron",
            |d| {
                let rng = Rng::new(0);
                Ok(Sequential::new()
                    .with("a", Linear::new(d, 30, 50, &rng)?)
                    .with("relu", Relu)
                    .with("dropout", Dropout::new(0.5, &rng.fork(1)).unwrap())
                    .with("b", Linear::new(d, 50, 7, &rng)?))
            },
            &[30],
        ),
        (
            "convolutions",
            |d| {
                let rng = Rng::new(0);
                let options = Conv2dOptions::padded(1);
                Ok(Sequential::new()
                    .with("a", Conv2d::new(d, 2, 5, [3, 3], options, &rng)?)
                    .with("relu", Relu)
                    .with("b", Conv2d::new(d, 5, 3, [3, 3], options, &rng)?))
            },
            &[2, 7, 6],
        ),
    ];
    for &(name, model, example) in models {
        for (batch, steps) in [(12, 2), (12, 6), (8, 4), (6, 1)] {
            cases.push(Case { name, model, example, batch, steps });
        }
    }
    cases
}

fn train(device: &Device, plan: &Plan, case: &Case, adam: bool) -> Result<()> {
    let model = (case.model)(device)?;
    let shape = [&[plan.micro_batch], case.example].concat();
    let input = |number| Tensor::normal(device, &shape[..], 0.0, 1.0, &Rng::new(number));
    let loss = |x: &Tensor| model.forward(x)?.square()?.mean_all();
    if adam {
        let mut optimizer = AdamW::new(model.parameters(), 0.01)?;
        return Trainer::new(&model, &mut optimizer)
            .plan(plan)
            .train_steps(case.steps, input, loss)
            .map(drop);
    }
    let mut optimizer = Sgd::new(model.parameters(), 0.01)?;
    Trainer::new(&model, &mut optimizer).plan(plan).train_steps(case.steps, input, loss).map(drop)
}

/// The peak of a real run in a pool of this size.
fn real(limit: u64, plan: &Plan, case: &Case, adam: bool) -> u64 {
    let device = Runtime::builder().threads(1).pool(Bytes(limit)).build().unwrap().cpu().unwrap();
    train(&device, plan, case, adam).unwrap();
    device.default_allocator().unwrap().stats().peak_bytes_in_use
}

#[test]
fn every_offered_plan_has_its_predicted_peak() {
    let (mut compared, mut wrong) = (0, Vec::new());
    for case in cases() {
        for adam in [false, true] {
            let program = |device: &Device, plan: &Plan| train(device, plan, &case, adam);
            let all = fit(profile(), &Space::new(case.batch), program).unwrap();
            let peaks = all.plans.iter().chain(&all.others).map(|candidate| candidate.peak_bytes);
            let (low, high) = (peaks.clone().min().unwrap(), peaks.max().unwrap());
            for limit in [high, low + (high - low) / 2, low] {
                let Ok(found) = fit(profile().with_limit(Bytes(limit)), &Space::new(case.batch), program)
                else {
                    continue;
                };
                for candidate in found.plans.iter().chain(&found.others).filter(|candidate| candidate.fits) {
                    let real = real(limit, &candidate.plan, &case, adam);
                    compared += 1;
                    if real != candidate.peak_bytes {
                        let (plan, predicted) = (&candidate.plan, candidate.peak_bytes);
                        wrong.push(format!(
                            "{}, {} steps, {plan}: {predicted}, not {real}",
                            case.name, case.steps
                        ));
                    }
                }
            }
        }
    }
    assert!(compared > 200, "{compared} plans");
    assert!(wrong.is_empty(), "{} of {compared}:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn a_measured_choice_has_its_predicted_peak() {
    let case = Case { steps: 2, ..cases().swap_remove(0) };
    let limit = Bytes(23_406);
    let speed = DeviceSpeed::of_this_machine(1).unwrap();
    let profile = DeviceProfile::this_machine().with_threads(1).with_speed(speed).with_limit(limit);
    let program = |device: &Device, plan: &Plan| train(device, plan, &case, false);
    let mut found = fit(profile, &Space::new(12), program).unwrap();
    let cpu = || Runtime::builder().threads(1).pool(limit).build()?.cpu();
    found.measure(cpu, program, |_| ()).unwrap();
    for candidate in found.plans.iter().chain(&found.others).filter(|candidate| candidate.fits) {
        assert_eq!(
            real(limit.get(), &candidate.plan, &case, false),
            candidate.peak_bytes,
            "{}",
            candidate.plan
        );
    }
}

/// A language model with a tied output layer, and targets that are partly ignored. The search divides its batch.
#[test]
fn plans_of_a_loss_by_chunks_have_their_predicted_peaks() {
    const TOKENS: usize = 60;
    const LEN: usize = 40;
    let program = |device: &Device, plan: &Plan| {
        let rng = Rng::new(0);
        let table = Embedding::new(device, TOKENS, 16, &rng)?;
        let mut blocks = Sequential::new();
        for _ in 0..3 {
            blocks = blocks.with("fc", Linear::new(device, 16, 16, &rng)?).with("gelu", Gelu);
        }
        let model = Sequential::new().with("table", table.clone()).with("blocks", blocks);
        let mut optimizer = AdamW::new(model.parameters(), 0.01)?;
        let (chunk, ignore_index) = (Some(8), Some(-100));
        let options = LinearCrossEntropyOptions { chunk, ignore_index, ..Default::default() };
        let len = LEN * plan.micro_batch;
        let batch = |number: u64| {
            let tokens: Vec<i64> = (0..len).map(|at| ((at * 7 + number as usize) % TOKENS) as i64).collect();
            let targets: Vec<i64> = (0..len)
                .map(|at| if at % LEN < 3 + at / LEN { -100 } else { (at * 11 % TOKENS) as i64 })
                .collect();
            let shape = [plan.micro_batch, LEN];
            Ok((Tensor::from_slice(device, &tokens, shape)?, Tensor::from_slice(device, &targets, shape)?))
        };
        Trainer::new(&model, &mut optimizer)
            .plan(plan)
            .train_steps(3, batch, |(x, y)| table.linear_cross_entropy(&model.forward(x)?, y, options))
            .map(drop)
    };
    let all = fit(profile(), &Space::new(8), program).unwrap();
    assert!(all.indivisible.is_none(), "{:?}", all.indivisible);
    let plain = all.plans.iter().chain(&all.others).map(|candidate| candidate.peak_bytes).max().unwrap();
    let found = fit(profile().with_limit(Bytes(plain * 2 / 3)), &Space::new(8), program).unwrap();
    assert!(found.chosen().plan.accumulate > 1, "{}", found.chosen().plan);
    for candidate in found.plans.iter().chain(&found.others).filter(|candidate| candidate.fits) {
        let limit = Bytes(plain * 2 / 3);
        let device = Runtime::builder().threads(1).pool(limit).build().unwrap().cpu().unwrap();
        program(&device, &candidate.plan).unwrap();
        let real = device.default_allocator().unwrap().stats().peak_bytes_in_use;
        assert_eq!(real, candidate.peak_bytes, "{}", candidate.plan);
    }
}

/// Epochs with a smaller last batch and an evaluation.
#[test]
fn plans_of_epochs_have_their_predicted_peaks() {
    let program = |device: &Device, plan: &Plan| {
        let rng = Rng::new(0);
        let data = ArrayDataset::new((0..61 * 40).map(|i| i as f32 / 1e3).collect(), vec![], 40)?;
        let model = Lstm::new(device, 8, 8, &rng)?;
        let mut optimizer = Sgd::new(model.parameters(), 0.01)?;
        let loss = |x: &Tensor| {
            let sequences = x.reshape([x.dims()[0], 5, 8])?;
            model.forward(&sequences)?.square()?.mean_all()
        };
        let evaluate = || {
            for batch in data.batches(16, device)? {
                loss(&batch?.0)?;
            }
            Ok(Default::default())
        };
        let trainer = Trainer::new(&model, &mut optimizer).plan(plan).epochs(3).evaluate(evaluate);
        let batches = |epoch| Ok(data.batches(plan.micro_batch, device)?.shuffled(0, epoch));
        trainer.train(batches, |(x, _)| loss(x)).map(drop)
    };
    let all = fit(profile(), &Space::new(12), program).unwrap();
    let limit = all.chosen().peak_bytes;
    let found = fit(profile().with_limit(Bytes(limit)), &Space::new(12), program).unwrap();
    for candidate in found.plans.iter().chain(&found.others).filter(|candidate| candidate.fits) {
        let device = Runtime::builder().threads(1).pool(Bytes(limit)).build().unwrap().cpu().unwrap();
        program(&device, &candidate.plan).unwrap();
        let real = device.default_allocator().unwrap().stats().peak_bytes_in_use;
        assert_eq!(real, candidate.peak_bytes, "{}", candidate.plan);
    }
}

/// A frozen layer has neither optimizer state nor an average.
#[test]
fn plans_of_half_frozen_models_have_their_predicted_peaks() {
    let program = |device: &Device, plan: &Plan| {
        let rng = Rng::new(0);
        let (first, last) = (Linear::new(device, 32, 64, &rng)?, Linear::new(device, 64, 32, &rng)?);
        first.freeze();
        let model = Sequential::new().with("first", first).with("relu", Relu).with("last", last);
        let mut optimizer = AdamW::new(model.parameters(), 0.01)?.with_amsgrad()?;
        let mut ema = Ema::new(model.parameters(), 0.9)?;
        let input = |number| Tensor::normal(device, [plan.micro_batch, 32], 0.0, 1.0, &Rng::new(number));
        let trainer = Trainer::new(&model, &mut optimizer).plan(plan).ema(&mut ema);
        let trainer = trainer.evaluate(|| model.forward(&input(0)?).map(|_| Default::default()));
        trainer.train_steps(5, input, |x| model.forward(x)?.square()?.mean_all()).map(drop)
    };
    let found = fit(profile(), &Space::new(12), program).unwrap();
    for candidate in found.plans.iter().chain(&found.others) {
        let device = Runtime::builder().threads(1).build().unwrap().cpu().unwrap();
        program(&device, &candidate.plan).unwrap();
        let pool = device.default_allocator().unwrap();
        assert_eq!(pool.stats().peak_bytes_in_use, candidate.peak_bytes, "{}", candidate.plan);
    }
    // The smallest pool suffices, and the chart tells it.
    let mut found = found;
    let searched = found.chosen().smallest_pool_bytes;
    let pool = found.find_smallest_pool(profile(), |device, plan, _| program(device, plan)).unwrap();
    let chosen = found.chosen().clone();
    assert!(pool >= chosen.peak_bytes && chosen.smallest_pool_bytes == Some(pool) && searched == Some(pool));
    assert!(found.to_string().contains(&format!("({pool} bytes).")), "{found}");
    let device = |bytes| Runtime::builder().threads(1).pool(Bytes(bytes)).build().unwrap().cpu().unwrap();
    program(&device(pool), &chosen.plan).unwrap();
    assert!(program(&device(pool - 256), &chosen.plan).unwrap_err().needs_more_memory());
}

/// Trains a critic and a generator, each with a backward pass per micro-batch. The passes of a micro-batch follow each other, or
/// the generator's passes follow those of the critic.
fn train_two(device: &Device, plan: &Plan, steps: u64, in_phases: bool) -> Result<()> {
    let rng = Rng::new(0);
    let network = |inputs: usize, outputs: usize| {
        Ok::<_, highwater::Error>(
            Sequential::new()
                .with("a", Linear::new(device, inputs, 16, &rng)?)
                .with("relu", Relu)
                .with("b", Linear::new(device, 16, outputs, &rng)?),
        )
    };
    let (generator, critic) = (network(4, 6)?, network(6, 1)?);
    let mut makes = AdamW::new(generator.parameters(), 1e-3)?;
    let mut judges = AdamW::new(critic.parameters(), 1e-3)?;
    let noise = || Tensor::normal(device, [plan.micro_batch, 4], 0.0, 1.0, &rng);
    let pass = |loss: Tensor| loss.mul_scalar(1.0 / plan.accumulate as f64)?.backward();
    let judge = || {
        let made = no_grad(|| generator.forward(&noise()?))?;
        let data = Tensor::normal(device, [plan.micro_batch, 6], 0.0, 1.0, &rng)?;
        let of_data = critic.forward(&data)?.square()?.mean_all()?;
        pass(of_data.add(&critic.forward(&made)?.exp()?.mean_all()?)?)
    };
    let make = || pass(critic.forward(&generator.forward(&noise()?)?)?.exp()?.mean_all()?);
    for _ in 0..plan.steps(steps) {
        let (mut of_critic, mut of_generator) = (Gradients::default(), Gradients::default());
        if in_phases {
            for _ in 0..plan.accumulate {
                of_critic.accumulate(&mut judge()?)?;
            }
            judges.step(of_critic)?;
            for _ in 0..plan.accumulate {
                of_generator.accumulate(&mut make()?)?;
            }
        } else {
            for _ in 0..plan.accumulate {
                of_critic.accumulate(&mut judge()?)?;
                of_generator.accumulate(&mut make()?)?;
            }
            judges.step(of_critic)?;
        }
        makes.step_partial(of_generator)?;
    }
    Ok(())
}

#[test]
fn rehearsals_of_two_passes_per_micro_batch_end_when_their_memory_repeats() {
    const STEPS: u64 = 40;
    for in_phases in [false, true] {
        let (mut plans, long, most) = (0, Cell::new(0), Cell::new(0));
        let search = |limit: Option<Bytes>| {
            let profile = limit.map_or_else(profile, |limit| profile().with_limit(limit));
            fit(profile, &Space::new(64), |device, plan| {
                long.set(long.get() + usize::from(plan.steps(STEPS) == 24));
                most.set(plan.accumulate.max(most.get()));
                train_two(device, plan, STEPS, in_phases)
            })
            .unwrap()
        };
        let all = search(None);
        assert_eq!(all.indivisible, None);
        plans += all.plans.len() + all.others.len();
        let peaks = all.plans.iter().chain(&all.others).map(|candidate| candidate.peak_bytes);
        let (low, high) = (peaks.clone().min().unwrap(), peaks.max().unwrap());
        for limit in [high, low + (high - low) / 2] {
            let found = search(Some(Bytes(limit)));
            for candidate in found.plans.iter().chain(&found.others).filter(|candidate| candidate.fits) {
                let device = Runtime::builder().threads(1).pool(Bytes(limit)).build().unwrap().cpu().unwrap();
                train_two(&device, &candidate.plan, STEPS, in_phases).unwrap();
                let real = device.default_allocator().unwrap().stats().peak_bytes_in_use;
                assert_eq!(real, candidate.peak_bytes, "{}, {in_phases}", candidate.plan);
                plans += 1;
            }
        }
        // Free memory may change for more steps in a few plans.
        let (long, most) = (long.get(), most.get());
        assert!(most < 64, "{most} micro-batches, {in_phases}");
        assert!(2 * long < plans, "24 steps of {long} of {plans} plans, {in_phases}");
    }
}

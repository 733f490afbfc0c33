//! Steps: accumulation, clipping, divergence, intervals and output.

use std::cell::RefCell;

use highwater::fit::{Extent, Plan};
use highwater::prelude::*;
use highwater::tracking::{TrainingLog, TrainingLogLimits};
use highwater::train::{Ended, Every, JsonLog, Observer, RunStart, Saves, StepRecord, Trainer};
use highwater::{Error, Result};

use crate::support::{BATCH, cpu, measure, model, points, values};

/// Keeps what it observes.
#[derive(Default)]
struct Seen<'a>(Option<&'a RefCell<Vec<StepRecord>>>, Option<&'a RefCell<RunStart>>);

impl Observer for Seen<'_> {
    fn begin(&mut self, start: &RunStart) -> Result<()> {
        self.1.iter().for_each(|kept| *kept.borrow_mut() = *start);
        Ok(())
    }

    fn step(&mut self, record: &StepRecord) -> Result<()> {
        self.0.iter().for_each(|kept| kept.borrow_mut().push(record.clone()));
        Ok(())
    }
}

/// A linear model of one input, and points on the line y = 2x in batches of `size`.
fn line(device: &Device, size: usize) -> (Linear, Vec<(Tensor, Tensor)>) {
    let model = Linear::new(device, 1, 1, &Rng::new(0)).unwrap();
    let batch = |xs: &[f32]| {
        let ys: Vec<f32> = xs.iter().map(|x| 2.0 * x).collect();
        let tensor = |values: &[f32]| Tensor::from_slice(device, values, [values.len(), 1]).unwrap();
        (tensor(xs), tensor(&ys))
    };
    (model, [0.5, -1.0, 2.0, 0.25].chunks(size).map(batch).collect())
}

fn squares(model: &Linear, (x, y): &(Tensor, Tensor)) -> Result<Tensor> {
    model.forward(x)?.mse_loss(y)
}

#[test]
fn only_a_whole_run_writes_files_and_shows_output() {
    let (device, folder) = (cpu(), tempfile::tempdir().unwrap());
    let path = folder.path().join("line.safetensors");
    let run = |extent: Extent| {
        let (model, batches) = line(&device, 4);
        let mut sgd = Sgd::new(model.parameters(), 0.1).unwrap();
        let (mut plan, seen) = (Plan::new(4), RefCell::default());
        plan.extent = extent;
        let trainer = Trainer::new(&model, &mut sgd).plan(&plan).saves(Saves::to(&path));
        let trainer = trainer.observe(Seen(Some(&seen), None));
        let outcome = trainer.train_steps(5, |_| Ok(batches[0].clone()), |batch| squares(&model, batch));
        (outcome.unwrap().steps, seen.borrow().len(), path.exists())
    };
    assert_eq!(run(Extent::Trial { steps: 2 }), (2, 0, false));
    assert_eq!(run(Extent::Rehearsal { steps: 3 }), (3, 0, false));
    assert_eq!(run(Extent::Whole), (5, 5, true));
}

#[test]
fn accumulated_batches_step_along_their_mean() {
    let device = cpu();
    let train = |size, accumulate| {
        let (model, batches) = line(&device, size);
        let mut sgd = Sgd::new(model.parameters(), 0.1).unwrap();
        let trainer = Trainer::new(&model, &mut sgd).epochs(3).accumulate(accumulate);
        let outcome = trainer.train(|_| Ok(batches.iter().cloned().map(Ok)), |batch| squares(&model, batch));
        (values(&model), outcome.unwrap())
    };
    let ((parts, accumulated), (whole, at_once)) = (train(1, 4), train(4, 1));
    let difference = parts.iter().zip(&whole).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(difference < 1e-6, "{parts:?} {whole:?}");
    assert!((accumulated.loss.unwrap() - at_once.loss.unwrap()).abs() < 1e-6);
    assert_eq!((accumulated.steps, at_once.steps), (3, 3));
    // An incomplete group at the end of an epoch is a step too, along the mean of its own batches.
    assert_eq!(train(1, 3).1.steps, 6);
}

#[test]
fn gradients_are_clipped_and_their_norm_is_logged() {
    let device = cpu();
    let (model, batches) = line(&device, 4);
    let before = values(&model);
    let records = RefCell::default();
    let mut sgd = Sgd::new(model.parameters(), 1.0).unwrap();
    let trainer = Trainer::new(&model, &mut sgd).clip_norm(0.125).observe(Seen(Some(&records), None));
    let _ = trainer.train(|_| Ok(batches.iter().cloned().map(Ok)), |batch| squares(&model, batch)).unwrap();
    let moved = before.iter().zip(values(&model)).map(|(a, b)| (a - b).powi(2)).sum::<f32>().sqrt();
    assert!((moved - 0.125).abs() < 1e-5, "{moved}");
    assert!(records.borrow()[0].figures.get("gradient_norm").unwrap() > 0.2);
}

#[test]
fn a_loss_that_is_not_finite_ends_the_run_and_saves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.safetensors");
    let device = cpu();
    let train = |allow| {
        let (model, batches) = line(&device, 1);
        let mut sgd = Sgd::new(model.parameters(), f64::from(f32::MAX)).unwrap();
        let saves = highwater::train::Saves::to(&path);
        let trainer = Trainer::new(&model, &mut sgd).allow_nan(allow).saves(saves);
        trainer.train(|_| Ok(batches.iter().cloned().map(Ok)), |batch| squares(&model, batch)).unwrap()
    };
    let outcome = train(false);
    let Ended::Diverged { loss, step: 2, epoch: 1 } = outcome.ended else { panic!("{outcome:?}") };
    assert!(!loss.is_finite() && outcome.steps == 2 && !path.exists());
    assert_eq!(train(true).ended, Ended::Completed);
    assert!(path.exists());
}

#[test]
fn evaluations_are_logged_with_the_step_before() {
    let (device, data, records, plan) = (cpu(), points(), RefCell::default(), RefCell::default());
    let model = model(&device);
    let mut optimizer = AdamW::new(model.parameters(), 0.01).unwrap();
    let _ = Trainer::new(&model, &mut optimizer)
        .epochs(2)
        .evaluate(|| measure(&model, &data, &device))
        .observe(Seen(Some(&records), Some(&plan)))
        .train(
            |epoch| Ok(data.batches(BATCH, &device)?.shuffled(0, epoch)),
            |(x, y)| model.forward(x)?.cross_entropy(y),
        )
        .unwrap();
    let measured = |records: &[StepRecord]| -> Vec<bool> {
        records.iter().map(|record| record.figures.get("accuracy").is_some()).collect()
    };
    assert_eq!(measured(&records.borrow()), [false, false, true, false, false, true]);
    assert_eq!((plan.borrow().completed, plan.borrow().total), (0, Some(6)));
    assert!(records.borrow().iter().enumerate().all(|(step, record)| record.step == step as u64));

    // By steps, and at the end.
    records.borrow_mut().clear();
    let _ = Trainer::new(&model, &mut optimizer)
        .evaluate(|| measure(&model, &data, &device))
        .evaluate_every(Every::Steps(2))
        .observe(Seen(Some(&records), Some(&plan)))
        .train_steps(
            5,
            |step| data.batches(BATCH, &device)?.shuffled(0, step).next().unwrap(),
            |(x, y)| model.forward(x)?.cross_entropy(y),
        )
        .unwrap();
    assert_eq!(measured(&records.borrow()), [false, true, false, true, true]);
    assert_eq!(plan.borrow().total, Some(5));
}

#[test]
fn an_epoch_of_unknown_length_is_evaluated_once_at_its_end() {
    let (device, records) = (cpu(), RefCell::default());
    let (model, batches) = line(&device, 1);
    let mut sgd = Sgd::new(model.parameters(), 0.1).unwrap();
    let mut evaluations = 0.0;
    let outcome = Trainer::new(&model, &mut sgd)
        .epochs(2)
        .evaluate(|| {
            evaluations += 1.0;
            Ok([("evaluations", evaluations)].into())
        })
        .observe(Seen(Some(&records), None))
        .train(|_| Ok(batches.iter().filter(|_| true).cloned().map(Ok)), |batch| squares(&model, batch))
        .unwrap();
    let found: Vec<_> = records.borrow().iter().map(|record| record.figures.get("evaluations")).collect();
    assert_eq!(found, [None, None, None, Some(1.0), None, None, None, Some(2.0)]);
    assert_eq!(outcome.figures.get("evaluations"), Some(2.0));
}

#[test]
fn a_failing_batch_leaves_the_steps_before_it_in_the_log() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("run.jsonl");
    let device = cpu();
    let (model, batches) = line(&device, 1);
    let mut sgd = Sgd::new(model.parameters(), 0.1).unwrap();
    let failing = batches.iter().cloned().map(Ok).take(3).chain([Err(Error::NoGraph)]);
    let trainer = Trainer::new(&model, &mut sgd).observe(JsonLog::create(&log).unwrap());
    let error = trainer.train(|_| Ok(failing.clone()), |batch| squares(&model, batch)).unwrap_err();
    assert!(matches!(error, Error::NoGraph));
    let text = std::fs::read(&log).unwrap();
    let log = TrainingLog::read(&text[..], &TrainingLogLimits::default()).unwrap();
    let loss = log.curves().iter().find(|curve| curve.name == "loss").unwrap();
    assert_eq!(loss.points.iter().map(|point| point.step).collect::<Vec<_>>(), [0, 1, 2]);
}

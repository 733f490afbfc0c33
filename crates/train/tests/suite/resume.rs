//! A run in parts gives the values of a run at once, bit for bit.

use std::path::Path;

use highwater::optim::LossScaler;
use highwater::prelude::*;
use highwater::train::{EarlyStopping, Ended, Every, JsonLog, Observer, Outcome, Saves, StepRecord, Trainer};
use highwater::{Error, Result};
use highwater_tracking::{TrainingLog, TrainingLogLimits};

use crate::support::{BATCH, cpu, measure, model, points, values};

/// Ends the process's interest in a run after some steps, as a failure would.
struct Fails(u64);

impl Observer for Fails {
    fn step(&mut self, record: &StepRecord) -> Result<()> {
        if record.step + 1 == self.0 { Err(Error::NoGraph) } else { Ok(()) }
    }
}

/// Trains a new model until this epoch. Returns the outcome, the parameters and the loss scale.
fn train(epochs: u64, saves: Saves, fails: u64) -> (Result<Outcome>, Vec<f32>) {
    let (device, data) = (cpu(), points());
    let model = model(&device);
    let mut optimizer = AdamW::new(model.parameters(), 0.01).unwrap();
    let outcome = Trainer::new(&model, &mut optimizer)
        .epochs(epochs)
        .schedule(Schedule::Cosine { start: 0.01, end: 0.0, steps: 18 })
        .scaler(LossScaler::dynamic_from(64.0, 4).unwrap())
        .clip_norm(1.0)
        .evaluate(|| measure(&model, &data, &device))
        .early_stopping(EarlyStopping::new("validation_loss").patience(100))
        .saves(saves)
        .observe(Fails(fails))
        .train(
            |epoch| Ok(data.batches(BATCH, &device)?.shuffled(3, epoch)),
            |(x, y)| model.forward(x)?.cross_entropy(y),
        );
    (outcome, values(&model))
}

#[test]
fn a_run_in_two_parts_is_that_of_one() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.safetensors");
    let (whole, expected) = train(6, Saves::default(), 0);
    let whole = whole.unwrap();
    assert_eq!((whole.ended, whole.steps, whole.epochs), (Ended::Completed, 18, 6));
    let _ = train(2, Saves::to(&path), 0).0.unwrap();
    let (rest, found) = train(6, Saves::default().resume(&path), 0);
    let rest = rest.unwrap();
    assert_eq!(found, expected);
    assert_eq!((rest.first_step, rest.steps), (6, 18));
    assert_eq!((rest.loss, &rest.figures, rest.best), (whole.loss, &whole.figures, whole.best));
}

#[test]
fn a_run_that_failed_within_an_epoch_continues_there() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.safetensors");
    let (_, expected) = train(6, Saves::default(), 0);
    // The last save took place after step 8, the second of the third epoch.
    let failed = train(6, Saves::to(&path).every(Every::Steps(4)), 9).0;
    assert!(matches!(failed, Err(Error::NoGraph)));
    let (rest, found) = train(6, Saves::default().resume(&path), 0);
    assert_eq!((rest.unwrap().first_step, found), (8, expected));
}

#[test]
fn a_complete_run_continues_with_its_evaluation_only() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.safetensors");
    let (whole, expected) = train(2, Saves::to(&path), 0);
    let (again, found) = train(2, Saves::default().resume(&path), 1);
    let (whole, again) = (whole.unwrap(), again.unwrap());
    assert_eq!((found, again.steps, again.loss), (expected, 6, None));
    assert_eq!(again.figures, whole.figures);
}

/// The error of a run that continues from this file.
fn refusal(path: &Path) -> String {
    train(2, Saves::default().resume(path), 0).0.unwrap_err().to_string()
}

#[test]
fn a_file_without_a_position_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("weights.safetensors");
    Checkpoint::of(&model(&cpu())).unwrap().save(&path).unwrap();
    assert!(refusal(&path).contains("the file contains no position of a training loop"));
    let damaged = Checkpoint::of(&model(&cpu())).unwrap().with_note("train", "{\"position\":{\"step\":-1}}");
    damaged.save(&path).unwrap();
    assert!(refusal(&path).contains("the note \"train\""));
}

#[test]
fn a_position_beyond_the_batches_ends_the_epoch() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.safetensors");
    let _ = train(1, Saves::to(&path), 0).0.unwrap();
    let saved = Checkpoint::load(&path).unwrap();
    let position = "{\"position\":{\"step\":3,\"epoch\":1,\"batch\":1000},\"early_stopping\":null}";
    saved.with_note("train", position).save(&path).unwrap();
    let outcome = train(3, Saves::default().resume(&path), 0).0.unwrap();
    assert_eq!((outcome.first_step, outcome.steps, outcome.epochs), (3, 6, 3));
}

#[test]
fn a_position_that_contradicts_the_step_is_refused_and_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.safetensors");
    let _ = train(1, Saves::to(&path), 0).0.unwrap();
    let saved = Checkpoint::load(&path).unwrap();
    let (device, data) = (cpu(), points());
    let note = |step: &str, epoch: &str, batch: &str| {
        format!(
            "{{\"position\":{{\"step\":{step},\"epoch\":{epoch},\"batch\":{batch}}},\"early_stopping\":null}}"
        )
    };
    let cases = [
        (note("2", "1", "0"), Some(3), "the position is step 2, but the checkpoint was saved after step 3"),
        (note("4", "1", "0"), Some(3), "the position is step 4, but the checkpoint was saved after step 3"),
        (note("3", "1", "0"), None, "the file contains no number of completed steps"),
        (note("3", "4", "0"), Some(3), "less than the 4 steps"),
        (note("3", "3", "1"), Some(3), "less than the 4 steps"),
        (note("3", "0", "2"), Some(3), "more steps than the 2 batches of epoch 0"),
        (note("0", "0", "1"), Some(0), "less than the 1 steps"),
        (note("3", "1", "18446744073709551615"), Some(3), "a number above"),
        (note("3", "-1", "0"), Some(3), "the note \"train\""),
        (note("3", "1", "18446744073709551616"), Some(3), "the note \"train\""),
        (note("3.0", "1", "0"), Some(3), "the note \"train\""),
        (note("3", "1", "0").replace("batch", "btach"), Some(3), "unknown field `btach`"),
        (
            note("3", "1", "0").replace("early_stopping", "early_stoping"),
            Some(3),
            "unknown field `early_stoping`",
        ),
    ];
    for (note, step, expected) in cases {
        saved.clone().with_note("train", &note).with_step(step.unwrap_or(3)).save(&path).unwrap();
        if step.is_none() {
            without_step(&path);
        }
        let model = model(&device);
        let mut optimizer = AdamW::new(model.parameters(), 0.01).unwrap();
        let before = (values(&model), optimizer.state().unwrap());
        let refused = Trainer::new(&model, &mut optimizer)
            .saves(Saves::default().resume(&path))
            .train(|_| data.batches(BATCH, &device), |(x, y)| model.forward(x)?.cross_entropy(y))
            .unwrap_err()
            .to_string();
        assert!(refused.contains(expected), "{note}: {refused}");
        assert_eq!((values(&model), optimizer.state().unwrap()), before, "{note}");
    }
}

/// Removes the entry of the step from the metadata of a checkpoint.
fn without_step(path: &Path) {
    let bytes = std::fs::read(path).unwrap();
    let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let header = String::from_utf8(bytes[8..8 + length].to_vec()).unwrap();
    let shorter = header.replace(",\"highwater.step\":\"3\"", "");
    assert!(shorter.len() < header.len(), "{header}");
    let header = format!("{shorter:<length$}");
    std::fs::write(path, [&bytes[..8], header.as_bytes(), &bytes[8 + length..]].concat()).unwrap();
}

#[test]
fn a_checkpoint_with_epochs_does_not_continue_without_them() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.safetensors");
    let _ = train(1, Saves::to(&path), 0).0.unwrap();
    let (device, data) = (cpu(), points());
    let model = model(&device);
    let mut optimizer = AdamW::new(model.parameters(), 0.01).unwrap();
    let refused = Trainer::new(&model, &mut optimizer)
        .saves(Saves::default().resume(&path))
        .train_steps(
            5,
            |step| data.batches(BATCH, &device)?.shuffled(0, step).next().unwrap(),
            |(x, y)| model.forward(x)?.cross_entropy(y),
        )
        .unwrap_err();
    assert!(refused.to_string().contains("continue it with Trainer::train"), "{refused}");
}

#[test]
fn the_log_of_a_resumed_run_has_each_step_once() {
    let folder = tempfile::tempdir().unwrap();
    let (path, log) = (folder.path().join("run.safetensors"), folder.path().join("run.jsonl"));
    let run = |epochs: u64, saves: Saves, fails: u64| {
        let (device, data) = (cpu(), points());
        let model = model(&device);
        let mut optimizer = AdamW::new(model.parameters(), 0.01).unwrap();
        Trainer::new(&model, &mut optimizer)
            .epochs(epochs)
            .saves(saves)
            .observe(JsonLog::create(&log).unwrap())
            .observe(Fails(fails))
            .train(
                |epoch| Ok(data.batches(BATCH, &device)?.shuffled(3, epoch)),
                |(x, y)| model.forward(x)?.cross_entropy(y),
            )
    };
    let losses = || -> Vec<(u64, f64)> {
        let text = std::fs::read(&log).unwrap();
        let log = TrainingLog::read(&text[..], &TrainingLogLimits::default()).unwrap();
        let loss = log.curves().iter().find(|curve| curve.name == "loss").unwrap();
        loss.points.iter().map(|point| (point.step, point.value)).collect()
    };
    let _ = run(3, Saves::default(), 0).unwrap();
    let whole = losses();
    assert_eq!(whole.len(), 9);
    // Killed after step 7, three steps after the last checkpoint.
    assert!(run(3, Saves::to(&path).every(Every::Steps(4)), 7).is_err());
    assert_eq!(losses(), whole[..7]);
    let _ = run(3, Saves::default().resume(&path), 0).unwrap();
    assert_eq!(losses(), whole);
}

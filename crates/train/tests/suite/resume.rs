//! A run in parts gives the values of a run at once, bit for bit.

use std::path::Path;

use highwater::optim::LossScaler;
use highwater::prelude::*;
use highwater::train::{EarlyStopping, Ended, Every, Observer, Outcome, Saves, StepRecord, Trainer};
use highwater::{Error, Result};

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
        .fit(
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
    let position = format!("{{\"position\":{{\"step\":3,\"epoch\":1,\"batch\":{}}}}}", u64::MAX);
    let saved = Checkpoint::load(&path).unwrap();
    saved.with_note("train", &position).save(&path).unwrap();
    let outcome = train(3, Saves::default().resume(&path), 0).0.unwrap();
    assert_eq!((outcome.first_step, outcome.steps, outcome.epochs), (3, 6, 3));
}

//! Early stopping in a run: its end, the best parameters and the best checkpoint.

use highwater::prelude::*;
use highwater::train::{EarlyStopping, Ended, Outcome, Saves, Trainer};
use highwater::{Error, Result};

use crate::support::{cpu, values};

/// Validation losses of each epoch.
const LOSSES: [f64; 6] = [0.5, 0.3, 0.4, 0.2, 0.6, 0.7];

/// Trains a model whose validation losses are known. Returns its parameters after each epoch, and at the end.
fn train(stopping: Option<EarlyStopping>, saves: Saves) -> (Result<Outcome>, Vec<Vec<f32>>, Vec<f32>) {
    let device = cpu();
    let model = Linear::new(&device, 2, 1, &Rng::new(0)).unwrap();
    let (mut sgd, mut after) = (Sgd::new(model.parameters(), 0.1).unwrap(), Vec::new());
    let x = Tensor::ones(&device, [1, 2]).unwrap();
    let trainer = Trainer::new(&model, &mut sgd).epochs(6).saves(saves).evaluate(|| {
        after.push(values(&model));
        Ok([("validation_loss", LOSSES[after.len() - 1])].into())
    });
    let trainer = match stopping {
        Some(stopping) => trainer.early_stopping(stopping),
        None => trainer,
    };
    let outcome = trainer.train(|_| Ok([Ok(x.clone())]), |x| model.forward(x)?.square()?.mean_all());
    let last = values(&model);
    (outcome, after, last)
}

#[test]
fn a_run_ends_after_its_patience_and_restores_the_best() {
    let stopping = EarlyStopping::new("validation_loss").patience(2).restore_best();
    let folder = tempfile::tempdir().unwrap();
    let [last, best] = ["last", "best"].map(|name| folder.path().join(name));
    let (outcome, after, restored) = train(Some(stopping), Saves::to(&last).best(&best));
    let outcome = outcome.unwrap();
    assert_eq!((outcome.ended, outcome.epochs, outcome.best), (Ended::StoppedEarly, 6, Some(0.2)));
    assert_eq!(restored, after[3]);
    // The file of the best evaluation, and the file to continue from.
    for (path, expected) in [(best, &after[3]), (last, &after[5])] {
        let saved = Checkpoint::load(&path).unwrap();
        let model = Linear::new(&cpu(), 2, 1, &Rng::new(1)).unwrap();
        saved.restore(&model).unwrap();
        assert_eq!(&values(&model), expected);
    }
}

#[test]
fn a_shorter_patience_ends_earlier() {
    let (outcome, after, last) =
        train(Some(EarlyStopping::new("validation_loss").patience(1)), Saves::default());
    let outcome = outcome.unwrap();
    assert_eq!((outcome.ended, outcome.epochs, outcome.best), (Ended::StoppedEarly, 3, Some(0.3)));
    assert_eq!(last, after[2]);
}

#[test]
fn a_figure_that_does_not_exist_is_an_error() {
    let (outcome, _, _) = train(Some(EarlyStopping::new("accuracy")), Saves::default());
    let error = outcome.unwrap_err();
    assert!(matches!(error, Error::BadArgument { argument: "figure", .. }), "{error}");
    let (outcome, _, _) = train(None, Saves::default().best("best"));
    assert!(matches!(outcome.unwrap_err(), Error::BadArgument { argument: "best", .. }));
}

//! Options that contradict each other or are out of range: errors before the first step.

use highwater::fit::{FitError, Space, fit};
use highwater::optim::ReduceOnPlateau;
use highwater::prelude::*;
use highwater::train::{EarlyStopping, Every, Figures, Saves, Trainer};
use highwater::{Error, Result};

use crate::objectives::profile;
use crate::support::cpu;

/// The error of a run with these options, which reads no batch.
fn refused(options: impl for<'a> FnOnce(Trainer<'a>) -> Trainer<'a>) -> String {
    let device = cpu();
    let model = Linear::new(&device, 2, 1, &Rng::new(0)).unwrap();
    let mut sgd = Sgd::new(model.parameters(), 0.1).unwrap();
    let trainer = options(Trainer::new(&model, &mut sgd));
    let batches = |_| -> Result<Vec<Result<Tensor>>> { panic!("the run has begun") };
    let error = trainer.train(batches, |x| model.forward(x)).unwrap_err();
    assert!(matches!(error, Error::BadArgument { .. }), "{error}");
    error.to_string()
}

fn evaluated(trainer: Trainer<'_>) -> Trainer<'_> {
    trainer.evaluate(|| Ok(Figures::from([("loss", 1.0)])))
}

#[test]
fn figures_that_nothing_evaluates_are_refused_with_the_fix() {
    let message = refused(|trainer| trainer.early_stopping(EarlyStopping::new("validation_loss")));
    let expected = "used with Trainer::evaluate, which returns the figure that it watches, got no evaluation for \"validation_loss\"";
    assert!(message.contains("early_stopping") && message.ends_with(expected), "{message}");
    let message = refused(|trainer| trainer.reduce_on_plateau("f1", ReduceOnPlateau::new()));
    assert!(
        message.contains("reduce_on_plateau") && message.contains("no evaluation for \"f1\""),
        "{message}"
    );
}

#[test]
fn numbers_out_of_range_are_refused_by_name() {
    type Options = for<'a> fn(Trainer<'a>) -> Trainer<'a>;
    let cases: &[(Options, &str)] = &[
        (|t| t.schedule(Schedule::Constant(f64::NAN)), "rate"),
        (|t| t.schedule(Schedule::Exponential { start: -0.1, factor: 0.9 }.after_warm_up(2)), "start"),
        (|t| evaluated(t).evaluate_every(Every::Steps(0)), "evaluate_every"),
        (|t| t.saves(Saves::to("x").every(Every::Epochs(0))), "Saves::every"),
        (|t| t.clip_norm(0.0), "clip_norm"),
        (|t| t.clip_norm(f64::NAN), "clip_norm"),
        (|t| evaluated(t).early_stopping(EarlyStopping::new("loss").min_delta(f64::NAN)), "min_delta"),
    ];
    for &(options, expected) in cases {
        let message = refused(options);
        assert!(message.contains(expected), "{message}");
    }
}

#[test]
fn a_space_of_nothing_is_refused_before_the_program_runs() {
    for space in [Space::new(0), Space::new(8).ranks([]), Space::new(8).micro_batches([0])] {
        let found = fit(profile(), &space, |_, _| panic!("the program has run"));
        assert!(matches!(found, Err(FitError::InvalidSpace { .. })));
    }
}

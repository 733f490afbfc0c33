//! Averaged parameters and learning rates that fall on plateaus in a run.

use highwater::optim::{Ema, ReduceOnPlateau};
use highwater::prelude::*;
use highwater::train::{EarlyStopping, Every, Outcome, Saves, Trainer};
use highwater::{Result, Runtime};

use crate::support::{BATCH, cpu, measure, model, points, values};

/// The outcome of a run, its parameters, its averages and its learning rate.
type Trained = (Outcome, Vec<f32>, Vec<f32>, f64);

/// Trains a model whose first layer is frozen until an epoch, with averages and a learning rate that falls.
fn train(device: &Device, epochs: u64, unfreezes: u64, saves: Saves) -> Trained {
    train_with(device, epochs, unfreezes, Every::Epochs(1), saves)
}

fn train_with(device: &Device, epochs: u64, unfreezes: u64, evaluates: Every, saves: Saves) -> Trained {
    let (data, model) = (points(), model(device));
    let first = || model.parameters().into_iter().filter(|(path, _)| path.starts_with("fc1"));
    first().for_each(|(_, parameter)| parameter.freeze());
    let mut optimizer = AdamW::new(model.parameters(), 0.05).unwrap();
    let mut ema = Ema::new(model.parameters(), 0.9).unwrap();
    let plateau = ReduceOnPlateau::new().with_factor(0.5).unwrap().with_patience(0);
    let plateau = plateau.with_threshold(0.5).unwrap();
    let outcome = Trainer::new(&model, &mut optimizer)
        .epochs(epochs)
        .ema(&mut ema)
        .evaluate(|| measure(&model, &data, device))
        .evaluate_every(evaluates)
        .early_stopping(EarlyStopping::new("validation_loss").patience(100))
        .reduce_on_plateau("validation_loss", plateau)
        .saves(saves)
        .train(
            |epoch| {
                if epoch >= unfreezes {
                    model.unfreeze();
                }
                Ok(data.batches(BATCH, device)?.shuffled(3, epoch))
            },
            |(x, y)| model.forward(x)?.cross_entropy(y),
        )
        .unwrap();
    if device.is_dry() {
        return (outcome, Vec::new(), Vec::new(), 0.0);
    }
    let averages = ema.with_averages(|| Ok(values(&model))).unwrap();
    (outcome, values(&model), averages, optimizer.learning_rate())
}

#[test]
fn a_run_in_two_parts_has_the_averages_and_the_rate_of_one() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.safetensors");
    for (parts, unfreezes) in [(2, 0), (2, 2), (2, 3), (4, 3)] {
        let whole = train(&cpu(), 6, unfreezes, Saves::default());
        let _ = train(&cpu(), parts, unfreezes, Saves::to(&path));
        let rest = train(&cpu(), 6, unfreezes, Saves::default().resume(&path));
        assert_eq!(rest.0.figures, whole.0.figures);
        assert_eq!((rest.1, rest.2, rest.3), (whole.1, whole.2, whole.3), "{parts}, {unfreezes}");
        assert!(rest.3 < 0.05, "the rate has fallen: {}", rest.3);
    }
}

#[test]
fn evaluations_that_are_not_due_leave_the_rest_of_a_run_unchanged() {
    let folder = tempfile::tempdir().unwrap();
    // The first parts end after 4, 3 and 2 epochs of three steps. The last two end between evaluations.
    for (number, (evaluates, epochs)) in
        [(Every::Epochs(1), 4), (Every::Epochs(2), 3), (Every::Steps(4), 2)].into_iter().enumerate()
    {
        let path = folder.path().join(format!("{number}.safetensors"));
        let whole = train_with(&cpu(), 6, 0, evaluates, Saves::default());
        let first = train_with(&cpu(), epochs, 0, evaluates, Saves::resumable(&path));
        // The program starts again, although the run is complete.
        for _ in 0..2 {
            let again = train_with(&cpu(), epochs, 0, evaluates, Saves::resumable(&path));
            assert_eq!(again.0.figures, first.0.figures);
            assert_eq!((&again.1, &again.2, again.3), (&first.1, &first.2, first.3), "{evaluates}");
        }
        let rest = train_with(&cpu(), 6, 0, evaluates, Saves::resumable(&path));
        assert_eq!((&rest.0.figures, rest.0.best), (&whole.0.figures, whole.0.best), "{evaluates}");
        assert_eq!((rest.1, rest.2, rest.3), (whole.1, whole.2, whole.3), "{evaluates}");
        assert!(rest.3 < 0.05, "the rate has fallen: {}", rest.3);
    }
}

#[test]
fn a_resumed_plateau_has_the_options_of_the_program() -> Result<()> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.safetensors");
    let device = cpu();
    let x = Tensor::ones(&device, [1, 1])?;
    // The figures never improve.
    let run = |epochs: u64, figure: &str, plateau: ReduceOnPlateau, saves: Saves| -> Result<f64> {
        let model = Linear::new(&device, 1, 1, &Rng::new(0))?;
        let mut sgd = Sgd::new(model.parameters(), 1.0)?;
        let trained = Trainer::new(&model, &mut sgd)
            .epochs(epochs)
            .evaluate(|| Ok([("loss", 1.0), ("accuracy", 0.5)].into()))
            .reduce_on_plateau(figure, plateau)
            .saves(saves)
            .train(|_| Ok([Ok(x.clone())]), |x| model.forward(x)?.square()?.mean_all());
        trained.map(|_| sgd.learning_rate())
    };
    // The first evaluation is the best one, and two do not improve.
    assert_eq!(run(3, "loss", ReduceOnPlateau::new(), Saves::to(&path))?, 1.0);
    let patient = ReduceOnPlateau::new().with_factor(0.5)?.with_patience(2);
    assert_eq!(run(4, "loss", patient.clone(), Saves::default().resume(&path))?, 0.5);
    for (figure, plateau, argument) in
        [("accuracy", patient.clone(), "figure"), ("loss", patient.maximize(), "mode")]
    {
        let refused = run(4, figure, plateau, Saves::default().resume(&path)).unwrap_err();
        assert!(
            matches!(&refused, highwater::Error::BadArgument { argument: found, .. } if *found == argument),
            "{refused}"
        );
    }
    Ok(())
}

#[test]
fn a_dry_run_predicts_the_peak_of_a_run_that_unfreezes() {
    let peak = |device: &Device| device.default_allocator().unwrap().stats().peak_bytes_in_use;
    for unfreezes in [0, 2, 9] {
        let (real, dry) = (cpu(), Runtime::builder().threads(1).build().unwrap().dry().unwrap());
        let _ = train(&real, 4, unfreezes, Saves::default());
        let _ = train(&dry, 4, unfreezes, Saves::default());
        assert_eq!(peak(&dry), peak(&real), "{unfreezes}");
    }
}

#[test]
fn evaluations_use_the_averages_and_the_best_ones_return() -> Result<()> {
    let device = cpu();
    let model = Linear::new(&device, 1, 1, &Rng::new(0))?;
    let mut sgd = Sgd::new(model.parameters(), 0.5)?;
    let mut ema = Ema::new(model.parameters(), 0.9)?;
    let x = Tensor::ones(&device, [1, 1])?;
    let (mut seen, mut of_steps) = (Vec::new(), Vec::new());
    let losses = [0.5, 0.1, 0.2, 0.3];
    let outcome = Trainer::new(&model, &mut sgd)
        .ema(&mut ema)
        .evaluate_every(Every::Steps(1))
        .evaluate(|| {
            seen.push(values(&model));
            Ok([("loss", losses[seen.len() - 1])].into())
        })
        .early_stopping(EarlyStopping::new("loss").patience(2).restore_best())
        .train_steps(
            4,
            |_| Ok(x.clone()),
            |x| {
                of_steps.push(values(&model));
                model.forward(x)?.square()?.mean_all()
            },
        )?;
    assert_eq!(outcome.best, Some(0.1));
    // The second evaluation was the best: the parameters and the averages are those after step 2.
    assert_eq!(values(&model), of_steps[2]);
    assert_eq!(ema.with_averages(|| Ok(values(&model)))?, seen[1]);
    assert_eq!(ema.updates(), 2);
    assert!(seen.iter().zip(&of_steps[1..]).all(|(averages, own)| averages != own));
    Ok(())
}

//! Dry runs of the loop: exact peaks, no values, no files.

use highwater::prelude::*;
use highwater::train::{EarlyStopping, Ended, F1, Outcome, Perplexity, Saves, TopK, Trainer, evaluate};
use highwater::{Result, Runtime};

use crate::support::{BATCH, cpu, model, points};

fn train(device: &Device, short: bool, saves: Saves) -> Result<Outcome> {
    let (data, model) = (points(), model(device));
    let mut optimizer = AdamW::new(model.parameters(), 0.01)?;
    let trainer = Trainer::new(&model, &mut optimizer)
        .epochs(5)
        .accumulate(2)
        .clip_norm(1.0)
        .evaluate(|| {
            let mut metrics = (F1::default(), TopK::new(1), Perplexity::default());
            let batches = data.batches(BATCH, device)?;
            evaluate(batches, |x| model.forward(x), &mut [&mut metrics.0, &mut metrics.1, &mut metrics.2])
        })
        .early_stopping(EarlyStopping::new("perplexity").patience(1).restore_best())
        .saves(saves);
    let trainer = if short { trainer.short_dry_runs() } else { trainer };
    trainer.fit(
        |epoch| Ok(data.batches(BATCH, device)?.shuffled(3, epoch)),
        |(x, y)| model.forward(x)?.cross_entropy(y),
    )
}

fn peak(device: &Device) -> u64 {
    device.default_allocator().unwrap().stats().peak_bytes_in_use
}

#[test]
fn a_short_dry_run_has_the_peak_of_the_real_run_and_no_values() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.safetensors");
    let (real, dry) = (cpu(), Runtime::builder().threads(1).build().unwrap().dry().unwrap());
    let computed = train(&real, true, Saves::default()).unwrap();
    let predicted = train(&dry, true, Saves::to(&path)).unwrap();
    assert_eq!(peak(&dry), peak(&real));
    assert!(computed.loss.is_some() && !computed.is_dry);
    assert_eq!((predicted.ended, predicted.epochs, predicted.is_dry), (Ended::Completed, 2, true));
    assert_eq!((predicted.loss, predicted.best), (None, None));
    let names: Vec<_> = predicted.figures.iter().collect();
    assert_eq!(names, [("f1", None), ("top1_accuracy", None), ("perplexity", None)]);
    assert!(!path.exists());
    assert_eq!(predicted.to_string(), "4 steps, dry run");

    let dry = Runtime::builder().threads(1).build().unwrap().dry().unwrap();
    assert_eq!(train(&dry, false, Saves::default()).unwrap().epochs, 5);
    assert_eq!(peak(&dry), peak(&real));
}

//! Dry runs of the loop: exact peaks, no values, no files.

use highwater::prelude::*;
use highwater::train::{
    EarlyStopping, Ended, F1, Observer, Outcome, Perplexity, Saves, StepRecord, TopK, Trainer, evaluate,
};
use highwater::{Result, Runtime, StepTime};

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
    trainer.train(
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

/// Collects the estimated times of steps.
struct Times<'a>(&'a mut Vec<Option<StepTime>>);

impl Observer for Times<'_> {
    fn step(&mut self, record: &StepRecord) -> Result<()> {
        self.0.push(record.estimated);
        Ok(())
    }
}

#[test]
fn steps_of_a_dry_run_for_a_gpu_have_estimated_times_without_evaluations() {
    let times = |profile: Option<DeviceProfile>| {
        let builder = Runtime::builder().threads(1);
        let builder = profile.into_iter().fold(builder, |builder, profile| builder.dry_profile(profile));
        let device = builder.build().unwrap().dry().unwrap();
        let (data, model, mut times) = (points(), model(&device), Vec::new());
        let mut optimizer = AdamW::new(model.parameters(), 0.01).unwrap();
        let large = || Tensor::zeros(&device, [4096, 4096]);
        let evaluate = || large()?.matmul(&large()?).map(|_| Default::default());
        let _ = Trainer::new(&model, &mut optimizer)
            .epochs(2)
            .evaluate(evaluate)
            .observe(Times(&mut times))
            .train(
                |epoch| Ok(data.batches(BATCH, &device)?.shuffled(3, epoch)),
                |(x, y)| model.forward(x)?.cross_entropy(y),
            )
            .unwrap();
        times
    };
    let seconds: Vec<f64> =
        times(DeviceProfile::gpu("h100-80g")).iter().map(|time| time.unwrap().seconds).collect();
    // Two batches of 8 and one of 4, twice. The product of an evaluation takes milliseconds.
    assert_eq!(seconds.len(), 6);
    assert!(seconds.iter().all(|time| *time > 0.0), "{seconds:?}");
    assert!((seconds[1] - seconds[4]).abs() < 1e-9, "{seconds:?}");
    assert!((seconds[1] - seconds[3]).abs() < 1e-4, "{seconds:?}");
    assert_eq!(times(None), [None; 6]);
}

//! Trains the network with any batch size on any device.

use std::path::Path;

use highwater::io::Checkpoint;
use highwater::prelude::*;
use highwater::{DryRunOptions, LargestFit, Result, SmallestPool, largest_fit, smallest_pool};
use serde_json::json;

use crate::harness::{Progress, Session};
use crate::{Args, model};

/// The epochs of a dry run: later ones repeat the second.
const DRY_EPOCHS: u64 = 2;

/// The data and the options of a training run.
pub(crate) struct Training<'a> {
    pub(crate) args: &'a Args,
    pub(crate) session: &'a Session,
    pub(crate) train: ArrayDataset,
    pub(crate) test: ArrayDataset,
}

/// The result of training; empty on a device that computes nothing.
#[derive(Default)]
pub(crate) struct Outcome {
    pub(crate) test_accuracy: Option<f64>,
    pub(crate) diverged: Option<Diverged>,
}

/// Training stopped because the loss became NaN or infinite.
pub(crate) struct Diverged {
    pub(crate) loss: f32,
    /// The epoch, from 1.
    pub(crate) epoch: u64,
}

/// Writes a checkpoint to continue from.
fn save(
    path: &Path,
    network: &Sequential,
    optimizer: &AdamW,
    scaler: Option<&LossScaler>,
    steps: u64,
) -> Result<()> {
    let checkpoint = Checkpoint::of(network)?.with_optimizer(optimizer)?.with_step(steps);
    let checkpoint = match scaler {
        Some(scaler) => checkpoint.with_scaler(scaler),
        None => checkpoint,
    };
    Ok(checkpoint.save(path)?)
}

impl Training<'_> {
    /// The number of steps per epoch.
    pub(crate) fn steps_per_epoch(&self, batch_size: usize, device: &Device) -> Result<u64> {
        Ok(self.train.batches(batch_size, device)?.len() as u64)
    }

    /// Trains a new network.
    pub(crate) fn run(
        &self,
        device: &Device,
        batch_size: usize,
        epochs: u64,
        progress: &mut Progress,
    ) -> Result<Outcome> {
        let (args, seed) = (self.args, self.session.seed);
        let network = model::network(args.network, device, &Rng::new(seed))?;
        network.convert(args.dtype.dtype())?;
        let mut scaler = args.dtype.scaler();
        let mut optimizer = AdamW::new(network.parameters(), args.learning_rate)?;
        if let Some(checkpoint) = args.saves.load()? {
            checkpoint.restore_all(&network, &mut optimizer)?;
            progress.resume(checkpoint.step().unwrap_or(0));
            scaler = scaler.map(|fresh| checkpoint.scaler().cloned().unwrap_or(fresh));
        }
        let mut outcome = Outcome::default();
        // Only whole epochs are saved.
        let first = progress.steps() / self.steps_per_epoch(batch_size, device)?.max(1);
        for epoch in first..args.stop_after.unwrap_or(epochs).min(epochs) {
            optimizer.set_learning_rate(args.learning_rate * (1.0 - epoch as f64 / epochs as f64))?;
            for batch in self.train.batches(batch_size, device)?.shuffled(seed, epoch) {
                let (x, y) = batch?;
                let x = x.to_dtype(args.dtype.dtype())?;
                let loss =
                    progress.run(|| model::train_step(&network, &mut optimizer, scaler.as_mut(), &x, &y))?;
                let rate = optimizer.learning_rate();
                let figures = json!({ "learning_rate": rate, "test_accuracy": outcome.test_accuracy });
                progress.step(&loss, figures)?;
                let wrong = progress.loss().filter(|loss| !loss.is_finite() && !args.allow_nan);
                if let Some(loss) = wrong {
                    outcome.diverged = Some(Diverged { loss, epoch: epoch + 1 });
                    return Ok(outcome);
                }
            }
            outcome.test_accuracy = model::accuracy(&network, args.dtype, &self.test, batch_size, device)?;
            progress.note(
                outcome
                    .test_accuracy
                    .map_or_else(String::new, |share| format!("accuracy {:.1} %", share * 100.0)),
            );
            if let Some(path) = args.saves.end(device).filter(|_| args.saves.is_due(epoch + 1)) {
                save(path, &network, &optimizer, scaler.as_ref(), progress.steps())?;
            }
        }
        if let Some(path) = args.saves.end(device) {
            save(path, &network, &optimizer, scaler.as_ref(), progress.steps())?;
        }
        Ok(outcome)
    }

    /// The largest batch that trains in the memory of a dry device.
    pub(crate) fn largest_batch(&self, options: DryRunOptions) -> Result<LargestFit> {
        let images = self.train.rows() as u64;
        largest_fit(options, 1..=images, |device, batch_size| self.dry(device, batch_size as usize))
    }

    /// The smallest pool of a dry device that trains.
    pub(crate) fn smallest_pool(&self, options: DryRunOptions) -> Result<SmallestPool> {
        smallest_pool(options, |device| self.dry(device, self.args.batch_size))
    }

    /// A dry run of the epochs that differ.
    fn dry(&self, device: &Device, batch_size: usize) -> Result<()> {
        let epochs = self.args.epochs.min(DRY_EPOCHS);
        self.run(device, batch_size, epochs, &mut Progress::hidden(device)).map(drop)
    }
}

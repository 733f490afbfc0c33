//! `--save` and `--resume`: checkpoints of model and optimizer.

use std::path::{Path, PathBuf};

use clap::Args;
use highwater::io::Checkpoint;
use highwater::nn::Module;
use highwater::optim::Optimizer;
use highwater::{Device, Result};

use super::options::file_to_write;

// Not a doc comment: clap would print it above the example's help.
#[derive(Args, Clone, Debug)]
pub(crate) struct Saves {
    /// Write a checkpoint of the model and the optimizer to this file at the end
    #[arg(long, value_name = "FILE", value_parser = file_to_write())]
    save: Option<PathBuf>,

    /// Write the checkpoint after every N steps, or epochs if only whole epochs are saved
    #[arg(long, value_name = "N", requires = "save", value_parser = clap::value_parser!(u64).range(1..))]
    save_every: Option<u64>,

    /// Continue from a file written by --save, with the same other options
    #[arg(long, value_name = "FILE")]
    resume: Option<PathBuf>,
}

impl Saves {
    /// The checkpoint to continue from.
    pub(crate) fn begin(&self) -> Option<&Path> {
        self.resume.as_deref()
    }

    /// Whether a checkpoint is due after this number of steps or epochs.
    pub(crate) fn is_due(&self, done: u64) -> bool {
        self.save_every.is_some_and(|every| done.is_multiple_of(every))
    }

    /// The checkpoint to write; `None` on a device that computes nothing.
    pub(crate) fn end(&self, device: &Device) -> Option<&Path> {
        self.save.as_deref().filter(|_| !device.is_dry())
    }

    /// Reads the checkpoint to continue from.
    pub(crate) fn load(&self) -> Result<Option<Checkpoint>> {
        let load = |path| Checkpoint::load(path);
        Ok(self.begin().map(load).transpose()?)
    }

    /// Restores a model and its optimizer from the checkpoint. Returns its number of steps, if there is a checkpoint.
    pub(crate) fn resume(&self, model: &impl Module, optimizer: &mut impl Optimizer) -> Result<u64> {
        let Some(checkpoint) = self.load()? else { return Ok(0) };
        checkpoint.restore_all(model, optimizer)?;
        Ok(checkpoint.step().unwrap_or(0))
    }

    /// Writes a checkpoint, if requested.
    pub(crate) fn save(
        &self,
        device: &Device,
        model: &impl Module,
        optimizer: &impl Optimizer,
        steps: u64,
    ) -> Result<()> {
        let Some(path) = self.end(device) else { return Ok(()) };
        Ok(Checkpoint::of(model)?.with_optimizer(optimizer)?.with_step(steps).save(path)?)
    }
}

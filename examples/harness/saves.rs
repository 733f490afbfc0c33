//! `--save` and `--resume`: what was learnt, kept from one run to the next.

use std::path::{Path, PathBuf};

use clap::Args;
use highwater::io::{Checkpoint, SafetensorsLimits};
use highwater::nn::Module;
use highwater::optim::Optimizer;
use highwater::{Device, Result};

use super::options::file_to_write;

// No doc comment: it would stand above the help of the example.
#[derive(Args, Clone, Debug)]
pub(crate) struct Saves {
    /// Write what was learnt, and the optimiser's state, to this file at the end
    #[arg(long, value_name = "FILE", value_parser = file_to_write())]
    save: Option<PathBuf>,

    /// Write that file after every so many steps, or epochs where training goes by these, too: a run that is killed can go on
    #[arg(long, value_name = "N", requires = "save", value_parser = clap::value_parser!(u64).range(1..))]
    save_every: Option<u64>,

    /// Go on from a file written by --save, with the same other options
    #[arg(long, value_name = "FILE")]
    resume: Option<PathBuf>,
}

impl Saves {
    /// The file to go on from.
    pub(crate) fn begin(&self) -> Option<&Path> {
        self.resume.as_deref()
    }

    /// Whether it is time to write the file, after so many steps; or epochs, where only whole ones are kept.
    pub(crate) fn is_due(&self, done: u64) -> bool {
        self.save_every.is_some_and(|every| done.is_multiple_of(every))
    }

    /// The file to write now; none for a device that computes nothing, as there is nothing to keep.
    pub(crate) fn end(&self, device: &Device) -> Option<&Path> {
        self.save.as_deref().filter(|_| !device.is_dry())
    }

    /// What is in the file to go on from.
    pub(crate) fn load(&self) -> Result<Option<Checkpoint>> {
        let load = |path| Checkpoint::load(path, &SafetensorsLimits::default());
        Ok(self.begin().map(load).transpose()?)
    }

    /// Gives a model and its optimiser what is in the file to go on from. How many steps they have done: none where no file was
    /// given.
    pub(crate) fn resume(&self, model: &impl Module, optimizer: &mut impl Optimizer) -> Result<u64> {
        let Some(checkpoint) = self.load()? else { return Ok(0) };
        checkpoint.restore_all(model, optimizer)?;
        Ok(checkpoint.step().unwrap_or(0))
    }

    /// Keeps a model and its optimiser, after so many steps, where that was asked for.
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

//! The order of events in a run.

use std::fmt::Display;
use std::path::Path;

use highwater_distributed::{AgreedValue, RunStage, World};
use highwater_nn::checkpoint::Checkpoint;
use highwater_nn::optim::LossScaler;
use highwater_tensor::error::FileError;
use highwater_tensor::{DType, Device, Error, Result, Tensor, mixed, mixed_dtype, no_grad};
use highwater_tracking::module;

use super::draws::Draws;
use super::step::Step;
use super::{Ended, LearningRate, Outcome, Trainer};
use crate::figures::Figures;
use crate::fit::{Plan, PlanGuard};
use crate::output::{Output, StepRecord};
use crate::position::{Every, Position};
use crate::saves::{LoopState, Parts, Saves};
use crate::stop::{EarlyStopping, StopSignal};

/// The epochs or steps of a short dry run.
const DRY: u64 = 2;

/// The steps at the start of an epoch that a rehearsal runs.
const REHEARSED: u64 = 4;

/// A run in progress.
pub(super) struct Training<'a> {
    trainer: Trainer<'a>,
    first_step: u64,
    position: Position,
    epochs: u64,
    steps: u64,
    /// The device of the parameters; `None` without parameters.
    device: Option<Device>,
    is_dry: bool,
    signal: Option<StopSignal>,
    /// The record of the last step, until its evaluation is known.
    pending: Option<StepRecord>,
    /// The figures of the last evaluation, and the step after which it took place.
    figures: Figures,
    evaluated: Option<u64>,
    /// The parameters of the best evaluation.
    best: Option<Checkpoint>,
}

impl<'a> Training<'a> {
    /// Prepares a run until one of the limits, and restores the checkpoint to continue from.
    pub(super) fn begin(mut trainer: Trainer<'a>, epochs: u64, mut steps: u64) -> Result<Self> {
        trainer.check()?;
        let has_epochs = steps == u64::MAX;
        if let Some(plan) = &trainer.plan {
            // A rehearsal has the epochs of a short dry run.
            steps = if plan.is_rehearsal() && has_epochs { steps } else { plan.steps(steps) };
            if plan.is_trial() {
                (trainer.listens, trainer.allows_nan, trainer.short_dry_runs) = (false, true, true);
                trainer.saves = Saves::default();
                trainer.output = Output::default();
            }
        }
        if trainer.mixed_precision() == Some(DType::F16) && trainer.stepper.scaler.is_none() {
            trainer.stepper.scaler = Some(LossScaler::dynamic());
        }
        let world = trainer.stepper.world.clone();
        let mut changing = trainer.model.buffers().into_iter().filter(|(_, buffer)| !buffer.is_constant());
        if let Some((buffer, _)) = changing.next().filter(|_| world.size() > 1) {
            let (argument, expected) = ("model", "without buffers, which each rank would change differently");
            let got = format!("{buffer}; use group or layer normalization instead of batch normalization");
            return Err(Error::BadArgument { op: "train", argument, expected, got });
        }
        if trainer.stepper.optimizer.ranks() != world.size() {
            let (argument, expected) = ("optimizer", "wrapped by World::data_parallel of the same world");
            let got = format!(
                "{} of {} ranks",
                trainer.stepper.optimizer.name(),
                trainer.stepper.optimizer.ranks()
            );
            return Err(Error::BadArgument { op: "train", argument, expected, got });
        }
        if !world.is_main() {
            trainer.output.silence();
        }
        let parts = trainer.stepper.accumulate * world.size() as u64;
        trainer.stepper.draws = Some(Draws::new(trainer.model, parts));
        let parameters = trainer.stepper.optimizer.parameters();
        let is_dry = parameters.iter().any(|(_, parameter)| parameter.tensor().device().is_dry());
        let device = parameters.first().map(|(_, parameter)| parameter.tensor().device().clone());
        let limit = if is_dry && trainer.short_dry_runs { DRY } else { u64::MAX };
        // A trial knows its steps.
        if !has_epochs && !trainer.plan.as_ref().is_some_and(Plan::is_trial) {
            steps = steps.min(limit);
        }
        let mut training = Self {
            signal: trainer.listens.then(StopSignal::listen),
            trainer,
            first_step: 0,
            position: Position::default(),
            epochs: epochs.min(limit),
            steps,
            device,
            is_dry,
            pending: None,
            figures: Figures::default(),
            evaluated: None,
            best: None,
        };
        training.resume()?;
        training.agree_at(RunStage::Begin)?;
        Ok(training)
    }

    /// Waits until all ranks are at this stage, and checks that they run the same steps.
    fn agree_at(&self, stage: RunStage) -> Result<()> {
        let Position { step, epoch, batch } = self.position;
        let entry = |(name, options): (&str, String)| AgreedValue {
            name: name.to_owned(),
            shape: Vec::new(),
            dtype: None,
            options,
        };
        let of_run = [
            ("epochs of the run", self.epochs.to_string()),
            ("steps of the run", self.steps.to_string()),
            ("position", format!("step {step}, epoch {epoch}, batch {batch}")),
        ];
        let entries = self.trainer.common_options().into_iter().chain(of_run).map(entry).collect();
        Ok(self.trainer.stepper.world.agree_at(stage, entries)?)
    }

    fn resume(&mut self) -> Result<()> {
        let trainer = &mut self.trainer;
        let Some(checkpoint) = trainer.saves.load()? else { return Ok(()) };
        let path = trainer.saves.resume_path().unwrap_or(Path::new(""));
        let state = LoopState::of(&checkpoint, path)?;
        // `train_steps` has no epochs.
        if self.epochs == u64::MAX && state.position.epoch > 0 {
            let problem = "the checkpoint is of a run with epochs: continue it with Trainer::train";
            return Err(FileError::malformed(path, 8, problem).into());
        }
        let mut plateau = trainer.learning_rate.plateau().map(|(figure, plateau)| (figure, plateau.clone()));
        if let (Some((figure, plateau)), Some(saved)) = (&mut plateau, checkpoint.plateau()) {
            if let Some(of_saved) = state.plateau_figure.filter(|of_saved| of_saved != *figure) {
                let (argument, expected) = ("figure", "that of the checkpoint");
                let got = format!("{figure:?} for the state of {of_saved:?}");
                return Err(Error::BadArgument { op: "reduce_on_plateau", argument, expected, got });
            }
            plateau.resume(saved)?;
        }
        let resumed = plateau.map(|(_, plateau)| plateau);
        if let Some(ema) = &trainer.ema {
            checkpoint.check_ema(ema)?;
        }
        checkpoint.restore_all(trainer.model, trainer.stepper.optimizer)?;
        if let Some(ema) = &mut trainer.ema {
            checkpoint.restore_ema(ema)?;
        }
        if let (LearningRate::OnPlateau { plateau, .. }, Some(resumed)) =
            (&mut trainer.learning_rate, resumed)
        {
            *plateau = resumed;
        }
        if let (Some(scaler), Some(saved)) = (&mut trainer.stepper.scaler, checkpoint.scaler()) {
            scaler.clone_from(saved);
        }
        if let (Some(stopping), Some(saved)) = (&mut trainer.early_stopping, state.early_stopping) {
            stopping.resume(saved);
        }
        self.position = state.position;
        self.first_step = state.position.step;
        Ok(())
    }

    /// Runs until an end. `source` returns the batches of an epoch, and how many of them to skip.
    pub(super) fn run<B, I: Iterator<Item = Result<B>>>(
        mut self,
        mut source: impl FnMut(Position) -> Result<(I, u64)>,
        mut loss: impl FnMut(&B) -> Result<Tensor>,
    ) -> Result<Outcome> {
        let _mixed = self.trainer.precision.map(mixed).transpose()?;
        let plan = self.trainer.plan.as_ref().map(Plan::enter).transpose()?;
        let stopping = self.trainer.early_stopping.as_ref();
        let mut ended = stopping.filter(|stopping| stopping.is_over()).map(|_| Ended::StoppedEarly);
        let mut has_begun = false;
        while ended.is_none() && self.position.epoch < self.epochs && self.position.step < self.steps {
            let (mut batches, skipped) = source(self.position)?;
            let is_first = !std::mem::replace(&mut has_begun, true);
            if is_first {
                let total = self.total(batches.size_hint().1);
                self.trainer.output.begin(self.position.step, total)?;
            }
            // Ends with the batches: the file may state any number.
            for batch in batches.by_ref().take(usize::try_from(skipped).unwrap_or(usize::MAX)) {
                drop(batch?);
            }
            if let Some(device) = self.device.as_ref().filter(|_| is_first) {
                self.trainer.output.start_step(device);
            }
            ended = self.epoch(batches, &mut loss, plan.as_ref())?;
        }
        self.finish(ended.unwrap_or(Ended::Completed))
    }

    /// The number of steps of the run, if it is known.
    fn total(&self, batches: Option<usize>) -> Option<u64> {
        if self.steps < u64::MAX {
            return Some(self.steps);
        }
        let steps = (batches? as u64).div_ceil(self.trainer.stepper.accumulate);
        self.epochs.checked_mul(steps)
    }

    /// Runs an epoch. Returns the reason to end after it, if there is one.
    fn epoch<B>(
        &mut self,
        mut batches: impl Iterator<Item = Result<B>>,
        loss: &mut impl FnMut(&B) -> Result<Tensor>,
        plan: Option<&PlanGuard>,
    ) -> Result<Option<Ended>> {
        let (start, mut done, mut usual) = (self.position.step, 0, None);
        while self.position.step < self.steps {
            let batch = self.next_batch(&mut batches, (done, &mut usual));
            if batch.is_some() {
                self.flush()?;
            }
            let Some(batch) = batch else { break };
            let ended = self.step(&batch?, &mut batches, &mut *loss)?;
            done += 1;
            plan.map_or(Ok(()), PlanGuard::check)?;
            // The record of the last step waits for the evaluation at the end of the epoch.
            if ended.is_none() && self.position.step < self.steps && batches.size_hint().0 > 0 {
                self.flush()?;
            }
            if ended.is_some() {
                return Ok(ended);
            }
        }
        if self.position.step >= self.steps {
            return Ok(None);
        }
        // Without batches, an endless run would not end.
        if self.position.step == start && self.position.batch == 0 {
            return Ok(Some(Ended::Completed));
        }
        self.agree_at(RunStage::EndEpoch)?;
        (self.position.epoch, self.position.batch) = (self.position.epoch + 1, 0);
        let is_due = self.trainer.evaluate_every.is_due_after_epochs(self.position.epoch);
        let ended = if is_due { self.evaluate(true)? } else { None };
        self.flush()?;
        if self.trainer.saves.is_due_after_epochs(self.position.epoch) {
            self.save()?;
        }
        Ok(ended)
    }

    /// Returns the next batch of an epoch after this many steps. A rehearsal skips batches of the usual size after the first
    /// steps and before the last two, whose last batch may be smaller: their steps need the same memory.
    fn next_batch<B>(
        &mut self,
        batches: &mut impl Iterator<Item = Result<B>>,
        (done, usual): (u64, &mut Option<u64>),
    ) -> Option<Result<B>> {
        let accumulate = self.trainer.stepper.accumulate;
        let skips = self.trainer.plan.as_ref().is_some_and(Plan::is_rehearsal)
            && matches!(self.trainer.evaluate_every, Every::Epochs(_))
            // A number of steps is for the trial to limit.
            && self.steps == u64::MAX;
        let mut skipped = 0;
        let next = loop {
            let before = self.bytes_in_use();
            let batch = batches.next();
            let bytes = self.bytes_in_use().zip(before).map(|(after, before)| after.wrapping_sub(before));
            // Batches in other memory look equal.
            let is_usual = bytes.is_some_and(|bytes| bytes > 0) && bytes == *usual;
            let is_in_the_middle = batches.size_hint().0 as u64 > 2 * accumulate && done >= REHEARSED;
            if !(skips && is_usual && is_in_the_middle && matches!(batch, Some(Ok(_)))) {
                *usual = usual.or(bytes);
                break batch;
            }
            skipped += 1;
        };
        self.position.step += skipped / accumulate;
        self.position.batch += skipped * self.trainer.stepper.world.size() as u64;
        next
    }

    /// The bytes in use on the device of a rehearsal.
    fn bytes_in_use(&self) -> Option<u64> {
        self.trainer.plan.as_ref().filter(|plan| plan.is_rehearsal())?;
        Some(self.device.as_ref()?.default_allocator().ok()?.stats().bytes_in_use)
    }

    /// Runs a step and what follows it.
    fn step<B>(
        &mut self,
        batch: &B,
        batches: &mut impl Iterator<Item = Result<B>>,
        loss: impl FnMut(&B) -> Result<Tensor>,
    ) -> Result<Option<Ended>> {
        let Trainer { stepper, learning_rate, ema, output, .. } = &mut self.trainer;
        if let Some(rate) = learning_rate.at(self.position) {
            stepper.optimizer.set_learning_rate(rate)?;
        }
        let Step { device, loss, gradient_norm, batches } = stepper.step(output, batch, batches, loss)?;
        if let Some(ema) = ema {
            ema.update()?;
        }
        let stops = self.signal.as_ref().is_some_and(StopSignal::is_requested);
        let world = &stepper.world;
        let (loss, stops) =
            if self.is_dry || world.size() == 1 { (loss, stops) } else { meet(world, loss, stops)? };
        let batches = batches * world.size() as u64;
        let mut figures = Figures::from([("learning_rate", stepper.optimizer.learning_rate())]);
        if stepper.clip_norm.is_some() {
            figures.set("gradient_norm", gradient_norm);
        }
        self.pending = Some(output.record(&device, loss, figures)?);
        self.position.step += 1;
        self.position.batch += batches;
        let step = self.position.step;
        if let Some(loss) = loss.filter(|loss| !loss.is_finite() && !self.trainer.allows_nan) {
            return Ok(Some(Ended::Diverged { loss, step, epoch: self.position.epoch + 1 }));
        }
        let is_due = self.trainer.evaluate_every.is_due_after_steps(step);
        let ended = if is_due { self.evaluate(true)? } else { None };
        if self.trainer.saves.is_due_after_steps(step) {
            self.save()?;
        }
        Ok(ended.or_else(|| stops.then_some(Ended::Interrupted)))
    }

    /// Evaluates the model, unless this has happened after the last step. Only an evaluation that is due by its interval may
    /// change the learning rate. Returns whether early stopping ends the run.
    fn evaluate(&mut self, is_due: bool) -> Result<Option<Ended>> {
        let Some(evaluation) = self.trainer.evaluation.as_mut() else { return Ok(None) };
        if self.evaluated == Some(self.position.step) {
            return Ok(None);
        }
        let mut evaluate = || {
            no_grad(|| {
                let _scope = module("validation");
                evaluation()
            })
        };
        self.figures = match &self.trainer.ema {
            Some(ema) => ema.with_averages(evaluate)?,
            None => evaluate()?,
        };
        self.evaluated = Some(self.position.step);
        // Evaluations are no part of the next step.
        if let Some(device) = &self.device {
            self.trainer.output.start_step(device);
        }
        if let Some(record) = &mut self.pending {
            record.figures.extend(&self.figures);
        }
        if let LearningRate::OnPlateau { figure, plateau } = &mut self.trainer.learning_rate
            && let Some(value) = watched("reduce_on_plateau", &self.figures, figure)?
            && is_due
        {
            plateau.step(value, self.trainer.stepper.optimizer)?;
        }
        let Some(stopping) = &mut self.trainer.early_stopping else { return Ok(None) };
        let Some(value) = watched("early_stopping", &self.figures, stopping.figure())? else {
            return Ok(None);
        };
        let (improves, is_over) = (stopping.update(value), stopping.is_over());
        if improves && stopping.restores_best() {
            let best = Checkpoint::of(self.trainer.model)?;
            self.best = Some(match &self.trainer.ema {
                Some(ema) => best.with_ema(ema)?,
                None => best,
            });
        }
        if let Some(path) = self.trainer.saves.best_path().filter(|_| improves) {
            self.parts().save(path, self.position)?;
        }
        Ok(is_over.then_some(Ended::StoppedEarly))
    }

    fn parts(&self) -> Parts<'_> {
        Parts {
            writes: self.trainer.stepper.world.is_main(),
            model: self.trainer.model,
            optimizer: self.trainer.stepper.optimizer,
            scaler: self.trainer.stepper.scaler.as_ref(),
            early_stopping: self.trainer.early_stopping.as_ref(),
            plateau: self.trainer.learning_rate.plateau(),
            ema: self.trainer.ema.as_deref(),
            notes: &self.trainer.notes,
        }
    }

    fn save(&self) -> Result<()> {
        match self.trainer.saves.path().filter(|_| !self.is_dry) {
            Some(path) => self.parts().save(path, self.position),
            None => Ok(()),
        }
    }

    /// Passes the record of the last step to the observers.
    fn flush(&mut self) -> Result<()> {
        self.pending.take().map_or(Ok(()), |record| self.trainer.output.emit(&record))
    }

    fn finish(mut self, ended: Ended) -> Result<Outcome> {
        self.agree_at(RunStage::End)?;
        // Before the last evaluation, which a longer run does not have unless it is due: so a run in parts equals it.
        if !matches!(ended, Ended::Diverged { .. }) {
            self.save()?;
        }
        if ended == Ended::Completed {
            self.evaluate(false)?;
        }
        self.flush()?;
        if let Some(best) = self.best.filter(|_| ended != Ended::Interrupted) {
            best.restore(self.trainer.model)?;
            if let Some(ema) = &mut self.trainer.ema {
                best.restore_ema(ema)?;
            }
        }
        self.trainer.output.finish()?;
        let Position { step, epoch, .. } = self.position;
        let best = self.trainer.early_stopping.as_ref().and_then(|stopping| stopping.best());
        let (loss, figures) = (self.trainer.output.loss(), self.figures);
        let (first_step, is_dry) = (self.first_step, self.is_dry);
        Ok(Outcome { ended, first_step, steps: step, epochs: epoch, loss, figures, best, is_dry })
    }
}

/// Returns the figure that an option watches. A dry run has no value.
fn watched(op: &'static str, figures: &Figures, figure: &str) -> Result<Option<f64>> {
    if figures.contains(figure) {
        return Ok(figures.get(figure));
    }
    let (argument, expected) = ("figure", "a figure that the evaluation returns");
    Err(Error::BadArgument { op, argument, expected, got: format!("{figure:?}") })
}

impl Trainer<'_> {
    /// The type of mixed precision: of the plan, else of the loop, else of a guard of the caller.
    fn mixed_precision(&self) -> Option<DType> {
        let of_plan = self.plan.as_ref().and_then(|plan| plan.precision);
        of_plan.or(self.precision).or_else(mixed_dtype)
    }

    /// The options that all ranks must share, because they change the steps.
    fn common_options(&self) -> Vec<(&'static str, String)> {
        let Self { stepper, early_stopping, evaluate_every, learning_rate, ema, .. } = self;
        let stopping = early_stopping.as_ref().map(EarlyStopping::options);
        let plateau = learning_rate.plateau().map(|(figure, plateau)| format!("{plateau} of {figure}"));
        // An evaluation that changes no step is no operation of all ranks.
        let evaluates = stopping.is_some() || plateau.is_some();
        let ema = ema.as_ref().map(|ema| {
            let warm_up = if ema.has_warm_up() { ", with warm-up" } else { "" };
            format!("decay {}{warm_up}, after {} updates", ema.decay(), ema.updates())
        });
        vec![
            ("accumulated batches", stepper.accumulate.to_string()),
            ("norm limit", text(stepper.clip_norm.as_ref())),
            ("loss scaler", text(stepper.scaler.as_ref())),
            ("precision", text(self.mixed_precision().as_ref())),
            ("early stopping", text(stopping.as_ref())),
            ("reduction on plateaus", text(plateau.as_ref())),
            ("interval of evaluations", text(evaluates.then_some(evaluate_every))),
            ("averages", text(ema.as_ref())),
        ]
    }
}

/// Writes an option of the run.
fn text(option: Option<&impl Display>) -> String {
    option.map_or_else(|| "none".to_owned(), ToString::to_string)
}

/// Exchanges the loss of this rank and whether it was asked to stop. Returns the mean loss, and whether any rank was.
fn meet(world: &World, loss: Option<f64>, stops: bool) -> Result<(Option<f64>, bool)> {
    let own = [loss.unwrap_or(f64::NAN), f64::from(u8::from(stops))];
    let all = world.all_gather_f64(own).map_err(highwater_distributed::ParallelError::from)?;
    let sum = all.iter().map(|[loss, _]| *loss).reduce(|sum, loss| sum + loss);
    let stops = all.iter().any(|[_, stops]| *stops != 0.0);
    Ok((sum.map(|sum| sum / all.len() as f64), stops))
}

#[cfg(test)]
mod tests {
    use super::*;
    use highwater_nn::modules::{Linear, Module};
    use highwater_nn::optim::{Ema, ReduceOnPlateau, Sgd};
    use highwater_tensor::Rng;

    /// The common options of a trainer.
    fn options(change: impl for<'a> FnOnce(Trainer<'a>) -> Trainer<'a>) -> Vec<(&'static str, String)> {
        let model = Linear::new(&Device::cpu().unwrap(), 1, 1, &Rng::new(0)).unwrap();
        let mut sgd = Sgd::new(model.parameters(), 0.1).unwrap();
        change(Trainer::new(&model, &mut sgd)).common_options()
    }

    /// The common options of a trainer with averages.
    fn of_ema(change: impl FnOnce(Ema) -> Ema) -> Vec<(&'static str, String)> {
        let model = Linear::new(&Device::cpu().unwrap(), 1, 1, &Rng::new(0)).unwrap();
        let mut ema = change(Ema::new(model.parameters(), 0.9).unwrap());
        let mut sgd = Sgd::new(model.parameters(), 0.1).unwrap();
        Trainer::new(&model, &mut sgd).ema(&mut ema).common_options()
    }

    #[test]
    fn f16_scales_losses() {
        fn scaler(change: impl for<'a> FnOnce(Trainer<'a>) -> Trainer<'a>) -> Option<LossScaler> {
            let model = Linear::new(&Device::cpu().unwrap(), 1, 1, &Rng::new(0)).unwrap();
            let mut sgd = Sgd::new(model.parameters(), 0.1).unwrap();
            Training::begin(change(Trainer::new(&model, &mut sgd)), 1, 1).unwrap().trainer.stepper.scaler
        }
        let of_precision = |precision| scaler(|trainer| trainer.precision(precision));
        assert_eq!(of_precision(DType::F16), Some(LossScaler::dynamic()));
        assert_eq!([DType::BF16, DType::F32].map(of_precision), [None, None]);
        let mut plan = Plan::new(1);
        plan.precision = Some(DType::F16);
        assert_eq!(scaler(|trainer| trainer.plan(&plan)), Some(LossScaler::dynamic()));
        let own = || LossScaler::fixed(8.0).unwrap();
        assert_eq!(scaler(|trainer| trainer.precision(DType::F16).scaler(own())), Some(own()));
        let _mixed = mixed(DType::F16).unwrap();
        assert_eq!(scaler(|trainer| trainer), Some(LossScaler::dynamic()));
    }

    #[test]
    fn ranks_compare_all_that_changes_their_steps() {
        let plateau = ReduceOnPlateau::new;
        let on = |figure: &'static str| options(|trainer| trainer.reduce_on_plateau(figure, plateau()));
        let every = Every::Epochs(2);
        let all = [
            options(|trainer| trainer),
            options(|trainer| trainer.precision(DType::BF16)),
            options(|trainer| trainer.precision(DType::F16)),
            on("a"),
            on("b"),
            options(|trainer| trainer.reduce_on_plateau("a", plateau().with_patience(1))),
            options(|trainer| trainer.reduce_on_plateau("a", plateau()).evaluate_every(every)),
            options(|trainer| trainer.early_stopping(EarlyStopping::new("a"))),
            options(|trainer| trainer.early_stopping(EarlyStopping::new("a")).evaluate_every(every)),
            of_ema(|ema| ema),
            of_ema(Ema::with_warm_up),
            of_ema(|mut ema| {
                ema.update().unwrap();
                ema
            }),
        ];
        for (number, one) in all.iter().enumerate() {
            assert!(!all[..number].contains(one), "{one:?}");
        }
        // Without an effect on steps, each rank may evaluate as it likes.
        assert_eq!(options(|trainer| trainer.evaluate_every(every)), all[0]);
        assert_eq!(options(|trainer| trainer.precision(DType::F32)), all[0]);
        let _mixed = mixed(DType::BF16).unwrap();
        assert_eq!(options(|trainer| trainer), all[1]);
    }
}

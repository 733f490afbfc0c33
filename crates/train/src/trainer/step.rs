//! A step: forward, backward and update. The only place of the loop that computes gradients.

use highwater_distributed::World;
use highwater_nn::optim::{LossScaler, Optimizer};
use highwater_tensor::{Device, Gradients, Result, Tensor};

use super::draws::Draws;
use crate::metrics::read;
use crate::output::Output;

/// The parts of a step.
pub(super) struct Stepper<'a> {
    pub(super) optimizer: &'a mut dyn Optimizer,
    pub(super) scaler: Option<LossScaler>,
    pub(super) accumulate: u64,
    pub(super) clip_norm: Option<f64>,
    /// The ranks that step together.
    pub(super) world: World,
    /// The random numbers of the step's micro-batches; `None` before the first step.
    pub(super) draws: Option<Draws>,
}

/// A finished step.
pub(super) struct Step {
    pub(super) device: Device,
    /// The mean loss of its batches; `None` on a dry device.
    pub(super) loss: Option<f64>,
    /// The norm of the gradients before clipping, if it is limited and the device computes values.
    pub(super) gradient_norm: Option<f64>,
    pub(super) batches: u64,
}

impl<'a> Stepper<'a> {
    pub(super) fn new(optimizer: &'a mut dyn Optimizer) -> Self {
        let (world, draws) = (World::alone(), None);
        Self { optimizer, scaler: None, accumulate: 1, clip_norm: None, world, draws }
    }

    /// Runs a step on the first batch and, with accumulation, on the next ones of `rest`.
    pub(super) fn step<B>(
        &mut self,
        output: &Output<'_>,
        first: &B,
        rest: &mut impl Iterator<Item = Result<B>>,
        loss: impl FnMut(&B) -> Result<Tensor>,
    ) -> Result<Step> {
        if let Some(draws) = &mut self.draws {
            draws.begin();
        }
        let step = if self.accumulate > 1 {
            self.accumulated(output, first, rest, loss)
        } else {
            self.place(0);
            self.single(output, first, loss)
        };
        if let Some(draws) = &self.draws {
            draws.end();
        }
        step
    }

    /// Moves the generators to the place of a batch of this rank.
    fn place(&self, batch: u64) {
        if let Some(draws) = &self.draws {
            // Ranks take turns, as with one process.
            draws.place(batch * self.world.size() as u64 + self.world.rank() as u64);
        }
    }

    fn single<B>(
        &mut self,
        output: &Output<'_>,
        first: &B,
        mut loss: impl FnMut(&B) -> Result<Tensor>,
    ) -> Result<Step> {
        let (loss, gradient_norm) = output.run(|| {
            let loss = loss(first)?;
            let gradients = self.backward(&loss)?;
            let norm = self.update(gradients, 1)?;
            Ok::<_, highwater_tensor::Error>((loss.detach(), norm))
        })?;
        Ok(Step { device: loss.device().clone(), loss: read(&loss)?, gradient_norm, batches: 1 })
    }

    /// Keeps the activations of one batch at a time.
    fn accumulated<B>(
        &mut self,
        output: &Output<'_>,
        first: &B,
        rest: &mut impl Iterator<Item = Result<B>>,
        mut loss: impl FnMut(&B) -> Result<Tensor>,
    ) -> Result<Step> {
        let mut gradients = Gradients::default();
        let mut part = |number: u64, batch: &B| {
            self.place(number);
            let loss = output.run(|| {
                let loss = loss(batch)?;
                gradients.accumulate(&mut self.backward(&loss)?)?;
                Ok::<_, highwater_tensor::Error>(loss.detach())
            })?;
            Ok::<_, highwater_tensor::Error>((read(&loss)?, loss.device().clone()))
        };
        let (mut sum, device) = part(0, first)?;
        let mut batches = 1;
        while batches < self.accumulate {
            let Some(batch) = rest.next() else { break };
            let (loss, _) = part(batches, &batch?)?;
            sum = sum.zip(loss).map(|(sum, loss)| sum + loss);
            batches += 1;
        }
        let gradient_norm = output.run(|| self.update(gradients, batches))?;
        Ok(Step { device, loss: sum.map(|sum| sum / batches as f64), gradient_norm, batches })
    }

    fn backward(&self, loss: &Tensor) -> Result<Gradients> {
        match &self.scaler {
            Some(scaler) => scaler.scale(loss)?.backward(),
            None => loss.backward(),
        }
    }

    /// Updates the parameters along the mean of the summed gradients. Returns their norm, if it is limited.
    fn update(&mut self, mut gradients: Gradients, batches: u64) -> Result<Option<f64>> {
        if let Some(scaler) = &mut self.scaler {
            if batches == 1 && self.clip_norm.is_none() {
                // The scaler skips a step with infinite gradients and lowers its scale.
                let _ = scaler.step(self.optimizer, gradients)?;
                return Ok(None);
            }
            match scaler.unscale_for(self.optimizer, gradients)? {
                Some(finite) => gradients = finite,
                None => return Ok(None),
            }
        }
        if batches > 1 {
            gradients.scale(1.0 / batches as f64)?;
        }
        let is_dry = gradients.iter().any(|gradient| gradient.device().is_dry());
        let norm = self.clip_norm.map(|max| self.optimizer.clip_norm(&mut gradients, max)).transpose()?;
        self.optimizer.step(gradients)?;
        Ok(norm.filter(|_| !is_dry))
    }
}

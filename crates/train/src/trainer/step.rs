//! A step: forward, backward and update. The only place of the loop that computes gradients.

use highwater_distributed::{RunStage, World};
use highwater_nn::optim::{LossScaler, Optimizer};
use highwater_tensor::{Device, Gradients, Objective, Result, Tensor};

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

/// The examples of a batch for each one of the step's first batch, or its targets that are not ignored. A smaller batch counts
/// less, so that the gradients are those of the mean over all examples.
#[derive(Clone, Copy)]
struct Share {
    own: f64,
    /// The mean over the ranks, which average their gradients.
    all: f64,
}

impl Share {
    const ONE: Self = Self { own: 1.0, all: 1.0 };

    /// Returns the part of a mean loss in the sum over the step. The mean of no targets is NaN, and not a part of it.
    fn of(self, loss: f64) -> f64 {
        if self.own == 0.0 { 0.0 } else { loss * self.own }
    }
}

/// A finished step.
pub(super) struct Step {
    pub(super) device: Device,
    /// The mean loss of its examples; `None` on a dry device. For several ranks, the mean over their values.
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
        let (loss, share, gradient_norm) = output.run(|| {
            let loss = loss(first)?;
            let share = self.share(&loss, &mut None)?;
            let gradients = self.backward(&loss, share.own)?;
            let norm = self.update(gradients, share.all)?;
            Ok::<_, highwater_tensor::Error>((loss.detach(), share, norm))
        })?;
        let (device, loss) = (loss.device().clone(), read(&loss)?.map(|loss| share.of(loss) / share.all));
        Ok(Step { device, loss, gradient_norm, batches: 1 })
    }

    /// Keeps the activations of one batch at a time. The gradients are those of the mean over all examples: a smaller batch,
    /// such as the last one of an epoch, counts less.
    fn accumulated<B>(
        &mut self,
        output: &Output<'_>,
        first: &B,
        rest: &mut impl Iterator<Item = Result<B>>,
        mut loss: impl FnMut(&B) -> Result<Tensor>,
    ) -> Result<Step> {
        let mut gradients = Gradients::default();
        let mut reference = None;
        let mut part = |number: u64, batch: &B| {
            self.place(number);
            let (loss, share) = output.run(|| {
                let loss = loss(batch)?;
                let share = self.share(&loss, &mut reference)?;
                gradients.accumulate(&mut self.backward(&loss, share.own)?)?;
                Ok::<_, highwater_tensor::Error>((loss.detach(), share))
            })?;
            let value = read(&loss)?.map(|loss| share.of(loss));
            Ok::<_, highwater_tensor::Error>((value, share, loss.device().clone()))
        };
        let (mut sum, mut share, device) = part(0, first)?;
        let mut batches = 1;
        while batches < self.accumulate {
            let Some(batch) = rest.next() else { break };
            let (loss, more, _) = part(batches, &batch?)?;
            sum = sum.zip(loss).map(|(sum, loss)| sum + loss);
            share = Share { own: share.own + more.own, all: share.all + more.all };
            batches += 1;
        }
        let gradient_norm = output.run(|| self.update(gradients, share.all))?;
        Ok(Step { device, loss: sum.map(|sum| sum / share.all), gradient_norm, batches })
    }

    /// Returns the share of a batch among those of the step on all ranks. The first batch of rank 0 becomes the reference.
    fn share(&self, loss: &Tensor, reference: &mut Option<Vec<f64>>) -> Result<Share> {
        let alone = self.world.size() == 1;
        if alone && self.accumulate == 1 || loss.device().is_dry() && !alone {
            return Ok(Share::ONE);
        }
        let own = Objective::of_terms(loss)?;
        let numbers: Vec<f64> =
            own.terms.iter().flat_map(|term| [term.elements as f64, term.weight]).collect();
        let all = self.world.gather_at(RunStage::Batch, &numbers)?;
        let reference = with_numbers(&own, reference.get_or_insert_with(|| all[0].clone()));
        let ratio = |numbers: &Vec<f64>| with_numbers(&own, numbers)?.examples_per(reference.as_ref()?);
        let ratios: Option<Vec<f64>> = all.iter().map(ratio).collect();
        Ok(ratios.map_or(Share::ONE, |ratios| Share {
            own: ratios[self.world.rank()],
            all: ratios.iter().sum::<f64>() / ratios.len() as f64,
        }))
    }

    fn backward(&self, loss: &Tensor, share: f64) -> Result<Gradients> {
        match &self.scaler {
            Some(scaler) => scaler.scale(loss)?.backward_weighed(share),
            None => loss.backward_weighed(share),
        }
    }

    /// Updates the parameters along the summed gradients, divided by the number of batches, in which a smaller one is a part.
    /// Returns their norm, if it is limited.
    fn update(&mut self, mut gradients: Gradients, batches: f64) -> Result<Option<f64>> {
        if let Some(scaler) = &mut self.scaler {
            if batches == 1.0 && self.clip_norm.is_none() {
                // The scaler skips a step with infinite gradients and lowers its scale.
                let _ = scaler.step(self.optimizer, gradients)?;
                return Ok(None);
            }
            match scaler.unscale_for(self.optimizer, gradients)? {
                Some(finite) => gradients = finite,
                None => return Ok(None),
            }
        }
        // The gradients of a step without targets are 0.
        if batches != 1.0 && batches != 0.0 {
            gradients.scale(1.0 / batches)?;
        }
        let is_dry = gradients.iter().any(|gradient| gradient.device().is_dry());
        let norm = self.clip_norm.map(|max| self.optimizer.clip_norm(&mut gradients, max)).transpose()?;
        self.optimizer.step(gradients)?;
        Ok(norm.filter(|_| !is_dry))
    }
}

/// Returns the loss with the elements and the weight of each term of another batch, which may be that of another rank.
/// `None` if it has other terms.
fn with_numbers(own: &Objective, numbers: &[f64]) -> Option<Objective> {
    if numbers.len() != 2 * own.terms.len() {
        return None;
    }
    let mut other = own.clone();
    for (term, numbers) in other.terms.iter_mut().zip(numbers.chunks_exact(2)) {
        (term.elements, term.weight) = (numbers[0] as usize, numbers[1]);
    }
    Some(other)
}

//! A step: forward, backward and update. The only place of the loop that computes gradients.

use highwater_distributed::World;
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

/// The examples of a batch for each one of the step's first batch. A smaller batch counts less, so that the gradients are
/// those of the mean over all examples.
#[derive(Clone, Copy)]
struct Share {
    own: f64,
    /// The mean over the ranks, which average their gradients.
    all: f64,
}

impl Share {
    const ONE: Self = Self { own: 1.0, all: 1.0 };
}

/// The loss of a step's first batch.
enum Reference {
    Objective(Objective),
    /// The elements and the weight of a term of the first rank's loss.
    Term([f64; 2]),
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
        let (device, loss) = (loss.device().clone(), read(&loss)?.map(|loss| loss * share.own / share.all));
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
            let value = read(&loss)?.map(|loss| loss * share.own);
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

    /// Returns the share of a batch among those of the step on all ranks. The first batch becomes the reference.
    fn share(&self, loss: &Tensor, reference: &mut Option<Reference>) -> Result<Share> {
        let alone = self.world.size() == 1;
        if alone && self.accumulate == 1 || loss.device().is_dry() && !alone {
            return Ok(Share::ONE);
        }
        let objective = Objective::of_terms(loss);
        if alone {
            let own = match reference {
                Some(Reference::Objective(first)) => objective.examples_per(first).unwrap_or(1.0),
                _ => {
                    *reference = Some(Reference::Objective(objective));
                    1.0
                }
            };
            return Ok(Share { own, all: own });
        }
        // The largest term of each rank.
        let largest = objective.terms.iter().max_by_key(|term| term.elements);
        let own = largest.map_or([0.0; 2], |term| [term.elements as f64, term.weight]);
        let all = self.world.all_gather_f64(own).map_err(highwater_distributed::ParallelError::from)?;
        let [elements, weight] = match reference {
            Some(Reference::Term(first)) => *first,
            _ => {
                *reference = all.first().map(|first| Reference::Term(*first));
                all.first().copied().unwrap_or(own)
            }
        };
        let is_mean = |term: &[f64; 2]| {
            let (sum, expected) = (term[0] * term[1], elements * weight);
            term[0] > 0.0 && (sum - expected).abs() <= 1e-9 * expected.abs()
        };
        if !all.iter().all(is_mean) {
            return Ok(Share::ONE);
        }
        let ratios = all.iter().map(|term| term[0] / elements);
        Ok(Share { own: own[0] / elements, all: ratios.sum::<f64>() / all.len() as f64 })
    }

    fn backward(&self, loss: &Tensor, share: f64) -> Result<Gradients> {
        match &self.scaler {
            Some(scaler) => scaler.scale(loss)?.backward_scaled(share),
            None => loss.backward_scaled(share),
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
        if batches != 1.0 {
            gradients.scale(1.0 / batches)?;
        }
        let is_dry = gradients.iter().any(|gradient| gradient.device().is_dry());
        let norm = self.clip_norm.map(|max| self.optimizer.clip_norm(&mut gradients, max)).transpose()?;
        self.optimizer.step(gradients)?;
        Ok(norm.filter(|_| !is_dry))
    }
}

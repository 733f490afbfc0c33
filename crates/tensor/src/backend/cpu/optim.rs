//! The steps of optimisers: one pass over the parameters, their state and their gradient.

use super::dispatch::{float, host_mut};
use super::number::Float;
use super::operands::Source;
use super::parallel::{LIGHT, Workers};
use super::simd;
use crate::backend::{AdamStep, SgdStep};
use crate::error::Result;
use crate::storage::{View, ViewMut};

/// Elements of a gradient with gaps that are gathered at a time.
const GATHER: usize = 256;

/// See [`Kernel::Sgd`](crate::backend::Kernel::Sgd).
#[inline(never)]
pub(super) fn sgd(
    workers: &Workers,
    op: &'static str,
    step: SgdStep,
    grad: View<'_>,
    momentum: &mut Option<ViewMut<'_>>,
    param: &mut ViewMut<'_>,
) -> Result<()> {
    float!(op, param.dtype(), T => {
        let param = host_mut::<T>(op, param)?;
        let grad = Source::<T>::new(op, grad)?;
        let momentum = momentum.as_mut().map(|momentum| host_mut::<T>(op, momentum)).transpose()?;
        sgd_step(workers, step, &grad, momentum, param);
        Ok(())
    })
}

fn sgd_step<T: Float>(
    workers: &Workers,
    step: SgdStep,
    grad: &Source<'_, T>,
    momentum: Option<&mut [T]>,
    param: &mut [T],
) {
    let (lr, decay, keep) =
        (T::from_f64(step.lr), T::from_f64(step.weight_decay), T::from_f64(step.momentum));
    let Some(momentum) = momentum else {
        workers.chunks(param, LIGHT, &|start, part| {
            grad.each(start, part, |p, g| *p = *p - lr * (g + decay * *p));
        });
        return;
    };
    workers.chunks2([param, momentum], LIGHT, &|start, [param, momentum]| {
        grad.blocks::<GATHER>(start..start + param.len(), |range, grad| {
            let range = range.start - start..range.end - start;
            simd::zip_into2(&mut param[range.clone()], &mut momentum[range], grad, |[p, m], g| {
                let g = g + decay * *p;
                *m = keep * *m + g;
                *p -= lr * if step.nesterov { g + keep * *m } else { *m };
            });
        });
    });
}

/// See [`Kernel::Adam`](crate::backend::Kernel::Adam).
#[inline(never)]
pub(super) fn adam(
    workers: &Workers,
    op: &'static str,
    step: AdamStep,
    grad: View<'_>,
    mean: &mut ViewMut<'_>,
    variance: &mut ViewMut<'_>,
    param: &mut ViewMut<'_>,
) -> Result<()> {
    float!(op, param.dtype(), T => {
        let grad = Source::<T>::new(op, grad)?;
        let (mean, variance) = (host_mut::<T>(op, mean)?, host_mut::<T>(op, variance)?);
        adam_step(workers, step, &grad, [host_mut::<T>(op, param)?, mean, variance]);
        Ok(())
    })
}

/// The numbers of a step, worked out once.
#[derive(Clone, Copy, Debug)]
struct AdamNumbers<T> {
    beta1: T,
    /// 1 - beta1
    share1: T,
    beta2: T,
    share2: T,
    epsilon: T,
    /// lr / (1 - beta1ᵗ): corrects that the mean started from 0.
    rate: T,
    /// 1 / √(1 - beta2ᵗ): the same for the mean of squares.
    scale: T,
    /// What decay adds to the gradient (Adam).
    coupled: T,
    /// What decay leaves of the parameter (AdamW).
    shrink: T,
}

impl<T: Float> AdamNumbers<T> {
    fn new(step: AdamStep) -> Self {
        let t = step.step as f64;
        let (coupled, decoupled) =
            if step.decoupled { (0.0, step.weight_decay) } else { (step.weight_decay, 0.0) };
        Self {
            beta1: T::from_f64(step.beta1),
            share1: T::from_f64(1.0 - step.beta1),
            beta2: T::from_f64(step.beta2),
            share2: T::from_f64(1.0 - step.beta2),
            epsilon: T::from_f64(step.epsilon),
            rate: T::from_f64(step.lr / (1.0 - step.beta1.powf(t))),
            scale: T::from_f64((1.0 - step.beta2.powf(t)).sqrt().recip()),
            coupled: T::from_f64(coupled),
            shrink: T::from_f64(1.0 - step.lr * decoupled),
        }
    }
}

fn adam_step<T: Float>(workers: &Workers, step: AdamStep, grad: &Source<'_, T>, state: [&mut [T]; 3]) {
    let AdamNumbers { beta1, share1, beta2, share2, epsilon, rate, scale, coupled, shrink } =
        AdamNumbers::new(step);
    workers.chunks3(state, LIGHT, &|start, [param, mean, variance]| {
        grad.blocks::<GATHER>(start..start + param.len(), |range, grad| {
            let range = range.start - start..range.end - start;
            let [p, m, v] = [&mut param[range.clone()], &mut mean[range.clone()], &mut variance[range]];
            simd::zip_into3(p, m, v, grad, |[p, m, v], g| {
                let g = g + coupled * *p;
                *m = beta1 * *m + share1 * g;
                *v = beta2 * *v + share2 * (g * g);
                *p = shrink * *p - rate * *m / (v.sqrt() * scale + epsilon);
            });
        });
    });
}

#[cfg(test)]
mod tests;

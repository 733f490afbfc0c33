//! The steps of RmsProp and Lion: one pass over the parameters, their state and their gradient.

use super::dispatch::{float, host_mut};
use super::number::Float;
use super::operands::Source;
use super::parallel::{LIGHT, Workers};
use crate::backend::{LionStep, RmsPropStep};
use crate::error::Result;
use crate::storage::{View, ViewMut};

/// Elements of a gradient with gaps that are gathered at a time.
const GATHER: usize = 256;

/// See [`Kernel::RmsProp`](crate::backend::Kernel::RmsProp).
#[inline(never)]
pub(super) fn rms_prop(
    workers: &Workers,
    op: &'static str,
    step: RmsPropStep,
    grad: View<'_>,
    variance: &mut ViewMut<'_>,
    momentum: &mut Option<ViewMut<'_>>,
    param: &mut ViewMut<'_>,
) -> Result<()> {
    float!(op, param.dtype(), T => {
        let grad = Source::<T>::new(op, grad)?;
        let state = [host_mut::<T>(op, param)?, host_mut::<T>(op, variance)?];
        match momentum {
            None => rms_step(workers, step, &grad, state),
            Some(momentum) => rms_momentum_step(workers, step, &grad, state, host_mut::<T>(op, momentum)?),
        }
        Ok(())
    })
}

/// The numbers of a step of RmsProp.
#[derive(Clone, Copy)]
struct RmsNumbers<T> {
    lr: T,
    decay: T,
    keep: T,
    /// 1 - keep
    share: T,
    epsilon: T,
}

impl<T: Float> RmsNumbers<T> {
    fn new(step: RmsPropStep) -> Self {
        Self {
            lr: T::from_f64(step.lr),
            decay: T::from_f64(step.weight_decay),
            keep: T::from_f64(step.smoothing),
            share: T::from_f64(1.0 - step.smoothing),
            epsilon: T::from_f64(step.epsilon),
        }
    }

    /// The gradient over the root of the mean of its squares, which it goes into.
    fn scaled(self, p: T, g: T, v: &mut T) -> T {
        let g = g + self.decay * p;
        *v = self.keep * *v + self.share * (g * g);
        g / (v.sqrt() + self.epsilon)
    }
}

fn rms_step<T: Float>(workers: &Workers, step: RmsPropStep, grad: &Source<'_, T>, state: [&mut [T]; 2]) {
    let numbers = RmsNumbers::new(step);
    workers.chunks2(state, LIGHT, &|start, [param, variance]| {
        grad.blocks::<GATHER>(start..start + param.len(), |range, grad| {
            let range = range.start - start..range.end - start;
            for ((p, v), &g) in param[range.clone()].iter_mut().zip(&mut variance[range]).zip(grad) {
                *p = *p - numbers.lr * numbers.scaled(*p, g, v);
            }
        });
    });
}

fn rms_momentum_step<T: Float>(
    workers: &Workers,
    step: RmsPropStep,
    grad: &Source<'_, T>,
    [param, variance]: [&mut [T]; 2],
    momentum: &mut [T],
) {
    let (numbers, keep) = (RmsNumbers::new(step), T::from_f64(step.momentum));
    workers.chunks3([param, variance, momentum], LIGHT, &|start, [param, variance, momentum]| {
        grad.blocks::<GATHER>(start..start + param.len(), |range, grad| {
            let range = range.start - start..range.end - start;
            let means = variance[range.clone()].iter_mut().zip(&mut momentum[range.clone()]);
            for ((p, (v, m)), &g) in param[range].iter_mut().zip(means).zip(grad) {
                *m = keep * *m + numbers.scaled(*p, g, v);
                *p -= numbers.lr * *m;
            }
        });
    });
}

/// See [`Kernel::Lion`](crate::backend::Kernel::Lion).
#[inline(never)]
pub(super) fn lion(
    workers: &Workers,
    op: &'static str,
    step: LionStep,
    grad: View<'_>,
    mean: &mut ViewMut<'_>,
    param: &mut ViewMut<'_>,
) -> Result<()> {
    float!(op, param.dtype(), T => {
        let grad = Source::<T>::new(op, grad)?;
        lion_step(workers, step, &grad, [host_mut::<T>(op, param)?, host_mut::<T>(op, mean)?]);
        Ok(())
    })
}

fn lion_step<T: Float>(workers: &Workers, step: LionStep, grad: &Source<'_, T>, state: [&mut [T]; 2]) {
    let [lr, shrink] = [step.lr, 1.0 - step.lr * step.weight_decay].map(T::from_f64);
    let [beta1, share1] = [step.beta1, 1.0 - step.beta1].map(T::from_f64);
    let [beta2, share2] = [step.beta2, 1.0 - step.beta2].map(T::from_f64);
    let zero = T::from_f64(0.0);
    workers.chunks2(state, LIGHT, &|start, [param, mean]| {
        grad.blocks::<GATHER>(start..start + param.len(), |range, grad| {
            let range = range.start - start..range.end - start;
            for ((p, m), &g) in param[range.clone()].iter_mut().zip(&mut mean[range]).zip(grad) {
                let towards = beta1 * *m + share1 * g;
                // Neither holds for a NaN, whose step is then itself.
                let step = if towards > zero {
                    lr
                } else if towards < zero {
                    zero - lr
                } else {
                    towards
                };
                *p = shrink * *p - step;
                *m = beta2 * *m + share2 * g;
            }
        });
    });
}

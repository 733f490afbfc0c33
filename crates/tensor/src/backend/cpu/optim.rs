//! Optimizer steps: one pass over the parameters, their state and their gradient.

use super::dispatch::{float, host_mut};
use super::halves;
use super::number::Float;
use super::operands::Source;
use super::parallel::{LIGHT, Workers};
use super::simd;
use crate::backend::{AdamStep, LionStep, RmsPropStep, SgdStep};
use crate::error::Result;
use crate::layout::Layout;
use crate::shape::DType;
use crate::storage::{View, ViewMut};

/// The number of elements of a strided gradient that are copied at a time.
const GATHER: usize = 256;

/// Calls `f` with each parameter, its state and its gradient.
fn update2<T: Float>(
    workers: &Workers,
    slices: [&mut [T]; 2],
    grad: &Source<'_, T>,
    f: impl Fn([&mut T; 2], T) + Sync,
) {
    workers.chunks_together(slices, LIGHT, &|start, [a, b]| {
        grad.blocks::<GATHER>(start..start + a.len(), |range, grad| {
            let range = range.start - start..range.end - start;
            simd::zip_into2(&mut a[range.clone()], &mut b[range], grad, &f);
        });
    });
}

/// Like [`update2`], with two states.
fn update3<T: Float>(
    workers: &Workers,
    slices: [&mut [T]; 3],
    grad: &Source<'_, T>,
    f: impl Fn([&mut T; 3], T) + Sync,
) {
    workers.chunks_together(slices, LIGHT, &|start, [a, b, c]| {
        grad.blocks::<GATHER>(start..start + a.len(), |range, grad| {
            let range = range.start - start..range.end - start;
            simd::zip_into3(&mut a[range.clone()], &mut b[range.clone()], &mut c[range], grad, &f);
        });
    });
}

/// Like [`update2`], with three states.
fn update4<T: Float>(
    workers: &Workers,
    slices: [&mut [T]; 4],
    grad: &Source<'_, T>,
    f: impl Fn([&mut T; 4], T) + Sync,
) {
    workers.chunks_together(slices, LIGHT, &|start, [a, b, c, d]| {
        grad.blocks::<GATHER>(start..start + a.len(), |range, grad| {
            let range = range.start - start..range.end - start;
            let (a, b, c, d) =
                (&mut a[range.clone()], &mut b[range.clone()], &mut c[range.clone()], &mut d[range]);
            simd::zip_into4(a, b, c, d, grad, &f);
        });
    });
}

/// See [`Sgd`](crate::backend::kernels::Sgd).
#[inline(never)]
pub(crate) fn sgd(
    workers: &Workers,
    op: &'static str,
    step: SgdStep,
    grad: View<'_>,
    momentum: &mut Option<ViewMut<'_>>,
    param: &mut ViewMut<'_>,
) -> Result<()> {
    let of_momentum = momentum.as_ref().map_or(DType::F32, |momentum| momentum.dtype());
    if halves::any_of([param.dtype(), grad.dtype(), of_momentum]) {
        return match momentum {
            None => halves::update(workers, op, LIGHT, [grad], [param], &|[grad], [param]| {
                sgd_step(workers, step, &row(grad), param, None);
            }),
            Some(momentum) => {
                let state = [&mut param.reborrow(), &mut momentum.reborrow()];
                halves::update(workers, op, LIGHT, [grad], state, &|[grad], [p, m]| {
                    sgd_step(workers, step, &row(grad), p, Some(m));
                })
            }
        };
    }
    float!(op, param.dtype(), T => {
        let momentum = momentum.as_mut().map(|momentum| host_mut::<T>(op, momentum)).transpose()?;
        sgd_step(workers, step, &Source::<T>::new(op, grad)?, host_mut::<T>(op, param)?, momentum);
        Ok(())
    })
}

/// The elements of a block of a 16-bit gradient.
fn row(block: &[f32]) -> Source<'_, f32> {
    Source::of(block, &Layout::of_row(block.len()))
}

fn sgd_step<T: Float>(
    workers: &Workers,
    step: SgdStep,
    grad: &Source<'_, T>,
    param: &mut [T],
    momentum: Option<&mut [T]>,
) {
    let [lr, decay, keep] = [step.lr, step.weight_decay, step.momentum].map(T::from_f64);
    let Some(momentum) = momentum else {
        let descend = |p: &mut T, g: T| *p = *p - lr * (g + decay * *p);
        return workers.chunks(param, LIGHT, &|start, part| grad.each(start, part, descend));
    };
    update2(workers, [param, momentum], grad, |[p, m], g| {
        let g = g + decay * *p;
        *m = keep * *m + g;
        *p -= lr * if step.nesterov { g + keep * *m } else { *m };
    });
}

/// See [`Adam`](crate::backend::kernels::Adam).
#[inline(never)]
pub(crate) fn adam(
    workers: &Workers,
    op: &'static str,
    step: AdamStep,
    grad: View<'_>,
    [mean, variance, param]: [&mut ViewMut<'_>; 3],
    max_variance: &mut Option<ViewMut<'_>>,
) -> Result<()> {
    if halves::any_of([param.dtype(), grad.dtype(), mean.dtype(), variance.dtype()]) {
        return match max_variance {
            None => halves::update(workers, op, LIGHT, [grad], [param, mean, variance], &|[grad], state| {
                adam_step(workers, step, &row(grad), state, None);
            }),
            Some(max_variance) => {
                let state = [
                    &mut param.reborrow(),
                    &mut mean.reborrow(),
                    &mut variance.reborrow(),
                    &mut max_variance.reborrow(),
                ];
                halves::update(workers, op, LIGHT, [grad], state, &|[grad], [p, m, v, max_v]| {
                    adam_step(workers, step, &row(grad), [p, m, v], Some(max_v));
                })
            }
        };
    }
    float!(op, param.dtype(), T => {
        let state = [host_mut::<T>(op, param)?, host_mut::<T>(op, mean)?, host_mut::<T>(op, variance)?];
        let max_variance = max_variance.as_mut().map(|view| host_mut::<T>(op, view)).transpose()?;
        adam_step(workers, step, &Source::<T>::new(op, grad)?, state, max_variance);
        Ok(())
    })
}

/// Updates the parameter, the mean, the variance, and with AMSGrad the largest variance.
fn adam_step<T: Float>(
    workers: &Workers,
    step: AdamStep,
    grad: &Source<'_, T>,
    [param, mean, variance]: [&mut [T]; 3],
    max_variance: Option<&mut [T]>,
) {
    let (coupled, decoupled) =
        if step.decoupled { (0.0, step.weight_decay) } else { (step.weight_decay, 0.0) };
    // The bias corrections of the means, which start at 0.
    let t = step.step as f64;
    let rate = step.lr / (1.0 - step.beta1.powf(t));
    let scale = (1.0 - step.beta2.powf(t)).sqrt().recip();
    let [beta1, share1] = [step.beta1, 1.0 - step.beta1].map(T::from_f64);
    let [beta2, share2] = [step.beta2, 1.0 - step.beta2].map(T::from_f64);
    let [epsilon, rate, scale] = [step.epsilon, rate, scale].map(T::from_f64);
    let [coupled, shrink] = [coupled, 1.0 - step.lr * decoupled].map(T::from_f64);
    let means = |p: T, m: &mut T, v: &mut T, g: T| {
        let g = g + coupled * p;
        *m = beta1 * *m + share1 * g;
        *v = beta2 * *v + share2 * (g * g);
    };
    let descend = |p: T, m: T, v: T| shrink * p - rate * m / (v.sqrt() * scale + epsilon);
    match max_variance {
        None => update3(workers, [param, mean, variance], grad, |[p, m, v], g| {
            means(*p, m, v, g);
            *p = descend(*p, *m, *v);
        }),
        Some(max_variance) => {
            update4(workers, [param, mean, variance, max_variance], grad, |[p, m, v, max_v], g| {
                means(*p, m, v, g);
                // If v is NaN, it stays NaN, and so does the largest variance.
                *max_v = if *max_v >= *v { *max_v } else { *v };
                *p = descend(*p, *m, *max_v);
            })
        }
    }
}

/// See [`RmsProp`](crate::backend::kernels::RmsProp).
#[inline(never)]
pub(crate) fn rms_prop(
    workers: &Workers,
    op: &'static str,
    step: RmsPropStep,
    grad: View<'_>,
    [variance, param]: [&mut ViewMut<'_>; 2],
    momentum: &mut Option<ViewMut<'_>>,
) -> Result<()> {
    let of_momentum = momentum.as_ref().map_or(DType::F32, |momentum| momentum.dtype());
    if halves::any_of([param.dtype(), grad.dtype(), variance.dtype(), of_momentum]) {
        return match momentum {
            None => halves::update(workers, op, LIGHT, [grad], [param, variance], &|[grad], state| {
                rms_prop_step(workers, step, &row(grad), state, None);
            }),
            Some(momentum) => {
                let state = [&mut param.reborrow(), &mut variance.reborrow(), &mut momentum.reborrow()];
                halves::update(workers, op, LIGHT, [grad], state, &|[grad], [p, v, m]| {
                    rms_prop_step(workers, step, &row(grad), [p, v], Some(m));
                })
            }
        };
    }
    float!(op, param.dtype(), T => {
        let momentum = momentum.as_mut().map(|momentum| host_mut::<T>(op, momentum)).transpose()?;
        let state = [host_mut::<T>(op, param)?, host_mut::<T>(op, variance)?];
        rms_prop_step(workers, step, &Source::<T>::new(op, grad)?, state, momentum);
        Ok(())
    })
}

/// Updates the parameter, the variance, and the momentum if there is one.
fn rms_prop_step<T: Float>(
    workers: &Workers,
    step: RmsPropStep,
    grad: &Source<'_, T>,
    [param, variance]: [&mut [T]; 2],
    momentum: Option<&mut [T]>,
) {
    let [lr, decay, keep, epsilon] =
        [step.lr, step.weight_decay, step.momentum, step.epsilon].map(T::from_f64);
    let [smoothing, share] = [step.smoothing, 1.0 - step.smoothing].map(T::from_f64);
    // Updates the mean of squares and returns g / (√v + epsilon).
    let scaled = |p: T, g: T, v: &mut T| {
        let g = g + decay * p;
        *v = smoothing * *v + share * (g * g);
        g / (v.sqrt() + epsilon)
    };
    match momentum {
        None => update2(workers, [param, variance], grad, |[p, v], g| *p = *p - lr * scaled(*p, g, v)),
        Some(momentum) => update3(workers, [param, variance, momentum], grad, |[p, v, m], g| {
            *m = keep * *m + scaled(*p, g, v);
            *p -= lr * *m;
        }),
    }
}

/// See [`Lion`](crate::backend::kernels::Lion).
#[inline(never)]
pub(crate) fn lion(
    workers: &Workers,
    op: &'static str,
    step: LionStep,
    grad: View<'_>,
    [mean, param]: [&mut ViewMut<'_>; 2],
) -> Result<()> {
    if halves::any_of([param.dtype(), grad.dtype(), mean.dtype()]) {
        return halves::update(workers, op, LIGHT, [grad], [param, mean], &|[grad], state| {
            lion_step(workers, step, &row(grad), state);
        });
    }
    float!(op, param.dtype(), T => {
        let state = [host_mut::<T>(op, param)?, host_mut::<T>(op, mean)?];
        lion_step(workers, step, &Source::<T>::new(op, grad)?, state);
        Ok(())
    })
}

/// Updates the parameter and the mean.
fn lion_step<T: Float>(workers: &Workers, step: LionStep, grad: &Source<'_, T>, state: [&mut [T]; 2]) {
    let [lr, shrink] = [step.lr, 1.0 - step.lr * step.weight_decay].map(T::from_f64);
    let [beta1, share1] = [step.beta1, 1.0 - step.beta1].map(T::from_f64);
    let [beta2, share2] = [step.beta2, 1.0 - step.beta2].map(T::from_f64);
    update2(workers, state, grad, |[p, m], g| {
        let direction = beta1 * *m + share1 * g;
        // For NaN both comparisons are false, and the step is NaN.
        let step = if direction > T::ZERO {
            lr
        } else if direction < T::ZERO {
            T::ZERO - lr
        } else {
            direction
        };
        *p = shrink * *p - step;
        *m = beta2 * *m + share2 * g;
    });
}

#[cfg(test)]
mod tests;

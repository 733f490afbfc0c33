//! Optimizer steps on the CPU: one pass over the parameters, their states and their gradient.

use super::rules::{Constants, MAX_STATES, StepRule};
use crate::cpu::dispatch::{float, host_mut};
use crate::cpu::number::{Float, Number};
use crate::cpu::operands::Source;
use crate::cpu::parallel::{LIGHT, Workers};
use crate::cpu::{halves, simd};
use crate::error::Result;
use crate::layout::Layout;
use crate::storage::{View, ViewMut};

/// The number of elements of a strided gradient that are copied at a time.
const GATHER: usize = 256;

/// The parameter and its states.
const TENSORS: usize = 1 + MAX_STATES;

/// The operands of an [`OptimizerStep`](super::OptimizerStep).
pub(super) struct StepOnCpu<'k, 'a> {
    pub(super) workers: &'k Workers,
    pub(super) op: &'static str,
    pub(super) number: u64,
    pub(super) grad: View<'a>,
    pub(super) states: &'k mut [Option<ViewMut<'a>>; MAX_STATES],
    pub(super) param: &'k mut ViewMut<'a>,
}

impl StepOnCpu<'_, '_> {
    /// Computes the step of a rule.
    #[inline(never)]
    pub(super) fn run<R: StepRule>(self, rule: &R) -> Result<()> {
        let Self { workers, op, number, grad, states, param } = self;
        let is_half = param.dtype().is_half()
            || grad.dtype().is_half()
            || states.iter().flatten().any(|state| state.dtype().is_half());
        let constants = rule.constants(number);
        let mut states = states.iter_mut().flatten();
        if is_half {
            let step = (workers, op, rule);
            let constants = constants.map(f32::from_f64);
            return match [states.next(), states.next(), states.next()] {
                [Some(a), Some(b), Some(c)] => of_halves(step, constants, grad, [param, a, b, c]),
                [Some(a), Some(b), None] => of_halves(step, constants, grad, [param, a, b]),
                [Some(a), None, _] => of_halves(step, constants, grad, [param, a]),
                [None, ..] => of_halves(step, constants, grad, [param]),
            };
        }
        float!(op, param.dtype(), T => {
            let mut tensors: [&mut [T]; TENSORS] = Default::default();
            tensors[0] = host_mut::<T>(op, param)?;
            for (tensor, state) in tensors[1..].iter_mut().zip(states) {
                *tensor = host_mut::<T>(op, state)?;
            }
            let elements = Elements { workers, grad: &Source::<T>::new(op, grad)?, tensors };
            rule.update(constants.map(T::from_f64), elements);
            Ok(())
        })
    }
}

/// Computes a step on 16-bit floats, in blocks of f32.
fn of_halves<R: StepRule, const N: usize>(
    (workers, op, rule): (&Workers, &'static str, &R),
    constants: Constants<f32>,
    grad: View<'_>,
    tensors: [&mut ViewMut<'_>; N],
) -> Result<()> {
    halves::update(workers, op, LIGHT, [grad], tensors, &|[grad], tensors| {
        let mut tensors = tensors.into_iter();
        let tensors = std::array::from_fn(|_| tensors.next().unwrap_or_default());
        let grad = &Source::of(grad, &Layout::of_row(grad.len()));
        rule.update(constants, Elements { workers, grad, tensors });
    })
}

/// The elements of a step: the parameter, the states that the rule keeps, and the gradient.
pub(super) struct Elements<'e, 'g, T> {
    workers: &'e Workers,
    grad: &'e Source<'g, T>,
    /// The parameter, then the states without gaps.
    tensors: [&'e mut [T]; TENSORS],
}

/// Defines methods that call `f` with each parameter element, its states and its gradient.
macro_rules! each {
    ($($name:ident: $N:literal, $zip:ident($($slice:ident),+);)+) => {$(
        pub(super) fn $name(self, f: impl Fn([&mut T; $N], T) + Sync) {
            let Self { workers, grad, tensors } = self;
            let mut tensors = tensors.into_iter();
            let tensors: [&mut [T]; $N] = std::array::from_fn(|_| tensors.next().unwrap_or_default());
            workers.chunks_together(tensors, LIGHT, &|start, [first, $($slice),+]| {
                grad.blocks::<GATHER>(start..start + first.len(), |range, grad| {
                    let range = range.start - start..range.end - start;
                    simd::$zip(&mut first[range.clone()], $(&mut $slice[range.clone()]),+, grad, &f);
                });
            });
        }
    )+};
}

impl<T: Float> Elements<'_, '_, T> {
    /// Calls `f` with each parameter element and its gradient, for a rule without states.
    pub(super) fn each1(self, f: impl Fn(&mut T, T) + Copy + Sync) {
        let Self { workers, grad, tensors: [param, ..] } = self;
        workers.chunks(param, LIGHT, &|start, part| grad.each(start, part, f));
    }

    each! {
        each2: 2, zip_into2(a);
        each3: 3, zip_into3(a, b);
        each4: 4, zip_into4(a, b, c);
    }
}

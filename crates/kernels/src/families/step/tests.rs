//! Tests of optimizer steps.

use super::*;
use crate::backend::cpu::CpuBackend;
use crate::backend::{Backend, Checked};
use crate::families::Kernel;
use crate::testing::{Buffer, assert_close, backends, noise};

/// The formulas of the papers on single numbers, in f64.
fn plain_sgd(rule: SgdRule, grads: &[Vec<f64>], param: &mut [f64]) {
    let mut momentum = vec![0.0; param.len()];
    for grad in grads {
        for ((p, m), g) in param.iter_mut().zip(&mut momentum).zip(grad) {
            let g = g + rule.weight_decay * *p;
            *m = rule.momentum * *m + g;
            *p -= rule.lr * if rule.nesterov { g + rule.momentum * *m } else { *m };
        }
    }
}

fn plain_adam(rule: AdamRule, grads: &[Vec<f64>], param: &mut [f64]) {
    let mut state = vec![(0.0, 0.0, 0.0); param.len()];
    for (t, grad) in (1..).zip(grads) {
        for ((p, (m, v, most)), &g) in param.iter_mut().zip(&mut state).zip(grad) {
            let g = if rule.decoupled { g } else { g + rule.weight_decay * *p };
            if rule.decoupled {
                *p -= rule.lr * rule.weight_decay * *p;
            }
            *m = rule.beta1 * *m + (1.0 - rule.beta1) * g;
            *v = rule.beta2 * *v + (1.0 - rule.beta2) * g * g;
            *most = f64::max(*most, *v);
            let v = if rule.amsgrad { *most } else { *v };
            let (mean, variance) = (*m / (1.0 - rule.beta1.powi(t)), v / (1.0 - rule.beta2.powi(t)));
            *p -= rule.lr * mean / (f64::sqrt(variance) + rule.epsilon);
        }
    }
}

fn sgd_rules() -> Vec<SgdRule> {
    let plain = SgdRule { lr: 0.1, ..SgdRule::DEFAULT };
    vec![
        plain,
        SgdRule { weight_decay: 0.01, ..plain },
        SgdRule { momentum: 0.9, ..plain },
        SgdRule { momentum: 0.9, weight_decay: 0.01, nesterov: true, ..plain },
    ]
}

fn adam_rules() -> Vec<AdamRule> {
    let plain = AdamRule { lr: 0.01, ..AdamRule::DEFAULT };
    vec![
        plain,
        AdamRule { weight_decay: 0.1, ..plain },
        AdamRule { weight_decay: 0.1, decoupled: true, ..plain },
        // Short means, so that the largest ones differ from them.
        AdamRule { amsgrad: true, beta2: 0.5, ..plain },
        AdamRule { amsgrad: true, beta2: 0.5, weight_decay: 0.1, decoupled: true, ..plain },
    ]
}

/// Every rule with its default options, and options that change the states or the formula.
fn rules() -> Vec<OptimizerRule> {
    let sgd = sgd_rules().into_iter().map(OptimizerRule::from);
    let adam = adam_rules().into_iter().map(OptimizerRule::from);
    let rms_prop = RmsPropRule { momentum: 0.9, ..RmsPropRule::DEFAULT };
    OptimizerRule::all().chain(sgd).chain(adam).chain([rms_prop.into()]).collect()
}

/// A step on the parameter and as many states as the rule requires.
fn step<'a>(
    rule: impl Into<OptimizerRule>,
    number: u64,
    grad: View<'a>,
    tensors: &'a mut [Buffer; 4],
) -> OptimizerStep<'a> {
    let rule = rule.into();
    let [param, states @ ..] = tensors.each_mut().map(Buffer::out);
    let mut required = rule.states().into_iter().map(|state| state.initial.is_some());
    let states = states.map(|state| Some(state).filter(|_| required.next() == Some(true)));
    OptimizerStep { rule, number, grad, states, param }
}

fn single(values: &[f64]) -> Vec<f32> {
    values.iter().map(|&x| x as f32).collect()
}

fn start_and_grads(count: usize) -> (Vec<f64>, Vec<Vec<f64>>) {
    (noise(1, count), (0..5).map(|step| noise(10 + step, count)).collect())
}

/// Compares steps of a rule, for f64 and f32 and gradients in all layouts, with the expected parameters.
fn compare(rule: OptimizerRule, (start, grads): (&[f64], &[Vec<f64>]), expected: &[f64]) {
    let (backend, dims, zeros) = (CpuBackend::new(1).unwrap(), [100, 3], [0.0; 300]);
    for layout in 0..4 {
        let values = [start, &zeros, &zeros, &zeros];
        let mut wide = values.map(|values| Buffer::of(&dims, values));
        let mut narrow = values.map(|values| Buffer::of(&dims, &single(values)));
        for (number, grad) in (1..).zip(grads) {
            let wide_grad = Buffer::arrangements(&dims, grad).swap_remove(layout);
            backend.run("step", step(rule, number, wide_grad.view(), &mut wide)).unwrap();
            let grad = Buffer::arrangements(&dims, &single(grad)).swap_remove(layout);
            backend.run("step", step(rule, number, grad.view(), &mut narrow)).unwrap();
        }
        assert_close(&wide[0].values::<f64>(), expected, 1e-13, "param");
        assert_close(&narrow[0].values::<f32>(), expected, 1e-5, "param");
    }
}

#[test]
fn sgd_and_adam_agree_with_their_formulas() {
    let (start, grads) = start_and_grads(300);
    for rule in sgd_rules() {
        let mut expected = start.clone();
        plain_sgd(rule, &grads, &mut expected);
        compare(rule.into(), (&start, &grads), &expected);
    }
    for rule in adam_rules() {
        let mut expected = start.clone();
        plain_adam(rule, &grads, &mut expected);
        compare(rule.into(), (&start, &grads), &expected);
    }
}

#[test]
fn the_first_step_of_adam_has_the_length_of_the_learning_rate() {
    let backend = CpuBackend::new(1).unwrap();
    let mut tensors = [(); 4].map(|()| Buffer::of(&[2], &[0.0_f64; 2]));
    let grad = Buffer::of(&[2], &[1e-3, -1e3]);
    backend.run("adam", step(adam_rules()[0], 1, grad.view(), &mut tensors)).unwrap();
    assert_close(&tensors[0].values::<f64>(), &[-0.01, 0.01], 1e-6, "param");
}

#[test]
fn large_steps_do_not_depend_on_threads_or_layout() {
    let dims = [300, 301];
    let count = 300 * 301;
    let (start, grad) = (single(&noise(1, count)), single(&noise(2, count)));
    let old = single(&noise(3, count));
    let squares: Vec<f32> = old.iter().map(|x| x * x).collect();
    let [first, others @ ..] = backends().map(|backend| {
        let mut seen = Vec::new();
        for grad in Buffer::arrangements(&dims, &grad) {
            let mut results: Vec<Vec<f32>> = Vec::new();
            for rule in rules() {
                let mut tensors = [&start, &squares, &squares, &old].map(|values| Buffer::of(&dims, values));
                backend.run("step", step(rule, 1, grad.view(), &mut tensors)).unwrap();
                results.extend(tensors.iter().map(Buffer::values));
            }
            seen.push(results);
        }
        assert!(seen.iter().all(|results| *results == seen[0]));
        seen
    });
    assert!(others.iter().all(|other| *other == first));
}

#[test]
fn empty_parameters_are_supported() {
    let backend = CpuBackend::new(2).unwrap();
    let grad = Buffer::of::<f32>(&[0, 3], &[]);
    for rule in rules() {
        let mut tensors = [(); 4].map(|()| Buffer::of::<f32>(&[0, 3], &[]));
        backend.run("step", step(rule, 1, grad.view(), &mut tensors)).unwrap();
    }
}

#[test]
fn steps_together_equal_steps_one_after_another() {
    let counts = [7, 300_000, 0, 40_000, 33_000, 1, 90_000, 65_536, 12];
    let buffers = |count: usize| -> [Buffer; 4] {
        let seeds = [1, 2, 3, 4].map(|seed| single(&noise(seed, count)));
        seeds.map(|values| Buffer::of(&[count], &values.iter().map(|x| x * x).collect::<Vec<_>>()))
    };
    let grads = counts.map(|count| Buffer::of(&[count], &single(&noise(5, count))));
    for rule in rules() {
        let mut expected = counts.map(buffers);
        let alone = CpuBackend::new(1).unwrap();
        for (tensors, grad) in expected.iter_mut().zip(&grads) {
            alone.run("step", step(rule, 1, grad.view(), tensors)).unwrap();
        }
        let values =
            |all: &[[Buffer; 4]]| all.iter().flatten().map(Buffer::values).collect::<Vec<Vec<f32>>>();
        for backend in backends() {
            let mut tensors = counts.map(buffers);
            let all = tensors.iter_mut().zip(&grads);
            let mut steps: Vec<Kernel<'_>> =
                all.map(|(tensors, grad)| step(rule, 1, grad.view(), tensors).into()).collect();
            Backend::run_together(&backend, "step", &mut steps, Checked::by_test()).unwrap();
            assert_eq!(values(&tensors), values(&expected));
        }
    }
}

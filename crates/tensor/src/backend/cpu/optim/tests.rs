//! Tests of optimizer steps.

use super::*;
use crate::backend::cpu::CpuBackend;
use crate::backend::cpu::testing::{Buffer, assert_close, backends, noise};
use crate::backend::kernels;

/// The formulas of the papers on single numbers, in f64.
fn plain_sgd(step: SgdStep, grads: &[Vec<f64>], param: &mut [f64], momentum: &mut [f64]) {
    for grad in grads {
        for ((p, m), g) in param.iter_mut().zip(momentum.iter_mut()).zip(grad) {
            let g = g + step.weight_decay * *p;
            *m = step.momentum * *m + g;
            *p -= step.lr * if step.nesterov { g + step.momentum * *m } else { *m };
        }
    }
}

fn plain_adam(step: AdamStep, grads: &[Vec<f64>], param: &mut [f64]) {
    let mut state = vec![(0.0, 0.0, 0.0); param.len()];
    for (t, grad) in (1..).zip(grads) {
        for ((p, (m, v, most)), &g) in param.iter_mut().zip(&mut state).zip(grad) {
            let g = if step.decoupled { g } else { g + step.weight_decay * *p };
            if step.decoupled {
                *p -= step.lr * step.weight_decay * *p;
            }
            *m = step.beta1 * *m + (1.0 - step.beta1) * g;
            *v = step.beta2 * *v + (1.0 - step.beta2) * g * g;
            *most = f64::max(*most, *v);
            let v = if step.amsgrad { *most } else { *v };
            let (mean, variance) = (*m / (1.0 - step.beta1.powi(t)), v / (1.0 - step.beta2.powi(t)));
            *p -= step.lr * mean / (f64::sqrt(variance) + step.epsilon);
        }
    }
}

fn sgd_steps() -> Vec<SgdStep> {
    let plain = SgdStep { lr: 0.1, momentum: 0.0, weight_decay: 0.0, nesterov: false };
    vec![
        plain,
        SgdStep { weight_decay: 0.01, ..plain },
        SgdStep { momentum: 0.9, ..plain },
        SgdStep { momentum: 0.9, weight_decay: 0.01, nesterov: true, ..plain },
    ]
}

fn adam_steps() -> Vec<AdamStep> {
    let plain = AdamStep {
        lr: 0.01,
        beta1: 0.9,
        beta2: 0.999,
        epsilon: 1e-8,
        weight_decay: 0.0,
        decoupled: false,
        amsgrad: false,
        step: 1,
    };
    vec![
        plain,
        AdamStep { weight_decay: 0.1, ..plain },
        AdamStep { weight_decay: 0.1, decoupled: true, ..plain },
        // Short means, so that the largest ones differ from them.
        AdamStep { amsgrad: true, beta2: 0.5, ..plain },
        AdamStep { amsgrad: true, beta2: 0.5, weight_decay: 0.1, decoupled: true, ..plain },
    ]
}

/// A step on the parameter, the mean, the variance and the largest variance.
fn adam<'a>(step: AdamStep, grad: View<'a>, state: &'a mut [Buffer; 4]) -> kernels::Adam<'a> {
    let [param, mean, variance, most] = state.each_mut().map(Buffer::out);
    kernels::Adam { step, grad, mean, variance, max_variance: step.amsgrad.then_some(most), param }
}

fn single(values: &[f64]) -> Vec<f32> {
    values.iter().map(|&x| x as f32).collect()
}

fn start_and_grads(count: usize) -> (Vec<f64>, Vec<Vec<f64>>) {
    (noise(1, count), (0..5).map(|step| noise(10 + step, count)).collect())
}

#[test]
fn sgd_agrees_with_its_formula() {
    let backend = CpuBackend::new(1).unwrap();
    let (start, grads) = start_and_grads(300);
    let dims = [3, 100];
    for step in sgd_steps() {
        let (mut expected, mut expected_state) = (start.clone(), vec![0.0; 300]);
        plain_sgd(step, &grads, &mut expected, &mut expected_state);
        for layout in 0..4 {
            let (mut param, mut state) = (Buffer::of(&dims, &start), Buffer::of(&dims, &[0.0_f64; 300]));
            let mut narrow = Buffer::of(&dims, &single(&start));
            let mut narrow_state = Buffer::of(&dims, &[0.0_f32; 300]);
            let keeps = step.momentum != 0.0;
            for grad in &grads {
                let wide_grad = Buffer::arrangements(&dims, grad).swap_remove(layout);
                let momentum = keeps.then(|| state.out());
                backend
                    .run("sgd", kernels::Sgd { step, grad: wide_grad.view(), momentum, param: param.out() })
                    .unwrap();
                let grad = Buffer::arrangements(&dims, &single(grad)).swap_remove(layout);
                let momentum = keeps.then(|| narrow_state.out());
                backend
                    .run("sgd", kernels::Sgd { step, grad: grad.view(), momentum, param: narrow.out() })
                    .unwrap();
            }
            assert_close(&param.values::<f64>(), &expected, 1e-14, "param");
            assert_close(&narrow.values::<f32>(), &expected, 1e-6, "param");
            if keeps {
                assert_close(&state.values::<f64>(), &expected_state, 1e-14, "momentum");
                assert_close(&narrow_state.values::<f32>(), &expected_state, 1e-6, "momentum");
            }
        }
    }
}

#[test]
fn adam_agrees_with_its_formula() {
    let backend = CpuBackend::new(1).unwrap();
    let (start, grads) = start_and_grads(300);
    let dims = [100, 3];
    for step in adam_steps() {
        let mut expected = start.clone();
        plain_adam(step, &grads, &mut expected);
        for layout in 0..4 {
            let zeros = vec![0.0; 300];
            let mut wide = [&start, &zeros, &zeros, &zeros].map(|values| Buffer::of(&dims, values));
            let mut narrow =
                [&start, &zeros, &zeros, &zeros].map(|values| Buffer::of(&dims, &single(values)));
            for (number, grad) in (1..).zip(&grads) {
                let step = AdamStep { step: number, ..step };
                let wide_grad = Buffer::arrangements(&dims, grad).swap_remove(layout);
                backend.run("adam", adam(step, wide_grad.view(), &mut wide)).unwrap();
                let grad = Buffer::arrangements(&dims, &single(grad)).swap_remove(layout);
                backend.run("adam", adam(step, grad.view(), &mut narrow)).unwrap();
            }
            assert_close(&wide[0].values::<f64>(), &expected, 1e-13, "param");
            assert_close(&narrow[0].values::<f32>(), &expected, 1e-5, "param");
        }
    }
}

#[test]
fn the_first_step_of_adam_has_the_length_of_the_learning_rate() {
    let backend = CpuBackend::new(1).unwrap();
    let mut state = [(); 4].map(|()| Buffer::of(&[2], &[0.0_f64; 2]));
    let grad = Buffer::of(&[2], &[1e-3, -1e3]);
    backend.run("adam", adam(adam_steps()[0], grad.view(), &mut state)).unwrap();
    assert_close(&state[0].values::<f64>(), &[-0.01, 0.01], 1e-6, "param");
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
            for step in sgd_steps() {
                let (mut param, mut state) = (Buffer::of(&dims, &start), Buffer::of(&dims, &old));
                let momentum = (step.momentum != 0.0).then(|| state.out());
                backend
                    .run("sgd", kernels::Sgd { step, grad: grad.view(), momentum, param: param.out() })
                    .unwrap();
                results.extend([param.values(), state.values()]);
            }
            for step in adam_steps() {
                let mut state = [&start, &old, &squares, &old].map(|values| Buffer::of(&dims, values));
                backend.run("adam", adam(step, grad.view(), &mut state)).unwrap();
                results.extend(state.iter().map(Buffer::values));
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
    let mut state = [(); 4].map(|()| Buffer::of::<f32>(&[0, 3], &[]));
    backend.run("adam", adam(adam_steps()[0], grad.view(), &mut state)).unwrap();
    let [p, m, _, _] = state.each_mut().map(Buffer::out);
    backend
        .run("sgd", kernels::Sgd { step: sgd_steps()[3], grad: grad.view(), momentum: Some(m), param: p })
        .unwrap();
}

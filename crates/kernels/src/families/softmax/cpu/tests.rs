//! Tests of softmax and cross entropy.

use crate::backend::cpu::CpuBackend;
use crate::error::KernelError;
use crate::families;
use crate::shape::{DType, Element};
use crate::storage::View;
use crate::testing::{Buffer, assert_close, backends, noise};

const DIMS: &[&[usize]] = &[&[6], &[3, 4], &[2, 3, 5], &[4, 300], &[0, 3], &[3, 0], &[5, 1]];

fn cpu() -> CpuBackend {
    CpuBackend::new(1).unwrap()
}

fn softmax<T: Element>(backend: &CpuBackend, log: bool, input: View<'_>) -> Vec<T> {
    let mut out = Buffer::output(input.layout().shape().dims(), T::DTYPE);
    backend.run("softmax", families::SoftmaxRows { log, input, out: out.out() }).unwrap();
    out.values()
}

/// The textbook formula, row by row.
fn plain(log: bool, dims: &[usize], x: &[f64]) -> Vec<f64> {
    let classes = dims[dims.len() - 1].max(1);
    x.chunks(classes)
        .flat_map(|row| {
            let sum: f64 = row.iter().map(|x| x.exp()).sum();
            row.iter().map(move |x| if log { x - sum.ln() } else { x.exp() / sum })
        })
        .collect()
}

fn single(values: &[f64]) -> Vec<f32> {
    values.iter().map(|&x| x as f32).collect()
}

#[test]
fn softmax_agrees_with_its_formula_in_every_layout() {
    for &dims in DIMS {
        let x: Vec<f64> = noise(1, dims.iter().product()).into_iter().map(|x| 5.0 * x).collect();
        for log in [false, true] {
            let expected = plain(log, dims, &x);
            let first = softmax::<f32>(&cpu(), log, Buffer::of(dims, &single(&x)).view());
            assert_close(&first, &expected, 2e-6, "softmax");
            for (wide, narrow) in
                Buffer::arrangements(dims, &x).iter().zip(Buffer::arrangements(dims, &single(&x)))
            {
                assert_close(&softmax::<f64>(&cpu(), log, wide.view()), &expected, 1e-14, "softmax");
                assert_eq!(softmax::<f32>(&cpu(), log, narrow.view()), first);
            }
        }
    }
}

#[test]
fn large_logits_do_not_overflow() {
    let x = Buffer::of(&[2, 2], &[1000.0_f32, 999.0, -1e30, 1e30]);
    let expected = [1.0 / (1.0 + (-1.0_f64).exp()), 1.0 / (1.0 + 1.0_f64.exp()), 0.0, 1.0];
    assert_close(&softmax::<f32>(&cpu(), false, x.view()), &expected, 1e-6, "softmax");
    let logs = softmax::<f32>(&cpu(), true, x.view());
    assert_close(&logs[..2], &[-0.313_261_687, -1.313_261_687], 1e-6, "log_softmax");
    assert_eq!(logs[3], 0.0);
}

#[test]
fn gradients_of_softmax_are_those_of_finite_differences() {
    // The error of the difference is about h², that of its rounding about 1e-14 / h.
    let h = 1e-4;
    for dims in [&[5][..], &[3, 4], &[2, 150]] {
        let count: usize = dims.iter().product();
        let (x, g) = (noise(1, count), noise(2, count));
        for log in [false, true] {
            let value = |x: &[f64]| -> f64 { plain(log, dims, x).iter().zip(&g).map(|(y, g)| y * g).sum() };
            let moved = |i: usize, by: f64| {
                let mut x = x.clone();
                x[i] += by;
                value(&x)
            };
            let expected: Vec<f64> = (0..count).map(|i| (moved(i, h) - moved(i, -h)) / (2.0 * h)).collect();
            let mut first: Option<Vec<f64>> = None;
            for output in Buffer::arrangements(dims, &plain(log, dims, &x)) {
                for grad in Buffer::arrangements(dims, &g) {
                    let mut out = Buffer::output(dims, DType::F64);
                    cpu()
                        .run(
                            "softmax",
                            families::SoftmaxRowsGrad {
                                log,
                                output: output.view(),
                                grad: grad.view(),
                                out: out.out(),
                            },
                        )
                        .unwrap();
                    assert_close(&out.values::<f64>(), &expected, 1e-8, "softmax_grad");
                    assert_eq!(*first.get_or_insert_with(|| out.values()), out.values::<f64>());
                }
            }
        }
    }
}

/// Logits and targets of `n` rows.
fn problem(n: usize, classes: usize) -> (Vec<f64>, Vec<i64>) {
    let logits = noise(7, n * classes).into_iter().map(|x| 4.0 * x).collect();
    (logits, (0..n).map(|i| (i * 7 % classes) as i64).collect())
}

fn losses<T: Element>(backend: &CpuBackend, logits: View<'_>, targets: View<'_>) -> Vec<T> {
    let mut out = Buffer::output(targets.layout().shape().dims(), T::DTYPE);
    backend.run("cross_entropy", families::CrossEntropy { logits, targets, losses: out.out() }).unwrap();
    out.values()
}

fn loss_grad<T: Element>(
    backend: &CpuBackend,
    logits: View<'_>,
    targets: View<'_>,
    grad: View<'_>,
) -> Vec<T> {
    let mut out = Buffer::output(logits.layout().shape().dims(), T::DTYPE);
    backend
        .run("cross_entropy", families::CrossEntropyGrad { logits, targets, grad, out: out.out() })
        .unwrap();
    out.values()
}

#[test]
fn cross_entropy_is_minus_the_log_softmax_at_the_target() {
    for (n, classes) in [(1, 1), (5, 3), (4, 200)] {
        let (x, t) = problem(n, classes);
        let logs = plain(true, &[n, classes], &x);
        let expected: Vec<f64> =
            t.iter().enumerate().map(|(i, &t)| -logs[i * classes + t as usize]).collect();
        for targets in Buffer::arrangements(&[n], &t) {
            for logits in Buffer::arrangements(&[n, classes], &x) {
                let values = losses::<f64>(&cpu(), logits.view(), targets.view());
                assert_close(&values, &expected, 1e-14, "cross_entropy");
            }
            let logits = Buffer::of(&[n, classes], &single(&x));
            let values = losses::<f32>(&cpu(), logits.view(), targets.view());
            assert_close(&values, &expected, 2e-6, "cross_entropy");
        }
    }
}

#[test]
fn cross_entropy_gradient_is_softmax_minus_one_hot() {
    let (n, classes) = (4, 5);
    let (x, t) = problem(n, classes);
    let g = noise(9, n);
    let mut expected = plain(false, &[n, classes], &x);
    for (i, row) in expected.chunks_mut(classes).enumerate() {
        row[t[i] as usize] -= 1.0;
        row.iter_mut().for_each(|x| *x *= g[i]);
    }
    let targets = Buffer::of(&[n], &t);
    for logits in Buffer::arrangements(&[n, classes], &x) {
        for grad in Buffer::arrangements(&[n], &g) {
            let values = loss_grad::<f64>(&cpu(), logits.view(), targets.view(), grad.view());
            assert_close(&values, &expected, 1e-14, "cross_entropy_grad");
        }
    }
    // A broadcast gradient, as from the backward pass of a mean.
    let logits = Buffer::of(&[n, classes], &x);
    let (one, all) = (Buffer::of(&[], &[0.25]), Buffer::of(&[n], &[0.25; 4]));
    assert_eq!(
        loss_grad::<f64>(&cpu(), logits.view(), targets.view(), one.broadcast(&[n]).view()),
        loss_grad::<f64>(&cpu(), logits.view(), targets.view(), all.view())
    );
}

#[test]
fn extreme_logits_have_finite_losses() {
    let logits = Buffer::of(&[2, 2], &[1e4_f32, -1e4, 1e4, -1e4]);
    let targets = Buffer::of(&[2], &[1_i64, 0]);
    assert_eq!(losses::<f32>(&cpu(), logits.view(), targets.view()), [2e4, 0.0]);
}

#[test]
fn a_target_outside_the_classes_is_an_error_and_writes_nothing() {
    let logits = Buffer::of(&[3, 2], &[0.0_f32; 6]);
    let grad = Buffer::of(&[3], &[1.0_f32; 3]);
    for bad in [-1, 2, i64::MIN, i64::MAX] {
        let targets = Buffer::of(&[3], &[0, bad, 7]);
        let refused = Err(KernelError::IndexOutOfRange { op: "cross_entropy", index: bad, len: 2 });
        let mut out = Buffer::of(&[3], &[9.0_f32; 3]);
        let result = cpu().run(
            "cross_entropy",
            families::CrossEntropy { logits: logits.view(), targets: targets.view(), losses: out.out() },
        );
        assert_eq!((result, out.values()), (refused.clone(), vec![9.0_f32; 3]));
        let mut out = Buffer::of(&[3, 2], &[9.0_f32; 6]);
        let result = cpu().run(
            "cross_entropy",
            families::CrossEntropyGrad {
                logits: logits.view(),
                targets: targets.view(),
                grad: grad.view(),
                out: out.out(),
            },
        );
        assert_eq!((result, out.values()), (refused, vec![9.0_f32; 6]));
    }
}

#[test]
fn empty_batches_have_no_losses() {
    let logits = Buffer::of::<f32>(&[0, 3], &[]);
    let targets = Buffer::of::<i64>(&[0], &[]);
    assert!(losses::<f32>(&cpu(), logits.view(), targets.view()).is_empty());
    let grad = Buffer::of(&[], &[1.0_f32]);
    assert!(loss_grad::<f32>(&cpu(), logits.view(), targets.view(), grad.broadcast(&[0]).view()).is_empty());
}

#[test]
fn large_inputs_give_the_same_bits_for_any_number_of_threads() {
    let (n, classes) = (3000, 37);
    let (x, t) = problem(n, classes);
    let x = single(&x);
    let grad = Buffer::of(&[n], &single(&noise(3, n)));
    let grads = Buffer::of(&[n, classes], &single(&noise(4, n * classes)));
    let targets = Buffer::of(&[n], &t);
    let [first, others @ ..] = backends().map(|backend| {
        let mut seen = Vec::new();
        for logits in Buffer::arrangements(&[n, classes], &x) {
            let mut results: Vec<Vec<f32>> = vec![
                losses(&backend, logits.view(), targets.view()),
                loss_grad(&backend, logits.view(), targets.view(), grad.view()),
            ];
            for log in [false, true] {
                results.push(softmax(&backend, log, logits.view()));
                let mut out = Buffer::output(&[n, classes], DType::F32);
                backend
                    .run(
                        "softmax",
                        families::SoftmaxRowsGrad {
                            log,
                            output: logits.view(),
                            grad: grads.view(),
                            out: out.out(),
                        },
                    )
                    .unwrap();
                results.push(out.values());
            }
            seen.push(results);
        }
        assert!(seen.iter().all(|results| *results == seen[0]));
        seen
    });
    assert!(others.iter().all(|other| *other == first));
}

#[test]
fn softmax_requires_floats() {
    let whole = Buffer::of(&[2], &[1_i64, 2]);
    let mut out = Buffer::output(&[2], DType::I64);
    assert_eq!(
        cpu().run("softmax", families::SoftmaxRows { log: false, input: whole.view(), out: out.out() }),
        Err(KernelError::UnsupportedDType { op: "softmax", dtype: DType::I64 })
    );
}

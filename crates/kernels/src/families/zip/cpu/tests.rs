//! Tests of the elementwise functions of two and three arguments.

use proptest::prelude::*;

use crate::backend::cpu::CpuBackend;
use crate::error::KernelError;
use crate::families;
use crate::families::{Binary, Compare, Domain};
use crate::shape::{DType, Element};
use crate::storage::View;
use crate::testing::{Buffer, assert_close, backends, noise};

/// Arguments at which the function is smooth.
fn arguments(f: Binary, seed: u64, count: usize) -> [Vec<f64>; 2] {
    let [a, b] = f.smooth();
    [(a, seed), (b, !seed)].map(|(ranges, seed)| {
        let place = |(i, x): (usize, f64)| {
            let (low, high) = ranges[i % ranges.len()];
            low + (high - low) * (x + 1.0) / 2.0
        };
        noise(seed, count).into_iter().enumerate().map(place).collect()
    })
}

fn cpu() -> CpuBackend {
    CpuBackend::new(1).unwrap()
}

fn formula(f: Binary, a: f64, b: f64) -> f64 {
    match f {
        Binary::Add => a + b,
        Binary::Sub => a - b,
        Binary::Mul => a * b,
        Binary::Div => a / b,
        Binary::Maximum => a.max(b),
        Binary::Minimum => a.min(b),
        Binary::Pow => a.powf(b),
        Binary::Atan2 => a.atan2(b),
        Binary::SiluMul => a / (1.0 + (-a).exp()) * b,
    }
}

fn holds<T: PartialOrd>(f: Compare, a: T, b: T) -> bool {
    match f {
        Compare::Eq => a == b,
        Compare::Ne => a != b,
        Compare::Lt => a < b,
        Compare::Le => a <= b,
        Compare::Gt => a > b,
        Compare::Ge => a >= b,
    }
}

fn binary<T: Element>(backend: &CpuBackend, f: Binary, lhs: View<'_>, rhs: View<'_>) -> Vec<T> {
    let mut out = Buffer::output(lhs.layout().shape().dims(), T::DTYPE);
    backend.run(f.name(), families::Zip { f, lhs, rhs, out: out.out() }).unwrap();
    out.values()
}

fn compare(f: Compare, lhs: View<'_>, rhs: View<'_>) -> Vec<bool> {
    let mut out = Buffer::output(lhs.layout().shape().dims(), DType::Bool);
    cpu().run(f.name(), families::Comparison { f, lhs, rhs, out: out.out() }).unwrap();
    out.values()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn functions_of_two_agree_with_their_formulas_in_every_layout(
        dims in prop::collection::vec(0_usize..5, 0..4),
        seed in any::<u64>(),
    ) {
        let count = dims.iter().product();
        for &f in Binary::ALL {
            let [a, b] = arguments(f, seed, count);
            let expected: Vec<f64> = a.iter().zip(&b).map(|(&a, &b)| formula(f, a, b)).collect();
            for lhs in Buffer::arrangements(&dims, &a) {
                for rhs in Buffer::arrangements(&dims, &b) {
                    let found = binary::<f64>(&cpu(), f, lhs.view(), rhs.view());
                    assert_close(&found, &expected, 1e-14, f.name());
                }
            }
        }
    }

    #[test]
    fn operands_repeat_along_any_axes(
        dims in prop::collection::vec((1_usize..5, any::<bool>(), any::<bool>()), 0..4),
        seed in any::<u64>(),
    ) {
        let whole: Vec<usize> = dims.iter().map(|&(size, ..)| size).collect();
        let left: Vec<usize> = dims.iter().map(|&(size, keep, _)| if keep { size } else { 1 }).collect();
        let right: Vec<usize> = dims.iter().map(|&(size, _, keep)| if keep { size } else { 1 }).collect();
        let a = Buffer::of(&left, &noise(seed, left.iter().product()));
        let b = Buffer::of(&right, &noise(!seed, right.iter().product()));
        let (lhs, rhs) = (a.broadcast(&whole), b.broadcast(&whole));
        let expected: Vec<f64> =
            lhs.values::<f64>().into_iter().zip(rhs.values::<f64>()).map(|(a, b)| a - b).collect();
        prop_assert_eq!(binary::<f64>(&cpu(), Binary::Sub, lhs.view(), rhs.view()), expected);
    }
}

#[test]
fn large_results_do_not_depend_on_threads_or_layout() {
    let dims = [321, 234];
    let convert = |values: Vec<f64>| values.into_iter().map(|x| x as f32).collect::<Vec<f32>>();
    // A row, a column and a number.
    let parts = |values: &[f32]| {
        [
            Buffer::of(&[234], &values[..234]),
            Buffer::of(&[321, 1], &values[..321]),
            Buffer::of(&[], &values[..1]),
        ]
    };
    for &f in Binary::ALL {
        let [a, b] = arguments(f, 1, 321 * 234).map(convert);
        let wide: Vec<f64> =
            a.iter().zip(&b).map(|(&a, &b)| formula(f, f64::from(a), f64::from(b))).collect();
        let mut seen: Option<Vec<Vec<f32>>> = None;
        for backend in backends() {
            let (lhs, rhs) = (Buffer::of(&dims, &a), Buffer::of(&dims, &b));
            let mut results: Vec<Vec<f32>> = Buffer::arrangements(&dims, &b)
                .iter()
                .map(|rhs| binary(&backend, f, lhs.view(), rhs.view()))
                .collect();
            assert!(results.iter().all(|result| *result == results[0]), "{}", f.name());
            assert_close(&results[0], &wide, 1e-6, f.name());
            for (left, right) in parts(&a).iter().zip(&parts(&b)) {
                results.push(binary(&backend, f, lhs.view(), right.broadcast(&dims).view()));
                results.push(binary(&backend, f, left.broadcast(&dims).view(), rhs.view()));
            }
            let first = seen.get_or_insert_with(|| results.clone());
            assert_eq!(*first, results, "{}", f.name());
        }
    }
}

#[test]
fn maximum_and_minimum_propagate_nan() {
    let (nan, one) = (Buffer::of(&[2], &[f32::NAN, 1.0]), Buffer::of(&[2], &[1.0, f32::NAN]));
    for f in [Binary::Maximum, Binary::Minimum] {
        assert!(binary::<f32>(&cpu(), f, nan.view(), one.view()).iter().all(|x| x.is_nan()));
    }
}

#[test]
fn integer_arithmetic_wraps_and_division_by_zero_is_zero() {
    let a = Buffer::of(&[4], &[i64::MIN, 7, -7, i64::MAX]);
    let b = Buffer::of(&[4], &[-1, 0, 2, 1_i64]);
    let cases = [
        (Binary::Add, [i64::MAX, 7, -5, i64::MIN]),
        (Binary::Sub, [i64::MIN + 1, 7, -9, i64::MAX - 1]),
        (Binary::Mul, [i64::MIN, 0, -14, i64::MAX]),
        (Binary::Div, [i64::MIN, 0, -3, i64::MAX]),
        (Binary::Maximum, [-1, 7, 2, i64::MAX]),
        (Binary::Minimum, [i64::MIN, 0, -7, 1]),
    ];
    for (f, expected) in cases {
        assert_eq!(binary::<i64>(&cpu(), f, a.view(), b.view()), expected, "{}", f.name());
    }
    let (a, b) = (Buffer::of(&[2], &[200_u8, 3]), Buffer::of(&[2], &[100_u8, 5]));
    assert_eq!(binary::<u8>(&cpu(), Binary::Add, a.view(), b.view()), [44, 8]);
    assert_eq!(binary::<u8>(&cpu(), Binary::Sub, a.view(), b.view()), [100, 254]);
}

#[test]
fn functions_of_floats_reject_integers() {
    let (one, mut out) = (Buffer::of(&[1], &[1_i64]), Buffer::output(&[1], DType::I64));
    for &f in Binary::ALL.iter().filter(|f| f.domain() == Domain::Floats) {
        let error = Err(KernelError::UnsupportedDType { op: f.name(), dtype: DType::I64 });
        let (lhs, rhs) = (one.view(), one.view());
        assert_eq!(cpu().run(f.name(), families::Zip { f, lhs, rhs, out: out.out() }), error);
        assert_eq!(cpu().run(f.name(), families::Accumulate { f, input: rhs, acc: out.out() }), error);
    }
}

#[test]
fn boolean_functions_return_booleans() {
    let (a, b) =
        (Buffer::of(&[4], &[false, false, true, true]), Buffer::of(&[4], &[false, true, false, true]));
    let and = [false, false, false, true];
    assert_eq!(binary::<bool>(&cpu(), Binary::Mul, a.view(), b.view()), and);
    assert_eq!(binary::<bool>(&cpu(), Binary::Minimum, a.view(), b.view()), and);
    assert_eq!(binary::<bool>(&cpu(), Binary::Maximum, a.view(), b.view()), [false, true, true, true]);
    for &f in Binary::ALL.iter().filter(|f| !f.supports_booleans()) {
        let mut out = Buffer::output(&[4], DType::Bool);
        assert_eq!(
            cpu().run(f.name(), families::Zip { f, lhs: a.view(), rhs: b.view(), out: out.out() }),
            Err(KernelError::UnsupportedDType { op: f.name(), dtype: DType::Bool })
        );
    }
}

#[test]
fn comparisons_hold_for_every_element_type() {
    let floats = [1.0, 2.0, f64::NAN, -0.0, 3.0];
    let others = [1.0, 3.0, f64::NAN, 0.0, 2.0];
    for &f in Compare::ALL {
        let expected: Vec<bool> = floats.iter().zip(others).map(|(&a, b)| holds(f, a, b)).collect();
        for lhs in Buffer::arrangements(&[5], &floats) {
            let rhs = Buffer::of(&[5], &others);
            assert_eq!(compare(f, lhs.view(), rhs.view()), expected, "{}", f.name());
        }
        let (a, b) = (Buffer::of(&[2], &[i64::MAX, -1]), Buffer::of(&[2], &[i64::MAX - 1, -1]));
        assert_eq!(
            compare(f, a.view(), b.view()),
            [holds(f, i64::MAX, i64::MAX - 1), holds(f, -1, -1)],
            "{}",
            f.name()
        );
        let (a, b) = (Buffer::of(&[2], &[true, false]), Buffer::of(&[2], &[true, true]));
        assert_eq!(compare(f, a.view(), b.view()), [holds(f, true, true), holds(f, false, true)]);
    }
}

#[test]
fn select_chooses_by_condition() {
    let dims = [3, 4];
    let condition: Vec<bool> = noise(1, 12).into_iter().map(|x| x > 0.0).collect();
    let (a, b) = (noise(2, 12), noise(3, 12));
    let expected: Vec<f64> =
        condition.iter().zip(a.iter().zip(&b)).map(|(&c, (&a, &b))| if c { a } else { b }).collect();
    for condition in Buffer::arrangements(&dims, &condition) {
        for lhs in Buffer::arrangements(&dims, &a) {
            for rhs in Buffer::arrangements(&dims, &b) {
                let mut out = Buffer::output(&dims, DType::F64);
                cpu()
                    .run(
                        "where",
                        families::Select {
                            condition: condition.view(),
                            lhs: lhs.view(),
                            rhs: rhs.view(),
                            out: out.out(),
                        },
                    )
                    .unwrap();
                assert_eq!(out.values::<f64>(), expected);
            }
        }
    }
    let (condition, lhs, rhs) =
        (Buffer::of(&[2, 1], &[true, false]), Buffer::of(&[2], &[true, false]), Buffer::of(&[], &[true]));
    let mut out = Buffer::output(&[2, 2], DType::Bool);
    let dims = [2, 2];
    cpu()
        .run(
            "where",
            families::Select {
                condition: condition.broadcast(&dims).view(),
                lhs: lhs.broadcast(&dims).view(),
                rhs: rhs.broadcast(&dims).view(),
                out: out.out(),
            },
        )
        .unwrap();
    assert_eq!(out.values::<bool>(), [true, false, true, true]);
}

#[test]
fn accumulation_in_place_matches_the_function() {
    let dims = [5, 4];
    for &f in Binary::ALL {
        let [a, b] = arguments(f, 1, 20);
        for input in Buffer::arrangements(&dims, &b) {
            let (mut acc, mut out) = (Buffer::of(&dims, &a), Buffer::output(&dims, DType::F64));
            let lhs = Buffer::of(&dims, &a);
            let rhs = input.view();
            cpu().run(f.name(), families::Zip { f, lhs: lhs.view(), rhs, out: out.out() }).unwrap();
            cpu().run(f.name(), families::Accumulate { f, input: rhs, acc: acc.out() }).unwrap();
            assert_eq!(acc.values::<f64>(), out.values::<f64>(), "{}", f.name());
        }
    }
    let mut acc = Buffer::of(&[2], &[i64::MAX, 1]);
    let one = Buffer::of(&[], &[1_i64]);
    cpu()
        .run(
            "accumulate",
            families::Accumulate { f: Binary::Add, input: one.broadcast(&[2]).view(), acc: acc.out() },
        )
        .unwrap();
    assert_eq!(acc.values::<i64>(), [i64::MIN, 2]);
}

//! Tests of the elementwise functions of one argument.

use super::*;
use crate::backend::cpu::CpuBackend;
use crate::backend::cpu::erf::erf_f64;
use crate::backend::cpu::testing::{Buffer, assert_close, backends, noise};
use crate::backend::kernels;
use crate::error::Error;
use crate::shape::{DType, Element, Scalar};

type Formula = fn(f64) -> f64;

/// Every function with its formula.
fn functions() -> Vec<(Unary, Formula)> {
    vec![
        (Unary::Neg, |x| -x),
        (Unary::Abs, f64::abs),
        (Unary::Square, |x| x * x),
        (Unary::Exp, f64::exp),
        (Unary::Log, f64::ln),
        (Unary::Sqrt, f64::sqrt),
        (Unary::Relu, |x| x.max(0.0)),
        (Unary::Gelu, |x| 0.5 * x * (1.0 + erf_f64(x / 2.0_f64.sqrt()))),
        (Unary::Tanh, f64::tanh),
        (Unary::Sigmoid, |x| 1.0 / (1.0 + (-x).exp())),
        (Unary::Recip, f64::recip),
        (Unary::Rsqrt, |x| 1.0 / x.sqrt()),
        (Unary::Sign, f64::signum),
        (Unary::Floor, f64::floor),
        (Unary::Ceil, f64::ceil),
        (Unary::Round, f64::round_ties_even),
        (Unary::Sin, f64::sin),
        (Unary::Cos, f64::cos),
        (Unary::Silu, |x| x / (1.0 + (-x).exp())),
        (Unary::Softplus, |x| (1.0 + x.exp()).ln()),
        (Unary::GeluTanh, |x| {
            0.5 * x * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3))).tanh())
        }),
        (Unary::LeakyRelu(0.125), |x| if x < 0.0 { 0.125 * x } else { x }),
        (Unary::Elu(1.5), |x| if x > 0.0 { x } else { 1.5 * x.exp_m1() }),
        (Unary::Mish, |x| x * x.exp().ln_1p().tanh()),
        (Unary::Hardswish, |x| x * (x + 3.0).clamp(0.0, 6.0) / 6.0),
        (Unary::Powf(1.5), |x| x.powf(1.5)),
        (Unary::Powf(1.0), |x| x),
        (Unary::Powf(2.0), |x| x * x),
        (Unary::Powf(3.0), |x| x.powi(3)),
        (Unary::Powf(0.5), f64::sqrt),
        (Unary::Powf(-0.5), |x| x.powf(-0.5)),
        (Unary::Powf(-1.0), f64::recip),
        (Unary::Clamp(Scalar::Float(-1.25), Scalar::Int(1)), |x| x.clamp(-1.25, 1.0)),
        (Unary::AddScalar(Scalar::Float(0.75)), |x| x + 0.75),
        (Unary::MulScalar(Scalar::Int(-3)), |x| -3.0 * x),
        (Unary::DivScalar(Scalar::Int(-3)), |x| x / -3.0),
    ]
}

/// Arguments at which every function is defined, away from kinks.
fn arguments(f: Unary, count: usize) -> Vec<f64> {
    let positive = matches!(f, Unary::Log | Unary::Sqrt | Unary::Recip | Unary::Rsqrt | Unary::Powf(_));
    noise(3, count).into_iter().map(|x| if positive { 0.1 + 2.0 * x.abs() } else { 4.0 * x }).collect()
}

fn apply<T: Element>(backend: &CpuBackend, f: Unary, input: View<'_>) -> Vec<T> {
    let mut out = Buffer::output(input.layout().shape().dims(), T::DTYPE);
    backend.run(f.name(), kernels::Map { f, input, out: out.out() }).unwrap();
    out.values()
}

fn slope(backend: &CpuBackend, f: Unary, saved: View<'_>, grad: View<'_>) -> Vec<f64> {
    let mut out = Buffer::output(saved.layout().shape().dims(), DType::F64);
    backend.run(f.name(), kernels::MapGrad { f, saved, grad: Some(grad), out: out.out() }).unwrap();
    out.values()
}

#[test]
fn every_function_agrees_with_its_formula_in_every_layout() {
    let backend = CpuBackend::new(1).unwrap();
    for (f, formula) in functions() {
        for dims in [&[][..], &[7], &[3, 5], &[2, 3, 4], &[2, 0]] {
            let x = arguments(f, dims.iter().product());
            let expected: Vec<f64> = x.iter().map(|&x| formula(x)).collect();
            let single: Vec<f32> = x.iter().map(|&x| x as f32).collect();
            let first = apply::<f32>(&backend, f, Buffer::of(dims, &single).view());
            assert_close(&first, &expected, 1e-6, f.name());
            for (wide, narrow) in
                Buffer::arrangements(dims, &x).iter().zip(Buffer::arrangements(dims, &single))
            {
                assert_close(&apply::<f64>(&backend, f, wide.view()), &expected, 1e-14, f.name());
                assert_eq!(apply::<f32>(&backend, f, narrow.view()), first);
            }
        }
    }
}

#[test]
fn large_inputs_give_the_same_bits_for_any_number_of_threads() {
    let dims = [300, 333];
    for (f, _) in functions() {
        let x: Vec<f32> = arguments(f, 300 * 333).into_iter().map(|x| x as f32).collect();
        let [expected, others @ ..] = backends().map(|backend| {
            Buffer::arrangements(&dims, &x)
                .iter()
                .map(|buffer| apply::<f32>(&backend, f, buffer.view()))
                .collect::<Vec<_>>()
        });
        assert!(expected.iter().all(|values| *values == expected[0]), "{}", f.name());
        assert!(others.iter().all(|values| *values == expected), "{}", f.name());
    }
}

#[test]
fn derivatives_are_those_of_finite_differences() {
    let backend = CpuBackend::new(1).unwrap();
    for (f, formula) in functions() {
        let dims = [4, 9];
        let x = arguments(f, 36);
        let g = noise(5, 36);
        let h = 1e-5;
        let expected: Vec<f64> =
            x.iter().zip(&g).map(|(x, g)| g * (formula(x + h) - formula(x - h)) / (2.0 * h)).collect();
        let saved: Vec<f64> = if f.grad_reads_output() { x.iter().map(|&x| formula(x)).collect() } else { x };
        for saved in Buffer::arrangements(&dims, &saved) {
            for grad in Buffer::arrangements(&dims, &g) {
                assert_close(&slope(&backend, f, saved.view(), grad.view()), &expected, 1e-8, f.name());
            }
        }
        // A broadcast gradient, as from the backward pass of a sum.
        let saved = Buffer::of(&dims, &saved);
        let one = Buffer::of(&[], &[1.0_f64]);
        let ones = Buffer::of(&dims, &[1.0_f64; 36]);
        let repeated = slope(&backend, f, saved.view(), one.broadcast(&dims).view());
        assert_eq!(repeated, slope(&backend, f, saved.view(), ones.view()), "{}", f.name());
    }
}

#[test]
fn derivatives_in_single_precision_agree_with_those_in_double() {
    let backend = CpuBackend::new(1).unwrap();
    for (f, formula) in functions() {
        let x = arguments(f, 1000);
        let saved: Vec<f64> = if f.grad_reads_output() { x.into_iter().map(formula).collect() } else { x };
        let narrow: Vec<f32> = saved.iter().map(|&x| x as f32).collect();
        let (wide_ones, ones) =
            (Buffer::of(&[1000], &[1.0_f64; 1000]), Buffer::of(&[1000], &[1.0_f32; 1000]));
        let expected = slope(&backend, f, Buffer::of(&[1000], &saved).view(), wide_ones.view());
        let mut out = Buffer::output(&[1000], DType::F32);
        let narrow = Buffer::of(&[1000], &narrow);
        backend
            .run(
                f.name(),
                kernels::MapGrad { f, saved: narrow.view(), grad: Some(ones.view()), out: out.out() },
            )
            .unwrap();
        assert_close(&out.values::<f32>(), &expected, 2e-6, f.name());
    }
}

#[test]
fn a_large_angle_does_not_change_its_neighbors() {
    let backend = CpuBackend::new(1).unwrap();
    let small: Vec<f32> = noise(8, 100).into_iter().map(|x| 1000.0 * x as f32).collect();
    let large = [1e6, -3e9, f32::MAX, f32::INFINITY, f32::NAN];
    let all: Vec<f32> = small.iter().chain(&large).copied().collect();
    for (f, formula) in [(Unary::Sin, f64::sin as Formula), (Unary::Cos, f64::cos)] {
        let alone = apply::<f32>(&backend, f, Buffer::of(&[100], &small).view());
        let beside = apply::<f32>(&backend, f, Buffer::of(&[105], &all).view());
        assert_eq!(beside[..100], alone);
        for (value, x) in beside[100..].iter().zip(large) {
            let right = formula(f64::from(x)) as f32;
            assert!((value - right).abs() < 1e-6 || value.is_nan() && right.is_nan(), "{x}: {value} {right}");
        }
    }
}

#[test]
fn derivatives_at_kinks_are_zero() {
    let backend = CpuBackend::new(1).unwrap();
    let (zero, one) = (Buffer::of(&[1], &[0.0_f64]), Buffer::of(&[1], &[1.0_f64]));
    assert_eq!(slope(&backend, Unary::Abs, zero.view(), one.view()), [0.0]);
    assert_eq!(slope(&backend, Unary::Relu, zero.view(), one.view()), [0.0]);
}

#[test]
fn every_function_propagates_nan() {
    let backend = CpuBackend::new(1).unwrap();
    for (f, _) in functions() {
        let nan = Buffer::of(&[2], &[f32::NAN, 1.0]);
        let values = apply::<f32>(&backend, f, nan.view());
        assert!(values[0].is_nan() && !values[1].is_nan(), "{}", f.name());
    }
}

#[test]
fn gelu_of_large_negative_arguments_is_zero() {
    let backend = CpuBackend::new(1).unwrap();
    let x = Buffer::of(&[3], &[-10.0_f32, -1e4, -1e30]);
    assert_eq!(apply::<f32>(&backend, Unary::Gelu, x.view()), [0.0; 3]);
}

#[test]
fn elu_and_mish_keep_their_precision_near_zero_and_far_from_it() {
    let backend = CpuBackend::new(1).unwrap();
    let x = [-1e-6_f32, -1e-3, -30.0, -90.0, 1e-6, 30.0, 90.0, f32::MAX];
    let elu = apply::<f32>(&backend, Unary::Elu(1.0), Buffer::of(&[8], &x).view());
    let mish = apply::<f32>(&backend, Unary::Mish, Buffer::of(&[8], &x).view());
    for (index, x) in x.into_iter().map(f64::from).enumerate() {
        let expected = if x > 0.0 { x } else { x.exp_m1() };
        assert!(
            (f64::from(elu[index]) - expected).abs() <= 2e-7 * expected.abs(),
            "elu of {x}: {}",
            elu[index]
        );
        let expected = x * if x > 80.0 { 1.0 } else { x.exp().ln_1p().tanh() };
        let error = (f64::from(mish[index]) - expected).abs();
        assert!(error <= 3e-7 * expected.abs() + 1e-37, "mish of {x}: {}", mish[index]);
    }
    let one = Buffer::of(&[4], &[1.0_f64; 4]);
    let ends = Buffer::of(&[4], &[-1e300, f64::MAX, -800.0, 800.0]);
    for f in [Unary::Elu(1.0), Unary::Mish, Unary::Hardswish] {
        assert_eq!(slope(&backend, f, ends.view(), one.view()), [0.0, 1.0, 0.0, 1.0], "{}", f.name());
    }
}

#[test]
fn integer_functions_wrap() {
    let backend = CpuBackend::new(1).unwrap();
    let wide = Buffer::of(&[3], &[i64::MIN, -3, i64::MAX]);
    let cases = [
        (Unary::Neg, [i64::MIN, 3, -i64::MAX]),
        (Unary::Abs, [i64::MIN, 3, i64::MAX]),
        (Unary::Square, [0, 9, 1]),
        (Unary::Relu, [0, 0, i64::MAX]),
        (Unary::AddScalar(Scalar::Int(1)), [i64::MIN + 1, -2, i64::MIN]),
        (Unary::MulScalar(Scalar::Float(2.9)), [0, -6, -2]),
        (Unary::DivScalar(Scalar::Int(-1)), [i64::MIN, 3, -i64::MAX]),
        (Unary::DivScalar(Scalar::Int(0)), [0; 3]),
    ];
    for (f, expected) in cases {
        assert_eq!(apply::<i64>(&backend, f, wide.view()), expected, "{}", f.name());
    }
    let narrow = Buffer::of(&[2], &[1_u8, 200]);
    assert_eq!(apply::<u8>(&backend, Unary::Neg, narrow.view()), [255, 56]);
    assert_eq!(apply::<u8>(&backend, Unary::Abs, narrow.view()), [1, 200]);
    assert_eq!(apply::<u8>(&backend, Unary::AddScalar(Scalar::Int(100)), narrow.view()), [101, 44]);
}

#[test]
fn unsupported_element_types_are_an_error() {
    let backend = CpuBackend::new(1).unwrap();
    let whole = Buffer::of(&[1], &[1_i64]);
    let mut out = Buffer::output(&[1], DType::I64);
    assert_eq!(
        backend.run("exp", kernels::Map { f: Unary::Exp, input: whole.view(), out: out.out() }),
        Err(Error::UnsupportedDType { op: "exp", dtype: DType::I64 })
    );
    let truth = Buffer::of(&[1], &[true]);
    let mut out = Buffer::output(&[1], DType::Bool);
    assert!(backend.run("neg", kernels::Map { f: Unary::Neg, input: truth.view(), out: out.out() }).is_err());
}

//! Tests of the elementwise functions of one argument.

use super::*;
use crate::backend::cpu::CpuBackend;
use crate::cpu::erf::erf_f64;
use crate::error::KernelError;
use crate::families;
use crate::shape::{DType, Element};
use crate::storage::View;
use crate::testing::{Buffer, assert_close, backends, noise};

type Formula = Box<dyn Fn(f64) -> f64>;

/// ln(1 + eˣ) without overflow.
fn softplus(x: f64) -> f64 {
    x.max(0.0) + (-x.abs()).exp().ln_1p()
}

/// The formula of a function, written without the table.
fn formula(f: Unary) -> Formula {
    use std::f64::consts::{FRAC_1_SQRT_2, PI};
    match f {
        Unary::Neg => Box::new(|x| -x),
        Unary::Abs => Box::new(f64::abs),
        Unary::Square => Box::new(|x| x * x),
        Unary::Sign => Box::new(|x| if x == 0.0 { 0.0 } else { x.signum() }),
        Unary::Floor => Box::new(f64::floor),
        Unary::Ceil => Box::new(f64::ceil),
        Unary::Round => Box::new(f64::round_ties_even),
        Unary::Exp => Box::new(f64::exp),
        Unary::Expm1 => Box::new(f64::exp_m1),
        Unary::Log => Box::new(f64::ln),
        Unary::Log1p => Box::new(f64::ln_1p),
        Unary::Sqrt => Box::new(f64::sqrt),
        Unary::Recip => Box::new(f64::recip),
        Unary::Rsqrt => Box::new(|x| 1.0 / x.sqrt()),
        Unary::Sin => Box::new(f64::sin),
        Unary::Cos => Box::new(f64::cos),
        Unary::Tanh => Box::new(f64::tanh),
        Unary::Erf => Box::new(erf_f64),
        Unary::Relu => Box::new(|x| x.max(0.0)),
        Unary::LeakyRelu(slope) => Box::new(move |x| if x < 0.0 { slope * x } else { x }),
        Unary::Elu(alpha) => Box::new(move |x| if x > 0.0 { x } else { alpha * x.exp_m1() }),
        Unary::Gelu => Box::new(|x| 0.5 * x * (1.0 + erf_f64(x * FRAC_1_SQRT_2))),
        Unary::GeluTanh => {
            Box::new(|x| 0.5 * x * (1.0 + ((2.0 / PI).sqrt() * (x + 0.044715 * x.powi(3))).tanh()))
        }
        Unary::Sigmoid => Box::new(|x| 1.0 / (1.0 + (-x).exp())),
        Unary::LogSigmoid => Box::new(|x| -softplus(-x)),
        Unary::Silu => Box::new(|x| x / (1.0 + (-x).exp())),
        Unary::Softplus => Box::new(softplus),
        Unary::Softsign => Box::new(|x| x / (1.0 + x.abs())),
        Unary::Mish => Box::new(|x| x * softplus(x).tanh()),
        Unary::Hardswish => Box::new(|x| x * (x + 3.0).clamp(0.0, 6.0) / 6.0),
        // As PyTorch's: NaN of -∞.
        Unary::Powf(0.5) => Box::new(f64::sqrt),
        Unary::Powf(-0.5) => Box::new(|x| 1.0 / x.sqrt()),
        Unary::Powf(exponent) => Box::new(move |x| x.powf(exponent)),
        Unary::Clamp(low, high) => Box::new(move |x| x.clamp(low.as_f64(), high.as_f64())),
        Unary::AddScalar(c) => Box::new(move |x| x + c.as_f64()),
        Unary::MulScalar(c) => Box::new(move |x| x * c.as_f64()),
        Unary::DivScalar(c) => Box::new(move |x| x / c.as_f64()),
    }
}

/// Every function of the table, and powers that have loops of their own, with formulas.
fn functions() -> Vec<(Unary, Formula)> {
    let powers = [1.0, 2.0, 3.0, 0.5, -0.5, -1.0, 1.5].map(Unary::Powf);
    let scalars = [Unary::Clamp(Scalar::Float(-1.25), Scalar::Int(1)), Unary::AddScalar(Scalar::Float(0.75))];
    let all = Unary::ALL.iter().copied().chain(powers).chain(scalars);
    all.map(|f| (f, formula(f))).collect()
}

/// Arguments at which the function is smooth.
fn arguments(f: Unary, count: usize) -> Vec<f64> {
    let ranges = f.smooth();
    let place = |(i, x): (usize, f64)| {
        let (low, high) = ranges[i % ranges.len()];
        low + (high - low) * (x + 1.0) / 2.0
    };
    noise(3, count).into_iter().enumerate().map(place).collect()
}

fn apply<T: Element>(backend: &CpuBackend, f: Unary, input: View<'_>) -> Vec<T> {
    let mut out = Buffer::output(input.layout().shape().dims(), T::DTYPE);
    backend.run(f.name(), families::Map { f, input, out: out.out() }).unwrap();
    out.values()
}

fn slope(backend: &CpuBackend, f: Unary, saved: View<'_>, grad: View<'_>) -> Vec<f64> {
    let mut out = Buffer::output(saved.layout().shape().dims(), DType::F64);
    backend.run(f.name(), families::MapGrad { f, saved, grad: Some(grad), out: out.out() }).unwrap();
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
fn every_function_agrees_with_its_formula_far_from_zero_and_at_kinks() {
    let backend = CpuBackend::new(1).unwrap();
    let sizes = [0.0, 0.25, 0.5, 1.0, 1.5, 3.0, 4.0, 7.5, 20.0, 100.0, 1e6, f64::INFINITY];
    let x: Vec<f64> = sizes.iter().flat_map(|&x| [x, -x]).collect();
    let single: Vec<f32> = x.iter().map(|&x| x as f32).collect();
    let same = |found: f64, expected: f64, tolerance: f64| {
        let near = (found - expected).abs() <= tolerance * expected.abs().max(1.0);
        found == expected || found.is_nan() && expected.is_nan() || near
    };
    for (f, formula) in functions() {
        let wide = apply::<f64>(&backend, f, Buffer::of(&[x.len()], &x).view());
        let narrow = apply::<f32>(&backend, f, Buffer::of(&[x.len()], &single).view());
        for ((&x, wide), narrow) in x.iter().zip(wide).zip(narrow) {
            let expected = formula(x);
            assert!(same(wide, expected, 1e-13), "{} of {x}: {wide} instead of {expected}", f.name());
            let expected = f64::from(expected as f32);
            assert!(
                same(narrow.into(), expected, 2e-6),
                "{} of {x}: {narrow} instead of {expected}",
                f.name()
            );
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
        let saved: Vec<f64> = if f.grad_reads_output() { x.into_iter().map(&formula).collect() } else { x };
        let narrow: Vec<f32> = saved.iter().map(|&x| x as f32).collect();
        let (wide_ones, ones) =
            (Buffer::of(&[1000], &[1.0_f64; 1000]), Buffer::of(&[1000], &[1.0_f32; 1000]));
        let expected = slope(&backend, f, Buffer::of(&[1000], &saved).view(), wide_ones.view());
        let mut out = Buffer::output(&[1000], DType::F32);
        let narrow = Buffer::of(&[1000], &narrow);
        backend
            .run(
                f.name(),
                families::MapGrad { f, saved: narrow.view(), grad: Some(ones.view()), out: out.out() },
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
    for f in [Unary::Sin, Unary::Cos] {
        let formula = formula(f);
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

/// Values and derivatives by mpmath.
#[test]
fn functions_keep_their_precision_near_zero_and_far_from_it() {
    const KNOWN: &[(Unary, f64, f64, f64)] = &[
        (Unary::Expm1, 9.5367431640625e-07, 9.536_747_711_537_455e-7, 1.000_000_953_674_771_2),
        (Unary::Expm1, -0.0009765625, -9.760_858_180_243_377e-4, 9.990_239_141_819_757e-1),
        (Unary::Expm1, -3.0, -9.502_129_316_321_36e-1, 4.978_706_836_786_394_4e-2),
        (Unary::Expm1, 10.0, 2.202_546_579_480_671_8e4, 2.202_646_579_480_671_8e4),
        (Unary::Log1p, 9.5367431640625e-07, 9.536_738_616_591_883e-7, 9.999_990_463_265_931e-1),
        (Unary::Log1p, -0.0009765625, -9.770_396_478_266_127e-4, 1.000_977_517_106_549_4),
        (Unary::Log1p, -0.875, -2.079_441_541_679_835_7, 8.0),
        (Unary::Log1p, 1000000.0, 1.381_551_155_796_377_4e1, 9.999_990_000_01e-7),
        (Unary::Erf, 9.5367431640625e-07, 1.076_106_230_826_540_4e-6, 1.128_379_167_094_486_3),
        (Unary::Erf, -0.0625, -7.043_197_772_238_707e-2, 1.123_980_033_625_390_7),
        (Unary::Erf, 0.75, 7.111_556_336_535_151e-1, 6.429_310_691_952_074e-1),
        (Unary::Erf, -2.0, -9.953_222_650_189_527e-1, 2.066_698_535_409_205_3e-2),
        (Unary::LogSigmoid, -80.0, -8.0e1, 1.0),
        (Unary::LogSigmoid, -0.0009765625, -6.936_355_810_192_302e-1, 5.002_441_406_055_974e-1),
        (Unary::LogSigmoid, 2.0, -1.269_280_110_429_725e-1, 1.192_029_220_221_175_6e-1),
        (Unary::LogSigmoid, 20.0, -2.061_153_620_314_381e-9, 2.061_153_618_190_203_7e-9),
        (Unary::Softsign, 9.5367431640625e-07, 9.536_734_069_124_156e-7, 9.999_980_926_540_957e-1),
        (Unary::Softsign, -0.5, -3.333_333_333_333_333e-1, 4.444_444_444_444_444e-1),
        (Unary::Softsign, 7.0, 8.75e-1, 1.562_5e-2),
        (Unary::Softsign, -1000000.0, -9.999_990_000_01e-1, 9.999_980_000_03e-13),
    ];
    let backend = CpuBackend::new(1).unwrap();
    for &(f, x, value, derivative) in KNOWN {
        let one = |x: f64| Buffer::of(&[1], &[x]);
        let near = |found: f64, right: f64, units: f64, epsilon: f64| {
            let most = units * epsilon * right.abs();
            assert!((found - right).abs() <= most, "{} of {x}: {found:e} instead of {right:e}", f.name());
        };
        let narrow = apply::<f32>(&backend, f, Buffer::of(&[1], &[x as f32]).view());
        near(f64::from(narrow[0]), value, 3.0, f64::from(f32::EPSILON));
        near(apply::<f64>(&backend, f, one(x).view())[0], value, 3.0, f64::EPSILON);
        let saved = one(if f.grad_reads_output() { value } else { x });
        near(slope(&backend, f, saved.view(), one(1.0).view())[0], derivative, 4.0, f64::EPSILON);
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
        backend.run("exp", families::Map { f: Unary::Exp, input: whole.view(), out: out.out() }),
        Err(KernelError::UnsupportedDType { op: "exp", dtype: DType::I64 })
    );
    let truth = Buffer::of(&[1], &[true]);
    let mut out = Buffer::output(&[1], DType::Bool);
    assert!(
        backend.run("neg", families::Map { f: Unary::Neg, input: truth.view(), out: out.out() }).is_err()
    );
}

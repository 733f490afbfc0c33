//! Tests of random elements.

use super::*;
use crate::backend::cpu::CpuBackend;
use crate::error::KernelError;
use crate::families;
use crate::shape::Element;
use crate::testing::{Buffer, backends};

const KEY: RandomKey = RandomKey { seed: 42, sequence: 3 };
const UNIT: Distribution = Distribution::Uniform { low: 0.0, high: 1.0 };
const NORMAL: Distribution = Distribution::Normal { mean: 0.0, std: 1.0 };

fn draw<T: Element>(
    backend: &CpuBackend,
    distribution: Distribution,
    key: RandomKey,
    count: usize,
) -> Vec<T> {
    let mut out = Buffer::output(&[count], T::DTYPE);
    backend.run("random", families::Random { distribution, key, out: out.out() }).unwrap();
    out.values()
}

fn one<T: Element>(distribution: Distribution, count: usize) -> Vec<T> {
    draw(&CpuBackend::new(1).unwrap(), distribution, KEY, count)
}

/// Mean and variance.
fn moments(values: &[f64]) -> (f64, f64) {
    let n = values.len() as f64;
    let mean = values.iter().sum::<f64>() / n;
    (mean, values.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / n)
}

fn wide(values: Vec<f32>) -> Vec<f64> {
    values.into_iter().map(f64::from).collect()
}

#[test]
fn elements_depend_only_on_the_key_and_their_index() {
    let coin = Distribution::Bernoulli { p: 0.3, value: 2.0 };
    for distribution in [UNIT, NORMAL, coin] {
        let long: (Vec<f32>, Vec<f64>) = (one(distribution, 20_001), one(distribution, 20_001));
        for backend in backends() {
            for count in [0, 1, 2, 3, 5, 4096, 4097, 20_001] {
                assert_eq!(draw::<f32>(&backend, distribution, KEY, count), long.0[..count]);
                assert_eq!(draw::<f64>(&backend, distribution, KEY, count), long.1[..count]);
            }
        }
    }
}

#[test]
fn different_keys_return_different_elements() {
    let backend = CpuBackend::new(1).unwrap();
    let base = draw::<f32>(&backend, UNIT, KEY, 100);
    for key in [RandomKey { seed: 43, ..KEY }, RandomKey { sequence: 4, ..KEY }] {
        let other = draw::<f32>(&backend, UNIT, key, 100);
        assert!(base.iter().zip(&other).filter(|(a, b)| a == b).count() < 3);
    }
}

#[test]
fn uniform_numbers_are_the_leading_bits_of_the_generator() {
    let words = philox::blocks::<1>(KEY, 1).map(|[word]| word);
    let expected =
        words.map(|word| (f64::from(word) / 2.0_f64.powi(32) * 2.0_f64.powi(24)).floor() / 2.0_f64.powi(24));
    assert_eq!(wide(one(UNIT, 8))[4..], expected);
    let pair = |low: u32, high: u32| {
        f64::from(high) / 2.0_f64.powi(32) + f64::from(low >> 11 << 11) / 2.0_f64.powi(64)
    };
    assert_eq!(one::<f64>(UNIT, 4)[2..], [pair(words[0], words[1]), pair(words[2], words[3])]);
}

#[test]
fn uniform_numbers_fill_their_range_evenly() {
    let range = Distribution::Uniform { low: -2.0, high: 6.0 };
    for values in [wide(one(range, 100_000)), one::<f64>(range, 100_000)] {
        assert!(values.iter().all(|x| (-2.0..6.0).contains(x)));
        let (mean, variance) = moments(&values);
        assert!((mean - 2.0).abs() < 0.05 && (variance - 64.0 / 12.0).abs() < 0.1, "{mean} {variance}");
        for eighth in 0..8 {
            let low = f64::from(eighth) - 2.0;
            let share = values.iter().filter(|&&x| (low..low + 1.0).contains(&x)).count();
            assert!((12_000..13_000).contains(&share), "{share}");
        }
    }
}

#[test]
fn uniform_ranges_exclude_their_upper_bound() {
    // Between these floats there are only a few, so most values are rounded.
    let (low, high) = (1.0, f64::from(1.0_f32.next_up().next_up()));
    let values = one::<f32>(Distribution::Uniform { low, high }, 10_000);
    assert!(values.iter().all(|&x| (1.0..high).contains(&f64::from(x))));
    assert!(values.contains(&1.0) && values.contains(&1.0_f32.next_up()));
    assert_eq!(one::<f32>(Distribution::Uniform { low: 3.0, high: 3.0 }, 4), [3.0; 4]);
}

#[test]
fn uniform_integers_are_equally_frequent() {
    let values = one::<i64>(Distribution::Uniform { low: -2.0, high: 3.0 }, 50_000);
    for value in -2..3 {
        let share = values.iter().filter(|&&x| x == value).count();
        assert!((9_500..10_500).contains(&share), "{value}: {share}");
    }
    assert!(values.iter().all(|x| (-2..3).contains(x)));
    let bytes = one::<u8>(Distribution::Uniform { low: 0.0, high: 256.0 }, 50_000);
    assert!((0..=255).all(|value| bytes.contains(&value)));
    let truths = one::<bool>(Distribution::Uniform { low: 0.0, high: 2.0 }, 10_000);
    assert!((4_800..5_200).contains(&truths.iter().filter(|&&x| x).count()));
}

#[test]
fn normal_samples_have_the_moments_and_tails_of_normals() {
    let shifted = Distribution::Normal { mean: 5.0, std: 2.0 };
    for values in [wide(one(shifted, 200_000)), one::<f64>(shifted, 200_000)] {
        let (mean, variance) = moments(&values);
        assert!((mean - 5.0).abs() < 0.03 && (variance - 4.0).abs() < 0.06, "{mean} {variance}");
        for (deviations, share) in [(1.0, 0.317_31), (2.0, 0.045_50), (3.0, 0.002_70)] {
            let beyond = values.iter().filter(|&&x| (x - 5.0).abs() > 2.0 * deviations).count();
            let expected = 200_000.0 * share;
            assert!((beyond as f64 - expected).abs() < 5.0 * f64::sqrt(expected), "{deviations}: {beyond}");
        }
        // The correlation of neighbors, which are the sine and cosine of one angle.
        let product: f64 = values.chunks_exact(2).map(|pair| (pair[0] - 5.0) * (pair[1] - 5.0)).sum();
        assert!((product / 100_000.0).abs() < 0.07, "{product}");
    }
}

#[test]
fn normal_elements_are_finite_for_extreme_bits() {
    for word in [0, u32::MAX] {
        assert!(<Normal as Draw<4>>::draw([[word; LANES]; 4]).as_flattened().iter().all(|x| x.is_finite()));
        assert!(<Normal as Draw<2>>::draw([[word; LANES]; 4]).as_flattened().iter().all(|x| x.is_finite()));
    }
}

#[test]
fn bernoulli_elements_have_their_probability() {
    for (p, range) in [(0.0, 0..1), (0.25, 24_000..26_000), (1.0, 100_000..100_001)] {
        let coin = Distribution::Bernoulli { p, value: 1.0 / 0.75 };
        let values = one::<f32>(coin, 100_000);
        assert!(values.iter().all(|&x| x == 0.0 || x == (1.0 / 0.75) as f32));
        assert!(range.contains(&values.iter().filter(|&&x| x != 0.0).count()), "{p}");
        let coin = Distribution::Bernoulli { p, value: 1.0 };
        assert!(range.contains(&one::<bool>(coin, 100_000).iter().filter(|&&x| x).count()), "{p}");
        assert!(range.contains(&one::<i64>(coin, 100_000).iter().filter(|&&x| x == 1).count()), "{p}");
    }
}

#[test]
fn normal_integers_are_an_error() {
    let backend = CpuBackend::new(1).unwrap();
    for dtype in [DType::I64, DType::U8, DType::Bool] {
        let mut out = Buffer::output(&[3], dtype);
        assert_eq!(
            backend.run("randn", families::Random { distribution: NORMAL, key: KEY, out: out.out() }),
            Err(KernelError::UnsupportedDType { op: "randn", dtype })
        );
    }
}

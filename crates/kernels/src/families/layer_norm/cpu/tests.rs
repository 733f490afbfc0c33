//! Tests of the normalization of rows whose mean is much larger than their deviation.

use half::{bf16, f16};

use crate::backend::cpu::CpuBackend;
use crate::families;
use crate::shape::Element;
use crate::testing::{Buffer, assert_close, noise};

/// The mean, in deviations.
const FAR: f64 = 1e4;

fn normalized<T: Element, S: Element>(dims: [usize; 2], values: &[T]) -> Vec<T> {
    let [rows, _] = dims;
    let input = Buffer::of(&dims, values);
    let mut out = Buffer::output(&dims, T::DTYPE);
    let mut statistics = Buffer::output(&[rows, 2], S::DTYPE);
    let kernel = families::NormalizeRows {
        centered: true,
        epsilon: 1e-5,
        input: input.view(),
        weight: None,
        bias: None,
        out: out.out(),
        statistics: statistics.out(),
    };
    CpuBackend::new(1).unwrap().run("norm", kernel).unwrap();
    out.values()
}

/// Normalizes the rows in f64.
fn expected(width: usize, values: &[f64]) -> Vec<f64> {
    let normal = |row: &[f64]| {
        let mean = row.iter().sum::<f64>() / width as f64;
        let variance = row.iter().map(|x| (x - mean) * (x - mean)).sum::<f64>() / width as f64;
        row.iter().map(|x| (x - mean) / (variance + 1e-5).sqrt()).collect::<Vec<_>>()
    };
    values.chunks(width).flat_map(normal).collect()
}

fn check<T: Element + Into<f64>, S: Element>(round: impl Fn(f64) -> T, tolerance: f64) {
    for dims @ [rows, width] in [[5, 8], [4, 768], [3, 5000]] {
        for scale in [1.0, 3.0] {
            // The deviation of the noise is 1/√3. One element of each row differs from the others also in 16 bits.
            let noise = noise(width as u64, rows * width).into_iter().enumerate();
            let values: Vec<T> = noise
                .map(|(i, x)| if i % width == 3 { 70.0 } else { 3f64.sqrt() * x })
                .map(|x| round(scale * (FAR + x)))
                .collect();
            let exact: Vec<f64> = values.iter().map(|&x| x.into()).collect();
            let found: Vec<f64> = normalized::<T, S>(dims, &values).into_iter().map(Into::into).collect();
            assert_close(&found, &expected(width, &exact), tolerance, &format!("{dims:?} of {}", T::DTYPE));
            // A constant row has no deviation, whatever its rounded sum is.
            let constant = vec![round(scale * FAR); rows * width];
            let found: Vec<f64> = normalized::<T, S>(dims, &constant).into_iter().map(Into::into).collect();
            assert!(found.iter().all(|&x| x == 0.0), "{dims:?} of {}", T::DTYPE);
        }
    }
}

#[test]
fn the_variance_of_rows_far_from_zero_is_exact() {
    // The mean is rounded to the type of the statistics, at a distance of up to half a unit: 5e-4 deviations in f32.
    check::<f32, f32>(|x| x as f32, 1e-3);
    check::<f64, f64>(|x| x, 1e-10);
    check::<f16, f32>(f16::from_f64, 2e-3);
    check::<bf16, f32>(bf16::from_f64, 1e-2);
}

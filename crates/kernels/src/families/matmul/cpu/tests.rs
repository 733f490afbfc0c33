//! Tests of the matrix products.

use ndarray::{Array2, ArrayView2};

use super::output::SLOTS;
use super::*;
use crate::backend::cpu::CpuBackend;
use crate::cpu::gemm::ROWS;
use crate::families::{self, Activated, Activation, Map};
use crate::shape::{DType, Element};
use crate::testing::{Buffer, assert_close, backends, noise};
use crate::workspace::Workspace;

fn product<T: Element>(backend: &CpuBackend, lhs: View<'_>, rhs: View<'_>) -> Vec<T> {
    applied(backend, [lhs, rhs], None, None)
}

/// The product with an optional bias and activation.
fn applied<T: Element>(
    backend: &CpuBackend,
    [lhs, rhs]: [View<'_>; 2],
    bias: Option<View<'_>>,
    function: Option<Activation>,
) -> Vec<T> {
    let (a, b) = (lhs.layout().shape(), rhs.layout().shape());
    let dims = a.with_dim(a.rank() - 1, b[b.rank() - 1]);
    let mut out = Buffer::output(dims.dims(), T::DTYPE);
    let request =
        families::MatMulWorkspace { lhs: lhs.layout(), rhs: rhs.layout(), dtype: lhs.dtype(), out: T::DTYPE };
    let bytes = request.cpu_bytes();
    let mut room = (bytes > 0).then(|| Buffer::output(&[bytes], DType::U8));
    let workspace = room.as_mut().map(Buffer::out);
    let activation = function.map(|function| Activated { function, arguments: None });
    let kernel = families::MatMul { bias, lhs, rhs, activation, workspace, out: out.out() };
    backend.run("matmul", kernel).unwrap();
    out.values()
}

fn single(values: &[f64]) -> Vec<f32> {
    values.iter().map(|&x| x as f32).collect()
}

/// The product with `ndarray`, in f64.
fn reference([m, k, n]: [usize; 3], a: &[f64], b: &[f64]) -> Vec<f64> {
    let (a, b) = (ArrayView2::from_shape((m, k), a).unwrap(), ArrayView2::from_shape((k, n), b).unwrap());
    let product: Array2<f64> = a.dot(&b);
    product.into_iter().collect()
}

#[test]
fn products_add_a_bias_of_any_layout() {
    let backend = CpuBackend::new(2).unwrap();
    // Small products; several panels and more than one depth block; batches; depth 0; no rows.
    for (stack, [m, k, n]) in [
        (&[][..], [4, 16, 16]),
        (&[], [5, 3, 7]),
        (&[], [300, 600, 130]),
        (&[3], [6, 5, 4]),
        (&[2, 2], [70, 40, 30]),
        (&[], [4, 0, 3]),
        (&[], [0, 4, 3]),
    ] {
        let of = |seed: u64, [rows, columns]: [usize; 2]| {
            let dims = [stack, &[rows, columns]].concat();
            Buffer::of(&dims, &noise(seed, dims.iter().product()))
        };
        let (lhs, rhs, bias) = (of(1, [m, k]), of(2, [k, n]), noise(3, n));
        let expected: Vec<f64> = product::<f64>(&backend, lhs.view(), rhs.view())
            .iter()
            .enumerate()
            .map(|(place, sum)| sum + bias[place % n])
            .collect();
        for bias in Buffer::arrangements(&[n], &bias) {
            let values = applied::<f64>(&backend, [lhs.view(), rhs.view()], Some(bias.view()), None);
            assert_close(&values, &expected, 1e-12, "matmul with a bias");
        }
    }
}

#[test]
fn workspaces_hold_the_panels_of_each_block() {
    let bytes = |dims: [&[usize]; 2], dtype, out| {
        let [lhs, rhs] = dims
            .map(|dims| Layout::contiguous("test", crate::shape::Shape::new(dims).unwrap(), dtype).unwrap());
        workspace(&lhs, &rhs, dtype, out)
    };
    // Simple loops multiply few floats of at least 32 bits, vectors, and integers.
    let few: [&[usize]; 2] = [&[4, 16], &[16, 16]];
    assert_eq!(bytes(few, DType::F32, DType::F32), 0);
    assert_eq!(bytes(few, DType::BF16, DType::BF16), 16 * (12 + 32) * 4);
    assert_eq!(bytes([&[1, 5000], &[5000, 300]], DType::BF16, DType::BF16), 0);
    assert_eq!(bytes([&[600, 300], &[300, 600]], DType::I64, DType::I64), 0);
    // One block of few elements; eight blocks of the largest panels.
    assert_eq!(bytes([&[64, 100], &[100, 40]], DType::F64, DType::F64), 100 * (72 + 64) * 8);
    let large: [&[usize]; 2] = [&[4096, 4096], &[4096, 4096]];
    assert_eq!(bytes(large, DType::F32, DType::F32), 8 * 256 * (192 + 512) * 4);
    assert_eq!(bytes(large, DType::BF16, DType::F32), bytes(large, DType::F32, DType::F32));
    // Products of 16-bit floats keep partial sums only if panels do not cover the depth.
    assert_eq!(bytes(large, DType::BF16, DType::BF16), 8 * (256 * (192 + 512) + 768 * 512) * 4);
    let flat: [&[usize]; 2] = [&[4096, 256], &[256, 4096]];
    assert_eq!(bytes(flat, DType::BF16, DType::BF16), 8 * 256 * (192 + 512) * 4);
    assert_eq!(bytes([&[0, 4, 3], &[0, 3, 4]], DType::F32, DType::F32), 0);
}

const SHAPES: &[[usize; 3]] = &[
    [1, 1, 1],
    [2, 3, 4],
    [4, 16, 16],
    [3, 8, 12],
    [1, 17, 5],
    [5, 17, 1],
    [1, 40, 1],
    [9, 1, 11],
    [7, 2, 300],
    [33, 31, 29],
    [64, 64, 64],
    [16, 500, 16],
    [130, 70, 90],
    [300, 3, 2],
    [3, 600, 100],
];

#[test]
fn products_agree_with_ndarray_in_every_layout() {
    let backend = CpuBackend::new(1).unwrap();
    for &shape in SHAPES {
        let [m, k, n] = shape;
        let (a, b) = (noise(1, m * k), noise(2, k * n));
        let expected = reference(shape, &a, &b);
        for lhs in Buffer::arrangements(&[m, k], &a) {
            for rhs in Buffer::arrangements(&[k, n], &b) {
                let values = product::<f64>(&backend, lhs.view(), rhs.view());
                assert_close(&values, &expected, 1e-13, "matmul");
            }
        }
        for lhs in Buffer::arrangements(&[m, k], &single(&a)) {
            for rhs in Buffer::arrangements(&[k, n], &single(&b)) {
                let values = product::<f32>(&backend, lhs.view(), rhs.view());
                assert_close(&values, &expected, 2e-5, "matmul");
            }
        }
    }
}

/// Products with several panels, odd sizes, and a shorter last panel.
const LARGE: &[[usize; 3]] = &[
    [257, 259, 261],
    [1000, 129, 131],
    [64, 800, 400],
    [33, 2050, 257],
    [4101, 1, 4100],
    [2049, 490, 17],
    [1, 3000, 5999],
];

#[test]
fn large_products_have_the_same_bits_for_any_number_of_threads() {
    for &shape in LARGE {
        let [m, k, n] = shape;
        let (a, b) = (noise(1, m * k), noise(2, k * n));
        let expected = reference(shape, &a, &b);
        let lhs = (Buffer::arrangements(&[m, k], &a), Buffer::arrangements(&[m, k], &single(&a)));
        let rhs = (Buffer::arrangements(&[k, n], &b), Buffer::arrangements(&[k, n], &single(&b)));
        for (i, j) in [(0, 0), (0, 1), (1, 0), (1, 1), (2, 3)] {
            let [first, others @ ..] = backends().map(|backend| {
                (
                    product::<f64>(&backend, lhs.0[i].view(), rhs.0[j].view()),
                    product::<f32>(&backend, lhs.1[i].view(), rhs.1[j].view()),
                )
            });
            assert!(others.iter().all(|other| *other == first), "{shape:?} {i} {j}");
            assert_close(&first.0, &expected, 1e-12, "matmul");
            assert_close(&first.1, &expected, 1e-4, "matmul");
        }
    }
}

/// Products of few elements and of vectors, with depths of one and of several panels.
const HALVES: &[[usize; 3]] = &[
    [1, 1, 1],
    [4, 16, 16],
    [1, 1500, 70],
    [70, 1500, 1],
    [1, 3, 2100],
    [3, 0, 5],
    [5, 17, 3],
    [33, 200, 65],
    [30, 700, 40],
    [800, 1700, 530],
];

/// Compares products of 16-bit floats in each layout with f64. `epsilon` is half of the distance from 1 to the next float.
fn compare_halves<T: Element>(of: fn(f64) -> T, to: fn(T) -> f64, epsilon: f64) {
    for &shape in HALVES {
        let [m, k, n] = shape;
        let rounded = |seed, len: usize| noise(seed, len).into_iter().map(of).collect::<Vec<T>>();
        let wide = |values: &[T]| values.iter().map(|&value| to(value)).collect::<Vec<f64>>();
        let (a, b, bias) = (rounded(1, m * k), rounded(2, k * n), rounded(3, n));
        let expected = reference(shape, &wide(&a), &wide(&b));
        let bias_values = wide(&bias);
        let biased: Vec<f64> =
            expected.iter().enumerate().map(|(at, sum)| sum + bias_values[at % n]).collect();
        let (lhs, rhs) = (Buffer::arrangements(&[m, k], &a), Buffer::arrangements(&[k, n], &b));
        let bias = Buffer::of(&[n], &bias);
        let pairs: &[(usize, usize)] =
            if m * k * n > 1 << 20 { &[(0, 0), (1, 1)] } else { &[(0, 0), (0, 1), (1, 0), (1, 1), (2, 3)] };
        for &(i, j) in pairs {
            let factors = [lhs[i].view(), rhs[j].view()];
            let [first, others @ ..] = backends().map(|backend| {
                let sums = applied::<f32>(&backend, factors, None, None);
                let values = applied::<T>(&backend, factors, Some(bias.view()), None);
                (sums, values, product::<T>(&backend, factors[0], factors[1]))
            });
            let what = format!("{shape:?} {i} {j}");
            assert!(others.iter().all(|other| *other == first), "{what}");
            let error = 1e-6 * (k as f64).sqrt();
            for (sum, expected) in first.0.iter().zip(&expected) {
                assert!((f64::from(*sum) - expected).abs() <= error, "{what}: {sum} {expected}");
            }
            // One rounding of the complete sum.
            for (values, expected) in [(&first.1, &biased), (&first.2, &expected)] {
                for (value, expected) in values.iter().zip(expected) {
                    let value = to(*value);
                    let bound = error + epsilon * (expected.abs() + error);
                    assert!((value - expected).abs() <= bound, "{what}: {value} {expected}");
                }
            }
        }
    }
}

#[test]
fn products_of_16_bit_floats_are_rounded_once() {
    compare_halves::<bf16>(bf16::from_f64, f64::from, 1.0 / 256.0);
    compare_halves::<f16>(f16::from_f64, f64::from, 1.0 / 2048.0);
}

#[test]
fn activations_of_16_bit_products_equal_those_of_the_rounded_products() {
    fn compare<T: Element>(of: fn(f64) -> T) {
        let backend = CpuBackend::new(1).unwrap();
        for [m, k, n] in [[1, 30, 40], [20, 30, 70], [3, 700, 33]] {
            let buffer = |seed, dims: [usize; 2]| {
                let values: Vec<T> = noise(seed, dims.iter().product()).into_iter().map(of).collect();
                Buffer::of(&dims, &values)
            };
            let (lhs, rhs) = (buffer(1, [m, k]), buffer(2, [k, n]));
            let factors = [lhs.view(), rhs.view()];
            let sums = Buffer::of(&[m, n], &product::<T>(&backend, factors[0], factors[1]));
            for function in Activation::ALL {
                let mut expected = Buffer::output(&[m, n], T::DTYPE);
                let map = Map { f: function.function(), input: sums.view(), out: expected.out() };
                backend.run("map", map).unwrap();
                let values = applied::<T>(&backend, factors, None, Some(function));
                assert_eq!(values, expected.values::<T>(), "{function:?} of {m} {k} {n}");
            }
        }
    }
    compare::<bf16>(bf16::from_f64);
    compare::<f16>(f16::from_f64);
}

#[test]
fn batched_products_support_broadcast_batches() {
    // Few large matrices, and many small ones.
    for (batch, shape) in [(7, [70, 130, 150]), (2200, [8, 20, 24])] {
        let [m, k, n] = shape;
        let dims = [2, batch, m, n];
        let a = noise(1, 2 * batch * m * k);
        let b = noise(2, batch * k * n);
        let expected: Vec<f64> = (0..2 * batch)
            .flat_map(|i| {
                let (left, right) = (&a[i * m * k..][..m * k], &b[i % batch * k * n..][..k * n]);
                reference(shape, left, right)
            })
            .collect();
        let lhs = Buffer::of(&[2, batch, m, k], &a);
        let rhs = Buffer::of(&[batch, k, n], &b);
        let [first, others @ ..] = backends()
            .map(|backend| product::<f64>(&backend, lhs.view(), rhs.broadcast(&[2, batch, k, n]).view()));
        assert_eq!(first.len(), dims.iter().product::<usize>());
        assert_close(&first, &expected, 1e-12, "matmul");
        assert!(others.iter().all(|other| *other == first));
    }
}

#[test]
fn every_layout_of_a_batch_is_multiplied() {
    let backend = CpuBackend::new(1).unwrap();
    let (a, b) = (noise(1, 2 * 3 * 4), noise(2, 2 * 4 * 5));
    let expected: Vec<f64> =
        (0..2).flat_map(|i| reference([3, 4, 5], &a[i * 12..][..12], &b[i * 20..][..20])).collect();
    for lhs in Buffer::arrangements(&[2, 3, 4], &a) {
        for rhs in Buffer::arrangements(&[2, 4, 5], &b) {
            assert_close(&product::<f64>(&backend, lhs.view(), rhs.view()), &expected, 1e-14, "matmul");
        }
    }
}

#[test]
fn products_support_broadcast_matrices() {
    let backend = CpuBackend::new(1).unwrap();
    let (row, column) =
        (Buffer::of(&[1, 3], &[1.0_f32, 2.0, 3.0]), Buffer::of(&[3, 1], &[1.0_f32, 10.0, 100.0]));
    let values = product::<f32>(&backend, row.broadcast(&[2, 3]).view(), column.broadcast(&[3, 2]).view());
    assert_eq!(values, [321.0; 4]);
}

#[test]
fn products_of_depth_zero_are_zero() {
    let backend = CpuBackend::new(1).unwrap();
    let (lhs, rhs) = (Buffer::of::<f32>(&[2, 0], &[]), Buffer::of::<f32>(&[0, 3], &[]));
    assert_eq!(product::<f32>(&backend, lhs.view(), rhs.view()), [0.0; 6]);
    let (lhs, rhs) = (Buffer::of::<f64>(&[0, 2], &[]), Buffer::of(&[2, 3], &[1.0; 6]));
    assert!(product::<f64>(&backend, lhs.view(), rhs.view()).is_empty());
    assert!(
        product::<f64>(&backend, lhs.broadcast(&[4, 0, 2]).view(), rhs.broadcast(&[4, 2, 3]).view())
            .is_empty()
    );
    let (lhs, rhs) = (Buffer::of::<f32>(&[0, 2, 2], &[]), Buffer::of::<f32>(&[0, 2, 2], &[]));
    assert!(product::<f32>(&backend, lhs.view(), rhs.view()).is_empty());
}

#[test]
fn nan_spreads_only_to_its_row_and_column() {
    let backend = CpuBackend::new(1).unwrap();
    let lhs = Buffer::of(&[2, 2], &[f32::NAN, 0.0, 1.0, 1.0]);
    let rhs = Buffer::of(&[2, 2], &[1.0_f32, 2.0, 3.0, 4.0]);
    let values = product::<f32>(&backend, lhs.view(), rhs.view());
    assert!(values[0].is_nan() && values[1].is_nan());
    assert_eq!(values[2..], [4.0, 6.0]);
}

#[test]
fn blocks_cover_the_output_and_share_the_work() {
    for [m, n] in [[1, 1], [12, 32], [1024, 512], [256, 4096], [64, 576], [5999, 3]] {
        for parts in 1..=SLOTS {
            let [rows, columns] = block_sizes([m, n], parts);
            let count = m.div_ceil(rows) * n.div_ceil(columns);
            // As many blocks as tiles allow.
            let most = m.div_ceil(ROWS) * n.div_ceil(COLUMNS);
            assert!(count >= parts.min(most) / 2 && count <= 2 * parts, "{m} {n} {parts}: {count}");
        }
    }
    assert_eq!(block_sizes([256, 4096], 4), [264, 1024]);
}

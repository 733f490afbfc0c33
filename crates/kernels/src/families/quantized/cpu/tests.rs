use super::*;
use crate::error::KernelError;
use crate::families::{MatMul, MatMulWorkspace};
use crate::shape::Element;
use crate::storage::ViewMut;
use crate::testing::{Buffer, assert_close, backends, noise};
use crate::workspace::Workspace;

/// A matrix of noise, quantized, and its dequantized values.
fn matrix(format: BlockFormat, rows: usize, columns: usize) -> (Buffer, Vec<f32>) {
    let values: Vec<f32> = noise(3, rows * columns).into_iter().map(|x| x as f32).collect();
    let bytes = format.row_bytes(columns).unwrap();
    let mut blocks = vec![0; rows * bytes];
    format.quantize(&values, &mut blocks);
    let mut dequantized = vec![0.0; rows * columns];
    format.dequantize(&blocks, &mut dequantized);
    (Buffer::of(&[rows, bytes], &blocks), dequantized)
}

/// A workspace of exactly the required bytes.
fn workspace(of: &impl Workspace) -> Option<Buffer> {
    let bytes = of.cpu_bytes();
    (bytes > 0).then(|| Buffer::output(&[bytes], DType::U8))
}

/// Products of all sizes and formats, with values of `T` that `round` rounds from f32.
fn products<T: Element + Into<f64>>(
    tolerance: f64,
    round: impl Fn(f64) -> T + Copy,
    of_matrix: impl Fn(f32) -> f64 + Copy,
) {
    for format in BlockFormat::ALL {
        for [m, n, k] in
            [[1_usize, 5_usize, 64], [1, 700, 576], [3, 40, 128], [17, 70, 1088], [90, 128, 192], [2, 3, 0]]
        {
            for transposed in [true, false] {
                // The columns of the matrix are whole blocks.
                let ([rows, columns], n) = if transposed {
                    ([n, k], n)
                } else {
                    ([k, n.next_multiple_of(64)], n.next_multiple_of(64))
                };
                let (blocks, dequantized) = matrix(format, rows, columns);
                let x: Vec<T> = noise(4, m * k).into_iter().map(round).collect();
                let bias: Vec<T> = noise(5, n).into_iter().map(round).collect();
                let value = |depth: usize, column: usize| {
                    let [row, column] = if transposed { [column, depth] } else { [depth, column] };
                    of_matrix(dequantized[row * columns + column])
                };
                let expected: Vec<f64> = (0..m * n)
                    .map(|at| {
                        let (row, column) = (at / n, at % n);
                        let sum: f64 =
                            (0..k).map(|depth| x[row * k + depth].into() * value(depth, column)).sum();
                        sum + bias[column].into()
                    })
                    .collect();
                let bias = Buffer::of(&[n], &bias);
                for (number, lhs) in Buffer::arrangements(&[m, k], &x).into_iter().enumerate() {
                    for backend in &backends() {
                        let mut out = Buffer::output(&[m, n], T::DTYPE);
                        let lhs = lhs.view();
                        let mut room = workspace(&MatMulQuantizedWorkspace {
                            lhs: lhs.layout(),
                            outputs: n,
                            transposed,
                            dtype: T::DTYPE,
                        });
                        let workspace: Option<ViewMut<'_>> = room.as_mut().map(Buffer::out);
                        let kernel = MatMulQuantized {
                            format,
                            transposed,
                            bias: Some(bias.view()),
                            lhs,
                            blocks: blocks.view(),
                            workspace,
                            out: out.out(),
                        };
                        backend.run("test", kernel).unwrap();
                        let what =
                            format!("{format}, {m} {n} {k}, transposed {transposed}, arrangement {number}");
                        assert_close(
                            &out.values::<T>(),
                            &expected,
                            tolerance * (k as f64).sqrt().max(1.0),
                            &what,
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn products_are_those_of_the_dequantized_matrix() {
    products::<f32>(1e-6, |x| x as f32, f64::from);
    products::<f64>(1e-14, |x| x, f64::from);
}

#[test]
fn products_of_16_bit_floats_are_summed_in_f32() {
    products::<f16>(1e-3, f16::from_f64, f64::from);
    products::<bf16>(8e-3, bf16::from_f64, f64::from);
}

/// Compares a product with that of the dequantized matrix, of elements that `round` rounds from f32.
fn compare_with_dense<T: Element>(round: fn(f32) -> T) {
    let [m, n, k] = [40, 96, 640];
    for format in BlockFormat::ALL {
        let (blocks, dequantized) = matrix(format, n, k);
        let x: Vec<T> = noise(9, m * k).into_iter().map(|x| round(x as f32)).collect();
        let dense: Vec<T> = dequantized.into_iter().map(round).collect();
        let (lhs, dense) = (Buffer::of(&[m, k], &x), Buffer::of(&[n, k], &dense));
        let [backend, ..] = backends();
        let (mut expected, mut out) = (Buffer::output(&[m, n], T::DTYPE), Buffer::output(&[m, n], T::DTYPE));
        let (lhs, dense) = (lhs.view(), dense.view());
        let transposed = dense.layout().transposed();
        let rhs = dense.with_layout(&transposed);
        let (dtype, out_dtype) = (T::DTYPE, T::DTYPE);
        let mut room =
            workspace(&MatMulWorkspace { lhs: lhs.layout(), rhs: rhs.layout(), dtype, out: out_dtype });
        let product = MatMul {
            bias: None,
            lhs,
            rhs,
            activation: None,
            workspace: room.as_mut().map(Buffer::out),
            out: expected.out(),
        };
        backend.run("test", product).unwrap();
        let of = MatMulQuantizedWorkspace { lhs: lhs.layout(), outputs: n, transposed: true, dtype };
        let mut room = workspace(&of);
        let product = MatMulQuantized {
            format,
            transposed: true,
            bias: None,
            lhs,
            blocks: blocks.view(),
            workspace: room.as_mut().map(Buffer::out),
            out: out.out(),
        };
        backend.run("test", product).unwrap();
        assert_eq!(out.values::<T>(), expected.values::<T>(), "{format}, {dtype}");
    }
}

#[test]
fn a_product_equals_the_dense_product_bit_for_bit() {
    compare_with_dense::<f32>(|value| value);
    compare_with_dense::<bf16>(bf16::from_f32);
}

#[test]
fn rows_are_dequantized_in_any_order() {
    for format in BlockFormat::ALL {
        let (blocks, dequantized) = matrix(format, 7, 640);
        let chosen = [6_i64, 0, 6, 3];
        let indices = Buffer::of(&[4], &chosen);
        for backend in &backends() {
            let mut all = Buffer::output(&[7, 640], DType::F32);
            let kernel = DequantizeRows { format, blocks: blocks.view(), indices: None, out: all.out() };
            backend.run("test", kernel).unwrap();
            assert_eq!(all.values::<f32>(), dequantized);
            let row = |row: i64| &dequantized[row as usize * 640..][..640];
            let expected: Vec<f32> = chosen.into_iter().flat_map(row).copied().collect();
            let mut out = Buffer::output(&[4, 640], DType::BF16);
            let (blocks, indices) = (blocks.view(), Some(indices.view()));
            backend.run("test", DequantizeRows { format, blocks, indices, out: out.out() }).unwrap();
            let rounded: Vec<bf16> = expected.iter().map(|&value| bf16::from_f32(value)).collect();
            assert_eq!(out.values::<bf16>(), rounded);
            let mut out = Buffer::output(&[4, 640], DType::F64);
            backend.run("test", DequantizeRows { format, blocks, indices, out: out.out() }).unwrap();
            assert!(out.values::<f64>().into_iter().zip(expected).all(|(a, b)| a == f64::from(b)));
            let beyond = Buffer::of(&[1], &[7_i64]);
            let mut out = Buffer::output(&[1, 640], DType::F32);
            let indices = Some(beyond.view());
            let refused = backend.run("test", DequantizeRows { format, blocks, indices, out: out.out() });
            assert_eq!(refused, Err(KernelError::IndexOutOfRange { op: "test", index: 7, len: 7 }));
        }
    }
}

#[test]
fn matrices_are_quantized_from_any_layout_and_type() {
    let (rows, columns) = (9, 1024);
    let values: Vec<f32> = noise(8, rows * columns).into_iter().map(|x| bf16::from_f64(x).to_f32()).collect();
    for format in BlockFormat::ALL {
        let bytes = format.row_bytes(columns).unwrap();
        let mut expected = vec![0; rows * bytes];
        format.quantize(&values, &mut expected);
        let halves: Vec<bf16> = values.iter().map(|&value| bf16::from_f32(value)).collect();
        let wide: Vec<f64> = values.iter().map(|&value| value.into()).collect();
        let inputs = Buffer::arrangements(&[rows, columns], &values).into_iter();
        let others = [Buffer::of(&[rows, columns], &halves), Buffer::of(&[rows, columns], &wide)];
        for input in inputs.chain(others) {
            for backend in &backends() {
                let mut out = Buffer::output(&[rows, bytes], DType::U8);
                backend.run("test", QuantizeRows { format, input: input.view(), out: out.out() }).unwrap();
                assert_eq!(out.values::<u8>(), expected, "{format}");
            }
        }
    }
}

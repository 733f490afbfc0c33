//! Tests of uploads, downloads, copies and fills.

use crate::backend::cpu::CpuBackend;
use crate::backend::{Backend, Checked};
use crate::error::KernelError;
use crate::families;
use crate::shape::{DType, Element, Scalar};
use crate::testing::{Buffer, backends, noise};

const DIMS: &[&[usize]] = &[&[], &[5], &[3, 4], &[2, 3, 4], &[0], &[3, 0, 2], &[1, 7, 1]];

fn cpu() -> CpuBackend {
    CpuBackend::new(1).unwrap()
}

/// Small integers that every element type represents.
fn small<T: Element>(dims: &[usize], convert: impl Fn(usize) -> T) -> Vec<T> {
    (0..dims.iter().product()).map(convert).collect()
}

fn round_trip<T: Element>(convert: impl Fn(usize) -> T) {
    for &dims in DIMS {
        let values = small(dims, &convert);
        let raw: Vec<T::Raw> = values.iter().map(|value| value.into_raw()).collect();
        let mut up = Buffer::output(dims, T::DTYPE);
        cpu().upload("from", bytemuck::cast_slice(&raw), up.out(), Checked::by_test()).unwrap();
        assert_eq!(up.values::<T>(), values);
        for buffer in Buffer::arrangements(dims, &values) {
            // Misaligned by one byte.
            let mut bytes = vec![0; size_of_val(raw.as_slice()) + 1];
            cpu().download("to", buffer.view(), &mut bytes[1..], Checked::by_test()).unwrap();
            assert_eq!(&bytes[1..], bytemuck::cast_slice::<_, u8>(&raw), "{dims:?}");
        }
    }
}

#[test]
fn uploads_and_downloads_use_logical_order() {
    round_trip::<f32>(|i| i as f32);
    round_trip::<f64>(|i| i as f64);
    round_trip::<i64>(|i| i as i64);
    round_trip::<u8>(|i| i as u8);
    round_trip::<bool>(|i| i % 3 == 0);
}

#[test]
fn a_transfer_of_the_wrong_length_is_an_error() {
    let mut buffer = Buffer::of(&[3], &[1.0_f32, 2.0, 3.0]);
    assert!(matches!(
        cpu().upload("from", &[0; 8], buffer.out(), Checked::by_test()),
        Err(KernelError::ElementCount { op: "from", elements: 2, .. })
    ));
    assert!(cpu().download("to", buffer.view(), &mut [0; 16], Checked::by_test()).is_err());
    assert_eq!(buffer.values::<f32>(), [1.0, 2.0, 3.0]);
}

/// Copies `values` from every layout to `B` and compares.
fn conversion<A: Element, B: Element>(values: &[A], expected: &[B]) {
    for dims in [vec![values.len()], vec![1, values.len(), 1]] {
        for buffer in Buffer::arrangements(&dims, values) {
            let mut out = Buffer::output(&dims, B::DTYPE);
            cpu().run("to_dtype", families::Copy { input: buffer.view(), out: out.out() }).unwrap();
            let actual: Vec<B> = out.values();
            // Compares text, so that NaN equals NaN.
            assert_eq!(format!("{actual:?}"), format!("{expected:?}"));
        }
    }
}

#[test]
fn floats_truncate_and_saturate_to_integers() {
    let values = [1.9, -1.9, 300.0, 1e30, -1e30, f64::NAN, 0.0];
    conversion(&values, &[1_i64, -1, 300, i64::MAX, i64::MIN, 0, 0]);
    conversion(&values, &[1_u8, 0, 255, 255, 0, 0, 0]);
    conversion(&values.map(|x| x as f32), &[1_i64, -1, 300, i64::MAX, i64::MIN, 0, 0]);
}

#[test]
fn nonzero_elements_become_true() {
    conversion(&[0.0, -0.0, 0.25, f64::NAN], &[false, false, true, true]);
    conversion(&[0.0_f32, 1e-40, -3.0], &[false, true, true]);
    conversion(&[0_i64, 256, -1], &[false, true, true]);
    conversion(&[0_u8, 1, 255], &[false, true, true]);
    conversion(&[true, false], &[1_i64, 0]);
    conversion(&[true, false], &[1.0_f32, 0.0]);
}

#[test]
fn other_conversions_round_to_nearest() {
    conversion(&[0.1_f64, 1e300], &[0.1_f32, f32::INFINITY]);
    conversion(&[0.5_f32, f32::NAN], &[0.5_f64, f64::NAN]);
    conversion(&[(1_i64 << 53) + 1, -2], &[9_007_199_254_740_992.0_f64, -2.0]);
    conversion(&[257_i64, -1], &[1_u8, 255]);
    conversion(&[200_u8], &[200_i64]);
}

#[test]
fn large_copies_do_not_depend_on_threads_or_layout() {
    let dims = [300, 401];
    let values: Vec<f32> = noise(1, 300 * 401).into_iter().map(|x| x as f32).collect();
    for backend in backends() {
        for buffer in Buffer::arrangements(&dims, &values) {
            let mut out = Buffer::output(&dims, DType::F32);
            backend.run("contiguous", families::Copy { input: buffer.view(), out: out.out() }).unwrap();
            assert_eq!(out.values::<f32>(), values);
        }
    }
}

#[test]
fn broadcast_elements_are_copied_repeatedly() {
    let row = Buffer::of(&[3], &[1_i64, 2, 3]);
    let mut out = Buffer::output(&[2, 3], DType::I64);
    cpu().run("expand", families::Copy { input: row.broadcast(&[2, 3]).view(), out: out.out() }).unwrap();
    assert_eq!(out.values::<i64>(), [1, 2, 3, 1, 2, 3]);
    let number = Buffer::of(&[], &[true]);
    let mut out = Buffer::output(&[2, 2], DType::U8);
    cpu().run("expand", families::Copy { input: number.broadcast(&[2, 2]).view(), out: out.out() }).unwrap();
    assert_eq!(out.values::<u8>(), [1; 4]);
}

#[test]
fn broadcast_elements_are_copied_from_any_start() {
    let values: Vec<i64> = (0..40_000).collect();
    let column = Buffer::of(&[values.len(), 1], &values);
    for times in [2, 3, 4, 5, 50] {
        let dims = [values.len(), times];
        let expected = values.iter().flat_map(|&value| std::iter::repeat_n(value, times));
        for backend in backends() {
            let mut out = Buffer::output(&dims, DType::I64);
            backend
                .run("expand", families::Copy { input: column.broadcast(&dims).view(), out: out.out() })
                .unwrap();
            assert!(out.values::<i64>().into_iter().eq(expected.clone()), "{times}");
        }
    }
}

#[test]
fn a_flip_reverses_only_the_given_axes() {
    let (rows, columns) = (300, 401);
    let values: Vec<i64> = (0..(rows * columns) as i64).collect();
    for axes in [[false, false], [false, true], [true, false], [true, true]] {
        let from = |size: usize, flipped: bool, index: usize| if flipped { size - 1 - index } else { index };
        let place = |i: usize| (from(rows, axes[0], i / columns), from(columns, axes[1], i % columns));
        let expected = (0..rows * columns).map(place).map(|(row, column)| values[row * columns + column]);
        for backend in backends() {
            for buffer in Buffer::arrangements(&[rows, columns], &values) {
                let mut out = Buffer::output(&[rows, columns], DType::I64);
                let flip = families::Flip { input: buffer.view(), axes: &axes, out: out.out() };
                backend.run("flip", flip).unwrap();
                assert!(out.values::<i64>().into_iter().eq(expected.clone()), "{axes:?}");
            }
        }
    }
    for dims in [&[][..], &[0], &[3, 0, 2], &[1, 7, 1]] {
        let values = small(dims, |i| i as i64);
        let mut out = Buffer::output(dims, DType::I64);
        let (input, axes) = (Buffer::of(dims, &values), &[true; 3][..dims.len()]);
        cpu().run("flip", families::Flip { input: input.view(), axes, out: out.out() }).unwrap();
        assert!(out.values::<i64>().into_iter().eq(values.into_iter().rev()));
    }
}

#[test]
fn a_fill_sets_every_element() {
    for backend in backends() {
        for dims in [&[][..], &[0], &[3, 5], &[70_000]] {
            let mut out = Buffer::output(dims, DType::F32);
            backend.run("full", families::Fill { value: Scalar::Float(2.5), out: out.out() }).unwrap();
            assert!(out.values::<f32>().iter().all(|&x| x == 2.5));
        }
    }
    let mut out = Buffer::output(&[2], DType::Bool);
    cpu().run("full", families::Fill { value: Scalar::Float(0.5), out: out.out() }).unwrap();
    assert_eq!(out.values::<bool>(), [true, true]);
    let mut out = Buffer::output(&[2], DType::I64);
    cpu().run("full", families::Fill { value: Scalar::Int(i64::MIN), out: out.out() }).unwrap();
    assert_eq!(out.values::<i64>(), [i64::MIN; 2]);
}

#[test]
fn a_range_of_floats_is_rounded_once_per_element() {
    let count = 100_000;
    let expected: Vec<f32> = (0..count).map(|i| (0.1 + f64::from(i) * 0.1) as f32).collect();
    for backend in backends() {
        let mut out = Buffer::output(&[count as usize], DType::F32);
        backend
            .run(
                "arange",
                families::Arange { start: Scalar::Float(0.1), step: Scalar::Float(0.1), out: out.out() },
            )
            .unwrap();
        assert_eq!(out.values::<f32>(), expected);
    }
}

#[test]
fn a_range_of_integers_is_exact_and_wraps() {
    let mut out = Buffer::output(&[3], DType::I64);
    cpu()
        .run(
            "arange",
            families::Arange { start: Scalar::Int(i64::MAX - 1), step: Scalar::Int(1), out: out.out() },
        )
        .unwrap();
    assert_eq!(out.values::<i64>(), [i64::MAX - 1, i64::MAX, i64::MIN]);
    let mut out = Buffer::output(&[3], DType::U8);
    cpu()
        .run("arange", families::Arange { start: Scalar::Int(254), step: Scalar::Int(1), out: out.out() })
        .unwrap();
    assert_eq!(out.values::<u8>(), [254, 255, 0]);
    let mut out = Buffer::output(&[0], DType::F64);
    cpu()
        .run("arange", families::Arange { start: Scalar::Int(0), step: Scalar::Int(1), out: out.out() })
        .unwrap();
    let mut out = Buffer::output(&[1], DType::Bool);
    let refused =
        cpu().run("arange", families::Arange { start: Scalar::Int(0), step: Scalar::Int(1), out: out.out() });
    assert_eq!(refused, Err(KernelError::UnsupportedDType { op: "arange", dtype: DType::Bool }));
}

#[test]
fn copies_into_slices_concatenate() {
    let (a, b) = ([1.0_f32, 2.0, 3.0, 4.0], [5.0_f32, 6.0]);
    for left in Buffer::arrangements(&[2, 2], &a) {
        for right in Buffer::arrangements(&[2, 1], &b) {
            let mut out = Buffer::output(&[2, 3], DType::F32);
            cpu()
                .run(
                    "cat",
                    families::CopyInto { input: left.view(), axis: 1, start: 0, step: 1, out: out.out() },
                )
                .unwrap();
            cpu()
                .run(
                    "cat",
                    families::CopyInto { input: right.view(), axis: 1, start: 2, step: 1, out: out.out() },
                )
                .unwrap();
            assert_eq!(out.values::<f32>(), [1.0, 2.0, 5.0, 3.0, 4.0, 6.0]);
        }
    }
}

#[test]
fn copies_with_a_step_keep_the_other_elements() {
    for values in Buffer::arrangements(&[2, 2], &[1_i64, 2, 3, 4]) {
        let mut out = Buffer::of(&[5, 2], &[0_i64; 10]);
        cpu()
            .run(
                "slice",
                families::CopyInto { input: values.view(), axis: 0, start: 1, step: 2, out: out.out() },
            )
            .unwrap();
        assert_eq!(out.values::<i64>(), [0, 0, 1, 2, 0, 0, 3, 4, 0, 0]);
    }
    let none = Buffer::of::<i64>(&[0, 2], &[]);
    let mut out = Buffer::of(&[1, 2], &[7_i64, 7]);
    cpu()
        .run("slice", families::CopyInto { input: none.view(), axis: 0, start: 1, step: 1, out: out.out() })
        .unwrap();
    assert_eq!(out.values::<i64>(), [7, 7]);
}

#[test]
fn copying_past_the_end_is_an_error_and_writes_nothing() {
    let values = Buffer::of(&[2], &[1_u8, 2]);
    for (start, step) in [(2, 1), (0, 3), (usize::MAX, 1), (0, usize::MAX), (0, 0)] {
        let mut out = Buffer::of(&[3], &[9_u8; 3]);
        assert!(
            cpu()
                .run("cat", families::CopyInto { input: values.view(), axis: 0, start, step, out: out.out() })
                .is_err()
        );
        assert_eq!(out.values::<u8>(), [9; 3]);
    }
    let mut out = Buffer::of(&[3, 3], &[9_u8; 9]);
    assert!(
        cpu()
            .run(
                "cat",
                families::CopyInto { input: values.view(), axis: 0, start: 0, step: 1, out: out.out() }
            )
            .is_err()
    );
}

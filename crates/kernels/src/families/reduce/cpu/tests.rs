//! Tests of the reductions.

use proptest::prelude::*;

use super::*;
use crate::backend::cpu::CpuBackend;
use crate::error::KernelError;
use crate::families;
use crate::shape::Element;
use crate::testing::{Buffer, assert_close, backends, noise, shape};
use crate::workspace::Workspace;

fn cpu() -> CpuBackend {
    CpuBackend::new(1).unwrap()
}

fn kept(dims: &[usize], axes: &[bool]) -> Vec<usize> {
    dims.iter().zip(axes).map(|(&size, &reduced)| if reduced { 1 } else { size }).collect()
}

fn reduced<T: Element>(backend: &CpuBackend, f: Reduce, input: View<'_>, axes: &[bool]) -> Vec<T> {
    divided(backend, (f, 1.0), input, axes)
}

fn divided<T: Element>(
    backend: &CpuBackend,
    (f, divisor): (Reduce, f64),
    input: View<'_>,
    axes: &[bool],
) -> Vec<T> {
    let whole = *input.layout().shape();
    let bytes = families::FoldWorkspace { shape: &whole, axes, dtype: T::DTYPE }.cpu_bytes();
    let mut workspace = (bytes > 0).then(|| Buffer::output(&[bytes], DType::U8));
    let mut out = Buffer::output(&kept(whole.dims(), axes), T::DTYPE);
    backend
        .run(
            f.name(),
            families::Fold {
                f,
                divisor,
                input,
                axes,
                workspace: workspace.as_mut().map(Buffer::out),
                out: out.out(),
            },
        )
        .unwrap();
    out.values()
}

/// A sequential reduction in f64.
fn plain(f: Reduce, dims: &[usize], axes: &[bool], values: &[f64]) -> Vec<f64> {
    let (start, fold): (f64, fn(f64, f64) -> f64) = match f {
        Reduce::Sum => (0.0, |a, b| a + b),
        Reduce::Prod => (1.0, |a, b| a * b),
        Reduce::Max => (f64::NEG_INFINITY, f64::max),
        Reduce::Min => (f64::INFINITY, f64::min),
        Reduce::SumMagnitudes => (0.0, |a, b| a + b.abs()),
        Reduce::SumSquares => (0.0, |a, b| a + b * b),
    };
    let out = Layout::contiguous("test", shape(&kept(dims, axes)), DType::F64).unwrap();
    let mut result = vec![start; out.shape().elements()];
    let places = out.broadcast_to("test", &shape(dims)).unwrap();
    places.positions().zip(values).for_each(|(place, &value)| result[place] = fold(result[place], value));
    result
}

fn masks(rank: usize) -> impl Iterator<Item = Vec<bool>> {
    (0..1_u32 << rank).map(move |mask| (0..rank).map(|axis| mask >> axis & 1 == 1).collect())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn every_set_of_axes_is_reduced_as_one_by_one(
        dims in prop::collection::vec(0_usize..7, 0..5),
        seed in any::<u64>(),
    ) {
        let values = noise(seed, dims.iter().product());
        for axes in masks(dims.len()) {
            for &f in Reduce::ALL {
                if f.requires_elements() && values.is_empty() {
                    continue;
                }
                let expected = plain(f, &dims, &axes, &values);
                let first = reduced::<f64>(&cpu(), f, Buffer::of(&dims, &values).view(), &axes);
                assert_close(&first, &expected, 1e-13, f.name());
                for buffer in Buffer::arrangements(&dims, &values) {
                    prop_assert_eq!(&reduced::<f64>(&cpu(), f, buffer.view(), &axes), &first);
                }
            }
        }
    }
}

/// Shapes and axes that cover all paths: few and many outputs, long and short sequences, one and several slabs, full and
/// partial tiles.
const LARGE: &[(&[usize], &[bool])] = &[
    (&[200_003], &[true]),
    (&[3, 70_001], &[false, true]),
    (&[70_001, 3], &[true, false]),
    (&[1000, 300], &[true, false]),
    (&[1000, 300], &[false, true]),
    (&[1000, 300], &[true, true]),
    (&[30, 40, 150], &[true, false, true]),
    (&[300, 3, 150], &[true, false, true]),
    (&[30, 40, 150], &[false, true, false]),
    (&[150, 40, 30], &[true, true, false]),
    (&[2, 3000, 31, 1], &[true, false, true, true]),
    (&[7, 5000, 1, 5], &[false, true, true, false]),
    (&[40, 5000], &[true, false]),
];

#[test]
fn large_reductions_do_not_depend_on_threads_or_layout() {
    for &(dims, axes) in LARGE {
        let values = noise(1, dims.iter().product());
        let single: Vec<f32> = values.iter().map(|&x| x as f32).collect();
        for &f in Reduce::ALL {
            let mut first: Option<Vec<f32>> = None;
            for backend in backends() {
                for buffer in Buffer::arrangements(dims, &single) {
                    let result = reduced::<f32>(&backend, f, buffer.view(), axes);
                    let first = first.get_or_insert_with(|| result.clone());
                    assert_eq!(*first, result, "{} of {dims:?} over {axes:?}", f.name());
                }
            }
            let exact: Vec<f64> = single.iter().map(|&x| f64::from(x)).collect();
            assert_close(&first.unwrap(), &plain(f, dims, axes, &exact), 2e-5, f.name());
        }
    }
}

/// Kept axes separate the rows of a sequence. In memory the rows may still be adjacent.
#[test]
fn adjacent_rows_have_the_bits_of_separate_rows() {
    let (dims, axes) = ([30, 20, 150], [true, false, true]);
    let values: Vec<f32> = noise(2, dims.iter().product()).iter().map(|&x| x as f32).collect();
    let separate = Buffer::of(&dims, &values);
    let adjacent =
        Buffer::arranged(&[20, 30, 150], &values, |layout| layout.permuted("permute", &[1, 0, 2]).unwrap());
    for &f in Reduce::ALL {
        let [separate, adjacent] =
            [&separate, &adjacent].map(|buffer| reduced::<f32>(&cpu(), f, buffer.view(), &axes));
        assert_eq!(separate, adjacent, "{}", f.name());
    }
}

/// Small contiguous inputs have separate code paths.
#[test]
fn small_reductions_have_the_same_bits_in_any_layout() {
    let backend = CpuBackend::new(1).unwrap();
    let cases: &[(&[usize], &[bool])] = &[
        (&[4, 16], &[true, false]),
        (&[15, 200], &[true, false]),
        (&[16, 7], &[true, false]),
        (&[3, 5, 6], &[true, true, false]),
        (&[3, 5, 6], &[false, true, false]),
        (&[4, 1], &[true, true]),
        (&[9, 11], &[true, true]),
        (&[5, 600], &[true, true]),
    ];
    for &(dims, axes) in cases {
        let values: Vec<f32> = noise(3, dims.iter().product()).iter().map(|&x| x as f32).collect();
        for &f in Reduce::ALL {
            let mut first: Option<Vec<f32>> = None;
            for buffer in Buffer::arrangements(dims, &values) {
                let result = reduced::<f32>(&backend, f, buffer.view(), axes);
                let first = first.get_or_insert_with(|| result.clone());
                assert_eq!(*first, result, "{} of {dims:?} over {axes:?}", f.name());
            }
        }
    }
}

#[test]
fn sums_in_single_precision_are_accurate() {
    // All terms have one sign, so that a sequential sum would be wrong in the third digit.
    for &(dims, axes) in LARGE {
        let values: Vec<f32> = noise(2, dims.iter().product()).into_iter().map(|x| 1.0 + x as f32).collect();
        let exact: Vec<f64> = values.iter().map(|&x| f64::from(x)).collect();
        let sums = reduced::<f32>(&cpu(), Reduce::Sum, Buffer::of(dims, &values).view(), axes);
        assert_close(&sums, &plain(Reduce::Sum, dims, axes, &exact), 1e-6, "sum");
    }
}

#[test]
fn integers_are_summed_exactly_and_wrap() {
    for &(dims, axes) in LARGE {
        let values: Vec<i64> =
            (0..dims.iter().product::<usize>() as i64).map(|i| i * i % 1009 - 500).collect();
        let wide: Vec<f64> = values.iter().map(|&x| x as f64).collect();
        for f in [Reduce::Sum, Reduce::Max, Reduce::Min] {
            let expected: Vec<i64> = plain(f, dims, axes, &wide).into_iter().map(|x| x as i64).collect();
            let buffer = Buffer::of(dims, &values);
            assert_eq!(reduced::<i64>(&CpuBackend::new(2).unwrap(), f, buffer.view(), axes), expected);
        }
    }
    let bytes = Buffer::of(&[3], &[200_u8, 100, 1]);
    assert_eq!(reduced::<u8>(&cpu(), Reduce::Max, bytes.view(), &[true]), [200]);
}

#[test]
fn a_nan_at_any_position_is_max_and_min() {
    for (dims, axes) in [(&[300][..], &[true][..]), (&[300, 5], &[true, false]), (&[5, 300], &[false, true])]
    {
        let count: usize = dims.iter().product();
        for place in [0, 7, count / 2, count - 1] {
            let mut values = vec![1.0_f64; count];
            values[place] = f64::NAN;
            for &f in Reduce::ALL {
                let result = reduced::<f64>(&cpu(), f, Buffer::of(dims, &values).view(), axes);
                assert_eq!(result.iter().filter(|x| x.is_nan()).count(), 1, "{} {place}", f.name());
            }
        }
    }
}

#[test]
fn infinities_are_max_and_min() {
    let low = Buffer::of(&[2], &[f32::NEG_INFINITY; 2]);
    assert_eq!(reduced::<f32>(&cpu(), Reduce::Max, low.view(), &[true]), [f32::NEG_INFINITY]);
    let least = Buffer::of(&[1], &[i64::MIN]);
    assert_eq!(reduced::<i64>(&cpu(), Reduce::Max, least.view(), &[true]), [i64::MIN]);
}

#[test]
fn empty_sums_are_zero() {
    for (dims, axes) in [
        (&[0][..], &[true][..]),
        (&[0, 3], &[true, false]),
        (&[3, 0], &[false, true]),
        (&[2, 0, 2], &[true; 3]),
    ] {
        let sums = reduced::<f32>(&cpu(), Reduce::Sum, Buffer::of::<f32>(dims, &[]).view(), axes);
        assert_eq!(sums, vec![0.0; kept(dims, axes).iter().product()]);
    }
    let none = Buffer::of::<f32>(&[0, 3], &[]);
    assert!(reduced::<f32>(&cpu(), Reduce::Max, none.view(), &[false, true]).is_empty());
}

#[test]
fn workspaces_are_small_relative_to_the_input() {
    for &(dims, axes) in LARGE {
        let whole = shape(dims);
        let bytes = workspace(&whole, axes, DType::F32);
        assert!(bytes * 16 <= whole.elements() * 4, "{dims:?} {axes:?}: {bytes}");
    }
    assert_eq!(workspace(&shape(&[100]), &[true], DType::F64), 0);
    assert_eq!(workspace(&shape(&[usize::MAX, usize::MAX, 0]), &[true; 3], DType::F64), 0);
}

#[test]
fn every_reduction_path_divides_for_means() {
    // One sequence; several sequences along rows and columns; several slabs.
    for (dims, axes) in [
        (&[7][..], &[true][..]),
        (&[5, 40], &[false, true]),
        (&[40, 300], &[true, false]),
        (&[300_000], &[true]),
        (&[4, 0], &[false, true]),
    ] {
        let values: Vec<f64> = noise(4, dims.iter().product());
        let input = Buffer::of(dims, &values);
        for f in [Reduce::Sum, Reduce::SumSquares] {
            let whole = reduced::<f64>(&cpu(), f, input.view(), axes);
            let shares = divided::<f64>(&cpu(), (f, 3.0), input.view(), axes);
            assert_eq!(shares, whole.iter().map(|sum| sum / 3.0).collect::<Vec<_>>());
        }
    }
    let none = Buffer::of::<f32>(&[2, 0], &[]);
    let means = divided::<f32>(&cpu(), (Reduce::Sum, 0.0), none.view(), &[false, true]);
    assert!(means.iter().all(|mean| mean.is_nan()));
}

#[test]
fn booleans_have_max_and_min_but_no_sum() {
    let buffer = Buffer::of(&[2, 2], &[false, true, false, false]);
    assert_eq!(reduced::<bool>(&cpu(), Reduce::Max, buffer.view(), &[false, true]), [true, false]);
    assert_eq!(reduced::<bool>(&cpu(), Reduce::Min, buffer.view(), &[true, false]), [false, false]);
    let mut out = Buffer::output(&[1, 1], DType::Bool);
    assert_eq!(
        cpu().run(
            "sum",
            families::Fold {
                f: Reduce::Sum,
                divisor: 1.0,
                input: buffer.view(),
                axes: &[true, true],
                workspace: None,
                out: out.out()
            }
        ),
        Err(KernelError::UnsupportedDType { op: "sum", dtype: DType::Bool })
    );
}

fn arg(largest: bool, input: View<'_>, axis: usize) -> Vec<i64> {
    let mut out = Buffer::output(input.layout().shape().with_dim(axis, 1).dims(), DType::I64);
    cpu().run("argmax", families::ArgReduce { largest, input, axis, out: out.out() }).unwrap();
    out.values()
}

#[test]
fn arg_reductions_return_the_first_of_equal_elements() {
    let buffer = Buffer::of(&[2, 4], &[1, 3, 3, 0, 5, 2, 2, 5_i64]);
    assert_eq!(arg(true, buffer.view(), 1), [1, 0]);
    assert_eq!(arg(false, buffer.view(), 1), [3, 1]);
    assert_eq!(arg(true, buffer.view(), 0), [1, 0, 0, 1]);
}

#[test]
fn arg_reductions_return_the_first_nan() {
    let buffer = Buffer::of(&[5], &[1.0, f32::NAN, 9.0, f32::NAN, -9.0]);
    assert_eq!(arg(true, buffer.view(), 0), [1]);
    assert_eq!(arg(false, buffer.view(), 0), [1]);
}

#[test]
fn arg_reductions_support_every_axis_and_layout() {
    let dims = [3, 4, 5];
    let values = noise(4, 60);
    for axis in 0..3 {
        let inner: usize = dims[axis + 1..].iter().product();
        let outer: usize = dims[..axis].iter().product();
        let mut expected = Vec::new();
        for line in 0..outer * inner {
            let start = line / inner * dims[axis] * inner + line % inner;
            let at = |i: usize| values[start + i * inner];
            expected.push((0..dims[axis]).max_by(|&i, &j| at(i).total_cmp(&at(j))).unwrap() as i64);
        }
        for buffer in Buffer::arrangements(&dims, &values) {
            assert_eq!(arg(true, buffer.view(), axis), expected);
        }
    }
    assert!(arg(true, Buffer::of::<f32>(&[0, 3], &[]).view(), 1).is_empty());
}

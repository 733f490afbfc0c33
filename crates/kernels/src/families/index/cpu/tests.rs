//! Tests of gather, scatter and one-hot.

use half::{bf16, f16};
use proptest::prelude::*;

use crate::backend::cpu::CpuBackend;
use crate::error::KernelError;
use crate::families;
use crate::shape::{DType, Element};
use crate::storage::View;
use crate::testing::{Buffer, backends, noise};

fn cpu() -> CpuBackend {
    CpuBackend::new(1).unwrap()
}

fn gather<T: Element>(backend: &CpuBackend, input: View<'_>, indices: View<'_>, axis: usize) -> Vec<T> {
    let mut out = Buffer::output(indices.layout().shape().dims(), T::DTYPE);
    backend.run("gather", families::Gather { input, indices, axis, out: out.out() }).unwrap();
    out.values()
}

fn scatter_add<T: Element>(input: View<'_>, indices: View<'_>, axis: usize, size: usize) -> Vec<T> {
    let mut out = Buffer::output(input.layout().shape().with_dim(axis, size).dims(), T::DTYPE);
    let kernel = families::ScatterAdd { input, indices, axis, workspace: None, out: out.out() };
    cpu().run("scatter_add", kernel).unwrap();
    out.values()
}

/// For each element of shape `dims`: its offset in the shape with `size` elements along `axis`, after its index along that
/// axis is replaced by the given index.
fn places(dims: &[usize], axis: usize, size: usize, indices: &[i64]) -> Vec<usize> {
    let inner: usize = dims[axis + 1..].iter().product();
    indices
        .iter()
        .enumerate()
        .map(|(i, &index)| i / (inner * dims[axis]) * size * inner + index as usize * inner + i % inner)
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn gather_and_scatter_follow_indices_in_every_layout(
        dims in prop::collection::vec(0_usize..5, 1..4),
        size in 1_usize..6,
        seed in any::<u64>(),
    ) {
        for axis in 0..dims.len() {
            let count: usize = dims.iter().product();
            let indices: Vec<i64> =
                noise(seed, count).iter().map(|x| ((x + 1.0) / 2.0 * size as f64) as i64).collect();
            let places = places(&dims, axis, size, &indices);
            let mut table_dims = dims.clone();
            table_dims[axis] = size;
            let table = noise(!seed, table_dims.iter().product());
            let values = noise(seed ^ 1, count);

            let gathered: Vec<f64> = places.iter().map(|&place| table[place]).collect();
            let mut scattered = vec![0.0; table.len()];
            places.iter().zip(&values).for_each(|(&place, value)| scattered[place] += value);
            for indices in Buffer::arrangements(&dims, &indices) {
                for table in Buffer::arrangements(&table_dims, &table) {
                    prop_assert_eq!(&gather::<f64>(&cpu(), table.view(), indices.view(), axis), &gathered);
                }
                for values in Buffer::arrangements(&dims, &values) {
                    prop_assert_eq!(
                        &scatter_add::<f64>(values.view(), indices.view(), axis, size),
                        &scattered
                    );
                }
            }
        }
    }
}

#[test]
fn gathered_rows_scatter_back() {
    // An embedding table of three rows, and a batch of four that repeats one row.
    let table = Buffer::of(&[3, 2], &[0.0_f32, 1.0, 10.0, 11.0, 20.0, 21.0]);
    let rows = Buffer::of(&[4, 1], &[2_i64, 0, 2, 1]);
    let indices = rows.broadcast(&[4, 2]);
    assert_eq!(
        gather::<f32>(&cpu(), table.view(), indices.view(), 0),
        [20.0, 21.0, 0.0, 1.0, 20.0, 21.0, 10.0, 11.0]
    );
    let grad = Buffer::of(&[4, 2], &[1.0_f32, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]);
    assert_eq!(scatter_add::<f32>(grad.view(), indices.view(), 0, 3), [3.0, 4.0, 7.0, 8.0, 6.0, 8.0]);
}

#[test]
fn large_gathers_are_the_same_for_any_number_of_threads() {
    let table = Buffer::of(&[50, 700], &noise(1, 35_000));
    let indices: Vec<i64> = (0..200_i64 * 700).map(|i| i * 31 % 50).collect();
    let indices = Buffer::of(&[200, 700], &indices);
    let [first, others @ ..] =
        backends().map(|backend| gather::<f64>(&backend, table.view(), indices.view(), 0));
    assert!(others.iter().all(|other| *other == first));
}

#[test]
fn booleans_can_be_gathered_but_not_scattered() {
    let input = Buffer::of(&[2], &[true, false]);
    let indices = Buffer::of(&[3], &[0_i64, 1, 0]);
    assert_eq!(gather::<bool>(&cpu(), input.view(), indices.view(), 0), [true, false, true]);
    let mut out = Buffer::output(&[2], DType::Bool);
    let values = Buffer::of(&[3], &[true; 3]);
    let (input, indices, workspace) = (values.view(), indices.view(), None);
    let kernel = families::ScatterAdd { input, indices, axis: 0, workspace, out: out.out() };
    assert_eq!(
        cpu().run("scatter_add", kernel),
        Err(KernelError::UnsupportedDType { op: "scatter_add", dtype: DType::Bool })
    );
}

#[test]
fn one_hot_marks_the_index_of_each_row() {
    for indices in Buffer::arrangements(&[2, 2], &[0_i64, 2, 1, 2]) {
        let mut out = Buffer::output(&[2, 2, 3], DType::F32);
        cpu().run("one_hot", families::OneHot { indices: indices.view(), out: out.out() }).unwrap();
        assert_eq!(out.values::<f32>(), [1.0, 0.0, 0.0, 0.0, 0.0, 1.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0]);
        let mut out = Buffer::output(&[2, 2, 3], DType::Bool);
        cpu().run("one_hot", families::OneHot { indices: indices.view(), out: out.out() }).unwrap();
        assert_eq!(out.values::<bool>().iter().filter(|&&hot| hot).count(), 4);
    }
    for backend in backends() {
        let indices: Vec<i64> = (0..5000).map(|i| i % 17).collect();
        let mut out = Buffer::output(&[5000, 17], DType::U8);
        backend
            .run(
                "one_hot",
                families::OneHot { indices: Buffer::of(&[5000], &indices).view(), out: out.out() },
            )
            .unwrap();
        assert!(out.values::<u8>().iter().enumerate().all(|(i, &hot)| (hot == 1) == (i / 17 % 17 == i % 17)));
    }
}

#[test]
fn an_index_out_of_range_is_an_error_and_writes_nothing() {
    let input = Buffer::of(&[4], &[1.0_f32; 4]);
    for bad in [-1, 4, i64::MAX, i64::MIN] {
        let refused = |op| Err(KernelError::IndexOutOfRange { op, index: bad, len: 4 });
        for indices in Buffer::arrangements(&[4], &[0_i64, 3, bad, 99]) {
            let mut out = Buffer::of(&[4], &[9.0_f32; 4]);
            assert_eq!(
                cpu().run(
                    "gather",
                    families::Gather {
                        input: input.view(),
                        indices: indices.view(),
                        axis: 0,
                        out: out.out()
                    }
                ),
                refused("gather")
            );
            assert_eq!(
                cpu().run(
                    "scatter",
                    families::ScatterAdd {
                        input: input.view(),
                        indices: indices.view(),
                        axis: 0,
                        workspace: None,
                        out: out.out()
                    }
                ),
                refused("scatter")
            );
            assert_eq!(out.values::<f32>(), [9.0; 4]);
            let mut out = Buffer::of(&[4, 4], &[9.0_f32; 16]);
            assert_eq!(
                cpu().run("one_hot", families::OneHot { indices: indices.view(), out: out.out() }),
                refused("one_hot")
            );
            assert_eq!(out.values::<f32>(), [9.0; 16]);
        }
    }
}

#[test]
fn empty_gathers_and_scatters_are_supported() {
    let (none, empty) = (Buffer::of::<i64>(&[0], &[]), Buffer::of::<f32>(&[0], &[]));
    assert!(gather::<f32>(&cpu(), empty.view(), none.view(), 0).is_empty());
    assert_eq!(scatter_add::<f32>(empty.view(), none.view(), 0, 3), [0.0; 3]);
    let mut out = Buffer::output(&[0, 0], DType::F32);
    cpu().run("one_hot", families::OneHot { indices: none.view(), out: out.out() }).unwrap();
    let zero = Buffer::of(&[1], &[0_i64]);
    let mut out = Buffer::output(&[1], DType::F32);
    assert!(
        cpu()
            .run(
                "gather",
                families::Gather { input: empty.view(), indices: zero.view(), axis: 0, out: out.out() }
            )
            .is_err()
    );
    let mut out = Buffer::output(&[1, 0], DType::F32);
    assert!(cpu().run("one_hot", families::OneHot { indices: zero.view(), out: out.out() }).is_err());
}

#[test]
fn half_precision_elements_are_added_in_f32() {
    // Rows that are longer than a block of converted elements, single elements, and many elements per index.
    for (dims, axis, size) in [([3, 700], 0, 4), ([4, 5], 1, 6), ([300, 7], 0, 2)] {
        let count = dims[0] * dims[1];
        let indices: Vec<i64> = (0..count as i64)
            .map(|i| if axis == 0 && dims[0] == 3 { i / 700 * 3 % 4 } else { i * 7 % 11 % size as i64 })
            .collect();
        let indices = match axis == 0 && dims[0] == 3 {
            true => Buffer::of(&[3, 1], &[indices[0], indices[700], indices[1400]]).broadcast(&dims),
            false => Buffer::of(&dims, &indices),
        };
        let noise = noise(3, count);
        let halves: Vec<bf16> = noise.iter().map(|&x| bf16::from_f64(x)).collect();
        let f16s: Vec<f16> = noise.iter().map(|&x| f16::from_f64(x)).collect();
        let floats = |values: Vec<f32>| {
            scatter_add::<f32>(Buffer::of(&dims, &values).view(), indices.view(), axis, size)
        };
        let expected = floats(halves.iter().map(|x| x.to_f32()).collect());
        assert_eq!(
            scatter_add::<f32>(Buffer::of(&dims, &halves).view(), indices.view(), axis, size),
            expected
        );
        let expected = floats(f16s.iter().map(|x| x.to_f32()).collect());
        assert_eq!(scatter_add::<f32>(Buffer::of(&dims, &f16s).view(), indices.view(), axis, size), expected);
    }
}

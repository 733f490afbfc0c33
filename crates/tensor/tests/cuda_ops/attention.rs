//! Compares tiled attention on the emulated CUDA device with attention on the CPU.

use crate::ops_table::counting::Counting;
use crate::ops_table::{computed_by, device, runtime};
use highwater_tensor::{AttentionOptions, DType, Device, Result, Rng, Tensor};

/// The kind of mask that hides keys from queries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Hidden {
    Nothing,
    Later,
    /// A boolean mask, the same for each head. It hides all keys from the second query.
    Some,
    /// A float mask, which the op adds to the scores. It has a gradient.
    Added,
}

/// Returns the result, and the gradients of queries, keys, values and the float mask. The sizes are
/// `[queries, keys, width, values]`.
fn results(
    device: &Device,
    [queries, keys, width, values]: [usize; 4],
    hidden: Hidden,
    dtype: DType,
) -> Result<Vec<Tensor>> {
    let rng = Rng::new(3);
    let numbers = |dims: [usize; 3]| Tensor::uniform(device, dims, -1.0, 1.0, &rng)?.to_dtype(dtype);
    let leaves = [[2, queries, width], [2, keys, width], [2, keys, values], [2, queries, keys]]
        .map(|dims| numbers(dims)?.requiring_grad());
    let [q, k, v, added] = leaves;
    let (q, k, v, added) = (q?, k?, v?, added?);
    let seen: Vec<bool> = (0..queries * keys).map(|at| at / keys != 1 && at % 5 != 2).collect();
    let seen = Tensor::from_slice(device, &seen, [1, queries, keys])?;
    let mask = match hidden {
        Hidden::Nothing | Hidden::Later => None,
        Hidden::Some => Some(&seen),
        Hidden::Added => Some(&added),
    };
    let options = AttentionOptions { causal: hidden == Hidden::Later, ..AttentionOptions::default() };
    let y = q.attention(&k, &v, mask, options)?;
    let upstream = Tensor::uniform(device, y.dims(), 0.5, 1.5, &rng)?.to_dtype(dtype)?;
    let gradients = y.mul(&upstream)?.sum_all()?.backward()?;
    let of_leaves = [&q, &k, &v, &added].map(|leaf| gradients.get(leaf).cloned());
    Ok(std::iter::once(y.detach()).chain(of_leaves.into_iter().flatten()).collect())
}

fn assert_as_on_the_cpu(device: &Device, sizes: [usize; 4], hidden: Hidden, dtype: DType, tolerance: f64) {
    let here = results(&runtime().cpu().unwrap(), sizes, hidden, dtype).unwrap();
    let there = results(device, sizes, hidden, dtype).unwrap();
    assert_eq!(here.len(), there.len());
    for (what, (here, there)) in here.iter().zip(&there).enumerate() {
        assert_tensors_are_close(here, there, tolerance, &format!("{sizes:?} {hidden:?} {dtype}, {what}"));
    }
}

fn assert_tensors_are_close(here: &Tensor, there: &Tensor, tolerance: f64, what: &str) {
    assert_eq!((here.dims(), here.dtype()), (there.dims(), there.dtype()));
    let values = |tensor: &Tensor| tensor.to_dtype(DType::F64).unwrap().to_vec::<f64>().unwrap();
    let (here, there) = (values(here), values(there));
    let largest = here.iter().fold(1e-6_f64, |most, a| most.max(a.abs()));
    for (i, (a, b)) in here.into_iter().zip(there).enumerate() {
        assert!((a - b).abs() <= tolerance * largest, "{what}, number {i}: {a} and {b}");
    }
}

#[test]
fn sizes_around_tile_edges_are_complete() {
    let device = device();
    let sizes = [[1, 1, 1, 1], [2, 65, 17, 64], [64, 64, 16, 3], [65, 63, 5, 65], [3, 130, 70, 1]];
    for sizes in sizes {
        for hidden in [Hidden::Nothing, Hidden::Later, Hidden::Some, Hidden::Added] {
            assert_as_on_the_cpu(&device, sizes, hidden, DType::F32, 1e-5);
        }
    }
    assert_as_on_the_cpu(&device, [70, 66, 18, 66], Hidden::Later, DType::F64, 1e-13);
}

#[test]
fn halves_are_multiplied_and_summed_in_floats() {
    for (dtype, tolerance) in [(DType::F16, 2e-3), (DType::BF16, 1.6e-2)] {
        for hidden in [Hidden::Later, Hidden::Some, Hidden::Added] {
            let compute = Counting::new(false);
            let device = computed_by(compute.clone());
            assert_as_on_the_cpu(&device, [66, 70, 20, 9], hidden, dtype, tolerance);
            // Whole packs, and several tiles of columns.
            assert_as_on_the_cpu(&device, [128, 64, 64, 64], hidden, dtype, tolerance);
            assert_as_on_the_cpu(&device, [40, 100, 72, 130], hidden, dtype, tolerance);
            let launched = compute.launched();
            assert!(launched.contains(&"attention_key_grad"));
            // The kernel reads 16-bit queries, keys and values directly: no conversion precedes it.
            let attention = launched.iter().position(|&kernel| kernel == "attention").unwrap();
            assert!(!launched[attention - 1].starts_with("to_f32"), "{dtype}");
        }
    }
}

/// Attention of four heads of queries to two heads of keys, which lie in a larger buffer.
fn grouped(device: &Device, [queries, keys]: [usize; 2], dtype: DType) -> Result<Vec<Tensor>> {
    let rng = Rng::new(9);
    let numbers = |dims: [usize; 4]| Tensor::uniform(device, dims, -1.0, 1.0, &rng)?.to_dtype(dtype);
    let query = numbers([2, 4, queries, 24])?.requiring_grad()?;
    let [key, value] = [24, 16].map(|width| numbers([2, 2, keys + 8, width])?.requiring_grad());
    let (key, value) = (key?, value?);
    let [keys_seen, values_seen] = [&key, &value].map(|room| room.slice(2, 8..));
    let options = AttentionOptions { causal: true, scale: Some(0.3) };
    let y = query.attention(&keys_seen?, &values_seen?, None, options)?;
    let gradients = y.square()?.sum_all()?.backward()?;
    let of_leaves = [&query, &key, &value].map(|leaf| gradients.get(leaf).cloned());
    Ok(std::iter::once(y.detach()).chain(of_leaves.into_iter().flatten()).collect())
}

#[test]
fn groups_of_heads_and_keys_in_a_larger_buffer() {
    let device = device();
    for (dtype, tolerance) in [(DType::F32, 1e-5), (DType::BF16, 1.6e-2)] {
        for sizes in [[1, 6], [3, 70], [70, 140], [140, 70]] {
            let here = grouped(&runtime().cpu().unwrap(), sizes, dtype).unwrap();
            let there = grouped(&device, sizes, dtype).unwrap();
            assert_eq!((here.len(), there.len()), (4, 4));
            for (here, there) in here.iter().zip(&there) {
                assert_tensors_are_close(here, there, tolerance, &format!("{sizes:?} {dtype}"));
            }
        }
    }
}

#[test]
fn sizes_of_nothing_are_no_work() {
    let device = device();
    for sizes in [[0, 3, 2, 2], [3, 0, 2, 2], [3, 3, 2, 0]] {
        for hidden in [Hidden::Nothing, Hidden::Later] {
            assert_as_on_the_cpu(&device, sizes, hidden, DType::F32, 1e-5);
        }
    }
}

#[test]
fn a_score_that_is_no_number_spoils_its_query_and_no_other() {
    let device = device();
    let mut numbers = vec![0.5_f32; 70 * 3];
    numbers[66 * 3] = f32::NAN;
    let q = Tensor::from_slice(&device, &numbers, [1, 70, 3]).unwrap();
    let k = Tensor::ones(&device, [1, 70, 3]).unwrap();
    let v =
        Tensor::arange(&device, 0, 70).unwrap().to_dtype(DType::F32).unwrap().reshape([1, 70, 1]).unwrap();
    let y = q.attention(&k, &v, None, AttentionOptions::default()).unwrap().to_vec::<f32>().unwrap();
    for (query, y) in y.into_iter().enumerate() {
        assert!(if query == 66 { y.is_nan() } else { (y - 34.5).abs() < 1e-3 }, "{query}: {y}");
    }
}

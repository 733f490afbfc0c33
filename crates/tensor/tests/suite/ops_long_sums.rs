//! Sums of many equal elements, whose exact values are known. Adding them one after another in f32 gives 100,958 for a
//! million times 0.1, and stops at 16,777,216 for ones.

use highwater_tensor::{DType, Device, IntoShape, Norm, Reduction, Result, Rng, Tensor};

use crate::ops_table::device;

/// Whether the emulator of CUDA kernels computes, which takes longer.
const IS_EMULATED: bool = env!("CARGO_CRATE_NAME").as_bytes()[0] == b'c';

const COUNT: usize = if IS_EMULATED { 100_000 } else { 1_000_000 };

/// 0.1 in f32.
const TENTH: f64 = 0.1_f32 as f64;

/// The relative error of a pairwise sum.
const PAIRWISE: f64 = 2e-6;

/// The relative error of a matrix product, which sums the products of a panel one after another. The emulator does so along
/// the whole depth.
const PRODUCT: f64 = if IS_EMULATED { 1e-3 } else { 2e-5 };

fn tenths(device: &Device, shape: impl IntoShape) -> Tensor {
    Tensor::full(device, shape, 0.1).unwrap()
}

fn values(x: &Tensor) -> Vec<f64> {
    x.to_dtype(DType::F64).unwrap().to_vec().unwrap()
}

fn assert_near(what: &str, found: &Tensor, expected: f64, tolerance: f64) {
    for value in values(found) {
        let error = (value - expected).abs();
        assert!(error <= tolerance * expected.abs(), "{what}: {value} instead of {expected}");
    }
}

#[test]
fn cumulative_sums_and_their_gradients_round_each_sum_once() {
    let device = device();
    let exact = |count: usize| (TENTH * count as f64) as f32;
    let sums = tenths(&device, COUNT).cumsum(0).unwrap().to_vec::<f32>().unwrap();
    assert_eq!(sums[COUNT - 1], COUNT as f32 / 10.0);
    assert!((1..).zip(&sums).all(|(count, &sum)| sum == exact(count)));
    if !IS_EMULATED {
        let ones = Tensor::ones(&device, 20_000_000).unwrap();
        assert_eq!(ones.cumsum(-1).unwrap().at(-1).unwrap().item::<f32>().unwrap(), 20_000_000.0);
    }
    // Along rows, columns and a strided axis of a view with an offset.
    for (shape, axis) in [([2, COUNT / 2], -1), ([COUNT / 2, 2], 0), ([COUNT / 2, 2], -2)] {
        let x = tenths(&device, shape).requiring_grad().unwrap();
        let sums = x.cumsum(axis).unwrap();
        let count = COUNT / 2;
        assert_near("cumsum", &sums.max_all().unwrap(), f64::from(exact(count)), 0.0);
        // The gradient of the first element is the sum of all gradients.
        let gradients = sums.mul_scalar(0.1).unwrap().sum_all().unwrap().backward().unwrap();
        let first = gradients.get(&x).unwrap().max_all().unwrap();
        assert_near("gradient", &first, f64::from(exact(count)), 0.0);
    }
    let view = tenths(&device, [COUNT / 4, 3]).slice(1, 1..2).unwrap().transpose(0, 1).unwrap();
    let last = view.cumsum(1).unwrap().at([0, COUNT / 4 - 1]).unwrap();
    assert_near("view", &last, f64::from(exact(COUNT / 4)), 0.0);
    assert_eq!(tenths(&device, [3, 0]).cumsum(-1).unwrap().dims(), [3, 0]);
    assert_eq!(tenths(&device, [0, 3]).cumsum(-1).unwrap().dims(), [0, 3]);
}

#[test]
fn cumulative_sums_of_16_bit_floats_are_rounded_once() {
    let device = device();
    for (dtype, digits) in [(DType::BF16, 8), (DType::F16, 11)] {
        let x = tenths(&device, 100_000).to_dtype(dtype).unwrap();
        let element = values(&x)[0];
        let sums = x.cumsum(0).unwrap();
        assert_eq!(sums.dtype(), dtype);
        assert_near("cumsum", &sums.at(-1).unwrap(), element * 1e5, 0.5_f64.powi(digits));
    }
}

#[test]
fn a_sum_that_leaves_the_range_comes_back() {
    let device = device();
    let x = Tensor::from_slice(&device, &[3e38f32, 3e38, -3e38], 3).unwrap();
    assert_eq!(x.cumsum(0).unwrap().to_vec::<f32>().unwrap(), [3e38, f32::INFINITY, 3e38]);
    let zero = Tensor::from_slice(&device, &[-0.0f32, -0.0], [2, 1]).unwrap();
    for axis in [0, 1] {
        let sums = zero.cumsum(axis).unwrap().to_vec::<f32>().unwrap();
        assert!(sums.iter().all(|sum| sum.is_sign_positive()), "as PyTorch");
    }
}

#[test]
fn reductions_of_all_axes_and_layouts_are_pairwise() {
    let device = device();
    let count = COUNT as f64;
    type Reduce = fn(&Tensor, isize) -> Result<Tensor>;
    let reductions: &[(&str, Reduce, f64)] = &[
        ("sum", |x, axis| x.sum(axis), TENTH * count),
        ("mean", |x, axis| x.mean(axis), TENTH),
        ("norm", |x, axis| x.norm(Norm::L2, axis), (TENTH * TENTH * count).sqrt()),
        ("norm 1", |x, axis| x.norm(Norm::L1, axis), TENTH * count),
        ("logsumexp", |x, axis| x.logsumexp(axis), TENTH + count.ln()),
    ];
    for &(name, reduce, expected) in reductions {
        for (x, axis) in [
            (tenths(&device, COUNT), 0),
            (tenths(&device, [2, COUNT]), 1),
            (tenths(&device, [COUNT, 3]), 0),
            (tenths(&device, [COUNT, 3]).transpose(0, 1).unwrap(), -1),
            (tenths(&device, [COUNT, 2, 2]).slice(1, 1..2).unwrap(), 0),
            (tenths(&device, [1]).broadcast_to([COUNT]).unwrap(), 0),
        ] {
            assert_near(name, &reduce(&x, axis).unwrap(), expected, PAIRWISE);
            let spread = values(&x.var(axis, 1).unwrap()).into_iter().fold(0.0, f64::max);
            assert!(spread < 1e-12, "variance {spread} of equal elements");
        }
    }
}

#[test]
fn rows_and_columns_of_layers_are_summed_accurately() {
    let count = COUNT as f64;
    let device = device();
    assert_near("softmax", &tenths(&device, COUNT).softmax(-1).unwrap(), 1.0 / count, 1e-5);
    let logits = tenths(&device, [1, COUNT]);
    let target = Tensor::from_slice(&device, &[7i64], 1).unwrap();
    assert_near("cross entropy", &logits.cross_entropy(&target).unwrap(), count.ln(), PAIRWISE);
    // The mean over many rows.
    let targets = Tensor::zeros_of(&device, COUNT, DType::I64).unwrap();
    let loss = tenths(&device, [COUNT, 2]).cross_entropy(&targets).unwrap();
    assert_near("mean of losses", &loss, 2_f64.ln(), PAIRWISE);
    let zero = Tensor::zeros(&device, COUNT).unwrap();
    for loss in [
        tenths(&device, COUNT).l1_loss_with(&zero, Reduction::Sum).unwrap(),
        tenths(&device, COUNT).huber_loss_with(&zero, 1.0, Reduction::Sum).unwrap().mul_scalar(20.0).unwrap(),
    ] {
        assert_near("sum of losses", &loss, TENTH * count, 2.0 * PAIRWISE);
    }
    assert_near(
        "dot",
        &tenths(&device, [1, COUNT]).matmul(&tenths(&device, [COUNT, 1])).unwrap(),
        TENTH * TENTH * count,
        PRODUCT,
    );
    // The gradient of a bias, of a broadcast operand, and of a weight.
    let bias = Tensor::zeros(&device, 2).unwrap().requiring_grad().unwrap();
    let weight = Tensor::zeros(&device, [2, 2]).unwrap().requiring_grad().unwrap();
    let y = tenths(&device, [COUNT, 2]).linear(&weight, &bias).unwrap();
    let gradients = y.mul_scalar(0.1).unwrap().sum_all().unwrap().backward().unwrap();
    assert_near("bias", gradients.get(&bias).unwrap(), TENTH * count, PAIRWISE);
    assert_near("weight", gradients.get(&weight).unwrap(), TENTH * TENTH * count, PRODUCT);
    // Normalizations of rows and channels: the first half of the elements differs from the second.
    let halves = Tensor::concat(
        &[&tenths(&device, [1, COUNT / 2]), &Tensor::ones(&device, [1, COUNT / 2]).unwrap()],
        1,
    );
    let x = halves.unwrap();
    let expected = x.layer_norm(None, 0.0).unwrap();
    assert_near("layer norm", &expected.abs().unwrap(), 1.0, 1e-5);
    let pooled = tenths(&device, [1, 1, 300, 300]).avg_pool2d(300).unwrap();
    assert_near("mean pool", &pooled, TENTH, 2e-5);
}

#[test]
fn many_elements_with_one_index_are_summed_accurately() {
    let device = device();
    let index = Tensor::zeros_of(&device, COUNT, DType::I64).unwrap();
    for (shape, axis) in [(vec![COUNT], 0), (vec![COUNT, 2], 0), (vec![2, COUNT], 1)] {
        let mut to = shape.clone();
        to[axis] = 3;
        let table = Tensor::zeros(&device, to.as_slice()).unwrap().requiring_grad().unwrap();
        let chosen = table.index_select(axis as isize, &index).unwrap();
        let gradients = chosen.mul_scalar(0.1).unwrap().sum_all().unwrap().backward().unwrap();
        let largest = gradients.get(&table).unwrap().max_all().unwrap();
        assert_near("gradient of rows", &largest, TENTH * COUNT as f64, PAIRWISE);
    }
}

#[test]
fn sums_of_different_elements_are_accurate() {
    let device = device();
    let x = Tensor::uniform(&device, COUNT, 0.0, 1.0, &Rng::new(1)).unwrap();
    let exact = values(&x).iter().sum::<f64>();
    assert_near("sum", &x.sum_all().unwrap(), exact, PAIRWISE);
    assert_near("cumsum", &x.cumsum(0).unwrap().at(-1).unwrap(), exact, 1e-7);
}

#[test]
fn ranges_compute_each_element() {
    let device = device();
    let x = Tensor::arange_step(&device, 0.0, COUNT as f64 / 10.0, 0.1).unwrap();
    let last = values(&x.at(-1).unwrap())[0];
    assert!((last - (COUNT as f64 / 10.0 - 0.1)).abs() < 0.01, "{last}");
    let x = Tensor::linspace(&device, 0.0, COUNT as f64 / 10.0, COUNT + 1).unwrap();
    assert_near("linspace", &x.at(COUNT as isize - 1).unwrap(), COUNT as f64 / 10.0 - 0.1, 1e-7);
}

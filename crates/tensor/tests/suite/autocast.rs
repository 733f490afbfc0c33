//! Autocast: products of f32 tensors in bf16, their gradients, the guard, and the memory of the rounded copies.

use std::thread;

use crate::ops_table::{device, dry_device};
use highwater_tensor::{
    Activation, AttentionOptions, Conv1dOptions, Conv2dOptions, CrossEntropyOptions, DType, Device, Error,
    Padding, Result, Rng, Tensor, autocast, checkpoint, no_grad,
};
use highwater_tracking::Report;

/// An op on two factors, with gradients for both.
type Product = fn(&Tensor, &Tensor) -> Result<Tensor>;

const STRIDED: Conv2dOptions =
    Conv2dOptions { stride: [2, 1], padding: Padding::Zeros([1, 2]), ..Conv2dOptions::padded(1) };

/// Products and convolutions with the shapes of their factors.
const PRODUCTS: &[(&str, &[usize], &[usize], Product)] = &[
    ("matmul", &[7, 33], &[33, 5], |x, w| x.matmul(w)),
    ("a large matmul", &[130, 300], &[300, 140], |x, w| x.matmul(w)),
    ("transposed factors", &[33, 7], &[5, 33], |x, w| x.t()?.matmul(&w.t()?)),
    ("a stack of products", &[2, 3, 7, 5], &[2, 3, 5, 4], |x, w| x.matmul(w)),
    ("a repeated factor", &[3, 7, 5], &[2, 1, 5, 4], |x, w| x.matmul(w)),
    ("a vector", &[33], &[33, 5], |x, w| x.matmul(w)),
    ("a slice", &[9, 40], &[33, 5], |x, w| x.slice(0, 1..8)?.slice(1, 3..36)?.matmul(w)),
    ("linear", &[7, 33], &[33, 5], |x, w| x.linear(w, &w.detach().sum(0)?.mul_scalar(0.0)?)),
    ("conv2d", &[2, 3, 8, 9], &[4, 3, 3, 3], |x, w| x.conv2d(w, Conv2dOptions::padded(1))),
    ("a strided conv2d", &[2, 6, 8, 9], &[4, 3, 3, 2], |x, w| {
        x.conv2d(w, Conv2dOptions { groups: 2, ..STRIDED })
    }),
    ("a pointwise conv2d", &[2, 20, 8, 9], &[16, 20, 1, 1], |x, w| x.conv2d(w, Conv2dOptions::padded(0))),
    ("conv1d", &[2, 3, 20], &[16, 3, 5], |x, w| x.conv1d(w, Conv1dOptions::same())),
    ("conv_transpose2d", &[2, 3, 4, 5], &[3, 4, 3, 2], |x, w| x.conv_transpose2d(w, STRIDED)),
];

fn values(tensor: &Tensor) -> Vec<f64> {
    tensor.to_dtype(DType::F64).unwrap().to_vec().unwrap()
}

fn rounded(tensor: &Tensor) -> Tensor {
    tensor.to_dtype(DType::BF16).unwrap().to_dtype(tensor.dtype()).unwrap()
}

/// Values that bf16 does not represent.
fn noise(device: &Device, dims: &[usize], seed: u64) -> Tensor {
    Tensor::normal(device, dims, 0.0, 1.0, &Rng::new(seed)).unwrap()
}

/// Returns the result of an op and its gradients for an upstream gradient that bf16 represents.
fn run(product: Product, factors: [&Tensor; 2]) -> [Vec<f64>; 3] {
    let [x, w] = factors.map(|factor| factor.detach().requiring_grad().unwrap());
    let y = product(&x, &w).unwrap();
    let upstream = rounded(&noise(y.device(), y.dims(), 9)).to_dtype(y.dtype()).unwrap();
    let gradients = y.mul(&upstream).unwrap().sum_all().unwrap().backward().unwrap();
    [values(&y), values(gradients.get(&x).unwrap()), values(gradients.get(&w).unwrap())]
}

/// The largest difference, relative to the largest value.
fn difference(found: &[f64], expected: &[f64]) -> f64 {
    assert_eq!(found.len(), expected.len());
    let largest = expected.iter().fold(0.0_f64, |largest, value| largest.max(value.abs()));
    let apart = found.iter().zip(expected).map(|(found, expected)| (found - expected).abs());
    apart.fold(0.0, f64::max) / largest
}

#[test]
fn products_round_their_factors_to_bf16_and_sum_in_f32() {
    let device = device();
    for &(name, first, second, product) in PRODUCTS {
        let (x, w) = (noise(&device, first, 1), noise(&device, second, 2));
        let exact = [&x, &w].map(|factor| rounded(factor).to_dtype(DType::F64).unwrap());
        let expected = run(product, exact.each_ref());
        let plain = run(product, [&x, &w]);
        let found = {
            let _autocast = autocast(DType::BF16).unwrap();
            run(product, [&x, &w])
        };
        for ((found, expected), plain) in found.iter().zip(&expected).zip(&plain) {
            assert!(difference(found, expected) < 1e-5, "{name}: {}", difference(found, expected));
            assert!(difference(plain, expected) > 1e-4, "{name}: {}", difference(plain, expected));
        }
    }
}

#[test]
fn fused_activations_apply_to_the_bf16_product() {
    let device = device();
    let (x, w) = (noise(&device, &[70, 33], 1), noise(&device, &[33, 65], 2));
    let bias = noise(&device, &[65], 3);
    for f in [Activation::Relu, Activation::Gelu, Activation::GeluTanh, Activation::Silu] {
        let run = |x: &Tensor, w: &Tensor, bias: &Tensor| {
            let [x, w, bias] = [x, w, bias].map(|leaf| leaf.detach().requiring_grad().unwrap());
            let y = x.linear_activation(&w, &bias, f).unwrap();
            let gradients = y.sum_all().unwrap().backward().unwrap();
            [values(&y), values(gradients.get(&w).unwrap()), values(gradients.get(&bias).unwrap())]
        };
        let [x64, w64, bias64] =
            [&rounded(&x), &rounded(&w), &bias].map(|leaf| leaf.to_dtype(DType::F64).unwrap());
        let expected = run(&x64, &w64, &bias64);
        let _autocast = autocast(DType::BF16).unwrap();
        let found = run(&x, &w, &bias);
        assert!(difference(&found[0], &expected[0]) < 1e-5, "{f:?}");
        // The product of the gradient rounds the derivative, which the sum for the bias does not.
        assert!(difference(&found[1], &expected[1]) < 2f64.powi(-8), "{f:?}");
        assert!(difference(&found[2], &expected[2]) < 1e-5, "{f:?}");
    }
}

#[test]
fn results_and_gradients_stay_f32() {
    let device = device();
    let _autocast = autocast(DType::BF16).unwrap();
    let x = noise(&device, &[3, 4], 1).requiring_grad().unwrap();
    let y = x.matmul(&noise(&device, &[4, 5], 2)).unwrap();
    let gradients = y.sum_all().unwrap().backward().unwrap();
    assert_eq!([y.dtype(), gradients.get(&x).unwrap().dtype()], [DType::F32; 2]);
}

#[test]
fn other_ops_and_other_types_are_unaffected() {
    let device = device();
    let (x, w) = (noise(&device, &[2, 6, 8], 1), noise(&device, &[2, 6, 8], 2));
    let targets = Tensor::from_slice(&device, &[1_i64, 0, 7, 3, 2, 5], [6]).unwrap();
    let weights = noise(&device, &[8], 3).abs().unwrap();
    let logits = x.slice(0, ..1).unwrap().reshape([6, 8]).unwrap();
    let all = || -> Result<Vec<Vec<f64>>> {
        let options =
            CrossEntropyOptions { label_smoothing: 0.3, class_weights: Some(&weights), ..Default::default() };
        let typed = |dtype| x.to_dtype(dtype)?.matmul(&w.to_dtype(dtype)?.transpose(-2, -1)?);
        let q = x.detach().requiring_grad()?;
        let dropped =
            q.attention_with_dropout(&w, &w, None, AttentionOptions::default(), 0.5, &Rng::new(4))?;
        let gradients = dropped.sum_all()?.backward()?;
        let results = [
            x.softmax(-1)?,
            x.layer_norm(None, 1e-5)?,
            x.sum(0)?,
            x.attention(&w, &w, None, AttentionOptions::default())?,
            dropped,
            gradients.get(&q).unwrap().clone(),
            logits.cross_entropy_with(&targets, options)?,
            typed(DType::F64)?,
            typed(DType::F16)?,
            typed(DType::BF16)?,
        ];
        Ok(results.iter().map(values).collect())
    };
    let expected = all().unwrap();
    let _autocast = autocast(DType::BF16).unwrap();
    assert_eq!(all().unwrap(), expected);
}

/// Returns whether products on this thread run in bf16.
fn is_autocast(device: &Device) -> bool {
    let x = Tensor::full(device, [1, 1], 1.001).unwrap();
    x.matmul(&x).unwrap().item::<f32>().unwrap() == 1.0
}

#[test]
fn a_guard_ends_those_within_it_and_no_later_ones() {
    let device = device();
    assert!(!is_autocast(&device));
    let first = autocast(DType::BF16).unwrap();
    let second = autocast(DType::BF16).unwrap();
    drop(first);
    assert!(!is_autocast(&device));
    let third = autocast(DType::BF16).unwrap();
    drop(second);
    assert!(is_autocast(&device));
    drop(third);
    assert!(!is_autocast(&device));
}

#[test]
fn a_guard_ends_with_a_panic_and_affects_one_thread() {
    let device = device();
    let failed = std::panic::catch_unwind(|| {
        let _autocast = autocast(DType::BF16).unwrap();
        std::panic::resume_unwind(Box::new("a failed step"));
    });
    assert!(failed.is_err() && !is_autocast(&device));
    let _autocast = autocast(DType::BF16).unwrap();
    let other = thread::scope(|scope| scope.spawn(|| is_autocast(&device)).join().unwrap());
    assert!(is_autocast(&device) && !other);
}

#[test]
fn other_types_are_an_error_that_names_the_supported_one() {
    for dtype in DType::ALL.into_iter().filter(|&dtype| dtype != DType::BF16) {
        let error = autocast(dtype).unwrap_err();
        assert!(matches!(error, Error::BadArgument { op: "autocast", argument: "dtype", .. }), "{error}");
        assert!(error.to_string().contains("must be bf16"), "{error}");
    }
    assert!(!is_autocast(&device()));
}

#[test]
fn the_backward_pass_uses_the_precision_of_each_op() {
    let device = device();
    let (x, w) = (noise(&device, &[7, 33], 1), noise(&device, &[33, 33], 2));
    // Each flag states whether a part runs under autocast: the first product, the second, the backward pass.
    let run = |first: bool, second: bool, backward: bool| {
        let guard = |active: bool| active.then(|| autocast(DType::BF16).unwrap());
        let w = w.detach().requiring_grad().unwrap();
        let part = |x: &Tensor, active| {
            let _autocast = guard(active);
            x.matmul(&w).unwrap()
        };
        let y = part(&part(&x, first), second);
        let _autocast = guard(backward);
        values(y.square().unwrap().sum_all().unwrap().backward().unwrap().get(&w).unwrap())
    };
    for (first, second) in [(false, false), (false, true), (true, false), (true, true)] {
        assert_eq!(run(first, second, true), run(first, second, false));
    }
    assert_ne!(run(true, false, false), run(false, true, false));
    assert_ne!(run(true, true, false), run(false, true, false));
}

#[test]
fn checkpointed_parts_run_again_in_the_precision_of_the_first_run() {
    let device = device();
    let (x, w) = (noise(&device, &[7, 33], 1), noise(&device, &[33, 33], 2));
    let run = |checkpointed: bool, forward: bool, backward: bool| {
        let guard = |active: bool| active.then(|| autocast(DType::BF16).unwrap());
        let w = w.detach().requiring_grad().unwrap();
        let captured = w.clone();
        let part = move |x: &Tensor| x.matmul(&captured)?.tanh()?.matmul(&captured);
        let y = {
            let _autocast = guard(forward);
            if checkpointed { checkpoint(&x, part) } else { part(&x) }.unwrap()
        };
        let _autocast = guard(backward);
        values(y.square().unwrap().sum_all().unwrap().backward().unwrap().get(&w).unwrap())
    };
    for (forward, backward) in [(true, false), (false, true), (true, true)] {
        assert_eq!(run(true, forward, backward), run(false, forward, backward));
    }
    assert_ne!(run(true, true, false), run(true, false, false));
}

#[test]
fn reports_show_the_rounded_copies_as_workspace() {
    for device in [device(), dry_device()] {
        let (x, w) = (noise(&device, &[64, 48], 1), noise(&device, &[48, 32], 2));
        let workspace = |active: bool| {
            let _autocast = active.then(|| autocast(DType::BF16).unwrap());
            let before = report(&device);
            no_grad(|| x.matmul(&w)).unwrap();
            let after = report(&device);
            let products = |report: &Report| -> u64 {
                report.ops.iter().filter(|row| row.op == "matmul").map(|row| row.temporary_bytes).sum()
            };
            products(&after) - products(&before)
        };
        // The CPU rounds while it packs. A GPU needs two bytes for each element of both factors.
        let copies = if !env!("CARGO_CRATE_NAME").starts_with("cuda") { 0 } else { 2 * (64 * 48 + 48 * 32) };
        let (plain, rounded) = (workspace(false), workspace(true));
        assert!(plain > 0 && rounded >= plain + copies, "{plain} and {rounded}");
    }
}

fn report(device: &Device) -> Report {
    Report::new(device.tracker(), std::slice::from_ref(device.default_allocator().unwrap()))
}

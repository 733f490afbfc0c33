//! Mixed precision: types of results and gradients, the guard, and the copies of parameters.

use std::thread;

use crate::ops_table::{device, dry_device};
use bfc_core::Bytes;
use highwater_tensor::{
    AttentionOptions, Conv1dOptions, Conv2dOptions, DType, Device, Error, Padding, Parameter, RecurrentCell,
    RecurrentWeights, Result, Rng, Runtime, Tensor, checkpoint, mixed, no_grad,
};
use highwater_tracking::{Phase, Report};

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
    ("einsum", &[7, 33], &[33, 5], |x, w| Tensor::einsum("ab,bc->ca", &[x, w])),
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

/// Values that bf16 does not represent.
fn noise(device: &Device, dims: &[usize], seed: u64) -> Tensor {
    Tensor::normal(device, dims, 0.0, 1.0, &Rng::new(seed)).unwrap()
}

/// Returns the result of an op and its gradients for an upstream gradient that bf16 represents.
fn run(product: Product, factors: [&Tensor; 2]) -> [Tensor; 3] {
    let [x, w] = factors.map(|factor| factor.detach().requiring_grad().unwrap());
    let y = product(&x, &w).unwrap();
    let upstream = noise(y.device(), y.dims(), 9).to_dtype(DType::BF16).unwrap().to_dtype(y.dtype()).unwrap();
    let mut gradients = y.mul(&upstream).unwrap().sum_all().unwrap().backward().unwrap();
    [y.detach(), gradients.take(&x).unwrap(), gradients.take(&w).unwrap()]
}

/// The largest difference, relative to the largest value.
fn difference(found: &[f64], expected: &[f64]) -> f64 {
    assert_eq!(found.len(), expected.len());
    let largest = expected.iter().fold(0.0_f64, |largest, value| largest.max(value.abs()));
    let apart = found.iter().zip(expected).map(|(found, expected)| (found - expected).abs());
    apart.fold(0.0, f64::max) / largest
}

#[test]
fn products_of_f32_round_their_factors_and_their_result() {
    let device = device();
    for (half, step) in [(DType::BF16, 2f64.powi(-8)), (DType::F16, 2f64.powi(-11))] {
        for &(name, first, second, product) in PRODUCTS {
            let (x, w) = (noise(&device, first, 1), noise(&device, second, 2));
            let rounded = |factor: &Tensor| factor.to_dtype(half).unwrap().to_dtype(DType::F64).unwrap();
            let expected = run(product, [&rounded(&x), &rounded(&w)]);
            let found = {
                let _mixed = mixed(half).unwrap();
                run(product, [&x, &w])
            };
            assert_eq!(found.each_ref().map(Tensor::dtype), [half, DType::F32, DType::F32], "{name}");
            for (found, expected) in found.iter().zip(&expected) {
                let apart = difference(&values(found), &values(expected));
                assert!(apart <= 2.0 * step, "{name} in {half}: {apart}");
            }
        }
    }
}

#[test]
fn weight_gradients_of_convolutions_are_sums_in_f32() {
    let device = device();
    for half in [DType::BF16, DType::F16] {
        for &(name, first, second, product) in PRODUCTS.iter().filter(|product| product.0.contains("conv")) {
            let (x, w) = (noise(&device, first, 1), noise(&device, second, 2));
            let rounded = |factor: &Tensor| factor.to_dtype(half).unwrap().to_dtype(DType::F64).unwrap();
            let [_, _, expected] = run(product, [&rounded(&x), &rounded(&w)]);
            let _mixed = mixed(half).unwrap();
            let [_, _, found] = run(product, [&x, &w]);
            let apart = difference(&values(&found), &values(&expected));
            assert!(apart <= 1e-5, "{name} in {half}: {apart}");
        }
    }
}

#[test]
fn f32_that_meets_the_type_becomes_the_type() {
    let device = device();
    let _mixed = mixed(DType::BF16).unwrap();
    let wide = noise(&device, &[2, 6, 8], 1);
    let half = noise(&device, &[2, 6, 8], 2).to_dtype(DType::BF16).unwrap();
    let of_row = |dtype| noise(&device, &[8], 3).to_dtype(dtype).unwrap();
    let images = wide.reshape([2, 3, 2, 8]).unwrap();
    let channels = noise(&device, &[3], 4).to_dtype(DType::BF16).unwrap();
    let gates = |dims: &[usize]| noise(&device, dims, 5).to_dtype(DType::BF16).unwrap();
    let (of_inputs, of_states, of_gates) = (gates(&[8, 4]), gates(&[4, 4]), gates(&[4]));
    let weights = RecurrentWeights {
        input: &of_inputs,
        hidden: &of_states,
        input_bias: &of_gates,
        hidden_bias: &of_gates,
    };
    let attend = AttentionOptions::default;
    let results = [
        ("add", half.add(&wide)),
        ("in the other order", wide.mul(&half)),
        ("concat", Tensor::concat(&[&wide, &half], 0)),
        ("where", half.gt(0).unwrap().where_(&half, &wide)),
        ("layer_norm", wide.layer_norm(Some((&of_row(DType::BF16), &of_row(DType::BF16))), 1e-5)),
        (
            "layer_norm with f32 weights",
            half.layer_norm(Some((&of_row(DType::F32), &of_row(DType::F32))), 1e-5),
        ),
        ("rms_norm", wide.rms_norm(Some(&of_row(DType::BF16)), 1e-5)),
        ("group_norm", images.group_norm(3, Some((&channels, &channels)), 1e-5)),
        ("attention", half.attention(&wide, &wide, None, attend())),
        (
            "attention with an f32 mask",
            half.attention(&half, &half, Some(&wide.narrow(2, 0, 6).unwrap()), attend()),
        ),
        (
            "attention with dropout",
            wide.attention_with_dropout(&half, &half, None, attend(), 0.5, &Rng::new(4)),
        ),
        ("rnn", wide.recurrent(RecurrentCell::Tanh, weights, &[], false)),
    ];
    for (name, result) in results {
        assert_eq!(result.unwrap().dtype(), DType::BF16, "{name}");
    }
}

#[test]
fn other_ops_and_other_types_are_unaffected() {
    let device = device();
    let (x, w) = (noise(&device, &[2, 6, 8], 1), noise(&device, &[2, 6, 8], 2));
    let all = || -> Result<Vec<Tensor>> {
        let typed = |dtype| x.to_dtype(dtype)?.matmul(&w.to_dtype(dtype)?.transpose(-2, -1)?);
        Ok(vec![
            x.softmax(-1)?,
            x.layer_norm(None, 1e-5)?,
            x.add(&w)?,
            x.sum(0)?,
            typed(DType::F64)?,
            typed(DType::F16)?,
            x.to_dtype(DType::F16)?.add(&w)?,
            x.to_dtype(DType::BF16)?.add(&w.to_dtype(DType::F64)?)?,
        ])
    };
    let expected = all().unwrap();
    let _mixed = mixed(DType::BF16).unwrap();
    for (found, expected) in all().unwrap().iter().zip(&expected) {
        assert_eq!((found.dtype(), values(found)), (expected.dtype(), values(expected)));
    }
}

/// Returns whether products on this thread run in bf16.
fn is_mixed(device: &Device) -> bool {
    let x = Tensor::full(device, [1, 1], 1.001).unwrap();
    x.matmul(&x).unwrap().dtype() == DType::BF16
}

#[test]
fn a_guard_ends_those_within_it_and_no_later_ones() {
    let device = device();
    assert!(!is_mixed(&device));
    let first = mixed(DType::BF16).unwrap();
    let second = mixed(DType::BF16).unwrap();
    drop(first);
    assert!(!is_mixed(&device));
    let third = mixed(DType::BF16).unwrap();
    drop(second);
    assert!(is_mixed(&device));
    drop(third);
    assert!(!is_mixed(&device));
}

#[test]
fn a_guard_ends_with_a_panic_and_affects_one_thread() {
    let device = device();
    let failed = std::panic::catch_unwind(|| {
        let _mixed = mixed(DType::BF16).unwrap();
        std::panic::resume_unwind(Box::new("a failed step"));
    });
    assert!(failed.is_err() && !is_mixed(&device));
    let _mixed = mixed(DType::BF16).unwrap();
    let other = thread::scope(|scope| scope.spawn(|| is_mixed(&device)).join().unwrap());
    assert!(is_mixed(&device) && !other);
}

#[test]
fn other_types_are_an_error_that_names_the_supported_ones() {
    for dtype in DType::ALL.into_iter().filter(|dtype| !dtype.is_half()) {
        let error = mixed(dtype).unwrap_err();
        assert!(matches!(error, Error::BadArgument { op: "mixed", argument: "dtype", .. }), "{error}");
        assert!(error.to_string().contains("must be bf16 or f16"), "{error}");
    }
    assert!(!is_mixed(&device()));
}

#[test]
fn a_backward_pass_is_the_same_with_and_without_a_guard() {
    let device = device();
    let x = noise(&device, &[7, 33], 1);
    let run = |checkpointed: bool, forward: bool, backward: bool| {
        let guard = |active: bool| active.then(|| mixed(DType::BF16).unwrap());
        let w = Parameter::new(noise(&device, &[33, 33], 2)).unwrap();
        let captured = w.clone();
        let part = move |x: &Tensor| {
            x.matmul(&captured.operand()?)?.tanh()?.add(&captured.operand()?.narrow(0, 0, 7)?)
        };
        let y = {
            let _mixed = guard(forward);
            if checkpointed { checkpoint(&x, part) } else { part(&x) }.unwrap()
        };
        let _mixed = guard(backward);
        values(y.square().unwrap().sum_all().unwrap().backward().unwrap().get(&w.tensor()).unwrap())
    };
    let plain = run(false, false, false);
    for forward in [false, true] {
        let expected = run(false, forward, false);
        assert_eq!(expected != plain, forward);
        assert_eq!(run(true, forward, false), expected, "of a part that runs again");
    }
    // The loss is of another type with a guard. Otherwise the guard makes no difference.
    assert_eq!(run(true, true, true), run(false, true, true));
}

/// Returns the conversions of parameters and the bytes of their results that exist.
fn casts(device: &Device) -> (u64, u64) {
    let report = Report::new(device.tracker(), std::slice::from_ref(device.default_allocator().unwrap()));
    let rows = report.ops.iter().filter(|row| row.op == "cast_parameter" && row.phase == Phase::Forward);
    rows.fold((0, 0), |(calls, live), row| (calls + row.calls, live + row.live_bytes))
}

#[test]
fn a_parameter_is_converted_once_per_step_and_the_report_shows_the_copy() {
    for device in [device(), dry_device()] {
        let weight = Parameter::new(noise(&device, &[64, 64], 2)).unwrap();
        let x = noise(&device, &[8, 64], 1);
        let guard = mixed(DType::BF16).unwrap();
        for step in 1..=3 {
            for _ in 0..2 {
                let part = weight.clone();
                let y = x.matmul(&weight.operand().unwrap()).unwrap();
                let y = checkpoint(&y, move |y: &Tensor| y.matmul(&part.operand()?)).unwrap();
                let gradients = y.square().unwrap().sum_all().unwrap().backward().unwrap();
                assert_eq!(gradients.get(&weight.tensor()).unwrap().dtype(), DType::F32);
                assert_eq!(casts(&device), (step, 2 * 64 * 64));
            }
            weight.set(&weight.value().mul_scalar(0.5).unwrap()).unwrap();
            assert_eq!(casts(&device).1, 0, "the update frees the copy");
        }
        no_grad(|| x.matmul(&weight.operand()?)).unwrap();
        assert_eq!(casts(&device), (4, 2 * 64 * 64));
        drop(guard);
        assert_eq!(casts(&device).1, 0, "the end of the guard frees the copy");
    }
}

#[test]
fn a_frozen_parameter_keeps_its_copy_and_gets_no_gradient() {
    let device = device();
    let [base, adapter] = [2, 3].map(|seed| Parameter::new(noise(&device, &[8, 8], seed)).unwrap());
    base.freeze();
    let _mixed = mixed(DType::F16).unwrap();
    for step in 1..3 {
        let x = noise(&device, &[2, 8], 1).matmul(&base.operand().unwrap()).unwrap();
        let y = x.matmul(&adapter.operand().unwrap()).unwrap();
        let gradients = y.sum_all().unwrap().backward().unwrap();
        assert_eq!(gradients.len(), 1);
        adapter.set(&adapter.value().mul_scalar(0.5).unwrap()).unwrap();
        assert_eq!(casts(&device).0, 1 + step);
    }
}

#[test]
fn a_gradient_of_old_values_is_an_error() {
    let device = device();
    let weight = Parameter::new(noise(&device, &[8, 8], 2)).unwrap();
    let x = noise(&device, &[2, 8], 1).requiring_grad().unwrap();
    let _mixed = mixed(DType::BF16).unwrap();
    let loss = x.matmul(&weight.operand().unwrap()).unwrap().sum_all().unwrap();
    weight.set(&weight.value().mul_scalar(0.5).unwrap()).unwrap();
    let error = loss.backward().unwrap_err();
    assert!(matches!(error, Error::StaleBackward { op: "matmul", .. }), "{error}");
}

#[test]
fn a_failed_copy_changes_nothing() {
    let runtime = Runtime::builder().threads(1).pool(Bytes::mib(3)).build().unwrap();
    let device = runtime.cpu().unwrap();
    let weight = Parameter::new(Tensor::zeros(&device, [512, 1024]).unwrap()).unwrap();
    let _mixed = mixed(DType::BF16).unwrap();
    let held = Tensor::zeros(&device, [256, 512]).unwrap();
    let error = weight.operand().unwrap_err();
    assert!(matches!(error, Error::Allocation { op: "cast_parameter", .. }), "{error}");
    drop(held);
    assert_eq!(weight.operand().unwrap().dtype(), DType::BF16);
}

//! Gradients between the backward pass and the step: summed over passes, scaled, clipped.

use crate::ops_table::{device, dry_device};
use bfc_core::Bytes;
use highwater_nn::modules::{Linear, Module, Parameter, Relu, Sequential};
use highwater_nn::optim::{Optimizer, Sgd};
use highwater_tensor::{DType, Device, Error, Gradients, Rng, Runtime, Tensor};

fn network(device: &Device) -> Sequential {
    let rng = Rng::new(3);
    Sequential::new()
        .with("fc1", Linear::new(device, 5, 8, &rng).unwrap())
        .with("relu", Relu)
        .with("fc2", Linear::new(device, 8, 2, &rng).unwrap())
}

fn values(gradients: &Gradients, parameter: &Parameter) -> Vec<f32> {
    gradients.get(&parameter.tensor()).unwrap().to_vec().unwrap()
}

/// Two leaves with the gradients (3, -4, 0) and (12).
fn two_leaves(device: &Device, dtype: DType) -> (Tensor, Tensor, Gradients) {
    let leaf = |values: &[f64]| {
        let tensor = Tensor::from_slice(device, values, values.len()).unwrap().to_dtype(dtype).unwrap();
        tensor.requiring_grad().unwrap()
    };
    let (a, b) = (leaf(&[1.5, -2.0, 0.0]), leaf(&[6.0]));
    let sum = |x: &Tensor| x.square().unwrap().sum_all().unwrap();
    let gradients = sum(&a).add(&sum(&b)).unwrap().backward().unwrap();
    (a, b, gradients)
}

fn pair(a: &Tensor, b: &Tensor, gradients: &Gradients) -> Vec<f64> {
    let of = |leaf| gradients.get(leaf).unwrap().to_dtype(DType::F64).unwrap().to_vec::<f64>().unwrap();
    [of(a), of(b)].concat()
}

fn assert_close(computed: &[f64], expected: &[f64], within: f64) {
    assert_eq!(computed.len(), expected.len());
    for (a, b) in computed.iter().zip(expected) {
        assert!((a - b).abs() <= within, "{computed:?} is not {expected:?}");
    }
}

#[test]
fn accumulated_gradients_equal_those_of_the_full_batch() {
    let device = device();
    let net = network(&device);
    let x = Tensor::normal(&device, [12, 5], 0.0, 1.0, &Rng::new(1)).unwrap();
    let classes: Vec<i64> = (0..12).map(|row| row * 5 % 7 % 2).collect();
    let y = Tensor::from_slice(&device, &classes, 12).unwrap();
    let whole = net.forward(&x).unwrap().cross_entropy(&y).unwrap().backward().unwrap();
    let mut parts = Gradients::default();
    for part in 0..3 {
        let (x, y) = (x.narrow(0, part * 4, 4).unwrap(), y.narrow(0, part * 4, 4).unwrap());
        let mut gradients = net.forward(&x).unwrap().cross_entropy(&y).unwrap().backward().unwrap();
        parts.accumulate(&mut gradients).unwrap();
        assert!(gradients.is_empty());
    }
    parts.scale(1.0 / 3.0).unwrap();
    assert_eq!(parts.len(), whole.len());
    for (path, parameter) in net.parameters() {
        for (a, b) in values(&parts, &parameter).iter().zip(values(&whole, &parameter)) {
            assert!((a - b).abs() <= 1e-6, "{path}: {a} and {b}");
        }
    }
}

#[test]
fn sums_are_made_in_place_and_take_no_memory() {
    let device = device();
    let net = network(&device);
    let pass = || {
        let x = Tensor::ones(&device, [4, 5]).unwrap();
        net.forward(&x).unwrap().square().unwrap().sum_all().unwrap().backward().unwrap()
    };
    let (mut first, mut second) = (pass(), pass());
    let pool = device.default_allocator().unwrap();
    let allocs = pool.stats().num_allocs;
    first.accumulate(&mut second).unwrap();
    first.scale(0.5).unwrap();
    first.clip_value(0.1).unwrap();
    assert_eq!(pool.stats().num_allocs, allocs);
}

#[test]
fn a_shared_gradient_is_copied_before_it_is_changed() {
    let device = device();
    let (a, b) = (Tensor::ones(&device, 2).unwrap(), Tensor::ones(&device, 2).unwrap());
    let (a, b) = (a.requiring_grad().unwrap(), b.requiring_grad().unwrap());
    // The gradients of a sum's terms are one tensor.
    let mut gradients = a.add(&b).unwrap().sum_all().unwrap().backward().unwrap();
    let kept = gradients.get(&a).unwrap().clone();
    gradients.scale(3.0).unwrap();
    assert_eq!(gradients.get(&a).unwrap().to_vec::<f32>().unwrap(), [3.0, 3.0]);
    assert_eq!(gradients.get(&b).unwrap().to_vec::<f32>().unwrap(), [3.0, 3.0]);
    let mut more = a.add(&b).unwrap().sum_all().unwrap().backward().unwrap();
    let seen = more.get(&b).unwrap().clone();
    more.accumulate(&mut gradients).unwrap();
    assert_eq!(more.get(&a).unwrap().to_vec::<f32>().unwrap(), [4.0, 4.0]);
    assert_eq!(more.get(&b).unwrap().to_vec::<f32>().unwrap(), [4.0, 4.0]);
    for untouched in [kept, seen] {
        assert_eq!(untouched.to_vec::<f32>().unwrap(), [1.0, 1.0]);
    }
}

#[test]
fn the_norm_is_that_of_all_gradients_together() {
    let device = device();
    for dtype in [DType::F32, DType::F64] {
        let (_, _, gradients) = two_leaves(&device, dtype);
        assert_eq!(gradients.norm().unwrap(), 13.0);
        assert_eq!(gradients.iter().map(Tensor::elements).collect::<Vec<_>>(), [3, 1]);
    }
    assert_eq!(Gradients::default().norm().unwrap().to_bits(), 0.0f64.to_bits());
}

#[test]
fn the_norm_takes_no_memory_of_the_size_of_a_gradient() {
    let device = device();
    let x = Tensor::ones(&device, 100_000).unwrap().requiring_grad().unwrap();
    let mut gradients = x.mul_scalar(2.0).unwrap().sum_all().unwrap().backward().unwrap();
    let memory = device.default_allocator().unwrap();
    memory.clear_stats();
    let before = memory.stats().bytes_in_use;
    let norm = gradients.clip_norm(1.0).unwrap();
    assert!((norm - 2.0 * 100_000f64.sqrt()).abs() < 1e-3, "{norm}");
    assert!(memory.stats().peak_bytes_in_use - before < 10_000);
}

/// `torch.nn.utils.clip_grad_norm_` computed the expected values: x · max / (norm + 1e-6), and no change
/// below the limit.
#[test]
fn clipping_by_norm_scales_everything_by_one_number() {
    let device = device();
    for (dtype, within) in [(DType::F32, 1e-6), (DType::F64, 1e-15)] {
        let (a, b, mut gradients) = two_leaves(&device, dtype);
        assert_eq!(gradients.clip_norm(2.6).unwrap(), 13.0);
        let scale = 2.6 / 13.000001;
        let expected = [3.0 * scale, -4.0 * scale, 0.0, 12.0 * scale];
        assert_close(&pair(&a, &b, &gradients), &expected, within);
        let before = pair(&a, &b, &gradients);
        assert!(gradients.clip_norm(100.0).unwrap() < 2.6);
        assert_eq!(pair(&a, &b, &gradients), before);
    }
}

#[test]
fn asynchronous_clipping_is_bit_identical() {
    let device = device();
    for dtype in [DType::F32, DType::F64, DType::F16, DType::BF16] {
        for max in [2.6, 0.01, 13.0, 100.0] {
            let (a, b, mut read) = two_leaves(&device, dtype);
            let (c, d, mut unread) = two_leaves(&device, dtype);
            let norm = read.clip_norm(max).unwrap();
            assert_eq!(
                unread.clip_norm_unread(max).unwrap().unwrap().item::<f64>().unwrap(),
                norm,
                "{dtype}"
            );
            assert_eq!(pair(&a, &b, &read), pair(&c, &d, &unread), "{dtype} to {max}");
        }
    }
    assert!(Gradients::default().clip_norm_unread(1.0).unwrap().is_none());
    let (_, _, mut gradients) = two_leaves(&device, DType::F32);
    assert!(matches!(gradients.clip_norm_unread(0.0), Err(Error::BadArgument { .. })));
}

#[test]
fn asynchronous_clipping_keeps_nan_gradients() {
    let device = device();
    let of = |values: [f32; 2]| {
        let x = Tensor::from_slice(&device, &values, 2).unwrap();
        let y = Tensor::ones(&device, 2).unwrap().requiring_grad().unwrap();
        let mut gradients = x.mul(&y).unwrap().sum_all().unwrap().backward().unwrap();
        let norm = gradients.clip_norm_unread(1.0).unwrap().unwrap().item::<f64>().unwrap();
        (norm, gradients.get(&y).unwrap().to_vec::<f32>().unwrap())
    };
    let (norm, clipped) = of([1.0, f32::INFINITY]);
    assert!(norm == f64::INFINITY && clipped[0] == 0.0 && clipped[1].is_nan());
    let (norm, clipped) = of([1.0, f32::NAN]);
    assert!(norm.is_nan() && clipped[0].is_nan() && clipped[1].is_nan());
}

#[test]
fn clipping_by_value_keeps_each_number_within_bounds() {
    let device = device();
    for dtype in [DType::F32, DType::F64] {
        let (a, b, mut gradients) = two_leaves(&device, dtype);
        gradients.clip_value(3.5).unwrap();
        assert_eq!(pair(&a, &b, &gradients), [3.0, -3.5, 0.0, 3.5]);
    }
}

#[test]
fn gradients_that_are_no_numbers_have_no_norm_and_stay() {
    let device = device();
    let x = Tensor::from_slice(&device, &[1.0f32, f32::INFINITY, f32::NAN], 3).unwrap();
    let y = Tensor::ones(&device, 3).unwrap().requiring_grad().unwrap();
    let mut gradients = x.mul(&y).unwrap().sum_all().unwrap().backward().unwrap();
    let refused = gradients.clip_norm(1.0).unwrap_err();
    assert!(matches!(refused, Error::NotFinite { op: "clip_norm", norm } if norm.is_nan()), "{refused}");
    let now = gradients.get(&y).unwrap().to_vec::<f32>().unwrap();
    assert_eq!(now[..2], [1.0, f32::INFINITY]);
    // NaN stays NaN: clipping does not replace it with a bound.
    gradients.clip_value(2.0).unwrap();
    let now = gradients.get(&y).unwrap().to_vec::<f32>().unwrap();
    assert_eq!(now[..2], [1.0, 2.0]);
    assert!(now[2].is_nan());
}

#[test]
fn bounds_that_are_none_are_refused_by_name() {
    let (a, b, mut gradients) = two_leaves(&device(), DType::F64);
    for bad in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        let by_norm = gradients.clip_norm(bad).unwrap_err();
        assert!(matches!(by_norm, Error::BadArgument { op: "clip_norm", argument: "max", .. }));
        let by_value = gradients.clip_value(bad).unwrap_err();
        assert!(matches!(by_value, Error::BadArgument { op: "clip_value", argument: "max", .. }));
    }
    let scaled = gradients.scale(f64::NAN).unwrap_err();
    assert!(matches!(scaled, Error::BadArgument { op: "scale_gradients", argument: "factor", .. }));
    assert_eq!(pair(&a, &b, &gradients), [3.0, -4.0, 0.0, 12.0]);
}

#[test]
fn without_memory_for_a_copy_everything_is_as_it_was() {
    let device = Runtime::builder().pool(Bytes::mib(1)).threads(1).build().unwrap().cpu().unwrap();
    let leaf = || Tensor::ones(&device, [50 << 10]).unwrap().requiring_grad().unwrap();
    let (a, b) = (leaf(), leaf());
    // 200 KiB each: two leaves, two gradients of a's and b's own, and shares that others hold in both of them.
    let pass = || {
        let half = |x: &Tensor| x.square().unwrap().sum_all().unwrap().mul_scalar(0.5).unwrap();
        half(&a).add(&half(&b)).unwrap().backward().unwrap()
    };
    let mut gradients = pass();
    let held = [gradients.get(&a).unwrap().clone(), gradients.get(&b).unwrap().clone()];
    let first = |gradients: &Gradients, leaf| gradients.get(leaf).unwrap().to_vec::<f32>().unwrap()[0];
    // The pool has memory for one copy, and both gradients need one.
    for error in [gradients.scale(2.0).unwrap_err(), gradients.clip_value(0.5).unwrap_err()] {
        assert!(error.out_of_memory().is_some(), "{error}");
        assert_eq!((first(&gradients, &a), first(&gradients, &b)), (1.0, 1.0));
    }
    let mut same = Gradients::default();
    drop(held);
    same.accumulate(&mut gradients).unwrap();
    same.scale(2.0).unwrap();
    assert_eq!((first(&same, &a), first(&same, &b)), (2.0, 2.0));
}

/// A pool of 1 MiB with two leaves, a small one and one of 30 Ki elements, and twice their gradients: 1, and 2.
fn two_passes(dtype: DType) -> (Device, [Tensor; 2], [Gradients; 2]) {
    let device = Runtime::builder().pool(Bytes::mib(1)).threads(1).build().unwrap().cpu().unwrap();
    let leaves = [2, 30 << 10]
        .map(|elements| Tensor::ones_of(&device, elements, dtype).unwrap().requiring_grad().unwrap());
    let passes = [0.5, 1.0].map(|factor| {
        let term = |x: &Tensor| x.square().unwrap().mul_scalar(factor).unwrap();
        let pass = |x: &Tensor| term(x).sum_all().unwrap().backward().unwrap();
        let mut gradients = pass(&leaves[0]);
        gradients.accumulate(&mut pass(&leaves[1])).unwrap();
        gradients
    });
    (device, leaves, passes)
}

/// Returns the first element of each leaf's gradient.
fn firsts(leaves: &[Tensor; 2], gradients: &Gradients) -> [f64; 2] {
    leaves
        .each_ref()
        .map(|leaf| gradients.get(leaf).unwrap().narrow(0, 0, 1).unwrap())
        .map(|first| first.to_dtype(DType::F64).unwrap().item::<f64>().unwrap())
}

/// Allocates all of a pool except `kib` contiguous KiB.
fn all_but(device: &Device, kib: usize) -> Vec<Tensor> {
    let take = |bytes| Tensor::zeros_of(device, [bytes], DType::U8);
    let room = take(kib << 10).unwrap();
    let hogs = [1 << 16, 1 << 12, 1 << 8].into_iter();
    let hogs = hogs.flat_map(|bytes| std::iter::from_fn(move || take(bytes).ok())).collect();
    drop(room);
    hogs
}

#[test]
fn half_precision_gradients_are_changed_without_memory() {
    let (device, leaves, [mut gradients, _]) = two_passes(DType::F16);
    let hog = all_but(&device, 0);
    gradients.scale(9.0).unwrap();
    gradients.clip_value(8.0).unwrap();
    drop(hog);
    assert_eq!(firsts(&leaves, &gradients), [8.0; 2]);
}

#[test]
fn sums_of_half_precision_gradients_are_f32() {
    let (device, leaves, [mut sum, mut more]) = two_passes(DType::F16);
    sum.scale(4096.0).unwrap();
    let hog = all_but(&device, 0);
    let error = sum.accumulate(&mut more).unwrap_err();
    assert!(error.out_of_memory().is_some(), "{error}");
    drop(hog);
    assert_eq!((firsts(&leaves, &sum), firsts(&leaves, &more)), ([4096.0; 2], [2.0; 2]));
    sum.accumulate(&mut more).unwrap();
    // f16 has no 4098.
    assert_eq!(firsts(&leaves, &sum), [4098.0; 2]);
    assert!(more.is_empty());
}

#[test]
fn gradients_that_could_not_be_added_are_not_exchanged_either() {
    let (device, leaves, [mut sum, mut more]) = two_passes(DType::F32);
    // The sum can reuse only the gradient of the small leaf in `more`. All other gradients are shared.
    let held = [sum.get(&leaves[0]), sum.get(&leaves[1]), more.get(&leaves[1])].map(|held| held.cloned());
    let hog = all_but(&device, 100);
    let error = sum.accumulate(&mut more).unwrap_err();
    assert!(error.out_of_memory().is_some(), "{error}");
    assert_eq!((firsts(&leaves, &sum), firsts(&leaves, &more)), ([1.0; 2], [2.0; 2]));
    drop((held, hog));
    sum.accumulate(&mut more).unwrap();
    assert_eq!(firsts(&leaves, &sum), [3.0; 2]);
}

#[test]
fn a_dry_run_makes_the_requests_of_the_real_one() {
    let program = |device: &Device| {
        let net = network(device);
        let mut sgd = Sgd::new(net.parameters(), 0.1).unwrap().with_momentum(0.9).unwrap();
        let mut gradients = Gradients::default();
        for _ in 0..2 {
            let x = Tensor::ones(device, [4, 5]).unwrap();
            let loss = net.forward(&x).unwrap().square().unwrap().sum_all().unwrap();
            gradients.accumulate(&mut loss.backward().unwrap()).unwrap();
        }
        gradients.clip_norm(1e-3).unwrap();
        sgd.step(gradients).unwrap();
        let stats = device.default_allocator().unwrap().stats();
        (stats.num_allocs, stats.peak_bytes_in_use, stats.bytes_requested)
    };
    assert_eq!(program(&dry_device()), program(&device()));
}

#[test]
fn several_optimizers_equal_a_single_one() {
    let device = device();
    let x = Tensor::normal(&device, [12, 5], 0.0, 1.0, &Rng::new(1)).unwrap();
    let backward =
        |net: &Sequential| net.forward(&x).unwrap().square().unwrap().mean_all().unwrap().backward().unwrap();
    let (one, two) = (network(&device), network(&device));
    let mut whole = Sgd::new(one.parameters(), 0.1).unwrap();
    let (first, last): (Vec<_>, Vec<_>) =
        two.parameters().into_iter().partition(|(path, _)| path.starts_with("fc1."));
    let mut of_first = Sgd::new(first.clone(), 0.1).unwrap();
    let mut of_last = Sgd::new(last.clone(), 0.1).unwrap();
    for _ in 0..3 {
        whole.step(backward(&one)).unwrap();
        let mut rest = backward(&two);
        let norm = rest.norm().unwrap();
        let part = rest.split_off(&first);
        assert_eq!((part.len(), rest.len()), (2, 2));
        let parts = part.norm().unwrap().hypot(rest.norm().unwrap());
        assert!((parts - norm).abs() < 1e-6 * norm, "{parts} is not {norm}");
        of_first.step(part).unwrap();
        // The first call already took these gradients.
        assert!(rest.split_off(&first).is_empty());
        of_last.step(rest.split_off(&last)).unwrap();
        assert!(rest.is_empty());
    }
    for ((path, one), (_, two)) in one.parameters().iter().zip(two.parameters()) {
        let [one, two] = [one, &two].map(|parameter| parameter.tensor().to_vec::<f32>().unwrap());
        assert_eq!(one, two, "{path}");
    }
}

#[test]
fn gradients_of_a_replaced_parameter_are_refused() {
    let device = device();
    let net = network(&device);
    let (first, last): (Vec<_>, Vec<_>) =
        net.parameters().into_iter().partition(|(path, _)| path.starts_with("fc1."));
    let x = Tensor::ones(&device, [2, 5]).unwrap();
    let mut gradients = net.forward(&x).unwrap().square().unwrap().mean_all().unwrap().backward().unwrap();
    first[0].1.convert(DType::F64).unwrap();
    let of_last = gradients.split_off(&last);
    let of_first = gradients.split_off(&first);
    assert_eq!((of_last.len(), of_first.len(), gradients.len()), (2, 2, 0));
    let refused = Sgd::new(first, 0.1).unwrap().step(of_first).unwrap_err();
    assert!(matches!(refused, Error::StaleGradient { .. }), "{refused}");
}

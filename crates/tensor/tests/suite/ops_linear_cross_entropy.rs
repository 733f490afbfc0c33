//! The cross-entropy of a projection by chunks: values, gradients and memory beside those of the unfused ops.

use crate::ops_table::device;
use bfc_core::{Bytes, Category};
use highwater_tensor::{
    BlockFormat, CrossEntropyOptions, DType, Device, Error, LinearCrossEntropyOptions, Parameter,
    QuantizedMatrix, Reduction, Result, Rng, Runtime, Tensor, checkpoint, mixed, no_grad,
};

const IGNORED: i64 = -100;
const ROWS: usize = 11;
const WIDTH: usize = 24;
const CLASSES: usize = 37;

fn noise(device: &Device, dims: &[usize], seed: u64, dtype: DType) -> Tensor {
    Tensor::normal(device, dims, 0.0, 0.5, &Rng::new(seed)).unwrap().to_dtype(dtype).unwrap()
}

/// A target for each row. Those of every third row are ignored, or of all rows.
fn targets(device: &Device, ignored: &str) -> Tensor {
    let target = |row: usize| match ignored {
        "all" => IGNORED,
        "some" if row.is_multiple_of(3) => IGNORED,
        _ => (row * 17 % CLASSES) as i64,
    };
    Tensor::from_slice(device, &(0..ROWS).map(target).collect::<Vec<_>>(), [ROWS]).unwrap()
}

fn unfused(
    hidden: &Tensor,
    weight: &Tensor,
    targets: &Tensor,
    options: LinearCrossEntropyOptions,
) -> Result<Tensor> {
    let LinearCrossEntropyOptions { label_smoothing, ignore_index, reduction, .. } = options;
    let options = CrossEntropyOptions { label_smoothing, ignore_index, reduction, class_weights: None };
    hidden.matmul(weight)?.cross_entropy_with(targets, options)
}

fn numbers(tensor: &Tensor) -> Vec<f64> {
    tensor.to_dtype(DType::F64).unwrap().to_vec::<f64>().unwrap()
}

#[track_caller]
fn assert_close(found: &Tensor, expected: &Tensor, tolerance: f64, what: &str) {
    assert_eq!((found.dims(), found.dtype()), (expected.dims(), expected.dtype()), "{what}");
    for (found, expected) in numbers(found).into_iter().zip(numbers(expected)) {
        let same = found.is_nan() && expected.is_nan();
        let close = (found - expected).abs() <= tolerance * expected.abs().max(0.1);
        assert!(same || close, "{what}: {found} for {expected}");
    }
}

/// Compares the loss, and the gradients of twice the loss.
fn compare(
    [hidden, weight]: [&Tensor; 2],
    targets: &Tensor,
    options: LinearCrossEntropyOptions,
    tolerance: f64,
    what: &str,
) {
    let leaves = || [hidden, weight].map(|tensor| tensor.detach().requiring_grad().unwrap());
    let gradients = |loss: Tensor, leaves: &[Tensor; 2]| {
        let gradients = loss.mul_scalar(2.0).unwrap().backward().unwrap();
        leaves.each_ref().map(|leaf| gradients.get(leaf).unwrap().clone())
    };
    let (own, others) = (leaves(), leaves());
    let loss = own[0].linear_cross_entropy(&own[1], targets, options).unwrap();
    let expected = unfused(&others[0], &others[1], targets, options).unwrap();
    assert_close(&loss.detach(), &expected.detach(), tolerance, what);
    let without = no_grad(|| hidden.linear_cross_entropy(weight, targets, options)).unwrap();
    assert_close(&without, &expected.detach(), tolerance, what);
    let (found, expected) = (gradients(loss, &own), gradients(expected, &others));
    for (found, expected) in found.iter().zip(&expected) {
        assert_close(found, expected, tolerance, what);
    }
}

#[test]
fn values_and_gradients_are_those_of_the_unfused_ops() {
    let device = device();
    for (dtype, tolerance) in [(DType::F64, 1e-12), (DType::F32, 2e-5)] {
        let hidden = noise(&device, &[ROWS, WIDTH], 1, dtype);
        let weight = noise(&device, &[WIDTH, CLASSES], 2, dtype);
        for chunk in [None, Some(1), Some(3), Some(4), Some(ROWS), Some(1000)] {
            for ignored in ["none", "some", "all"] {
                for (label_smoothing, reduction) in
                    [(0.0, Reduction::Mean), (0.2, Reduction::Mean), (1.0, Reduction::Sum)]
                {
                    let ignore_index = (ignored != "none").then_some(IGNORED);
                    let options =
                        LinearCrossEntropyOptions { label_smoothing, ignore_index, reduction, chunk };
                    let targets = targets(&device, ignored);
                    compare(
                        [&hidden, &weight],
                        &targets,
                        options,
                        tolerance,
                        &format!("{dtype} {options:?}"),
                    );
                }
            }
        }
    }
}

#[test]
fn inputs_may_have_any_layout() {
    let device = device();
    let dtype = DType::F64;
    let hidden = [
        ("transposed", noise(&device, &[WIDTH, ROWS], 1, dtype).t().unwrap()),
        ("from an offset on", noise(&device, &[ROWS + 3, WIDTH], 1, dtype).narrow(0, 3, ROWS).unwrap()),
        ("with gaps", noise(&device, &[2 * ROWS, WIDTH], 1, dtype).slice_step(0, 1.., 2).unwrap()),
        ("broadcast", noise(&device, &[1, WIDTH], 1, dtype).broadcast_to([ROWS, WIDTH]).unwrap()),
    ];
    let weights = [
        ("of a tied table", noise(&device, &[CLASSES, WIDTH], 2, dtype).t().unwrap()),
        ("a part of a tied table", {
            noise(&device, &[CLASSES + 2, WIDTH], 2, dtype).narrow(0, 2, CLASSES).unwrap().t().unwrap()
        }),
        ("with gaps", noise(&device, &[WIDTH, 2 * CLASSES], 2, dtype).slice_step(1, 1.., 2).unwrap()),
        ("broadcast", noise(&device, &[WIDTH, 1], 2, dtype).broadcast_to([WIDTH, CLASSES]).unwrap()),
    ];
    let (chunk, ignore_index) = (Some(4), Some(IGNORED));
    let options = LinearCrossEntropyOptions { chunk, ignore_index, ..Default::default() };
    for (of_hidden, hidden) in &hidden {
        for (of_weight, weight) in &weights {
            let what = format!("{of_hidden}, {of_weight}");
            compare([hidden, weight], &targets(&device, "some"), options, 1e-12, &what);
        }
    }
    // Targets of other types and layouts, for hidden states of three axes.
    let hidden = noise(&device, &[2, 5, WIDTH], 1, dtype);
    let weight = noise(&device, &[WIDTH, CLASSES], 2, dtype);
    let classes = Tensor::arange(&device, 0, 10).unwrap().reshape([5, 2]).unwrap().t().unwrap();
    let expected = unfused(
        &hidden.reshape([10, WIDTH]).unwrap(),
        &weight,
        &classes.reshape([10]).unwrap(),
        LinearCrossEntropyOptions::default(),
    );
    let expected = expected.unwrap();
    for dtype in [DType::U8, DType::I32, DType::U32, DType::I64] {
        let classes = classes.to_dtype(dtype).unwrap();
        let loss = hidden.linear_cross_entropy(&weight, &classes, Reduction::Mean).unwrap();
        assert_close(&loss, &expected, 1e-12, dtype.name());
    }
}

#[test]
fn no_rows_have_no_loss_and_no_gradients() {
    let device = device();
    let hidden = Tensor::zeros(&device, [0, WIDTH]).unwrap().requiring_grad().unwrap();
    let weight = Tensor::ones(&device, [WIDTH, CLASSES]).unwrap().requiring_grad().unwrap();
    let targets = Tensor::from_slice::<i64>(&device, &[], [0]).unwrap();
    let loss = hidden.linear_cross_entropy(&weight, &targets, Reduction::Sum).unwrap();
    assert_eq!(loss.item::<f32>().unwrap(), 0.0);
    let gradients = loss.backward().unwrap();
    assert_eq!(gradients.get(&hidden).unwrap().dims(), [0, WIDTH]);
    assert_eq!(numbers(gradients.get(&weight).unwrap()), [0.0; WIDTH * CLASSES]);
    let mean = hidden.linear_cross_entropy(&weight, &targets, Reduction::Mean).unwrap();
    assert!(mean.item::<f32>().unwrap().is_nan());
}

#[test]
fn logits_of_half_precision_are_single() {
    let device = device();
    for (dtype, tolerance) in [(DType::BF16, 3e-2), (DType::F16, 4e-3)] {
        let hidden = noise(&device, &[ROWS, WIDTH], 1, dtype);
        let weight = noise(&device, &[CLASSES, WIDTH], 2, dtype).t().unwrap();
        let single = [&hidden, &weight].map(|tensor| tensor.to_dtype(DType::F32).unwrap());
        for chunk in [1, 4, ROWS] {
            let ignore_index = Some(IGNORED);
            let options =
                LinearCrossEntropyOptions { chunk: Some(chunk), ignore_index, ..Default::default() };
            let targets = targets(&device, "some");
            compare([&hidden, &weight], &targets, options, tolerance, &format!("{dtype}, {chunk}"));
            let loss = hidden.linear_cross_entropy(&weight, &targets, options).unwrap();
            let expected = single[0].linear_cross_entropy(&single[1], &targets, options).unwrap();
            assert_close(&loss, &expected, 1e-5, "the loss is that of f32");
        }
    }
}

#[test]
fn mixed_precision_applies_to_the_products() {
    let device = device();
    let hidden = noise(&device, &[ROWS, WIDTH], 1, DType::F32);
    let weight = noise(&device, &[WIDTH, CLASSES], 2, DType::F32);
    let targets = targets(&device, "none");
    let options = LinearCrossEntropyOptions { chunk: Some(4), ..Default::default() };
    let full = hidden.linear_cross_entropy(&weight, &targets, options).unwrap();
    let _mixed = mixed(DType::BF16).unwrap();
    // The gradients of the logits are rounded to bf16 before they are divided by the number of targets.
    compare([&hidden, &weight], &targets, options, 1e-2, "mixed");
    let cast = hidden.linear_cross_entropy(&weight, &targets, options).unwrap();
    assert_ne!(cast.item::<f32>().unwrap(), full.item::<f32>().unwrap());
}

#[test]
fn quantized_matrices_have_the_loss_of_their_values() {
    let device = device();
    for dtype in [DType::F32, DType::BF16] {
        let hidden = noise(&device, &[ROWS, 64], 1, dtype);
        for format in [BlockFormat::Q8_0, BlockFormat::Q4_1] {
            let table = noise(&device, &[CLASSES, 64], 2, DType::F32);
            let quantized = QuantizedMatrix::quantize(&table, format).unwrap();
            let dense = quantized.dequantize().unwrap().t().unwrap();
            let targets = targets(&device, "some");
            let ignore_index = Some(IGNORED);
            let options = LinearCrossEntropyOptions { chunk: Some(4), ignore_index, ..Default::default() };
            let step = |loss: &dyn Fn(&Tensor) -> Result<Tensor>| {
                let leaf = hidden.detach().requiring_grad().unwrap();
                let loss = loss(&leaf).unwrap();
                let gradients = loss.backward().unwrap();
                (loss.detach(), gradients.get(&leaf).unwrap().clone())
            };
            let found = step(&|x| x.linear_cross_entropy(&quantized, &targets, options));
            let expected = step(&|x| x.linear_cross_entropy(&dense, &targets, options));
            let tolerance = if dtype == DType::F32 { 1e-4 } else { 3e-2 };
            assert_close(&found.0, &expected.0, tolerance, "loss");
            assert_close(&found.1, &expected.1, tolerance, "gradient");
        }
    }
}

/// The bytes that a loss keeps for its backward pass.
fn kept(device: &Device, loss: impl FnOnce() -> Result<Tensor>) -> u64 {
    let pool = device.default_allocator().unwrap();
    let before = pool.ledger().category(Category::Activation);
    let loss = loss().unwrap();
    let kept = pool.ledger().category(Category::Activation) - before;
    drop(loss);
    kept
}

#[test]
fn a_frozen_weight_has_no_gradient_and_takes_no_memory() {
    let device = device();
    let weight = Parameter::new(noise(&device, &[CLASSES, 64], 2, DType::F32)).unwrap();
    let hidden = noise(&device, &[16, 64], 1, DType::F32).requiring_grad().unwrap();
    let targets = Tensor::arange(&device, 0, 16).unwrap();
    let loss = || hidden.linear_cross_entropy(&weight.tensor().t()?, &targets, Reduction::Mean);
    let [of_hidden, of_weight] = [16 * 64 * 4, (CLASSES * 64 * 4_usize).next_multiple_of(256)];
    assert_eq!(kept(&device, loss), (of_hidden + of_weight) as u64);
    weight.freeze();
    assert_eq!(kept(&device, loss), of_hidden as u64);
    let gradients = loss().unwrap().backward().unwrap();
    assert_eq!(gradients.len(), 1);
    assert_eq!(kept(&device, || no_grad(loss)), 0);
}

#[test]
fn a_checkpointed_loss_is_computed_again() {
    let device = device();
    let hidden = noise(&device, &[ROWS, WIDTH], 1, DType::F32).requiring_grad().unwrap();
    let parameter = Parameter::new(noise(&device, &[WIDTH, CLASSES], 2, DType::F32)).unwrap();
    let options = LinearCrossEntropyOptions { chunk: Some(4), ..Default::default() };
    let targets = targets(&device, "none");
    let gradients = |is_checkpointed: bool| {
        let (weight, targets) = (parameter.clone(), targets.clone());
        let program = move |x: &Tensor| x.linear_cross_entropy(&weight.tensor(), &targets, options);
        let loss = if is_checkpointed { checkpoint(&hidden, program) } else { program(&hidden) }.unwrap();
        let gradients = loss.backward().unwrap();
        [&hidden, &parameter.tensor()].map(|leaf| numbers(gradients.get(leaf).unwrap()))
    };
    assert_eq!(gradients(true), gradients(false));
}

#[test]
fn no_buffer_has_all_logits() {
    let device = device();
    let [rows, width, classes] = [256, 32, 4096];
    let weight = noise(&device, &[width, classes], 2, DType::F32);
    let hidden = noise(&device, &[rows, width], 1, DType::F32).requiring_grad().unwrap();
    let targets = Tensor::full_of(&device, [rows], 7, DType::I64).unwrap();
    let options = LinearCrossEntropyOptions { chunk: Some(16), ..Default::default() };
    let pool = device.default_allocator().unwrap();
    let before = pool.stats().bytes_in_use;
    pool.clear_stats();
    hidden.linear_cross_entropy(&weight, &targets, options).unwrap().backward().unwrap();
    let peak = pool.stats().peak_bytes_in_use - before;
    let all = (rows * classes * 4) as u64;
    assert!(peak < all / 2, "{peak} of {all}");
    // The default chunk of a language model takes at most 32 MiB.
    let dry = Runtime::builder().threads(1).build().unwrap().dry().unwrap();
    let hidden = Tensor::zeros(&dry, [4096, 64]).unwrap().requiring_grad().unwrap();
    let weight = Tensor::zeros(&dry, [64, 50_257]).unwrap();
    let targets = Tensor::full_of(&dry, [4096], 0, DType::I64).unwrap();
    let pool = dry.default_allocator().unwrap();
    let before = pool.stats().bytes_in_use;
    pool.clear_stats();
    hidden.linear_cross_entropy(&weight, &targets, Reduction::Mean).unwrap().backward().unwrap();
    let peak = pool.stats().peak_bytes_in_use - before;
    assert!((30 << 20..48 << 20).contains(&peak), "{peak}");
}

#[test]
fn a_pool_that_is_too_small_leaves_everything_unchanged() {
    let options = LinearCrossEntropyOptions { chunk: Some(4), ..Default::default() };
    let run = |limit: Option<Bytes>| -> Result<u64> {
        let builder = Runtime::builder().threads(1);
        let runtime = limit.into_iter().fold(builder, |builder, limit| builder.pool(limit)).build().unwrap();
        let device = runtime.cpu().unwrap();
        let hidden = Tensor::ones(&device, [ROWS, WIDTH])?.requiring_grad()?;
        let weight = Tensor::ones(&device, [WIDTH, CLASSES])?.requiring_grad()?;
        let targets = Tensor::from_slice(&device, &[1i64; ROWS], [ROWS])?;
        let pool = device.default_allocator()?;
        let before = pool.stats().bytes_in_use;
        let result = hidden.linear_cross_entropy(&weight, &targets, options).and_then(|loss| loss.backward());
        if let Err(error) = result {
            assert!(error.out_of_memory().is_some(), "{error}");
            assert_eq!(pool.stats().bytes_in_use, before, "{error}");
            assert_eq!(hidden.to_vec::<f32>().unwrap(), [1.0; ROWS * WIDTH]);
            return Err(error);
        }
        Ok(pool.stats().peak_bytes_in_use)
    };
    let peak = run(None).unwrap();
    let failed = (0..peak / 256).filter(|blocks| run(Some(Bytes(blocks * 256))).is_err()).count();
    assert!(failed as u64 * 256 + 256 >= peak / 2, "{failed} failed below {peak}");
}

#[test]
fn errors_name_the_op_and_both_shapes() {
    let device = device();
    let of = |dims: &[usize]| Tensor::ones(&device, dims).unwrap();
    let classes = |count: usize| Tensor::arange(&device, 0, count as i64).unwrap();
    let message = |hidden: &[usize], weight: &[usize], targets: Tensor| {
        of(hidden).linear_cross_entropy(&of(weight), &targets, Reduction::Mean).unwrap_err().to_string()
    };
    assert_eq!(
        message(&[2, 3], &[4, 5], classes(2)),
        "linear_cross_entropy: shapes [2, 3] and [4, 5] do not match: the inner sizes 3 and 4 must be equal"
    );
    assert_eq!(
        message(&[2, 3], &[3, 5], classes(3)),
        "linear_cross_entropy: shapes [2, 3] and [3] do not match: there must be one target per row of hidden states"
    );
    let outside = Tensor::from_slice(&device, &[1i64, 5], [2]).unwrap();
    let error = of(&[2, 3]).linear_cross_entropy(&of(&[3, 5]), &outside, Reduction::Mean).unwrap_err();
    assert!(
        matches!(error, Error::IndexOutOfRange { op: "linear_cross_entropy", index: 5, len: 5 }),
        "{error}"
    );
    let quantized = QuantizedMatrix::quantize(&of(&[5, 32]), BlockFormat::Q8_0).unwrap();
    let error = of(&[2, 3]).linear_cross_entropy(&quantized, &classes(2), Reduction::Mean).unwrap_err();
    assert!(error.to_string().contains("shapes [2, 3] and [5, 32]"), "{error}");
    let bad = |options: LinearCrossEntropyOptions| {
        let error = of(&[2, 3]).linear_cross_entropy(&of(&[3, 5]), &classes(2), options).unwrap_err();
        assert!(matches!(error, Error::BadArgument { op: "linear_cross_entropy", .. }), "{error}");
    };
    bad(LinearCrossEntropyOptions { label_smoothing: 1.5, ..Default::default() });
    bad(LinearCrossEntropyOptions { chunk: Some(0), ..Default::default() });
    bad(Reduction::None.into());
    for (hidden, weight) in [(&[][..], &[3, 5][..]), (&[2, 3], &[3])] {
        let error = of(hidden).linear_cross_entropy(&of(weight), &classes(2), Reduction::Mean).unwrap_err();
        assert!(matches!(error, Error::BadRank { op: "linear_cross_entropy", .. }), "{error}");
    }
}

//! Compares the errors of results and gradients in 16 bits with those of PyTorch, which `reference/make_half.py` wrote.
//!
//! An error is ‖y - z‖ / ‖z‖, where z is computed in f64 of the same rounded inputs. It may be [`MOST`] times PyTorch's, or that of z
//! rounded once, as PyTorch's may be 0 by luck.

use crate::ops_table::device;
use highwater_tensor::backend::{Binary, Unary};
use highwater_tensor::{
    Activation, AttentionOptions, BatchStatistics, Conv1dOptions, Conv2dOptions, CrossEntropyOptions, DType,
    Device, Interpolation, Norm, PadMode, Pool1dOptions, Pool2dOptions, RecurrentCell, RecurrentWeights,
    Reduction, Result, SortOrder, Tensor,
};

const LINES: &str = include_str!("../reference/half.txt");

/// The largest error relative to PyTorch's.
const MOST: f64 = 1.5;

/// The number of the gradient of the result among the inputs.
const GRADIENT: u32 = 99;

/// Returns 32 well mixed bits for an element of an input.
fn hash(element: u32, input: u32) -> u32 {
    let x = (element + 1 + 7919 * input).wrapping_mul(2_654_435_761);
    let x = (x ^ (x >> 15)).wrapping_mul(2_246_822_519);
    let x = (x ^ (x >> 13)).wrapping_mul(3_266_489_917);
    x ^ (x >> 16)
}

/// Returns the value of an element among `count`, as `values` of `make_half.py`.
fn value(kind: char, element: u32, count: u32, input: u32) -> f64 {
    let x = hash(element, input);
    let normal = (f64::from(x.to_le_bytes().map(u32::from).iter().sum::<u32>()) - 510.0) / 256.0;
    match kind {
        'n' => normal,
        'w' => normal / 4.0,
        's' => normal + 8.0,
        'p' => f64::from(x & 511) / 256.0 + 0.5,
        'a' => (f64::from(x & 255) / 256.0 + 0.25) * (1.0 - f64::from(x >> 8 & 1) * 2.0),
        'u' => f64::from(x & 255) / 256.0 + 1.0 / 512.0,
        'd' => (f64::from((element * 167 + 13) % count) - f64::from(count / 2)) / 64.0,
        other => panic!("no kind {other}"),
    }
}

fn floats(kind: char, input: u32, dims: &[usize], device: &Device, dtype: DType) -> Tensor {
    let count = dims.iter().product::<usize>() as u32;
    let values: Vec<f64> = (0..count).map(|element| value(kind, element, count, input)).collect();
    Tensor::from_slice(device, &values, dims).unwrap().to_dtype(dtype).unwrap()
}

/// Returns an input, such as `3x4:n`, and whether it is of floats.
fn input(spec: &str, number: u32, device: &Device, dtype: DType) -> (Tensor, bool) {
    let (shape, kind) = spec.split_once(':').unwrap();
    let dims: Vec<usize> = shape.split('x').map(|size| size.parse().unwrap()).collect();
    let hashes = (0..dims.iter().product::<usize>() as u32).map(|element| hash(element, number));
    match kind.split_at(1) {
        ("i", classes) => {
            let classes: u32 = classes.parse().unwrap();
            let indices: Vec<i64> = hashes.map(|x| i64::from(x % classes)).collect();
            (Tensor::from_slice(device, &indices, dims).unwrap(), false)
        }
        ("b", _) => {
            let mask: Vec<bool> = hashes.map(|x| x >> 3 & 1 == 1).collect();
            (Tensor::from_slice(device, &mask, dims).unwrap(), false)
        }
        _ => (floats(kind.chars().next().unwrap(), number, &dims, device, dtype), true),
    }
}

fn numbers(tensor: &Tensor) -> Vec<f64> {
    tensor.to_dtype(DType::F64).unwrap().to_vec().unwrap()
}

fn norm(values: impl Iterator<Item = f64>) -> f64 {
    values.map(|value| value * value).sum::<f64>().sqrt()
}

/// Returns the distance of values from exact ones relative to their norm.
fn error(found: &[f64], exact: &[f64]) -> f64 {
    let size = norm(exact.iter().copied());
    let distance = norm(found.iter().zip(exact).map(|(a, b)| a - b));
    if size > 0.0 { distance / size } else { distance }
}

/// Returns the result and the gradients of the float inputs, by the same gradient of the result for all types. An input without a
/// gradient has zeros.
fn computed(name: &str, inputs: &[(Tensor, bool)], narrow: DType) -> Vec<Vec<f64>> {
    let x: Vec<Tensor> = inputs
        .iter()
        .map(|(x, is_float)| if *is_float { x.clone().requiring_grad().unwrap() } else { x.clone() })
        .collect();
    let y = apply(name, &x).unwrap_or_else(|error| panic!("{name}: {error}"));
    let upstream = floats('n', GRADIENT, y.dims(), y.device(), narrow).to_dtype(y.dtype()).unwrap();
    let gradients = y.mul(&upstream).unwrap().sum_all().unwrap().backward().unwrap();
    let leaves = x.iter().filter(|x| x.requires_grad());
    let of = |x: &Tensor| gradients.get(x).map_or_else(|| vec![0.0; x.elements()], numbers);
    std::iter::once(numbers(&y)).chain(leaves.map(of)).collect()
}

/// Tests one line of the table.
fn check(line: &str, device: &Device, faults: &mut Vec<String>) {
    let mut words = line.split(' ');
    let dtype = if words.next() == Some("f16") { DType::F16 } else { DType::BF16 };
    let name = words.next().unwrap();
    let (specs, errors): (Vec<&str>, Vec<&str>) = words.partition(|word| word.contains(':'));
    let inputs: Vec<(Tensor, bool)> =
        (0..).zip(&specs).map(|(number, spec)| input(spec, number, device, dtype)).collect();
    let wide: Vec<(Tensor, bool)> = inputs
        .iter()
        .map(|(x, is_float)| (if *is_float { x.to_dtype(DType::F64).unwrap() } else { x.clone() }, *is_float))
        .collect();
    let (found, exact) = (computed(name, &inputs, dtype), computed(name, &wide, dtype));
    assert_eq!(found.len(), errors.len(), "{line}");
    for (number, ((found, exact), theirs)) in found.iter().zip(&exact).zip(errors).enumerate() {
        let rounded = Tensor::from_slice(device, exact, exact.len()).unwrap().to_dtype(dtype).unwrap();
        let (theirs, once): (f64, f64) = (theirs.parse().unwrap(), error(&numbers(&rounded), exact));
        let ours = error(found, exact);
        if ours.is_nan() || ours > MOST * theirs.max(once) {
            let what = if number == 0 { "result".to_owned() } else { format!("gradient {number}") };
            faults.push(format!(
                "{dtype} {name}, {what}: {ours:.3e}, PyTorch {theirs:.3e}, rounded once {once:.3e}"
            ));
        }
    }
}

#[test]
fn errors_are_near_those_of_pytorch() {
    let (device, mut faults) = (device(), Vec::new());
    LINES.lines().for_each(|line| check(line, &device, &mut faults));
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

fn apply(name: &str, x: &[Tensor]) -> Result<Tensor> {
    elementwise(name, x).or_else(|| over_axes(name, x)).unwrap_or_else(|| layer(name, x))
}

fn elementwise(name: &str, x: &[Tensor]) -> Option<Result<Tensor>> {
    Some(match name {
        "clamp" => x[0].clamp(-0.5, 0.75),
        "add_scalar" => x[0].add_scalar(3),
        "mul_scalar" => x[0].mul_scalar(0.3),
        "div_scalar" => x[0].div_scalar(3),
        "relu6" => x[0].relu6(),
        "prelu" => x[0].prelu(&x[1]),
        "where" => x[0].where_(&x[1], &x[2]),
        "masked_fill" => x[0].masked_fill(&x[1], -2.0),
        _ => {
            let plain = name.trim_end_matches("-broadcast");
            if let Some(&f) = Unary::ALL.iter().find(|f| f.name() == name) {
                x[0].unary(f)
            } else {
                let &f = Binary::ALL.iter().find(|f| f.name() == plain)?;
                x[0].binary(f, &x[1])
            }
        }
    })
}

/// Reductions, cumulative ops, indexing and shapes.
fn over_axes(name: &str, x: &[Tensor]) -> Option<Result<Tensor>> {
    Some(match name {
        "sum" => x[0].sum(1),
        "sum_all" => x[0].sum_all(),
        "mean" => x[0].mean([0, 2]),
        "mean_all" => x[0].mean_all(),
        "max" => x[0].max(1),
        "min" => x[0].min(0),
        "prod" => x[0].prod(1),
        "var" | "var-shifted" => x[0].var([0, 2], 1),
        "std" => x[0].std(-1, 1),
        "std_all" => x[0].std_all(1),
        "logsumexp" => x[0].logsumexp(1),
        "norm-l1" => x[0].norm(Norm::L1, 1),
        "norm-l2" => x[0].norm(Norm::L2, [0, 2]),
        "cumsum" => x[0].cumsum(1),
        "cumprod" => x[0].cumprod(1),
        "softmax" => x[0].softmax(-1),
        "softmax-first" => x[0].softmax(0),
        "log_softmax" => x[0].log_softmax(-1),
        "log_softmax-middle" => x[0].log_softmax(1),
        "sort" => x[0].sort(1, SortOrder::Ascending).map(|(values, _)| values),
        "top_k" => x[0].top_k(5, 1, SortOrder::Descending).map(|(values, _)| values),
        "gather" => x[0].gather(1, &x[1]),
        "scatter_add" => x[0].scatter_add(1, &x[1], &x[2]),
        "index_select" => x[0].index_select(0, &x[1]),
        "embedding" => x[0].embedding(&x[1]),
        "broadcast_to" => x[0].broadcast_to([30, 12, 20]),
        "unfold" => x[0].unfold(1, 9, 1),
        "tile" => x[0].tile([5, 6]),
        "repeat_interleave" => x[0].repeat_interleave(1, 9),
        "pad-replicate" => x[0].pad_with([(0, 0), (0, 0), (7, 4), (5, 6)], PadMode::Replicate),
        "pad-reflect" => x[0].pad_with([(0, 0), (0, 0), (5, 4), (5, 6)], PadMode::Reflect),
        "pad-circular" => x[0].pad_with([(0, 0), (0, 0), (5, 4), (5, 6)], PadMode::Circular),
        "cosine_similarity" => x[0].cosine_similarity(&x[1], 1, 1e-8),
        _ => return None,
    })
}

fn layer(name: &str, x: &[Tensor]) -> Result<Tensor> {
    let linear_with = |activation| x[0].linear_activation(&x[1], &x[2], activation);
    let attention = |options| x[0].attention(&x[1], &x[2], x.get(3), options);
    let causal = AttentionOptions { causal: true, ..AttentionOptions::default() };
    let each = Reduction::None;
    let affine = || Some((&x[1], &x[2]));
    match name {
        "matmul" | "matmul-stacks" | "matmul-broadcast" | "matmul-vector" => x[0].matmul(&x[1]),
        "linear" | "linear-long" => x[0].linear(&x[1], &x[2]),
        "linear_relu" => linear_with(Activation::Relu),
        "linear_gelu" => linear_with(Activation::Gelu),
        "linear_gelu_tanh" => linear_with(Activation::GeluTanh),
        "linear_silu" => linear_with(Activation::Silu),
        "einsum" => Tensor::einsum("ij,kj->ki", &[&x[0], &x[1]]),
        "einsum-elementwise" => Tensor::einsum("ij,ij->j", &[&x[0], &x[1]]),
        "einsum-three" => Tensor::einsum("ik,k,i->k", &[&x[0], &x[1], &x[2]]),
        "einsum-batches" => Tensor::einsum("bij,bjk->bki", &[&x[0], &x[1]]),
        "layer_norm" | "layer_norm-shifted" => x[0].layer_norm(affine(), 1e-5),
        "layer_norm-plain" => x[0].layer_norm(None, 1e-5),
        "rms_norm" => x[0].rms_norm(Some(&x[1]), 1e-5),
        "group_norm" => x[0].group_norm(2, affine(), 1e-5),
        "instance_norm" => x[0].instance_norm(affine(), 1e-5),
        "batch_norm" | "batch_norm-shifted" | "batch_norm-rows" => {
            x[0].batch_norm(&x[1], &x[2], BatchStatistics::Batch { running: None }, 1e-5)
        }
        "batch_norm-fixed" => {
            let dtype = x[0].dtype().computed_as();
            let [mean, variance] = [3, 4].map(|index: usize| x[index].detach().to_dtype(dtype).unwrap());
            x[0].batch_norm(&x[1], &x[2], BatchStatistics::Fixed { mean: &mean, variance: &variance }, 1e-5)
        }
        "attention" | "attention-masked" | "attention-biased" => attention(AttentionOptions::default()),
        "attention-causal" => attention(causal),
        "self_attention" => x[0].self_attention(2, causal),
        "lstm" => x[0].recurrent(RecurrentCell::Lstm, weights(&x[3..]), &[&x[1], &x[2]], false),
        "gru" => x[0].recurrent(RecurrentCell::Gru, weights(&x[2..]), &[&x[1]], false),
        "rnn" => x[0].recurrent(RecurrentCell::Tanh, weights(&x[2..]), &[&x[1]], false),
        "cross_entropy" => x[0].cross_entropy(&x[1]),
        "cross_entropy-each" => x[0].cross_entropy_with(&x[1], each),
        "cross_entropy-smoothed" => {
            x[0].cross_entropy_with(&x[1], CrossEntropyOptions { label_smoothing: 0.1, ..Default::default() })
        }
        "cross_entropy-weighted" => {
            let weights = x[2].detach();
            let options = CrossEntropyOptions { class_weights: Some(&weights), ..Default::default() };
            x[0].cross_entropy_with(&x[1], options)
        }
        "linear_cross_entropy" => x[0].linear_cross_entropy(&x[1], &x[2], Reduction::Mean),
        "mse_loss" => x[0].mse_loss(&x[1]),
        "mse_loss-each" => x[0].mse_loss_with(&x[1], each),
        "l1_loss" => x[0].l1_loss(&x[1]),
        "huber_loss" => x[0].huber_loss(&x[1], 0.5),
        "bce_with_logits" => x[0].bce_with_logits(&x[1]),
        "kl_div" => x[0].kl_div(&x[1]),
        "poisson_nll_loss" => x[0].poisson_nll_loss(&x[1]),
        "triplet_margin_loss" => x[0].triplet_margin_loss(&x[1], &x[2], 9.0),
        _ => image(name, x),
    }
}

/// The weights of a recurrent layer.
fn weights(x: &[Tensor]) -> RecurrentWeights<'_> {
    RecurrentWeights { input: &x[0], hidden: &x[1], input_bias: &x[2], hidden_bias: &x[3] }
}

/// Convolutions, pools and image sizes.
fn image(name: &str, x: &[Tensor]) -> Result<Tensor> {
    let bilinear = |align_corners| Interpolation::Bilinear { align_corners };
    let overlapping = Pool2dOptions { stride: [2; 2], padding: [1; 2], ..Pool2dOptions::square(3) };
    match name {
        "conv1d" => x[0].conv1d(&x[1], Conv1dOptions { stride: 2, ..Conv1dOptions::padded(1) }),
        "conv2d" => x[0].conv2d(&x[1], Conv2dOptions::padded(1)),
        "conv2d-1x1" => x[0].conv2d(&x[1], Conv2dOptions::default()),
        "conv2d-strided" => {
            let (stride, padding) = ([2, 1], [2, 1].into());
            let options =
                Conv2dOptions { stride, padding, dilation: [1, 2], groups: 2, ..Default::default() };
            x[0].conv2d(&x[1], options)
        }
        "conv2d-depthwise" => x[0].conv2d(&x[1], Conv2dOptions { groups: 16, ..Conv2dOptions::padded(1) }),
        "conv_transpose2d" => {
            x[0].conv_transpose2d(&x[1], Conv2dOptions { stride: [2; 2], ..Conv2dOptions::padded(1) })
        }
        "max_pool1d" => x[0].max_pool1d(Pool1dOptions { stride: 2, padding: 1, ..Pool1dOptions::new(3) }),
        "max_pool2d" => x[0].max_pool2d(Pool2dOptions::square(2)),
        "max_pool2d-overlapping" => x[0].max_pool2d(overlapping),
        "avg_pool1d" => x[0].avg_pool1d(3),
        "avg_pool2d" => x[0].avg_pool2d(Pool2dOptions::square(2)),
        "avg_pool2d-overlapping" => x[0].avg_pool2d(Pool2dOptions {
            stride: [2, 1],
            ceil_mode: true,
            count_include_pad: false,
            ..overlapping
        }),
        "adaptive_avg_pool2d" => x[0].adaptive_avg_pool2d([3, 5]),
        "adaptive_max_pool2d" => x[0].adaptive_max_pool2d([3, 5]),
        "unfold2d" => {
            let options = Conv2dOptions { stride: [2, 1], dilation: [1, 2], ..Conv2dOptions::padded(1) };
            x[0].unfold2d([3, 2], options)
        }
        "interpolate-nearest" => x[0].interpolate([14, 9], Interpolation::Nearest),
        "interpolate-bilinear" => x[0].interpolate([14, 9], bilinear(false)),
        "interpolate-aligned" => x[0].interpolate([4, 15], bilinear(true)),
        other => panic!("no op for {other}"),
    }
}

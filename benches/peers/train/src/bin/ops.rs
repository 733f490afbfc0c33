//! Times single ops for `torch_ops.py`. Reads the name of an op per input line. Prints the milliseconds of
//! its forward pass, and of forward and backward together (`-` without a gradient). An empty line prints all
//! names.

use std::io::{BufRead, Write};
use std::time::{Duration, Instant};

use highwater::prelude::*;
use highwater::{AttentionOptions, Norm, Result};

/// An op on its operands.
type Op = fn(&[Tensor]) -> Result<Tensor>;

/// How an operand is made.
#[derive(Clone, Copy)]
enum Of {
    /// Normally distributed values that require a gradient.
    Numbers(&'static [usize]),
    /// Values above 0.5 that require a gradient.
    Positive(&'static [usize]),
    /// Indices below the first argument, with the shape of the second.
    Indices(usize, &'static [usize]),
    /// Booleans, true with this probability.
    Mask(f64, &'static [usize]),
}

use Of::{Indices, Mask, Numbers, Positive};

const MEGA: &[usize] = &[1024, 1024];
const IMAGES: &[usize] = &[64, 32, 28, 28];
const HEADS: &[usize] = &[16, 4, 128, 32];

/// The ops, with their names in `torch_ops.py`.
const CASES: &[(&str, &[Of], Op)] = &[
    ("add", &[Numbers(MEGA), Numbers(MEGA)], |x| x[0].add(&x[1])),
    ("add_row", &[Numbers(MEGA), Numbers(&[1024])], |x| x[0].add(&x[1])),
    ("add_column", &[Numbers(MEGA), Numbers(&[1024, 1])], |x| x[0].add(&x[1])),
    ("add_transposed", &[Numbers(MEGA), Numbers(MEGA)], |x| x[0].add(&x[1].t()?)),
    ("mul", &[Numbers(MEGA), Numbers(MEGA)], |x| x[0].mul(&x[1])),
    ("div", &[Numbers(MEGA), Positive(MEGA)], |x| x[0].div(&x[1])),
    ("mul_scalar", &[Numbers(MEGA)], |x| x[0].mul_scalar(3.0)),
    ("maximum", &[Numbers(MEGA), Numbers(MEGA)], |x| x[0].maximum(&x[1])),
    ("exp", &[Numbers(MEGA)], |x| x[0].exp()),
    ("log", &[Positive(MEGA)], |x| x[0].log()),
    ("sqrt", &[Positive(MEGA)], |x| x[0].sqrt()),
    ("rsqrt", &[Positive(MEGA)], |x| x[0].rsqrt()),
    ("sin", &[Numbers(MEGA)], |x| x[0].sin()),
    ("tanh", &[Numbers(MEGA)], |x| x[0].tanh()),
    ("sigmoid", &[Numbers(MEGA)], |x| x[0].sigmoid()),
    ("relu", &[Numbers(MEGA)], |x| x[0].relu()),
    ("leaky_relu", &[Numbers(MEGA)], |x| x[0].leaky_relu(0.1)),
    ("gelu", &[Numbers(MEGA)], |x| x[0].gelu()),
    ("gelu_tanh", &[Numbers(MEGA)], |x| x[0].gelu_tanh()),
    ("silu", &[Numbers(MEGA)], |x| x[0].silu()),
    ("softplus", &[Numbers(MEGA)], |x| x[0].softplus()),
    ("powf", &[Positive(MEGA)], |x| x[0].powf(1.7)),
    ("square", &[Numbers(MEGA)], |x| x[0].powf(2.0)),
    ("clamp", &[Numbers(MEGA)], |x| x[0].clamp(-1.0, 1.0)),
    ("where", &[Numbers(MEGA), Numbers(MEGA), Mask(0.5, MEGA)], |x| x[2].where_(&x[0], &x[1])),
    ("masked_fill", &[Numbers(MEGA), Mask(0.5, MEGA)], |x| x[0].masked_fill(&x[1], 0.0)),
    ("greater", &[Numbers(MEGA), Numbers(MEGA)], |x| x[0].gt(&x[1])),
    ("to_f64", &[Numbers(MEGA)], |x| x[0].to_dtype(DType::F64)),
    ("to_f16", &[Numbers(MEGA)], |x| x[0].to_dtype(DType::F16)),
    ("to_bf16", &[Numbers(MEGA)], |x| x[0].to_dtype(DType::BF16)),
    ("sum_all", &[Numbers(MEGA)], |x| x[0].sum_all()),
    ("sum_rows", &[Numbers(MEGA)], |x| x[0].sum(1)),
    ("sum_columns", &[Numbers(MEGA)], |x| x[0].sum(0)),
    ("sum_channels", &[Numbers(IMAGES)], |x| x[0].sum([0, 2, 3])),
    ("mean_places", &[Numbers(IMAGES)], |x| x[0].mean([2, 3])),
    ("max_rows", &[Numbers(MEGA)], |x| x[0].max(1)),
    ("max_columns", &[Numbers(MEGA)], |x| x[0].max(0)),
    ("argmax_rows", &[Numbers(MEGA)], |x| x[0].argmax(1)),
    ("argmax_columns", &[Numbers(MEGA)], |x| x[0].argmax(0)),
    ("prod_rows", &[Positive(MEGA)], |x| x[0].prod(1)),
    ("var_rows", &[Numbers(MEGA)], |x| x[0].var(1, 1)),
    ("norm_rows", &[Numbers(MEGA)], |x| x[0].norm(Norm::L2, 1)),
    ("logsumexp_rows", &[Numbers(MEGA)], |x| x[0].logsumexp(1)),
    ("cumsum_rows", &[Numbers(MEGA)], |x| x[0].cumsum(1)),
    ("cumsum_columns", &[Numbers(MEGA)], |x| x[0].cumsum(0)),
    ("softmax_rows", &[Numbers(&[4096, 256])], |x| x[0].softmax(1)),
    ("softmax_columns", &[Numbers(&[4096, 256])], |x| x[0].softmax(0)),
    ("log_softmax_rows", &[Numbers(&[4096, 256])], |x| x[0].log_softmax(1)),
    ("layer_norm", &[Numbers(&[4096, 256]), Numbers(&[256]), Numbers(&[256])], |x| {
        x[0].layer_norm(Some((&x[1], &x[2])), 1e-5)
    }),
    ("rms_norm", &[Numbers(&[4096, 256]), Numbers(&[256])], |x| x[0].rms_norm(Some(&x[1]), 1e-5)),
    ("group_norm", &[Numbers(IMAGES), Numbers(&[32]), Numbers(&[32])], |x| {
        x[0].group_norm(8, Some((&x[1], &x[2])), 1e-5)
    }),
    ("batch_norm", &[Numbers(IMAGES)], |x| BatchNorm::new(x[0].device(), 32)?.forward(&x[0])),
    ("matmul_small", &[Numbers(&[64, 64]), Numbers(&[64, 64])], |x| x[0].matmul(&x[1])),
    ("matmul", &[Numbers(&[512, 512]), Numbers(&[512, 512])], |x| x[0].matmul(&x[1])),
    ("matmul_transposed", &[Numbers(&[512, 512]), Numbers(&[512, 512])], |x| x[0].matmul(&x[1].t()?)),
    ("matmul_batched", &[Numbers(&[64, 64, 64]), Numbers(&[64, 64, 64])], |x| x[0].matmul(&x[1])),
    ("matmul_vector", &[Numbers(MEGA), Numbers(&[1024, 1])], |x| x[0].matmul(&x[1])),
    ("linear", &[Numbers(&[256, 256]), Numbers(&[256, 512]), Numbers(&[512])], |x| x[0].linear(&x[1], &x[2])),
    ("conv3x3", &[Numbers(&[16, 16, 28, 28]), Numbers(&[32, 16, 3, 3])], |x| {
        x[0].conv2d(&x[1], Conv2dOptions::padded(1))
    }),
    ("conv3x3_stride2", &[Numbers(&[16, 16, 28, 28]), Numbers(&[32, 16, 3, 3])], |x| {
        x[0].conv2d(&x[1], Conv2dOptions { stride: [2, 2], ..Conv2dOptions::padded(1) })
    }),
    ("conv1x1", &[Numbers(&[16, 64, 28, 28]), Numbers(&[64, 64, 1, 1])], |x| {
        x[0].conv2d(&x[1], Conv2dOptions::default())
    }),
    ("conv5x5", &[Numbers(&[16, 3, 32, 32]), Numbers(&[16, 3, 5, 5])], |x| {
        x[0].conv2d(&x[1], Conv2dOptions::padded(2))
    }),
    ("conv_depthwise", &[Numbers(&[16, 32, 28, 28]), Numbers(&[32, 1, 3, 3])], |x| {
        x[0].conv2d(&x[1], Conv2dOptions { groups: 32, ..Conv2dOptions::padded(1) })
    }),
    ("conv1d", &[Numbers(&[16, 32, 512]), Numbers(&[32, 32, 3])], |x| {
        x[0].conv1d(&x[1], Conv1dOptions::padded(1))
    }),
    ("conv_transpose", &[Numbers(&[16, 32, 14, 14]), Numbers(&[32, 16, 4, 4])], |x| {
        x[0].conv_transpose2d(&x[1], Conv2dOptions { stride: [2, 2], ..Conv2dOptions::padded(1) })
    }),
    ("max_pool2", &[Numbers(IMAGES)], |x| x[0].max_pool2d(2)),
    ("max_pool3_stride2", &[Numbers(IMAGES)], |x| {
        x[0].max_pool2d(Pool2dOptions {
            size: [3, 3],
            stride: [2, 2],
            padding: [1, 1],
            ..Pool2dOptions::square(3)
        })
    }),
    ("avg_pool2", &[Numbers(IMAGES)], |x| x[0].avg_pool2d(2)),
    ("avg_pool3_stride1", &[Numbers(IMAGES)], |x| {
        x[0].avg_pool2d(Pool2dOptions {
            size: [3, 3],
            stride: [1, 1],
            padding: [1, 1],
            ..Pool2dOptions::square(3)
        })
    }),
    ("adaptive_avg_pool", &[Numbers(IMAGES)], |x| x[0].adaptive_avg_pool2d([1, 1])),
    ("embedding", &[Numbers(&[1000, 128]), Indices(1000, &[4096])], |x| x[0].index_select(0, &x[1])),
    ("index_select_columns", &[Numbers(MEGA), Indices(1024, &[512])], |x| x[0].index_select(1, &x[1])),
    ("gather", &[Numbers(MEGA), Indices(1024, MEGA)], |x| x[0].gather(1, &x[1])),
    ("scatter_add", &[Numbers(MEGA), Indices(1024, MEGA), Numbers(MEGA)], |x| {
        x[0].scatter_add(1, &x[1], &x[2])
    }),
    ("one_hot", &[Indices(256, &[4096])], |x| x[0].one_hot(256)),
    ("sort_rows", &[Numbers(MEGA)], |x| Ok(x[0].sort(1, SortOrder::Ascending)?.0)),
    ("top_k", &[Numbers(MEGA)], |x| Ok(x[0].top_k(8, 1, SortOrder::Descending)?.0)),
    ("concat_rows", &[Numbers(MEGA), Numbers(MEGA)], |x| Tensor::concat(&[&x[0], &x[1]], 0)),
    ("concat_columns", &[Numbers(MEGA), Numbers(MEGA)], |x| Tensor::concat(&[&x[0], &x[1]], 1)),
    ("stack_last", &[Numbers(MEGA), Numbers(MEGA)], |x| Tensor::stack(&[&x[0], &x[1]], 2)),
    ("transpose", &[Numbers(MEGA)], |x| x[0].t()?.contiguous()),
    ("permute_heads", &[Numbers(&[16, 128, 8, 64])], |x| x[0].permute([0, 2, 1, 3])?.contiguous()),
    ("to_channels_last", &[Numbers(IMAGES)], |x| x[0].permute([0, 2, 3, 1])?.contiguous()),
    ("slice_step", &[Numbers(MEGA)], |x| x[0].slice_step(1, .., 2)?.contiguous()),
    ("narrow_columns", &[Numbers(MEGA)], |x| x[0].narrow(1, 256, 512)?.contiguous()),
    ("pad", &[Numbers(IMAGES)], |x| x[0].pad([(0, 0), (0, 0), (1, 1), (1, 1)], 0.0)),
    ("flip_rows", &[Numbers(MEGA)], |x| x[0].flip(0)),
    ("flip_columns", &[Numbers(MEGA)], |x| x[0].flip(1)),
    ("roll", &[Numbers(MEGA)], |x| x[0].roll(7, 1)),
    ("tile", &[Numbers(&[512, 512])], |x| x[0].tile([2, 2])),
    ("repeat_interleave", &[Numbers(&[512, 512])], |x| x[0].repeat_interleave(1, 4)),
    ("tril", &[Numbers(MEGA)], |x| x[0].tril(0)),
    ("dropout", &[Numbers(MEGA)], |x| x[0].dropout(0.1, &Rng::new(1))),
    ("uniform", &[Numbers(&[1])], |x| Tensor::uniform(x[0].device(), MEGA, 0.0, 1.0, &Rng::new(1))),
    ("normal", &[Numbers(&[1])], |x| Tensor::normal(x[0].device(), MEGA, 0.0, 1.0, &Rng::new(1))),
    ("attention", &[Numbers(HEADS), Numbers(HEADS), Numbers(HEADS)], |x| {
        x[0].attention(&x[1], &x[2], None, AttentionOptions { causal: true, scale: None })
    }),
    ("cross_entropy", &[Numbers(&[4096, 256]), Indices(256, &[4096])], |x| x[0].cross_entropy(&x[1])),
    ("mse_loss", &[Numbers(MEGA), Numbers(MEGA)], |x| x[0].mse_loss(&x[1])),
    ("bce_with_logits", &[Numbers(MEGA), Positive(MEGA)], |x| x[0].bce_with_logits(&x[1].detach())),
];

fn operand(device: &Device, of: Of, seed: u64) -> Result<Tensor> {
    let rng = Rng::new(seed);
    match of {
        Numbers(shape) => Tensor::normal(device, shape, 0.0, 1.0, &rng)?.requiring_grad(),
        Positive(shape) => Tensor::uniform(device, shape, 0.5, 1.5, &rng)?.requiring_grad(),
        Indices(below, shape) => {
            Tensor::uniform(device, shape, 0.0, below as f64, &rng)?.to_dtype(DType::I64)
        }
        Mask(share, shape) => Tensor::bernoulli(device, shape, share, &rng)?.to_dtype(DType::Bool),
    }
}

/// The minimum of many runs, in milliseconds.
fn least(mut run: impl FnMut() -> Result<()>) -> Result<f64> {
    let (begin, mut least) = (Instant::now(), f64::INFINITY);
    let mut runs = 0;
    while runs < 3 || begin.elapsed() < Duration::from_millis(150) {
        let start = Instant::now();
        run()?;
        least = least.min(start.elapsed().as_secs_f64() * 1e3);
        runs += 1;
    }
    Ok(least)
}

fn measure(device: &Device, operands: &[Of], op: Op) -> Result<(f64, Option<f64>)> {
    let x = (0..).zip(operands).map(|(seed, &of)| operand(device, of, seed));
    let x = x.collect::<Result<Vec<_>>>()?;
    let forward = least(|| no_grad(|| op(&x)).map(drop))?;
    let y = op(&x)?;
    if !y.requires_grad() {
        return Ok((forward, None));
    }
    let weights = Tensor::normal_of(device, y.shape(), 0.0, 1.0, &Rng::new(99), y.dtype())?;
    let both = least(|| {
        // Each step drops its input, as Python does: a chain of calls would keep all until its end.
        let y = op(&x)?;
        let weighted = y.mul(&weights)?;
        drop(y);
        let loss = weighted.sum_all()?;
        drop(weighted);
        loss.backward().map(drop)
    })?;
    Ok((forward, Some(both)))
}

fn main() -> anyhow::Result<()> {
    let device = Runtime::builder().threads(1).build()?.cpu()?;
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let mut out = std::io::stdout().lock();
        if line.is_empty() {
            let names: Vec<_> = CASES.iter().map(|(name, ..)| *name).collect();
            writeln!(out, "{}", names.join(" "))?;
        } else {
            let case = CASES.iter().find(|(name, ..)| *name == line);
            let (_, operands, op) = case.ok_or_else(|| anyhow::anyhow!("no op is called {line}"))?;
            let (forward, both) = measure(&device, operands, *op)?;
            let both = both.map_or("-".to_owned(), |both| format!("{both:.4}"));
            writeln!(out, "{forward:.4} {both}")?;
        }
        out.flush()?;
    }
    Ok(())
}

//! Training steps whose kernels are measured. Their sizes cover those of common models.

use bfc_core::Category;

use crate::autograd::Gradients;
use crate::backend::kernels::{AdamRule, OptimizerStep, SgdRule};
use crate::backend::{RecurrentCell, kernels};
use crate::device::Device;
use crate::error::Result;
use crate::op::{Buffer, OpContext};
use crate::ops::{
    AttentionOptions, BatchStatistics, Conv2dOptions, Pool2dOptions, RecurrentWeights, SortOrder,
};
use crate::shape::{DType, Scalar, Shape};
use crate::tensor::{Rng, Tensor};

/// A step that can be repeated.
pub(super) type Step = Box<dyn FnMut() -> Result<()>>;

/// Prepares a step on a device.
pub(super) type Program = fn(&Device) -> Result<Step>;

/// A step of small kernels, to find the fixed time of each.
pub(super) const SMALL: Program = |device| perceptron(device, 4, &[8, 24, 24, 4]);

/// All programs, and whether they multiply matrices and run in mixed precision too.
pub(super) fn programs() -> [(Program, bool); 27] {
    [
        (SMALL, true),
        (|device| perceptron(device, 16, &[64, 96, 32]), true),
        (|device| perceptron(device, 48, &[640, 320, 160, 16]), true),
        (|device| perceptron(device, 96, &[512, 512, 256]), true),
        (|device| perceptron(device, 8, &[1536, 1536, 128]), true),
        (|device| perceptron(device, 192, &[1536, 1536, 640]), true),
        (|device| images(device, [40, 1, 32], [16, 40]), true),
        (|device| images(device, [24, 3, 32], [64, 16]), true),
        // Few images: their convolutions stay in the caches, one thread computes them alone, and the smallest consist mostly
        // of fixed costs.
        (|device| images(device, [1, 1, 8], [8, 16]), true),
        (|device| residual(device, [1, 32, 16]), true),
        (|device| residual(device, [2, 24, 12]), true),
        (|device| residual(device, [4, 64, 32]), true),
        (|device| residual(device, [8, 128, 12]), true),
        (|device| residual(device, [12, 128, 16]), true),
        (|device| residual(device, [8, 256, 6]), true),
        (|device| depthwise(device, [4, 64, 24]), false),
        (|device| transformer(device, [2, 32, 64, 2], 100), true),
        (|device| transformer(device, [8, 64, 160, 5], 80), true),
        (|device| transformer(device, [3, 192, 384, 6], 800), true),
        (|device| recurrent(device, RecurrentCell::Lstm, [24, 24, 192]), true),
        (|device| recurrent(device, RecurrentCell::Gru, [40, 12, 128]), true),
        (|device| recurrent(device, RecurrentCell::Lstm, [32, 24, 320]), true),
        (|device| wide(device, [16, 48, 48]), false),
        (|device| others(device, 64, 128), false),
        (|device| others(device, 512, 768), false),
        (|device| elementwise(device, 4 << 20), false),
        (optimizers, false),
    ]
}

/// A leaf of small random values.
fn leaf(device: &Device, dims: &[usize]) -> Result<Tensor> {
    Tensor::normal(device, dims, 0.0, 0.1, &Rng::new(dims.len() as u64))?.requiring_grad()
}

/// Indices below `end`.
fn indices(count: usize, end: usize) -> Vec<i64> {
    (0..count).map(|index| (index * 7919 % end) as i64).collect()
}

/// The backward pass of a mean of squares.
fn backward(y: &Tensor) -> Result<Gradients> {
    y.square()?.mean_all()?.backward()
}

/// Linear layers of these sizes with ReLU between them.
fn perceptron(device: &Device, batch: usize, sizes: &[usize]) -> Result<Step> {
    let layers: Vec<[Tensor; 2]> = sizes
        .windows(2)
        .map(|pair| Ok([leaf(device, pair)?, leaf(device, &pair[1..])?]))
        .collect::<Result<_>>()?;
    let first = sizes.first().copied().unwrap_or(1);
    let classes = sizes.last().copied().unwrap_or(1);
    let values = vec![0.5_f32; batch * first];
    let targets = indices(batch, classes);
    let ctx = OpContext::create("sgd", device, device.default_allocator()?, Category::Parameter);
    let copies = layers.iter().flatten().map(|parameter| filled(&ctx, parameter.shape()));
    let mut copies = copies.collect::<Result<Vec<Buffer>>>()?;
    drop(ctx);
    let device = device.clone();
    Ok(Box::new(move || {
        let mut x = Tensor::from_slice(&device, &values, [batch, first])?;
        for (number, [weight, bias]) in layers.iter().enumerate() {
            x = x.linear(weight, bias)?;
            if number + 1 < layers.len() {
                x = x.relu()?;
            }
        }
        let targets = Tensor::from_slice(&device, &targets, [batch])?;
        let gradients = x.cross_entropy(&targets)?.backward()?;
        let ctx = OpContext::create("sgd", &device, device.default_allocator()?, Category::Temporary);
        for (parameter, copy) in layers.iter().flatten().zip(&mut copies) {
            if let Some(gradient) = gradients.get(parameter) {
                let (grad, param) = (gradient.view(), copy.view_mut());
                ctx.compute(OptimizerStep::stateless(PLAIN, grad, param))?;
            }
        }
        Ok(())
    }))
}

/// A step of gradient descent without momentum.
const PLAIN: SgdRule = SgdRule { lr: 1e-9, ..SgdRule::DEFAULT };

/// A buffer that holds one value.
fn filled(ctx: &OpContext<'_>, shape: &Shape) -> Result<Buffer> {
    let mut buffer = ctx.output(shape, DType::F32)?;
    ctx.compute(kernels::Fill { value: Scalar::Float(0.01), out: buffer.view_mut() })?;
    Ok(buffer)
}

/// Two convolutions with few channels, each with a pool.
fn images(device: &Device, [n, channels, side]: [usize; 3], widths: [usize; 2]) -> Result<Step> {
    let x = Tensor::normal(device, [n, channels, side, side], 0.0, 1.0, &Rng::new(0))?;
    let first = leaf(device, &[widths[0], channels, 3, 3])?;
    let second = leaf(device, &[widths[1], widths[0], 3, 3])?;
    let bias = leaf(device, &[widths[0], 1, 1])?;
    Ok(Box::new(move || {
        let y = x.conv2d(&first, Conv2dOptions::padded(1))?.add(&bias)?.relu()?;
        let y = y.max_pool2d(2)?;
        let y = y.conv2d(&second, Conv2dOptions::padded(1))?.relu()?;
        backward(&y.max_pool2d(2)?).map(drop)
    }))
}

/// Blocks as in residual networks: convolutions with stride 1 and 2, and one with a single tap, each with a batch norm.
fn residual(device: &Device, [n, channels, side]: [usize; 3]) -> Result<Step> {
    let x = leaf(device, &[n, channels, side, side])?;
    let more = 2 * channels;
    let weights = [
        leaf(device, &[channels, channels, 3, 3])?,
        leaf(device, &[more, channels, 3, 3])?,
        leaf(device, &[more, channels, 1, 1])?,
    ];
    let norm = |width| -> Result<[Tensor; 2]> { Ok([leaf(device, &[width])?, leaf(device, &[width])?]) };
    let norms = [norm(channels)?, norm(more)?, norm(more)?];
    let strided = |padding| Conv2dOptions { stride: [2, 2], ..Conv2dOptions::padded(padding) };
    let options = [Conv2dOptions::padded(1), strided(1), strided(0)];
    Ok(Box::new(move || {
        let layer = |x: &Tensor, number: usize| {
            let [weight, bias] = &norms[number];
            let y = x.conv2d(&weights[number], options[number])?;
            y.batch_norm(weight, bias, BatchStatistics::Batch { running: None }, 1e-5)
        };
        let y = layer(&x, 0)?.add(&x)?.relu()?;
        backward(&layer(&y, 1)?.add(&layer(&y, 2)?)?.relu()?).map(drop)
    }))
}

/// A depthwise convolution and pools whose windows overlap.
fn depthwise(device: &Device, [n, channels, side]: [usize; 3]) -> Result<Step> {
    let x = leaf(device, &[n, channels, side, side])?;
    let weight = leaf(device, &[channels, 1, 3, 3])?;
    let options = Conv2dOptions { groups: channels, ..Conv2dOptions::padded(1) };
    let pool = Pool2dOptions { stride: [2, 2], padding: [1, 1], ..Pool2dOptions::square(3) };
    Ok(Box::new(move || {
        let y = x.conv2d(&weight, options)?.max_pool2d(pool)?;
        backward(&y.adaptive_avg_pool2d([1, 1])?).map(drop)
    }))
}

/// A transformer block with causal attention between an embedding and a classifier.
fn transformer(device: &Device, [n, len, width, heads]: [usize; 4], classes: usize) -> Result<Step> {
    let table = leaf(device, &[classes, width])?;
    let sizes =
        [[width, 3 * width], [width, width], [width, 4 * width], [4 * width, width], [width, classes]];
    let weights: Vec<Tensor> = sizes.iter().map(|size| leaf(device, size)).collect::<Result<_>>()?;
    let [scale, shift] = [leaf(device, &[width])?, leaf(device, &[width])?];
    let tokens = Tensor::from_slice(device, &indices(n * len, classes), [n, len])?;
    let options = AttentionOptions { causal: true, ..AttentionOptions::default() };
    Ok(Box::new(move || {
        let norm = |x: &Tensor| x.layer_norm(Some((&scale, &shift)), 1e-5);
        let x = table.embedding(&tokens)?;
        let inside = norm(&x)?.matmul(&weights[0])?.self_attention(heads, options)?;
        let x = x.add(&inside.matmul(&weights[1])?)?;
        let inside = norm(&x)?.matmul(&weights[2])?.gelu()?;
        let x = x.add(&inside.matmul(&weights[3])?)?;
        let scores = norm(&x)?.matmul(&weights[4])?.flatten(0, 1)?;
        scores.cross_entropy(&tokens.flatten(0, 1)?)?.backward().map(drop)
    }))
}

/// A recurrent layer.
fn recurrent(device: &Device, cell: RecurrentCell, [n, len, hidden]: [usize; 3]) -> Result<Step> {
    let inputs = hidden / 4;
    let width = cell.gates() * hidden;
    let x = leaf(device, &[n, len, inputs])?;
    let [input, state] = [leaf(device, &[inputs, width])?, leaf(device, &[hidden, width])?];
    let [input_bias, hidden_bias] = [leaf(device, &[width])?, leaf(device, &[width])?];
    Ok(Box::new(move || {
        let weights = RecurrentWeights {
            input: &input,
            hidden: &state,
            input_bias: &input_bias,
            hidden_bias: &hidden_bias,
        };
        backward(&x.recurrent(cell, weights, &[], false)?).map(drop)
    }))
}

/// Ops on large tensors, which exceed the caches.
fn wide(device: &Device, [n, channels, side]: [usize; 3]) -> Result<Step> {
    let x = leaf(device, &[n, channels, side, side])?;
    let [scale, shift] = [leaf(device, &[channels])?, leaf(device, &[channels])?];
    let rows = leaf(device, &[side])?;
    Ok(Box::new(move || {
        let y = x.batch_norm(&scale, &shift, BatchStatistics::Batch { running: None }, 1e-5)?;
        let y = y.add(&x)?.relu()?.layer_norm(Some((&rows, &rows)), 1e-5)?.gelu()?;
        let y = y.max_pool2d(2)?.sum([0, 2, 3])?;
        backward(&y).map(drop)
    }))
}

/// Ops of other classes on a matrix.
fn others(device: &Device, rows: usize, columns: usize) -> Result<Step> {
    let x = leaf(device, &[rows, columns])?;
    let rng = Rng::new(1);
    Ok(Box::new(move || {
        let y = x.dropout(0.5, &rng)?.t()?.contiguous()?.softmax(-1)?.tanh()?;
        let y = y.sum([0])?.mean_all()?.add(&y.max(-1)?.mean_all()?)?;
        let sorted = x.detach().sort(-1, SortOrder::Ascending)?.0.cumsum(-1)?;
        drop(sorted);
        y.backward().map(drop)
    }))
}

/// Arithmetic on vectors of up to this many elements.
fn elementwise(device: &Device, elements: usize) -> Result<Step> {
    let sizes = [elements >> 10, elements >> 7, elements >> 5, elements >> 3, elements];
    let vectors = sizes.map(|size| Tensor::ones(device, [size]));
    let vectors: Vec<Tensor> = vectors.into_iter().collect::<Result<_>>()?;
    Ok(Box::new(move || {
        for x in &vectors {
            let y = x.mul_scalar(0.5)?.add(x)?.relu()?;
            y.mul(x)?.sum_all()?;
        }
        Ok(())
    }))
}

/// Steps of optimizers.
fn optimizers(device: &Device) -> Result<Step> {
    let sizes = [1 << 10, 1 << 14, 1 << 18, 1 << 20, 3 << 20];
    let mut states: Vec<[Buffer; 4]> = Vec::new();
    for size in sizes {
        let ctx =
            OpContext::create("optimizer", device, device.default_allocator()?, Category::OptimizerState);
        let shape = Shape::new(&[size])?;
        let buffer = || filled(&ctx, &shape);
        states.push([buffer()?, buffer()?, buffer()?, buffer()?]);
    }
    let adam = AdamRule {
        lr: 1e-9,
        beta1: 0.9,
        beta2: 0.99,
        epsilon: 1e-8,
        weight_decay: 0.01,
        decoupled: true,
        amsgrad: false,
    };
    let sgd = SgdRule { momentum: 0.9, ..PLAIN };
    let device = device.clone();
    Ok(Box::new(move || {
        let ctx = OpContext::create("optimizer", &device, device.default_allocator()?, Category::Temporary);
        for [param, grad, mean, variance] in &mut states {
            let (grad, mean, param) = (grad.view(), mean.view_mut(), param.view_mut());
            let states = [Some(mean), Some(variance.view_mut()), None];
            ctx.compute(OptimizerStep { rule: adam.into(), number: 10, grad, states, param })?;
        }
        for [param, grad, momentum, _] in &mut states {
            let (grad, param) = (grad.view(), param.view_mut());
            let states = [Some(momentum.view_mut()), None, None];
            ctx.compute(OptimizerStep { rule: sgd.into(), number: 10, grad, states, param })?;
        }
        Ok(())
    }))
}

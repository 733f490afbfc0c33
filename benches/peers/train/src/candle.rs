//! The programs in candle, with its own optimizers. It has no momentum, so this file composes it.

use anyhow::Result;
use candle_core::{D, DType, Device, Tensor, Var};
use candle_nn::{AdamW, BatchNorm, Optimizer, ParamsAdamW, SGD, loss, ops};

use crate::Step;
use crate::workload::gpt::Gpt;
use crate::workload::{self, Data, Network, Workload, convolution};

/// A step of the workload. Its threads are rayon's.
pub fn start(workload: Workload) -> Result<Step> {
    let device = Device::Cpu;
    let vars = (workload.weights().into_iter())
        .map(|(shape, values)| Ok(Var::from_tensor(&Tensor::from_vec(values, shape, &device)?)?))
        .collect::<Result<Vec<Var>>>()?;
    let mut update = update(workload.optimizer(), &vars)?;
    let (batches, network) = (workload.batches(), workload.network());
    anyhow::ensure!(!matches!(network, Network::Recurrent(_)), "candle trains no recurrent networks here");
    let mask = match network {
        Network::Gpt(sizes) => Some(causal(sizes.context, &device)?),
        _ => None,
    };
    Ok(Box::new(move |step| {
        let batch = &batches[step % batches.len()];
        let (x, target) = (tensor(&batch.input, &device)?, tensor(&batch.target, &device)?);
        let mut weights = Weights(vars.iter().map(Var::as_tensor));
        let y = match (network, &mask) {
            (Network::Cnn, _) => cnn(&mut weights, x)?,
            (Network::ResNet18, _) => resnet(&mut weights, x)?,
            (Network::Gpt(sizes), Some(mask)) => gpt(&mut weights, sizes, &x, mask)?,
            _ => perceptron(&mut weights, x)?,
        };
        let loss = match batch.target {
            Data::Floats { .. } => loss::mse(&y, &target)?,
            Data::Indices { .. } => loss::cross_entropy(&y, &target)?,
        };
        let value = loss.to_scalar::<f32>()?;
        update.step(&loss)?;
        Ok(value)
    }))
}

fn tensor(data: &Data, device: &Device) -> Result<Tensor> {
    Ok(match data {
        Data::Floats { shape, values } => Tensor::from_slice(values, &shape[..], device)?,
        Data::Indices { shape, values } => {
            let indices = values.iter().map(|&index| index as u32).collect();
            Tensor::from_vec(indices, &shape[..], device)?
        }
    })
}

fn update(optimizer: workload::Optimizer, vars: &[Var]) -> Result<Box<dyn Update>> {
    Ok(match optimizer {
        workload::Optimizer::Sgd { rate, momentum: 0.0 } => Box::new(SGD::new(vars.to_vec(), rate)?),
        workload::Optimizer::Sgd { rate, momentum } => Box::new(Momentum {
            lr: rate,
            beta: momentum,
            of: vars.iter().map(|var| (var.clone(), None)).collect(),
        }),
        workload::Optimizer::AdamW { rate } => {
            let options = ParamsAdamW { lr: rate, weight_decay: 0.01, ..ParamsAdamW::default() };
            Box::new(AdamW::new(vars.to_vec(), options)?)
        }
    })
}

/// The parameters, in the order of their use.
struct Weights<I>(I);

impl<'a, I: Iterator<Item = &'a Tensor>> Weights<I> {
    fn next(&mut self) -> Result<&'a Tensor> {
        self.0.next().ok_or_else(|| anyhow::anyhow!("the program uses more parameters than there are"))
    }

    /// `[rows, inputs]` to `[rows, outputs]`.
    fn linear(&mut self, x: &Tensor) -> Result<Tensor> {
        Ok(x.matmul(self.next()?)?.broadcast_add(self.next()?)?)
    }

    fn norm(&mut self, x: &Tensor) -> Result<Tensor> {
        let (weight, bias) = (self.next()?, self.next()?);
        // The fast version has no gradient.
        Ok(ops::layer_norm_slow(x, weight, bias, 1e-5)?)
    }

    /// A convolution without a bias, and a batch norm with the statistics of the batch.
    fn conv_norm(&mut self, x: &Tensor, stride: usize) -> Result<Tensor> {
        let kernel = self.next()?;
        let y = x.conv2d(kernel, kernel.dim(2)? / 2, stride, 1, 1)?;
        let (weight, bias) = (self.next()?, self.next()?);
        // Running statistics, which training does not use.
        let (mean, variance) = (bias.zeros_like()?, bias.ones_like()?);
        let norm = BatchNorm::new(bias.elem_count(), mean, variance, weight.clone(), bias.clone(), 1e-5)?;
        Ok(norm.forward_train(&y)?)
    }
}

fn perceptron<'a>(weights: &mut Weights<impl Iterator<Item = &'a Tensor>>, x: Tensor) -> Result<Tensor> {
    let hidden = weights.linear(&x)?.relu()?;
    let hidden = weights.linear(&hidden)?.relu()?;
    weights.linear(&hidden)
}

fn cnn<'a>(weights: &mut Weights<impl Iterator<Item = &'a Tensor>>, mut x: Tensor) -> Result<Tensor> {
    for _ in 0..2 {
        let (kernel, bias) = (weights.next()?, weights.next()?);
        let bias = bias.reshape((1, (), 1, 1))?;
        x = x.conv2d(kernel, 1, 1, 1, 1)?.broadcast_add(&bias)?.relu()?.max_pool2d(2)?;
    }
    weights.linear(&x.flatten_from(1)?)
}

fn resnet<'a>(weights: &mut Weights<impl Iterator<Item = &'a Tensor>>, x: Tensor) -> Result<Tensor> {
    let mut x = weights.conv_norm(&x, 1)?.relu()?;
    for (_, _, stride) in convolution::blocks() {
        let inside = weights.conv_norm(&x, stride)?.relu()?;
        let inside = weights.conv_norm(&inside, 1)?;
        let shortcut = if stride > 1 { weights.conv_norm(&x, stride)? } else { x };
        x = (inside + shortcut)?.relu()?;
    }
    weights.linear(&x.mean((2, 3))?)
}

fn gpt<'a>(
    weights: &mut Weights<impl Iterator<Item = &'a Tensor>>,
    sizes: Gpt,
    tokens: &Tensor,
    mask: &Tensor,
) -> Result<Tensor> {
    let Gpt { layers, width, heads, context, .. } = sizes;
    let n = tokens.dim(0)?;
    let (table, places) = (weights.next()?, weights.next()?);
    let tokens = tokens.flatten_all()?;
    let mixed = table.index_select(&tokens, 0)?.reshape((n, context, width))?.broadcast_add(places)?;
    let mut x = mixed.reshape((n * context, width))?;
    for _ in 0..layers {
        let normed = weights.norm(&x)?;
        let parts = weights.linear(&normed)?.reshape((n, context, 3, heads, width / heads))?;
        let part = |index: usize| -> Result<Tensor> {
            Ok(parts.narrow(2, index, 1)?.squeeze(2)?.transpose(1, 2)?.contiguous()?)
        };
        let (q, k, v) = (part(0)?, part(1)?, part(2)?);
        let scores = (q.matmul(&k.t()?)? * ((width / heads) as f64).powf(-0.5))?.broadcast_add(mask)?;
        let seen = ops::softmax(&scores, D::Minus1)?.matmul(&v)?;
        let seen = seen.transpose(1, 2)?.reshape((n * context, width))?;
        x = (x + weights.linear(&seen)?)?;
        let normed = weights.norm(&x)?;
        let inside = weights.linear(&normed)?.gelu_erf()?;
        x = (x + weights.linear(&inside)?)?;
    }
    let normed = weights.norm(&x)?;
    Ok(normed.matmul(weights.next()?)?)
}

/// The causal mask that is added to scores: 0 for visible positions.
fn causal(size: usize, device: &Device) -> Result<Tensor> {
    let seen = |row: usize, column: usize| if column <= row { 0.0 } else { f32::NEG_INFINITY };
    let values: Vec<f32> = (0..size * size).map(|place| seen(place / size, place % size)).collect();
    Ok(Tensor::from_vec(values, (size, size), device)?.to_dtype(DType::F32)?)
}

/// A backward pass and an update.
trait Update {
    fn step(&mut self, loss: &Tensor) -> Result<()>;
}

impl<O: Optimizer> Update for O {
    fn step(&mut self, loss: &Tensor) -> Result<()> {
        Ok(self.backward_step(loss)?)
    }
}

struct Momentum {
    lr: f64,
    beta: f64,
    of: Vec<(Var, Option<Tensor>)>,
}

impl Update for Momentum {
    fn step(&mut self, loss: &Tensor) -> Result<()> {
        let gradients = loss.backward()?;
        for (var, velocity) in &mut self.of {
            let Some(gradient) = gradients.get(var) else { continue };
            let next = match velocity.take() {
                Some(velocity) => ((velocity * self.beta)? + gradient)?,
                None => gradient.clone(),
            };
            var.set(&var.sub(&(&next * self.lr)?)?)?;
            *velocity = Some(next);
        }
        Ok(())
    }
}

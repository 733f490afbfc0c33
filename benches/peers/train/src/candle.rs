//! The programs in candle, with its own optimizers. It has no momentum, so this file composes it.

use anyhow::Result;
use candle_core::{D, DType, Device, Tensor, Var};
use candle_nn::{AdamW, Optimizer, ParamsAdamW, SGD, loss, ops};

use crate::Step;
use crate::workload::{Batches, DISTINCT, GPT, Gpt, Workload};

/// A step of the workload. Its threads are rayon's.
pub fn start(workload: Workload) -> Result<Step> {
    let device = Device::Cpu;
    let weights = workload.weights().into_iter();
    let vars = weights
        .map(|(shape, values)| Ok(Var::from_tensor(&Tensor::from_vec(values, shape, &device)?)?))
        .collect::<Result<Vec<Var>>>()?;
    let mut update: Box<dyn Update> = match workload {
        Workload::Mlp => Box::new(SGD::new(vars.clone(), 0.1)?),
        Workload::Tiny => Box::new(SGD::new(vars.clone(), 0.05)?),
        Workload::Cnn => Box::new(Momentum {
            lr: 0.01,
            beta: 0.9,
            of: vars.iter().map(|var| (var.clone(), None)).collect(),
        }),
        Workload::Gpt => {
            let options = ParamsAdamW { lr: 3e-4, weight_decay: 0.01, ..ParamsAdamW::default() };
            Box::new(AdamW::new(vars.clone(), options)?)
        }
    };
    let batches = Batches::new(workload);
    let mask = causal(&device)?;
    let n = workload.batch();
    Ok(Box::new(move |step| {
        let at = step % DISTINCT;
        let indices = |of: &[i64]| of.iter().map(|&index| index as u32).collect::<Vec<u32>>();
        let mut weights = Weights(vars.iter().map(Var::as_tensor));
        let loss = match workload {
            Workload::Tiny => {
                let x = Tensor::from_slice(&batches.inputs[at], (n, 2), &device)?;
                let y = Tensor::from_slice(&batches.values[at], (n, 1), &device)?;
                loss::mse(&perceptron(&mut weights, x)?, &y)?
            }
            Workload::Gpt => {
                let x = Tensor::new(indices(&batches.tokens[at]), &device)?;
                let y = Tensor::new(indices(&batches.classes[at]), &device)?;
                loss::cross_entropy(&gpt(&mut weights, &x, n, &mask)?, &y)?
            }
            Workload::Mlp | Workload::Cnn => {
                let images = &batches.inputs[at];
                let y = Tensor::new(indices(&batches.classes[at]), &device)?;
                let logits = if workload == Workload::Mlp {
                    perceptron(&mut weights, Tensor::from_slice(images, (n, 784), &device)?)?
                } else {
                    cnn(&mut weights, Tensor::from_slice(images, (n, 1, 28, 28), &device)?)?
                };
                loss::cross_entropy(&logits, &y)?
            }
        };
        let value = loss.to_scalar::<f32>()?;
        update.step(&loss)?;
        Ok(value)
    }))
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

fn gpt<'a>(
    weights: &mut Weights<impl Iterator<Item = &'a Tensor>>,
    tokens: &Tensor,
    n: usize,
    mask: &Tensor,
) -> Result<Tensor> {
    let Gpt { layers, width, heads, context, .. } = GPT;
    let (table, places) = (weights.next()?, weights.next()?);
    let mixed = table.index_select(tokens, 0)?.reshape((n, context, width))?.broadcast_add(places)?;
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
fn causal(device: &Device) -> Result<Tensor> {
    let size = GPT.context;
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

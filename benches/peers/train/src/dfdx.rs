//! The perceptrons in dfdx, whose shapes are types. The CNN and the GPT require features that it lacks on
//! stable Rust.

use anyhow::{Result, anyhow, bail};
use dfdx::optim::{Sgd, SgdConfig};
use dfdx::prelude::*;

use crate::Step;
use crate::workload::{Data, Workload};

type Perceptron<const A: usize, const B: usize, const C: usize, const D: usize> =
    ((Linear<A, B>, ReLU), (Linear<B, C>, ReLU), Linear<C, D>);

/// A step of the workload, on one thread.
pub fn start(workload: Workload) -> Result<Step> {
    match workload {
        Workload::Mlp => mlp(),
        Workload::Tiny => tiny(),
        _ => bail!("dfdx has the small perceptrons alone"),
    }
}

/// Copies weights `[inputs, outputs]` and the bias after them into a layer, which stores `[outputs, inputs]`.
fn fill<const I: usize, const O: usize>(
    layer: &mut modules::Linear<I, O, f32, Cpu>,
    weights: &mut impl Iterator<Item = (Vec<usize>, Vec<f32>)>,
) -> Result<()> {
    let mut next = || weights.next().ok_or_else(|| anyhow!("too few weights")).map(|(_, values)| values);
    let (weight, bias) = (next()?, next()?);
    let turned: Vec<f32> = (0..O).flat_map(|o| (0..I).map(move |i| i * O + o)).map(|at| weight[at]).collect();
    layer.weight.copy_from(&turned);
    layer.bias.copy_from(&bias);
    Ok(())
}

fn floats(data: &Data) -> Result<Vec<f32>> {
    match data {
        Data::Floats { values, .. } => Ok(values.clone()),
        Data::Indices { .. } => bail!("the values are indices"),
    }
}

fn tiny() -> Result<Step> {
    const BATCH: usize = 4;
    let dev = Cpu::default();
    let mut net = dev.build_module::<Perceptron<2, 16, 16, 1>, f32>();
    let mut weights = Workload::Tiny.weights().into_iter();
    fill(&mut net.0.0, &mut weights)?;
    fill(&mut net.1.0, &mut weights)?;
    fill(&mut net.2, &mut weights)?;
    let mut sgd = Sgd::new(&net, SgdConfig { lr: 0.05, momentum: None, weight_decay: None });
    let mut kept = Some(net.alloc_grads());
    let batches = Workload::Tiny.batches();
    Ok(Box::new(move |step| {
        let batch = &batches[step % batches.len()];
        let x: Tensor<Rank2<BATCH, 2>, f32, Cpu> = dev.tensor_from_vec(floats(&batch.input)?, (Const, Const));
        let y: Tensor<Rank2<BATCH, 1>, f32, Cpu> =
            dev.tensor_from_vec(floats(&batch.target)?, (Const, Const));
        let gradients = kept.take().unwrap_or_else(|| net.alloc_grads());
        let loss = mse_loss(net.forward_mut(x.trace(gradients)), y);
        let value = loss.array();
        let mut gradients = loss.backward();
        sgd.update(&mut net, &gradients).map_err(|error| anyhow!("{error:?}"))?;
        net.zero_grads(&mut gradients);
        kept = Some(gradients);
        Ok(value)
    }))
}

fn mlp() -> Result<Step> {
    const BATCH: usize = 64;
    let dev = Cpu::default();
    let mut net = dev.build_module::<Perceptron<784, 256, 128, 10>, f32>();
    let mut weights = Workload::Mlp.weights().into_iter();
    fill(&mut net.0.0, &mut weights)?;
    fill(&mut net.1.0, &mut weights)?;
    fill(&mut net.2, &mut weights)?;
    let mut sgd = Sgd::new(&net, SgdConfig { lr: 0.1, momentum: None, weight_decay: None });
    let mut kept = Some(net.alloc_grads());
    let batches = Workload::Mlp.batches();
    Ok(Box::new(move |step| {
        let batch = &batches[step % batches.len()];
        let x: Tensor<Rank2<BATCH, 784>, f32, Cpu> =
            dev.tensor_from_vec(floats(&batch.input)?, (Const, Const));
        let Data::Indices { values: classes, .. } = &batch.target else { bail!("classes are indices") };
        let mut targets = vec![0.0; BATCH * 10];
        classes.iter().enumerate().for_each(|(row, class)| targets[row * 10 + *class as usize] = 1.0);
        let y: Tensor<Rank2<BATCH, 10>, f32, Cpu> = dev.tensor_from_vec(targets, (Const, Const));
        let gradients = kept.take().unwrap_or_else(|| net.alloc_grads());
        let loss = cross_entropy_with_logits_loss(net.forward_mut(x.trace(gradients)), y);
        let value = loss.array();
        let mut gradients = loss.backward();
        sgd.update(&mut net, &gradients).map_err(|error| anyhow!("{error:?}"))?;
        net.zero_grads(&mut gradients);
        kept = Some(gradients);
        Ok(value)
    }))
}

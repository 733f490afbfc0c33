//! The programs in burn, on its CPU backend `flex`.

use anyhow::{Context, Result};
use burn::module::{Module, Param};
use burn::nn::loss::{CrossEntropyLossConfig, MseLoss, Reduction};
use burn::optim::momentum::MomentumConfig;
use burn::optim::{AdamWConfig, GradientsParams, ModuleOptimizer, SgdConfig};
use burn::tensor::module::{attention, conv2d, layer_norm, linear, max_pool2d};
use burn::tensor::ops::{AttentionModuleOptions, ConvOptions, MaxPoolOptions};
use burn::tensor::{Device, Int, Tensor, TensorData, activation};

use crate::Step;
use crate::workload::{Batches, DISTINCT, GPT, Gpt, Workload};

/// A step of the workload. Its threads are rayon's.
pub fn start(workload: Workload) -> Result<Step> {
    let plain = Device::flex();
    let device = plain.clone().autodiff();
    let (mut optimizer, rate): (ModuleOptimizer, f64) = match workload {
        Workload::Mlp => (SgdConfig::new().init(), 0.1),
        Workload::Tiny => (SgdConfig::new().init(), 0.05),
        Workload::Cnn => {
            let momentum = MomentumConfig::new().with_momentum(0.9).with_dampening(0.0);
            (SgdConfig::new().with_momentum(Some(momentum)).init(), 0.01)
        }
        Workload::Gpt => (AdamWConfig::new().with_weight_decay(0.01).with_epsilon(1e-8).init(), 3e-4),
    };
    let mut model = Some(Weights::new(workload, &device));
    let batches = Batches::new(workload);
    let n = workload.batch();
    let cross_entropy = CrossEntropyLossConfig::new().init(&device);
    Ok(Box::new(move |step| {
        let at = step % DISTINCT;
        let of = model.take().context("an earlier step failed")?;
        let mut weights = Use { of: &of, vectors: 0, matrices: 0, kernels: 0 };
        let indices =
            |of: &[i64]| Tensor::<1, Int>::from_data(TensorData::new(of.to_vec(), [of.len()]), &device);
        let loss = match workload {
            Workload::Tiny => {
                let x = Tensor::<2>::from_data(TensorData::new(batches.inputs[at].clone(), [n, 2]), &device);
                let y = Tensor::<2>::from_data(TensorData::new(batches.values[at].clone(), [n, 1]), &device);
                MseLoss::new().forward(weights.perceptron(x), y, Reduction::Mean)
            }
            Workload::Gpt => {
                let tokens = indices(&batches.tokens[at]);
                cross_entropy.forward(weights.gpt(tokens, n), indices(&batches.classes[at]))
            }
            Workload::Mlp | Workload::Cnn => {
                let images = batches.inputs[at].clone();
                let logits = if workload == Workload::Mlp {
                    weights.perceptron(Tensor::from_data(TensorData::new(images, [n, 784]), &device))
                } else {
                    weights.cnn(Tensor::from_data(TensorData::new(images, [n, 1, 28, 28]), &device))
                };
                cross_entropy.forward(logits, indices(&batches.classes[at]))
            }
        };
        let value = loss.clone().into_scalar::<f32>();
        let gradients = GradientsParams::from_grads(loss.backward(), &of);
        model = Some(optimizer.step(rate, of, gradients));
        Ok(value)
    }))
}

/// The parameters by rank, in the order of their use.
#[derive(Module, Debug)]
struct Weights {
    vectors: Vec<Param<Tensor<1>>>,
    matrices: Vec<Param<Tensor<2>>>,
    kernels: Vec<Param<Tensor<4>>>,
}

impl Weights {
    fn new(workload: Workload, device: &Device) -> Self {
        let mut of = Self { vectors: Vec::new(), matrices: Vec::new(), kernels: Vec::new() };
        for (shape, values) in workload.weights() {
            let rank = shape.len();
            let values = TensorData::new(values, shape);
            match rank {
                1 => of.vectors.push(Param::from_tensor(Tensor::from_data(values, device))),
                2 => of.matrices.push(Param::from_tensor(Tensor::from_data(values, device))),
                _ => of.kernels.push(Param::from_tensor(Tensor::from_data(values, device))),
            }
        }
        of
    }
}

/// The parameters, and how many of them a program has used.
struct Use<'a> {
    of: &'a Weights,
    vectors: usize,
    matrices: usize,
    kernels: usize,
}

impl Use<'_> {
    fn vector(&mut self) -> Tensor<1> {
        self.vectors += 1;
        self.of.vectors[self.vectors - 1].val()
    }

    fn matrix(&mut self) -> Tensor<2> {
        self.matrices += 1;
        self.of.matrices[self.matrices - 1].val()
    }

    fn linear<const D: usize>(&mut self, x: Tensor<D>) -> Tensor<D> {
        let (weight, bias) = (self.matrix(), self.vector());
        linear(x, weight, Some(bias))
    }

    fn norm<const D: usize>(&mut self, x: Tensor<D>) -> Tensor<D> {
        let (weight, bias) = (self.vector(), self.vector());
        layer_norm(x, weight, Some(bias), 1e-5)
    }

    fn perceptron(&mut self, x: Tensor<2>) -> Tensor<2> {
        let hidden = activation::relu(self.linear(x));
        let hidden = activation::relu(self.linear(hidden));
        self.linear(hidden)
    }

    fn cnn(&mut self, mut x: Tensor<4>) -> Tensor<2> {
        for _ in 0..2 {
            self.kernels += 1;
            let (kernel, bias) = (self.of.kernels[self.kernels - 1].val(), self.vector());
            let options = ConvOptions::new([1, 1], [1, 1], [1, 1], 1);
            x = activation::relu(conv2d(x, kernel, Some(bias), options));
            x = max_pool2d(x, MaxPoolOptions::new([2, 2]));
        }
        self.linear(x.flatten::<2>(1, 3))
    }

    fn gpt(&mut self, tokens: Tensor<1, Int>, n: usize) -> Tensor<2> {
        let Gpt { layers, width, heads, context, .. } = GPT;
        let (table, places) = (self.matrix(), self.matrix());
        let mixed = table.select(0, tokens).reshape([n, context, width]);
        let mut x = mixed + places.unsqueeze::<3>();
        for _ in 0..layers {
            let normed = self.norm(x.clone());
            let parts = self.linear(normed).reshape([n, context, 3, heads, width / heads]);
            let part = |index: usize| parts.clone().narrow(2, index, 1).squeeze_dim::<4>(2).swap_dims(1, 2);
            let options = AttentionModuleOptions { is_causal: true, ..AttentionModuleOptions::default() };
            let seen = attention(part(0), part(1), part(2), None, None, options);
            let seen = seen.swap_dims(1, 2).reshape([n, context, width]);
            x = x + self.linear(seen);
            let normed = self.norm(x.clone());
            let inside = activation::gelu(self.linear(normed));
            x = x + self.linear(inside);
        }
        let normed = self.norm(x).reshape([n * context, width]);
        normed.matmul(self.matrix())
    }
}

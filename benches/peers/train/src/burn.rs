//! The programs in burn, on its CPU backend `flex`.

use anyhow::{Context, Result, bail};
use burn::module::{Module, Param};
use burn::nn::loss::{CrossEntropyLossConfig, MseLoss, Reduction};
use burn::optim::momentum::MomentumConfig;
use burn::optim::{AdamWConfig, GradientsParams, ModuleOptimizer, SgdConfig};
use burn::tensor::module::{attention, batch_norm_train, conv2d, layer_norm, linear, max_pool2d};
use burn::tensor::ops::{AttentionModuleOptions, ConvOptions, MaxPoolOptions};
use burn::tensor::{Device, Int, Tensor, TensorData, activation};

use crate::Step;
use crate::workload::gpt::Gpt;
use crate::workload::{self, Data, Network, Workload, convolution};

/// A step of the workload. Its threads are rayon's.
pub fn start(workload: Workload) -> Result<Step> {
    let plain = Device::flex();
    let device = plain.clone().autodiff();
    let (mut optimizer, rate) = optimizer(workload.optimizer());
    let mut model = Some(Weights::new(workload, &device));
    let (batches, network) = (workload.batches(), workload.network());
    let cross_entropy = CrossEntropyLossConfig::new().init(&device);
    Ok(Box::new(move |step| {
        let batch = &batches[step % batches.len()];
        let of = model.take().context("an earlier step failed")?;
        let mut weights = Use { of: &of, vectors: 0, matrices: 0, kernels: 0 };
        let input = &batch.input;
        let y = match network {
            Network::Perceptron(_) => weights.perceptron(floats(input, &device)?),
            Network::Cnn => weights.cnn(floats(input, &device)?),
            Network::ResNet18 => weights.resnet(floats(input, &device)?),
            Network::Gpt(sizes) => weights.gpt(indices(input, &device)?, sizes),
            Network::Recurrent(_) => bail!("burn trains no recurrent networks here"),
        };
        let loss = match batch.target {
            Data::Floats { .. } => {
                MseLoss::new().forward(y, floats(&batch.target, &device)?, Reduction::Mean)
            }
            Data::Indices { .. } => cross_entropy.forward(y, indices(&batch.target, &device)?),
        };
        let value = loss.clone().into_scalar::<f32>();
        let gradients = GradientsParams::from_grads(loss.backward(), &of);
        model = Some(optimizer.step(rate, of, gradients));
        Ok(value)
    }))
}

/// The optimizer and the learning rate.
fn optimizer(kind: workload::Optimizer) -> (ModuleOptimizer, f64) {
    match kind {
        workload::Optimizer::Sgd { rate, momentum: 0.0 } => (SgdConfig::new().init(), rate),
        workload::Optimizer::Sgd { rate, momentum } => {
            let momentum = MomentumConfig::new().with_momentum(momentum).with_dampening(0.0);
            (SgdConfig::new().with_momentum(Some(momentum)).init(), rate)
        }
        workload::Optimizer::AdamW { rate } => {
            (AdamWConfig::new().with_weight_decay(0.01).with_epsilon(1e-8).init(), rate)
        }
    }
}

fn floats<const D: usize>(data: &Data, device: &Device) -> Result<Tensor<D>> {
    match data {
        Data::Floats { shape, values } => {
            Ok(Tensor::from_data(TensorData::new(values.clone(), shape.clone()), device))
        }
        Data::Indices { .. } => bail!("the values are indices"),
    }
}

/// Indices, flattened.
fn indices(data: &Data, device: &Device) -> Result<Tensor<1, Int>> {
    match data {
        Data::Indices { values, .. } => {
            Ok(Tensor::from_data(TensorData::new(values.clone(), [values.len()]), device))
        }
        Data::Floats { .. } => bail!("the values are no indices"),
    }
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

    /// A convolution without a bias, and a batch norm with the statistics of the batch.
    fn conv_norm(&mut self, x: Tensor<4>, stride: usize) -> Tensor<4> {
        self.kernels += 1;
        let kernel = self.of.kernels[self.kernels - 1].val();
        let padding = kernel.dims()[2] / 2;
        let y = conv2d(x, kernel, None, ConvOptions::new([stride; 2], [padding; 2], [1, 1], 1));
        let (weight, bias) = (self.vector(), self.vector());
        batch_norm_train(y, weight, bias, 1e-5).output
    }

    fn resnet(&mut self, x: Tensor<4>) -> Tensor<2> {
        let mut x = activation::relu(self.conv_norm(x, 1));
        for (_, _, stride) in convolution::blocks() {
            let inside = activation::relu(self.conv_norm(x.clone(), stride));
            let inside = self.conv_norm(inside, 1);
            let shortcut = if stride > 1 { self.conv_norm(x, stride) } else { x };
            x = activation::relu(inside + shortcut);
        }
        self.linear(x.mean_dim(2).mean_dim(3).flatten::<2>(1, 3))
    }

    fn gpt(&mut self, tokens: Tensor<1, Int>, sizes: Gpt) -> Tensor<2> {
        let Gpt { layers, width, heads, context, .. } = sizes;
        let n = tokens.dims()[0] / context;
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

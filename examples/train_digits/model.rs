//! The networks and a training step.

use clap::ValueEnum;
use highwater::Result;
use highwater::nn::ModulePath;
use highwater::prelude::*;
use highwater::train::{Accuracy, Figures, Metric, evaluate};

/// The kind of network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Network {
    /// Three linear layers
    Mlp,
    /// Two convolutions and a linear layer
    Cnn,
}

/// The element type of parameters, activations and gradients.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Numbers {
    /// 32 bits
    F32,
    /// 16 bits with the range of f32 and less precision
    Bf16,
    /// 16 bits with more precision and less range; the loss is scaled
    F16,
}

impl Numbers {
    /// The element type.
    pub(crate) const fn dtype(self) -> DType {
        match self {
            Self::F32 => DType::F32,
            Self::Bf16 => DType::BF16,
            Self::F16 => DType::F16,
        }
    }
}

/// Maps 64 pixels to scores of ten digits.
pub(crate) fn network(kind: Network, device: &Device, rng: &Rng) -> Result<Sequential> {
    match kind {
        Network::Mlp => perceptron(device, rng),
        Network::Cnn => convolutional(device, rng),
    }
}

fn convolutional(device: &Device, rng: &Rng) -> Result<Sequential> {
    let same = Conv2dOptions::padded(1);
    Ok(Sequential::new()
        .with("images", AsImages::default())
        .with("conv1", Conv2d::new(device, 1, 16, [3, 3], same, rng)?)
        .with("relu1", Relu)
        .with("conv2", Conv2d::new(device, 16, 32, [3, 3], same, rng)?)
        .with("relu2", Relu)
        .with("pool", MaxPool2d::new(2))
        .with("flat", Flatten)
        .with("dropout", Dropout::new(0.3, &rng.fork(0))?)
        .with("fc", Linear::new(device, 32 * 4 * 4, 10, rng)?))
}

/// Rows of 64 pixels as images of one channel.
#[derive(Debug, Default, Module)]
struct AsImages {
    path: ModulePath,
}

#[module]
impl Module for AsImages {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        x.reshape([x.dims().first().copied().unwrap_or(0), 1, 8, 8])
    }
}

fn perceptron(device: &Device, rng: &Rng) -> Result<Sequential> {
    Ok(Sequential::new()
        .with("noise", Dropout::new(0.1, &rng.fork(0))?)
        .with("fc1", Linear::new(device, 64, 256, rng)?)
        .with("relu1", Relu)
        .with("dropout1", Dropout::new(0.2, &rng.fork(1))?)
        .with("fc2", Linear::new(device, 256, 256, rng)?)
        .with("relu2", Relu)
        .with("dropout2", Dropout::new(0.2, &rng.fork(2))?)
        .with("fc3", Linear::new(device, 256, 10, rng)?))
}

/// The loss of a batch of images `x` and digits `y`.
pub(crate) fn loss(network: &impl Module, x: &Tensor, y: &Tensor) -> Result<Tensor> {
    let scores = network.forward(x)?;
    let _scope = module("loss");
    // In f32, so that the scaled loss may exceed f16.
    scores.to_dtype(DType::F32)?.cross_entropy(y)
}

/// The fraction of images classified correctly, as `test_accuracy`.
pub(crate) fn accuracy(
    network: &impl Module,
    numbers: Numbers,
    images: &ArrayDataset,
    batch_size: usize,
    device: &Device,
) -> Result<Figures> {
    let (mut accuracy, batches) = (Accuracy::default(), images.batches(batch_size, device)?);
    evaluate(batches, |x| network.forward(&x.to_dtype(numbers.dtype())?), &mut [&mut accuracy])?;
    Ok([("test_accuracy", accuracy.value())].into())
}

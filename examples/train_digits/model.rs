//! The network that reads digits, and a step of its training.

use clap::ValueEnum;
use highwater::Result;
use highwater::prelude::*;

/// Which network reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Network {
    /// Three layers that see all pixels
    Mlp,
    /// Convolutions, which see where pixels are
    Cnn,
}

/// From 64 pixels to a score for each of ten digits.
pub(crate) fn network(kind: Network, device: &Device, rng: &Rng) -> Result<Sequential> {
    match kind {
        Network::Mlp => perceptron(device, rng),
        Network::Cnn => convolutional(device, rng),
    }
}

fn convolutional(device: &Device, rng: &Rng) -> Result<Sequential> {
    let same = Conv2dOptions { padding: [1, 1], ..Conv2dOptions::default() };
    Ok(Sequential::new()
        .with("images", AsImages)
        .with("conv1", Conv2d::new(device, 1, 16, [3, 3], same, rng)?)
        .with("relu1", Relu)
        .with("conv2", Conv2d::new(device, 16, 32, [3, 3], same, rng)?)
        .with("relu2", Relu)
        .with("pool", MaxPool2d(Pool2dOptions::square(2)))
        .with("flat", Flatten)
        .with("dropout", Dropout::new(0.3, rng.fork(0))?)
        .with("fc", Linear::new(device, 32 * 4 * 4, 10, rng)?))
}

/// Rows of 64 pixels as images of one channel.
#[derive(Debug)]
struct AsImages;

impl Module for AsImages {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        x.reshape([x.dims().first().copied().unwrap_or(0), 1, 8, 8])
    }
}

fn perceptron(device: &Device, rng: &Rng) -> Result<Sequential> {
    Ok(Sequential::new()
        .with("noise", Dropout::new(0.1, rng.fork(0))?)
        .with("fc1", Linear::new(device, 64, 256, rng)?)
        .with("relu1", Relu)
        .with("dropout1", Dropout::new(0.2, rng.fork(1))?)
        .with("fc2", Linear::new(device, 256, 256, rng)?)
        .with("relu2", Relu)
        .with("dropout2", Dropout::new(0.2, rng.fork(2))?)
        .with("fc3", Linear::new(device, 256, 10, rng)?))
}

/// One step on a batch of images `x` and digits `y`; returns the loss.
pub(crate) fn train_step(
    network: &impl Module,
    optimizer: &mut impl Optimizer,
    x: &Tensor,
    y: &Tensor,
) -> Result<Tensor> {
    let scores = network.forward(x)?;
    let loss = {
        let _scope = module("loss");
        scores.cross_entropy(y)?
    };
    optimizer.step(loss.backward()?)?;
    Ok(loss.detach())
}

/// The share of images that are read right; `None` on a device that computes nothing.
pub(crate) fn accuracy(
    network: &impl Module,
    images: &Dataset,
    batch_size: usize,
    device: &Device,
) -> Result<Option<f64>> {
    let _scope = module("test");
    let mut right = 0.0;
    for batch in images.batches(batch_size, device)? {
        let (x, y) = batch?;
        let digits = no_grad(|| network.forward(&x))?.argmax(1)?;
        right += digits.eq(&y)?.to_dtype(DType::F64)?.sum_all()?.item_or(0.0)?;
    }
    Ok((!device.is_dry()).then(|| right / images.rows() as f64))
}

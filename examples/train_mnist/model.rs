//! The networks, for images of 28×28 pixels.

use clap::ValueEnum;
use highwater::Result;
use highwater::prelude::*;

/// The kind of network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Network {
    /// Two convolutions with pooling and a linear layer
    Cnn,
    /// A residual network: seven convolutions with batch norms, and a linear layer
    Resnet,
}

/// Maps images to scores of ten classes.
pub(crate) fn network(kind: Network, device: &Device, rng: &Rng) -> Result<Sequential> {
    match kind {
        Network::Cnn => convolutional(device, rng),
        Network::Resnet => residual(device, rng),
    }
}

fn convolutional(device: &Device, rng: &Rng) -> Result<Sequential> {
    let same = Conv2dOptions::padded(1);
    Ok(Sequential::new()
        .with("conv1", Conv2d::new(device, 1, 16, [3, 3], same, rng)?)
        .with("relu1", Relu)
        .with("pool1", MaxPool2d::new(2))
        .with("conv2", Conv2d::new(device, 16, 32, [3, 3], same, rng)?)
        .with("relu2", Relu)
        .with("pool2", MaxPool2d::new(2))
        .with("flat", Flatten)
        .with("dropout", Dropout::new(0.2, &rng.fork(0))?)
        .with("fc", Linear::new(device, 32 * 7 * 7, 10, rng)?))
}

/// A small ResNet (He et al. 2015): blocks of 16, 32 and 64 channels, and the mean of each channel.
fn residual(device: &Device, rng: &Rng) -> Result<Sequential> {
    let block = |inputs, outputs, stride| BasicBlock::new(device, inputs, outputs, stride, rng);
    Ok(Sequential::new()
        .with("stem", ConvNorm::new(device, [1, 16], 3, 1, rng)?)
        .with("relu", Relu)
        .with("block1", block(16, 16, 1)?)
        .with("block2", block(16, 32, 2)?)
        .with("block3", block(32, 64, 2)?)
        .with("mean", AvgPool2d::new(7))
        .with("flat", Flatten)
        .with("fc", Linear::new(device, 64, 10, rng)?))
}

/// Two 3×3 convolutions whose result is added to the input. The shortcut convolves the input if its shape changes.
#[derive(Debug, Module)]
struct BasicBlock {
    first: ConvNorm,
    second: ConvNorm,
    shortcut: Option<ConvNorm>,
}

impl BasicBlock {
    fn new(device: &Device, inputs: usize, outputs: usize, stride: usize, rng: &Rng) -> Result<Self> {
        let shape_changes = stride > 1 || inputs != outputs;
        let shortcut =
            shape_changes.then(|| ConvNorm::new(device, [inputs, outputs], 1, stride, rng)).transpose()?;
        Ok(Self {
            first: ConvNorm::new(device, [inputs, outputs], 3, stride, rng)?,
            second: ConvNorm::new(device, [outputs, outputs], 3, 1, rng)?,
            shortcut,
        })
    }
}

#[module]
impl Module for BasicBlock {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let y = self.first.forward_relu(x)?;
        match &self.shortcut {
            Some(shortcut) => self.second.forward_add_relu(&y, &shortcut.forward(x)?),
            None => self.second.forward_add_relu(&y, x),
        }
    }
}

/// A convolution without a bias, and a batch norm.
#[derive(Debug, Module)]
struct ConvNorm {
    conv: Conv2d,
    norm: BatchNorm,
}

impl ConvNorm {
    fn new(
        device: &Device,
        [inputs, outputs]: [usize; 2],
        size: usize,
        stride: usize,
        rng: &Rng,
    ) -> Result<Self> {
        let options = Conv2dOptions { stride: [stride; 2], ..Conv2dOptions::padded(size / 2) };
        Ok(Self {
            conv: Conv2d::new(device, inputs, outputs, [size; 2], options, rng)?.without_bias(),
            norm: BatchNorm::new(device, outputs)?,
        })
    }
}

#[module]
impl ConvNorm {
    fn forward_relu(&self, x: &Tensor) -> Result<Tensor> {
        self.norm.forward_relu(&self.conv.forward(x)?)
    }

    /// ReLU of the sum with a residual.
    fn forward_add_relu(&self, x: &Tensor, residual: &Tensor) -> Result<Tensor> {
        self.norm.forward_add_relu(&self.conv.forward(x)?, residual)
    }
}

#[module]
impl Module for ConvNorm {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.norm.forward(&self.conv.forward(x)?)
    }
}

//! ResNet-18 in Highwater.

use highwater::prelude::*;

use crate::workload::convolution::{CLASSES, STAGES, blocks};

/// A 3×3 stem, four stages of two blocks, and a linear layer on the mean of each channel.
#[derive(Debug, Module)]
pub struct ResNet {
    stem: ConvNorm,
    blocks: Sequential,
    fc: Linear,
}

pub fn resnet18(device: &Device, rng: &Rng) -> Result<ResNet> {
    let mut layers = Sequential::new();
    for (index, (inputs, outputs, stride)) in blocks().enumerate() {
        let block = BasicBlock {
            first: ConvNorm::new(device, [inputs, outputs], 3, stride, rng)?,
            second: ConvNorm::new(device, [outputs, outputs], 3, 1, rng)?,
            shortcut: match stride {
                1 => None,
                _ => Some(ConvNorm::new(device, [inputs, outputs], 1, stride, rng)?),
            },
        };
        layers = layers.with(&format!("block{index}"), block);
    }
    Ok(ResNet {
        stem: ConvNorm::new(device, [3, STAGES[0]], 3, 1, rng)?,
        blocks: layers,
        fc: Linear::new(device, STAGES[3], CLASSES, rng)?,
    })
}

#[module]
impl Module for ResNet {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let x = self.stem.forward_relu(x)?;
        self.fc.forward(&self.blocks.forward(&x)?.mean([2, 3])?)
    }
}

/// Two 3×3 convolutions beside a shortcut.
#[derive(Debug, Module)]
struct BasicBlock {
    first: ConvNorm,
    second: ConvNorm,
    shortcut: Option<ConvNorm>,
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

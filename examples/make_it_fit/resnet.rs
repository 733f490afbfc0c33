//! ResNet-50 for images of 224×224 (He et al. 2015, with the stride in the 3×3 convolution).

use highwater::Result;
use highwater::prelude::*;

const CLASSES: usize = 1000;
const SIDE: usize = 224;

/// The blocks of each stage, and the channels of their 3×3 convolutions.
const STAGES: [(usize, usize); 4] = [(3, 64), (4, 128), (6, 256), (3, 512)];

/// The output channels of a block for each channel of its 3×3 convolution.
const EXPANSION: usize = 4;

/// The blocks are a chain, so that a plan can run each of them again.
#[derive(Debug, Module)]
pub(crate) struct ResNet50 {
    stem: ConvNorm,
    blocks: Sequential,
    classes: Linear,
}

impl ResNet50 {
    pub(crate) fn new(device: &Device) -> Result<Self> {
        let rng = Rng::new(0);
        let (mut blocks, mut inputs) = (Sequential::new(), 64);
        for (stage, (count, channels)) in STAGES.into_iter().enumerate() {
            for block in 0..count {
                let stride = if block == 0 && stage > 0 { 2 } else { 1 };
                let name = format!("stage{}.{block}", stage + 1);
                blocks = blocks.with(&name, Bottleneck::new(device, inputs, channels, stride, &rng)?);
                inputs = channels * EXPANSION;
            }
        }
        Ok(Self {
            stem: ConvNorm::new(device, [3, 64], 7, 2, &rng)?,
            blocks,
            classes: Linear::new(device, inputs, CLASSES, &rng)?,
        })
    }

    pub(crate) fn loss(&self, device: &Device, batch: usize) -> Result<Tensor> {
        let images = Tensor::zeros(device, [batch, 3, SIDE, SIDE])?;
        let classes = Tensor::zeros_of(device, [batch], DType::I64)?;
        self.forward(&images)?.cross_entropy(&classes)
    }
}

#[module]
impl Module for ResNet50 {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let x = self.stem.forward_relu(x)?;
        let x =
            x.max_pool2d(Pool2dOptions { stride: [2; 2], padding: [1; 2], ..Pool2dOptions::square(3) })?;
        self.classes.forward(&self.blocks.forward(&x)?.mean([2, 3])?)
    }
}

/// Convolutions of 1×1, 3×3 and 1×1, whose result is added to the input.
#[derive(Debug, Module)]
struct Bottleneck {
    narrow: ConvNorm,
    middle: ConvNorm,
    widen: ConvNorm,
    shortcut: Option<ConvNorm>,
}

impl Bottleneck {
    fn new(device: &Device, inputs: usize, channels: usize, stride: usize, rng: &Rng) -> Result<Self> {
        let outputs = channels * EXPANSION;
        let shape_changes = stride > 1 || inputs != outputs;
        let shortcut =
            shape_changes.then(|| ConvNorm::new(device, [inputs, outputs], 1, stride, rng)).transpose()?;
        Ok(Self {
            narrow: ConvNorm::new(device, [inputs, channels], 1, 1, rng)?,
            middle: ConvNorm::new(device, [channels, channels], 3, stride, rng)?,
            widen: ConvNorm::new(device, [channels, outputs], 1, 1, rng)?,
            shortcut,
        })
    }
}

#[module]
impl Module for Bottleneck {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let inside = self.middle.forward_relu(&self.narrow.forward_relu(x)?)?;
        match &self.shortcut {
            Some(shortcut) => self.widen.forward_add_relu(&inside, &shortcut.forward(x)?),
            None => self.widen.forward_add_relu(&inside, x),
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

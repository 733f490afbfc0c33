//! Convolutional networks: a small one, and ResNet-18 (He et al. 2015) with a stem for small images.

use super::parameters::Parameters;
use super::random::SplitMix;
use super::{Batch, Data};

/// Classes of the images.
pub const CLASSES: usize = 10;
/// Channels of the stages of ResNet-18. Each has two blocks; all but the first halve the image.
pub const STAGES: [usize; 4] = [64, 128, 256, 512];

/// The blocks of ResNet-18 in order: input channels, output channels and stride.
pub fn blocks() -> impl Iterator<Item = (usize, usize, usize)> {
    let first = |stage: usize| match stage {
        0 => (STAGES[0], STAGES[0], 1),
        _ => (STAGES[stage - 1], STAGES[stage], 2),
    };
    (0..STAGES.len()).flat_map(move |stage| [first(stage), (STAGES[stage], STAGES[stage], 1)])
}

pub fn cnn_parameters(parameters: &mut Parameters) {
    for [inputs, outputs] in [[1, 16], [16, 32]] {
        parameters.uniform([outputs, inputs, 3, 3], (1.0 / (9 * inputs) as f64).sqrt());
        parameters.zeros([outputs]);
    }
    parameters.linear(32 * 7 * 7, CLASSES);
}

pub fn resnet_parameters(parameters: &mut Parameters) {
    let mut conv_norm = |inputs: usize, outputs: usize, size: usize| {
        let deviation = (2.0 / (size * size * inputs) as f64).sqrt();
        parameters.uniform([outputs, inputs, size, size], deviation);
        parameters.norm(outputs);
    };
    conv_norm(3, STAGES[0], 3);
    for (inputs, outputs, stride) in blocks() {
        conv_norm(inputs, outputs, 3);
        conv_norm(outputs, outputs, 3);
        if stride > 1 {
            conv_norm(inputs, outputs, 1);
        }
    }
    parameters.linear(STAGES[3], CLASSES);
}

/// Square images of this shape: a bright bar at a position given by the class, with noise. One label in ten is wrong.
pub fn pictures(shape: Vec<usize>, side: usize, random: &mut SplitMix) -> Batch {
    let (n, elements) = (shape[0], shape[1..].iter().product::<usize>());
    let (mut images, mut classes) = (Vec::with_capacity(n * elements), Vec::with_capacity(n));
    for _ in 0..n {
        let class = random.below(CLASSES);
        images.extend((0..elements).map(|place| {
            let row = (place / side % side) as i64;
            let bar = if row / 2 == class + 2 { 0.5 } else { 0.0 };
            (random.unit() * 0.5 + bar) as f32
        }));
        let wrong = random.below(10) == 0;
        classes.push(if wrong { random.below(CLASSES) } else { class });
    }
    Batch {
        input: Data::Floats { shape, values: images },
        target: Data::Indices { shape: vec![n], values: classes },
    }
}

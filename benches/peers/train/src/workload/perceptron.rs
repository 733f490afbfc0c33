//! Perceptrons: linear layers with ReLU between them.

use super::parameters::Parameters;
use super::random::SplitMix;
use super::{Batch, Data};

/// Sizes of the input, the hidden layers and the output.
pub const MLP: [usize; 4] = [784, 256, 128, 10];
pub const TINY: [usize; 4] = [2, 16, 16, 1];
pub const MLP_4096: [usize; 4] = [4096, 4096, 4096, 1000];

pub fn parameters(sizes: &[usize], parameters: &mut Parameters) {
    sizes.windows(2).for_each(|pair| parameters.linear(pair[0], pair[1]));
}

/// Pairs of values and their products.
pub fn products(n: usize, random: &mut SplitMix) -> Batch {
    let inputs: Vec<f32> = (0..2 * n).map(|_| random.signed() as f32).collect();
    let products = inputs.chunks(2).map(|pair| pair[0] * pair[1]).collect();
    Batch {
        input: Data::Floats { shape: vec![n, 2], values: inputs },
        target: Data::Floats { shape: vec![n, 1], values: products },
    }
}

/// Random values, and a random class for each row.
pub fn noise(shape: Vec<usize>, classes: usize, random: &mut SplitMix) -> Batch {
    let values = (0..shape.iter().product()).map(|_| random.signed() as f32).collect();
    let n = shape[0];
    Batch {
        input: Data::Floats { shape, values },
        target: Data::Indices { shape: vec![n], values: (0..n).map(|_| random.below(classes)).collect() },
    }
}

//! Language models: transformer blocks with causal attention.

use super::parameters::Parameters;
use super::random::SplitMix;
use super::{Batch, Data};

/// The sizes of a GPT.
#[derive(Clone, Copy, Debug)]
pub struct Gpt {
    pub layers: usize,
    pub width: usize,
    pub heads: usize,
    pub context: usize,
    pub classes: usize,
}

pub const SMALL: Gpt = Gpt { layers: 4, width: 128, heads: 4, context: 64, classes: 65 };
pub const GPT_512: Gpt = Gpt { layers: 6, width: 512, heads: 8, context: 256, classes: 1000 };

pub fn parameters(sizes: Gpt, parameters: &mut Parameters) {
    let Gpt { layers, width, context, classes, .. } = sizes;
    parameters.uniform([classes, width], 0.02);
    parameters.uniform([context, width], 0.02);
    for _ in 0..layers {
        parameters.norm(width);
        parameters.linear(width, 3 * width);
        parameters.linear(width, width);
        parameters.norm(width);
        parameters.linear(width, 4 * width);
        parameters.linear(4 * width, width);
    }
    parameters.norm(width);
    parameters.uniform([width, classes], 0.02);
}

/// Random walks: each token determines the next one, up to three choices.
pub fn walks(n: usize, sizes: Gpt, random: &mut SplitMix) -> Batch {
    let Gpt { context, classes, .. } = sizes;
    let (mut tokens, mut next) = (Vec::new(), Vec::new());
    for _ in 0..n {
        let mut at = random.below(classes);
        for _ in 0..context {
            tokens.push(at);
            at = (at * 7 + 1 + random.below(3)) % classes as i64;
            next.push(at);
        }
    }
    Batch {
        input: Data::Indices { shape: vec![n, context], values: tokens },
        target: Data::Indices { shape: vec![n * context], values: next },
    }
}

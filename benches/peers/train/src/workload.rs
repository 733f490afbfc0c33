//! The workloads: four small programs, with the same values for every peer.
//!
//! Weights and batches come from splitmix64 alone (Steele, Lea and Flood 2014). `torch_peer.py` therefore
//! makes the same bits, and the losses can be compared digit by digit.

use clap::ValueEnum;

/// The programs. The constants below say their sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Workload {
    /// A perceptron 784-256-128-10 with batches of 64 and SGD.
    Mlp,
    /// conv16-pool-conv32-pool-linear on images of 28×28, batches of 64, SGD with momentum.
    Cnn,
    /// A GPT: 4 layers of width 128, 4 heads, context 64, batches of 16, AdamW.
    Gpt,
    /// A perceptron 2-16-16-1 with batches of 4: nothing but overhead.
    Tiny,
}

/// Layers, width, heads, context, characters of the GPT.
pub const GPT: Gpt = Gpt { layers: 4, width: 128, heads: 4, context: 64, classes: 65 };

/// The sizes of a GPT.
#[derive(Clone, Copy, Debug)]
pub struct Gpt {
    pub layers: usize,
    pub width: usize,
    pub heads: usize,
    pub context: usize,
    pub classes: usize,
}

impl Workload {
    pub const fn batch(self) -> usize {
        match self {
            Self::Mlp | Self::Cnn => 64,
            Self::Gpt => 16,
            Self::Tiny => 4,
        }
    }

    /// Steps of a timed block; one block before the first is not counted.
    pub const fn steps_per_block(self) -> usize {
        match self {
            Self::Mlp => 150,
            Self::Cnn => 30,
            Self::Gpt => 10,
            Self::Tiny => 2000,
        }
    }

    /// The shapes of the parameters and the standard deviations of their first values: 0 for zeros, `None`
    /// for ones. Weights are `[inputs, outputs]` or `[out channels, in channels, 3, 3]`.
    pub fn parameters(self) -> Vec<(Vec<usize>, Option<f64>)> {
        let mut of = Vec::new();
        let linear = |of: &mut Vec<_>, inputs: usize, outputs: usize| {
            of.push((vec![inputs, outputs], Some((1.0 / inputs as f64).sqrt())));
            of.push((vec![outputs], Some(0.0)));
        };
        match self {
            Self::Mlp => {
                [[784, 256], [256, 128], [128, 10]].into_iter().for_each(|[i, o]| linear(&mut of, i, o));
            }
            Self::Tiny => {
                [[2, 16], [16, 16], [16, 1]].into_iter().for_each(|[i, o]| linear(&mut of, i, o));
            }
            Self::Cnn => {
                for [inputs, outputs] in [[1, 16], [16, 32]] {
                    let spread = (1.0 / (9 * inputs) as f64).sqrt();
                    of.push((vec![outputs, inputs, 3, 3], Some(spread)));
                    of.push((vec![outputs], Some(0.0)));
                }
                linear(&mut of, 32 * 7 * 7, 10);
            }
            Self::Gpt => {
                let Gpt { layers, width, context, classes, .. } = GPT;
                of.extend([(vec![classes, width], Some(0.02)), (vec![context, width], Some(0.02))]);
                for _ in 0..layers {
                    of.extend([(vec![width], None), (vec![width], Some(0.0))]);
                    linear(&mut of, width, 3 * width);
                    linear(&mut of, width, width);
                    of.extend([(vec![width], None), (vec![width], Some(0.0))]);
                    linear(&mut of, width, 4 * width);
                    linear(&mut of, 4 * width, width);
                }
                of.extend([(vec![width], None), (vec![width], Some(0.0))]);
                of.push((vec![width, classes], Some(0.02)));
            }
        }
        of
    }

    /// The parameters' first values, in the order of [`parameters`](Self::parameters).
    pub fn weights(self) -> Vec<(Vec<usize>, Vec<f32>)> {
        let mut random = SplitMix(1);
        let start = |(shape, spread): (Vec<usize>, Option<f64>)| {
            let elements = shape.iter().product();
            let values = match spread {
                None => vec![1.0; elements],
                Some(spread) if spread == 0.0 => vec![0.0; elements],
                // Uniform with that standard deviation.
                Some(spread) => (0..elements)
                    .map(|_| ((random.unit() * 2.0 - 1.0) * 3.0f64.sqrt() * spread) as f32)
                    .collect(),
            };
            (shape, values)
        };
        self.parameters().into_iter().map(start).collect()
    }
}

/// The batches of a run: a few, used in rotation.
#[derive(Debug)]
pub struct Batches {
    /// Inputs of the perceptrons and the CNN.
    pub inputs: Vec<Vec<f32>>,
    /// Characters, for the GPT.
    pub tokens: Vec<Vec<i64>>,
    /// Classes, or next characters.
    pub classes: Vec<Vec<i64>>,
    /// The targets of the tiny perceptron.
    pub values: Vec<Vec<f32>>,
}

/// Different batches of a run.
pub const DISTINCT: usize = 32;

impl Batches {
    pub fn new(workload: Workload) -> Self {
        let mut random = SplitMix(2);
        let mut of = Self { inputs: Vec::new(), tokens: Vec::new(), classes: Vec::new(), values: Vec::new() };
        for _ in 0..DISTINCT {
            match workload {
                Workload::Mlp | Workload::Cnn => {
                    let (mut images, mut classes) = (Vec::new(), Vec::new());
                    for _ in 0..workload.batch() {
                        // A bright bar at a position given by the class, with noise; one label in ten is
                        // wrong.
                        let class = (random.next() % 10) as i64;
                        images.extend((0..784i64).map(|place| {
                            let bar = place / 28 / 2 == class + 2;
                            (random.unit() * 0.5 + if bar { 0.5 } else { 0.0 }) as f32
                        }));
                        let wrong = random.next() % 10 == 0;
                        classes.push(if wrong { (random.next() % 10) as i64 } else { class });
                    }
                    of.inputs.push(images);
                    of.classes.push(classes);
                }
                Workload::Gpt => {
                    // A random walk: each character determines the next one, up to three choices.
                    let (mut tokens, mut next) = (Vec::new(), Vec::new());
                    for _ in 0..workload.batch() {
                        let mut at = (random.next() % GPT.classes as u64) as i64;
                        for _ in 0..GPT.context {
                            tokens.push(at);
                            at = (at * 7 + 1 + (random.next() % 3) as i64) % GPT.classes as i64;
                            next.push(at);
                        }
                    }
                    of.tokens.push(tokens);
                    of.classes.push(next);
                }
                Workload::Tiny => {
                    let inputs: Vec<f32> = (0..8).map(|_| (random.unit() * 2.0 - 1.0) as f32).collect();
                    of.values.push(inputs.chunks(2).map(|pair| pair[0] * pair[1]).collect());
                    of.inputs.push(inputs);
                }
            }
        }
        of
    }
}

/// splitmix64.
struct SplitMix(u64);

impl SplitMix {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// From 0 to 1.
    fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }
}

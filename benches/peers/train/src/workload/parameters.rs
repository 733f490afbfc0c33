//! The list of a network's parameters, in the order of their use.

use super::random::SplitMix;

/// First values of a parameter.
#[derive(Debug)]
enum Start {
    Zeros,
    Ones,
    /// Uniform around 0 with this standard deviation.
    Uniform(f64),
}

/// Shapes and first values.
#[derive(Debug, Default)]
pub struct Parameters(Vec<(Vec<usize>, Start)>);

impl Parameters {
    pub fn uniform(&mut self, shape: impl Into<Vec<usize>>, deviation: f64) {
        self.0.push((shape.into(), Start::Uniform(deviation)));
    }

    pub fn zeros(&mut self, shape: impl Into<Vec<usize>>) {
        self.0.push((shape.into(), Start::Zeros));
    }

    /// A weight and a bias.
    pub fn linear(&mut self, inputs: usize, outputs: usize) {
        self.uniform([inputs, outputs], (1.0 / inputs as f64).sqrt());
        self.zeros([outputs]);
    }

    /// A scale and a shift.
    pub fn norm(&mut self, width: usize) {
        self.0.push((vec![width], Start::Ones));
        self.zeros([width]);
    }

    /// Draws the values.
    pub fn values(self, random: &mut SplitMix) -> Vec<(Vec<usize>, Vec<f32>)> {
        let draw = |(shape, start): (Vec<usize>, Start)| {
            let elements = shape.iter().product();
            let values = match start {
                Start::Zeros => vec![0.0; elements],
                Start::Ones => vec![1.0; elements],
                Start::Uniform(deviation) => {
                    (0..elements).map(|_| (random.signed() * 3.0f64.sqrt() * deviation) as f32).collect()
                }
            };
            (shape, values)
        };
        self.0.into_iter().map(draw).collect()
    }
}

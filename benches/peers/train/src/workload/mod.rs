//! The workloads: training programs with the same weights and batches for every peer.
//!
//! Values come from splitmix64 alone. `torch_workloads.py` makes the same bits, so the losses of all peers can be
//! compared digit by digit. Each family of networks has a file with its sizes, parameters and batches.

pub mod convolution;
pub mod gpt;
mod parameters;
pub mod perceptron;
mod random;
pub mod recurrent;

use clap::ValueEnum;

use self::gpt::Gpt;
use self::parameters::Parameters;
use self::random::SplitMix;
use self::recurrent::Recurrent;

/// The programs.
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
    /// A perceptron 4096-4096-4096-1000 with batches of 256, SGD with momentum.
    Mlp4096,
    /// ResNet-18 for images of 32×32 with a 3×3 stem, batches of 32, SGD with momentum.
    Resnet18,
    /// Two LSTM layers of 256 on 64 steps of 64 values, batches of 32, AdamW.
    Lstm,
    /// Two GRU layers of the same sizes.
    Gru,
    /// A GPT: 6 layers of width 512, 8 heads, context 256, batches of 4, AdamW.
    Gpt512,
}

/// The network of a workload.
#[derive(Clone, Copy, Debug)]
pub enum Network {
    /// Linear layers of these sizes with ReLU between them.
    Perceptron(&'static [usize]),
    Cnn,
    ResNet18,
    Recurrent(Recurrent),
    Gpt(Gpt),
}

/// The optimizer of a workload. Weight decay is 0.01 for AdamW, and 0 for SGD.
#[derive(Clone, Copy, Debug)]
pub enum Optimizer {
    Sgd { rate: f64, momentum: f64 },
    AdamW { rate: f64 },
}

/// Values in row-major order.
#[derive(Debug)]
pub enum Data {
    Floats { shape: Vec<usize>, values: Vec<f32> },
    Indices { shape: Vec<usize>, values: Vec<i64> },
}

/// The input and the target of a step. The loss is the cross entropy for targets that are classes, else the mean
/// squared error.
#[derive(Debug)]
pub struct Batch {
    pub input: Data,
    pub target: Data,
}

impl Workload {
    pub const fn network(self) -> Network {
        match self {
            Self::Mlp => Network::Perceptron(&perceptron::MLP),
            Self::Tiny => Network::Perceptron(&perceptron::TINY),
            Self::Mlp4096 => Network::Perceptron(&perceptron::MLP_4096),
            Self::Cnn => Network::Cnn,
            Self::Resnet18 => Network::ResNet18,
            Self::Lstm => Network::Recurrent(recurrent::LSTM),
            Self::Gru => Network::Recurrent(recurrent::GRU),
            Self::Gpt => Network::Gpt(gpt::SMALL),
            Self::Gpt512 => Network::Gpt(gpt::GPT_512),
        }
    }

    pub const fn optimizer(self) -> Optimizer {
        match self {
            Self::Mlp => Optimizer::Sgd { rate: 0.1, momentum: 0.0 },
            Self::Tiny => Optimizer::Sgd { rate: 0.05, momentum: 0.0 },
            Self::Cnn => Optimizer::Sgd { rate: 0.01, momentum: 0.9 },
            Self::Mlp4096 => Optimizer::Sgd { rate: 0.001, momentum: 0.9 },
            // Larger steps amplify differences in rounding.
            Self::Resnet18 => Optimizer::Sgd { rate: 0.0001, momentum: 0.9 },
            Self::Lstm | Self::Gru | Self::Gpt | Self::Gpt512 => Optimizer::AdamW { rate: 3e-4 },
        }
    }

    pub const fn batch(self) -> usize {
        match self {
            Self::Mlp | Self::Cnn => 64,
            Self::Gpt => 16,
            Self::Tiny | Self::Gpt512 => 4,
            Self::Mlp4096 => 256,
            Self::Resnet18 | Self::Lstm | Self::Gru => 32,
        }
    }

    /// Steps of a timed block; one block before the first is not counted.
    pub const fn steps_per_block(self) -> usize {
        match self {
            Self::Mlp => 150,
            Self::Cnn => 30,
            Self::Gpt => 10,
            Self::Tiny => 2000,
            Self::Lstm | Self::Gru => 5,
            Self::Mlp4096 | Self::Resnet18 | Self::Gpt512 => 2,
        }
    }

    /// Different batches, used in rotation.
    const fn distinct_batches(self) -> usize {
        match self {
            Self::Mlp | Self::Cnn | Self::Gpt | Self::Tiny => 32,
            _ => 4,
        }
    }

    /// The shapes of the parameters and their first values. Weights are `[inputs, outputs]` or `[out channels, in
    /// channels, height, width]`.
    pub fn weights(self) -> Vec<(Vec<usize>, Vec<f32>)> {
        let mut parameters = Parameters::default();
        match self.network() {
            Network::Perceptron(sizes) => perceptron::parameters(sizes, &mut parameters),
            Network::Cnn => convolution::cnn_parameters(&mut parameters),
            Network::ResNet18 => convolution::resnet_parameters(&mut parameters),
            Network::Recurrent(sizes) => recurrent::parameters(sizes, &mut parameters),
            Network::Gpt(sizes) => gpt::parameters(sizes, &mut parameters),
        }
        parameters.values(&mut SplitMix(1))
    }

    pub fn batches(self) -> Vec<Batch> {
        let mut random = SplitMix(2);
        (0..self.distinct_batches()).map(|_| self.next_batch(&mut random)).collect()
    }

    fn next_batch(self, random: &mut SplitMix) -> Batch {
        let n = self.batch();
        match self.network() {
            Network::Perceptron(sizes) => match self {
                Self::Tiny => perceptron::products(n, random),
                Self::Mlp4096 => perceptron::noise(vec![n, sizes[0]], sizes[sizes.len() - 1], random),
                _ => convolution::pictures(vec![n, sizes[0]], 28, random),
            },
            Network::Cnn => convolution::pictures(vec![n, 1, 28, 28], 28, random),
            Network::ResNet18 => convolution::pictures(vec![n, 3, 32, 32], 32, random),
            Network::Recurrent(Recurrent { steps, inputs, classes, .. }) => {
                perceptron::noise(vec![n, steps, inputs], classes, random)
            }
            Network::Gpt(sizes) => gpt::walks(n, sizes, random),
        }
    }
}

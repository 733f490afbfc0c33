//! The model: matrix factorization with biases, and a small network for what a product of features cannot express.

use highwater::nn::Init;
use highwater::prelude::*;

use crate::data::{ITEMS, USERS};
use crate::op::row_dot;

/// The features of a user and of an item.
const WIDTH: usize = 8;

/// The width of the network's hidden layer.
const HIDDEN: usize = 32;

/// A layer of this project: a mean, and what each user and item adds to it.
#[derive(Debug, Module)]
pub struct Biases {
    mean: Parameter,
    users: Embedding,
    items: Embedding,
}

impl Biases {
    fn new(device: &Device, rng: &Rng) -> Result<Self> {
        Ok(Self {
            mean: Parameter::new(Tensor::full(device, [1], 3.0)?)?,
            users: Embedding::new(device, USERS, 1, rng)?,
            items: Embedding::new(device, ITEMS, 1, rng)?,
        })
    }
}

#[module]
impl Module for Biases {
    /// Maps users and items (`[n, 2]`) to sums of biases (`[n]`).
    fn forward(&self, pairs: &Tensor) -> Result<Tensor> {
        let users = self.users.forward(&pairs.select(1, 0)?)?;
        let items = self.items.forward(&pairs.select(1, 1)?)?;
        users.add(&items)?.squeeze(1)?.add(&self.mean.operand()?)
    }
}

/// Predicts how users rate items.
#[derive(Debug, Module)]
pub struct Recommender {
    biases: Biases,
    users: Embedding,
    items: Embedding,
    network: Sequential,
}

impl Recommender {
    /// Creates a model with random features.
    ///
    /// # Errors
    /// If there is no memory.
    pub fn new(device: &Device, rng: &Rng) -> Result<Self> {
        // Kaiming initialization, the default of linear layers, would start with random predictions.
        let last = LinearOptions { weight: Init::Zeros, ..LinearOptions::default() };
        let network = Sequential::new()
            .with("hidden", Linear::new(device, 2 * WIDTH, HIDDEN, rng)?.with_activation(Activation::Relu))
            .with("out", Linear::with_options(device, HIDDEN, 1, last, rng)?);
        let features = |count| {
            let weight = Tensor::normal(device, [count, WIDTH], 0.0, 0.3, rng)?;
            Embedding::from_parameter(Parameter::new(weight)?)
        };
        Ok(Self {
            biases: Biases::new(device, rng)?,
            users: features(USERS)?,
            items: features(ITEMS)?,
            network,
        })
    }

    /// Returns the mean square of the errors of predictions for these users and items.
    ///
    /// # Errors
    /// For tensors of other shapes, and if there is no memory.
    pub fn loss(&self, pairs: &Tensor, stars: &Tensor) -> Result<Tensor> {
        self.forward(pairs)?.mse_loss(stars)
    }
}

#[module]
impl Module for Recommender {
    /// Maps users and items (`[n, 2]`) to ratings (`[n]`).
    fn forward(&self, pairs: &Tensor) -> Result<Tensor> {
        let users = self.users.forward(&pairs.select(1, 0)?)?;
        let items = self.items.forward(&pairs.select(1, 1)?)?;
        let rest = self.network.forward(&Tensor::concat(&[&users, &items], 1)?)?.squeeze(1)?;
        row_dot(&users, &items)?.add(&self.biases.forward(pairs)?)?.add(&rest)
    }
}

//! A data set of this project: generated ratings of items by users.

use std::sync::Arc;

use highwater::prelude::*;

/// The users.
pub const USERS: usize = 240;

/// The items.
pub const ITEMS: usize = 120;

/// The standard deviation of the noise in the ratings. No model predicts new ratings with a smaller error.
pub const NOISE: f64 = 0.4;

const RATINGS: usize = 14_000;

/// The features that decide which items a user likes.
const FEATURES: usize = 3;

/// The ratings that are kept for testing.
const TEST: usize = 2_000;

/// Ratings: a user and an item as the input `[2]`, the stars as the target.
#[derive(Clone, Debug)]
pub struct Ratings {
    rows: Vec<([i64; 2], f32)>,
}

impl Ratings {
    /// Generates ratings for training and for testing. One seed gives the same ratings on every machine.
    ///
    /// # Errors
    /// If there is no memory.
    pub fn generate(seed: u64) -> Result<[Arc<Self>; 2]> {
        let (device, rng) = (Device::cpu()?, Rng::new(seed));
        let normal = |count: usize, deviation: f64| {
            Tensor::normal(&device, [count], 0.0, deviation, &rng)?.to_vec::<f32>()
        };
        let (tastes, traits) = (normal(USERS * FEATURES, 0.7)?, normal(ITEMS * FEATURES, 0.7)?);
        let (moods, qualities, noise) = (normal(USERS, 0.4)?, normal(ITEMS, 0.6)?, normal(RATINGS, NOISE)?);
        let numbers = |below: usize| {
            let numbers = Tensor::uniform(&device, [RATINGS], 0.0, below as f64, &rng)?.to_vec::<f32>()?;
            Ok::<_, Error>(numbers.into_iter().map(move |number| (number as usize).min(below - 1)))
        };
        let rows = numbers(USERS)?.zip(numbers(ITEMS)?).zip(noise).map(|((user, item), noise)| {
            let (taste, traits) = (&tastes[user * FEATURES..], &traits[item * FEATURES..]);
            let like: f32 =
                taste.iter().zip(traits).take(FEATURES).map(|(taste, trait_)| taste * trait_).sum();
            ([user as i64, item as i64], 3.0 + moods[user] + qualities[item] + like + noise)
        });
        let mut train: Vec<_> = rows.collect();
        let test = train.split_off(RATINGS - TEST);
        Ok([train, test].map(|rows| Arc::new(Self { rows })))
    }

    /// Returns the error of a model that always predicts the mean: the root of the mean square.
    #[must_use]
    pub fn deviation(&self) -> f64 {
        let count = self.rows.len().max(1) as f64;
        let mean = self.rows.iter().map(|row| f64::from(row.1)).sum::<f64>() / count;
        (self.rows.iter().map(|row| (f64::from(row.1) - mean).powi(2)).sum::<f64>() / count).sqrt()
    }
}

impl Dataset for Ratings {
    fn len(&self) -> usize {
        self.rows.len()
    }

    fn get(&self, index: usize) -> Result<Sample> {
        let (pair, stars) = self.rows[index];
        Sample::new(&pair, [2])?.with_target(&[stars], ())
    }
}

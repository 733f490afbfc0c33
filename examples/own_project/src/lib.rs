//! A recommender: an example of a project that uses Highwater.

pub mod data;
pub mod model;
pub mod op;

use std::sync::Arc;

use highwater::fit::Plan;
use highwater::prelude::*;
use highwater::train::{Loss, Outcome, Saves, Trainer, evaluate};

use data::Ratings;
use model::Recommender;

/// The ratings per step.
pub const BATCH: usize = 512;

/// The name of the error on the test ratings, a mean square.
pub const TEST_ERROR: &str = "test_error";

/// Trains a new model with any plan on any device, also a dry one. Continues from the file of `saves`, if it has one.
///
/// # Errors
/// If there is no memory, and if the file cannot be read or written.
pub fn train(
    [train, test]: &[Arc<Ratings>; 2],
    device: &Device,
    plan: &Plan,
    epochs: u64,
    saves: Saves,
) -> Result<(Recommender, Outcome)> {
    let model = Recommender::new(device, &Rng::new(1))?;
    let mut optimizer = AdamW::new(model.parameters(), 0.02)?.with_weight_decay(0.1)?;
    let outcome = Trainer::new(&model, &mut optimizer)
        .epochs(epochs)
        .schedule_by(|at| 0.02 * (1.0 - at.epoch as f64 / EPOCHS as f64).max(0.05))
        .evaluate(|| {
            let mut error = Loss::new(|ratings, stars| ratings.mse_loss(stars)).named(TEST_ERROR);
            evaluate(test.batches(plan.micro_batch, device)?, |x| model.forward(x), &mut [&mut error])
        })
        .saves(saves)
        .plan(plan)
        .train(
            |epoch| Ok(train.batches(plan.micro_batch, device)?.shuffled(1, epoch)),
            |(pairs, stars)| model.loss(pairs, stars),
        )?;
    Ok((model, outcome))
}

/// The epochs of a whole training run.
pub const EPOCHS: u64 = 20;
